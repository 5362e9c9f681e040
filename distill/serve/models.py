"""The bundles that are served, each loaded again when its directory changes."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from distill.edge import Bundle
from distill.edge.bundle import RecordError
from distill.edge.decoder import Prediction, Record
from distill.edge.manifest import NAME, fingerprint
from distill.errors import DistillError, UserError, first_line
from distill.serve.batcher import Batcher
from distill.serve.scheduler import Scheduler
from distill.serve.settings import Limits

Signature = tuple[int, int, int]
# A record of each form.
PROBES: Sequence[Record] = (
    "a", ["a", "b"], {"question": "a", "context": "b"}, {"question": "a", "choices": ["b", "c"]},
    {"query": "a", "documents": ["b"]},
)  # fmt: skip


class ServedModel:
    """A bundle with its queues.

    Args:
        name: of the model in paths.
        directory: of the bundle.
        model: one of the bundle's files, None for the recommended one.
        threads: of each model; None for as many as the process may use cores.
        limits: of the requests.

    Raises:
        UserError: if the directory is not a bundle, lacks the file or is damaged.
    """

    def __init__(self, name: str, directory: Path, *, model: str | None, threads: int | None, limits: Limits) -> None:
        self.name, self.directory, self.batch_size = name, directory, limits.batch_size
        self._model, self._threads, self._truncate = model, threads, not limits.refuse_long
        self._most_rows = limits.rows
        self._signature = _sign(directory)
        self.bundle = self._load()
        self.generator = self.bundle.generator() if self.bundle.generates else None
        self.batcher = Batcher(
            self._predict, waiting=limits.waiting, records=limits.batch_records, characters=limits.batch_characters
        )  # fmt: skip
        self.scheduler = Scheduler(waiting=limits.waiting, rows=self.batch_size or self.bundle.batch_size)

    def describe(self) -> dict[str, object]:
        """Returns what a client may want to know of the model."""
        manifest = self.bundle.manifest
        names = ("task", "kind", "labels", "pair", "max_length")
        fields = {name: manifest.get(name) for name in names}
        return {
            "name": self.name, "file": self.bundle.model, "gate": self.bundle.caution or "passed",
            "fingerprint": fingerprint(manifest),
            "batch_size": self.batch_size or self.bundle.batch_size, "generates": self.bundle.generates, **fields,
        }  # fmt: skip

    def waiting(self) -> int:
        """Returns the number of requests that wait, and of texts that wait to be written."""
        return self.batcher.waiting() + self.scheduler.waiting()

    def is_working(self, seconds: float) -> bool:
        """Returns whether requests are answered, and nothing has been computed for longer than some seconds."""
        return self.batcher.is_working(seconds) and self.scheduler.is_working(seconds)

    async def reload_if_changed(self, thread: ThreadPoolExecutor) -> str | None:
        """Loads the bundle again if bundle.json is another file than before; requests go on with the old one.

        A bundle that cannot be loaded or cannot predict, as while it is being written, is tried again in the next call.

        Returns:
            What happened in words, None if nothing did.
        """
        signature = _sign(self.directory)
        if signature is None or signature == self._signature:
            return None
        try:
            bundle = await asyncio.get_running_loop().run_in_executor(thread, self._load)
        except DistillError as error:
            return f"{self.name} changed and cannot be loaded, the old one is served: {error}"
        self.bundle, self.generator = bundle, bundle.generator() if bundle.generates else None
        self.scheduler.rows = self.batch_size or bundle.batch_size
        self._signature = signature
        return f"{self.name} changed and was loaded again"

    def _load(self) -> Bundle:
        """Returns the bundle, which has predicted a record."""
        try:
            bundle = Bundle(self.directory, model=self._model, threads=self._threads)
            check_predicts(bundle)
        except (DistillError, KeyboardInterrupt):
            raise
        except BaseException as error:  # A panic of the tokenizer is no `Exception`.
            raise UserError(f"{self.directory} cannot predict: {first_line(error)}") from error
        return bundle

    def _predict(self, records: list[Record]) -> list[Prediction]:
        return self.bundle.predict(
            records, batch_size=self.batch_size, truncate=self._truncate, most_rows=self._most_rows
        )  # fmt: skip


def check_predicts(bundle: Bundle) -> None:
    """Predicts a record of the form that the bundle reads, or writes a token; raises what that raises."""
    if bundle.generates:
        bundle.generate_all(["a"], max_new_tokens=1)
        return
    mask = getattr(bundle.decoder, "mask_token", None)
    for record in PROBES if mask is None else [mask]:
        try:
            bundle.decoder.read(record)
        except UserError:  # It is of another form.
            continue
        with contextlib.suppress(RecordError):  # The letter may have no token.
            bundle.predict([record])
        return


def load_models(
    bundles: Sequence[str], *, model: str | None, threads: int | None, limits: Limits
) -> dict[str, ServedModel]:
    """Returns the models by name. A bundle is `DIR`, whose name is that of its task, or `NAME=DIR`.

    Raises:
        UserError: for a directory that is no bundle, and for two models of one name.
    """
    models: dict[str, ServedModel] = {}
    for entry in bundles:
        name, separator, directory = entry.partition("=")
        if not separator or Path(entry).exists():
            name, directory = "", entry
        loaded = ServedModel(name, Path(directory), model=model, threads=threads, limits=limits)
        loaded.name = name or str(loaded.bundle.manifest.get("task") or Path(directory).resolve().name)
        if not loaded.name.replace("-", "_").isidentifier():
            raise UserError(f"got the name {loaded.name!r} of {directory}, expected letters and digits: give NAME=DIR")
        if loaded.name in models:
            raise UserError(
                f"{models[loaded.name].directory} and {directory} have one name, {loaded.name}: give NAME=DIR"
            )
        models[loaded.name] = loaded
    return models


def only(models: Mapping[str, ServedModel]) -> ServedModel | None:
    """Returns the model if there is just one."""
    return next(iter(models.values())) if len(models) == 1 else None


def _sign(directory: Path) -> Signature | None:
    """Returns what changes with every write of bundle.json, which is written last; None if it is missing."""
    try:
        status = (directory / NAME).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
