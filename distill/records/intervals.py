"""95% intervals of a metric and of a difference of two models, from what run.json has: over seeds, else over examples.

Over seeds they are Student's, and those of a difference are paired by seed. With one seed only a share of examples has
one, by the score method of Wilson, in which two models are independent of each other. On the same examples they are
not, so that such an interval of a difference is wide rather than narrow.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from distill.training.statistics import LEVEL, Difference, compare_seeds

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
        over: `seeds` or `examples`, which the interval is about.
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

    Args:
        examples: that one seed is scored on; None if the metric is no share of them.
    """
    if not values:
        return None
    if len(values) > 1:
        found = compare_seeds(values, [0.0] * len(values))
        low_high = found["interval"]
        return Estimate(found["difference"], None if low_high is None else (low_high[0], low_high[1]), "seeds")
    [value] = values
    is_share = examples and 0 <= value <= 1
    return Estimate(value, wilson_interval(value, examples or 0) if is_share else None, "examples")


def wilson_interval(share: float, number: int) -> tuple[float, float]:
    """Returns the interval of a share of so many examples (Wilson, 1927)."""
    z = _quantile()
    center = (share + z * z / (2 * number)) / (1 + z * z / number)
    half = z / (1 + z * z / number) * math.sqrt(share * (1 - share) / number + z * z / (4 * number * number))
    return center - half, center + half


def compare_values(values: Values, others: Values, examples: int | None) -> Difference | None:
    """Compares two models over the seeds that both have, else over examples; None without a value of each.

    With several seeds each, and fewer than two that both have, they are compared by Welch's t-test. The interval is
    None where it cannot be computed, also if all seeds have the same difference.

    Args:
        examples: as in `estimate`.
    """
    if not values or not others:
        return None
    shared = sorted(values.keys() & others.keys())
    if len(shared) > 1:
        return compare_seeds([values[seed] for seed in shared], [others[seed] for seed in shared])
    if len(values) > 1 and len(others) > 1:
        return _compare_unpaired(list(values.values()), list(others.values()))
    seeds = (shared[0], shared[0]) if shared else (min(values), min(others))
    value, other = values[seeds[0]], others[seeds[1]]
    difference: Difference = {
        "difference": value - other, "interval": None, "p": None, "over": "seeds", "number": 1,
    }  # fmt: skip
    if examples and 0 <= value <= 1 and 0 <= other <= 1:
        (low, high), (other_low, other_high) = (wilson_interval(share, examples) for share in (value, other))
        # Newcombe (1998), method 10.
        below, above = math.hypot(value - low, other_high - other), math.hypot(high - value, other - other_low)
        ends = [value - other - below, value - other + above]
        difference |= {"interval": ends, "over": "examples", "number": examples}
    return difference


def count_examples(task: Mapping[str, object], split: str) -> int | None:
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


def describe_bars(estimates: Iterable[Estimate | None], seeds: str, examples: int | None) -> str:
    """Returns the words of a caption about the bars of a figure, which begin with `; `; empty without bars.

    Args:
        seeds: in words.
    """
    over = {each.over for each in estimates if each is not None and each.interval is not None}
    words = []
    if "seeds" in over:
        words.append(f"Student's t over {seeds}")
    if "examples" in over and examples:
        words.append(f"Wilson's score over {examples:,} examples for a single model")
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

    test = stats.ttest_ind(values, others, equal_var=False)
    difference: Difference = {
        "difference": sum(values) / len(values) - sum(others) / len(others), "interval": None, "p": None,
        "over": "seeds", "number": min(len(values), len(others)),
    }  # fmt: skip
    if math.isfinite(test.statistic):
        ends = test.confidence_interval(LEVEL)
        difference |= {"interval": [float(ends.low), float(ends.high)], "p": float(test.pvalue)}
    return difference


def _quantile() -> float:
    from scipy import stats

    return float(stats.norm.ppf((1 + LEVEL) / 2))
