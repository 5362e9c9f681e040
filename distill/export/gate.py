"""The gate: compares the predictions of an exported file with those of the torch model.

Batch sensitivity: how far the prediction for a text depends on the other texts of its batch. Dynamic quantization
measures one range of an activation for a whole batch. A large value in one text then takes precision from the others.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedModel

from distill.core.contracts import Scores, TaskInfo
from distill.core.errors import OptionError, UserError
from distill.core.options import show_value
from distill.edge.bundle import BATCH_SIZE
from distill.edge.bundle_files import ANY, runs, this_target
from distill.edge.index import VectorForm
from distill.export.quantization import ExportSettings
from distill.kinds.scoring import Scoring
from distill.models.vectors import vector_width
from distill.records.schema import Abstention, BatchSensitivity, FileComparison, HeldRecall, SmallerVectors, TypeRecall
from distill.training.module import split_metrics
from distill.training.statistics import LEVEL, compare_examples

SAMPLED = 512  # Examples of dev, from its beginning.
BATCH = BATCH_SIZE  # The largest batch that a bundle runs unless it is told another one.


def describe_sensitivity(file: str, sensitivity: BatchSensitivity, batch_size: int | None) -> str:
    """Returns one sentence about a file."""
    difference, changed = sensitivity["max_probability_diff"], sensitivity["changed"]
    if batch_size is None:
        return (
            f"{file} gave a text in a batch of up to {sensitivity['batch']} the same probabilities as alone, within "
            f"{difference:.2g} ({sensitivity['examples']:,} examples of dev)"
        )
    return (
        f"{file} gives a text other probabilities in a batch than alone, by up to {difference:.2g}, and another "
        f"prediction in {changed:.1%} of cases: the bundle recommends batch_size={batch_size}; export.recipes=[static] "
        "has no such difference"
    )


FEWEST_OF_TYPE = 10  # Right answers of a type on dev whose recall is judged.
NO_EVIDENCE = 1  # An answer more or less of a rare type may be luck.


def compare_types(scoring: Scoring, scores: Scores, reference: Scores) -> dict[str, TypeRecall]:
    """Returns the types with at least `FEWEST` right answers whose recall decreased, the worst one first."""
    found, expected = scoring.hits(scores.by_example()), scoring.hits(reference.by_example())
    judged = [name for name, hits in expected.items() if len(hits) >= FEWEST_OF_TYPE]
    types: dict[str, TypeRecall] = {}
    for name in judged:
        lost, gained = int((expected[name] & ~found[name]).sum()), int((found[name] & ~expected[name]).sum())
        if lost > gained:
            number = len(expected[name])
            interval = _paired_interval(lost, gained, number, tail=(1 - LEVEL) / 2 / len(judged))
            types[name] = {
                "number": number, "lost": lost, "gained": gained, "drop": (lost - gained) / number, "interval": interval
            }  # fmt: skip
    return dict(sorted(types.items(), key=lambda entry: -entry[1]["drop"]))


def _paired_interval(lost: int, gained: int, number: int, *, tail: float) -> list[float]:
    """Returns the interval of a difference of paired shares (Agresti and Min, 2005), which has a width without events.

    >>> [round(end, 3) for end in _paired_interval(0, 0, 100, tail=0.025)]
    [-0.019, 0.019]
    """
    lost_more, gained_more, more = lost + 0.5, gained + 0.5, number + 2
    difference = lost - gained
    error = math.sqrt(lost_more + gained_more - difference**2 / more)
    reach = -NormalDist().inv_cdf(tail) * error
    return [max(-1.0, (difference - reach) / more), min(1.0, (difference + reach) / more)]


def find_lost(comparison: FileComparison, share: float | None) -> list[str]:
    """Returns the types whose recall is too small, in words.

    It must be at least this share of the teacher's recall. Where the torch model itself has less, it must be at least
    this share of the torch model's: a weak student is no reason to refuse its files, and a file must not lose what the
    student has.

    Args:
        share: None for no limit.
    """
    recalls, lost = comparison.get("recalls", {}), list[str]()
    weak = list_weak(recalls, share)
    for name, recall in recalls.items():
        whose = "student" if name in weak else "teacher"
        reference = recall["student"] if name in weak else recall["teacher"]
        if share is not None and recall["file"] < share * reference - ROUNDING:
            lost.append(
                f"the recall of {name} is {recall['file']:.3f}, below {share:g} of the {whose}'s {reference:.3f}"
            )
    return lost


def list_weak(recalls: Mapping[str, HeldRecall], share: float | None) -> dict[str, str]:
    """Returns the types of which the torch model finds less than this share of the teacher's, with both recalls."""
    return {
        name: f"{name} {recall['student']:.3f} (teacher {recall['teacher']:.3f})"
        for name, recall in recalls.items()
        if share is not None and recall["student"] < share * recall["teacher"] - ROUNDING
    }


