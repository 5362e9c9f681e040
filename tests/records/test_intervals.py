"""Tests of the intervals that run.json alone allows, against values of the literature and of scipy."""

import pytest
from scipy import stats

from distill.training import statistics
from distill.training.statistics import compare_seeds


def estimate(values: list[float], number: int | None) -> statistics.Estimate:
    found = statistics.estimate(values, number)
    assert found is not None
    return found


def test_a_share_has_the_interval_of_wilson_and_several_seeds_that_of_student() -> None:
    found = estimate([0.5], 100)
    assert (found.value, found.over, found.interval) == (0.5, "examples", pytest.approx((0.4038, 0.5962), abs=1e-4))
    # It is never empty, also where every example is right.
    assert statistics.wilson_interval(1.0, 24) == pytest.approx((0.8620, 1.0), abs=1e-4)
    values = [0.72, 0.76, 0.74]
    expected = stats.t.interval(0.95, 2, loc=0.74, scale=stats.sem(values))
    found = estimate(values, 100)
    assert (found.over, found.interval) == ("seeds", pytest.approx(expected))
    assert found.errors() == pytest.approx((0.74 - expected[0], expected[1] - 0.74))


def test_one_seed_of_another_metric_has_no_interval() -> None:
    task = {"metric": "accuracy", "answer": "classes", "examples": {"dev": 9, "test": 24}}
    assert statistics.count_share_examples(task, "test") == 24
    assert statistics.count_share_examples(task | {"metric": "f1"}, "test") is None
    assert statistics.count_share_examples(task | {"answer": "tags"}, "test") is None
    found = estimate([0.5], None)
    assert (found.interval, found.errors()) == (None, (0.0, 0.0))
    assert statistics.estimate([], 9) is None


def test_models_are_paired_by_the_seeds_that_both_have() -> None:
    found = statistics.compare_values({0: 0.8, 1: 0.9, 2: 0.1}, {0: 0.7, 1: 0.85, 3: 0.9}, 100)
    assert found == compare_seeds([0.8, 0.9], [0.7, 0.85])
    assert statistics.compare_values({0: 0.8, 1: 0.9}, {1: 0.6}, None) == compare_seeds([0.9], [0.6])
    unpaired = statistics.compare_values({0: 0.8, 1: 0.9}, {2: 0.7, 3: 0.75}, 100)
    assert unpaired is not None
    expected = stats.ttest_ind([0.8, 0.9], [0.7, 0.75], equal_var=False)
    assert (unpaired["p"], unpaired["number"]) == (pytest.approx(expected.pvalue), 2)
    assert unpaired["interval"] is not None
    assert unpaired["interval"][0] < 0 < 0.125 < unpaired["interval"][1]


def test_one_seed_of_shares_is_compared_over_examples() -> None:
    """Close to 56 of 70 against 48 of 80, whose interval is 0.0524 to 0.3339 (Newcombe, 1998, method 10)."""
    found = statistics.compare_values({0: 0.8}, {1: 0.6}, 75)
    assert found is not None
    assert (found["over"], found["number"], found["difference"]) == ("examples", 75, pytest.approx(0.2))
    assert found["interval"] == pytest.approx([0.0534, 0.3366], abs=2e-3)
    assert not statistics.is_noise(found)
    decided_nothing = statistics.compare_values({0: 0.8}, {0: 0.6}, None)
    assert decided_nothing is not None
    assert decided_nothing["interval"] is None
    assert statistics.is_noise(decided_nothing)
    assert statistics.is_noise(statistics.compare_values({0: 0.8}, {0: 0.75}, 75))
    assert statistics.compare_values({}, {0: 0.8}, 75) is None


def test_captions_name_what_the_bars_are() -> None:
    both = [statistics.estimate([0.7, 0.8], None), statistics.estimate([0.7], 1200)]
    assert statistics.describe_bars(both, "2 seeds (0, 1)", 1200) == (
        "; bars are 95% intervals: Student's t over 2 seeds (0, 1), and Wilson's score over 1,200 examples for a "
        "single model"
    )
    assert statistics.describe_bars([statistics.estimate([0.7], None)], "seed 0", None) == ""
    assert [statistics.name_seeds(seeds) for seeds in ([3], range(9))] == ["seed 3", "9 seeds"]
    rows = {"3 seeds (0, 1, 2)": [[0, 1, 2], [2, 0, 1], []], "2 seeds of each row": [[0, 1], [2, 3]]}
    rows |= {"1 to 3 seeds of each row": [[0], [0, 1, 2]], "1 seed of each row": [[0], [1]]}
    assert [statistics.name_seeds_of_rows(seeds) for seeds in rows.values()] == list(rows)
