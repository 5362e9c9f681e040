"""What is saved of a training and when, so that one that was stopped or killed goes on as if nothing had been."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, cast

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.io import TorchCheckpointIO

from distill.errors import UserError
from distill.files import atomic_file
from distill.training import distributed

_STOPPING = (
    b"\nStopping after this step, and keeping it. Once more stops at once, and goes back to the last checkpoint.\n"
)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Checkpoints are written beside their target and renamed: a killed run leaves the last whole one."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(target) as temporary, open(temporary, "wb") as file:
            torch.save(checkpoint, file)


class Checkpoints(Callback):
    """Writes `path` every so many optimizer steps, and when the training is asked to stop, which it then does.

    Of several processes one may be asked: they agree after every step, so that all of them stop after the same one.

    A step after which dev is scored or the epoch ends is no place for it: a training that went on from there would do
    neither. Where dev is scored a ModelCheckpoint writes `path` afterwards; otherwise the next step has its turn.

    Args:
        identity: what the training depends on; whoever goes on with it must agree (`go_on`).
        steps: where the steps come from: `skip` of the next epoch are left out, and `place` says where a stream stands.
    """

    def __init__(self, path: Path, *, every: int | None, identity: Mapping[str, Any], steps: Any) -> None:
        self.path, self.every, self.identity, self.steps = path, every, dict(identity), steps
        self.stopping = self._agreed = False
        self._due = False

    def go_on(self) -> None:
        """Leave out the steps of the epoch in which the checkpoint was written that are behind it.

        Raises:
            UserError: where the checkpoint is damaged or of another training.
        """
        try:
            checkpoint = torch.load(self.path, map_location="cpu", weights_only=True, mmap=True)
            identity, done, places = checkpoint["identity"], checkpoint["steps_of_epoch"], checkpoint["places"]
        except (RuntimeError, KeyError, EOFError) as error:
            raise UserError(f"{self.path} is damaged: remove it to begin this training anew") from error
        other = sorted(name for name in self.identity if identity.get(name) != self.identity[name])
        if other:
            raise UserError(
                f"{self.path} is of another training, with other {' and '.join(other)}: start anew, without resume"
            )
        self.steps.skip = done
        if (place := places[distributed.rank()]) is not None:
            self.steps.place = place

    @contextmanager
    def asked_to_stop(self) -> Iterator[None]:
        """Meanwhile Ctrl-C and SIGTERM end the training after the step that they come in; a second one ends it at once.

        Raises:
            KeyboardInterrupt: when it was asked to in its last step.
        """
        with handled(self._stop, signal.SIGINT, signal.SIGTERM):
            yield
        if self.stopping:  # In the last step.
            raise KeyboardInterrupt

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if distributed.rank() > 0:  # The first one says it, and is asked twice.
            self.stopping = True
            return
        if self.stopping:
            raise KeyboardInterrupt
        self.stopping = True
        os.write(2, _STOPPING)  # Printing is not safe everywhere that a signal can come.

    def _agree(self) -> None:
        """Stop where one of the processes was asked to, and keep this step."""
        if not self._agreed and distributed.any_rank(self.stopping):
            self.stopping = self._agreed = self._due = True

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._stop)  # Lightning has put its own in the place.

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        if self._agreed and not self._due:
            raise KeyboardInterrupt

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._agree()
        self._due |= self.every is not None and trainer.global_step % self.every == 0
        scored = trainer.should_stop or (batch_idx + 1) % cast(int, trainer.val_check_batch) == 0
        if self._due and not scored and not trainer.is_last_batch:
            trainer.save_checkpoint(self.path, weights_only=False)
            self._due = False

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._agree()
        self._due = False  # A ModelCheckpoint writes it here.

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["identity"] = self.identity
        # Each process reads documents of its own.
        checkpoint["places"] = distributed.all_gather(getattr(self.steps, "place", None))


@contextmanager
def handled(handler: Callable[[int, FrameType | None], Any], *signals: signal.Signals) -> Iterator[None]:
    """Meanwhile `handler` answers these signals; they are the main thread's alone, elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def remove(directory: Path) -> None:
    """Remove the checkpoints of a training whose result is kept elsewhere."""
    for name in ("best.ckpt", "last.ckpt"):
        (directory / name).unlink(missing_ok=True)
    directory.rmdir()
