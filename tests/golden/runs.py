"""Runs of the golden commands: each once a session, shared by all its workers, for the tests of other files too.

Such a file imports the three fixtures, as in `from tests.golden.runs import golden_output, golden_root, golden_run`,
and a test reads `golden_run("tags") / "run.json"`. It asks for a run before it patches anything, because all share it.
"""

import fcntl
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from distill.core import console
from distill.export import latency
from tests.conftest import run_here
from tests.golden.commands import list_options
from tests.golden.toys import write_toys


class SteadyClock:
    """A clock that each reading moves on by 2 ms."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def perf_counter(self) -> float:
        self._seconds += 0.002
        return self._seconds

    def sleep(self, seconds: float) -> None:
        """Takes no time."""


@contextmanager
def steady_machine() -> Iterator[None]:
    """Makes all latencies equal, ignores other work of the machine, and prints tables that are not wrapped."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"time": SteadyClock(), "TURNS": 1, "RUNS_PER_TURN": 1, "OTHER_WORK": math.inf}.items():
            patch.setattr(latency, name, value)
        patch.setattr(console, "LINE_EVERY_SECONDS", math.inf)
        patch.setattr(console.console, "width", 240)
        yield


@contextmanager
def lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def golden_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that all workers share, with the toys."""
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "golden"
    root.mkdir(exist_ok=True)
    with lock(root / "toys.lock"):
        if not (root / "toys").is_dir():
            write_toys(root / "draft")
            (root / "draft").rename(root / "toys")
    return root


@pytest.fixture(scope="session")
def golden_output(golden_root: Path) -> Callable[[str], Path]:
    """Returns the output directory of a golden command by name, with its terminal.txt; runs it if nothing has."""

    def run(name: str) -> Path:
        directory = golden_root / "runs" / name
        with lock(golden_root / f"{name}.lock"):
            if not (directory / "terminal.txt").is_file():
                with steady_machine():
                    done: Any = run_here(*list_options(name), cwd=golden_root)
                assert done.returncode == 0, done.stderr
                (directory / "terminal.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
        return directory

    return run


@pytest.fixture(scope="session")
def golden_run(golden_output: Callable[[str], Path]) -> Callable[[str], Path]:
    """Returns the directory of a finished run by the name of its command, the first one of a sweep.

    It has run.json, report.md and bundle/. A test that changes something there works on a copy.
    """
    return lambda name: find_runs(golden_output(name))[0]


def find_runs(output: Path) -> list[Path]:
    """Returns the directories of the runs in the order of their beginning."""
    return sorted(path.parent for path in output.rglob("run.json"))
