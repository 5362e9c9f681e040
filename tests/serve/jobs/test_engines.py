"""Tests of the contract of engines, the same for each; skipped where a package or a cluster is missing.

python -m pytest -m alone -n 0 tests/serve/jobs/test_engines.py  # those of Ray, whose cluster stays in the process
"""

import importlib.util
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from distill.core.errors import UserError, install_command
from distill.serve.jobs.attempts import Attempt, AttemptEngine, read_log
from distill.service import ENGINES, create_engine
from tests.serve.jobs.programs import ESCAPING, is_running, read_pids, wait_for

CreateEngine = Callable[[], AttemptEngine]


@pytest.fixture(scope="module")
def ray_dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the dashboard of a Ray cluster of this machine."""
    pytest.importorskip("ray", reason="needs the extra ray")
    pytest.importorskip("aiohttp_cors", reason="the Jobs API needs ray[default]")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        context = ray.init(
            address="local", num_cpus=2, include_dashboard=True, object_store_memory=80 * 2**20,
            _temp_dir=f"/tmp/{tmp_path_factory.mktemp('ray').name}",
        )  # fmt: skip
        try:
            yield f"http://{context.dashboard_url}"
        finally:
            ray.shutdown()


@pytest.fixture(
    params=[
        "local", pytest.param("ray", marks=pytest.mark.alone), "slurm", "kubernetes",
    ]
)  # fmt: skip
def create(request: pytest.FixtureRequest, tmp_path: Path) -> CreateEngine:
    """Creates an engine, each time anew as after a restart of the service."""
    if request.param == "local":
        return lambda: create_engine("local")
    if request.param == "ray":
        from distill.serve.jobs.engines import RayEngine

        address = request.getfixturevalue("ray_dashboard")
        return lambda: RayEngine(address=address)
    if request.param == "slurm":
        pytest.importorskip("submitit", reason="needs the extra slurm")
        from distill.serve.jobs.engines import SlurmEngine

        return lambda: SlurmEngine(cluster="local")
    types = pytest.importorskip("kubeflow.trainer.types.types", reason="needs the extra kubernetes")
    from kubeflow.trainer import LocalProcessBackendConfig
    from kubeflow.trainer.backends.localprocess.constants import local_runtimes

    from distill.serve.jobs.engines import KubernetesEngine

    runtime = types.Runtime(name=local_runtimes[0].name, trainer=local_runtimes[0].trainer, kind=local_runtimes[0].kind)
    runtime.trainer.framework = "plain"  # With torch it would be installed for each job.
    # Each job changes the working directory of this process, to one that would be removed while the next one uses it.
    request.getfixturevalue("monkeypatch").setattr(tempfile, "tempdir", str(tmp_path))
    backend = LocalProcessBackendConfig(cleanup_venv=False)
    return lambda: KubernetesEngine(backend=backend, runtime=runtime)


def submit(engine: AttemptEngine, directory: Path, job: str, program: str, **environment: str) -> Attempt:
    attempt = Attempt(directory, job, 1)
    engine.submit(attempt, (sys.executable, "-c", program), environment, 0.2)
    return attempt


def test_attempts_run_fail_are_found_by_a_new_engine_and_end_with_all_processes(
    create: CreateEngine, tmp_path: Path
) -> None:
    engine = create()
    jobs = [secrets.token_hex(6) for _ in range(4)]  # Ids that no other test has: a cluster is that of all.
    program = "import os; print('hello', os.environ['WORD'], os.environ['DISTILL_SERVICE_JOB'])"
    attempt = submit(engine, tmp_path, jobs[0], program, WORD="world")
    wait_for(lambda: engine.state(attempt) == "finished")
    assert read_log(tmp_path, jobs[0]) == f"hello world {jobs[0]}\n".encode()
    failing = submit(engine, tmp_path, jobs[1], "import sys; sys.exit('error: there is no task x')")
    wait_for(lambda: engine.state(failing) == "failed")
    exit = failing.read_exit()
    assert exit is not None
    assert (exit["code"], exit["error"]) == (1, "there is no task x")

    assert Attempt(tmp_path, jobs[2], 1).close()
    over = submit(engine, tmp_path, jobs[2], "open('ran', 'w').close()")
    wait_for(lambda: engine.state(over) == "lost" and engine.ask(over) is None)
    for unknown in (over, Attempt(tmp_path, "nobody", 1)):
        engine.cancel(unknown)
        assert engine.state(unknown) == "lost"
    assert not (tmp_path / "jobs" / jobs[2] / "ran").exists()

    escaping = submit(engine, tmp_path, jobs[3], ESCAPING)
    pids = read_pids(tmp_path / "jobs" / jobs[3])
    second = create()
    assert second.state(escaping) == "running"
    for _ in range(3):
        second.cancel(escaping)
    wait_for(lambda: second.state(escaping) == "failed")
    assert not any(map(is_running, pids))
    wait_for(lambda: second.ask(escaping) is None)


def test_an_unknown_engine_or_one_without_its_package_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="got --engine cloud, expected one of local, ray, slurm, kubernetes"):
        create_engine("cloud")
    monkeypatch.setattr(importlib.util, "find_spec", lambda wanted: None)
    for name, words in {"ray": "Ray", "slurm": "submitit", "kubernetes": "Kubeflow's SDK"}.items():
        with pytest.raises(UserError) as caught:
            create_engine(name)
        assert str(caught.value) == f"--engine {name} needs {words}, which is not installed: {install_command(name)}"
        assert name in ENGINES


def test_ray_and_slurm_need_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="needs the extra ray")
    pytest.importorskip("submitit", reason="needs the extra slurm")
    from distill.serve.jobs.engines import RayEngine

    with pytest.raises(UserError, match="--engine ray finds no Ray dashboard .*: start one with `ray start --head`"):
        RayEngine(address="http://127.0.0.1:9")
    monkeypatch.setattr(shutil, "which", lambda command: None)
    expected = (
        "--engine slurm needs sbatch and srun: run the command on a machine of a SLURM cluster, or leave --engine"
    )
    with pytest.raises(UserError, match=expected):
        create_engine("slurm")


def test_a_job_that_ray_refuses_fails_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="needs the extra ray")
    from ray.job_submission import JobSubmissionClient

    from distill.serve.jobs.engines import RayEngine

    def refuse(*arguments: object, **options: object) -> None:
        raise RuntimeError("Request failed with status code 400: no such resource\nTraceback")

    monkeypatch.setattr(JobSubmissionClient, "__init__", lambda self, address: None)
    monkeypatch.setattr(JobSubmissionClient, "submit_job", refuse)
    with pytest.raises(UserError, match="Ray refuses the job: Request failed with status code 400: no such resource$"):
        submit(RayEngine(), tmp_path, "job", "")
    monkeypatch.setattr(JobSubmissionClient, "get_job_status", refuse)
    with pytest.raises(ConnectionError, match="Ray does not reply as expected: Request failed with status code 400"):
        RayEngine().state(Attempt(tmp_path, "job", 1))
