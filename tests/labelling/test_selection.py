"""Tests of the choice of the examples that are labelled next."""

from distill.labelling.selection import Selector

TEXTS = [*(f"great film of {i + 10}" for i in range(20)), *(f"awful film of {i + 10}" for i in range(20, 40))]
UNSURE = ["great awful", "awful great"]


def test_the_least_sure_texts_are_chosen_once_each() -> None:
    selector = Selector(TEXTS + UNSURE, seed=0)
    labels = dict.fromkeys(range(5), "good") | dict.fromkeys(range(20, 25), "bad")
    rest = [i for i in range(42) if i not in labels]
    assert selector.choose(rest, labels, 1)[0] in (40, 41)
    chosen = selector.choose(rest, labels, 10)
    assert len(set(chosen)) == 10
    assert set(chosen) <= set(rest)


def test_without_two_classes_the_choice_is_random() -> None:
    selector = Selector(TEXTS, seed=1)
    chosen = selector.choose(range(40), {0: "good"}, 7)
    assert len(set(chosen)) == 7
    assert chosen != sorted(chosen)
