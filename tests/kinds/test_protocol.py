"""Tests of the size of the contract of a kind of task, and of a scoring that has only what a kind must write."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from distill.core.contracts import Items, Outputs, Scores
from distill.kinds.scoring import Scoring


class Least(Scoring):
    """The scoring of one class an item, with what must be written."""

    names = ("accuracy",)

    def metrics(self, scores: Scores) -> dict[str, float]:
        return {"accuracy": float((self.predictions(scores) == scores.labels).mean())}

    def tabulate(self, scores: Scores, splits: Any, *, examples: int) -> dict[str, list[Any]]:
        return {"prediction": self.predictions(scores).tolist()}

    def describe(self, splits: Any) -> dict[str, Any]:
        return {"labels": []}

    def summary(self, splits: Any) -> str:
        return "two classes"


@pytest.mark.parametrize(
    "call",
    [
        lambda scoring: scoring.metrics(None),
    ],
)
def test_a_member_that_must_be_written_says_so(call: Callable[[Scoring], object]) -> None:
    with pytest.raises(TypeError, match="Scoring has no "):
        call(Scoring())


def test_the_defaults_are_those_of_one_class_an_item() -> None:
    """Two of three predictions are right. Probabilities are 0.5 or 0.75, and 0.25 apart at most."""
    scoring, high = Least(), float(np.log(3))
    labels = np.array([0, 1, 1])
    scores, reference = (
        Scores({"logits": np.array(logits)}, labels, np.arange(3))
        for logits in ([[high, 0.0], [0.0, high], [high, 0.0]], [[high, 0.0], [0.0, high], [0.0, 0.0]])
    )
    assert scoring.metric == "accuracy"
    assert scoring.metrics(scores) == {"accuracy": pytest.approx(2 / 3)}
    assert scoring.agreement(scores, reference) == 1.0
    assert scoring.probability_diff(scores, reference) == pytest.approx(0.25)
    assert scoring.calibration_error(scores) == pytest.approx(0.75 - 2 / 3)
    assert (scoring.condense(scores), scoring.held_out(scores)) == (scores, scores)
    assert (scoring.fit_decoder(scores), scoring.breakdown(scores), scoring.hits(scores)) == ({}, {}, {})
    assert (scoring.spoil(scores), scoring.example_metric(scores), scoring.constants(scores)) == (None, None, [])
    with pytest.raises(TypeError, match="Least cannot abstain"):
        scoring.confidences(scores)


def test_logits_are_what_is_kept_and_what_another_model_replaces() -> None:
    batch = {"example_id": torch.arange(2)}
    items = Items(batch=batch, row=torch.arange(2), labels=torch.zeros(2), labelled=torch.ones(2).bool())
    columns = Least().score(Outputs(logits=torch.ones(2, 3).half()), items)
    assert {name: (column.dtype, column.shape) for name, column in columns.items()} == {
        "logits": (torch.float32, (2, 3))
    }
    assert Least().compare(columns, Outputs()) == {}
    scores = Scores({"logits": columns["logits"].numpy()}, np.zeros(2), np.arange(2))
    narrow = [np.full((1, 2), 5.0), np.full((1, 3), 6.0)]
    assert Least().rescore(scores, narrow).columns["logits"][:, :2].tolist() == [[5.0, 5.0], [6.0, 6.0]]
    with pytest.raises(ValueError, match="got outputs without logits"):
        Least().score(Outputs(), items)
