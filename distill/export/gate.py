"""The gate: whether an exported file predicts like the model it was exported from."""

from collections.abc import Mapping
from typing import TypedDict

import numpy as np

from distill.contracts import Scores, Task
from distill.export.settings import ExportSettings
from distill.training.evaluate import split_metrics

FP32_AGREEMENT = 0.999
ROUNDING = 1e-9  # 0.762 - 0.752 is a little more than 0.01.


class Comparison(TypedDict):
    """An exported file's scores compared with torch's: on dev, but for the `metrics`, which are of every split.

    Attributes:
        max_abs_diff: of the logits.
        agreement: share of the items that both predict alike.
        metrics: of the exported file.
        drop: loss of the task's metric; a gain is below 0.
    """

    max_abs_diff: float
    agreement: float
    metrics: dict[str, float]
    drop: float


class ExportedFile(Comparison):
    """An entry of run.json's `export`.

    Attributes:
        file: its name in the bundle.
        bytes: its size.
        gate: `passed` or `failed`.
        recipe: how its weights are stored.
    """

    file: str
    bytes: int
    gate: str
    recipe: str


def compare(scores: Mapping[str, Scores], reference: Mapping[str, Scores], *, task: Task) -> Comparison:
    """Compares an exported file's scores with torch's."""
    metrics = split_metrics(task, scores)
    before = task.metrics(reference["dev"])
    logits, expected = scores["dev"].columns["logits"], reference["dev"].columns["logits"]
    return {
        "max_abs_diff": float(np.abs(logits - expected).max()),
        "agreement": task.agreement(scores["dev"], reference["dev"]),
        "metrics": metrics,
        "drop": before[task.metric] - metrics[task.metric],
    }


def passes(name: str, row: Comparison, settings: ExportSettings) -> bool:
    """Whether a file keeps enough of the metric; fp32 must agree with torch besides."""
    within = row["drop"] <= settings.max_drop + ROUNDING
    return within and (name != "fp32" or row["agreement"] >= FP32_AGREEMENT)


def recommended(formats: Mapping[str, ExportedFile]) -> str | None:
    """The smallest file whose gate passed; None where all failed."""
    passed = [name for name, row in formats.items() if row["gate"] == "passed"]
    return min(passed, key=lambda name: int(formats[name]["bytes"]), default=None)