def describe_types(names: list[str], types: Mapping[str, TypeRecall]) -> str:
    """Returns the decreases of these types' recall in words, on one line."""
    words = [
        f"{' '.join(name.split())} by {recall['drop']:.2f} ({recall['lost']} of {recall['number']} lost, "
        f"{recall['gained']} gained)"
        for name, recall in ((name, types[name]) for name in names)
    ]
    return f"the recall falls of {', '.join(words)}"


SHARE_ROUNDING = 1e-9  # 0.29 of 100 examples are 28.999999999999996 in floating point.


def check_abstention(task: TaskInfo, share: float | None) -> None:
    """Raises OptionError for a task whose predictions have no confidence."""
    if share is not None and not task.can_abstain:
        expected = f"null, because task {task.name} ({task.kind}) has no classes of whole examples to be unsure of"
        raise OptionError("export.abstain", str(share), expected)


def check_dev(examples: int, share: float | None) -> None:
    """Raises UserError if the share of dev is less than one example."""
    if share is not None and _count(examples, share) < 1:
        raise UserError(
            f"got export.abstain={share}, which is less than one of the {examples:,} examples of dev: set it to at "
            f"least {math.ceil(1e4 / max(1, examples)) / 1e4:g}, or give more examples of dev"
        )


def choose_threshold(confidences: np.ndarray, share: float) -> float:
    """Returns the threshold below which at most `share` of the confidences `[N]` are.

    It is in the middle of the largest confidence below it and the smallest one that is not, so that rounding on another
    processor changes nothing. Equal confidences stay together, on the side that abstains less. A share of less than one
    of them has the smallest, which none is below.
    """
    ordered = np.sort(confidences)
    count = _count(len(ordered), share)
    return float((ordered[max(0, count - 1)] + ordered[count]) / 2)


def measure_abstention(scores: Mapping[str, Scores], *, scoring: Scoring, share: float) -> Abstention:
    """Returns the threshold that dev gives, and with it the share and the metrics of every split."""
    confidences = {split: scoring.confidences(split_scores) for split, split_scores in scores.items()}
    threshold = choose_threshold(confidences["dev"], share)
    answered = {split: values >= threshold for split, values in confidences.items()}
    left = {split: scores[split].select(chosen) for split, chosen in answered.items() if chosen.any()}
    return {
        "threshold": threshold,
        "share": {split: float((~chosen).mean()) for split, chosen in answered.items()},
        "metrics": split_metrics(scoring, left),
    }


def _count(examples: int, share: float) -> int:
    return int(examples * share + SHARE_ROUNDING)


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


class GateVerdict(NamedTuple):
    """`passed`, `undecided`, `failed` or `unchecked`, and the reason in words, None for `passed`."""

    gate: str
    reason: str | None = None


