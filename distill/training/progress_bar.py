"""Progress bar of a training."""

import lightning as L
from lightning.pytorch.callbacks import Callback

from distill.console import ProgressMeter


class ProgressBar(Callback):
    """Shows the loss, the best metric on dev so far and the time left, over all steps of a training.

    Args:
        metric: name of the logged metric on dev.
        selects: `max` or `min`, the better direction of the metric.
    """

    def __init__(self, title: str, metric: str, selects: str = "max") -> None:
        self.title, self.metric = title, metric
        self._select = max if selects == "max" else min
        self._meter: ProgressMeter | None = None
        self._loss: float | None = None
        self._best: float | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._meter = ProgressMeter(self.title, trainer.max_steps, done=trainer.global_step, unit="step")
        self._meter.__enter__()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: object) -> None:
        loss = trainer.callback_metrics.get("train/loss")
        if loss is not None:
            self._loss = float(loss) if self._loss is None else 0.95 * self._loss + 0.05 * float(loss)
        self._update(trainer.global_step)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        score = trainer.callback_metrics.get(self.metric)
        if score is not None:
            self._best = float(score) if self._best is None else self._select(self._best, float(score))
            self._update(trainer.global_step, now=f"{self.metric} {float(score):.4f}")

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._stop()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._stop()

    def _update(self, step: int, now: str | None = None) -> None:
        status = "" if self._loss is None else f"loss {self._loss:.4f}"
        if self._best is not None:
            status += f"  best {self.metric} {self._best:.4f}"
        if self._meter is not None:
            self._meter.show(step, status, now=now)

    def _stop(self) -> None:
        if self._meter is not None:
            self._meter.__exit__()
            self._meter = None
