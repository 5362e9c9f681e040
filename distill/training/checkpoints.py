"""Checkpoints of a training, from which a stopped or killed training resumes with the same result."""

import os
import pickle
import signal
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, cast

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from distill.errors import UserError
from distill.storage import mirror
from distill.storage.files import atomic_file
from distill.training import distributed

if TYPE_CHECKING:
    from distill.text.stream import CorpusStream

_STOPPING = (
    b"\nStopping after this step and saving a checkpoint. A second Ctrl-C stops at once and keeps the last one.\n"
)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its target and renames it, so that a killed run leaves the last complete one."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: object | None = None
    ) -> None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(target) as temporary, open(temporary, "wb") as file:
            torch.save(checkpoint, file)
        mirror.send_changes(target.parent)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Reads a checkpoint whose checksums match; the tensors stay on the disk until they are used.

    Raises:
        UserError: if the file is missing or damaged.
    """
    if not path.is_file():
        raise UserError(f"{path} is missing: remove {path.parent} to restart this training from the beginning")
    try:
        with zipfile.ZipFile(path) as archive:  # torch.load does not compare the checksums that torch.save writes.
            if archive.testzip() is not None:
                raise _damaged(path)
        checkpoint: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, KeyError, EOFError, ValueError, OSError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise _damaged(path) from error
    return checkpoint


def _damaged(path: Path) -> UserError:
    return UserError(f"{path} is damaged: remove {path.parent} to restart this training from the beginning")


class PortableModelCheckpoint(ModelCheckpoint):
    """A ModelCheckpoint whose state holds file names in place of paths, so that the directory of a run can be moved.

    Lightning forgets the best score where the directory has changed, and the next evaluation overwrites `best.ckpt`.
    It also takes an evaluation after every step (`val_check_interval=1`) for one at the end of every epoch (1.0), and
    saves nothing in between. This class saves after every evaluation.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(save_on_train_epoch_end=False, **options)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        directory = Path(str(self.dirpath))
        paths = {
            name: str(directory / Path(state_dict[name]).name) if state_dict.get(name) else ""
            for name in ("best_model_path", "kth_best_model_path", "last_model_path")
        }
        best = {str(directory / Path(path).name): score for path, score in state_dict.get("best_k_models", {}).items()}
        if paths["best_model_path"] and not Path(paths["best_model_path"]).is_file():
            raise UserError(f"{paths['best_model_path']} is missing: remove {directory} to restart this training")
        super().load_state_dict({**state_dict, **paths, "best_k_models": best, "dirpath": self.dirpath})


class StepSource(Protocol):
    """The source of the steps of a training: the sampler of its batches, or a stream."""

    rank: int
    skip: int


class Checkpoints(Callback):
    """Writes `path` every `every` optimizer steps. After a signal it writes `path` and stops the training.

    Args:
        identity: properties of the training; a resumed training must have the same ones.
        steps: source of the steps. It skips the first `skip` steps of the next epoch; `place` is the position in a
            stream.
    """

    def __init__(self, path: Path, *, every: int | None, identity: Mapping[str, object], steps: StepSource) -> None:
        self.path, self.every, self.identity, self.steps = path, every, dict(identity), steps
        self.stopping = self._synchronized = False
        self._due = False

    def skip_finished_steps(self) -> None:
        """Skips the steps that the checkpoint's epoch had finished.

        Raises:
            UserError: if the checkpoint is damaged or belongs to another training.
        """
        checkpoint = load_checkpoint(self.path)
        try:
            identity, done, places = checkpoint["identity"], checkpoint["steps_of_epoch"], checkpoint["places"]
        except KeyError as error:
            raise _damaged(self.path) from error
        names = self.identity.keys() | identity.keys()
        other = sorted(name for name in names if identity.get(name) != self.identity.get(name))
        if other:
            raise UserError(
                f"{self.path} belongs to another training with different {' and '.join(other)}: run the command "
                "without resume"
            )
        self.steps.skip = done
        if (place := places[distributed.rank()]) is not None:
            cast("CorpusStream", self.steps).place = place

    @contextmanager
    def stop_on_signals(self) -> Iterator[None]:
        """Stops the training after the current step on Ctrl-C and SIGTERM, and at once on a second signal.

        Raises:
            KeyboardInterrupt: if the signal arrived during the last step.
        """
        with handle_signals(self._stop, signal.SIGINT, signal.SIGTERM):
            yield
        if self.stopping:  # The signal came in the last step.
            raise KeyboardInterrupt

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if distributed.rank() > 0:  # Only rank 0 prints, and only there a second signal stops at once.
            self.stopping = True
            return
        if self.stopping:
            raise KeyboardInterrupt
        self.stopping = True
        os.write(2, _STOPPING)  # print is not safe in a signal handler.

    def _synchronize(self) -> None:
        """Stops all processes with a checkpoint of this step if one of them got a signal.

        They exchange after every step whether one of them did, so that all of them stop after the same step.
        """
        if not self._synchronized and distributed.any_rank(self.stopping):
            self.stopping = self._synchronized = self._due = True

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._stop)  # Lightning has installed its own handler.

    def on_train_batch_start(self, trainer: L.Trainer, *args: object) -> None:
        if self._synchronized and not self._due:
            raise KeyboardInterrupt

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Writes the checkpoint that is due.

        No checkpoint is written after a step that ends the epoch or is followed by an evaluation on dev, because a
        resumed training would skip the end of the epoch and the evaluation. After an evaluation a ModelCheckpoint
        writes `path`. After the end of an epoch `path` is written after the next step.
        """
        self._synchronize()
        self._due |= self.every is not None and trainer.global_step % self.every == 0
        step = trainer.fit_loop.epoch_loop.total_batch_idx + 1  # Evaluations are counted across epochs.
        evaluates = trainer.should_stop or step % cast(int, trainer.val_check_batch) == 0
        if self._due and not evaluates and not trainer.is_last_batch:
            trainer.save_checkpoint(self.path, weights_only=False)
            self._due = False

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._synchronize()
        self._due = False  # A ModelCheckpoint writes `path` here.

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["identity"] = self.identity
        # Each process reads its own documents.
        checkpoint["places"] = distributed.all_gather(getattr(self.steps, "place", None))


@contextmanager
def handle_signals(handler: Callable[[int, FrameType | None], object], *signals: signal.Signals) -> Iterator[None]:
    """Handles these signals with `handler` in this context; does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, previous_handler in previous.items():
            signal.signal(number, previous_handler)


def remove(directory: Path) -> None:
    """Removes the checkpoints of a training whose result is saved elsewhere."""
    for path in (directory / "best.ckpt", directory / "last.ckpt", *directory.glob("soup*.ckpt")):
        path.unlink(missing_ok=True)
    directory.rmdir()
