"""Parts of a metric by groups of examples, from which several seeds are compared with their examples in the interval.

The part of a group is its pseudo-value of the jackknife: G times the metric minus G - 1 times the metric without the
group. The mean of the parts is the metric, as far as it is smooth, so that any metric is compared like a mean.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from distill.contracts import Scores
from distill.tasks.own_metrics import MetricError
from distill.tasks.scoring import Scoring

GROUPS = 100  # Of examples; fewer where there are fewer examples.
FEWEST = 10  # Differences that say how large a difference is.


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of a metric on a split, `[G]`, and the number of its examples."""

    values: np.ndarray
    examples: int

    @classmethod
    def read(cls, record: Mapping[str, Any] | None) -> "Parts | None":
        """Returns the parts of run.json; None without them."""
        if not record:
            return None
        return cls(np.array(str(record["values"]).split(), dtype=np.float64), int(record["examples"]))

    def record(self) -> dict[str, Any]:
        """Returns the content for run.json."""
        return {"examples": self.examples, "values": " ".join(f"{value:.6g}" for value in self.values)}


class Measured(float):
    """A metric of a model on a split, with its parts where they are known."""

    parts: Parts | None

    def __new__(cls, value: float, parts: Parts | None = None) -> Self:
        """Returns the metric."""
        found = super().__new__(cls, value)
        found.parts = parts
        return found


@dataclass(frozen=True)
class Uncertainty:
    """The standard error of a mean over seeds and examples, with the degrees of freedom of its Student's t.

    An interval is never narrower than that over the seeds alone, because the variance of two or three seeds may come
    out too small.

    Attributes:
        error, degrees: over seeds and examples.
        seed_error, seed_degrees: over seeds alone; 0 for one seed.
    """

    error: float
    degrees: float
    seed_error: float
    seed_degrees: float

    def half_width(self, level: float) -> float:
        """Returns half of the width of the interval at a level."""
        from scipy import stats

        found = stats.t.ppf((1 + level) / 2, self.degrees) * self.error
        over_seeds = stats.t.ppf((1 + level) / 2, self.seed_degrees) * self.seed_error if self.seed_degrees else 0.0
        return float(max(found, over_seeds))

    def p_value(self, difference: float) -> float:
        """Returns the two-sided p of a difference from 0."""
        from scipy import stats

        found = 2 * stats.t.sf(abs(difference) / self.error, self.degrees)
        if not self.seed_error:
            return float(found)
        return float(max(found, 2 * stats.t.sf(abs(difference) / self.seed_error, self.seed_degrees)))


def measure_parts(scoring: Scoring, scores: Scores) -> Parts | None:
    """Returns the parts of the metric of a split; None where it has no value without a group.

    Examples are put into groups in turns, so that the groups are the same for every model.
    """
    if scores.by_task:
        return None
    scores = scores.by_example()
    values = scoring.example_metric(scores)
    if values is not None:
        index = np.arange(len(values))
    else:
        scores = scoring.condense(scores)
        _, index = np.unique(scores.example_id, return_inverse=True)
    examples = int(index.max()) + 1 if len(index) else 0
    groups = min(GROUPS, examples)
    if groups < 2:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # A class may be in one group alone.
            whole = scoring.selecting_metric(scores)
            rest = [
                float(values[index % groups != group].mean()) if values is not None
                else scoring.selecting_metric(scores.select(index % groups != group))
                for group in range(groups)
            ]  # fmt: skip
    except MetricError:  # A function of a user may need both classes.
        return None
    parts = groups * whole - (groups - 1) * np.array(rest, dtype=np.float64)
    return Parts(parts, examples) if np.isfinite(parts).all() else None


def average(values: Sequence[float]) -> Measured:
    """Returns the mean of the metrics of several tasks, with parts if all of them have some.

    The examples of the tasks are independent, and the tasks are no sample of others, so that their own differences are
    left out of the parts.
    """
    mean = sum(values) / len(values)
    known = [value.parts for value in values if isinstance(value, Measured) and value.parts is not None]
    if len(known) < len(values):
        return Measured(mean)
    groups = sum(len(of.values) for of in known)
    scales = [groups / len(known) / len(of.values) for of in known]
    parts = [mean + scale * (of.values - of.values.mean()) for of, scale in zip(known, scales, strict=True)]
    return Measured(mean, Parts(np.concatenate(parts), len(known) * min(of.examples for of in known)))


