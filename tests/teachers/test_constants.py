"""Tests of the comparison of a teacher with the best constant prediction."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distill.core.contracts import Constant, Scores
from distill.kinds import Classification, MaskedLM, TokenClassification
from distill.kinds.classification import OneClass
from distill.kinds.masked_lm import TokenScores
from distill.kinds.regression import NumberScores
from distill.kinds.scoring import Scoring
from distill.teachers.prepared import Comparison, compare_with_constant

UNKNOWN = "not known to be better than"


def classified(predicted: Sequence[int], labels: Sequence[int], classes: int = 2) -> Scores:
    return Scores({"logits": np.eye(classes)[list(predicted)]}, np.array(labels), np.arange(len(labels)))


def compare(scoring: Scoring, dev: Scores, **splits: Scores) -> Comparison:
    result = compare_with_constant(scoring, {"dev": dev, **splits})
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("metric", "predicted", "labels", "weakness"),
    [
        ("accuracy", [0, 0, 0, 0], [0, 0, 0, 1], 'no better than {} accuracy 0.750 against 0.750 of "always 0"'),
        ("accuracy", [0, 0, 0, 1], [0, 0, 0, 1], None),
        ("accuracy", [0, 0, 0, 0], [0, 0, 0, 0], None),  # Nothing can be better.
        ("f1", [1, 1, 1, 1], [0, 0, 0, 1], 'no better than {} f1 0.400 against 0.400 of "always 1"'),
        ("matthews", [1, 1, 0, 0], [0, 0, 0, 1], 'worse than {} matthews -0.577 against 0.000 of "always 0"'),
        ("f1", [0, 0, 1, 1], [1, 1, 1, 0], 'worse than {} f1 0.400 against 0.857 of "always 1"'),
    ],
)  # fmt: skip
def test_on_a_dev_of_few_examples_the_values_of_the_metric_decide(
    metric: Any, predicted: list[int], labels: list[int], weakness: str | None
) -> None:
    scoring = OneClass((metric,))
    result = compare(scoring, classified(predicted, labels))
    where = "a constant prediction on the 4 examples of dev:"
    assert result.weakness == (None if weakness is None else f"is {weakness.format(where)}")
    assert (result.difference["interval"], result.difference["number"]) == (None, 4)


@pytest.mark.parametrize(
    ("metric", "right", "relation"),
    [("accuracy", 0.5, UNKNOWN), ("accuracy", 0.2, "worse than"), ("accuracy", 0.9, None), ("f1", 0.5, "worse than")],
)
def test_a_teacher_must_be_better_than_the_constant_beyond_noise(
    metric: Any, right: float, relation: str | None
) -> None:
    """Always positive has an f1 of 0.67, more than a guess."""
    random = np.random.default_rng(0)
    labels = random.integers(2, size=200)
    predicted = np.where(random.random(200) < right, labels, 1 - labels)
    result = compare(OneClass((metric,)), classified(predicted.tolist(), labels.tolist()))
    assert result.difference["interval"] is not None
    if relation is None:
        assert result.weakness is None
        assert result.difference["interval"][0] > 0.05
    else:
        assert f"is {relation} a constant prediction on dev: {metric} " in str(result.weakness)


def test_a_teacher_that_always_predicts_the_same_is_weak() -> None:
    """The interval of two predictions that are alike has a width."""
    labels = [5] * 60 + [0] * 40
    result = compare(OneClass(("accuracy",)), classified([5] * 100, labels, classes=6))
    assert result.answer == "always 5"
    assert result.weakness is not None
    assert result.weakness.startswith(
        "is not known to be better than a constant prediction on dev: accuracy 0.600 against 0.600 of "
        '"always 5", a difference of +0.000 (95% interval -0.0'
    )


def test_the_constant_is_chosen_on_dev_and_scored_on_every_split() -> None:
    rows = ["a", "b", "c"], ["bad", "good", "good"]
    task = Classification(text="text", train=rows, dev=rows, metrics=["accuracy", "f1"], positive="good")
    scoring = task.read(Path()).scoring
    dev, test = classified([0, 1, 1], [0, 1, 1]), classified([0, 1, 1, 0], [0, 0, 0, 1])
    result = compare(scoring, dev, test=test)
    assert result.record() == {
        "constant": {
            "answer": "always good",
            "metrics": {
                "accuracy": pytest.approx(2 / 3), "f1": pytest.approx(0.8), "test/accuracy": 0.25,
                "test/f1": pytest.approx(0.4),
            },
        },
        "against_constant": {
            "difference": pytest.approx(1 / 3), "interval": None, "p": None, "over": "examples", "number": 3,
        },
    }  # fmt: skip


def test_numbers_are_compared_with_the_mean_of_the_labels() -> None:
    scoring = NumberScores(("pearson",))
    random = np.random.default_rng(0)
    labels = random.normal(size=50).astype(np.float32)
    knows, guesses = labels + random.normal(size=50), random.normal(size=50)
    for numbers, weak in ((knows, False), (guesses, True), (-knows, True)):
        dev = Scores({"logits": numbers[:, None].astype(np.float32)}, labels, np.arange(50))
        result = compare(scoring, dev)
        assert (result.answer, result.metrics["pearson"]) == ("always the mean of the labels", 0.0)
        assert (result.weakness is not None) == weak
    equal = Scores({"logits": np.zeros((50, 1), dtype=np.float32)}, np.ones(50, dtype=np.float32), np.arange(50))
    assert compare_with_constant(scoring, {"dev": equal}) is None  # No number is better than another one.


def test_tags_are_compared_with_the_most_frequent_one() -> None:
    rows = [[["A", "b", "c"], ["B-X", "O", "O"]]]
    table = [{"tokens": words, "tags": tags} for words, tags in rows]
    task = TokenClassification(train=table, dev=table)
    scoring = task.read(Path()).scoring
    inside = scoring.labels.index("B-X")
    labels = np.tile([inside, *[scoring.labels.index("O")] * 2], 30)
    example_id = np.repeat(np.arange(30), 3)
    found = np.eye(len(scoring.labels))[labels]
    nothing = np.eye(len(scoring.labels))[np.full(90, scoring.labels.index("O"))]
    assert compare(scoring, Scores({"logits": found}, labels, example_id)).weakness is None
    result = compare(scoring, Scores({"logits": nothing}, labels, example_id))
    assert 'f1 0.000 against 0.000 of "always O"' in str(result.weakness)


class Loss(Scoring):
    """A metric of which less is better."""

    names = ("loss",)
    selects = "min"

    def metrics(self, scores: Scores) -> dict[str, float]:
        return {"loss": float(scores.columns["loss"].mean())}

    def example_metric(self, scores: Scores) -> np.ndarray:
        return scores.columns["loss"]

    def constants(self, scores: Scores) -> Sequence[Constant]:
        return [
            Constant(
                f"always {loss}", lambda of, loss=loss: replace(of, columns={"loss": np.full(len(of.labels), loss)})
            )
            for loss in (0.9, 0.5)
        ]


@pytest.mark.parametrize(("loss", "relation"), [(0.2, None), (0.49, UNKNOWN), (0.8, "worse than")])
def test_less_of_a_loss_is_better(loss: float, relation: str | None) -> None:
    losses = loss + np.where(np.arange(100) % 2, 0.1, -0.1)
    dev = Scores({"loss": losses}, np.zeros(100), np.arange(100))
    result = compare(Loss(), dev)
    assert (result.answer, result.metrics) == ("always 0.5", {"loss": 0.5})
    assert (result.weakness is None) == (relation is None)
    assert relation is None or f"is {relation} a constant prediction" in str(result.weakness)


def test_every_language_model_may_teach() -> None:
    scoring = TokenScores(MaskedLM().settings)
    scores = Scores({"loss": np.ones(30)}, np.zeros(30, dtype=int), np.arange(30))
    assert compare_with_constant(scoring, {"dev": scores}) is None
