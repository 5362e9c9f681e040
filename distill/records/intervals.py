"""95% intervals of a metric and of a difference of two models, from what run.json has.

With the parts of the metrics they are over seeds and examples together, paired by both, and with one seed over
examples. Runs of earlier versions have no parts. Their intervals over several seeds are Student's over seeds alone.
With one seed only a share of examples has one, by the score method of Wilson, in which two models are independent of
each other. On the same examples they are not, so that such an interval of a difference is wide rather than narrow.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distill.training.parts import Measured, Parts, estimate_error
from distill.training.statistics import BOTH, LEVEL, Difference, compare_seeds, describe_error

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
    z = _quantile()
    center = (share + z * z / (2 * number)) / (1 + z * z / number)
    half = z / (1 + z * z / number) * math.sqrt(share * (1 - share) / number + z * z / (4 * number * number))
    return center - half, center + half


def compare_values(values: Values, others: Values, examples: int | None) -> Difference | None:
    """Compares two models over the seeds that both have and over examples; None without a value of each.

    Models without parts are compared over the seeds that both have, else over examples. With several seeds each, and
    fewer than two that both have, Welch's t-test takes the place of the paired one. The interval is None where it
    cannot be computed, also if all seeds have the same difference and no parts.

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
    difference = compare_seeds([value], [other])
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

    found = estimate_error(values, others)
    if found is not None:
        mean = sum(values) / len(values) - sum(others) / len(others)
        return {**describe_error(mean, found, values), "number": min(len(values), len(others))}
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
