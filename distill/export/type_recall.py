"""Recall of each type of answer: an exported file may lose a rare one that the task's metric hardly shows."""

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import TypedDict

from distill.contracts import Scores
from distill.tasks.scoring import Scoring
from distill.training.statistics import LEVEL

FEWEST = 10  # Right answers of a type on dev whose recall is judged.
NO_EVIDENCE = 1  # An answer more or less of a rare type may be luck.


class TypeRecall(TypedDict):
    """The decrease of one type's recall.

    Attributes:
        number: of the right answers of this type on dev.
        lost: of those that torch finds and the file does not.
        gained: of those that the file finds and torch does not.
        drop: decrease of the recall.
        interval: its ends at 95% for all judged types together, after Bonferroni.
    """

    number: int
    lost: int
    gained: int
    drop: float
    interval: list[float]


def compare_types(scoring: Scoring, scores: Scores, reference: Scores) -> dict[str, TypeRecall]:
    """Returns the types with at least `FEWEST` right answers whose recall decreased, the worst one first."""
    found, expected = scoring.hits(scores.by_example()), scoring.hits(reference.by_example())
    judged = [name for name, hits in expected.items() if len(hits) >= FEWEST]
    types: dict[str, TypeRecall] = {}
    for name in judged:
        lost, gained = int((expected[name] & ~found[name]).sum()), int((found[name] & ~expected[name]).sum())
        if lost > gained:
            number = len(expected[name])
            interval = _paired_interval(lost, gained, number, tail=(1 - LEVEL) / 2 / len(judged))
            types[name] = {
                "number": number, "lost": lost, "gained": gained, "drop": (lost - gained) / number, "interval": interval
            }  # fmt: skip
    return dict(sorted(types.items(), key=lambda entry: -entry[1]["drop"]))


def _paired_interval(lost: int, gained: int, number: int, *, tail: float) -> list[float]:
    """Returns the interval of a difference of paired shares (Agresti and Min, 2005), which has a width without events.

    >>> [round(end, 3) for end in _paired_interval(0, 0, 100, tail=0.025)]
    [-0.019, 0.019]
    """
    lost_more, gained_more, more = lost + 0.5, gained + 0.5, number + 2
    difference = lost - gained
    error = math.sqrt(lost_more + gained_more - difference**2 / more)
    reach = -NormalDist().inv_cdf(tail) * error
    return [max(-1.0, (difference - reach) / more), min(1.0, (difference + reach) / more)]


def find_lost_types(types: Mapping[str, TypeRecall], limit: float) -> list[str]:
    """Returns the types whose recall certainly falls by more than `limit`."""
    return [name for name, recall in types.items() if recall["interval"][0] > limit]


def find_doubtful_types(types: Mapping[str, TypeRecall], limit: float) -> list[str]:
    """Returns the types whose recall fell by more than `limit` on dev, by more than luck with a single answer."""
    return [
        name for name, recall in types.items()
        if recall["drop"] > limit and recall["lost"] - recall["gained"] > NO_EVIDENCE
    ]  # fmt: skip


def describe_types(names: list[str], types: Mapping[str, TypeRecall]) -> str:
    """Returns the decreases of these types' recall in words, on one line."""
    words = [
        f"{' '.join(name.split())} by {recall['drop']:.2f} ({recall['lost']} of {recall['number']} lost, "
        f"{recall['gained']} gained)"
        for name, recall in ((name, types[name]) for name in names)
    ]
    return f"the recall falls of {', '.join(words)}"
