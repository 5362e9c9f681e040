"""The gate: compares the predictions of an exported file with those of the torch model."""

from collections.abc import Mapping
from typing import TypedDict

import numpy as np

from distill.contracts import Scores, Task
from distill.export.abstention import Abstention
from distill.export.settings import ExportSettings
from distill.training.evaluate import split_metrics

FP32_AGREEMENT = 0.999
# Of toys and of three MiniLM models it is 1e-6 at most. A thousandth is more than rounding and less than a mistake.
FP32_PROBABILITY_DIFF = 1e-3
ROUNDING = 1e-9  # In floating point, 0.762 - 0.752 is a little more than 0.01.


class Comparison(TypedDict):
    """Comparison of an exported file with the torch model on dev.

    Attributes:
        max_abs_diff: largest difference of the logits.
        max_probability_diff: largest difference of the probabilities; of numbers, as a share of their range.
        agreement: share of the items with the same prediction.
        metrics: metrics of the exported file, on every split.
        drop: decrease of the task's metric, negative if it increased.
    """

    max_abs_diff: float
    max_probability_diff: float
    agreement: float
    metrics: dict[str, float]
    drop: float


class ExportedFile(Comparison):
    """An entry of run.json's `export`.

    Attributes:
        file: name in the bundle.
        bytes: size on disk, with the weights of a large model that are in a second file.
        gate: `passed` or `failed`.
        recipe: number format of the weights, in words.
        abstain: the threshold below which it gives no label, with the share and the metrics that follow from it.
    """

    file: str
    bytes: int
    gate: str
    recipe: str
    abstain: Abstention | None


def compare(scores: Mapping[str, Scores], reference: Mapping[str, Scores], *, task: Task) -> Comparison:
    """Compares the scores of an exported file with `reference`, those of the torch model."""
    metrics = split_metrics(task, scores)
    reference_metrics = task.metrics(reference["dev"])
    logits, expected = scores["dev"].columns["logits"], reference["dev"].columns["logits"]
    return {
        "max_abs_diff": float(np.abs(logits - expected).max()),
        "max_probability_diff": task.probability_diff(scores["dev"], reference["dev"]),
        "agreement": task.agreement(scores["dev"], reference["dev"]),
        "metrics": metrics,
        "drop": reference_metrics[task.metric] - metrics[task.metric],
    }


def passes(name: str, comparison: Comparison, settings: ExportSettings) -> bool:
    """Returns whether the drop of the metric is small enough and, for fp32, the predictions are those of torch."""
    within = comparison["drop"] <= settings.max_drop + ROUNDING
    equal = comparison["agreement"] >= FP32_AGREEMENT and comparison["max_probability_diff"] <= FP32_PROBABILITY_DIFF
    return within and (name != "fp32" or equal)


def recommended(formats: Mapping[str, ExportedFile]) -> str | None:
    """Returns the name of the smallest file whose gate passed, None if all failed."""
    passed = [name for name, row in formats.items() if row["gate"] == "passed"]
    return min(passed, key=lambda name: int(formats[name]["bytes"]), default=None)
