"""A teacher that exists already: a local directory, the Hugging Face cache or the Hub."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from distill import hub
from distill.errors import UnreachableError, UserError
from distill.files import is_full_disk
from distill.models.loading import Start, check_directory, has_tokenizer, load_directory

PRECISIONS = ("float32", "bfloat16")
# What a model needs to be loaded; weights in safetensors only, since a pickle can run code.
_FILES = ("*.json", "*.txt", "*.model", "*.safetensors", "*.py")


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
            hub.check_file(name, "config.json", revision=self.revision)
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
