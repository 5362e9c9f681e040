"""Tests of the decision whether the metric on dev was still improving at the end of a training."""

import math
from collections.abc import Sequence

import pytest

from distill.training.lightning_callbacks import find_rise
from tests.conftest import MakeToy, fake_scores
from tests.training.test_checkpoints import stop_at


@pytest.mark.parametrize(
    ("values", "examples", "expected"),
    [
        ([0.1, 0.2, 0.3], 100, 0.1),
        ([0.1, 0.2, 0.3], 20, None),  # 0.112 is one standard error.
        ([0.1, 0.3, 0.2, 0.4, 0.5, 0.6], 400, 0.2),  # From the fourth of six.
        ([0.1, 0.2, 0.7, 0.4, 0.5, 0.6], 400, None),  # The third one is better than the last.
        ([0.1, 0.6, 0.6], 400, None),
        ([0.1, 0.9], 400, None),  # Has no last third.
        ([0.1, math.nan, 0.9], 400, None),
        ([], 400, None),
    ],
)
def test_a_metric_still_improves_if_the_last_evaluation_is_better_beyond_noise(
    values: Sequence[float], examples: int, expected: float | None
):
    assert find_rise(values, selects="max", examples=examples) == expected


def test_less_of_an_error_is_an_improvement():
    assert find_rise([9.0, 8.0, 6.0], selects="min", examples=100) == 2.0
    assert find_rise([9.0, 8.0, 7.8], selects="min", examples=100) is None  # Noise is a twentieth of 7.8.
    assert find_rise([6.0, 8.0, 9.0], selects="min", examples=100) is None


def test_a_training_says_what_it_gained_at_the_end(make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch):
    """Dev has 24 examples, so that 0.102 is noise."""
    for values, expected in (([0.2, 0.4, 0.5, 0.7], 0.2), ([0.2, 0.7, 0.5, 0.7], None), ([0.2, 0.4, 0.6, 0.7], None)):
        toy = make_toy(max_epochs=4)
        fake_scores(toy, values, monkeypatch)
        assert toy.fit().rise == expected


def test_a_resumed_training_knows_the_evaluations_before(make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch):
    stopped = make_toy(max_epochs=3)
    fake_scores(stopped, [0.2, 0.4], monkeypatch)
    stop_at(stopped, 9, monkeypatch)
    resumed = make_toy(directory=stopped.directory, max_epochs=3)
    fake_scores(resumed, [0.7], monkeypatch)
    assert resumed.fit(resume=True).rise == 0.3
