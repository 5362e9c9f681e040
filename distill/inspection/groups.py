"""What was lost: the groups of items on which a student is worse than its teacher, by more than on the others."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

RESAMPLES = 4000
CONFIDENCE = 0.95  # Of all intervals together (Bonferroni).
LEAST = 20  # Texts with items of a group, and with others.
_BATCH = 500  # Resamples that are drawn at a time.
NEGATIONS = re.compile(
    r"\b(?:not|no|never|none|nothing|nobody|neither|nor|without|hardly|barely|cannot)\b|n['\u2019 ]?t\b", re.IGNORECASE
)


@dataclass(frozen=True)
class LostGroup:
    """A group of items, such as those of texts with a negation.

    Attributes:
        kind: what the items are grouped by, such as `length`.
        name: of the group.
        number: of its items.
        texts: that have one of its items.
        teacher: the mean score of the teacher's answers, the share of right ones.
        student: that of the student's.
        excess: how much more of the score is lost in the group than outside, `[-1, 1]`.
        interval: of `excess`. All groups together have a confidence of at least 95%.
    """

    kind: str
    name: str
    number: int
    texts: int
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
    texts: np.ndarray | None = None,
    comparisons: int | None = None,
    seed: int = 0,
) -> list[LostGroup]:
    """Returns the groups with items of at least 20 texts inside and outside, those with the largest excess first.

    The intervals are percentiles of a paired bootstrap over texts, because the items of a text are lost together. Each
    has the confidence `1 - 0.05 / comparisons`, so that all of them hold with a probability of at least 95%.

    Args:
        teacher: the score of each item, 1 for a right answer, `[n]`.
        student: that of the same items.
        members: `[n]` (bool) for each kind and name of a group.
        texts: the text of each item, `[n]`; None if each has its own.
        comparisons: number of groups whose intervals are to hold together; None for these alone.
    """
    lost = teacher - student
    of_item = np.arange(len(lost)) if texts is None else np.unique(texts, return_inverse=True)[1]
    sides = {key: _Sides.of(lost, of, of_item) for key, of in members.items()}
    kept = {key: of for key, of in sides.items() if min(of.texts) >= LEAST}
    tail = (1 - CONFIDENCE) / 2 / max(1, len(kept) if comparisons is None else comparisons)
    found = []
    for key, drawn in zip(kept, _resample(list(kept.values()), np.random.default_rng(seed)), strict=True):
        of, (low, high) = members[key], np.quantile(drawn, [tail, 1 - tail])
        found.append(
            LostGroup(
                *key, int(of.sum()), kept[key].texts[0], float(teacher[of].mean()), float(student[of].mean()),
                float(lost[of].mean() - lost[~of].mean()), (float(low), float(high)),
            )
        )  # fmt: skip
    return sorted(found, key=lambda group: -group.excess)


class _Sides(NamedTuple):
    """The losses inside and outside a group by text.

    Attributes:
        sums: `[T, 4]`, the loss and the number of items inside, and both outside.
        texts: with items inside, and outside.
    """

    sums: np.ndarray
    texts: tuple[int, int]

    @classmethod
    def of(cls, lost: np.ndarray, members: np.ndarray, text: np.ndarray) -> "_Sides":
        columns = (lost * members, members, lost * ~members, ~members)
        sums = np.stack([np.bincount(text, column.astype(float)) for column in columns], axis=1)
        return cls(sums, (int((sums[:, 1] > 0).sum()), int((sums[:, 3] > 0).sum())))

    def with_added(self) -> np.ndarray:
        """Returns the sums with two texts more on each side, one that loses and one that gains, `[T + 4, 4]`.

        Without them a side of which no text of a small sample is lost would have no spread. They are as long as a text
        is on average, and lose or gain as much as one does that loses or gains at all (the root mean square), or a
        score of 1 where none does.
        """
        loss, items = self.sums[:, 0] + self.sums[:, 2], self.sums[:, 1] + self.sums[:, 3]
        changed, length = (loss / items)[loss != 0], items.mean()
        size = float(np.sqrt(np.mean(changed**2))) * length if len(changed) else length
        added = [[size, length, 0, 0], [-size, length, 0, 0], [0, 0, size, length], [0, 0, -size, length]]
        return np.concatenate([self.sums, added])


def _resample(groups: Sequence[_Sides], random: np.random.Generator) -> list[np.ndarray]:
    """Returns the excess of each group in the same resamples of texts, `[RESAMPLES]` each."""
    if not groups:
        return []
    sums = np.stack([of.with_added() for of in groups], axis=1)  # [T + 4, G, 4]
    texts, drawn = len(sums), []
    for _ in range(0, RESAMPLES, _BATCH):
        places = random.integers(texts, size=(_BATCH, texts)) + np.arange(_BATCH)[:, None] * texts
        times = np.bincount(places.ravel(), minlength=_BATCH * texts).reshape(_BATCH, texts)  # [_BATCH, T + 4]
        drawn.append((times.astype(float) @ sums.reshape(texts, -1)).reshape(_BATCH, len(groups), 4))
    inside, of_inside, outside, of_outside = np.concatenate(drawn).transpose(2, 1, 0)  # [G, RESAMPLES] each
    return list(inside / of_inside - outside / of_outside)


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
