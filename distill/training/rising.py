"""Metric on dev over the evaluations of a training, and whether it still rose at the end."""

import math
from collections.abc import Sequence
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback

LEAST_EVALUATIONS = 3  # Of a training with a last third.


class Curve(Callback):
    """Collects the metric on dev of every evaluation. It is in the checkpoint, so that a resumed training has all.

    Args:
        metric: name of the logged metric on dev.
    """

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self.values: list[float] = []

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.values.append(float(trainer.callback_metrics[self.metric]))

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self.values)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.values = list(state_dict["values"])


def find_rise(values: Sequence[float], *, selects: str, examples: int) -> float | None:
    """Returns the gain in the last third of the evaluations, None if the metric did not improve any more at the end.

    The last evaluation must be the best one, and the gain larger than `1 / (2 sqrt(n))` with n examples in dev, the
    largest standard error of a share. For a metric of which less is better, it is that part of the metric itself.

    >>> find_rise([0.5, 0.6, 0.8], selects="max", examples=100)
    0.2
    >>> find_rise([0.5, 0.6, 0.64], selects="max", examples=100)

    Args:
        selects: `max` or `min`, the better direction of the metric.
        examples: number of examples in dev.
    """
    if len(values) < LEAST_EVALUATIONS:
        return None
    sign = 1 if selects == "max" else -1
    *earlier, last = (sign * value for value in values)
    gain = last - sign * values[-1 - len(values) // 3]
    noise = 0.5 / math.sqrt(examples) * (1.0 if selects == "max" else abs(last))
    return round(gain, 6) if last > max(earlier) and gain > noise else None
