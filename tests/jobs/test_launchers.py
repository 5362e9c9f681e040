"""Tests of sweeps with the launchers of joblib and submitit: records, exit codes, lost workers, missing extras."""

import json
import sys
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.core.plugins import Plugins
from hydra.errors import MissingConfigException

from distill import __main__ as command_line
from distill.core.errors import OptionError, install_command
from distill.jobs.sweepers import RayLauncher
from distill.records.schema import SWEEP_RUNS
from tests.conftest import run_here

OPTIONS = (
    "job=finetune", "+teacher=pretrained", "task=sst2", "task.max_length=32", "teacher.finetune.max_epochs=1",
    "teacher.finetune.batch_size=16", "teacher.accept_weak=true", "cache_dir=cache",
)  # fmt: skip


@pytest.fixture(params=["joblib", pytest.param("submitit_local", marks=pytest.mark.slow)])
def launcher(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A launcher that is installed; its processes find the packages of this checkout."""
    name = str(request.param)
    extra = {"joblib": "joblib", "submitit_local": "submitit"}[name]
    pytest.importorskip(f"hydra_plugins.hydra_{extra}_launcher", reason=f"hydra/launcher={name} is not installed")
    monkeypatch.setenv("PYTHONPATH", str(Path(command_line.__file__).resolve().parents[1]))
    yield name
    if name == "joblib":
        from joblib.externals.loky import get_reusable_executor

        get_reusable_executor().shutdown(wait=True, kill_workers=True)


def test_sweep_records_all_runs_and_reports_the_failed_one(
    launcher: str, tmp_path: Path, data_dir: Path, encoder_dir: Path
) -> None:
    rates, jobs = ("3e-3,-1", ("hydra.launcher.n_jobs=2",)) if launcher == "joblib" else ("-1", ())
    done = run_here(
        "-m", *OPTIONS, f"task.data_dir={data_dir}", f"teacher.path={encoder_dir}", f"hydra/launcher={launcher}",
        f"teacher.finetune.learning_rate={rates}", *jobs, cwd=tmp_path,
    )  # fmt: skip
    message = "got teacher.finetune.learning_rate=-1, expected a number above 0 or auto"
    assert done.returncode == 2
    assert [line for line in done.stderr.splitlines() if line.startswith("error")] == [
        f"error: {message} ({'teacher.finetune.learning_rate=-1' if jobs else 'run'})"
    ]
    records = [json.loads(path.read_text()) for path in (tmp_path / "runs").rglob("run.json")]
    assert sorted(record["status"] for record in records) == (["failed", "finished"] if jobs else ["failed"])
    assert all(f"hydra/launcher={launcher}" in record["command"] for record in records)
    lists = [listed.read_text().splitlines() for listed in (tmp_path / "runs").rglob(SWEEP_RUNS)]
    assert sum(map(len, lists)) == len(records)


def test_a_run_that_only_the_machines_of_a_ray_cluster_together_could_run_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = [{"Alive": True, "Resources": {"CPU": cores}} for cores in (2.0, 3.0)]
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(nodes=lambda: nodes))
    RayLauncher(address=None, num_cpus=3, num_gpus=0, max_retries=0).check_resources()
    with pytest.raises(OptionError, match="num_cpus=4, expected at most 3, what the largest machine"):
        RayLauncher(address=None, num_cpus=4, num_gpus=0, max_retries=0).check_resources()


@pytest.mark.parametrize(
    ("error", "code", "expected"),
    [
        (
            BrokenProcessPool("It was killed."),
            1,
            "error: a launcher lost the worker of a run (It was killed.); the same",
        ),
        (
            KeyboardInterrupt(),
            130,
            "error: interrupted while runs were going on; the same command with resume=true goes",
        ),
    ],
)
def test_lost_worker_and_interrupt_are_reported_in_one_line(
    error: BaseException, code: int, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(*arguments: object, **options: object) -> None:
        raise error

    basic = Plugins.instance().class_name_to_class["hydra._internal.core_plugins.basic_launcher.BasicLauncher"]
    monkeypatch.setattr(basic, "launch", launch)
    done = run_here("-m", *OPTIONS, cwd=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (code, 1)
    assert done.stderr.startswith(expected)


@pytest.mark.parametrize(("name", "extra"), [("joblib", "joblib"), ("submitit_slurm", "slurm")])
def test_launcher_without_its_extra_is_refused(name: str, extra: str) -> None:
    error = MissingConfigException("", missing_cfg_file=f"hydra/launcher/{name}")
    translated = command_line._translate(error)
    assert translated.exit_code == 2
    assert str(translated) == f"hydra/launcher={name} is not installed: {install_command(extra)}"
