"""Tests of metrics that a user writes: what they read, how they are named, and what they may return."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distill.core.contracts import Scores
from distill.core.errors import OptionError, UserError
from distill.kinds import Classification, Regression
from distill.training.statistics import compare_examples

TRAIN = (["a", "b", "c", "d"], ["ham", "spam", "spam", "ham"])
DEV = (["e", "f", "g"], ["spam", "ham", "ham"])
NUMBERS = {"train": (["a", "b", "c"], [0.0, 1.0, 2.0]), "dev": (["d", "e"], [1.0, 3.0])}


def hits(y_true: np.ndarray, y_score: np.ndarray) -> float:
    return float(((y_score > 0.5) == y_true).mean())


def brier(y_true: np.ndarray, y_score: np.ndarray) -> float:
    return -float(((y_score - y_true) ** 2).mean())


def read(metrics: Any, **options: Any) -> Any:
    return Classification(train=TRAIN, dev=DEV, metrics=metrics, **options).read(Path())


def scores_of(logits: list[list[float]], labels: list[Any]) -> Scores:
    return Scores({"logits": np.array(logits, dtype=np.float32)}, np.array(labels), np.arange(len(logits)))


def test_of_two_classes_a_function_reads_the_positive_one_and_its_probability() -> None:
    seen: list[tuple[list[int], list[float]]] = []

    def record(y_true: np.ndarray, y_score: np.ndarray) -> float:
        seen.append((y_true.tolist(), y_score.round(3).tolist()))
        return 0.25

    data = read(["accuracy", record], positive="ham")
    assert seen == [([0, 1, 1], [0.0, 1.0, 1.0]), ([0, 1, 1], [0.5, 0.5, 0.5])]  # Before anything is trained.
    logits = [[0.0, 0.0], [np.log(3.0), 0.0], [0.0, np.log(3.0)]]
    assert data.scoring.metrics(scores_of(logits, [1, 0, 0])) == {"accuracy": 1 / 3, "record": 0.25}
    assert seen[-1] == ([0, 1, 1], [0.5, 0.75, 0.25])


def test_of_more_classes_a_function_reads_indices_and_all_probabilities() -> None:
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def shape(y_true: np.ndarray, y_score: np.ndarray) -> float:
        shapes.append((y_true.shape, y_score.shape))
        return 1.0

    rows = (["a", "b", "c"], ["x", "y", "z"])
    Classification(train=rows, dev=rows, metrics=[shape]).read(Path())
    Classification(train=(rows[0], ["x|y", "y", "z"]), dev=rows, multi_label=True, metrics=[shape]).read(Path())
    Regression(**NUMBERS, metrics=["pearson", shape]).read(Path())
    assert shapes[::2] == [((3,), (3, 3)), ((3, 3), (3, 3)), ((2,), (2,))]


def test_the_first_metric_selects_checkpoints_and_the_task_names_the_functions() -> None:
    data = read({"quality": brier, "accuracy": "accuracy"})
    assert data.scoring.metric == "quality"
    assert list(data.scoring.metrics(scores_of([[0.0, 9.0], [9.0, 0.0]], [1, 0]))) == ["quality", "accuracy"]
    assert data.scoring.describe(data)["own_metrics"] == ["quality"]
    assert "own_metrics" not in read(None).scoring.describe(read(None))


def test_another_function_that_selects_is_other_data() -> None:
    def other(y_true: np.ndarray, y_score: np.ndarray) -> float:
        return 0.5

    first, second = read({"quality": brier}), read({"quality": other})
    assert len({first.sha256, second.sha256, read(None).sha256}) == 3
    assert read({"quality": brier}).sha256 == first.sha256
    assert read(["accuracy", other]).sha256 == read(["accuracy"]).sha256  # It selects nothing.


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ([hits, hits], r"got metrics=\[hits, hits\], expected metrics of different names, and hits is there twice"),
        ([lambda y_true, y_score: 0.0], r"expected a name of .* for each function: name it in a mapping, as in metr"),
        ([functools.partial(hits)], r"got metrics=\[partial\], expected a name of letters"),
        ({"a/b": hits}, "expected a name of letters, digits"),
        ({"accuracy": hits}, "expected another name for the function accuracy, because the task has a metric of this"),
        ({"hits": "accuracy"}, "expected a list of some of accuracy, f1, matthews, macro_f1, or of functions"),
        ([hits, 3], "expected a list of some of accuracy, f1, matthews, macro_f1, or of functions"),
        ("accuracy", "got metrics=accuracy, expected a list of some of accuracy"),
        ({}, "expected a list of some of accuracy"),
        (hits, "got metrics=hits, expected a list of some of accuracy"),
    ],
)  # fmt: skip
def test_a_metric_without_a_name_of_its_own_is_refused(metrics: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Classification(train=TRAIN, dev=DEV, metrics=metrics)


def fail(y_true: np.ndarray, y_score: np.ndarray) -> float:
    raise ValueError("multiclass is not supported\nmore")


def is_constant(y_true: np.ndarray, y_score: np.ndarray) -> float:
    return float("nan") if np.ptp(y_score) == 0 else 1.0


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda y_true, y_score: float("nan"), "the metric own returned nan for the labels of dev"),
        (lambda y_true, y_score: float("inf"), "the metric own returned inf for the labels of dev"),
        (lambda y_true, y_score: "high", r"the metric own returned 'high' \(str\) for the labels of dev .*, expected"),
        (lambda y_true, y_score: None, r"the metric own returned None \(NoneType\)"),
        (lambda y_true, y_score: y_score, r"returned array\(.*\(ndarray\) for .*, expected a number"),
        (lambda y_true: 0.5, r"the metric own failed for the labels of dev as predictions, with y_true \[3\] and y_sc"),
        (fail, "ValueError: multiclass is not supported$"),
        (is_constant, "the metric own returned nan for a constant prediction on dev, expected a finite number"),
    ],
)  # fmt: skip
def test_a_function_that_returns_no_number_is_refused_before_the_training(
    function: Callable[..., Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        read({"own": function})
    with pytest.raises(UserError, match=message.replace("3", "2")):
        Regression(**NUMBERS, metrics={"pearson": "pearson", "own": function}).read(Path())


def test_a_function_cannot_change_what_the_others_read() -> None:
    def destroy(y_true: np.ndarray, y_score: np.ndarray) -> float:
        y_score[:] = y_true[:] = 0
        return 0.0

    data = read(["accuracy", destroy, hits])
    assert data.scoring.metrics(scores_of([[0.0, 9.0], [9.0, 0.0]], [1, 0]))["hits"] == 1.0


def test_resamples_in_which_a_function_has_no_value_are_left_out() -> None:
    def needs_both(y_true: np.ndarray, y_score: np.ndarray) -> float:
        if np.ptp(y_true) == 0:
            raise ValueError("only one class")
        return float(y_score[y_true == 1].mean())

    rows = (list("abcd"), ["ham", "ham", "ham", "spam"])
    scoring = Classification(train=rows, dev=rows, metrics={"own": needs_both}).read(Path()).scoring
    labels, right = [0, 0, 0, 1], [[9.0, 0.0]] * 3 + [[0.0, 9.0]]
    better, worse = scores_of(right, labels), scores_of([[0.0, 0.0]] * 4, labels)
    result = compare_examples(scoring, better, worse)
    assert result is not None
    assert result["difference"] == pytest.approx(0.5, abs=1e-3)
    assert result["interval"] == pytest.approx([0.5, 0.5], abs=1e-3)
