"""Tests that all models are timed on the same inputs, each from its own runs."""

import math
import time
from types import SimpleNamespace
from typing import Any

import pytest

from distill.core.errors import UserError
from distill.edge import bundle_files
from distill.export import latency
from distill.export.latency import BenchmarkSettings


def candidate(name: str, seconds: float, seen: list[Any], inputs: tuple[str, ...]) -> latency.Candidate:
    def run(feed: latency.Inputs) -> None:
        seen.append({key: array.shape for key, array in feed.items()})
        time.sleep(seconds)

    return latency.Candidate(name, "torch", inputs, 123, run, lambda: 1)


def test_rows_contain_the_timings_of_each_model_and_shape() -> None:
    slow_feeds: list[Any] = []
    fast_feeds: list[Any] = []
    candidates = [
        candidate("teacher", 0.02, slow_feeds, ("input_ids", "attention_mask", "token_type_ids")),
        candidate("student", 0.004, fast_feeds, ("input_ids",)),
    ]
    rows = latency.measure_latency(candidates, batches=[1, 3], lengths=[7], threads=2, seconds=0.05, vocabulary=50)
    assert [(row["model"], row["batch"], row["length"]) for row in rows] == [
        ("teacher", 1, 7), ("student", 1, 7), ("teacher", 3, 7), ("student", 3, 7),
    ]  # fmt: skip
    for row, sleep in zip(rows, (20, 4, 20, 4), strict=True):
        assert sleep <= row["p50_ms"] <= row["p90_ms"] <= row["p99_ms"]
        assert (row["threads"], row["bytes"]) == (2, 123)
        assert row["runs"] >= latency.TURNS * latency.RUNS_PER_TURN
    assert set(fast_feeds[0]) == {"input_ids"}
    assert {feed["input_ids"] for feed in slow_feeds} == {(1, 7), (3, 7)}
    # One run per turn is a warm-up and not counted.
    assert len(slow_feeds) == rows[0]["runs"] + rows[2]["runs"] + 2 * latency.TURNS


def test_all_timings_together_keep_a_limit_but_for_the_least_number_of_runs() -> None:
    """A candidate of 1 ms would run 1,000 times in a second; a limit of no time leaves the least number of runs."""
    feeds: list[Any] = []
    options: dict[str, Any] = {"batches": [1, 3], "lengths": [7], "threads": 1, "vocabulary": 50}
    rows = latency.measure_latency([candidate("student", 0.001, feeds, ())], seconds=1.0, within=0.0, **options)
    assert [row["runs"] for row in rows] == [latency.TURNS * latency.RUNS_PER_TURN] * 2
    rows = latency.measure_latency([candidate("student", 0.001, feeds, ())], seconds=1.0, within=1.0, **options)
    timed = sum(row["runs"] * row["p50_ms"] / 1000 for row in rows)
    assert 0.1 < timed < 1.0


def test_a_run_gives_the_timing_a_tenth_of_its_time_unless_the_seconds_are_given() -> None:
    assert BenchmarkSettings().limit(before=120.0) == pytest.approx(12.0)
    assert BenchmarkSettings(seconds=2.0).limit(before=120.0) == math.inf
    assert (BenchmarkSettings().longest(), BenchmarkSettings(seconds=2.0).longest()) == (1.0, 2.0)


def test_percentiles_are_in_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "_time_in_turns", lambda *arguments: [[0.001, 0.002, 0.003]])
    [row] = latency.measure_latency(
        [candidate("student", 0, [], ())], batches=[1], lengths=[1], threads=1, seconds=0, vocabulary=9
    )
    assert (row["p50_ms"], row["runs"]) == (pytest.approx(2.0), 3)
    assert row["p99_ms"] == pytest.approx(2.98)


@pytest.mark.parametrize(
    ("times", "others", "is_disturbed"),
    [
        ([0.001] * 9 + [0.0019], 0.0, False),
        ([0.001] * 8 + [0.003] * 2, 0.0, True),  # The 90th percentile is three times the median.
        ([0.001] * 10, 2.2, False),  # Of four cores, two of which are measured.
        ([0.001] * 10, 2.3, True),  # The times are steady, and slow.
    ],
)
def test_other_work_on_the_cores_is_recorded(
    times: list[float], others: float, is_disturbed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = iter([(5.0, 7.0), (15.0, 7.0 + 10 * others)])
    monkeypatch.setattr(latency._OtherWork, "_read", staticmethod(lambda: next(readings)))
    monkeypatch.setattr(bundle_files, "usable_processors", lambda: frozenset({0, 1, 5, 6}))
    monkeypatch.setattr(latency, "_time_in_turns", lambda *arguments: [times])
    [row] = latency.measure_latency(
        [candidate("student", 0, [], ())], batches=[1], lengths=[1], threads=2, seconds=0, vocabulary=9
    )
    assert row["disturbed"] == is_disturbed


@pytest.mark.parametrize(
    ("usable", "others"),
    [({0}, 9.5), ({1}, 46.0), ({0, 1}, 59.5), ({0, 2}, 59.5)],  # Of two listed processors none is the third one.
)
def test_processor_time_of_others_is_that_of_the_usable_processors_without_our_own(
    usable: set[int], others: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is pinned to one of two processors is not disturbed by work on the other one."""
    first = SimpleNamespace(user=10.0, nice=1.0, system=2.0, idle=99.0, iowait=5.0, steal=0.5, guest=4.0)
    second = SimpleNamespace(user=50.0, idle=1.0, system=0.0)
    monkeypatch.setattr(latency.psutil, "cpu_times", lambda percpu: [first, second])
    monkeypatch.setattr(bundle_files, "usable_processors", lambda: frozenset(usable))
    own = SimpleNamespace(cpu_times=lambda: SimpleNamespace(user=3.0, system=1.0))
    monkeypatch.setattr(latency.psutil, "Process", lambda: own)
    assert latency._OtherWork._read()[1] == others


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batches": []}, r"got batches=\[\], expected whole numbers of at least 1 in a list like \[1,8\]"),
        ({"lengths": [0]}, r"got lengths=\[0\], expected whole numbers"),
        ({"lengths": 8}, r"got lengths=8, expected whole numbers"),
        ({"lengths": [True]}, r"got lengths=\[true\], expected whole numbers"),
        ({"threads": 0}, "got threads=0, expected a whole number of at least 1 or null"),
        ({"threads": True}, "got threads=true, expected a whole number"),
        ({"teacher": "no"}, "got teacher=no, expected true or false"),
        ({"seconds": 0}, "got seconds=0, expected a number above 0 or auto"),
    ],
)
def test_invalid_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        BenchmarkSettings(**{"batches": [1], "lengths": [8]} | options)
