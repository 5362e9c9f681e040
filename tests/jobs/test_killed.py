"""Tests of every job and of sweeps that are killed by SIGKILL at random moments: the numbers are those of whole runs.

pytest -m slow -n 0 tests/jobs/test_killed.py
"""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import write_corpus

pytestmark = pytest.mark.slow
KILLS = range(5)  # Of each job.
SWEEP = ("objective=hinton", "objective.terms.soft.temperature=1,4", "seed=0,1")


@dataclass(frozen=True)
class Whole:
    """A command that ran undisturbed: its arguments, duration in seconds and results."""

    arguments: tuple[str, ...]
    seconds: float
    results: list[dict[str, Any]]


def start(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    """Starts a command with a cache and runs of its own, in a new process group."""
    return subprocess.Popen(
        [sys.executable, "-m", "distill", *arguments], cwd=directory, text=True, start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def run(directory: Path, *arguments: str) -> None:
    process = start(directory, *arguments)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output


def read_results(directory: Path) -> list[dict[str, Any]]:
    """Returns the weights and metrics of every run, in the order of their options."""
    results = []
    for path in (directory / "runs").rglob("run.json"):
        record = json.loads(path.read_text())
        models = [path.parent / name / "model.safetensors" for name in ("student", "teacher/model")]
        results.append(
            {
                "options": [record["seed"], record["objective"]],
                "status": record["status"],
                "weights": [model.read_bytes() for model in models if model.is_file()],
                "teacher": record["teacher"]["metrics"],
                "student": record["student"] and record["student"]["metrics"],
                "baseline": record["baseline"] and record["baseline"]["metrics"],
                "export": {name: row["metrics"] for name, row in record["export"].items()},
            }
        )
    return sorted(results, key=lambda result: json.dumps(result["options"]))


def run_whole(directory: Path, *arguments: str) -> Whole:
    began = time.monotonic()
    run(directory, *arguments)
    return Whole(arguments, time.monotonic() - began, read_results(directory))


def kill_at_random(root: Path, whole: Whole, seed: int) -> Path:
    """Kills the command and its workers after a random share of its duration; returns the directory it worked in."""
    seconds = random.Random(seed).uniform(0.1, 0.95) * whole.seconds
    for attempt in itertools.count():
        directory = root / str(attempt)
        directory.mkdir()
        process = start(directory, *whole.arguments)
        try:
            process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return directory
        seconds /= 2  # It ended before, because the machine is faster now.
    raise AssertionError


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def commands(data_dir: Path, encoder_dir: Path, corpus: Path) -> dict[str, tuple[str, ...]]:
    """The arguments of every job."""
    rows = (
        "+teacher=pretrained", f"teacher.path={encoder_dir}", "task=sst2", f"task.data_dir={data_dir}",
        "task.max_length=32", "teacher.finetune.max_epochs=15", "teacher.finetune.learning_rate=3e-3",
        "teacher.finetune.batch_size=16", "teacher.finetune.checkpoint_steps=3",
    )  # fmt: skip
    training = ("trainer.max_epochs=8", "trainer.batch_size=8", "trainer.learning_rate=1e-3")
    text = ("task=mlm", f"task.data_dir={corpus}", "task.max_length=32", "task.dev_fraction=0.2")
    teacher = ("+teacher=bert_tiny", "teacher.vocabulary=300", "teacher.hidden_size=32")
    return {
        "distill": (
            *rows, *training, "+student=distilbert", "baseline=true", "benchmark.enabled=false",
            "trainer.checkpoint_steps=3",
        ),
        "finetune": ("job=finetune", *rows),
        "pretrain": ("job=pretrain", *text, *teacher, *training, "trainer.checkpoint_steps=3"),
        "text": ("job=pretrain", *text, *teacher, *training, "task.streaming=true", "trainer.max_steps=60",
                 "trainer.max_epochs=null", "trainer.checkpoint_steps=3"),
    }  # fmt: skip


@pytest.fixture(scope="module")
def whole(
    request: pytest.FixtureRequest, commands: dict[str, tuple[str, ...]], tmp_path_factory: pytest.TempPathFactory
) -> Whole:
    return run_whole(tmp_path_factory.mktemp("whole"), *commands[request.param])


@pytest.mark.parametrize("whole", ["distill", "finetune", "pretrain", "text"], indirect=True)
@pytest.mark.parametrize("seed", KILLS)
def test_killed_run_is_resumed_with_equal_weights(whole: Whole, seed: int, tmp_path: Path) -> None:
    directory = kill_at_random(tmp_path, whole, seed)
    begun = list((directory / "runs").rglob("run.json"))
    run(directory, *([f"resume={begun[0].parent}"] if begun else whole.arguments))
    assert read_results(directory) == whole.results


@pytest.fixture(scope="module")
def sweep(commands: dict[str, tuple[str, ...]], tmp_path_factory: pytest.TempPathFactory) -> Whole:
    options = ["baseline=false" if option == "baseline=true" else option for option in commands["distill"]]
    return run_whole(tmp_path_factory.mktemp("sweep"), "-m", *options, *SWEEP)


@pytest.mark.parametrize("seed", range(5))
def test_killed_sweep_is_continued_with_equal_numbers(sweep: Whole, seed: int, tmp_path: Path) -> None:
    directory = kill_at_random(tmp_path, sweep, seed)
    run(directory, *sweep.arguments, "resume=true")
    assert len(sweep.results) == 4
    assert read_results(directory) == sweep.results