@dataclass(frozen=True)
class TorchScores:
    """The scores of the torch model by split, with which those of every exported file are compared."""

    scoring: Scoring
    scores: Mapping[str, Scores]
    teacher: Mapping[str, Scores] = field(default_factory=dict)  # Its scores, if there is one.

    @cached_property
    def resolution(self) -> float | None:
        """The drop that dev cannot rule out for a file with the predictions of torch.

        It is 0 for a metric that no prediction moves, and None for one without a worst value.
        """
        scoring, dev = self.scoring, self.scores["dev"]
        if scoring.example_metric(dev) is None and scoring.spoil(scoring.condense(dev)) is None:
            return None
        return self.measure_drop(dev)[1][1]

    def compare(self, scores: Mapping[str, Scores]) -> FileComparison:
        """Compares the scores of an exported file with those of torch.

        Items that the file truncates or reads as other pieces count in its metrics, in the drop and in the agreement.
        Logits, probabilities and calibration are compared at the others.
        """
        scoring, reference = self.scoring, self.scores["dev"]
        both = _select_common(scores["dev"], reference)
        values, expected = (of.columns[scoring.compared_column] for of in both)
        drop, interval, examples = self.measure_drop(scores["dev"])
        errors = [scoring.calibration_error(of) for of in both]
        comparison: FileComparison = {
            "max_abs_diff": float(np.abs(values - expected).max()),
            "max_probability_diff": scoring.probability_diff(*both),
            "agreement": scoring.agreement(scores["dev"], reference),
            "metrics": split_metrics(scoring, scores),
            "drop": drop,
            "interval": interval,
            "examples": examples,
            "resolution": self.resolution,
            "types": compare_types(scoring, scores["dev"], reference),
            "ece": errors[0],
            "ece_rise": None if errors[0] is None or errors[1] is None else errors[0] - errors[1],
        }
        if recalls := self.compare_recalls(scores["dev"]):
            comparison["recalls"] = recalls
        return comparison

    def compare_recalls(self, dev: Scores) -> dict[str, HeldRecall]:
        """Returns the recalls of types with at least `FEWEST_OF_TYPE` right answers, of which the teacher finds any."""
        recalls = self.scoring.type_recalls
        student, teacher = recalls(self.scores["dev"]), recalls(self.teacher["dev"]) if "dev" in self.teacher else {}
        return {
            name: {"number": number, "file": found, "student": student[name][1], "teacher": teacher[name][1]}
            for name, (number, found) in recalls(dev).items()
            if number >= FEWEST_OF_TYPE and teacher.get(name, (0, 0.0))[1]
        }

    def measure_drop(self, dev: Scores) -> tuple[float, list[float], int]:
        """Returns the drop of the metric on dev, its interval, and the number of examples.

        The drop of a metric of which less is better is a share of the torch model's.
        """
        difference = compare_examples(self.scoring, self.scores["dev"], dev)
        assert difference is not None  # As it may be with `only_means` alone.
        drop, interval = difference["difference"], difference["interval"]
        assert interval is not None
        if self.scoring.selects == "min":
            scale = -self.scoring.selecting_metric(self.scores["dev"])
            drop, interval = drop / scale, [end / scale for end in reversed(interval)]
        return drop, interval, difference["number"]

    def measure_vectors(self, scores: Mapping[str, Scores], settings: ExportSettings) -> list[SmallerVectors]:
        """Scores every smaller form of the vectors of a file; empty for a task without vectors."""
        scoring, entries = self.scoring, list[SmallerVectors]()
        forms = measure_forms(scoring, scores, settings.dimensions, self.teacher)
        whole = scoring.selecting_metric(self.scores["dev"])
        for number, (form, narrow) in enumerate(forms["dev"]):
            metrics = split_metrics(scoring, {split: of[number][1] for split, of in forms.items()})
            drop, interval, _ = self.measure_drop(narrow)
            verdict = judge_vectors(drop, interval, settings.max_vector_drop)
            entries.append({
                "dimensions": form.dimensions, "precision": form.precision, "rescore": form.rescore,
                "documents": form.documents,
                "metrics": metrics, "kept": metrics[scoring.metric] / whole if whole > 0 else None, "drop": drop,
                "interval": interval, "gate": verdict.gate, "reason": verdict.reason,
            })  # fmt: skip
        return entries


def measure_forms(
    scoring: Scoring, scores: Mapping[str, Scores], dimensions: Sequence[int], teacher: Mapping[str, Scores]
) -> dict[str, Sequence[tuple[VectorForm, Scores]]]:
    """Returns the scores of every smaller form of the vectors of each split, as `Scoring.narrow` does."""
    return {split: scoring.narrow(of, dimensions, teacher.get(split)) for split, of in scores.items()}


def _select_common(scores: Scores, reference: Scores) -> tuple[Scores, Scores]:
    """Returns the scores of the items that a file reads as the torch model does, of the file and of the torch model."""
    nothing = np.zeros(len(scores.labels), dtype=bool)
    truncated, reread = (scores.columns.get(name, nothing) for name in (TRUNCATED, REREAD))
    for kept in (~truncated & ~reread, ~truncated):
        if kept.any():
            return scores.select(kept), reference.select(kept)
    return scores, reference


