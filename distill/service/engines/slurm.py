"""Runs attempts as jobs of a SLURM cluster, by submitit. Its machines share the directory of the service."""

import subprocess
from pathlib import Path
from typing import Any

from distill.errors import UserError, first_line
from distill.jobs.slurm import check_cluster
from distill.options import require_package
from distill.service.engine import Attempt, EngineState, Work, prepare

_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "UNKNOWN")  # The last one right after the submission.
_RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED")


class SlurmEngine:
    """Submits each attempt as a job of SLURM, with the partition and account of its variables SBATCH_*.

    Args:
        directory: that of the service.
        cluster: `slurm`, or `local` for processes of this machine, as submitit has them.
        minutes: the limit of a job, after which the service submits the next attempt, which resumes.
        cpus: cores of a job.
        gpus: GPUs of a job.

    Raises:
        UserError: if submitit is not installed or this machine belongs to no cluster.
    """

    seconds_between_checks = 2.0

    def __init__(
        self, directory: Path, *, cluster: str = "slurm", minutes: int = 24 * 60, cpus: int = 4, gpus: int = 0
    ) -> None:
        require_package("submitit", "--engine slurm", extra="slurm", name="submitit")
        if cluster == "slurm":
            check_cluster("--engine slurm", instead="leave --engine out")
        self.directory, self.cluster = directory, cluster
        self._parameters = {"timeout_min": minutes, "cpus_per_task": cpus, "gpus_per_node": gpus}
        self._jobs: dict[str, Any] = {}

    def submit(self, work: Work) -> str:
        """Submits the runner of an attempt."""
        import submitit

        command = list(prepare(work))
        executor = submitit.AutoExecutor(self._folder(work.name), cluster=self.cluster)
        executor.update_parameters(name=f"distill-{work.job}-{work.attempt}", **self._parameters)
        try:
            self._jobs[work.name] = executor.submit(subprocess.call, command)
        except submitit.core.utils.FailedJobError as error:
            raise UserError(f"SLURM refuses the job: {first_line(error)}") from error
        return work.name

    def state(self, handle: str) -> EngineState:
        """Returns what the files of the attempt show, and otherwise what SLURM does."""
        attempt = Attempt.find(self.directory, handle)
        return attempt.state() or self._ask(handle) or attempt.state() or "lost"

    def log(self, handle: str, offset: int) -> bytes:
        """Returns the output of the command from a byte on."""
        return Attempt.find(self.directory, handle).read_log(offset)

    def cancel(self, handle: str) -> None:
        """Stops the runner, which ends all of its processes, or takes back a job that waits."""
        attempt = Attempt.find(self.directory, handle)
        if attempt.is_alive():
            attempt.stop.touch()
        elif (job := self._find(handle)) is not None and self._ask(handle) is not None:
            job.cancel(check=False)

    def list(self) -> list[str]:
        """Returns the attempts that SLURM has and that have not ended."""
        folders = self.directory.glob("jobs/*/attempts/*/slurm")
        names = [Attempt(self.directory, folder.parts[-4], int(folder.parts[-2])).name for folder in folders]
        return [name for name in names if self.state(name) in ("waiting", "running")]

    def _ask(self, handle: str) -> EngineState | None:
        """Returns whether SLURM lets a job wait or run, None for one that it does not."""
        job = self._find(handle)
        state = None if job is None else str(job.state).partition(" ")[0]
        if state in _WAITING:
            return "waiting"
        return "running" if state in _RUNNING else None

    def _find(self, handle: str) -> Any:
        """Returns the job of an attempt, None if it was never submitted."""
        if handle not in self._jobs:
            import submitit

            kinds = {"slurm": submitit.SlurmJob, "local": submitit.LocalJob}
            for file in self._folder(handle).glob("*_submitted.pkl"):
                self._jobs[handle] = kinds[self.cluster](self._folder(handle), file.name.partition("_")[0])
        return self._jobs.get(handle)

    def _folder(self, handle: str) -> Path:
        return Attempt.find(self.directory, handle).path / "slurm"
