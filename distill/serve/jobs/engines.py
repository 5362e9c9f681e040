"""Engines (this machine, Ray, SLURM and Kubernetes), and the program that runs one attempt there.

The runtime of a Kubernetes cluster mounts the directory of the service at the same path, and its image has distill.

Runs one attempt of a job: `python -m distill.serve.jobs.engines DIRECTORY ID ATTEMPT`. The runner holds the lock of the
job, so that it never runs twice at once, and does not begin if its attempt is over. On SIGTERM it stops the command,
which may write a checkpoint. In the end it kills whatever the command has left, also processes with a session of their
own, and writes how the command ended.
"""

import contextlib
import ctypes
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

import psutil

from distill.core import files
from distill.core.errors import UserError, first_line
from distill.core.options import require_package
from distill.jobs.command_line import check_cluster
from distill.serve.jobs.attempts import MARKER, Attempt, AttemptEngine, EngineState

_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36  # Of prctl(2).


def adopt_orphans() -> None:
    """Makes this process the parent of all descendants that lose theirs, so that none escapes; on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Lets the kernel kill this process when the one that has started it ends; on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def find_marked(job: str) -> list[psutil.Process]:
    """Returns the processes of this user, except this one, that have the id of the job in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARKER) == job:
                found.append(process)
        except (psutil.Error, OSError):  # It has ended, is a zombie, or is of another user.
            continue
    return found


def find_descendants(pid: int) -> list[psutil.Process]:
    """Returns the descendants of a process, none if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return list(psutil.Process(pid).children(recursive=True))
    return []


def kill_process(processes: Iterable[psutil.Process]) -> None:
    """Kills processes at once."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


PREFIX = "distill-"  # Of the jobs of a service, among those of others.


def to_id(attempt: Attempt) -> str:
    """Returns the name of an attempt in the cluster, where a name has no slash."""
    return PREFIX + attempt.name.replace("/", "-")


@contextlib.contextmanager
def expecting_replies(cluster: str) -> Iterator[None]:
    """Raises the errors of a client as ConnectionError, after which the service asks again."""
    try:
        yield
    except RuntimeError as error:
        raise ConnectionError(f"{cluster} does not reply as expected: {first_line(error)}") from error


