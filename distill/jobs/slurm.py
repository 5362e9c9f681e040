"""Sweeps on a SLURM cluster: its commands, the states of jobs, and what a run in a job does otherwise."""

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from distill.errors import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig

_DELAY = 60  # Seconds between two questions at most. squeue forgets a job 300 s after its end (MinJobAge).


def prepare(config: "DictConfig") -> None:
    """Prepares a sweep with `hydra/launcher=submitit_slurm`; does nothing for one with another launcher.

    Raises:
        UserError: if this machine does not belong to a SLURM cluster.
    """
    if config.hydra.launcher._target_.endswith(".SlurmLauncher"):
        check_cluster("hydra/launcher=submitit_slurm", instead="take hydra/launcher=submitit_local")


def check_cluster(option: str, *, instead: str) -> None:
    """Prepares submitit for the cluster of this machine.

    submitit asks `sacct` for the states of jobs. On a cluster that keeps no accounts it would wait for a cancelled job
    for ever, so `squeue` is asked there.

    Args:
        option: that needs the cluster, for the message.
        instead: advice for a machine without one.

    Raises:
        UserError: if this machine does not belong to a SLURM cluster.
    """
    missing = [command for command in ("sbatch", "srun") if shutil.which(command) is None]
    if missing:
        raise UserError(
            f"{option} needs {' and '.join(missing)}: run the command on a machine of a SLURM cluster, or {instead}"
        )
    if shutil.which("sacct") is None or subprocess.run(["sacct", "--noheader"], capture_output=True).returncode != 0:
        _ask_squeue()


def in_job() -> bool:
    """Returns whether this process is a job of `hydra/launcher=submitit_slurm`.

    When SLURM stops it, it must end without a result: the sweep would take a result for the end of a job that SLURM
    starts again.
    """
    return os.environ.get("SUBMITIT_EXECUTOR") == "slurm"


def use_allotted_cores() -> None:
    """Gives a run in a job as many threads as the job has cores, whether SLURM binds it to them or not."""
    cores = os.environ.get("SLURM_CPUS_PER_TASK")
    if in_job() and cores:
        import torch

        os.environ["OMP_NUM_THREADS"] = cores
        torch.set_num_threads(int(cores))


def _ask_squeue() -> None:
    from submitit.slurm.slurm import SlurmInfoWatcher, SlurmJob

    class QueueWatcher(SlurmInfoWatcher):  # type: ignore[misc]
        """Reads the states of jobs from `squeue`."""

        def _make_command(self) -> list[str] | None:
            numbers = {number.split("_")[0] for number in self._registered - self._finished}
            if not numbers:
                return None
            form = ["--noheader", "--states=all", "--array", "--format=%i|%T|%N"]
            return ["squeue", *form, f"--jobs={','.join(sorted(numbers))}"]

        def read_info(self, string: bytes | str) -> dict[str, dict[str, str]]:
            rows = string if isinstance(string, str) else string.decode()
            return dict(super().read_info(f"JobID|State|NodeList\n{rows}"))

    SlurmJob.watcher = QueueWatcher(delay_s=_DELAY)
