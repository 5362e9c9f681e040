"""Tests of abstention: thresholds, shares and metrics by hand, and the tasks that refuse it."""

import numpy as np
import pytest

from distill.core.contracts import Scores, Task
from distill.core.errors import OptionError, UserError
from distill.export.gate import check_abstention, check_dev, choose_threshold, measure_abstention
from distill.kinds import Classification, MaskedLM, Regression, TokenClassification
from distill.kinds.classification import OneClass
from distill.kinds.masked_lm import TokenScores
from distill.kinds.regression import NumberScores
from distill.kinds.scoring import Scoring
from distill.kinds.token_classification import TagScores


def scores_of(confidences: list[float], right: list[bool]) -> Scores:
    """Returns scores of class 0 with these probabilities, which the labels confirm or not."""
    probabilities = np.array(confidences)
    logits = np.log(np.stack([probabilities, 1 - probabilities], axis=1))
    return Scores({"logits": logits}, 1 - np.array(right, dtype=int), np.arange(len(right)))


@pytest.mark.parametrize(
    ("confidences", "share", "threshold", "below"),
    [
        ([0.9, 0.6, 0.8, 0.7], 0.25, 0.65, 1),
        ([0.9, 0.6, 0.8, 0.7], 0.5, 0.75, 2),
        ([0.9, 0.6, 0.8, 0.7], 0.74, 0.75, 2),  # At most the share.
        ([0.9, 0.6, 0.6, 0.8], 0.25, 0.6, 0),  # Equal confidences stay together.
        ([float(n) / 100 for n in range(100)], 0.29, 0.285, 29),
    ],
)
def test_the_threshold_is_between_the_share_and_the_rest(
    confidences: list[float], share: float, threshold: float, below: int
) -> None:
    values = np.array(confidences)
    assert choose_threshold(values, share) == pytest.approx(threshold)
    assert (values < choose_threshold(values, share)).sum() == below


def test_the_threshold_of_dev_decides_on_every_split() -> None:
    scores = {
        "dev": scores_of([0.9, 0.6, 0.8, 0.7], [True, False, True, False]),
        "test": scores_of([0.64, 0.66, 0.61, 0.55], [True, True, False, False]),
        "other": scores_of([0.55], [True]),
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
