"""Tests of the events of a run: their lines, a file that cannot be written, and those of whole runs."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distill.core import console
from distill.core import console as events
from distill.core.console import STAGES, VARIABLE, Events
from distill.training.lightning_callbacks import ProgressBar
from tests.conftest import LOOSE_OPTIONS, MakeToy, run_here

Lines = list[dict[str, Any]]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the variable names."""
    path = tmp_path / "events.jsonl"
    monkeypatch.setenv(VARIABLE, str(path))
    return path


def read_events(file: Path) -> Lines:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_an_event_is_one_line_without_values_that_are_none(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events.time, "time", lambda: 12.34567)
    sender = Events()
    sender.send("notice", text="two\nlines")
    sender.name_run(Path("/runs/one"))
    sender.send("metrics", step=3, metrics={"dev/accuracy": float("nan"), "dev/f1": 0.5}, loss=None)
    sender.name_run(None)
    sender.send("step", loss=float("inf"))
    assert read_events(file) == [
        {"time": 12.346, "kind": "notice", "text": "two\nlines"},
        {
            "time": 12.346, "kind": "metrics", "run": "/runs/one", "step": 3,
            "metrics": {"dev/accuracy": None, "dev/f1": 0.5},
        },
        {"time": 12.346, "kind": "step", "loss": None},
    ]  # fmt: skip
    console.print_notice("no model at https://user:secret@host/a?token=b")
    assert read_events(file)[-1]["text"] == "no model at https://***@host/a?token=***"


@pytest.mark.parametrize("path", ["missing/events.jsonl", ".", "/dev/full"])
def test_a_file_that_cannot_be_written_costs_no_run(path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, path)
    Events().send("notice", text="lost")
    assert list(tmp_path.iterdir()) == []


def test_a_line_after_one_that_a_full_disk_has_cut_is_whole(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    sender = Events()
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda to, content: write(to, content[:9]))
        sender.send("notice", text="cut")
    sender.send("notice", text="whole")
    cut, whole = file.read_text().splitlines()
    assert len(cut) == 9
    assert json.loads(whole)["text"] == "whole"


def test_without_the_variable_as_in_a_worker_nothing_is_written(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events.os, "open", None)
    sender = Events()
    sender.leave_to_rank_zero()
    sender.send("notice", text="unseen")
    assert not file.exists()


def test_a_training_sends_one_step_in_a_second_and_every_evaluation(
    file: Path, make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = make_toy(max_epochs=2)
    steps, now = toy.module.total_steps, [0.0]
    add = ProgressBar._add

    def take_time(bar: ProgressBar, metrics: Any) -> None:
        now[0] += 0.4  # Of a step.
        add(bar, metrics)

    monkeypatch.setattr(ProgressBar, "_add", take_time)
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    toy.fit()
    sent = read_events(file)
    kept = [event for event in sent if event["kind"] == "step"]
    assert [event["step"] for event in kept] == sorted({*range(1, steps, 3), steps})
    assert all(event["steps"] == steps and event["title"] and event["losses"].keys() == {"soft", "hard", "cosine"}
               for event in kept)  # fmt: skip
    assert kept[-1]["loss"] == pytest.approx(
        sum(weight * kept[-1]["losses"][name] for name, weight in toy.module.objective.weights.items()), rel=1e-4
    )
    evaluations = [event for event in sent if event["kind"] == "metrics"]
    assert [event["step"] for event in evaluations] == [steps // 2, steps]
    assert 0 <= evaluations[-1]["metrics"]["dev/accuracy"] <= 1


def test_a_meter_sends_its_first_and_last_units_once(file: Path) -> None:
    with console.ProgressMeter("texts", 9, unit="texts") as meter:
        for done in (3, 3, 6, 9, 9):
            meter.show(done)
    sent = [{**event, "time": None} for event in read_events(file)]
    common = {"time": None, "kind": "step", "title": "texts", "unit": "texts", "steps": 9}
    assert sent == [{**common, "step": 3}, {**common, "step": 9}]


def test_a_run_names_its_stages_and_each_student_its_directory(
    file: Path, tmp_path: Path, data_dir: Path, encoder_dir: Path
) -> None:
    done = run_here(
        "+teacher=pretrained", f"teacher.path={encoder_dir}", "+student=distilbert", "task=sst2",
        f"task.data_dir={data_dir}", "cache_dir=cache", "task.max_length=32", "trainer.max_epochs=1",
        "trainer.batch_size=16", "teacher.finetune.max_epochs=1", "teacher.finetune.batch_size=16",
        "teacher.accept_weak=true", "benchmark.enabled=false", "baseline=false", "augment=none", "seeds=2",
        "export.enabled=false",
        *LOOSE_OPTIONS, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    sent = read_events(file)
    (run,) = (path.parent for path in tmp_path.rglob("run.json"))
    assert [event["directory"] for event in sent if event["kind"] == "run"] == [str(run)]
    stages = [event["stage"] for event in sent if event["kind"] == "stage"]
    assert stages[0] == "imports"
    assert {"data", "teacher", "training"} <= set(stages) <= set(STAGES)
    planned = [event for event in sent if "progress" in event]
    assert all(0 <= event["progress"] <= 1 and event["seconds_left"] >= 0 for event in planned)
    assert any(event["kind"] == "step" for event in planned)
    students = {event.get("run") for event in sent if event["kind"] == "metrics"}
    assert students == {str(run), str(next((run / "seeds").iterdir()))}
    notices = [line.removeprefix("Notice: ") for line in done.stdout.splitlines() if line.startswith("Notice: ")]
    assert [event["text"] for event in sent if event["kind"] == "notice"] == notices
    assert events.events.run is None
