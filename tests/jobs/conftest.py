"""Whole commands in the process of the test."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from distill import __main__ as command_line

Command = Callable[..., tuple[int, str, str]]


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
