"""Statistics of metrics: parts by groups of examples, spreads over seeds, intervals, tests and comparisons.

Parts of a metric by groups of examples, from which several seeds are compared with their examples in the interval. The
part of a group is its pseudo-value of the jackknife: G times the metric minus G - 1 times the metric without the group.
The mean of the parts is the metric, as far as it is smooth, so that any metric is compared like a mean.

95% intervals of a metric and of a difference of two models, from what run.json has. With the parts of the metrics they
are over seeds and examples together, paired by both, and with one seed over examples. Runs of earlier versions have no
parts. Their intervals over several seeds are Student's over seeds alone. With one seed only a share of examples has
one, by the score method of Wilson, in which two models are independent of each other. On the same examples they are
not, so that such an interval of a difference is wide rather than narrow.
"""

import math
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NotRequired, Self, TypedDict

import numpy as np

from distill.core.contracts import Scores
from distill.kinds.scoring import MetricError, Scoring

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
        # An added example, or the largest part where many differ and all of them less.
        is_many, one = np.count_nonzero(np.abs(parts) > 1e-12) >= FEWEST, groups / examples
        size = min(one, float(np.abs(parts).max())) if is_many else one
        parts = np.append(parts, [size, -size])
    over_examples = float(np.var(parts, ddof=1)) / groups - sum(_interaction(table) for table, _ in models)
    over_examples = max(0.0, over_examples)
    # Welch's and Satterthwaite's degrees of freedom.
    spread = sum(of**2 / number for of, number in zip(seeds, degrees, strict=True))
    seed_degrees = sum(seeds) ** 2 / spread if spread > 0 else 0.0
    variance, spread = sum(seeds) + over_examples, spread + over_examples**2 / (groups - 1)
    return Uncertainty(
        math.sqrt(variance), variance**2 / spread if spread > 0 else groups - 1.0, math.sqrt(sum(seeds)), seed_degrees
    )


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


BOTH = "seeds and examples"
LEVEL = 0.95  # Of the intervals.
RESAMPLES = 10_000  # For a metric that is a mean over examples.
# For other metrics, which a resample computes anew: at most this number, at least a quarter of it, and in between so
# many that they have about `RESAMPLED_ITEMS` items together.
METRIC_RESAMPLES = 1_000
RESAMPLED_ITEMS = 2_000_000
_BATCH = 2_000_000  # Numbers that the bootstrap of a mean holds at a time.


class Spread(TypedDict):
    """Mean and standard deviation of a metric over seeds (of a sample, with n - 1); None for a single seed."""

    mean: float
    std: float | None


class Difference(TypedDict):
    """The difference of two models in a metric, the first minus the second.

    Attributes:
        difference: of the means over seeds, or of the metrics on the split.
        interval: its two ends, at 95%; None where it cannot be computed.
        p: of the hypothesis that there is no difference, two-sided; None where it cannot be computed.
        over: `seeds`, `examples` or `seeds and examples`, which the uncertainty is about.
        number: of these, of the last one that of seeds.
        split: that the metrics are of, `dev` or `test`; that of a teacher from a constant is of dev and names none.
    """

    difference: float
    interval: list[float] | None
    p: float | None
    over: str
    number: int
    split: NotRequired[str]


def _difference(
    difference: float, interval: Sequence[float] | None, p: float | None, over: str, number: int
) -> Difference:
    ends = None if interval is None else [float(interval[0]), float(interval[1])]
    return {"difference": float(difference), "interval": ends, "p": p, "over": over, "number": number}


def is_worse(difference: Difference, *, selects: str) -> bool:
    """Returns whether the first model is worse, by the whole interval or, without one, by the difference.

    Args:
        selects: `max` or `min`, the better values of the metric.
    """
    ends = difference["interval"] or [difference["difference"]]
    return max(ends) < 0 if selects == "max" else min(ends) > 0


def spread(values: Sequence[float]) -> Spread:
    """Returns the mean and the standard deviation of the values of several seeds."""
    return {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1)) if len(values) > 1 else None}


