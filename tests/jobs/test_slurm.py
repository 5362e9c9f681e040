"""Tests of sweeps on a SLURM cluster of one node, which is started here where its packages are (Debian: slurm-wlm)."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import run_here
from tests.jobs.sweeps import LIMIT, read_runs, start, wait_for_checkpoint

COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")
with_slurm = pytest.mark.skipif(
    os.getuid() != 0 or any(shutil.which(command) is None for command in COMMANDS),
    reason="needs the packages of SLURM, and root, who starts its daemons",
)
OPTIONS = (
    "job=finetune", "+teacher=pretrained", "task=sst2", "task.max_length=32", "teacher.finetune.batch_size=16",
    "teacher.finetune.checkpoint_steps=3", "teacher.accept_weak=true",
)  # fmt: skip
SLURM = ("hydra/launcher=submitit_slurm", "hydra.launcher.cpus_per_task=1", "hydra.launcher.timeout_min=60")
CONFIGURATION = """\
ClusterName=distill
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={directory}/munge.socket
SlurmUser=root
SlurmdUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def ask(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT).stdout


def wait_for(states: set[str], *command: str) -> None:
    """Waits until one of `states` is among what a command prints."""
    end = time.monotonic() + LIMIT
    while not set(subprocess.run(command, capture_output=True, text=True).stdout.split()) & states:
        assert time.monotonic() < end, command
        time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A SLURM cluster of this machine without accounting. SLURM_CONF names it."""
    daemons = []
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        # tmp_path is too long a name for a socket.
        here = Path(directory)
        here.chmod(0o711)
        for name in ("state", "spool"):
            (here / name).mkdir()
        (here / "munge.key").touch(0o400)
        (here / "munge.key").write_bytes(os.urandom(128))
        with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
            ports = first.getsockname()[1], second.getsockname()[1]
        (here / "slurm.conf").write_text(
            CONFIGURATION.format(host=socket.gethostname(), directory=here, ports=ports, cores=os.cpu_count())
        )
        patch.setenv("SLURM_CONF", str(here / "slurm.conf"))
        names = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "pid", "log-file": "log"}
        files = [f"--{option}={here / name}" for option, name in names.items()]
        munged = ["munged", "--foreground", f"--seed-file={here / 'seed'}", *files]
        try:
            for command in (munged, ["slurmctld", "-D"], ["slurmd", "-D"]):
                daemons.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
                wait_for({"munge.socket"}, "ls", directory)
            wait_for({"idle"}, "sinfo", "--noheader", "--format=%t")
            yield
        finally:
            subprocess.run(["scancel", "--user=root"], check=False)  # The jobs of a test that failed.
            for daemon in reversed(daemons):
                daemon.terminate()
                daemon.wait(LIMIT)


@with_slurm
def test_runs_equal_serial_ones_although_jobs_are_requeued_and_a_run_fails(
    cluster: None, data_dir: Path, encoder_dir: Path, tmp_path: Path
) -> None:
    options = (
        *OPTIONS, f"teacher.path={encoder_dir}", f"task.data_dir={data_dir}", "teacher.finetune.max_epochs=4",
        "teacher.finetune.learning_rate=3e-3,1e-3,-1",
    )  # fmt: skip
    sweep = start(tmp_path / "slurm", *options, *SLURM)
    try:
        begun = wait_for_checkpoint(tmp_path / "slurm", sweep)
        jobs = ask("squeue", "--noheader", "--array", "--states=RUNNING", "--format=%i").split()
        for job in jobs:
            ask("scontrol", "requeue", job)
        for job in jobs:
            wait_for({"PENDING"}, "squeue", "--noheader", "--array", "--format=%T", f"--jobs={job}")
            ask("scontrol", "update", f"JobId={job}", "StartTime=now")  # Otherwise SLURM waits for two minutes.
        _, error = sweep.communicate(timeout=LIMIT)
    finally:
        sweep.kill()
    message = "error: got teacher.finetune.learning_rate=-1, expected a number above 0 or auto"
    assert (sweep.returncode, error) == (2, f"{message} (teacher.finetune.learning_rate=-1)\n")
    outputs = [path.read_text() for path in (tmp_path / "slurm").rglob("*_log.out")]
    assert any(f"Resuming {begun}" in output for output in outputs)
    (tmp_path / "serial").mkdir()
    run_here("-m", *options, "cache_dir=cache", cwd=tmp_path / "serial")
    runs = read_runs(tmp_path / "slurm")
    assert [run["status"] for run in runs] == ["failed", "finished", "finished"]
    assert [run.pop("threads") for run in runs] == [1, 1, 1]  # Of cpus_per_task.
    assert runs == [{name: run[name] for name in runs[0]} for run in read_runs(tmp_path / "serial")]


@with_slurm
def test_cancelled_job_ends_the_sweep(cluster: None, data_dir: Path, encoder_dir: Path, tmp_path: Path) -> None:
    options = (*OPTIONS, f"teacher.path={encoder_dir}", f"task.data_dir={data_dir}", "teacher.finetune.max_epochs=5000")
    sweep = start(tmp_path, *options, *SLURM)
    try:
        wait_for_checkpoint(tmp_path, sweep)
        ask("scancel", "--user=root")
        _, error = sweep.communicate(timeout=LIMIT)
    finally:
        sweep.kill()
    assert (sweep.returncode, len(error.splitlines())) == (1, 1), error
    assert error.startswith("error: a launcher lost the worker of a run (Job ")
    assert [run["error"] for run in read_runs(tmp_path)] == ["interrupted"]


def test_machine_without_slurm_is_refused(
    data_dir: Path, encoder_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = run_here("-m", *OPTIONS, *SLURM, f"teacher.path={encoder_dir}", f"task.data_dir={data_dir}", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2, "error: hydra/launcher=submitit_slurm needs sbatch and srun: run the command on a machine of a SLURM "
        "cluster, or take hydra/launcher=submitit_local\n"
    )  # fmt: skip
