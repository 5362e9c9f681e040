"""Early stop of a training whose metric on dev does not improve any more."""

from typing import Any

import lightning as L
from lightning.pytorch.callbacks import EarlyStopping


class Patience(EarlyStopping):
    """Stops a training after `patience` evaluations in a row without a better metric.

    `stopped` is the optimizer step of that evaluation, None without an early stop. It is in the checkpoint, so that a
    training that was killed after its early stop ends at once when it is resumed.

    Args:
        metric: name of the logged metric on dev.
        selects: `max` or `min`, the better direction of the metric.
    """

    def __init__(self, metric: str, selects: str, patience: int) -> None:
        # A metric that is not a number counts as not better.
        super().__init__(
            monitor=metric, mode=selects, patience=patience, check_finite=False, check_on_train_epoch_end=False
        )
        self.stopped: int | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.stopped is not None:
            trainer.should_stop = True

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_validation_end(trainer, pl_module)
        if self.wait_count >= self.patience and trainer.global_step < trainer.max_steps:
            self.stopped = trainer.global_step

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "stopped": self.stopped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.stopped = state_dict["stopped"]
