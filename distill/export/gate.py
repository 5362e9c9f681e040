"""The gate: whether an exported file predicts like the model it was exported from."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from distill.contracts import Scores, Task
from distill.export.settings import ExportSettings
from distill.training.evaluate import split_metrics

FP32_AGREEMENT = 0.999
ROUNDING = 1e-9  # 0.762 - 0.752 is a little more than 0.01.


def compare(scores: Mapping[str, Scores], reference: Mapping[str, Scores], *, task: Task) -> dict[str, Any]:
    """Compares an exported file's scores with torch's: on dev, but for the `metrics`, which are of every split.

    `drop` is the loss of the task's metric; a gain is below 0.
    """
    metrics = split_metrics(task, scores)
    before = task.metrics(reference["dev"])
    logits, expected = scores["dev"].columns["logits"], reference["dev"].columns["logits"]
    return {
        "max_abs_diff": float(np.abs(logits - expected).max()),
        "agreement": task.agreement(scores["dev"], reference["dev"]),
        "metrics": metrics,
        "drop": before[task.metric] - metrics[task.metric],
    }


def passes(name: str, row: Mapping[str, Any], settings: ExportSettings) -> bool:
    """Whether a file keeps enough of the metric; fp32 must agree with torch besides."""
    within: bool = row["drop"] <= settings.max_drop + ROUNDING
    return within and (name != "fp32" or row["agreement"] >= FP32_AGREEMENT)


def recommended(formats: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The smallest file whose gate passed; None where all failed."""
    passed = [name for name, row in formats.items() if row["gate"] == "passed"]
    return min(passed, key=lambda name: int(formats[name]["bytes"]), default=None)
