"""Comparison of a teacher with the best constant prediction, which a teacher worth having is better than."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from distill.contracts import Batch, Constant, Learnable, Scores
from distill.tasks.scoring import Scoring
from distill.training.evaluate import split_metrics
from distill.training.statistics import Difference, compare_examples

LEAST_EXAMPLES = 20  # Of a dev set whose interval says anything.
RESAMPLES = 200  # Of a metric that is no mean over examples. The last comparison of a run has more.


@dataclass(frozen=True)
class Comparison:
    """A teacher beside the best constant prediction.

    Args:
        answer: the constant prediction in words.
        metrics: its metrics on every split, with the names of the teacher's.
        difference: the teacher's metric on dev minus the constant's, without an interval on a dev of few examples.
        weakness: what is wrong with the teacher, in words; None if it is better than the constant.
    """

    answer: str
    metrics: dict[str, float]
    difference: Difference
    weakness: str | None

    def record(self) -> dict[str, Any]:
        """Returns the `constant` and the `against_constant` of run.json."""
        constant = {"answer": self.answer, "metrics": self.metrics}
        return {"constant": constant, "against_constant": self.difference}


def compare_with_constant(scoring: Scoring, scores: Mapping[str, Scores]) -> Comparison | None:
    """Compares a teacher with the constant prediction that is best on dev; None for a task without one.

    A teacher is weak if the interval of the difference on dev contains 0 or lies on the wrong side of it. With fewer
    than `LEAST_EXAMPLES` examples in dev the interval of almost every teacher would, so that the values alone decide:
    the teacher must be better. Where the constant is always right nothing can be better, and no teacher is weak.

    Args:
        scores: of the teacher, on every split that is scored.
    """
    dev = scoring.held_out(scores["dev"])
    constant = _choose(scoring, dev)
    if constant is None:
        return None
    other, sign = constant.predict(dev), 1 if scoring.selects == "max" else -1
    value, of_constant = map(scoring.selecting_metric, (dev, other))
    examples = len(np.unique(scoring.condense(dev).example_id))  # Of a retrieval set the queries.
    difference: Difference | None = {
        "difference": value - of_constant, "interval": None, "p": None, "over": "examples", "number": examples,
    }  # fmt: skip
    if examples >= LEAST_EXAMPLES:
        difference = compare_examples(scoring, dev, other, most=RESAMPLES)
    assert difference is not None
    ends = [sign * end for end in difference["interval"] or [difference["difference"]] * 2]
    weakness = None
    if min(ends) <= 0 and not (sign > 0 and of_constant == 1):
        weakness = _describe(scoring.metric, value, of_constant, constant.answer, difference, is_worse=max(ends) < 0)
    metrics = split_metrics(scoring, {split: constant.predict(of_split) for split, of_split in scores.items()})
    return Comparison(constant.answer, metrics, difference, weakness)


def measure_constant(scoring: Scoring, task: Learnable, loader: Iterable[list[Batch]]) -> dict[str, float] | None:
    """Returns the metrics of the best constant prediction for a split, which follow from its labels without a model.

    None for a task without a constant prediction.

    Args:
        loader: yields lists of batches.
    """
    items = [task.select(batch) for batches in loader for batch in batches]
    labels, example_id = (
        np.concatenate([tensor.numpy() for tensor in tensors])
        for tensors in zip(*((of.labels, of.example_id()) for of in items), strict=True)
    )
    scores = Scores({}, labels, example_id)
    constant = _choose(scoring, scores)
    return None if constant is None else scoring.metrics(constant.predict(scores))


def _choose(scoring: Scoring, dev: Scores) -> Constant | None:
    """Returns the constant prediction with the best metric on dev, the first of equal ones."""
    best = max if scoring.selects == "max" else min
    return best(
        scoring.constants(dev),
        key=lambda constant: scoring.selecting_metric(constant.predict(dev)),
        default=None,
    )


def _describe(
    metric: str, value: float, of_constant: float, answer: str, difference: Difference, *, is_worse: bool
) -> str:
    values = f'{metric} {value:.3f} against {of_constant:.3f} of "{answer}"'
    if difference["interval"] is None:
        relation = "worse than" if is_worse else "no better than"
        return f"is {relation} a constant prediction on the {difference['number']} examples of dev: {values}"
    low, high = difference["interval"]
    relation = "worse than" if is_worse else "not known to be better than"
    interval = f"a difference of {difference['difference']:+.3f} (95% interval {low:+.3f} to {high:+.3f})"
    return f"is {relation} a constant prediction on dev: {values}, {interval}"