def compare_seeds(values: Sequence[float], others: Sequence[float], level: float = LEVEL) -> Difference:
    """Compares two models over seeds, whose values of a pair come from the same seed.

    Values that have their parts are compared over seeds and examples together, and for one seed over examples. Others
    are compared by the paired t-test with Student's interval of the mean difference. Without a spread of the
    differences, and for one seed, that has neither an interval nor a p.
    """
    from scipy import stats

    differences = np.asarray(values, dtype=np.float64) - np.asarray(others, dtype=np.float64)
    found = estimate_error(values, others)
    if found is not None:
        return describe_error(float(differences.mean()), found, values, level)
    if len(differences) < 2 or np.ptp(differences) <= 1e-12:
        return _difference(differences.mean(), None, None, "seeds", len(differences))
    test = stats.ttest_1samp(differences, 0.0)  # The paired t-test is that of the differences.
    ends = test.confidence_interval(level)
    return _difference(differences.mean(), ends, float(test.pvalue), "seeds", len(differences))


def describe_error(
    difference: float, uncertainty: Uncertainty, values: Sequence[float], level: float = LEVEL
) -> Difference:
    """Returns a difference over the seeds and examples of these values, or over the examples of one seed."""
    half, p = uncertainty.half_width(level), uncertainty.p_value(difference)
    over, number = ("examples", count_examples(values)) if len(values) == 1 else (BOTH, len(values))
    return _difference(difference, [difference - half, difference + half], p, over, number)


def compare_examples(
    scoring: Scoring, scores: Scores, other: Scores, *, only_means: bool = False, most: int | None = None
) -> Difference | None:
    """Compares two models on the same examples by a paired bootstrap, with the percentiles of the differences.

    Whole examples are drawn, with all of their items. Two examples are added: one that the first model alone gets
    right, and one that the second alone does. Without them the interval of two models that predict alike would have no
    width, however few the examples. With them it ends at 3 / n, the rule of three (similar pairs are added by Agresti
    and Min, 2005). Where many examples differ and all of them by less, the pair has the largest of their differences.
    A correlation of models that differ in many examples has no such pair: one example of the worst kind would weigh as
    much as hundreds of others.

    p is twice the smaller share of resamples whose difference is on one side of 0 (with it), where the observed sample
    counts as one. The resamples are the same in every run.

    Resamples in which a function of a user has no value are left out.

    Args:
        only_means: returns None for a metric that is no mean over examples, because resampling it takes seconds.
        most: resamples of such a metric; None for `METRIC_RESAMPLES`.
    """
    scores, other = scores.by_example(), other.by_example()
    difference = scoring.selecting_metric(scores) - scoring.selecting_metric(other)
    values, other_values = scoring.example_metric(scores), scoring.example_metric(other)
    if values is not None and other_values is not None:
        number, drawn = len(values), _resample_mean(values - other_values)
    elif only_means:
        return None
    else:
        number = len(np.unique(scores.example_id))
        drawn = _resample_metric(scoring, scores, other, most or METRIC_RESAMPLES)
        drawn = drawn[~np.isnan(drawn)]
        if not len(drawn):
            return _difference(difference, None, None, "examples", number)
    return _describe_drawn(difference, drawn, number)


def compare_means(values: np.ndarray, others: np.ndarray) -> Difference:
    """Compares the means of two models' values `[N]` in 0..1 of the same examples, as `compare_examples` does."""
    drawn = _resample_mean(values - others)
    return _describe_drawn(float(values.mean() - others.mean()), drawn, len(values))


def compare_corpora(
    counts: np.ndarray, others: np.ndarray, worst: np.ndarray, *, combine: Callable[[np.ndarray], float]
) -> Difference:
    """Compares two models in a metric of a corpus on the same examples, as `compare_examples` does.

    Args:
        counts: of the first model, a row for each example, `[N, K]`; `others` are those of the second one.
        worst: those of a prediction that is all wrong. An added example has them for one of the models, and for the
            other one those of a random example.
        combine: returns the metric of the rows of any examples.
    """
    examples, random = len(counts), np.random.default_rng(0)

    def difference(drawn: np.ndarray) -> float:
        real = np.where(drawn < examples, drawn, random.integers(examples, size=len(drawn)))
        # The first model is wrong in the second added example, and the other model in the first one.
        first, second = counts[real], others[real]
        for rows, is_wrong in ((first, drawn == examples + 1), (second, drawn == examples)):
            rows[is_wrong] = worst[real[is_wrong]]
        return combine(first) - combine(second)

    drawn = _resample(np.arange(examples + 2), difference, METRIC_RESAMPLES, vectorized=False)
    return _describe_drawn(combine(counts) - combine(others), drawn, examples)


