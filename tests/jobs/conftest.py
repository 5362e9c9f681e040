"""Whole commands in the process of the test."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from distill import __main__ as command_line
from tests.conftest import run_here
from tests.golden.commands import replace_options
from tests.golden.runs import golden_output, golden_root, golden_run

assert golden_output
assert golden_root
assert golden_run

Command = Callable[..., tuple[int, str, str]]
Run = Callable[..., tuple[str, Path]]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command line in this process; returns the exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["distill", *arguments])
        capsys.readouterr()  # What was written before, as by saving a model.
        code = command_line.main()
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def run(golden_root: Path, tmp_path: Path) -> Run:
    """Runs a command beside the toys of the golden commands; returns its output in one line and the run's directory.

    The options after the first ones take the place of those with the same names.
    """
    (tmp_path / "toys").symlink_to(golden_root / "toys")

    def run_options(common: str, own: str = "") -> tuple[str, Path]:
        done = run_here(*replace_options(common, own), "cache_dir=cache", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        records = sorted((tmp_path / "runs").rglob("run.json"), key=lambda path: path.stat().st_mtime)
        return " ".join(done.stdout.split()), records[-1].parent if records else tmp_path

    return run_options
