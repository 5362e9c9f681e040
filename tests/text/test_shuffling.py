"""Tests of the shuffling of runs of tokens: which tokens move, how often, and what is to be predicted."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest

from distill.core.contracts import IGNORED
from distill.text.masking import Masker, Masking, shuffle_runs

MASK, SEPARATOR, LEAST = 3, 2, 1e-9  # The least probability, with which one token of a text is chosen for masks.


def make_masker(*, seed: int = 0, shuffle: float = 0.05, shuffle_size: int = 3, probability: float = 0.15) -> Masker:
    mask = Masking(shuffle=shuffle, shuffle_size=shuffle_size, probability=probability, replace=(1.0, 0.0, 0.0))
    return Masker(mask, mask_id=MASK, special_ids=(1, SEPARATOR, MASK), vocabulary_size=500, seed=seed)


def mask(masker: Masker, ids: np.ndarray, example: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return masker(ids, np.zeros(len(ids), dtype=bool), example=example, visit=0)


def text(*lengths: int) -> np.ndarray:
    """Returns texts of so many tokens, all different, with a separator behind each."""
    ends = np.cumsum(lengths)
    parts = [[*range(100 + end - length, 100 + end), SEPARATOR] for length, end in zip(lengths, ends, strict=True)]
    return np.array([1, *(token for part in parts for token in part)])


def test_five_percent_of_the_tokens_are_in_shuffled_trigrams() -> None:
    ids, moved, labelled = text(60), [], []
    masker = make_masker()
    for example in range(1000):
        inputs, labels = mask(masker, ids, example)
        shuffled = (labels != IGNORED) & (inputs != MASK)
        labelled.append(shuffled.sum())
        moved.append((inputs != ids)[shuffled].sum())
        assert (labels[labels != IGNORED] == ids[labels != IGNORED]).all()  # The right tokens.
        assert (inputs == ids)[labels == IGNORED].all()
        assert sorted(inputs[shuffled]) == sorted(ids[shuffled])
        assert (inputs == MASK).sum() == 9  # As without a shuffle.
    assert set(labelled) == {3}  # One trigram, 5% of 60.
    assert np.mean(moved) == pytest.approx(2.0, abs=0.14)  # A random order leaves a third of the tokens in place.


def test_short_texts_have_the_share_on_average() -> None:
    masker = make_masker(probability=LEAST)
    shares = [
        ((labels != IGNORED) & (inputs != MASK)).sum() / 12
        for inputs, labels in (mask(masker, text(12), example) for example in range(1500))
    ]
    assert np.mean(shares) == pytest.approx(0.05, abs=0.011)


def test_every_order_is_equally_likely() -> None:
    random = np.random.default_rng(0)
    free = np.array([False, True, True, True, False])
    orders = Counter(
        tuple(run) for _ in range(6000) for run in shuffle_runs(free, number=1.0, size=3, random=random).tolist()
    )
    assert orders.keys() == set(permutations((1, 2, 3)))
    assert all(abs(count - 1000) < 150 for count in orders.values())


@pytest.mark.parametrize("size", [2, 5])
def test_runs_never_overlap_or_cross_a_special_or_a_masked_token(size: int) -> None:
    ids, masker = text(2, 4, 1, 9), make_masker(shuffle=0.9, shuffle_size=size, probability=0.1)
    separators = np.cumsum(np.isin(ids, (1, SEPARATOR)))
    seen = 0
    for example in range(200):
        inputs, labels = mask(masker, ids, example)
        place = {int(token): position for position, token in enumerate(ids)}
        for position in np.flatnonzero((inputs != ids) & (inputs != MASK)):
            origin = place[int(inputs[position])]
            assert abs(origin - position) < size
            assert separators[origin] == separators[position]
            between = slice(min(origin, position), max(origin, position))
            assert MASK not in inputs[between]
            seen += 1
        assert ((labels != IGNORED) & (inputs != MASK)).sum() % size == 0
    assert seen


@pytest.mark.parametrize("lengths", [(2,), (1,), (2, 2), ()])
def test_a_text_of_two_tokens_is_left_alone(lengths: tuple[int, ...]) -> None:
    ids, masker = text(*lengths), make_masker(shuffle=0.99, probability=LEAST)
    for example in range(20):
        inputs, labels = mask(masker, ids, example)
        assert (inputs[inputs != MASK] == ids[inputs != MASK]).all()
        assert (labels != IGNORED).sum() == (inputs == MASK).sum()
