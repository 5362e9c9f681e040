"""What was lost: the groups of items on which a student is worse than its teacher, by more than on the others."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 4000
CONFIDENCE = 0.95  # Of all intervals together (Bonferroni).
LEAST = 20  # Items of a group.
NEGATIONS = re.compile(
    r"\b(?:not|no|never|none|nothing|nobody|neither|nor|without|hardly|barely|cannot)\b|n['\u2019 ]?t\b", re.IGNORECASE
)


@dataclass(frozen=True)
class LostGroup:
    """A group of items, such as texts with a negation.

    Attributes:
        kind: what the items are grouped by, such as `length`.
        name: of the group.
        number: of its items.
        teacher: the mean score of the teacher's answers, the share of right ones.
        student: that of the student's.
        excess: how much more of the score is lost in the group than outside, `[-1, 1]`.
        interval: of `excess`. All groups together have a confidence of 95%.
    """

    kind: str
    name: str
    number: int
    teacher: float
    student: float
    excess: float
    interval: tuple[float, float]

    @property
    def lost(self) -> float:
        """The share of right answers that the student loses."""
        return self.teacher - self.student

    @property
    def loses_more(self) -> bool:
        """Whether the group loses, and more than the others, as its interval says."""
        return self.lost > 0 and self.interval[0] > 0


def find_lost_groups(
    teacher: np.ndarray,
    student: np.ndarray,
    members: Mapping[tuple[str, str], np.ndarray],
    *,
    comparisons: int | None = None,
    seed: int = 0,
) -> list[LostGroup]:
    """Returns the groups with at least 20 items inside and outside, those with the largest excess first.

    The intervals are percentiles of a paired bootstrap over items. Each has the confidence `1 - 0.05 / comparisons`, so
    that with a probability of 95% all of them hold.

    Args:
        teacher: the score of each item, 1 for a right answer, `[n]`.
        student: that of the same items.
        members: `[n]` (bool) for each kind and name of a group.
        comparisons: number of groups whose intervals are to hold together; None for these alone.
    """
    lost = teacher - student
    kept = {key: of for key, of in members.items() if LEAST <= of.sum() <= len(lost) - LEAST}
    tail = (1 - CONFIDENCE) / 2 / max(1, len(kept) if comparisons is None else comparisons)
    random = np.random.default_rng(seed)
    found = []
    for (kind, name), of in kept.items():
        inside, outside = lost[of], lost[~of]
        drawn = _resample(inside, random) - _resample(outside, random)
        low, high = np.quantile(drawn, [tail, 1 - tail])
        found.append(
            LostGroup(
                kind, name, int(of.sum()), float(teacher[of].mean()), float(student[of].mean()),
                float(inside.mean() - outside.mean()), (float(low), float(high)),
            )
        )  # fmt: skip
    return sorted(found, key=lambda group: -group.excess)


def _resample(values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Returns the means of resamples, `[RESAMPLES]`, by how often each value is drawn."""
    distinct, counts = np.unique(values, return_counts=True)
    drawn = random.multinomial(len(values), counts / len(values), size=RESAMPLES)
    return np.asarray(drawn @ distinct / len(values))


def text_groups(texts: Sequence[str], trained: Sequence[str]) -> dict[tuple[str, str], np.ndarray]:
    """Returns the members `[N]` of the groups of texts by length, negation and rare words.

    Lengths are in thirds, by words. A rare word is one that the texts of train lack.
    """
    words = [_words(text) for text in texts]
    lengths = np.array([len(of) for of in words])
    first, second = np.quantile(lengths, [1 / 3, 2 / 3])
    known = {word for text in trained for word in _words(text)}
    is_new = np.array([not known.issuperset(of) for of in words])
    negated = np.array([NEGATIONS.search(text) is not None for text in texts])
    return {
        ("length", f"at most {first:.0f} words"): lengths <= first,
        ("length", f"{first:.0f} to {second:.0f} words"): (lengths > first) & (lengths <= second),
        ("length", f"more than {second:.0f} words"): lengths > second,
        ("negation", "with a negation"): negated,
        ("negation", "without a negation"): ~negated,
        ("words", "with a word that train lacks"): is_new,
        ("words", "all words in train"): ~is_new,
    }


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
