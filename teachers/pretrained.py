"""A teacher that exists already: a local directory, the Hugging Face cache or the Hub."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill import hub
from distill.errors import UnreachableError, UserError
from distill.files import is_full_disk

PRECISIONS = ("float32", "bfloat16")
# What a model needs to be loaded; weights in safetensors only, since a pickle can run code.
_FILES = ("*.json", "*.txt", "*.model", "*.safetensors", "*.py")


@dataclass(frozen=True)
class Start:
    """A model to teach with, or to make a teacher of.

    `fits` says that it has a trained head for the task's labels; otherwise `reason` says why not, and `fresh` names the
    tensors that begin at random. `notices` are for the user's eyes.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    fits: bool
    reason: str = ""
    notices: list[str] = field(default_factory=list)
    fresh: list[str] = field(default_factory=list)


class Pretrained:
    """Weights by `path` (a directory) or by `id` (the Hugging Face cache first, then the Hub).

    Args:
        name: names the teacher in records and directories.
        precision: in which it answers: `float32` or `bfloat16`, whatever the checkpoint was stored in.
        trust_remote_code: run Python code that comes with the weights.
    """

    is_new = False

    def __init__(
        self,
        *,
        name: str,
        id: str | None = None,
        path: str | None = None,
        revision: str | None = None,
        precision: str = "float32",
        trust_remote_code: bool = False,
    ) -> None:
        check_precision(precision)
        if path is None and id is None:
            raise UserError(
                f"teacher {name} does not say which weights: give teacher.path=DIR or teacher.id=NAME of the Hub"
            )
        self.name, self.id, self.path, self.revision = name, id, path, revision
        self.precision, self.trust_remote_code = precision, trust_remote_code
        self._directory: Path | None = None
        self._fingerprint: str | None = None

    def locate(self) -> Path:
        """The directory that holds the weights, fetched from the Hub if need be; found once.

        Raises:
            UserError: for a path that is no model directory, or an id that the Hub does not know.
            UnreachableError: when the weights are not on this machine and the Hub does not answer, within seconds.
        """
        if self._directory is None:
            self._directory = self._local() if self.path is not None else self._from_hub()
        return self._directory

    def resolved(self) -> str:
        """The teacher as records name it: the Hub's id, or the directory that the user gave."""
        return self.path if self.path is not None else str(self.id)

    def _local(self) -> Path:
        directory = Path(str(self.path)).expanduser()
        check_directory(directory, f"teacher.path={self.path}")
        return directory

    def _from_hub(self) -> Path:
        from huggingface_hub import errors, snapshot_download

        name = str(self.id)
        wanted: dict[str, Any] = {"revision": self.revision, "allow_patterns": list(_FILES)}
        try:
            cached = Path(snapshot_download(name, local_files_only=True, **wanted))
            if list(cached.glob("*.safetensors")) and (cached / "config.json").is_file() and has_tokenizer(cached):
                return cached
        except (errors.LocalEntryNotFoundError, errors.HFValidationError):
            pass  # The Hub is next; it also says what is wrong with a name.
        try:
            hub.ask(name, "config.json", revision=self.revision)
            fetched = Path(snapshot_download(name, **wanted))
        except (UnreachableError, OSError) as error:
            if is_full_disk(error) or isinstance(error, PermissionError):
                raise
            raise UnreachableError(
                f"the weights of teacher {self.name} ({name}) are neither in the Hugging Face cache nor to be had "
                "from the Hub: give teacher.path=DIR with the model's files, fetch them once on a machine that is "
                f"online (hf download {name}), or take the teacher that needs nothing, +teacher=embedded"
            ) from error
        if not list(fetched.glob("*.safetensors")):
            raise UserError(
                f"the Hub's {name} has no safetensors, and a pickle can run code when read: give teacher.revision=... "
                "of a version that has them (often refs/pr/N), or teacher.path=DIR with the model saved as safetensors"
            )
        return fetched

    def fingerprint(self) -> str:
        """A digest of configuration, tokenizer, weights and code; computed once."""
        if self._fingerprint is None:
            digest = hashlib.sha256()
            for path in sorted(self.locate().iterdir()):
                if path.suffix in (".json", ".txt", ".model", ".safetensors", ".py"):
                    digest.update(path.name.encode())
                    with open(path, "rb") as file:
                        digest.update(hashlib.file_digest(file, "sha256").digest())
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def load(self, auto_class: str, labels: Sequence[str] | None, texts: Iterable[str]) -> Start:
        """The model with a head for `labels`, its tokenizer, and whether that head is trained; in float32.

        Without `labels` the head is over the vocabulary. `texts` are not read: this teacher has its vocabulary already.
        """
        return load_directory(self.locate(), auto_class, labels, trust_remote_code=self.trust_remote_code)


def check_precision(precision: str) -> None:
    """UserError for a precision in which no teacher answers."""
    if precision not in PRECISIONS:
        raise UserError(f"teacher.precision={precision} is unknown, expected one of {', '.join(PRECISIONS)}")


