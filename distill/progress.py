"""What a person sees while a job runs: one bar for a training, plain lines where the output is no terminal."""

import time
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

# A file or a pipe has no width of its own; 80 columns would break the tables.
console = Console(highlight=False) if Console().is_terminal else Console(highlight=False, width=120)
LINE_EVERY_SECONDS = 20.0


def say(text: str, style: str | None = None) -> None:
    """One line of a run's account, as it is: never broken, so that its paths can be copied."""
    console.print(text, style=style, markup=False, soft_wrap=True)


def notice(text: str) -> None:
    """Something the user did not ask for and should know."""
    say(f"Notice: {text}", style="yellow")


class Meter:
    """A bar in a terminal, a line every 20 seconds elsewhere, with the time left; a context around the work."""

    def __init__(self, title: str, total: int, *, done: int = 0, unit: str = "steps") -> None:
        self.title, self.total, self.unit = title, total, unit
        self._first = self._done = done
        self._status = ""
        self._progress: Progress | None = None

    def __enter__(self) -> "Meter":
        self._started = self._last_line = time.monotonic()
        if console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[status]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=console,
            )
            self._bar = self._progress.add_task(self.title, total=self.total, completed=self._first, status="")
            self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def advance(self, number: int) -> None:
        """So much more is done."""
        self.show(self._done + number)

    def show(self, done: int, status: str | None = None, *, now: str | None = None) -> None:
        """So much is done; `now` is said on a line of its own where there is no bar."""
        self._done, self._status = done, self._status if status is None else status
        if self._progress is not None:
            self._progress.update(self._bar, completed=done, status=self._status)
            return
        time_now = time.monotonic()
        if now is not None or time_now - self._last_line >= LINE_EVERY_SECONDS:
            self._last_line = time_now
            left = (time_now - self._started) / max(1, done - self._first) * (self.total - done)
            count = f"{self.title}  {self.unit} {done:,}/{self.total:,}"
            words = [count, self._status, now or "", f"{left:.0f} s left"]
            say("  ".join(word for word in words if word))


class ProgressBar(Callback):
    """Loss, the best dev metric so far and the time left, over all steps of a training."""

    def __init__(self, title: str, metric: str, selects: str = "max") -> None:
        self.title, self.metric = title, metric
        self._better = max if selects == "max" else min
        self._meter: Meter | None = None
        self._loss: float | None = None
        self._best: float | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._meter = Meter(self.title, trainer.max_steps, done=trainer.global_step, unit="step")
        self._meter.__enter__()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        loss = trainer.callback_metrics.get("train/loss")
        if loss is not None:
            value = float(loss)
            self._loss = value if self._loss is None else 0.95 * self._loss + 0.05 * value
        self._show(trainer.global_step)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        score = trainer.callback_metrics.get(self.metric)
        if score is not None:
            self._best = float(score) if self._best is None else self._better(self._best, float(score))
            self._show(trainer.global_step, now=f"{self.metric} {float(score):.4f}")

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._stop()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._stop()

    def _show(self, step: int, now: str | None = None) -> None:
        status = "" if self._loss is None else f"loss {self._loss:.4f}"
        if self._best is not None:
            status += f"  best {self.metric} {self._best:.4f}"
        if self._meter is not None:
            self._meter.show(step, status, now=now)

    def _stop(self) -> None:
        if self._meter is not None:
            self._meter.__exit__()
            self._meter = None
