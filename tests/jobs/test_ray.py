"""Tests of sweeps and trainings on a local Ray cluster: equal numbers, lost workers, Ctrl-C, wrong options.

python -m pytest -m alone -n 0 tests/jobs/test_ray.py
"""

import importlib.util
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

from distill.core.errors import OptionError, UserError, install_command
from distill.jobs.sweepers import RayLauncher
from distill.records.schema import SWEEP_RUNS
from distill.training.processes import WorkerError
from distill.training.strategies import allot_resources, find_cause
from tests.conftest import MakeToy, equal, run_here, weights
from tests.jobs.sweeps import LIMIT, ROOT, read_runs, start, wait_for_checkpoint

pytest.importorskip("ray", reason="needs the extra ray")
pytestmark = pytest.mark.alone  # A head of Ray and its workers stay in the process of the tests.


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[str]:
    """The address of a Ray head on this machine with two cores."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_DEDUP_LOGS", "0")
        patch.setenv("PYTHONPATH", str(ROOT))
        from ray.cluster_utils import Cluster

        cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 2, "object_store_memory": 80 * 2**20, "include_dashboard": False},
        )
        try:
            yield cluster.address
        finally:
            cluster.shutdown()


@pytest.fixture(scope="module")
def finetune(data_dir: Path, encoder_dir: Path) -> tuple[str, ...]:
    """A job that takes seconds."""
    return (
        "job=finetune", "+teacher=pretrained", f"teacher.path={encoder_dir}", "task=sst2", f"task.data_dir={data_dir}",
        "task.max_length=32", "teacher.finetune.batch_size=16", "teacher.finetune.checkpoint_steps=3",
        "teacher.accept_weak=true",
    )  # fmt: skip


def find_worker(directory: Path) -> psutil.Process:
    """Returns the worker of Ray that has locked the directory of a run."""
    for process in psutil.process_iter(["cmdline"]):
        if "ray::" in " ".join(process.info["cmdline"] or []):
            with suppress(psutil.Error):
                if str(directory / ".lock") in [file.path for file in process.open_files()]:
                    return process
    raise AssertionError(f"no worker has locked {directory}")


def without_notices(error: str) -> list[str]:
    """Returns the lines of a sweep without those of Ray's node, which tells of a disk that is nearly full."""
    return [line for line in error.splitlines() if "(raylet)" not in line]


def test_runs_equal_serial_ones_although_a_worker_is_killed_and_a_run_fails(
    ray_cluster: str, finetune: tuple[str, ...], tmp_path: Path
) -> None:
    options = (*finetune, "teacher.finetune.max_epochs=4", "teacher.finetune.learning_rate=3e-3,1e-3,-1")
    sweep = start(tmp_path / "ray", *options, "hydra/launcher=ray", f"hydra.launcher.address={ray_cluster}")
    try:
        killed = wait_for_checkpoint(tmp_path / "ray", sweep)
        find_worker(killed).kill()
        output, error = sweep.communicate(timeout=LIMIT)
    finally:
        sweep.kill()
    message = "error: got teacher.finetune.learning_rate=-1, expected a number above 0 or auto"
    assert (sweep.returncode, without_notices(error)) == (2, [f"{message} (teacher.finetune.learning_rate=-1)"])
    assert re.search(rf"\(teacher.finetune.learning_rate=\S+ pid=\d+\).* Resuming {re.escape(str(killed))}", output)
    (tmp_path / "serial").mkdir()
    serial = run_here("-m", *options, "cache_dir=cache", cwd=tmp_path / "serial")
    assert (serial.returncode, serial.stderr) == (2, f"{message}\n")
    runs = read_runs(tmp_path / "ray")
    assert [run["status"] for run in runs] == ["failed", "finished", "finished"]
    assert [run.pop("threads") for run in runs] == [1, 1, 1]  # Of num_cpus.
    assert runs == [{name: run[name] for name in run if name != "threads"} for run in read_runs(tmp_path / "serial")]
    lists = [listed.read_text().splitlines() for listed in (tmp_path / "ray").rglob(SWEEP_RUNS)]
    assert sum(map(len, lists)) == 4  # The resumed one twice.


def test_interrupt_stops_the_runs_with_a_checkpoint(
    ray_cluster: str, finetune: tuple[str, ...], tmp_path: Path
) -> None:
    options = (*finetune, "teacher.finetune.max_epochs=5000", "hydra/launcher=ray")
    sweep = start(tmp_path, *options, f"hydra.launcher.address={ray_cluster}")
    try:
        begun = wait_for_checkpoint(tmp_path, sweep)
        worker = find_worker(begun)
        sweep.send_signal(signal.SIGINT)
        _, error = sweep.communicate(timeout=LIMIT)
    finally:
        sweep.kill()
    assert sweep.returncode == 130, error
    assert "error: interrupted: 0 of 1 runs ended before; the same command with resume=true goes on" in error
    assert [run["error"] for run in read_runs(tmp_path)] == ["interrupted"]
    assert worker.wait(LIMIT) is None  # It ends with its driver.


