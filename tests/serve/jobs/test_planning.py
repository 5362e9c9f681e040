"""Tests of the dry run that a job passes before it is accepted."""

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from distill.serve.http import RefusedError
from distill.serve.jobs import results
from distill.serve.jobs.results import Planner, read_events


@pytest.fixture
def planner(tmp_path: Path) -> Planner:
    return Planner(tmp_path / "cache")


def stand_in(monkeypatch: pytest.MonkeyPatch, program: str) -> list[Sequence[str]]:
    """Runs a program in place of each command; returns the list of the commands."""
    commands: list[Sequence[str]] = []
    run = results._run_command

    async def run_program(command: Sequence[str], environment: dict[str, str]) -> tuple[int, str, str]:
        commands.append(command)
        return await run((sys.executable, "-c", program), environment)

    monkeypatch.setattr(results, "_run_command", run_program)
    return commands


EVENTS = [
    {"kind": "stage", "stage": "imports"},
    {"kind": "stage", "stage": "teacher"},
    {"kind": "notice", "text": "/data/local/films/films.csv is small"},
    {"kind": "stage", "stage": "teacher", "seconds_left": 30.5},
]


def test_a_plan_has_the_summary_the_time_and_the_notices(planner: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.dumps(event) for event in EVENTS]
    program = (
        f"import os; open(os.environ['DISTILL_EVENTS'], 'w').write({chr(10).join(lines)!r})\n"
        "print(' task   /data/local/films/films.csv   \\n steps  10  ')"
    )
    commands = stand_in(monkeypatch, program)
    plan = asyncio.run(planner.plan(("-m", "seed=1,2"), {"/data/local/films/films.csv": "data:films"}))
    assert plan == results.DryRun("task   data:films\n steps  10", 30.5, ("data:films is small",))
    [command] = commands
    assert command[1:5] == ("-m", "distill", "-m", "seed=1,2")
    assert command[-1] == "dry_run=true"
    assert f"cache_dir={planner.cache}" in command


def test_a_command_that_fails_is_refused_in_one_line(planner: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = iter([(2, "", "error: a\nmore\n"), (1, "", "Traceback\nValueError: a bug\n"), (2, "", "")])

    async def run_program(command: Sequence[str], environment: dict[str, str]) -> tuple[int, str, str]:
        return next(outputs)

    monkeypatch.setattr(results, "_run_command", run_program)
    for message in ("a", "ValueError: a bug", "the check failed without a message"):
        with pytest.raises(RefusedError, match=f"^{message}$") as caught:
            asyncio.run(planner.plan((), {}))
        assert caught.value.status == 422
    lines = [json.dumps(event) for event in EVENTS]
    assert read_events([*lines, *lines])[0] == 61.0  # The sum of the runs of a sweep.
    assert read_events([*lines, *lines[:2]])[0] is None  # The time of one run is not known.
    assert read_events([]) == (None, [])


def test_a_check_that_hangs_is_ended_and_too_many_are_refused(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, "import time; time.sleep(1000)")
    monkeypatch.setattr(results, "SECONDS", 0.2)
    monkeypatch.setattr(results, "WAITING", 3)

    async def plan_many() -> list[BaseException | results.DryRun]:
        return await asyncio.gather(*(planner.plan((), {}) for _ in range(4)), return_exceptions=True)

    refusals = asyncio.run(plan_many())
    assert sorted(getattr(refusal, "status", 0) for refusal in refusals) == [422, 422, 422, 503]
    assert "the check took more than 0.2 s: take less data" in map(str, refusals)
