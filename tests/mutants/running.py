"""Runs the tests of a mutant's lines in a copy of the repository that has it.

A mutant is killed if one of the tests that run its lines fails. They run in rounds: the quickest ones of half a minute
together, and then others for some minutes.
"""

import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.mutants.coverage_map import CoverageMap
from tests.mutants.mutant import ROOT, Mutant

ROUNDS = (30.0, 300.0)  # Seconds of the tests of a round.
MOST = 900  # Seconds of a mutant.
TIMEOUT = 120  # Seconds of a test, because a mistake may make an endless loop.
# What most tests import, seconds each; the processes of the mutants are forked from one that has them.
PRELOADED = (
    "lightning", "onnx_ir", "onnxruntime", "onnxscript", "pandas", "scipy.stats", "sklearn.metrics", "torchmetrics",
    "torch.onnx._internal.exporter._core", "transformers.models.bert.modeling_bert",
)  # fmt: skip
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__", "build", "dist", "runs")


def run_mutants(mutants: Sequence[Mutant], tests: CoverageMap, jobs: int) -> list[tuple[Mutant, str | None]]:
    """Returns each mutant with the test that found it, or how its process ended; None if none did.

    A test that fails without a mistake too has found nothing.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    console, results = Console(stderr=True), list[tuple[Mutant, str | None]]()
    with ThreadPoolExecutor(jobs) as pool:
        started = {
            pool.submit(_call, context, run_mutant, mutant, list(_list_rounds(mutant, tests))): mutant
            for mutant in mutants
        }
        for future in as_completed(started):
            mutant, test = started[future], future.result()
            results.append((mutant, test))
            console.print(f"{len(results)}/{len(mutants)} {mutant.file}: {test or 'SURVIVED: ' + mutant.wrong}")
    killers = sorted({test for _, test in results if test and "::" in test})
    unclear = set(killers) & set(_call(context, run_tests, killers))
    for test in unclear:
        console.print(f"{test} fails in a copy without a mistake too, so that it shows nothing")
    return [(mutant, None if test in unclear else test) for mutant, test in results]


def _call(context: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns the result of a function in a process of its own, or how the process ended without one."""
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, function, arguments))
    process.start()
    sender.close()
    try:
        receiver.recv()  # EOFError: it did not begin, which says nothing of a mistake.
    except EOFError:
        raise ChildProcessError("the process of a mutant did not begin") from None
    try:
        return receiver.recv() if receiver.poll(MOST) else "no end"
    except EOFError:
        return "the end of the process"
    finally:
        process.kill()
        process.join()


def _send(sender: Any, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    sender.send("begun")
    sender.send(function(*arguments))


def _list_rounds(mutant: Mutant, tests: CoverageMap) -> Iterator[list[str]]:
    """Yields the tests of each round."""
    found = tests.find_tests(mutant.file, mutant.lines())
    sums = list(accumulate(tests.seconds.get(test, 1.0) for test in found))
    first = 0
    for most in ROUNDS:
        last = sum(total <= most for total in sums)
        if last > first or (first == 0 and found):
            last = max(last, 1)
            yield found[first:last]
        first = last


def run_mutant(mutant: Mutant, rounds: Sequence[Sequence[str]]) -> str | None:
    """Returns the first test that fails with the mistake, or None. The process ends after it."""
    with _enter_copy() as root:
        mutant.plant(root)
        return next((test for tests in rounds for test in _find_failures(tests, "-x")), None)


def run_tests(tests: Sequence[str]) -> list[str]:
    """Returns the tests that fail in a copy without a mistake. The process ends after it."""
    with _enter_copy():
        return _find_failures(tests)


@contextmanager
def _enter_copy() -> Iterator[Path]:
    """Makes a copy of the repository the source of all imports, of this process and of those that it starts."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        shutil.copytree(ROOT, root, symlinks=True, ignore=NOT_COPIED, dirs_exist_ok=True)
        os.chdir(root)
        os.environ["PYTHONPATH"] = directory
        for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "distill")]:
            del sys.modules[name]
        sys.path[:] = [directory, *(path for path in sys.path if path not in ("", str(ROOT)))]
        yield root


class _Failures:
    """A plugin of pytest that has the names of failed tests."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.names.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.names.append(report.nodeid)


def _find_failures(tests: Sequence[str], *options: str) -> list[str]:
    """Runs tests and returns the names of those that fail. Their output is left out."""
    failures = _Failures()
    arguments = [*options, "-n", "0", "-m", "not slow", f"--timeout={TIMEOUT}", "-p", "no:cacheprovider", "--no-header"]
    with open(os.devnull, "w") as nothing:
        saved = os.dup(1), os.dup(2)
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
        try:
            pytest.main([*arguments, *tests], plugins=[failures])
        finally:
            for stream, number in zip(saved, (1, 2), strict=True):
                os.dup2(stream, number)
                os.close(stream)
    return failures.names
