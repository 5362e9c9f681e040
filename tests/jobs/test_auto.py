"""Tests of whole runs whose trainer chooses its options: the plan, the record, and what is refused."""

import json
import sys
from pathlib import Path

import pytest

from distill import __main__ as command_line
from tests.jobs.test_run import TEACHER


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["distill", *arguments])
    code = command_line.main()
    captured = capsys.readouterr()
    return code, " ".join(captured.out.split()), captured.err


def test_choices_are_in_the_plan_and_in_the_record(
    data_dir: Path,
    encoder_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """64 examples in batches of 16 are four steps an epoch."""
    monkeypatch.chdir(tmp_path)
    arguments = (
        "+teacher=pretrained", f"teacher.path={encoder_dir}", "+student=distilbert", "task=sst2",
        f"task.data_dir={data_dir}", "task.max_length=32", f"cache_dir={tmp_path / 'cache'}", "benchmark.enabled=false",
        f"output_dir={tmp_path / 'runs'}", *TEACHER, "teacher.finetune.evaluations=auto", "trainer=auto",
        "trainer.batch_size=16", "trainer.evaluations=2", "export.enabled=false",
    )  # fmt: skip
    code, planned, _ = run(capsys, monkeypatch, *arguments, "dry_run=true")
    assert code == 0
    lines = (
        "evaluations=2: 30 in all, from which the best weights are chosen",
        "learning_rate 0.0002: the student has pre-trained layers of width 32",
        "max_epochs 40: 64 examples are 4 steps an epoch, and 40 epochs are the most",
        "160 steps in",
    )
    assert [line for line in lines if line not in planned] == []
    code, printed, _ = run(capsys, monkeypatch, *arguments, "trainer.max_epochs=2", "trainer.patience=3")
    assert code == 0
    assert "learning_rate 0.0002" in printed
    assert "max_epochs 40" not in printed
    [path] = (tmp_path / "runs").rglob("run.json")
    training = json.loads(path.read_text())["training"]
    assert sorted(training["chosen"]) == ["learning_rate", "soup"]
    assert training["chosen"]["soup"] == {
        "value": 3, "reason": "the average of the last weights is kept if it is as good on dev",
    }  # fmt: skip
    assert len(training["soup"]["steps"]) in (2, 3)
    assert training["stopped_early"] in (None, 8 - 2)
    assert training["steps"] == (training["stopped_early"] or 8)
