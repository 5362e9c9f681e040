"""Progress bar of a training."""

from collections.abc import Mapping

import lightning as L
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from distill.console import ProgressMeter, console
from distill.events import events
from distill.stages import stages

SMOOTHING = 0.95  # Of the losses, the share of the steps before.
TOTAL = "loss"  # Of all terms.
ROOM = 66  # Columns of a line beside the losses and the best metric.


class ProgressBar(Callback):
    """Shows the loss with each term, the best metric on dev so far and the time left, over all steps of a training.

    It sends the same as events, and those of dev for every evaluation.

    Args:
        metric: name of the logged metric on dev.
        selects: `max` or `min`, the better direction of the metric.
        weights: of the terms of the loss by their names.
    """

    def __init__(self, title: str, metric: str, selects: str = "max", *, weights: Mapping[str, float]) -> None:
        self.title, self.metric, self.weights = title, metric, weights
        self._select = max if selects == "max" else min
        self._meter: ProgressMeter | None = None
        self._losses: dict[str, float] = {}
        self._best: float | None = None
        self._epoch = 0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._meter = ProgressMeter(self.title, trainer.max_steps, done=trainer.global_step, unit="step")
        self._meter.__enter__()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: object) -> None:
        self._epoch = trainer.current_epoch
        self._add(trainer.callback_metrics)
        self._update(trainer.global_step)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        score = trainer.callback_metrics.get(self.metric)
        if score is not None:
            self._best = float(score) if self._best is None else self._select(self._best, float(score))
            self._update(trainer.global_step, now=f"{self.metric} {float(score):.4f}")
        dev = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("dev/")}
        events.send("metrics", title=self.title, step=trainer.global_step, metrics=dev)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._stop()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._stop()

    def _add(self, metrics: Mapping[str, Tensor]) -> None:
        """Averages the losses of a step with those of the steps before."""
        for name in (TOTAL, *self.weights):
            if (loss := metrics.get(f"train/{name}")) is not None:
                before = self._losses.get(name, float(loss))
                self._losses[name] = SMOOTHING * before + (1 - SMOOTHING) * float(loss)

    def _update(self, step: int, now: str | None = None) -> None:
        best = "" if self._best is None else f"  best {self.metric} {self._best:.4f}"
        room = ROOM + len(best) if console.is_interactive else 0  # Elsewhere a line has no bar and may be longer.
        status = describe_losses(self._losses, self.weights, width=console.width - room) + best
        if self._meter is not None:
            self._meter.show(step, status, now=now, details=self._describe_step)
            stages.expect_left(self._meter.left())

    def _describe_step(self) -> Mapping[str, object]:
        """Returns what the event of a step has besides its number."""
        losses = {name: self._losses.get(name) for name in self.weights}
        return {"epoch": self._epoch, "loss": self._losses.get(TOTAL), "losses": losses, **stages.progress()}

    def _stop(self) -> None:
        if self._meter is not None:
            self._meter.__exit__()
            self._meter = None


def describe_losses(losses: Mapping[str, float], weights: Mapping[str, float], *, width: int) -> str:
    """Returns the loss as the weighted sum of its terms, or alone if the sum has more characters than `width`.

    >>> describe_losses({"loss": 0.365, "soft": 0.031, "hard": 0.105}, {"soft": 5.0, "hard": 2.0}, width=70)
    'loss 0.3650 = soft 0.0310 x 5 + hard 0.1050 x 2'
    """
    if TOTAL not in losses:
        return ""
    total = f"loss {losses[TOTAL]:.4f}"
    terms = [
        f"{name} {losses[name]:.4f}" + ("" if weight == 1 else f" x {weight:g}")
        for name, weight in weights.items()
        if name in losses
    ]
    whole = f"{total} = {' + '.join(terms)}"
    return whole if list(weights.values()) != [1] and len(whole) <= width else total
