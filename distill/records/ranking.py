"""Ranking of the rows of a table: the first one by dev, and which others are equal to it or not told apart from it."""

from collections.abc import Sequence

from distill.records.comparison import Row
from distill.records.intervals import compare_values, is_noise, name_seeds
from distill.records.measures import format_margin, format_points, format_spread
from distill.records.shape import TEST
from distill.records.verdict import EQUAL, UNDECIDED, UNKNOWN, judge, scale_margin
from distill.training.statistics import Difference, Spread, spread

MOST_NAMES = 5  # Rows that a sentence names.


def compare_with_first(rows: Sequence[Row]) -> list[Difference | None]:
    """Returns the difference of each row from the first one; None for that one and for a row without a result."""
    first = rows[0] if rows else None
    return [
        None if first is None or row is first else compare_values(row.scores, first.scores, first.examples)
        for row in rows
    ]


def describe_ranking(rows: Sequence[Row]) -> str | None:
    """Returns whether one row is ahead of the others, in words; None for fewer than two rows with a result."""
    scored = [row for row in rows if row.values]
    if len(scored) < 2:
        return None
    first, *others = scored
    pairs = list(zip(others, compare_with_first(scored)[1:], strict=True))
    outcomes = [judge_row(difference, first) for _, difference in pairs]
    equal, close = (
        [row.label for (row, _), outcome in zip(pairs, outcomes, strict=True) if outcome in of]
        for of in ((EQUAL,), (UNDECIDED, UNKNOWN))
    )
    ahead = [row.label for row, difference in pairs if difference and _is_ahead(difference, first)]
    name = f"{first.label} ({_describe_value(first)})"
    if ahead:
        return f"No best row: {name} is the first by dev, and ahead of it on test, beyond noise, {_name(ahead)}."
    if close or equal:
        relations = {"not told apart from": close, f"within {format_margin(first.margin, first.task)} of": equal}
        words = [f"{_count(of, len(others))} {relation} the first" for relation, of in relations.items() if of]
        rest = [f"{words[0]}, {name}: {_name(close or equal)}", *(f"{of}: {_name(equal)}" for of in words[1:])]
        return f"No best row: {'; '.join(rest)}.{_explain(first)}"
    nearest, difference = max(pairs, key=lambda pair: _gain(pair[1], first))
    assert difference is not None
    ends = " to ".join(format_points(end, first.task) for end in difference["interval"] or ())
    behind = f"the nearest one, {nearest.label}, has {format_points(difference['difference'], first.task)} ({ends})"
    return f"The first row is ahead of the others beyond noise: {name}; {behind}."


def judge_row(difference: Difference | None, first: Row) -> str:
    """Returns whether a row is better than the first one, equal to it within the margin, worse, or undecided."""
    if difference is None or difference["interval"] is None:
        return UNKNOWN
    other = spread(list(first.scores.values()))["mean"]
    return judge(dict(difference), first.task, scale_margin(first.margin, other, first.task))


def _count(labels: Sequence[str], number: int) -> str:
    """Returns how many of the other rows these are, as a sentence begins."""
    if number == 1:
        return "the other row is"
    return f"{len(labels)} of {number} other rows {'is' if len(labels) == 1 else 'are'}"


def _is_ahead(difference: Difference, first: Row) -> bool:
    return not is_noise(difference) and _gain(difference, first) > 0


def _gain(difference: Difference | None, first: Row) -> float:
    """Returns by how much a row is better than the first one."""
    value = difference["difference"] if difference else 0.0
    return -value if first.task.get("selects") == "min" else value


def _describe_value(row: Row) -> str:
    """Returns the metric of a row with its interval, its split and its seeds."""
    found = row.estimate(row.scores)
    shown: Spread = spread(list(row.scores.values()))
    words = [f"{row.task['metric']} {format_spread(shown)} on {row.split}"]
    if found and found.interval:
        words.append(f"95% interval {found.interval[0]:.4f} to {found.interval[1]:.4f}")
    return ", ".join([*words, name_seeds(sorted(row.scores))])


def _explain(first: Row) -> str:
    """Returns what to do about one seed, and the reason why dev orders rows that test compares."""
    advice = " One seed decides little: set seeds=3." if len(first.scores) < 2 else ""
    order = " Dev orders the rows, because a row that was chosen by test would be too good on it."
    return advice + (order if first.split == TEST else "")


def _name(labels: Sequence[str]) -> str:
    rest = len(labels) - MOST_NAMES
    names = ", ".join(labels[:MOST_NAMES])
    return f"{names} and {rest} more" if rest > 0 else names
