"""Tests of a service that is killed at random moments, with jobs that are cancelled at random: small benchmarks."""

from pathlib import Path

from benchmarks.service_jobs import STAND_IN, run_experiment


def test_cancelled_jobs_leave_no_process_although_the_service_is_killed(tmp_path: Path) -> None:
    outcome = run_experiment(tmp_path, [[STAND_IN]] * 8, kills=3, workers=4, cancel=0.6, seconds=0.2, gap=1.0, seed=1)
    assert outcome.cancelled > 0
    assert outcome.finished_once + outcome.cancelled == 8
    assert (outcome.not_cancelled, outcome.lost, outcome.twice, outcome.processes_left) == (0, 0, 0, 0)