class LocalEngine(AttemptEngine):
    """Starts a runner for each attempt, in a session of its own, which goes on when the service is killed.

    Args:
        patience: seconds after which a runner that has not ended its command is killed itself.
    """

    seconds_between_checks = 0.2

    def __init__(self, *, patience: float = 120.0) -> None:
        self.patience = patience
        self._runners: dict[str, subprocess.Popen[bytes]] = {}
        self._cancelled: dict[str, float] = {}

    def start(self, attempt: Attempt, runner: tuple[str, ...]) -> None:
        with open(attempt.path / "runner.log", "ab") as log:
            self._runners[attempt.name] = subprocess.Popen(
                runner, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def ask(self, attempt: Attempt) -> EngineState | None:
        runner = self._runners.get(attempt.name)
        if runner is not None and runner.poll() is None:
            return "waiting"  # It has just been started.
        self._runners.pop(attempt.name, None)
        return None

    def cancel(self, attempt: Attempt) -> None:
        """Stops the runner, which ends all of its processes; kills those whose runner has been killed."""
        runner = _find_runner(attempt)
        if runner is None:
            self.take_back(attempt)
            return
        now = time.monotonic()
        if now - self._cancelled.setdefault(attempt.name, now) > self.patience:
            kill_process([*find_descendants(runner.pid), runner])
        else:
            with contextlib.suppress(psutil.NoSuchProcess):
                runner.terminate()

    def take_back(self, attempt: Attempt) -> None:
        kill_process(find_marked(attempt.job))


def _find_runner(attempt: Attempt) -> psutil.Process | None:
    """Returns the process that runs an attempt, None if there is none."""
    pid = attempt.read_process() if attempt.is_alive() else None
    try:
        runner = None if pid is None else psutil.Process(pid)
        words = [] if runner is None else runner.cmdline()
    except psutil.NoSuchProcess:
        return None
    return runner if words[-2:] == [attempt.job, str(attempt.number)] else None


class RayEngine(AttemptEngine):
    """Submits each attempt to Ray's Jobs API. Ray does not try a job again; the service does.

    Args:
        address: `http://HOST:PORT` of the cluster's dashboard; None: of RAY_API_SERVER_ADDRESS or of this machine.
        num_cpus: cores that an attempt reserves.
        num_gpus: GPUs that an attempt reserves.

    Raises:
        UserError: if Ray is not installed or no cluster replies.
    """

    states: Mapping[str, EngineState] = MappingProxyType({"PENDING": "waiting", "RUNNING": "running"})

    def __init__(self, *, address: str | None = None, num_cpus: float = 1, num_gpus: float = 0) -> None:
        require_package("ray", "--engine ray", extra="ray", name="Ray")
        from ray.job_submission import JobSubmissionClient

        self._reserved = {"entrypoint_num_cpus": num_cpus, "entrypoint_num_gpus": num_gpus}
        try:
            self._client = JobSubmissionClient(address)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UserError(
                f"--engine ray finds no Ray dashboard ({first_line(error)}): start one with `ray start --head`, or set "
                "RAY_API_SERVER_ADDRESS to http://HOST:8265"
            ) from error

    def start(self, attempt: Attempt, runner: tuple[str, ...]) -> None:
        try:
            self._client.submit_job(entrypoint=shlex.join(runner), submission_id=to_id(attempt), **self._reserved)
        except RuntimeError as error:
            raise UserError(f"Ray refuses the job: {first_line(error)}") from error

    def ask(self, attempt: Attempt) -> EngineState | None:
        with expecting_replies("Ray"):
            try:
                return self.states.get(str(self._client.get_job_status(to_id(attempt)).value))
            except RuntimeError as error:
                if "does not exist" in str(error):
                    return None
                raise

    def take_back(self, attempt: Attempt) -> None:
        with expecting_replies("Ray"):
            self._client.stop_job(to_id(attempt))


class SlurmEngine(AttemptEngine):
    """Submits each attempt as a job of SLURM, with the partition and account of its variables SBATCH_*.

    Args:
        cluster: `slurm`, or `local` for processes of this machine, as submitit has them.
        minutes: the limit of a job, after which the service submits the next attempt, which resumes.
        cpus: cores of a job.
        gpus: GPUs of a job.

    Raises:
        UserError: if submitit is not installed or this machine belongs to no cluster.
    """

    seconds_between_checks = 2.0
    states: Mapping[str, EngineState] = MappingProxyType({
        **dict.fromkeys(("PENDING", "CONFIGURING", "REQUEUED", "UNKNOWN"), "waiting"),  # UNKNOWN: just submitted.
        **dict.fromkeys(("RUNNING", "COMPLETING", "SUSPENDED"), "running"),
    })  # fmt: skip

    def __init__(self, *, cluster: str = "slurm", minutes: int = 24 * 60, cpus: int = 4, gpus: int = 0) -> None:
        require_package("submitit", "--engine slurm", extra="slurm", name="submitit")
        if cluster == "slurm":
            check_cluster("--engine slurm", instead="leave --engine out")
        self.cluster = cluster
        self._parameters = {"timeout_min": minutes, "cpus_per_task": cpus, "gpus_per_node": gpus}
        self._jobs: dict[str, Any] = {}

    def start(self, attempt: Attempt, runner: tuple[str, ...]) -> None:
        import submitit

        executor = submitit.AutoExecutor(_folder(attempt), cluster=self.cluster)
        executor.update_parameters(name=to_id(attempt), **self._parameters)
        try:
            self._jobs[attempt.name] = executor.submit(subprocess.call, [*runner])
        except submitit.core.utils.FailedJobError as error:
            raise UserError(f"SLURM refuses the job: {first_line(error)}") from error

    def ask(self, attempt: Attempt) -> EngineState | None:
        job = self._find_job(attempt)
        return None if job is None else self.states.get(str(job.state).partition(" ")[0])

    def take_back(self, attempt: Attempt) -> None:
        self._find_job(attempt).cancel(check=False)

    def _find_job(self, attempt: Attempt) -> Any:
        """Returns the job of an attempt, None if it was never submitted."""
        if attempt.name not in self._jobs:
            import submitit

            kinds = {"slurm": submitit.SlurmJob, "local": submitit.LocalJob}
            for file in _folder(attempt).glob("*_submitted.pkl"):
                self._jobs[attempt.name] = kinds[self.cluster](_folder(attempt), file.name.partition("_")[0])
        return self._jobs.get(attempt.name)


def _folder(attempt: Attempt) -> Path:
    return attempt.path / "slurm"


RUNTIME = "distill"  # The ClusterTrainingRuntime that an administrator has set up.
_VARIABLE = "DISTILL_RUNNER"


def run_attempt() -> None:  # Kubeflow copies the source of this function alone.
    """Runs the command of an environment variable, in a container."""
    import json
    import os
    import subprocess
    import sys

    sys.exit(subprocess.call(json.loads(os.environ["DISTILL_RUNNER"])))


class KubernetesEngine(AttemptEngine):
    """Submits each attempt as a TrainJob of a Kubernetes cluster, by the trainer client of Kubeflow's SDK.

    Args:
        backend: configuration of the client's backend; None: the cluster and namespace of the kubeconfig.
        runtime: the runtime of the jobs, or its name.

    Raises:
        UserError: if Kubeflow's SDK is not installed or no cluster replies.
    """

    seconds_between_checks = 5.0
    states: Mapping[str, EngineState] = MappingProxyType(
        {"Created": "waiting", "Running": "running", "Suspended": "waiting"}
    )

    def __init__(self, *, backend: Any = None, runtime: Any = RUNTIME) -> None:
        require_package("kubeflow", "--engine kubernetes", extra="kubernetes", name="Kubeflow's SDK")
        from kubeflow.trainer import TrainerClient

        try:
            self._client = TrainerClient(backend)
            self.runtime = self._client.get_runtime(runtime) if isinstance(runtime, str) else runtime
        except Exception as error:  # The client has no class of its own for a cluster that does not reply.
            raise UserError(
                f"--engine kubernetes finds no runtime {runtime} ({first_line(error)}): check the kubeconfig, and see "
                "docs/service.md for the runtime"
            ) from error

    def start(self, attempt: Attempt, runner: tuple[str, ...]) -> None:
        from kubeflow.trainer import CustomTrainer
        from kubeflow.trainer.options import Name

        environment = {_VARIABLE: json.dumps(runner), "PATH": os.environ["PATH"]}
        trainer = CustomTrainer(func=run_attempt, num_nodes=1, env=environment)
        with expecting_replies("Kubernetes"):
            self._client.train(runtime=self.runtime, trainer=trainer, options=[Name(name=to_id(attempt))])

    def ask(self, attempt: Attempt) -> EngineState | None:
        return self.states.get(self._statuses().get(to_id(attempt), ""))

    def take_back(self, attempt: Attempt) -> None:
        with expecting_replies("Kubernetes"):
            self._client.delete_job(to_id(attempt))

    def _statuses(self) -> dict[str, str]:
        """Returns the status of each TrainJob."""
        with expecting_replies("Kubernetes"):
            return {job.name: self._client.get_job(job.name).status for job in self._client.list_jobs()}


ERROR_LENGTH = 500  # Characters.
_TAIL = 10_000  # Bytes of the log in which the error is looked for.
_RESERVE = 4096  # Bytes that are written before the command begins, so that `exit.json` fits on a full disk.
_FULL_BYTES = 1_000_000  # Free space below which the disk is full.
_CHECK_SECONDS = 0.5  # Between two looks at the file `stop`.
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


class Runner:
    """Runs the command of an attempt."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self._command: int | None = None  # The process.
        self._stopping = self._signalled = False
        self._grace = 0.0
        self._end = math.inf  # The monotonic time at which the command is killed.

    def run(self) -> int:
        """Runs the command and returns its exit code; 0 if the attempt is over."""
        attempt = self.attempt
        work = json.loads(attempt.work.read_text(encoding="utf-8"))
        self._grace = float(work["grace_seconds"])
        lock = files.acquire_lock(attempt.lock, wait=True)
        if lock is None:
            print(f"error: {attempt.lock} cannot be locked", file=sys.stderr)
            return 1
        if attempt.exit.exists():
            return 0
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGALRM, self._check)
        process = files.acquire_lock(attempt.process, wait=True)
        if process is None:
            print(f"error: {attempt.process} cannot be locked", file=sys.stderr)
            return 1
        os.write(process, json.dumps({"pid": os.getpid()}).encode())
        self._reserve()
        code = self._run_command(work["command"], work["environment"], lock)
        self._write_exit(code)
        return max(code, 0)

    def _run_command(self, command: list[str], environment: Mapping[str, str], lock: int) -> int:
        """Runs the command until all of its processes have ended, and returns its exit code, below 0 for a signal."""
        adopt_orphans()
        signal.setitimer(signal.ITIMER_REAL, _CHECK_SECONDS, _CHECK_SECONDS)
        with open(self.attempt.log, "ab") as log:
            try:
                # What the command leaves behind holds the lock of the job, also when this process is killed.
                started = subprocess.Popen(
                    command, cwd=self.attempt.job_directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    env={**os.environ, **environment, MARKER: self.attempt.job}, pass_fds=(lock,),
                    start_new_session=True, preexec_fn=die_with_parent,
                )  # fmt: skip
            except (OSError, ValueError) as error:  # For example, of a NUL in an argument.
                log.write(f"error: {command[0]} cannot be run: {first_line(error)}\n".encode())
                return 1
        self._command = started.pid
        if self._stopping:
            self._signal_command()
        while True:
            pid, status = os.waitpid(-1, 0)  # Others are orphans.
            if pid == started.pid:
                break
        self._command = None
        with contextlib.suppress(ChildProcessError):  # Where orphans are not adopted.
            while left := find_descendants(os.getpid()):
                kill_process(left)
                os.waitpid(-1, 0)
        kill_process(find_marked(self.attempt.job))
        return os.waitstatus_to_exitcode(status)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Asks the command to stop, once."""
        if not self._stopping:
            self._stopping = True
            self._signal_command()

    def _signal_command(self) -> None:
        if self._command is not None and not self._signalled:  # A second signal would prevent the checkpoint.
            self._signalled = True
            os.kill(self._command, signal.SIGTERM)
            self._end = time.monotonic() + self._grace

    def _check(self, number: int, frame: FrameType | None) -> None:
        """Stops the command if the engine wants it, and kills what has not stopped in time."""
        if self.attempt.stop.exists():
            self._stop(number, frame)
        if time.monotonic() > self._end:
            kill_process(find_descendants(os.getpid()))

    def _reserve(self) -> None:
        with open(self._draft, "wb") as file:
            file.write(b" " * _RESERVE)
            os.fsync(file.fileno())

    def _write_exit(self, code: int) -> None:
        """Writes how the command ended into the reserved blocks."""
        content = json.dumps({"code": code, "error": self._find_error(code), "time": time.time()}).encode()
        with open(self._draft, "r+b") as file:
            file.write(content)
            file.truncate()
            os.fsync(file.fileno())
        os.replace(self._draft, self.attempt.exit)

    @property
    def _draft(self) -> Path:
        return self.attempt.exit.with_suffix(".part")

    def _find_error(self, code: int) -> str | None:
        """Returns the last line of the log that is an error, or its last line, None for a success."""
        if code == 0:
            return None
        with open(self.attempt.log, "rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL))
            text = log.read().decode(errors="replace")
        lines = [line.strip() for line in _ESCAPES.sub("", text).splitlines() if line.strip()]
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        if code < 0:
            name = signal.Signals(-code).name
            words = "as the kernel does when memory is full" if code == -signal.SIGKILL else "see the log"
            return f"the command was ended by {name}, {words}"
        if not errors and shutil.disk_usage(self.attempt.path).free < _FULL_BYTES:
            return f"the disk of {self.attempt.job_directory} is full"
        return (errors or lines or [f"exit code {code}"])[-1][:ERROR_LENGTH]


def main(arguments: list[str]) -> int:
    """Runs an attempt and returns the exit code of its command."""
    directory, job, number = arguments
    return Runner(Attempt(Path(directory), job, int(number))).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
