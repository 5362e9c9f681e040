"""The gate: compares the predictions of an exported file with those of the torch model."""

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import NormalDist
from typing import NamedTuple, TypedDict

import numpy as np

from distill.contracts import Scores
from distill.edge.model_files import needs_openvino
from distill.edge.processor import ANY, runs, this_target
from distill.export.abstention import Abstention
from distill.export.sensitivity import BatchSensitivity
from distill.export.settings import ExportSettings
from distill.export.type_recall import (
    TypeRecall,
    compare_types,
    describe_types,
    find_doubtful_types,
    find_lost_types,
)
from distill.tasks.scoring import Scoring
from distill.training.evaluate import split_metrics
from distill.training.statistics import LEVEL, compare_examples

# `undecided`: usable, but dev is too small to be sure; `unchecked`: this processor cannot run the file rightly.
PASSED, UNDECIDED, FAILED, UNCHECKED = "passed", "undecided", "failed", "unchecked"
TRUNCATED = "truncated"  # The column of scores that marks items which a file truncates, and torch does not.
REREAD = "reread"  # The column of scores that marks items which a file with a smaller vocabulary reads as other pieces.
FP32_AGREEMENT = 0.999
# Of toys and of three MiniLM models it is 1e-6 at most. A thousandth is more than rounding and less than a mistake.
FP32_PROBABILITY_DIFF = 1e-3
ROUNDING = 1e-9  # In floating point, 0.762 - 0.752 is a little more than 0.01.
SLACK = 2  # The interval of the drop may end at this multiple of `max_drop`, and the recall of a type fall by it.
FEWEST = 30  # Examples of dev whose resamples tell something of a metric without a worst value.


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
        examples: number of examples of dev.
        resolution: the end of this interval for predictions that are those of torch; 0 if the metric cannot move, and
            None for a metric without a worst value.
        types: types of answers whose recall decreased, by name.
        ece: expected calibration error; None for a task without probabilities.
        ece_rise: increase of it.
    """

    max_abs_diff: float
    max_probability_diff: float
    agreement: float
    metrics: dict[str, float]
    drop: float
    interval: list[float]
    examples: int
    resolution: float | None
    types: dict[str, TypeRecall]
    ece: float | None
    ece_rise: float | None


class SmallerVectors(TypedDict):
    """An entry of the `vectors` of a file in run.json: a form of its vectors, compared with those of torch on dev.

    Attributes:
        dimensions: number of first dimensions.
        precision: of the vectors of the corpus, `float32`, `int8` or `binary`.
        rescore: documents that are compared again for each one that is to be found; 0 for none.
        metrics: on every split.
        kept: share of the metric of the torch model with its whole vectors; None if that is not above 0.
        drop: decrease of the metric, negative if it increased.
        interval: the ends of its 95% interval, by a paired bootstrap over the examples.
        gate: `passed`, `undecided` or `failed`.
        reason: the reason in words; None if it passed.
    """

    dimensions: int
    precision: str
    rescore: int
    metrics: dict[str, float]
    kept: float | None
    drop: float
    interval: list[float]
    gate: str
    reason: str | None


class ExportedFile(Comparison):
    """An entry of run.json's `export`.

    Attributes:
        file: name in the bundle.
        bytes: size on disk, with the weights of a large model that are in a second file.
        gate: `passed`, `undecided`, `failed` or `unchecked`.
        reason: the reason in words; None if it passed.
        confidence: that of the interval whose upper end decides, more than 95% for one of several recipes.
        recipe: number format of the weights, in words.
        target: the processors that the file is right on, one of `edge.processor.TARGETS`.
        abstain: the threshold below which it gives no label, with the share and the metrics that follow from it.
        batch_sensitivity: how far its predictions depend on the other texts of a batch.
        batch_size: the number of texts that the bundle recommends to run together; None for any.
        vectors: the metric with smaller forms of its vectors; empty for tasks without vectors.
    """

    file: str
    bytes: int
    gate: str
    reason: str | None
    confidence: float
    recipe: str
    target: str
    abstain: Abstention | None
    batch_sensitivity: BatchSensitivity
    batch_size: int | None
    vectors: list[SmallerVectors]


class Verdict(NamedTuple):
    """`passed`, `undecided`, `failed` or `unchecked`, and the reason in words, None for `passed`."""

    gate: str
    reason: str | None = None


def compare(
    scores: Mapping[str, Scores], reference: Mapping[str, Scores], *, scoring: Scoring, resolution: float | None
) -> Comparison:
    """Compares the scores of an exported file with `reference`, those of the torch model.

    Items that the file truncates or reads as other pieces count in its metrics, in the drop and in the agreement.
    Logits, probabilities and calibration are compared at the others.

    Args:
        resolution: that of `measure_resolution`, which is the same for all files.
    """
    both = _select_common(scores["dev"], reference["dev"])
    values, expected = (of.columns[scoring.compared_column] for of in both)
    drop, interval, examples = measure_drop(scoring, reference["dev"], scores["dev"])
    errors = [scoring.calibration_error(of) for of in both]
    return {
        "max_abs_diff": float(np.abs(values - expected).max()),
        "max_probability_diff": scoring.probability_diff(*both),
        "agreement": scoring.agreement(scores["dev"], reference["dev"]),
        "metrics": split_metrics(scoring, scores),
        "drop": drop,
        "interval": interval,
        "examples": examples,
        "resolution": resolution,
        "types": compare_types(scoring, scores["dev"], reference["dev"]),
        "ece": errors[0],
        "ece_rise": None if errors[0] is None or errors[1] is None else errors[0] - errors[1],
    }


def measure_resolution(scoring: Scoring, reference: Scores) -> float | None:
    """Returns the drop that dev cannot rule out for a file with the predictions of torch.

    Returns:
        0 for a metric that no prediction moves, and None for one without a worst value.
    """
    if scoring.example_metric(reference) is None and scoring.spoil(scoring.condense(reference)) is None:
        return None
    return measure_drop(scoring, reference, reference)[1][1]


def measure_drop(scoring: Scoring, reference: Scores, scores: Scores) -> tuple[float, list[float], int]:
    """Returns the drop of the metric, its interval, and the number of examples.

    The drop of a metric of which less is better is a share of the torch model's.
    """
    difference = compare_examples(scoring, reference, scores)
    assert difference is not None  # As it may be with `only_means` alone.
    drop, interval = difference["difference"], difference["interval"]
    assert interval is not None
    if scoring.selects == "min":
        scale = -scoring.selecting_metric(reference)
        drop, interval = drop / scale, [end / scale for end in reversed(interval)]
    return drop, interval, difference["number"]


def _select_common(scores: Scores, reference: Scores) -> tuple[Scores, Scores]:
    """Returns the scores of the items that a file reads as the torch model does, of the file and of the torch model."""
    nothing = np.zeros(len(scores.labels), dtype=bool)
    truncated, reread = (scores.columns.get(name, nothing) for name in (TRUNCATED, REREAD))
    for kept in (~truncated & ~reread, ~truncated):
        if kept.any():
            return scores.select(kept), reference.select(kept)
    return scores, reference


def judge(comparison: Comparison, settings: ExportSettings, *, target: str = ANY, confidence: float = LEVEL) -> Verdict:
    """Returns whether a file passes its gate, with the reason if it does not.

    A file fails if its metric drops by more than `max_drop` and this is more than noise (the interval of the drop lies
    above 0), if its predictions are others than `min_agreement`, `max_probability_diff` and `max_ece_rise` allow, or if
    the recall of a type certainly falls by more than twice `max_drop`. A file that does not fail passes if its metric
    drops by `max_drop` at most, the interval of the drop ends at twice `max_drop` at most, and the recall of no type
    fell by more than that on dev. Else dev cannot tell, and the file is `undecided`.

    Args:
        confidence: of the interval whose upper end decides. It is more than 95% for files that are tried until one
            passes, as `split_error` says.
    """
    device = this_target()
    if not runs(target, device):
        return Verdict(UNCHECKED, f"it is for processors of the kind {target}, and this one is {device}")
    limit, types = SLACK * settings.max_drop + ROUNDING, comparison["types"]
    is_noise = comparison["interval"][0] <= 0 and not math.isnan(comparison["drop"])
    faults = _find_faults(comparison, settings, check_drop=not is_noise)
    if lost := find_lost_types(types, limit):
        faults.append(describe_types(lost, types))
    if faults:
        return Verdict(FAILED, "; ".join(faults))
    doubts = [doubt] if (doubt := _describe_doubt(comparison, settings, confidence)) else []
    if doubtful := find_doubtful_types(types, limit):
        doubts.append(describe_types(doubtful, types))
    return Verdict(UNDECIDED, "; ".join(doubts)) if doubts else Verdict(PASSED)


def split_error(tries: int) -> list[float]:
    """Returns the confidence for each of several files that are tried until one passes.

    The error of 5% is divided, so that a file which loses too much passes no more often because others are tried too:
    the first file has half of it, because it is taken most often, each next one half of what is left, and the last one
    all of that.

    >>> split_error(1), split_error(3)
    ([0.95], [0.975, 0.9875, 0.9875])
    """
    return [1 - (1 - LEVEL) * 0.5 ** min(number, tries - 1) for number in range(1, tries + 1)]


def _widen(confidence: float) -> float:
    """Returns the width of half an interval of this confidence, as a multiple of that of 95%, for normal errors.

    So an interval needs no further resamples, of which a metric that is no mean has few.
    """
    normal = NormalDist()
    return normal.inv_cdf((1 - confidence) / 2) / normal.inv_cdf((1 - LEVEL) / 2)


def _describe_doubt(comparison: Comparison, settings: ExportSettings, confidence: float) -> str | None:
    """Returns the reason why dev cannot tell the drop of a file, in words; None if it can."""
    limit, drop, (low, high) = SLACK * settings.max_drop, comparison["drop"], comparison["interval"]
    blindness, reach = describe_blindness(comparison, settings, confidence), (high - drop) * _widen(confidence)
    if drop > settings.max_drop + ROUNDING:
        reason = describe_noise(drop, low, settings.max_drop)
        return f"{reason}: {blindness or _describe_rows(comparison, drop / (drop - low))}"
    if blindness or drop + reach <= limit + ROUNDING:
        return blindness
    reason = describe_reach(drop + reach, limit, confidence)
    return f"{reason}: {_describe_rows(comparison, (limit - drop) / reach)}"


def describe_noise(drop: float, low: float, limit: float) -> str:
    """Returns a drop above the limit in words, the 95% interval of which begins at `low`, no more than 0."""
    return f"drop {drop:.4f}, the limit is {limit:g}, and it may be noise (95% interval from {low:.4f})"


def describe_reach(highest: float, limit: float, confidence: float = LEVEL) -> str:
    """Returns in words how large a drop may be whose interval ends above the limit."""
    return f"the drop may be up to {highest:.4f} ({100 * confidence:.4g}% interval), the limit is {limit:.4g}"


def _describe_rows(comparison: Comparison, shrink: float) -> str:
    """Returns how many examples would decide if the drop stayed as it is, in words.

    Args:
        shrink: the width of an interval that decides, as a share of the width that it has. It falls with the root of
            the number of examples.
    """
    examples = f"dev has {comparison['examples']:,} examples"
    if not shrink > 0:  # Also for NaN.
        return examples
    needed = math.ceil(comparison["examples"] / shrink**2)
    step = 10 ** max(0, len(str(needed)) - 2)
    return f"{examples}, about {math.ceil(needed / step) * step:,} would decide"


def _find_faults(comparison: Comparison, settings: ExportSettings, *, check_drop: bool) -> list[str]:
    """Returns the limits that a file exceeds, in words."""
    drop, rise = comparison["drop"], comparison["ece_rise"]
    limits = (  # A comparison with NaN is false.
        (not check_drop or drop <= settings.max_drop + ROUNDING, "drop", drop, settings.max_drop),
        (comparison["agreement"] >= settings.min_agreement, "agreement", comparison["agreement"],
         settings.min_agreement),
        (comparison["max_probability_diff"] <= settings.max_probability_diff, "largest difference of a probability",
         comparison["max_probability_diff"], settings.max_probability_diff),
        (rise is None or rise <= settings.max_ece_rise + ROUNDING, "rise of the calibration error", rise,
         settings.max_ece_rise),
    )  # fmt: skip
    return [f"{name} {value:.4f}, the limit is {limit:g}" for holds, name, value, limit in limits if not holds]


def describe_blindness(comparison: Comparison, settings: ExportSettings, confidence: float = LEVEL) -> str | None:
    """Returns the reason why no file could pass on this dev split; None if a file with torch's predictions would.

    Args:
        confidence: that of `judge`.
    """
    examples, resolution, limit = comparison["examples"], comparison["resolution"], SLACK * settings.max_drop
    has = f"dev has {examples:,} example{'s' if examples > 1 else ''}"
    if resolution is None:
        return f"{has}, at least {FEWEST} are needed to tell a drop" if examples < FEWEST else None
    if resolution == 0:
        return "the metric has the same value on dev whatever a model predicts: choose another metric, or another dev"
    resolution *= _widen(confidence)
    if resolution <= limit + ROUNDING:
        return None
    if limit == 0:
        return "no dev is large enough to tell a drop of 0: set export.max_drop above it"
    needed = math.ceil((examples + 2) * resolution / limit - ROUNDING) - 2
    return f"{has}, at least {needed:,} are needed to tell a drop of {limit:g}"


def judge_float32(comparison: Comparison, settings: ExportSettings) -> Verdict:
    """Returns `passed` or `failed` for a float32 file, which must have the predictions of torch."""
    strict = replace(
        settings, min_agreement=FP32_AGREEMENT, max_probability_diff=FP32_PROBABILITY_DIFF, max_ece_rise=1.0
    )
    faults = _find_faults(comparison, strict, check_drop=True)
    return Verdict(FAILED, "; ".join(faults)) if faults else Verdict(PASSED)


def recommended(formats: Mapping[str, ExportedFile]) -> str | None:
    """Returns the name of the smallest file that passed its gate, else of the smallest undecided one, else None.

    A file for OpenVINO is never recommended, because a bundle runs where openvino is not installed.
    """
    for verdict in (PASSED, UNDECIDED):
        names = [name for name, row in formats.items() if row["gate"] == verdict and not needs_openvino(row["file"])]
        if names:
            return min(names, key=lambda name: int(formats[name]["bytes"]))
    return None
