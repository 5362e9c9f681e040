"""Tests of +student=auto with a job that writes a record in place of a training."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from distill.core.errors import UserError
from distill.jobs import execution as jobs
from distill.records.run import Run, create_record
from tests.jobs.conftest import Command
from tests.records.test_report import record

AUTO = ("+teacher=embedded", "+student=auto", "hydra.sweep.dir=auto")
# By student and depth: the metric on dev, ms for a text, and bytes of the recommended file.
FILES = {
    ("tfidf", None): (0.70, 0.2, 1.2e6), ("static", None): (0.80, 0.1, 1e6), ("cnn", None): (0.90, 0.5, 2e6),
    ("distilbert", 2): (0.957, 2, 3e6), ("distilbert", 3): (0.96, 3, 4e6), ("distilbert", None): (0.95, 6, 9e6),
}  # fmt: skip


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[DictConfig]:
    """The configurations of the runs; a BiLSTM is refused."""
    seen: list[DictConfig] = []

    def run(config: DictConfig, *, launch: str) -> Path:
        seen.append(config)
        if config.student.name == "bilstm":
            raise UserError("student bilstm is not for this task")
        metric, ms, size = FILES[config.student.name, config.student.get("depth")]
        content: dict[str, Any] = create_record(job="distill", seed=0, command=[]) | record() | {"status": "finished"}
        content["export"]["int8"] |= {"bytes": int(size), "gate": "passed", "metrics": {"accuracy": metric}}
        content["benchmark"] = [
            row | {"p50_ms": ms} if row["format"] == "onnx-int8" and row["model"] == "student" else row
            for row in content["benchmark"]
        ]
        directory = tmp_path / "runs" / f"{len(seen)}"
        directory.mkdir(parents=True)
        Run(directory, content).save()
        return directory

    monkeypatch.setattr(jobs, "run_job", run)
    return seen


@pytest.mark.parametrize(
    ("options", "choice"),
    [
        ((), "distilbert depth=2: 0.9570 on dev (0.3 points below distilbert depth=3), 2.00 ms, 3.0 MB"),
        (("hydra.sweeper.tolerance=0",), "distilbert depth=3: 0.9600 on dev (the best), 3.00 ms, 4.0 MB"),
        (("hydra.sweeper.ms=1",), "cnn: 0.9000 on dev (the best), 0.50 ms, 2.0 MB"),
        (("hydra.sweeper.mb=1.5",), "static: 0.8000 on dev (the best), 0.10 ms, 1.0 MB"),
    ],
)
def test_the_fastest_student_that_is_about_as_good_as_the_best_is_recommended(
    ran: list[DictConfig], command: Command, options: tuple[str, ...], choice: str
) -> None:
    code, output, error = command(*AUTO, *options)
    assert (code, error) == (0, "")
    assert f"Choice   {choice}" in output
    assert "Left out bilstm: student bilstm is not for this task" in output
    assert [config.baseline for config in ran] == [False] * 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("hydra.sweeper.ms=0.01",), "no student meets the limits: the fastest is static with 0.10 ms, and"),
        (("hydra.sweeper.candidates=[+student=bilstm]",), "no student was trained: see the reasons above"),
        (("hydra.sweeper.tolerance=-1",), "got hydra.sweeper.tolerance=-1, expected a number above 0, or null"),
    ],
)
def test_limits_that_nothing_meets(
    ran: list[DictConfig], command: Command, options: tuple[str, ...], message: str
) -> None:
    code, _, error = command(*AUTO, *options)
    assert code == 2
    assert message in error
    assert len(error.splitlines()) == 1