def check_directory(directory: Path, given: str) -> None:
    """UserError, beginning with what was `given`, where there is no model in safetensors with its tokenizer."""
    if not directory.is_dir():
        raise UserError(f"{given} is no directory, expected one with config.json and weights")
    if not (directory / "config.json").is_file():
        raise UserError(f"{given} has no config.json, expected a directory that save_pretrained wrote")
    if not list(directory.glob("*.safetensors")):
        pickles = ", ".join(sorted(entry.name for entry in directory.glob("*.bin")))
        found = f"only {pickles}, which can run code when read" if pickles else "no weights"
        raise UserError(f"{given} holds {found}: save the model there again as safetensors (save_pretrained)")
    if not has_tokenizer(directory):
        raise UserError(f"{given} holds no tokenizer: call tokenizer.save_pretrained for the same directory")


def load_directory(directory: Path, auto_class: str, labels: Sequence[str] | None, *, trust_remote_code: bool) -> Start:
    """The model with a head for `labels` in float32, its tokenizer, and whether that head is trained.

    A head of the same labels in another order is put into the task's order; without labels it is over the vocabulary.

    Raises:
        UserError: for files that are damaged, or a model that has no such head.
    """
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()  # Its report of a fresh head is told in our own words.
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory, **options)
        config = transformers.AutoConfig.from_pretrained(directory, **options)
        order, reason, notices = _fit_labels(config, labels)
        model, info = getattr(transformers, auto_class).from_pretrained(
            directory,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=order is None,
            use_safetensors=True,
            **options,
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        # What transformers raises for broken files, unknown kinds of model, and those that have no such head.
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{directory} cannot be loaded: {line}") from error
    finally:
        transformers.logging.set_verbosity(verbosity)
    if not tokenizer.is_fast or tokenizer.pad_token_id is None:
        lacks = "padding token" if tokenizer.is_fast else "fast version (tokenizer.json)"
        raise UserError(f"the tokenizer of {directory} has no {lacks}, which batches and bundles need")
    fresh = sorted({*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])})
    if info["missing_keys"]:
        reason = f"its head is not trained ({', '.join(fresh)})"
    if reason:
        return Start(model, tokenizer, fits=False, reason=reason, fresh=fresh)
    assert order is not None
    if labels is not None:
        reorder_head(model, order)
    return Start(model, tokenizer, fits=True, notices=notices)


def _fit_labels(config: Any, labels: Sequence[str] | None) -> tuple[list[int] | None, str, list[str]]:
    """Give the configuration the task's labels; which of the model's own they are, as `match_labels` says."""
    if labels is None:
        return [], "", []
    own = [str(config.id2label[index]) for index in sorted(config.id2label)]
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: index for index, label in enumerate(labels)}
    config.problem_type = "regression" if len(labels) == 1 else "single_label_classification"
    return match_labels(own, labels)


def has_tokenizer(directory: Path) -> bool:
    """Whether a tokenizer's vocabulary is there; without one transformers makes up a tokenizer of five tokens."""
    names = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
    return any(next(directory.glob(name), None) is not None for name in names)


def match_labels(own: Sequence[str], labels: Sequence[str]) -> tuple[list[int] | None, str, list[str]]:
    """Which of the teacher's outputs is each of the task's labels: `(order, why not, notices)`.

    Names that the teacher gave meet by name, whatever their case; the `LABEL_i` of a teacher that gave none meet by
    index, with a notice.
    """
    if len(own) != len(labels):
        return None, f"it has {len(own)} labels and the task {len(labels)}", []
    if len(labels) == 1:  # The number of a regression, whatever it is called.
        return [0], "", []
    if all(name == f"LABEL_{index}" for index, name in enumerate(own)):
        pairs = ", ".join(f"{name}={label}" for name, label in zip(own, labels, strict=True))
        return list(range(len(labels))), "", [f"the teacher's labels have no names and are taken in order: {pairs}"]
    position = {name.lower(): index for index, name in enumerate(own)}
    if sorted(position) != sorted(label.lower() for label in labels):
        return None, f"its labels are {', '.join(own)} and the task's {', '.join(labels)}", []
    order = [position[label.lower()] for label in labels]
    notices = (
        [] if order == list(range(len(order))) else [f"the teacher's labels are put in order: {', '.join(labels)}"]
    )
    return order, "", notices


@torch.no_grad()
def reorder_head(model: PreTrainedModel, order: Sequence[int]) -> None:
    """Permute the rows of the last linear layer, so that output `i` is what output `order[i]` was."""
    if list(order) == list(range(len(order))):
        return
    heads = [m for m in model.modules() if isinstance(m, nn.Linear) and m.out_features == len(order)]
    if not heads:
        raise UserError(f"{type(model).__name__} has its labels in another order and no linear head to put in order")
    index = torch.tensor(order)
    heads[-1].weight.copy_(heads[-1].weight[index].clone())
    if heads[-1].bias is not None:
        heads[-1].bias.copy_(heads[-1].bias[index].clone())
