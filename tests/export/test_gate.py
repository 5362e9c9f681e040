"""Tests of the gate: it passes a file only where dev can tell, no type vanishes behind it, and of abstention."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from distill.core.contracts import Scores, Task
from distill.core.errors import OptionError, UserError
from distill.export import gate as type_recall
from distill.export.gate import (
    GateVerdict,
    TorchScores,
    check_abstention,
    check_dev,
    choose_threshold,
    judge,
    judge_float32,
    list_weak,
    measure_abstention,
    split_error,
)
from distill.export.quantization import ExportSettings
from distill.kinds import Classification, MaskedLM, Regression, TokenClassification
from distill.kinds.classification import LabelSets, OneClass
from distill.kinds.masked_lm import TokenScores
from distill.kinds.regression import NumberScores
from distill.kinds.scoring import Scoring
from distill.kinds.token_classification import TagScores
from distill.kinds.vector_scores import PairScores
from distill.records.schema import FileComparison
from distill.training import statistics
from tests.edge.conftest import Patch

# The gate of the drop alone.
DROP_ONLY = ExportSettings(min_agreement=0, max_probability_diff=1, max_ece_rise=1)


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: Patch) -> None:
    """For metrics that are no mean, because each resample computes them anew."""
    monkeypatch.setattr(statistics, "METRIC_RESAMPLES", 200)


def classified(labels: Sequence[int], predicted: Sequence[int], classes: int = 2) -> Scores:
    return Scores({"logits": np.eye(classes)[list(predicted)]}, np.array(labels), np.arange(len(labels)))


def compared(scoring: Scoring, scores: Scores, reference: Scores) -> FileComparison:
    return TorchScores(scoring, {"dev": reference}).compare({"dev": scores})


def judged(scoring: Scoring, scores: Scores, reference: Scores, settings: ExportSettings = DROP_ONLY) -> GateVerdict:
    return judge(compared(scoring, scores, reference), settings)


def shares_passed(examples: int, loss: float, confidences: Sequence[float] = (0.95,)) -> list[float]:
    """Returns how probable it is that a file passes which loses this share of all examples, and gains none."""
    labels, shares = [0] * examples, np.zeros(len(confidences))
    for lost in range(int(0.01 * examples) + 1):  # More than `max_drop` never passes.
        file = classified(labels, [1] * lost + [0] * (examples - lost))
        comparison = compared(OneClass(("accuracy",)), file, classified(labels, labels))
        verdicts = [judge(comparison, DROP_ONLY, confidence=confidence) for confidence in confidences]
        passes = np.array([verdict.gate == "passed" for verdict in verdicts])
        shares += passes * stats.binom.pmf(lost, examples, loss)
    return list(map(float, shares))


def test_a_file_that_loses_five_points_does_not_pass_by_luck() -> None:
    """Nothing is lost on such a dev split in 36% of cases."""
    assert shares_passed(20, 0.05) == [0]


@pytest.mark.parametrize(("examples", "passed"), [(147, False), (148, True)])
def test_a_file_that_loses_nothing_passes_where_dev_can_tell_twice_the_limit(examples: int, passed: bool) -> None:
    assert (shares_passed(examples, 0.0) == [1]) is passed
    assert shares_passed(examples, 0.02)[0] < 0.06


@pytest.mark.parametrize(
    ("examples", "max_drop", "reason"),
    [
        (20, 0.01, "dev has 20 examples, at least 148 are needed to tell a drop of 0.02"),
        (1, 0.01, "dev has 1 example, at least 148 are needed to tell a drop of 0.02"),
        (148, 0.005, "dev has 148 examples, at least 298 are needed to tell a drop of 0.01"),
        (148, 0.0, "no dev is large enough to tell a drop of 0: set export.max_drop above it"),
    ],
)
def test_an_undecided_file_says_how_many_examples_are_needed(examples: int, max_drop: float, reason: str) -> None:
    labels = [0] * examples
    one = classified(labels, labels)
    assert judged(OneClass(("accuracy",)), one, one, replace(DROP_ONLY, max_drop=max_drop)) == ("undecided", reason)


@pytest.mark.parametrize(
    ("lost", "verdict"),
    [
        (1, ("undecided", "drop 0.0500, the limit is 0.01, and it may be noise (95% interval from -0.0909): dev has 20 "
             "examples, at least 148 are needed to tell a drop of 0.02")),
        (8, ("failed", "drop 0.4000, the limit is 0.01")),
    ],
)  # fmt: skip
def test_a_drop_beyond_the_limit_fails_where_it_is_more_than_noise(lost: int, verdict: tuple[str, str]) -> None:
    labels = [0] * 20
    file = classified(labels, [1] * lost + [0] * (20 - lost))
    assert judged(OneClass(("accuracy",)), file, classified(labels, labels)) == verdict


def test_an_undecided_file_says_how_many_examples_would_decide() -> None:
    """Of 400 examples 12 are lost and 9 won: the interval reaches as far above the drop as luck, and more narrow it."""
    labels = [0] * 800
    reference = classified(labels, [1] * 9 + [0] * 791)
    file = classified(labels, [0] * 9 + [1] * 15 + [0] * 776)
    comparison = compared(OneClass(("accuracy",)), file, reference)
    drop, high = comparison["drop"], comparison["interval"][1]
    assert (drop, high) == (pytest.approx(6 / 800), pytest.approx(0.02, abs=0.002))
    verdict = judge(comparison, replace(DROP_ONLY, max_drop=0.009))
    needed = 800 * ((high - drop) / (0.018 - drop)) ** 2
    assert verdict.gate == "undecided"
    said = int(str(verdict.reason).split(", about ")[1].removesuffix(" would decide").replace(",", ""))
    assert needed <= said < needed + 100
    lost = judge(comparison, replace(DROP_ONLY, max_drop=0.006))  # More than the limit, and luck may be behind it.
    assert lost.gate == "undecided"
    assert str(lost.reason).startswith("drop 0.0075, the limit is 0.006, and it may be noise (95% interval from -0")


def test_the_ends_of_an_interval_are_not_alike_and_less_is_better_turns_them() -> None:
    """Of 300 examples 6 are lost: their number in a resample is skewed, so that the ends are at other distances."""
    labels = [0] * 300
    of_classes = compared(OneClass(("accuracy",)), classified(labels, [1] * 6 + [0] * 294), classified(labels, labels))
    # The 2.5% and 97.5% quantiles of the difference of Poisson numbers with means 7 and 1.
    assert [round(302 * end) for end in of_classes["interval"]] == [1, 12]
    losses, examples = np.zeros(60), np.arange(60)
    columns = {"correct": np.ones(60), "prediction": np.zeros(60, int), "probability": np.ones(60)}
    reference, file = (
        Scores({**columns, "loss": losses + of}, np.zeros(60, int), examples) for of in (1.0, 1 + 0.5 * (examples < 2))
    )
    worse = compared(TokenScores(MaskedLM().settings), file, reference)
    assert worse["drop"] == pytest.approx(np.exp(1 / 60) - 1)
    low, high = worse["interval"]
    assert 0 <= low < worse["drop"] < high
    assert high - worse["drop"] > 1.2 * (worse["drop"] - low)


# Tries


def test_a_file_that_loses_the_limit_passes_no_more_often_because_seven_are_tried() -> None:
    """The files lose 2 points, the limit, and gain nothing."""
    levels = split_error(7)
    assert sum(1 - level for level in levels) == pytest.approx(0.05)
    at_95, *shares = shares_passed(200, 0.02, [0.95, *levels])
    assert 1 - (1 - at_95) ** 7 == pytest.approx(0.117, abs=1e-3)  # Where each is tried at 95%.
    assert 1 - math.prod(1 - share for share in shares) == pytest.approx(0.035, abs=1e-3)


CANNOT_MOVE = "the metric has the same value on dev whatever a model predicts: choose another metric, or another dev"


TAGS = TagScores(("O", "B-x", "I-x", "B-y", "I-y"))


def tagged(tags: Sequence[int], predicted: Sequence[int]) -> Scores:
    """Sentences of two words."""
    logits = np.random.default_rng(0).random((len(tags), 5)) + 5 * np.eye(5)[list(predicted)]
    return Scores({"logits": logits}, np.array(tags), np.arange(len(tags)) // 2)


@pytest.mark.parametrize(
    ("scoring", "scores"),
    [
        (OneClass(("f1",)), classified([0] * 300, [0] * 300)),
        (OneClass(("matthews",)), classified([1] * 300, [1] * 299 + [0])),
        (NumberScores(("pearson",)), Scores({"logits": np.arange(300.0)[:, None]}, np.full(300, 2.5), np.arange(300))),
        (TAGS, tagged([0] * 300, [0] * 300)),
    ],
)
def test_a_metric_that_cannot_move_is_undecided(scoring: Scoring, scores: Scores) -> None:
    """With one class, one number or no entity on dev, the metric is 0 whatever is predicted."""
    assert judged(scoring, scores, scores) == ("undecided", CANNOT_MOVE)


@pytest.mark.parametrize(
    ("scoring", "scores"),
    [
        # The model always predicts one class or one number, and a file that did not would have another metric.
        (OneClass(("matthews",)), classified([0, 1] * 300, [1] * 600)),
        (NumberScores(("pearson",)), Scores({"logits": np.full((600, 1), 0.5)}, np.arange(600.0), np.arange(600))),
        (TAGS, tagged([1, 0] * 300, [0] * 600)),
    ],
)
def test_a_metric_of_a_model_that_always_predicts_the_same_can_move(scoring: Scoring, scores: Scores) -> None:
    resolution = TorchScores(scoring, {"dev": scores}).resolution
    assert resolution is not None
    assert resolution > 0


def label_sets(predicted: np.ndarray, labels: np.ndarray) -> tuple[Scoring, Scores]:
    scoring = LabelSets(("micro_f1",), separator="|", labels=("a", "b"))
    decoding = {"thresholds": [0.2, 0.9]}
    return scoring, Scores({"logits": np.where(predicted, 5.0, -5.0)}, labels, np.arange(len(labels)), decoding)


def spoilable() -> dict[str, tuple[Scoring, Scores]]:
    """Scorings whose metric is no mean, with scores that are right."""
    random = np.random.default_rng(1)
    numbers = random.random(60)
    sets = random.random((60, 2)) < 0.5
    vectors = np.stack([np.ones(60), np.zeros(60), numbers, np.sqrt(1 - numbers**2)], axis=1).reshape(120, 2)
    pairs = Scores({"logits": vectors}, np.repeat(numbers, 2), np.repeat(np.arange(60), 2))
    classes = OneClass(("f1",))
    return {
        "f1": (classes, classified([0, 1] * 30, [0, 1] * 30)),
        "micro_f1": label_sets(sets, sets.astype(float)),
        "pearson": (NumberScores(("pearson",)), Scores({"logits": numbers[:, None]}, numbers, np.arange(60))),
        "spearman": (PairScores(("spearman", "pearson")), pairs),
        "tags": (TAGS, tagged([1, 2] * 30, [1, 2] * 30)),
    }


@pytest.mark.parametrize("name", spoilable())
def test_the_interval_of_every_metric_has_a_width_without_a_changed_prediction(name: str) -> None:
    scoring, scores = spoilable()[name]
    spoiled = scoring.spoil(scoring.condense(scores))
    assert spoiled is not None
    assert scoring.metrics(scores)[scoring.metric] == pytest.approx(1)
    assert scoring.metrics(spoiled)[scoring.metric] == pytest.approx(-1 if name in ("pearson", "spearman") else 0)
    assert scoring.example_metric(scores) is None
    found = judged(scoring, scores, scores)
    assert (found.gate, found.reason is not None) == ("undecided", True)
    assert str(found.reason).startswith(f"dev has {len(np.unique(scores.example_id))} examples, at least ")


def test_a_perplexity_needs_some_examples() -> None:
    def scored(examples: int) -> Scores:
        columns = {
            "loss": np.ones(examples), "correct": np.ones(examples), "prediction": np.zeros(examples, int),
            "probability": np.ones(examples),
        }  # fmt: skip
        return Scores(columns, np.zeros(examples, int), np.arange(examples))

    verdicts = [judged(TokenScores(MaskedLM().settings), scored(examples), scored(examples)) for examples in (29, 30)]
    assert verdicts == [("undecided", "dev has 29 examples, at least 30 are needed to tell a drop"), ("passed", None)]


# Types


def entities(*, common: int, rare: int, rare_found: int) -> Scores:
    """One entity a sentence: common ones of the type x, which are all found, and rare ones of the type y."""
    tags = [1, 0] * common + [3, 0] * rare
    predicted = [1, 0] * common + [3, 0] * rare_found + [0, 0] * (rare - rare_found)
    return tagged(tags, predicted)


@pytest.mark.parametrize(
    ("rare", "found", "gate", "reason"),
    [
        (14, 0, "failed", "the recall falls of y by 1.00 (14 of 14 lost, 0 gained)"),
        (14, 12, "undecided", "the recall falls of y by 0.14 (2 of 14 lost, 0 gained)"),
        (14, 13, "passed", None),  # One entity may be luck.
        (9, 0, "passed", None),  # Too few to be judged.
    ],
)
def test_a_rare_type_may_not_vanish_behind_the_metric(rare: int, found: int, gate: str, reason: str | None) -> None:
    reference, file = (entities(common=3000, rare=rare, rare_found=number) for number in (rare, found))
    assert judged(TAGS, file, reference) == (gate, reason)


def test_classes_and_labels_have_a_recall_too() -> None:
    scoring = OneClass(("accuracy",), classes=("no", "ye\ns"))
    labels = [0] * 2000 + [1] * 12
    found = judged(scoring, classified(labels, [0] * 2012), classified(labels, labels))
    assert found == ("failed", "the recall falls of ye s by 1.00 (12 of 12 lost, 0 gained)")
    sets = np.zeros((2000, 2))
    sets[:, 0] = 1
    sets[:12, 1] = 1
    given = sets > 0
    several, reference = label_sets(given, sets)
    _, file = label_sets(given & [True, False], sets)
    assert judged(several, file, reference).reason == "the recall falls of b by 1.00 (12 of 12 lost, 0 gained)"


def test_intervals_of_many_types_are_wider() -> None:
    """With 40 types at 95% each, one of two would certainly lose something by chance alone."""
    scores = {"expected": np.full(20, True), "found": np.arange(20) >= 5}

    class Types:
        def __init__(self, number: int) -> None:
            self.number = number

        def hits(self, scores: Scores) -> dict[str, np.ndarray]:
            hits = scores.columns["hits"]
            return {"a": hits, **{str(other): np.full(10, True) for other in range(self.number - 1)}}

    def interval(number: int) -> list[float]:
        scoring: Any = Types(number)
        both = [Scores({"hits": scores[name]}, np.zeros(20), np.arange(20)) for name in ("found", "expected")]
        [(name, recall)] = type_recall.compare_types(scoring, *both).items()
        assert (name, recall["number"], recall["lost"], recall["gained"], recall["drop"]) == ("a", 20, 5, 0, 0.25)
        return recall["interval"]

    error = math.sqrt(5.5 + 0.5 - 25 / 22) / 22
    for number, quantile in ((1, 1.959964), (40, 3.227218)):  # Of 0.975, and of 1 - 0.025 / 40.
        assert interval(number) == pytest.approx([5 / 22 - quantile * error, 5 / 22 + quantile * error], abs=1e-6)
    assert interval(1)[0] > 0.02 > interval(40)[0]


# Abstention


def confident(confidences: list[float], right: list[bool]) -> Scores:
    """Returns scores of class 0 with these probabilities, which the labels confirm or not."""
    probabilities = np.array(confidences)
    logits = np.log(np.stack([probabilities, 1 - probabilities], axis=1))
    return Scores({"logits": logits}, 1 - np.array(right, dtype=int), np.arange(len(right)))


def test_the_threshold_is_between_the_share_and_the_rest() -> None:
    cases: list[tuple[list[float], float, float, int]] = [
        ([0.9, 0.6, 0.8, 0.7], 0.25, 0.65, 1),
        ([0.9, 0.6, 0.8, 0.7], 0.5, 0.75, 2),
        ([0.9, 0.6, 0.8, 0.7], 0.74, 0.75, 2),  # At most the share.
        ([0.9, 0.6, 0.6, 0.8], 0.25, 0.6, 0),  # Equal confidences stay together.
        ([float(n) / 100 for n in range(100)], 0.29, 0.285, 29),
    ]
    for confidences, share, threshold, below in cases:
        values = np.array(confidences)
        assert choose_threshold(values, share) == pytest.approx(threshold)
        assert (values < choose_threshold(values, share)).sum() == below


def test_the_threshold_of_dev_decides_on_every_split() -> None:
    scores = {
        "dev": confident([0.9, 0.6, 0.8, 0.7], [True, False, True, False]),
        "test": confident([0.64, 0.66, 0.61, 0.55], [True, True, False, False]),
        "other": confident([0.55], [True]),
    }
    result = measure_abstention(scores, scoring=OneClass(("accuracy",)), share=0.25)
    assert result["threshold"] == pytest.approx(0.65)
    assert result["share"] == {"dev": 0.25, "test": 0.75, "other": 1.0}
    assert result["metrics"] == {"accuracy": pytest.approx(2 / 3), "test/accuracy": 1.0}


def test_tasks_without_a_confidence_refuse_to_abstain() -> None:
    check_abstention(Classification(text="text").info, 0.1)
    tasks: list[tuple[Task, Scoring]] = [
        (Regression(text="text"), NumberScores(("pearson",))), (TokenClassification(), TagScores()),
        (MaskedLM(), TokenScores(MaskedLM().settings)),
    ]  # fmt: skip
    for task, scoring in tasks:
        check_abstention(task.info, None)
        with pytest.raises(OptionError, match=rf"got export.abstain=0.1, expected null, because task {task.info.name}"):
            check_abstention(task.info, 0.1)
        with pytest.raises(TypeError, match="Scores cannot abstain, because its predictions"):
            scoring.confidences(Scores({}, np.zeros(0), np.zeros(0)))


def test_the_share_must_be_an_example_of_dev() -> None:
    check_dev(20, 0.05)
    check_dev(0, None)
    with pytest.raises(UserError, match="got export.abstain=0.04, which is less than one of the 20 examples of dev"):
        check_dev(20, 0.04)


# The recall of each type, beside the teacher's


def found_of(labels: np.ndarray, found: dict[int, int]) -> Scores:
    """Returns scores of sentences of one word, of which the first ones of each tag are found."""
    seen, predicted = dict.fromkeys(found, 0), np.zeros_like(labels)
    for place, tag in enumerate(labels.tolist()):
        seen[tag] = seen.get(tag, 0) + 1
        predicted[place] = tag if seen[tag] <= found.get(tag, 0) else 0
    return Scores({"logits": 5 * np.eye(5)[predicted]}, labels, np.arange(len(labels)))


# Words of O, and of the types x and y, of which y is rare.
WORDS = np.repeat([0, 1, 3], [400, 100, 20])


@pytest.mark.parametrize(
    ("teacher", "student", "file", "reason"),
    [
        # Both recalls are weak, and the file loses most of y, which moves F1 by less than noise.
        ({1: 50, 3: 10}, {1: 50, 3: 10}, {1: 50, 3: 6}, "the recall of y is 0.300, below 0.95 of the teacher's 0.500"),
        ({1: 50, 3: 10}, {1: 50, 3: 10}, {1: 48, 3: 10}, None),  # 0.96 of the teacher's.
        ({1: 50, 3: 10}, {1: 55, 3: 12}, {1: 50, 3: 10}, None),  # It loses what the teacher has not.
        # The student has not reached the teacher, so that its own recall counts.
        ({1: 50, 3: 16}, {1: 50, 3: 10}, {1: 50, 3: 10}, None),
        ({1: 50, 3: 16}, {1: 50, 3: 10}, {1: 50, 3: 9},
         "the recall of y is 0.450, below 0.95 of the student's 0.500"),
        ({1: 50}, {1: 50, 3: 10}, {1: 50, 3: 6}, None),  # The teacher finds none of y.
        (None, {1: 50, 3: 10}, {1: 50, 3: 6}, None),
    ],
)  # fmt: skip
def test_a_file_that_loses_a_type_fails(
    teacher: dict[int, int] | None, student: dict[int, int], file: dict[int, int], reason: str | None
) -> None:
    of_teacher = {} if teacher is None else {"dev": found_of(WORDS, teacher)}
    torch = TorchScores(TAGS, {"dev": found_of(WORDS, student)}, of_teacher)
    comparison = torch.compare({"dev": found_of(WORDS, file)})
    settings = replace(DROP_ONLY, max_drop=0.2)
    for verdict in (judge(comparison, settings), judge_float32(comparison, replace(settings, min_agreement=0))):
        lost = [part for part in str(verdict.reason).split("; ") if part.startswith("the recall of y is")]
        assert lost[0].startswith(reason) if reason else not lost, verdict
        assert verdict.gate == "failed" or reason is None
    assert "recall of y is" not in str(judge(comparison, replace(settings, min_type_recall=None)).reason)


def test_a_type_of_few_words_and_a_task_without_types_have_no_recall_to_keep() -> None:
    labels = np.repeat([0, 1], [100, 9])
    few, classes = found_of(labels, {1: 9}), classified([0] * 50 + [1] * 50, [0] * 100)
    for scoring, scores in ((TAGS, few), (OneClass(("accuracy",)), classes)):
        assert "recalls" not in TorchScores(scoring, {"dev": scores}, {"dev": scores}).compare({"dev": scores})


def test_a_weak_student_is_told_apart_from_a_file_that_loses() -> None:
    of_student, of_teacher = (found_of(WORDS, {1: 50, 3: number}) for number in (10, 16))
    recalls = TorchScores(TAGS, {"dev": of_student}, {"dev": of_teacher}).compare_recalls(of_student)
    assert list_weak(recalls, 0.95) == {"y": "y 0.500 (teacher 0.800)"}
    assert list_weak(recalls, 0.6) == list_weak(recalls, None) == {}
