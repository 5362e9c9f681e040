"""Statistics of a comparison: mean and deviation over seeds, a paired t-test, and a paired bootstrap over examples."""

import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NotRequired, TypedDict

import numpy as np

from distill.contracts import Scores
from distill.tasks.own_metrics import MetricError
from distill.tasks.scoring import Scoring
from distill.training.parts import FEWEST, Uncertainty, count_examples, estimate_error

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


def compare_seeds(values: Sequence[float], others: Sequence[float]) -> Difference:
    """Compares two models over seeds, whose values of a pair come from the same seed.

    Values that have their parts are compared over seeds and examples together, and for one seed over examples. Others
    are compared by the paired t-test with Student's interval of the mean difference. Without a spread of the
    differences, and for one seed, that has neither an interval nor a p.
    """
    from scipy import stats

    differences = np.asarray(values, dtype=np.float64) - np.asarray(others, dtype=np.float64)
    found = estimate_error(values, others)
    if found is not None:
        return describe_error(float(differences.mean()), found, values)
    result: Difference = {
        "difference": float(differences.mean()), "interval": None, "p": None, "over": "seeds",
        "number": len(differences),
    }  # fmt: skip
    if len(differences) > 1 and np.ptp(differences) > 1e-12:
        test = stats.ttest_1samp(differences, 0.0)  # The paired t-test is that of the differences.
        ends = test.confidence_interval(LEVEL)
        result["interval"], result["p"] = [float(ends.low), float(ends.high)], float(test.pvalue)
    return result


def describe_error(difference: float, uncertainty: Uncertainty, values: Sequence[float]) -> Difference:
    """Returns a difference over the seeds and examples of these values, or over the examples of one seed."""
    half = uncertainty.half_width(LEVEL)
    is_one = len(values) == 1
    return {
        "difference": difference, "interval": [difference - half, difference + half],
        "p": uncertainty.p_value(difference), "over": "examples" if is_one else BOTH,
        "number": count_examples(values) if is_one else len(values),
    }  # fmt: skip


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
            return {"difference": float(difference), "interval": None, "p": None, "over": "examples", "number": number}
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
    low, high = np.quantile(drawn, [tail, 1 - tail])
    smaller = min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))
    return {
        "difference": float(difference), "interval": [float(low), float(high)],
        "p": min(1.0, 2 * (smaller + 1) / (len(drawn) + 1)), "over": "examples", "number": number,
    }  # fmt: skip


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
                scoring.selecting_metric(_take(of, place, example_id)) for of, place in zip(pair, places, strict=True)
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


def _take(scores: Scores, index: np.ndarray, example_id: np.ndarray) -> Scores:
    columns = {name: column[index] for name, column in scores.columns.items()}
    return replace(scores, columns=columns, labels=scores.labels[index], example_id=example_id)