def estimate_error(values: Sequence[float], others: Sequence[float] | None) -> Uncertainty | None:
    """Returns the uncertainty of the mean of several seeds' metrics, or of its difference from another model's.

    Seeds and examples are crossed: every seed is scored on the same examples. The variance is that over seeds and that
    over examples, from which that of single seeds on single examples is subtracted where it is counted twice. This is
    the analysis of readers and cases of Dorfman, Berbaum and Metz (1992) with the degrees of freedom of Hillis (2007).

    To a difference of two models a pair of examples is added, one that each model alone gets right. A difference of
    many examples that are all smaller adds the largest of them.

    Args:
        others: of the other model, by the same seeds; those of as many seeds as there are, or None for a single model.

    Returns:
        None where a metric has no parts, or they are of other examples.
    """
    first, second = _stack(values), None if others is None else _stack(others)
    if first is None or (others is not None and (second is None or second.shape[1] != first.shape[1])):
        return None
    examples = count_examples(values)
    if others is None or second is None:
        return _combine([(first, values)], examples, is_difference=False)
    if len(first) != len(second):
        return _combine([(first, values), (second, others)], examples, is_difference=True)
    differences = [value - other for value, other in zip(values, others, strict=True)]
    return _combine([(first - second, differences)], examples, is_difference=True)


def _combine(models: Sequence[tuple[np.ndarray, Sequence[float]]], examples: int, is_difference: bool) -> Uncertainty:
    """Returns the uncertainty of the mean of the first table `[k, G]`, minus that of the second one if there is one."""
    groups = models[0][0].shape[1]
    parts = models[0][0].mean(axis=0) - (models[1][0].mean(axis=0) if len(models) > 1 else 0.0)
    seeds = [float(np.var(metrics, ddof=1)) / len(metrics) for _, metrics in models if len(metrics) > 1]
    degrees = [len(metrics) - 1 for _, metrics in models if len(metrics) > 1]
    if is_difference:
        parts = np.append(parts, np.array([1.0, -1.0]) * _pair_size(parts, groups / examples))
    over_examples = float(np.var(parts, ddof=1)) / groups - sum(_interaction(table) for table, _ in models)
    over_examples = max(0.0, over_examples)
    # Welch's and Satterthwaite's degrees of freedom.
    spread = sum(of**2 / number for of, number in zip(seeds, degrees, strict=True))
    seed_degrees = sum(seeds) ** 2 / spread if spread > 0 else 0.0
    variance, spread = sum(seeds) + over_examples, spread + over_examples**2 / (groups - 1)
    return Uncertainty(
        math.sqrt(variance), variance**2 / spread if spread > 0 else groups - 1.0, math.sqrt(sum(seeds)), seed_degrees
    )


def _pair_size(parts: np.ndarray, one: float) -> float:
    """Returns the part of an added example: `one`, or the largest one where many differ and all of them less."""
    return min(one, float(np.abs(parts).max())) if np.count_nonzero(np.abs(parts) > 1e-12) >= FEWEST else one


def _interaction(table: np.ndarray) -> float:
    """Returns the variance of the mean of a table `[k, G]` that is neither of its rows nor of its columns."""
    seeds, groups = table.shape
    if seeds < 2:
        return 0.0
    rest = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
    return float((rest**2).sum() / ((seeds - 1) * (groups - 1)) / (seeds * groups))


def _stack(values: Sequence[float]) -> np.ndarray | None:
    parts = [value.parts if isinstance(value, Measured) else None for value in values]
    known = [of for of in parts if of is not None]
    if not known or len(known) < len(parts) or len({(of.examples, len(of.values)) for of in known}) > 1:
        return None
    return np.stack([of.values for of in known])


def count_examples(values: Sequence[float]) -> int:
    """Returns the examples of the parts of a model's values."""
    [*_, last] = values
    assert isinstance(last, Measured)
    assert last.parts is not None  # `_stack` has seen it.
    return last.parts.examples
