"""Runs of the command in this process for tests of whole jobs, and what they leave."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distill import __main__ as command_line
from distill.training.module import DistillationModule

Run = Callable[..., tuple[int, str, Path]]


def run_command(*options: str) -> int:
    """Runs the command; returns its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["distill", *options])
        return command_line.main()


def capture_runs(run: Callable[..., int], root: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Returns a function that returns a run's exit code, its output and its directory, `root` if it left none.

    Args:
        run: runs the command for an output directory and options; returns its exit code.
    """

    def run_in(*options: str, output: str = "runs") -> tuple[int, str, Path]:
        code = run(root / output, *options)
        printed = capsys.readouterr()
        runs = sorted((root / output).rglob("run.json"), key=lambda path: path.stat().st_mtime)
        return code, printed.out + printed.err, runs[-1].parent if runs else root

    return run_in


def read_record(directory: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((directory / "run.json").read_text())
    return content


def stop_at(step: int, patch: pytest.MonkeyPatch) -> None:
    """Makes the training fail in this step."""
    original = DistillationModule.training_step

    def stopping(module: DistillationModule, *arguments: Any) -> None:
        if module.global_step == step:
            raise RuntimeError("stopped")
        original(module, *arguments)

    patch.setattr(DistillationModule, "training_step", stopping)
