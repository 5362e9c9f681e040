"""Runs attempts as TrainJobs of a Kubernetes cluster, by the trainer client of Kubeflow's SDK.

The runtime of the cluster mounts the directory of the service at the same path, and its image has distill.
"""

import json
import os
from pathlib import Path
from typing import Any

from distill.errors import UserError, first_line
from distill.options import require_package
from distill.service.engine import Attempt, EngineState, Work, prepare
from distill.service.engines.clusters import PREFIX, expecting_replies, to_handle, to_id

RUNTIME = "distill"  # The ClusterTrainingRuntime that an administrator has set up.
_VARIABLE = "DISTILL_RUNNER"
_STATES: dict[str, EngineState] = {"Created": "waiting", "Running": "running", "Suspended": "waiting"}


def run_attempt() -> None:  # Kubeflow copies the source of this function alone.
    """Runs the command of an environment variable, in a container."""
    import json
    import os
    import subprocess
    import sys

    sys.exit(subprocess.call(json.loads(os.environ["DISTILL_RUNNER"])))


class KubernetesEngine:
    """Submits each attempt as a TrainJob.

    Args:
        directory: that of the service.
        backend: configuration of the client's backend; None: the cluster and namespace of the kubeconfig.
        runtime: the runtime of the jobs, or its name.

    Raises:
        UserError: if Kubeflow's SDK is not installed or no cluster replies.
    """

    seconds_between_checks = 5.0

    def __init__(self, directory: Path, *, backend: Any = None, runtime: Any = RUNTIME) -> None:
        require_package("kubeflow", "--engine kubernetes", extra="kubernetes", name="Kubeflow's SDK")
        from kubeflow.trainer import TrainerClient

        self.directory, self.runtime = directory, runtime
        try:
            self._client = TrainerClient(backend)
            if isinstance(runtime, str):
                self.runtime = self._client.get_runtime(runtime)
        except Exception as error:  # The client has no class of its own for a cluster that does not reply.
            raise UserError(
                f"--engine kubernetes finds no runtime {runtime} ({first_line(error)}): check the kubeconfig, and see "
                "docs/service.md for the runtime"
            ) from error

    def submit(self, work: Work) -> str:
        """Creates the TrainJob of an attempt."""
        from kubeflow.trainer import CustomTrainer
        from kubeflow.trainer.options import Name

        environment = {_VARIABLE: json.dumps(prepare(work)), "PATH": os.environ["PATH"]}
        trainer = CustomTrainer(func=run_attempt, num_nodes=1, env=environment)
        with expecting_replies("Kubernetes"):
            self._client.train(runtime=self.runtime, trainer=trainer, options=[Name(name=to_id(work.name))])
        return work.name

    def state(self, handle: str) -> EngineState:
        """Returns what the files of the attempt show, and otherwise what the cluster does."""
        attempt = Attempt.find(self.directory, handle)
        return attempt.state() or _STATES.get(self._statuses().get(to_id(handle), "")) or attempt.state() or "lost"

    def log(self, handle: str, offset: int) -> bytes:
        """Returns the output of the command from a byte on."""
        return Attempt.find(self.directory, handle).read_log(offset)

    def cancel(self, handle: str) -> None:
        """Stops the runner, which ends all of its processes, or removes a TrainJob that waits."""
        attempt = Attempt.find(self.directory, handle)
        if attempt.is_alive():
            attempt.stop.touch()
        elif self._statuses().get(to_id(handle)) in _STATES:
            with expecting_replies("Kubernetes"):
                self._client.delete_job(to_id(handle))

    def list(self) -> list[str]:
        """Returns the attempts of this service that the cluster has and that have not ended."""
        names = [
            to_handle(name)
            for name, status in self._statuses().items()
            if name.startswith(PREFIX) and status in _STATES
        ]
        return [name for name in names if Attempt.find(self.directory, name).work.is_file()]

    def _statuses(self) -> dict[str, str]:
        """Returns the status of each TrainJob."""
        with expecting_replies("Kubernetes"):
            return {job.name: self._client.get_job(job.name).status for job in self._client.list_jobs()}
