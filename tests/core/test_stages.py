"""Tests of the stage of a command and of the time left."""

import io
import json
import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from distill.core import console
from distill.core import console as stages
from distill.core.console import BASELINE, BENCHMARK, DATA, EXPORT, IMPORTS, TEACHER, TRAINING, Stages
from distill.jobs import sweepers


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Returns the time that the stages see, as its only element."""
    now = [100.0]
    monkeypatch.setattr(stages.time, "monotonic", lambda: now[0])
    return now


def test_the_time_left_is_that_of_the_last_command_and_of_the_plan(clock: list[float], tmp_path: Path) -> None:
    file = tmp_path / stages.FILE
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({IMPORTS: 4.0, DATA: 2.0, EXPORT: 30.0, BENCHMARK: 10.0}))
    command = Stages()
    command.start(tmp_path)
    clock[0] += 1
    assert command.left() == (3.0, None)  # The training has no time before the plan.
    command.begin(DATA)
    clock[0] += 1
    assert command.left() == (1.0, None)
    command.begin(TEACHER)
    assert command.left() == (None, None)
    command.expect(**{TRAINING: 60.0, BASELINE: 50.0})
    command.begin(TRAINING)
    clock[0] += 15
    assert command.left() == (45.0, 45.0 + 50.0 + 30.0 + 10.0)
    command.expect_left(80.0)  # It is slower than was planned.
    assert command.left() == (80.0, 170.0)
    command.expect_left(1.0)
    assert command.left() == (80.0, 170.0)
    command.begin(BENCHMARK)
    assert command.left() == (10.0, 10.0)
    clock[0] += 12
    assert command.left() == (0.0, 0.0)
    command.stop()
    assert json.loads(file.read_text()) == {IMPORTS: 1.0, DATA: 1.0, EXPORT: 30.0, BENCHMARK: 12.0}


def test_the_progress_of_a_sweep_is_that_of_all_runs_and_never_falls(clock: list[float], tmp_path: Path) -> None:
    command = Stages()
    command.expect_runs(4)
    shares = []
    for slower in (0.0, 60.0):
        command.start(tmp_path)
        assert command.progress() == {"seconds_left": None, "progress": None}
        command.expect(**{IMPORTS: 0.0, DATA: 0.0, TRAINING: 40.0})
        command.begin(TRAINING)
        shares.append(command.progress()["progress"])
        clock[0] += 20
        shares.append(command.progress()["progress"])
        command.expect_left(20 + slower)
        shares.append(command.progress()["progress"])
        command.stop()
    assert shares == [0.0, 0.125, 0.125, 0.25, 0.375, 0.375]
    command.start(tmp_path)
    command.expect(**{IMPORTS: 0.0, DATA: 0.0, TRAINING: 40.0, EXPORT: 0.0})
    command.begin(TRAINING)
    clock[0] += 10
    assert command.progress() == {"seconds_left": 30.0 + 40.0, "progress": 0.5625}
    command.stop()
    for _ in range(2):  # The last run, and another command of this process.
        command.start(tmp_path)
    command.expect(**{IMPORTS: 0.0, DATA: 0.0, TRAINING: 40.0})
    assert command.progress() == {"seconds_left": 40.0, "progress": 0.0}


@pytest.mark.parametrize(("dry_run", "share"), [(False, 0.125), (True, 0.5)])
def test_a_sweep_announces_its_runs(
    dry_run: bool, share: float, clock: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = Stages()
    monkeypatch.setattr(sweepers, "stages", command)
    sweeper = sweepers.GridSweeper(max_batch_size=None)
    batches = [[["seed=1"], ["seed=2"]], [["seed=3"], ["seed=4"]]]
    sweeper.config, sweeper.overrides = OmegaConf.create({"dry_run": dry_run}), batches
    assert [sweeper.get_job_batch() for _ in range(2)] == batches
    command.start(tmp_path)
    command.expect(**{IMPORTS: 0.0, DATA: 0.0, TRAINING: 40.0})
    command.begin(TRAINING)
    clock[0] += 20
    assert command.progress()["progress"] == share


@pytest.mark.parametrize("content", ["", "{", "[]", '{"imports": "soon"}', None])
def test_a_damaged_file_of_times_is_written_again(content: str | None, clock: list[float], tmp_path: Path) -> None:
    command = Stages()
    command.begin(TRAINING)
    assert command.left() == (None, None)  # Before the start.
    command.start(tmp_path / "missing")
    command.stop()
    assert not (tmp_path / "missing").exists()
    file = tmp_path / stages.FILE
    if content is not None:
        file.parent.mkdir(parents=True)
        file.write_text(content)
    command.start(tmp_path)
    assert command.left() == (stages.FIRST[IMPORTS], None)
    command.expect(**{TEACHER: 10.0})
    clock[0] += 2
    for stage, seconds in ((TEACHER, 3), (DATA, 5)):
        command.begin(stage)
        clock[0] += seconds
    command.begin(TEACHER)
    assert command.left() == (7.0, None)  # It runs twice and keeps its time.
    command.stop()
    assert json.loads(file.read_text())[IMPORTS] == 2.0


def test_a_terminal_shows_the_stage_its_time_and_the_time_to_the_end(
    clock: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = io.StringIO()
    terminal = console.create_console(file=output, width=100, force_terminal=True, force_interactive=True)
    monkeypatch.setattr(console, "console", terminal)
    command = Stages()
    command.start(tmp_path)
    command.expect(**{TRAINING: 60.0, BASELINE: 120.0})
    command.begin(TRAINING)
    clock[0] += 20
    terminal.print(command._render())
    command.stop()
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", output.getvalue())
    assert re.search(r"imports ━+ 0 s 6 s left", shown)
    assert re.search(r"training ━+.* 20 s 40 s left, 2.7 min to the end", shown)
