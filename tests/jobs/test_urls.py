"""Tests of runs whose cache and output are behind URLs, which several machines share. Each has copies of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from distill.core import storage
from distill.records.run import open_run
from tests.jobs import sweeps
from tests.jobs.conftest import Command

FINETUNE = (
    "job=finetune", "+teacher=pretrained", "task=sst2", "task.max_length=32", "teacher.finetune.max_epochs=1",
    "teacher.finetune.learning_rate=3e-3", "teacher.finetune.batch_size=16", "teacher.accept_weak=true",
)  # fmt: skip


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The directory behind the URLs."""
    return tmp_path / "there"


@pytest.fixture
def finetune(there: Path, data_dir: Path, encoder_dir: Path) -> tuple[str, ...]:
    """A job that takes seconds."""
    paths = (f"task.data_dir={data_dir}", f"teacher.path={encoder_dir}")
    return (*FINETUNE, *paths, f"cache_dir=file://{there}/cache", f"output_dir=file://{there}/runs")


@pytest.fixture
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that goes on on another machine: with the copies that it has, none at first."""
    return lambda name: monkeypatch.setenv("DISTILL_MIRROR", str(tmp_path / name))


def read_runs(there: Path) -> list[dict[str, Any]]:
    paths = sorted((there / "runs").rglob("run.json"))
    return [json.loads(path.read_text()) | {"directory": path.parent} for path in paths]


def test_sweep_of_another_machine_is_reported_and_goes_on(
    command: Command, finetune: tuple[str, ...], there: Path, on: Any, tmp_path: Path
) -> None:
    on("first")
    code, output, error = command("-m", *finetune, "teacher.finetune.seed=0,1")
    assert code == 0, error
    first = read_runs(there)
    assert {run["status"] for run in first} == {"finished"}
    assert f"Sent     file://{first[0]['directory']}" in output
    [sweep] = (there / "runs" / "sweeps").iterdir()
    assert {"report.html", "report.md"} < {path.name for path in sweep.iterdir()}
    on("reader")
    for directory in (sweep, there / "runs", read_runs(there)[0]["directory"]):
        shutil.rmtree(tmp_path / "reader", ignore_errors=True)
        (directory / "report.html").unlink(missing_ok=True)
        code, _, error = command("job=report", f"runs=file://{directory}")
        assert code == 0, error
        assert (directory / "report.html").is_file()
        assert (directory / "report-paper" / "figures.tex").is_file()
        assert not list((tmp_path / "reader").rglob("*.safetensors"))  # Weights are in no report.
    code, _, error = command("job=report", f"runs=file://{there}/nothing")
    assert (code, f"runs=file://{there}/nothing is no directory: give that of a run" in error) == (2, True)
    on("second")
    code, output, error = command("-m", *finetune, "teacher.finetune.seed=0,1,2", "resume=true")
    assert code == 0, error
    assert output.count("is finished already") == 2
    third = next(run for run in read_runs(there) if run["directory"] not in [run["directory"] for run in first])
    assert third["status"] == "finished"
    on("third")
    code, output, error = command(*finetune, "teacher.finetune.seed=2")
    assert code == 0, error
    assert "fine-tuned before, read from" in output
    assert len(read_runs(there)) == 4
    assert [path.name for path in (there / "cache" / "teachers").iterdir() if path.name.startswith(".")] == []


def test_killed_run_is_resumed_on_another_machine_with_the_same_result(
    command: Command, finetune: tuple[str, ...], there: Path, on: Any, tmp_path: Path
) -> None:
    on("undisturbed")
    long = ("teacher.finetune.checkpoint_steps=3", "teacher.finetune.max_epochs=8")
    finetune = (*(option for option in finetune if "max_epochs" not in option), *long)
    whole = [option for option in finetune if not option.startswith(("cache_dir", "output_dir"))]
    assert command(*whole, "cache_dir=cache", "output_dir=whole")[0] == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "distill", *finetune], cwd=tmp_path, start_new_session=True,
        env={**os.environ, "DISTILL_MIRROR": str(tmp_path / "lost"), "PYTHONPATH": str(sweeps.ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    directory = sweeps.wait_for_checkpoint(there / "runs", process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert json.loads((directory / "run.json").read_text())["status"] == "running"
    on("second")
    code, output, error = command(f"resume=file://{directory}")
    assert code == 0, error
    assert f"Resuming file://{directory}" in output
    assert open_run(directory).record["status"] == "finished"
    weights = [next(place.rglob("model/model.safetensors")) for place in (tmp_path / "whole", directory)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    on("third")
    code, output, error = command(f"resume=file://{directory}")
    assert (code, "is finished already" in output) == (0, True), error


def test_run_whose_end_could_not_be_sent_is_complete_here_and_sent_later(
    command: Command, finetune: tuple[str, ...], there: Path, on: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    on("first")
    put = storage._put

    def lose_connection(fs: Any, path: Path, target: str) -> None:
        if path.name == "run.json" and json.loads(path.read_text())["status"] == "finished":
            raise ConnectionError("no route to host")
        put(fs, path, target)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "_put", lose_connection)
        code, output, error = command(*finetune)
    assert code == 2
    [run] = read_runs(there)
    [line] = error.splitlines()
    assert line.startswith(
        f"error: file://{run['directory']} cannot be written (ConnectionError: no route to host); its"
    )
    assert "Notice: file://" in output  # From the moment on at which it was lost.
    assert run["status"] == "running"
    assert command(f"resume=file://{run['directory']}")[0] == 0
    assert [run["status"] for run in read_runs(there)] == ["finished"]


def test_optuna_search_goes_on_on_another_machine(
    command: Command, finetune: tuple[str, ...], there: Path, on: Any
) -> None:
    pytest.importorskip("optuna")
    search = (
        "-m", "hydra/sweeper=optuna", *finetune, f"hydra.sweep.dir=file://{there}/sweeps/mine",
        "hydra.sweeper.objectives=[bytes]", "teacher.finetune.seed=0,1",
    )  # fmt: skip
    for name, trials in (("first", 1), ("second", 2)):
        on(name)
        code, _, error = command(*search, f"hydra.sweeper.trials={trials}")
        assert code == 0, error
        assert len(read_runs(there)) == trials


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("output_dir=nosuch://bucket/runs",), "nosuch://bucket/runs cannot be read (ValueError: Protocol not known"),
        (("-m", "hydra.sweep.dir='s3://bucket/a'"), "hydra.sweep.dir=s3://bucket/a of a YAML file is no path: give"),
    ],
)
def test_urls_that_cannot_be_used_are_refused_in_one_line(
    options: tuple[str, ...], message: str, command: Command, finetune: tuple[str, ...], on: Any
) -> None:
    on("first")
    names = {option.partition("=")[0] for option in options}
    code, _, error = command(*(given for given in finetune if given.partition("=")[0] not in names), *options)
    assert (code, len(error.splitlines())) == (2, 1)
    assert error.startswith(f"error: {message}")


def test_directory_behind_a_url_that_cannot_be_written_is_refused_before_any_work(
    command: Command, finetune: tuple[str, ...], there: Path, on: Any
) -> None:
    on("first")
    there.mkdir()
    (there / "runs").write_text("a file")
    code, output, error = command(*finetune)
    assert (code, len(error.splitlines())) == (2, 1)
    assert error.startswith(f"error: file://{there}/runs/sst2/")
    assert "cannot be written (" in error
    assert "step" not in output


def test_cache_job_names_the_copy(command: Command, there: Path, on: Any, tmp_path: Path) -> None:
    on("first")
    code, _, error = command("job=cache", f"cache_dir=file://{there}")
    assert code == 2
    assert f"cache_dir={tmp_path}/first/file/-{there} is the copy of file://{there}" in error
