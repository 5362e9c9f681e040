"""Runs attempts as jobs of a Ray cluster, whose machines share the directory of the service."""

import shlex
from pathlib import Path

from distill.errors import UserError, first_line
from distill.options import require_package
from distill.service.engine import Attempt, EngineState, Work, prepare
from distill.service.engines.clusters import PREFIX, expecting_replies, to_handle, to_id

_STATES: dict[str, EngineState] = {"PENDING": "waiting", "RUNNING": "running"}


class RayEngine:
    """Submits each attempt to Ray's Jobs API. Ray does not try a job again; the service does.

    Args:
        directory: that of the service.
        address: `http://HOST:PORT` of the cluster's dashboard; None: of RAY_API_SERVER_ADDRESS or of this machine.
        num_cpus: cores that an attempt reserves.
        num_gpus: GPUs that an attempt reserves.

    Raises:
        UserError: if Ray is not installed or no cluster replies.
    """

    seconds_between_checks = 1.0

    def __init__(
        self, directory: Path, *, address: str | None = None, num_cpus: float = 1, num_gpus: float = 0
    ) -> None:
        require_package("ray", "--engine ray", extra="ray", name="Ray")
        from ray.job_submission import JobSubmissionClient

        self.directory, self.num_cpus, self.num_gpus = directory, num_cpus, num_gpus
        try:
            self._client = JobSubmissionClient(address)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UserError(
                f"--engine ray finds no Ray dashboard ({first_line(error)}): start one with `ray start --head`, or set "
                "RAY_API_SERVER_ADDRESS to http://HOST:8265"
            ) from error

    def submit(self, work: Work) -> str:
        """Submits the runner of an attempt."""
        command = shlex.join(prepare(work))
        try:
            self._client.submit_job(
                entrypoint=command, submission_id=to_id(work.name), entrypoint_num_cpus=self.num_cpus,
                entrypoint_num_gpus=self.num_gpus,
            )  # fmt: skip
        except RuntimeError as error:
            raise UserError(f"Ray refuses the job: {first_line(error)}") from error
        return work.name

    def state(self, handle: str) -> EngineState:
        """Returns what the files of the attempt show, and otherwise whether Ray has it."""
        attempt = Attempt.find(self.directory, handle)
        return attempt.state() or _STATES.get(self._status(handle)) or attempt.state() or "lost"

    def log(self, handle: str, offset: int) -> bytes:
        """Returns the output of the command from a byte on."""
        return Attempt.find(self.directory, handle).read_log(offset)

    def cancel(self, handle: str) -> None:
        """Stops the runner, which ends all of its processes, or takes back an attempt that waits."""
        attempt = Attempt.find(self.directory, handle)
        if attempt.is_alive():
            attempt.stop.touch()
        elif self._status(handle) in _STATES:
            with expecting_replies("Ray"):
                self._client.stop_job(to_id(handle))

    def list(self) -> list[str]:
        """Returns the attempts of this service that Ray has and that have not ended."""
        with expecting_replies("Ray"):
            jobs = self._client.list_jobs()
        names = [
            to_handle(job.submission_id)
            for job in jobs
            if (job.submission_id or "").startswith(PREFIX) and job.status in _STATES
        ]
        return [name for name in names if Attempt.find(self.directory, name).work.is_file()]

    def _status(self, handle: str) -> str:
        """Returns the status that Ray has, an empty one if it does not know the attempt."""
        with expecting_replies("Ray"):
            try:
                return str(self._client.get_job_status(to_id(handle)).value)
            except RuntimeError as error:
                if "does not exist" in str(error):
                    return ""
                raise
