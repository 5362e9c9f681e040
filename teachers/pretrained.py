"""A pre-trained or fine-tuned model as the teacher, from a directory, the Hugging Face cache or the Hub."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from distill.core import storage
from distill.core.errors import OptionError, UnreachableError, UserError
from distill.core.files import is_full_disk
from distill.core.options import show_value
from distill.models.loading import ENCODER, OF_TEXTS, Start, find_directory, has_tokenizer, load_directory, read_width
from distill.models.sentence_files import prompts_of, read_sentence_files, set_prompts
from distill.models.surgery.long_texts import Attention, LongTexts, lengthen
from distill.models.yes_no import load_yes_no

PRECISIONS = ("float32", "bfloat16", "auto")
# The files to download; weights only in safetensors, because a pickle can run code.
_FILES = ("*.json", "*.txt", "*.model", "*.safetensors", "*.py", "README.md")


class Pretrained:
    """Weights in the directory `path`, or with `id` in the Hugging Face cache or on the Hub.

    Args:
        name: name of the teacher in records and directories.
        precision: precision of the forward passes, `float32`, `bfloat16` or `auto`, independent of the checkpoint's.
        trust_remote_code: whether to run Python code that comes with the weights.
        prompts: beginnings of texts by their names, in place of those in its files; those of `query` and `document`
            begin the texts of a retrieval set.
        prompt_name: the prompt that begins every text; None for those of the roles.
        answers, prompt: of a language model that scores a document by a yes or a no, as in `load_yes_no`.
        attention, window, global_tokens, positions: changes for long texts, as in `LongTexts`.
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
        prompts: Mapping[str, str] | None = None,
        prompt_name: str | None = None,
        answers: Sequence[str] | None = None,
        prompt: str | None = None,
        attention: Attention = "own",
        window: int | None = None,
        global_tokens: int = 1,
        positions: int | None = None,
    ) -> None:
        check_precision(precision)
        if (answers is None) != (prompt is None) or (answers is not None and len(answers) != 2):
            raise UserError("teacher.answers=[yes,no] and teacher.prompt belong together: give both, or neither")
        if prompts is not None and not (
            isinstance(prompts, Mapping) and all(isinstance(text, str) for item in prompts.items() for text in item)
        ):
            raise OptionError("teacher.prompts", show_value(prompts), "texts by their names, or null")
        self.answers, self.prompt = answers, prompt
        self.prompts, self.prompt_name = prompts, prompt_name
        self.long_texts = LongTexts("teacher", attention, window, global_tokens, positions)
        if path is None and id is None:
            raise UserError(f"teacher {name} has no weights: give teacher.path=DIR or teacher.id=NAME of the Hub")
        self.name, self.id, self.path, self.revision = name, id, path, revision
        self.precision, self.trust_remote_code = precision, trust_remote_code
        self._downloaded: Path | None = None
        self._digests: dict[Path, tuple[tuple[int, ...], bytes]] = {}

    def locate(self) -> Path:
        """Returns the directory of the weights, which are downloaded from the Hub if necessary.

        Raises:
            UserError: if the path is not a model directory, or the Hub does not have the id.
            UnreachableError: if the weights are not on this machine and the Hub does not respond within seconds.
        """
        if self.path is not None:
            return find_directory(self.path, "teacher.path")
        if self._downloaded is None:
            self._downloaded = self._download()
        return self._downloaded

    def resolved(self) -> str:
        """Returns the name in records: the id, or the path."""
        return self.path if self.path is not None else str(self.id)

    def _download(self) -> Path:
        """Returns the directory in the Hugging Face cache, downloaded if it is incomplete."""
        from huggingface_hub import errors, snapshot_download

        name = str(self.id)
        options: dict[str, Any] = {"revision": self.revision, "allow_patterns": list(_FILES)}
        try:
            cached = Path(snapshot_download(name, local_files_only=True, **options))
            if list(cached.glob("*.safetensors")) and (cached / "config.json").is_file() and has_tokenizer(cached):
                return cached
        except (errors.LocalEntryNotFoundError, errors.HFValidationError):
            pass  # The check below reports an invalid name.
        try:
            storage.check_hub_file(name, "config.json", revision=self.revision)
            downloaded = Path(snapshot_download(name, **options))
        except (UnreachableError, OSError) as error:
            if is_full_disk(error) or isinstance(error, PermissionError):
                raise
            raise UnreachableError(
                f"the weights of teacher {self.name} ({name}) are not in the Hugging Face cache and cannot be "
                "downloaded from the Hub: give teacher.path=DIR with the model's files, download them once on a "
                f"machine that is online (hf download {name}), or use the teacher that needs no download, "
                "+teacher=embedded"
            ) from error
        if not list(downloaded.glob("*.safetensors")):
            raise UserError(
                f"the Hub's {name} has no safetensors, and a pickle can run code when read: give teacher.revision=... "
                "of a version that has them (often refs/pr/N), or teacher.path=DIR with the model saved as safetensors"
            )
        return downloaded

    def fingerprint(self) -> str:
        """Returns a digest of configuration, tokenizer, weights and code. A file is read again if it has changed."""
        directory, digest = self.locate(), hashlib.sha256()
        # The modules of sentence-transformers have folders of their own.
        for path in sorted([*directory.iterdir(), *directory.glob("*_*/*.json"), *directory.glob("*_*/*.safetensors")]):
            if path.suffix in (".json", ".txt", ".model", ".safetensors", ".py"):
                digest.update(str(path.relative_to(directory)).encode())
                digest.update(self._digest(path))
        digest.update(self.long_texts.key().encode())
        if self.answers is not None:
            digest.update(f"{list(self.answers)} {self.prompt}".encode())
        if self.prompts is not None or self.prompt_name is not None:
            digest.update(f"{self.prompts and dict(self.prompts)} {self.prompt_name}".encode())
        return digest.hexdigest()

    def _digest(self, path: Path) -> bytes:
        status = path.stat()
        identity = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        kept, digest = self._digests.get(path, (None, b""))
        if kept != identity:
            with open(path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").digest()
            self._digests[path] = (identity, digest)
        return digest

    def width(self) -> int:
        """Returns the size of the hidden states."""
        return read_width(self.locate(), trust_remote_code=self.trust_remote_code)

    def load(
        self, auto_class: str, labels: Sequence[str] | None, texts: Iterable[str], *, problem_type: str | None = None
    ) -> Start:
        """Returns the model in float32 with a head for `labels`, and its tokenizer.

        Without `labels` the head is over the vocabulary. `texts` are not read, because the model has a vocabulary.
        """
        if self.answers is not None and self.prompt is not None:
            if auto_class != OF_TEXTS or labels is None or len(labels) != 1:
                raise UserError(
                    "teacher.answers gives a score to a text for a query: take task=reranking, or leave it out"
                )
            yes, no = self.answers
            return load_yes_no(
                self.locate(), (yes, no), self.prompt, labels[0], trust_remote_code=self.trust_remote_code
            )
        start = load_directory(
            self.locate(), auto_class, labels, trust_remote_code=self.trust_remote_code, problem_type=problem_type
        )
        if self.prompts is not None or self.prompt_name is not None:
            if read_sentence_files(self.locate()).prompt_name is not None:
                raise UserError(
                    f"{self.locate()} begins every text with its default prompt, and teacher.prompts with another one: "
                    "set default_prompt_name to null in its config_sentence_transformers.json"
                )
            if auto_class != ENCODER:
                raise UserError("teacher.prompts begin the texts of a task of vectors: leave them out")
            prompts = prompts_of(start.tokenizer) if self.prompts is None else self.prompts
            tokenizer, notices = set_prompts(start.tokenizer, prompts, self.prompt_name, f"teacher {self.name}")
            start = replace(start, tokenizer=tokenizer, notices=[*start.notices, *notices])
        return lengthen(start, self.long_texts)


def check_precision(precision: str) -> None:
    """Raises UserError for an unknown precision."""
    if precision not in PRECISIONS:
        raise UserError(f"teacher.precision={precision} is unknown, expected one of {', '.join(PRECISIONS)}")
