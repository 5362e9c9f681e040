"""The gate: compares the predictions of an exported file with those of the torch model."""

from collections.abc import Mapping
from typing import TypedDict

import numpy as np

from distill.contracts import Scores, Task
from distill.edge.model_files import needs_openvino
from distill.edge.processor import ANY, runs, this_target
from distill.export.abstention import Abstention
from distill.export.sensitivity import BatchSensitivity
from distill.export.settings import ExportSettings
from distill.training.evaluate import split_metrics
from distill.training.statistics import compare_examples

# `undecided`: usable, but dev is too small to be sure; `unchecked`: this processor cannot run the file rightly.
PASSED, UNDECIDED, FAILED, UNCHECKED = "passed", "undecided", "failed", "unchecked"
TRUNCATED = "truncated"  # The column of scores that marks items which a file truncates, and torch does not.
REREAD = "reread"  # The column of scores that marks items which a file with a smaller vocabulary reads as other pieces.
FP32_AGREEMENT = 0.999
# Of toys and of three MiniLM models it is 1e-6 at most. A thousandth is more than rounding and less than a mistake.
FP32_PROBABILITY_DIFF = 1e-3
ROUNDING = 1e-9  # In floating point, 0.762 - 0.752 is a little more than 0.01.
SLACK = 2  # The interval of the drop may end at this multiple of `max_drop`.


class Comparison(TypedDict):
    """Comparison of an exported file with the torch model on dev.

    Attributes:
        max_abs_diff: largest difference of the logits; of a language model, of the log-probability of the right token.
        max_probability_diff: largest difference of the probabilities; of numbers, as a share of their range.
        agreement: share of the items with the same prediction.
        metrics: metrics of the exported file, on every split.
        drop: decrease of the task's metric, negative if it increased; of a metric of which less is better, its increase
            as a share of that of the torch model.
        interval: the ends of the 95% interval of the drop, by a paired bootstrap over the examples.
        ece: expected calibration error; None for a task without probabilities.
        ece_rise: increase of it.
    """

    max_abs_diff: float
    max_probability_diff: float
    agreement: float
    metrics: dict[str, float]
    drop: float
    interval: list[float]
    ece: float | None
    ece_rise: float | None


class ExportedFile(Comparison):
    """An entry of run.json's `export`.

    Attributes:
        file: name in the bundle.
        bytes: size on disk, with the weights of a large model that are in a second file.
        gate: `passed`, `undecided`, `failed` or `unchecked`.
        recipe: number format of the weights, in words.
        target: the processors that the file is right on, one of `edge.processor.TARGETS`.
        abstain: the threshold below which it gives no label, with the share and the metrics that follow from it.
        batch_sensitivity: how far its predictions depend on the other texts of a batch.
        batch_size: the number of texts that the bundle recommends to run together; None for any.
    """

    file: str
    bytes: int
    gate: str
    recipe: str
    target: str
    abstain: Abstention | None
    batch_sensitivity: BatchSensitivity
    batch_size: int | None


def compare(scores: Mapping[str, Scores], reference: Mapping[str, Scores], *, task: Task) -> Comparison:
    """Compares the scores of an exported file with `reference`, those of the torch model.

    Items that the file truncates or reads as other pieces count in its metrics, in the drop and in the agreement.
    Logits, probabilities and calibration are compared at the others.
    """
    both = _select_common(scores["dev"], reference["dev"])
    values, expected = (of.columns[task.compared_column] for of in both)
    metrics = split_metrics(task, scores)
    difference = compare_examples(task, reference["dev"], scores["dev"])
    assert difference is not None  # As it may be with `only_means` alone.
    drop, interval = difference["difference"], difference["interval"]
    assert interval is not None
    if task.selects == "min":
        scale = -task.metrics(reference["dev"])[task.metric]
        drop, interval = drop / scale, [end / scale for end in reversed(interval)]
    errors = [task.calibration_error(of) for of in both]
    return {
        "max_abs_diff": float(np.abs(values - expected).max()),
        "max_probability_diff": task.probability_diff(*both),
        "agreement": task.agreement(scores["dev"], reference["dev"]),
        "metrics": metrics,
        "drop": drop,
        "interval": interval,
        "ece": errors[0],
        "ece_rise": None if errors[0] is None or errors[1] is None else errors[0] - errors[1],
    }


def _select_common(scores: Scores, reference: Scores) -> tuple[Scores, Scores]:
    """Returns the scores of the items that a file reads as the torch model does, of the file and of the torch model."""
    nothing = np.zeros(len(scores.labels), dtype=bool)
    truncated, reread = (scores.columns.get(name, nothing) for name in (TRUNCATED, REREAD))
    for kept in (~truncated & ~reread, ~truncated):
        if kept.any():
            return scores.select(kept), reference.select(kept)
    return scores, reference


def judge(comparison: Comparison, settings: ExportSettings, *, target: str = ANY) -> str:
    """Returns `passed`, `undecided`, `failed` or, for a target that this machine cannot check, `unchecked`.

    A file fails if its metric drops by more than `max_drop`, or if its predictions are others than `min_agreement`,
    `max_probability_diff` and `max_ece_rise` allow. A file that does not fail passes if the interval of its drop ends
    at twice `max_drop` at most.
    """
    if not runs(target, this_target()):
        return UNCHECKED
    rise = comparison["ece_rise"]
    holds = (  # A comparison with NaN is false.
        comparison["drop"] <= settings.max_drop + ROUNDING,
        comparison["agreement"] >= settings.min_agreement,
        comparison["max_probability_diff"] <= settings.max_probability_diff,
        rise is None or rise <= settings.max_ece_rise + ROUNDING,
    )
    if not all(holds):
        return FAILED
    return PASSED if comparison["interval"][1] <= SLACK * settings.max_drop + ROUNDING else UNDECIDED


def judge_float32(comparison: Comparison, settings: ExportSettings) -> str:
    """Returns `passed` or `failed` for a float32 file, which must have the predictions of torch."""
    holds = (
        comparison["drop"] <= settings.max_drop + ROUNDING,
        comparison["agreement"] >= FP32_AGREEMENT,
        comparison["max_probability_diff"] <= FP32_PROBABILITY_DIFF,
    )
    return PASSED if all(holds) else FAILED


def recommended(formats: Mapping[str, ExportedFile]) -> str | None:
    """Returns the name of the smallest file that passed its gate, else of the smallest undecided one, else None.

    A file for OpenVINO is never recommended, because a bundle runs where openvino is not installed.
    """
    for verdict in (PASSED, UNDECIDED):
        names = [name for name, row in formats.items() if row["gate"] == verdict and not needs_openvino(row["file"])]
        if names:
            return min(names, key=lambda name: int(formats[name]["bytes"]))
    return None
