"""The gate: compares the predictions of an exported file with those of the torch model."""

from collections.abc import Mapping
from typing import TypedDict

import numpy as np

from distill.contracts import Scores, Task
from distill.export.settings import ExportSettings
from distill.training.evaluate import split_metrics

FP32_AGREEMENT = 0.999
ROUNDING = 1e-9  # In floating point, 0.762 - 0.752 is a little more than 0.01.


class Comparison(TypedDict):
    """Comparison of an exported file with the torch model on dev.

    Attributes:
        max_abs_diff: largest difference of the logits.
        agreement: share of the items with the same prediction.
        metrics: metrics of the exported file, on every split.
        drop: decrease of the task's metric, negative if it increased.
    """

    max_abs_diff: float
    agreement: float
    metrics: dict[str, float]
    drop: float


class ExportedFile(Comparison):
    """An entry of run.json's `export`.

    Attributes:
        file: name in the bundle.
        bytes: size on disk.
        gate: `passed` or `failed`.
        recipe: number format of the weights, in words.
    """

    file: str
    bytes: int
    gate: str
    recipe: str


def compare(scores: Mapping[str, Scores], reference: Mapping[str, Scores], *, task: Task) -> Comparison:
    """Compares the scores of an exported file with `reference`, those of the torch model."""
    metrics = split_metrics(task, scores)
    reference_metrics = task.metrics(reference["dev"])
    logits, expected = scores["dev"].columns["logits"], reference["dev"].columns["logits"]
    return {
        "max_abs_diff": float(np.abs(logits - expected).max()),
        "agreement": task.agreement(scores["dev"], reference["dev"]),
        "metrics": metrics,
        "drop": reference_metrics[task.metric] - metrics[task.metric],
    }


def passes(name: str, comparison: Comparison, settings: ExportSettings) -> bool:
    """Returns whether the drop of the metric is small enough and, for fp32, the agreement with torch large enough."""
    within = comparison["drop"] <= settings.max_drop + ROUNDING
    return within and (name != "fp32" or comparison["agreement"] >= FP32_AGREEMENT)


def recommended(formats: Mapping[str, ExportedFile]) -> str | None:
    """Returns the name of the smallest file whose gate passed, None if all failed."""
    passed = [name for name, row in formats.items() if row["gate"] == "passed"]
    return min(passed, key=lambda name: int(formats[name]["bytes"]), default=None)