def judge(
    comparison: FileComparison, settings: ExportSettings, *, target: str = ANY, confidence: float = LEVEL
) -> GateVerdict:
    """Returns whether a file passes its gate, with the reason if it does not.

    A file fails if its metric drops by more than `max_drop` and this is more than noise (the interval of the drop lies
    above 0), if its predictions are others than `min_agreement`, `max_probability_diff` and `max_ece_rise` allow, or if
    the recall of a type certainly falls by more than twice `max_drop`, or is too small beside the teacher's as
    `find_lost` says. A file that does not fail passes if its metric drops by `max_drop` at most, the interval of the
    drop ends at twice `max_drop` at most, and the recall of no type fell by more than that on dev. Else dev cannot
    tell, and the file is `undecided`.

    Args:
        confidence: of the interval whose upper end decides. It is more than 95% for files that are tried until one
            passes, as `split_error` says.
    """
    device = this_target()
    if not runs(target, device):
        return GateVerdict(UNCHECKED, f"it is for processors of the kind {target}, and this one is {device}")
    limit, types = SLACK * settings.max_drop + ROUNDING, comparison["types"]
    is_noise = comparison["interval"][0] <= 0 and not math.isnan(comparison["drop"])
    faults = _find_faults(comparison, settings, check_drop=not is_noise)
    if lost := [name for name, recall in types.items() if recall["interval"][0] > limit]:
        faults.append(describe_types(lost, types))
    faults += find_lost(comparison, settings.min_type_recall)
    if faults:
        return GateVerdict(FAILED, "; ".join(faults))
    doubts = [doubt] if (doubt := _describe_doubt(comparison, settings, confidence)) else []
    fallen = [name for name, recall in types.items() if recall["drop"] > limit]
    if doubtful := [name for name in fallen if types[name]["lost"] - types[name]["gained"] > NO_EVIDENCE]:
        doubts.append(describe_types(doubtful, types))
    return GateVerdict(UNDECIDED, "; ".join(doubts)) if doubts else GateVerdict(PASSED)


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


def _describe_doubt(comparison: FileComparison, settings: ExportSettings, confidence: float) -> str | None:
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


def _describe_rows(comparison: FileComparison, shrink: float) -> str:
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


def _find_faults(comparison: FileComparison, settings: ExportSettings, *, check_drop: bool) -> list[str]:
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


def describe_blindness(comparison: FileComparison, settings: ExportSettings, confidence: float = LEVEL) -> str | None:
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


def judge_float32(comparison: FileComparison, settings: ExportSettings) -> GateVerdict:
    """Returns `passed` or `failed` for a float32 file, which must have the predictions of torch."""
    strict = replace(
        settings, min_agreement=FP32_AGREEMENT, max_probability_diff=FP32_PROBABILITY_DIFF, max_ece_rise=1.0
    )
    faults = _find_faults(comparison, strict, check_drop=True) + find_lost(comparison, settings.min_type_recall)
    return GateVerdict(FAILED, "; ".join(faults)) if faults else GateVerdict(PASSED)


def judge_vectors(drop: float, interval: list[float], limit: float) -> GateVerdict:
    """Returns whether smaller vectors pass.

    They fail if the metric drops by more than the limit, and by more than noise: the interval lies above 0. Dev cannot
    tell if the metric drops by more, or the interval ends above twice the limit.
    """
    if not drop <= limit + ROUNDING:  # A comparison with NaN is false.
        if interval[0] <= 0 and not math.isnan(drop):
            return GateVerdict(UNDECIDED, describe_noise(drop, interval[0], limit))
        return GateVerdict(FAILED, f"drop {drop:.4f}, the limit is {limit:g}")
    if not interval[1] <= SLACK * limit + ROUNDING:
        return GateVerdict(UNDECIDED, describe_reach(interval[1], SLACK * limit))
    return GateVerdict(PASSED)


def check_dimensions(settings: ExportSettings, model: PreTrainedModel) -> None:
    """Raises OptionError for dimensions that the vectors of a model have not."""
    width = vector_width(model.config)
    if settings.dimensions and settings.dimensions[-1] > width:
        raise OptionError(
            "export.dimensions", show_value(list(settings.dimensions)),
            f"at most {width}, the width of the student's vectors",
        )  # fmt: skip