class LosesItsWorker(CSVLogger):
    """Kills its process once, in the third step."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        lost = Path(self.log_dir) / "lost"
        if step == 2 and not lost.exists():
            lost.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        super().log_metrics(metrics, step)


@pytest.mark.slow  # Workers of Ray; that two ranks equal one is a law of processes.
def test_training_equals_ddp(ray_cluster: str, make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", ray_cluster)
    handler = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    toys = {}
    for strategy in ("ddp", "ray"):
        toys[strategy] = toy = make_toy(devices=2, batch_size=8, max_epochs=1, strategy=strategy)
        fit = toy.fit(logger=CSVLogger(str(toy.directory), name="", version=""))
        assert fit.steps == 4
    ddp, ray = toys.values()
    assert (ray.directory / "metrics.csv").read_text() == (ddp.directory / "metrics.csv").read_text()
    assert equal(weights(ray.module), weights(ddp.module))
    assert ray.module.tokens_seen == ddp.module.tokens_seen > 0
    assert sorted(path.name for path in (ray.directory / "checkpoints").iterdir()) == ["best.ckpt", "last.ckpt"]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == handler
    with pytest.raises(UserError, match=r"^got trainer\.devices=9, expected at most 2, the CPUs of the Ray cluster$"):
        make_toy(devices=9, strategy="ray").fit()


@pytest.mark.slow  # Ray Train once hung after it had started its workers again. The first test loses a worker too.
def test_training_goes_on_from_its_checkpoint_when_a_worker_is_lost(
    ray_cluster: str, make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", ray_cluster)
    options = {"devices": 2, "batch_size": 8, "max_epochs": 1, "checkpoint_steps": 1}
    ddp, ray = (make_toy(**options, strategy=strategy) for strategy in ("ddp", "ray"))
    ddp.fit()
    fit = ray.fit(logger=LosesItsWorker(str(ray.directory), name="", version=""))
    assert (ray.directory / "lost").exists()
    assert fit.steps == 4
    assert equal(weights(ray.module), weights(ddp.module))
    rows = (ray.directory / "metrics.csv").read_text()
    assert "\n0,0," not in rows  # The first step was not repeated.


@pytest.mark.parametrize(
    ("machines", "world_size", "cores"),
    [([2], 2, 1), ([8], 2, 4), ([3, 1], 2, 1), ([4, 4], 2, 4), ([7, 4], 3, 3), ([2.5], 2, 1)],
)
def test_workers_get_the_most_cores_with_which_all_fit(machines: list[float], world_size: int, cores: int) -> None:
    nodes = [{"Alive": True, "Resources": {"CPU": number, "GPU": 0.0}} for number in machines]
    nodes.append({"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}})
    assert allot_resources(nodes, world_size, torch.device("cpu")) == {"CPU": cores}
    with pytest.raises(OptionError, match=r"^got trainer\.devices=2, expected at most 0, the GPUs of the Ray cluster$"):
        allot_resources(nodes, 2, torch.device("cuda"))
    nodes[0]["Resources"] = {"CPU": 8.0, "GPU": 2.0}
    assert allot_resources(nodes[:1], 2, torch.device("cuda")) == {"CPU": 4, "GPU": 1}


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        ({1: UserError("an option is wrong")}, (UserError, "an option is wrong")),
        ({0: RuntimeError("connection lost"), 1: ZeroDivisionError("division by zero\nin a second line")},
         (WorkerError, "rank 0 of 2: RuntimeError: connection lost")),
        ({}, (WorkerError, "the training with Ray failed: no result")),
    ],
)  # fmt: skip
def test_error_of_a_worker_is_raised_here(
    failures: dict[int, Exception], expected: tuple[type[Exception], str]
) -> None:
    error = Exception("no result")
    error.worker_failures = failures  # type: ignore[attr-defined]
    found = find_cause(error, 2)
    assert (type(found), str(found)) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["address=127.0.0.1:FREE"], "got hydra.launcher.address=127.0.0.1:FREE, but there is no Ray head ("),
        (
            ["address=ray://here"],
            "got hydra.launcher.address=ray://here, expected HOST:PORT of a Ray head, auto, or null",
        ),
    ],
)
def test_wrong_option_is_reported_in_one_line(
    options: list[str], expected: str, finetune: tuple[str, ...], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])  # Nothing listens when the command runs.
    given = [f"hydra.launcher.{option.replace('FREE', port)}" for option in options]
    done = run_here("-m", *finetune, "hydra/launcher=ray", *given, cwd=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert expected.replace("FREE", port) in done.stderr


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("num_cpus", 0.5, "a whole number of cores of at least 1"),
        ("num_gpus", -1, "a number of GPUs of at least 0"),
        ("max_retries", -1, "a whole number of at least 0"),
    ],
)
def test_number_out_of_range_is_refused(option: str, value: Any, expected: str) -> None:
    options = {"address": None, "num_cpus": 1, "num_gpus": 0, "max_retries": 0, option: value}
    with pytest.raises(OptionError, match=rf"^got hydra\.launcher\.{option}={value}, expected {expected}$"):
        RayLauncher(**options).setup(hydra_context=None, task_function=None, config=None)  # type: ignore[arg-type]


def test_run_larger_than_every_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    nodes = [{"Alive": True, "Resources": {"CPU": 2.0}}, {"Alive": False, "Resources": {"CPU": 64.0}}]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    launcher = RayLauncher(address=None, num_cpus=2, num_gpus=0, max_retries=0)
    launcher.check_resources()
    for option, value, most in (("num_cpus", 4, 2), ("num_gpus", 1, 0)):
        setattr(launcher, option, value)
        with pytest.raises(
            OptionError, match=rf"^got hydra\.launcher\.{option}={value}, expected at most {most}, what"
        ):
            launcher.check_resources()
        setattr(launcher, option, 0)


def test_launcher_without_its_extra_is_refused(
    monkeypatch: pytest.MonkeyPatch, finetune: tuple[str, ...], tmp_path: Path
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else find_spec(name))
    done = run_here("-m", *finetune, "hydra/launcher=ray", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2, f"error: hydra/launcher=ray needs Ray, which is not installed: {install_command('ray')}\n"
    )  # fmt: skip