def _describe_drawn(difference: float, drawn: np.ndarray, number: int) -> Difference:
    """Returns a difference over `number` examples with the interval and p of those in resamples."""
    tail = (1 - LEVEL) / 2
    smaller = min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))
    p = min(1.0, 2 * (smaller + 1) / (len(drawn) + 1))
    return _difference(difference, np.quantile(drawn, [tail, 1 - tail]).tolist(), p, "examples", number)


def _resample_mean(differences: np.ndarray) -> np.ndarray:
    """Returns the mean of every resample of the differences of examples, from -1 to 1, and the pair, `[RESAMPLES]`."""
    one = float(np.abs(differences).max()) if np.count_nonzero(differences) >= FEWEST else 1.0
    return _resample(np.append(differences, [one, -one]), np.mean, RESAMPLES, vectorized=True)


def _resample_metric(scoring: Scoring, scores: Scores, other: Scores, most: int) -> np.ndarray:
    """Returns the difference of the task's metric in every resample of the examples and the two that are added.

    An added example is a random one each time it is drawn. One of the models has its own scores, and the other one the
    first one's, spoiled. A scoring that cannot spoil scores has none.
    """
    scores, other = scoring.condense(scores), scoring.condense(other)
    _, first, counts = np.unique(scores.example_id, return_index=True, return_counts=True)
    examples, items = len(first), len(scores.labels)
    spoiled, spoiled_other = scoring.spoil(scores), scoring.spoil(other)
    pair, added = (scores, other), 0
    is_alike = not scoring.is_correlation or _count_different(scores, other) < FEWEST
    if is_alike and spoiled is not None and spoiled_other is not None:
        shared = scores.columns.keys() & other.columns.keys()
        pair, added = (_append(scores, spoiled_other, shared), _append(other, spoiled, shared)), 2
    random = np.random.default_rng(0)

    def difference(drawn: np.ndarray) -> float:
        real = np.where(drawn < examples, drawn, random.integers(examples, size=len(drawn)))
        index, sizes = _items_of(first[real], counts[real]), counts[real]
        example_id = np.repeat(np.arange(len(drawn)), sizes)
        # The first model is spoiled in the second added example, and the other model in the first one.
        places = [index + np.repeat((drawn == examples + side) * items, sizes) for side in (1, 0)]
        try:
            values = [
                scoring.selecting_metric(replace(of.select(place), example_id=example_id))
                for of, place in zip(pair, places, strict=True)
            ]
        except MetricError:  # A function of a user may need both classes.
            return np.nan
        return values[0] - values[1]

    resamples = int(np.clip(RESAMPLED_ITEMS // counts.sum(), most // 4, most))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # A resample may lack a class.
        return _resample(np.arange(examples + added), difference, resamples, vectorized=False)


def _count_different(scores: Scores, other: Scores) -> int:
    """Returns the number of items in which two models differ, in any column that both have."""
    shared = scores.columns.keys() & other.columns.keys()
    differ = [(scores.columns[name] != other.columns[name]).reshape(len(scores.labels), -1) for name in shared]
    return int(np.concatenate(differ, axis=1).any(axis=1).sum())


def _append(scores: Scores, spoiled: Scores, columns: Collection[str]) -> Scores:
    """Returns the scores of the items, and after them those of the same items spoiled."""
    return Scores.join([replace(of, columns={name: of.columns[name] for name in columns}) for of in (scores, spoiled)])


def _resample(
    data: np.ndarray, statistic: Callable[..., float | np.ndarray], number: int, *, vectorized: bool
) -> np.ndarray:
    """Returns the statistic of resamples of the data, the same in every run."""
    from scipy.stats import bootstrap

    if len(data) == 1:  # scipy expects two.
        return np.repeat(statistic(data), number)
    result = bootstrap(
        (data,), statistic, n_resamples=number, batch=max(1, _BATCH // len(data)), vectorized=vectorized,
        method="percentile", random_state=0,
    )  # fmt: skip
    return np.array(result.bootstrap_distribution)


def _items_of(first: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Returns the items of examples that begin at `first` and have `counts` items each.

    >>> _items_of(np.array([4, 0, 4]), np.array([2, 1, 2])).tolist()
    [4, 5, 0, 4, 5]
    """
    starts = counts.cumsum() - counts
    index: np.ndarray = np.arange(counts.sum()) + np.repeat(first - starts, counts)
    return index


# Metrics that are the share of examples with a right prediction.
SHARES = ("accuracy", "agreement", "subset_accuracy", "exact_match")
# Tasks whose accuracy is of examples. In others an example has several items, which depend on each other.
_OF_EXAMPLES = ("classes", "choices", "labels", "label_words", "spans")
MOST_SEEDS = 8  # That a caption lists.
Values = Mapping[int, float]  # The metric of each seed.


@dataclass(frozen=True)
class Estimate:
    """A metric with its uncertainty.

    Attributes:
        value: the mean over seeds.
        interval: at 95%; None where it cannot be computed.
        over: `seeds`, `examples` or `seeds and examples`, which the interval is about.
    """

    value: float
    interval: tuple[float, float] | None
    over: str

    def errors(self) -> tuple[float, float]:
        """Returns the lengths of the bar below and above the value."""
        low, high = self.interval or (self.value, self.value)
        return max(0.0, self.value - low), max(0.0, high - self.value)


def estimate(values: Sequence[float], examples: int | None) -> Estimate | None:
    """Returns the mean over seeds with its interval; None without values.

    A share of examples with one seed has that of Wilson, which is not empty where every example is right.

    Args:
        examples: that one seed is scored on; None if the metric is no share of them.
    """
    if not values:
        return None
    is_share = examples and len(values) == 1 and 0 <= values[0] <= 1
    found = None if is_share else estimate_error(values, None)
    if found is not None:
        mean, half = sum(values) / len(values), found.half_width(LEVEL)
        interval = (mean - half, mean + half) if half else None
        return Estimate(mean, interval, BOTH if len(values) > 1 else "examples")
    if len(values) > 1:
        over_seeds = compare_seeds(values, [0.0] * len(values))
        low_high = over_seeds["interval"]
        return Estimate(over_seeds["difference"], None if low_high is None else (low_high[0], low_high[1]), "seeds")
    [value] = values
    return Estimate(value, wilson_interval(value, examples or 0) if is_share else None, "examples")


def wilson_interval(share: float, number: int) -> tuple[float, float]:
    """Returns the interval of a share of so many examples (Wilson, 1927)."""
    from scipy import stats

    z = float(stats.norm.ppf((1 + LEVEL) / 2))
    center = (share + z * z / (2 * number)) / (1 + z * z / number)
    half = z / (1 + z * z / number) * math.sqrt(share * (1 - share) / number + z * z / (4 * number * number))
    return center - half, center + half


def compare_values(values: Values, others: Values, examples: int | None, level: float = LEVEL) -> Difference | None:
    """Compares two models over the seeds that both have and over examples; None without a value of each.

    Models without parts are compared over the seeds that both have, else over examples. With several seeds each, and
    fewer than two that both have, Welch's t-test takes the place of the paired one. The interval is None where it
    cannot be computed, also if all seeds have the same difference and no parts.

    Args:
        examples: as in `estimate`.
        level: of the interval where both models have parts or the same seeds, else it is that of the others.
    """
    if not values or not others:
        return None
    shared = sorted(values.keys() & others.keys())
    if len(shared) > 1:
        return compare_seeds([values[seed] for seed in shared], [others[seed] for seed in shared], level)
    if len(values) > 1 and len(others) > 1:
        return _compare_unpaired(list(values.values()), list(others.values()))
    seeds = (shared[0], shared[0]) if shared else (min(values), min(others))
    value, other = values[seeds[0]], others[seeds[1]]
    difference = compare_seeds([value], [other], level)
    if difference["interval"] is None and examples and 0 <= value <= 1 and 0 <= other <= 1:
        (low, high), (other_low, other_high) = (wilson_interval(share, examples) for share in (value, other))
        # Newcombe (1998), method 10.
        below, above = math.hypot(value - low, other_high - other), math.hypot(high - value, other - other_low)
        ends = [value - other - below, value - other + above]
        difference |= {"interval": ends, "over": "examples", "number": examples}
    return difference


def read_measured(value: float, entry: Mapping[str, Any], model: str, split: str) -> Measured:
    """Returns the metric of a model on a split with its parts.

    Args:
        entry: the record of a run, or of one of its seeds.
        model: `student`, `baseline` or `teacher`.
    """
    return Measured(value, Parts.read(((entry.get("parts") or {}).get(model) or {}).get(split)))


def count_share_examples(task: Mapping[str, object], split: str) -> int | None:
    """Returns the examples of a split of which the task's metric is the share; None if it is no such share.

    Args:
        task: of run.json.
    """
    sizes = task.get("examples")
    is_share = task.get("metric") in SHARES and task.get("answer", "classes") in _OF_EXAMPLES
    return sizes.get(split) if is_share and isinstance(sizes, dict) else None


def is_noise(difference: Difference | None) -> bool:
    """Returns whether a difference is not known to be one: its interval has 0, or there is no interval."""
    interval = difference and difference["interval"]
    return interval is None or interval[0] <= 0 <= interval[1]


POWER = 0.8  # Of a comparison: the share of samples in which it shows a difference.


def smallest_shown(difference: Difference) -> float | None:
    """Returns the smallest true difference that a comparison shows in `POWER` of all samples of its size.

    It is half of the 95% interval times `1 + z(POWER) / z(0.975)`, about 1.43, by the normal distribution; None without
    an interval.
    """
    from scipy import stats

    if difference["interval"] is None:
        return None
    low, high = difference["interval"]
    return float((high - low) / 2 * (1 + stats.norm.ppf(POWER) / stats.norm.ppf((1 + LEVEL) / 2)))


def compare_all(values: Mapping[str, Values], others: Values, examples: int | None) -> dict[str, Difference]:
    """Compares several models with one, with intervals and p that hold together at 95% (Holm, 1979).

    The p are those of Holm's steps. The interval of the i-th smallest of m is at the level `1 - 0.05 / (m - i + 1)`
    (Serlin, 1993), and those behind the first that has 0 are at its level, so that each has 0 where its p is above
    0.05.

    Returns:
        the differences of the models that have one.
    """
    found = {name: of for name, own in values.items() if (of := compare_values(own, others, examples)) is not None}
    number, largest, has_shown = len(found), 0.0, True
    for name in sorted(found, key=lambda name: 1.0 if found[name]["p"] is None else found[name]["p"] or 0.0):
        again = compare_values(values[name], others, examples, 1 - (1 - LEVEL) / number)
        assert again is not None  # As before.
        if again["p"] is not None:
            largest = max(largest, min(1.0, number * again["p"]))
            again["p"] = largest
        has_shown = has_shown and not is_noise(again)
        number -= has_shown
        found[name] = again
    return found


def describe_bars(estimates: Iterable[Estimate | None], seeds: str, examples: int | None) -> str:
    """Returns the words of a caption about the bars of a figure, which begin with `; `; empty without bars.

    Args:
        seeds: in words.
    """
    over = {each.over for each in estimates if each is not None and each.interval is not None}
    words = []
    if BOTH in over:
        words.append(f"over {seeds} and the examples together")
    if "seeds" in over:
        words.append(f"Student's t over {seeds}")
    if "examples" in over:
        words.append(
            f"Wilson's score over {examples:,} examples for a single model" if examples
            else "over the examples for a single model"
        )  # fmt: skip
    return f"; bars are 95% intervals: {', and '.join(words)}" if words else ""


def name_seeds(seeds: Sequence[int]) -> str:
    """Returns the seeds in words: `3 seeds (0, 1, 2)`, and only their number if there are many."""
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    return f"{len(seeds)} seeds" + (f" ({', '.join(map(str, seeds))})" if 0 < len(seeds) <= MOST_SEEDS else "")


def name_seeds_of_rows(rows: Iterable[Collection[int]]) -> str:
    """Returns the seeds of several rows in words: those that all have, or only their number if rows have others."""
    known = {tuple(sorted(seeds)) for seeds in rows if seeds}
    if len(known) == 1:
        return name_seeds(known.pop())
    numbers = sorted({len(seeds) for seeds in known} or {0})
    number = f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
    return f"{number} seed{'s' if numbers[-1] != 1 else ''} of each row"


def _compare_unpaired(values: Sequence[float], others: Sequence[float]) -> Difference:
    from scipy import stats

    found, number = estimate_error(values, others), min(len(values), len(others))
    mean = sum(values) / len(values) - sum(others) / len(others)
    if found is not None:
        return {**describe_error(mean, found, values), "number": number}
    test = stats.ttest_ind(values, others, equal_var=False)
    if not math.isfinite(test.statistic):
        return _difference(mean, None, None, "seeds", number)
    return _difference(mean, test.confidence_interval(LEVEL), float(test.pvalue), "seeds", number)
