"""Attempts of jobs: the contract of the engines that run them, and the dispatcher that starts and follows them.

The contract of an engine, which runs the attempts of jobs somewhere, and the files of an attempt. Every engine runs the
same program, `distill.serve.jobs.engines`, in a directory that it shares with the service. The files of an attempt, and
not the engine, show whether it runs and how it ended, so that a service that was killed finds out.

Starts queued jobs on an engine, follows their attempts, and records how they end. The files of an attempt and the queue
have all that the dispatcher needs, so that one which was killed at any moment is continued by the next: it records
attempts that have ended, follows those that run, and tries lost ones again.
"""

import json
import math
import os
import signal
import sqlite3
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from distill.core import files
from distill.core.errors import PACKAGE, DistillError, UserError, first_line, is_checkout
from distill.core.files import JsonObject, write_json
from distill.serve.jobs.allowed_options import MULTIRUN
from distill.serve.jobs.queue import LIVE, EventData, Queue, QueuedJob, StaleAttemptError, State

EngineState = Literal["waiting", "running", "finished", "failed", "lost"]
MARKER = "DISTILL_SERVICE_JOB"  # The environment variable with the id of the job, which all of its processes inherit.


class Attempt:
    """The files of one attempt: `DIRECTORY/jobs/ID/attempts/N`.

    An attempt with a file `exit.json` is over, and a runner that finds one does not begin.

    Args:
        directory: that of the service.
        job: id of the job.
        number: of the attempt, from 1.

    Attributes:
        name: the id of the job and the number of the attempt, `ID/N`, by which engines know it.
        job_directory: the directory of the job.
        lock: the lock of the job, which only one attempt holds at a time.
        path: the directory of the files.
        log: the output of the command.
        events: the events of the command, one JSON object a line.
        exit: how the attempt ended: `code`, None where the command did not run or was lost, and `error`.
        process: the `pid` of the runner, which locks this file for as long as it lives.
        work: the `command`, its `environment`, and the `grace_seconds` for a checkpoint after a cancel.
        stop: a file on which the runner stops its command, as on SIGTERM, whatever machine it is on.
    """

    def __init__(self, directory: Path, job: str, number: int) -> None:
        self.directory, self.job, self.number = directory, job, number
        self.name = f"{job}/{number}"
        self.job_directory = job_directory(directory, job)
        self.lock = self.job_directory / "lock"
        self.path = self.job_directory / "attempts" / str(number)
        self.log = self.path / "log"
        self.events = self.path / "events.jsonl"
        self.exit = self.path / "exit.json"
        self.process = self.path / "pid.json"
        self.work = self.path / "work.json"
        self.stop = self.path / "stop"

    def is_alive(self) -> bool:
        """Returns whether the runner of this attempt runs."""
        return files.is_locked(self.process)

    def state(self) -> EngineState | None:
        """Returns the state that the files show, None where they show neither a runner nor an end."""
        if self.is_alive():
            return "running"
        exit = self.read_exit()
        if exit is None:
            return None
        if exit["code"] is None:
            return "lost"
        return "finished" if exit["code"] == 0 else "failed"

    def read_exit(self) -> JsonObject | None:
        """Returns how the attempt ended, None if it is not over."""
        return _read_json(self.exit)

    def read_process(self) -> int | None:
        """Returns the process of the runner, None if it is not known yet."""
        content = _read_json(self.process)
        return None if content is None else int(content["pid"])

    def close(self) -> bool:
        """Ends an attempt that does not run, for good. Returns whether it is over, which it is not if it runs."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = files.acquire_lock(self.lock)
        if lock is None:
            return False
        try:
            if not self.exit.exists():
                write_json(self.exit, {"code": None, "error": None, "time": time.time()})
        finally:
            files.release_lock(lock)
        return True


def job_directory(directory: Path, job: str) -> Path:
    """Returns the directory of a job of a service."""
    return directory / "jobs" / job


def _read_json(path: Path) -> JsonObject | None:
    """Returns the content of a file, None if it is missing or is being written."""
    try:
        content: JsonObject = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return content


def _find_package() -> tuple[str, ...]:
    """Returns the begin of a command that finds this package from any directory, nothing if it is installed."""
    if not is_checkout():
        return ()
    paths = filter(None, (str(PACKAGE.parent), os.environ.get("PYTHONPATH")))
    return ("env", f"PYTHONPATH={os.pathsep.join(paths)}")


class AttemptEngine(ABC):
    """Runs attempts: what their files show comes first, and then what the machine or cluster says that has them.

    An engine knows an attempt by its name, also after a restart of the service.

    Attributes:
        seconds_between_checks: of the state of an attempt.
    """

    seconds_between_checks = 1.0

    @abstractmethod
    def start(self, attempt: Attempt, runner: tuple[str, ...]) -> None:
        """Starts the command of an attempt's runner, or hands it to the cluster."""

    @abstractmethod
    def ask(self, attempt: Attempt) -> EngineState | None:
        """Returns whether the cluster lets an attempt wait or run, None for one that it does not."""

    @abstractmethod
    def take_back(self, attempt: Attempt) -> None:
        """Removes an attempt that waits."""

    def submit(
        self, attempt: Attempt, command: Sequence[str], environment: Mapping[str, str], grace_seconds: float
    ) -> None:
        """Writes the files of an attempt and starts it, or hands it to a cluster.

        Args:
            command: the program and its arguments.
            environment: variables that the command gets in addition.
            grace_seconds: time for a checkpoint after a cancel, before its processes are killed.
        """
        attempt.path.mkdir(parents=True, exist_ok=True)
        work = {"command": list(command), "environment": dict(environment), "grace_seconds": grace_seconds}
        write_json(attempt.work, work)
        module = (sys.executable, "-m", "distill.serve.jobs.engines")
        self.start(
            attempt, (*_find_package(), *module, str(attempt.directory.absolute()), attempt.job, str(attempt.number))
        )

    def state(self, attempt: Attempt) -> EngineState:
        """Returns whether the attempt waits, runs or has ended; `lost` if neither its files nor the cluster know it."""
        return attempt.state() or self.ask(attempt) or attempt.state() or "lost"

    def cancel(self, attempt: Attempt) -> None:
        """Begins to end all processes of the attempt, and does not wait for them. It may be called repeatedly."""
        if attempt.is_alive():
            attempt.stop.touch()
        elif self.ask(attempt) is not None:
            self.take_back(attempt)


def read_log(directory: Path, job: str, offset: int = 0, limit: int = 1_000_000) -> bytes:
    """Returns `limit` bytes of the output of all attempts of a job, one after the other, from a byte on."""
    found = []
    numbers = sorted(int(path.name) for path in (job_directory(directory, job) / "attempts").glob("[0-9]*"))
    for number in numbers:
        log = Attempt(directory, job, number).log
        size = log.stat().st_size if log.is_file() else 0
        if offset < size and limit > 0:
            with open(log, "rb") as file:
                file.seek(offset)
                found.append(file.read(limit))
            limit -= len(found[-1])
        offset = max(0, offset - size)
    return b"".join(found)


SERVICE_LOCK = "lock"  # In the directory of a service.
EVENTS_VARIABLE = "DISTILL_EVENTS"  # The file to which the chain appends its events.
_READ_BYTES = 1_000_000  # Of events at a time.
_RETRY_SECONDS = 2.0  # After an error of the disk or of the engine.
# Exit codes of a command that was stopped and can go on.
_INTERRUPTED = (130, 128 + signal.SIGTERM, -signal.SIGTERM, -signal.SIGINT)

# As of a full disk, or of a cluster that does not reply.
_ERRORS = (OSError, sqlite3.Error, DistillError)

BuildCommand = Callable[[QueuedJob, Attempt], tuple[str, ...]]


def build_command(job: QueuedJob, attempt: Attempt) -> tuple[str, ...]:
    """Returns the command of an attempt, which resumes what an earlier one has begun.

    Its runs are in `runs` of the job's directory, and the cache is that of the service.
    """
    program = (sys.executable, "-m", "distill")
    runs = attempt.job_directory / "runs"
    begun = sorted(
        (path.parent for path in runs.rglob("run.json") if path.with_name("config.yaml").is_file()),
        key=lambda path: path.stat().st_mtime_ns,
    )
    is_sweep = any(option in MULTIRUN for option in job.overrides)
    if begun and not is_sweep:
        return (*program, f"resume={begun[-1]}", *(option for option in job.overrides if option.startswith("trust=")))
    places = {"output_dir": runs, "cache_dir": attempt.directory / "cache"}
    if is_sweep:
        places["hydra.sweep.dir"] = runs / "sweep"
    return (*program, *add_places(job.overrides, places), *(["resume=true"] if begun else []))


def add_places(overrides: Sequence[str], places: Mapping[str, Path]) -> tuple[str, ...]:
    """Returns overrides with those of directories that they do not name themselves."""
    given = {override.partition("=")[0] for override in overrides}
    return (*overrides, *(f"{name}={path.absolute()}" for name, path in places.items() if name not in given))


class Dispatcher:
    """Runs the jobs of a queue in a thread.

    Args:
        queue: the jobs.
        engine: where they run.
        directory: that of the service.
        workers: largest number of jobs at once.
        grace_seconds: time for a checkpoint after a cancel, before the processes of a job are killed.
        build_command: returns the command of an attempt.
    """

    def __init__(
        self, queue: Queue, engine: AttemptEngine, directory: Path, workers: int = 1, *,
        grace_seconds: float = 20.0, build_command: BuildCommand = build_command,
    ) -> None:  # fmt: skip
        if workers < 1:
            raise UserError(f"got {workers} workers, expected at least 1")
        self.queue, self.engine, self.directory, self.workers = queue, engine, directory, workers
        self._grace_seconds, self._build_command = grace_seconds, build_command
        self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)
        self._changed = threading.Event()
        self._idle = threading.Event()
        self._draining = self._stopping = False
        self._lock: int | None = None
        self._warning = ""

    def lock(self) -> None:
        """Takes the directory, until `stop`.

        Raises:
            UserError: if another service uses the directory.
        """
        if self._lock is not None:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = files.acquire_lock(self.directory / SERVICE_LOCK)
        if self._lock is None:
            raise UserError(f"{self.directory} is in use by another service: stop it, or give another directory")

    def start(self) -> None:
        """Begins to run jobs, and takes over those that an earlier service has left.

        Raises:
            UserError: if another service uses the directory.
        """
        self.lock()
        self._thread.start()

    def wake(self) -> None:
        """Lets the dispatcher look at the queue at once, as after a job was added or cancelled."""
        self._changed.set()

    def drain(self, timeout: float | None = None) -> bool:
        """Begins no more jobs and waits until those that run have ended. Returns whether they have within `timeout` s.

        The dispatcher goes on without new jobs until `stop`.
        """
        self._idle.clear()
        self._draining = True
        self.wake()
        return self._idle.wait(timeout)

    def stop(self) -> None:
        """Ends the dispatcher and leaves jobs running, which the next one follows."""
        self._stopping = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join()
        files.release_lock(self._lock)
        self._lock = None

    def is_alive(self) -> bool:
        """Returns whether jobs are started and followed."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping:
            self._changed.clear()
            try:
                pause = self._step()
            except _ERRORS as error:
                self._warn("the queue cannot be read", error)
                pause = _RETRY_SECONDS
            if not self._stopping:
                self._changed.wait(pause)

    def _step(self) -> float | None:
        """Follows all live jobs and starts others. Returns the seconds until the next step, None if no job is live."""
        pause = self.engine.seconds_between_checks
        for job in self.queue.jobs(states=LIVE):
            try:
                self._follow(job)
            except StaleAttemptError:
                continue
            except _ERRORS as error:
                self._warn(f"job {job.id} cannot be followed", error)
                pause = _RETRY_SECONDS
        live = len(self.queue.jobs(states=LIVE))
        while not self._draining and live < self.workers and (claimed := self.queue.claim()) is not None:
            live += 1
            try:
                self._submit(claimed)
            except _ERRORS as error:  # The job returns to the queue with the next step.
                self._warn(f"job {claimed.id} cannot be started", error)
                return _RETRY_SECONDS
        if self._draining and not live:
            self._idle.set()
        return pause if live else None

    def _warn(self, subject: str, error: Exception) -> None:
        """Prints a warning, unless it was the last one."""
        warning = f"warning: {subject}: {first_line(error)}"
        if warning != self._warning:
            print(warning, file=sys.stderr, flush=True)
        self._warning = warning

    def _submit(self, job: QueuedJob) -> None:
        attempt = Attempt(self.directory, job.id, job.attempt)
        environment = {EVENTS_VARIABLE: str(attempt.events.absolute()), "PYTHONUNBUFFERED": "1"}
        try:
            self.engine.submit(attempt, self._build_command(job, attempt), environment, self._grace_seconds)
        except UserError as error:  # The engine will never take it.
            attempt.close()
            self.queue.finish(job.id, job.attempt, State.FAILED, str(error))

    def _follow(self, job: QueuedJob) -> None:
        """Records news of a live job, and its end."""
        attempt = Attempt(self.directory, job.id, job.attempt)
        exit = attempt.read_exit()
        self._read_events(job, attempt)  # After the end there are no more.
        if exit is not None:
            self._end(job, exit, begun=attempt.process.exists())
            return
        is_alive = attempt.is_alive()
        is_lost = not is_alive and self.engine.state(attempt) not in ("waiting", "running")
        if is_lost or job.state == State.CANCELLING:
            self.engine.cancel(attempt)  # A lost attempt may have left processes.
            if not is_alive:
                attempt.close()

    def _end(self, job: QueuedJob, exit: JsonObject, *, begun: bool) -> None:
        code = exit["code"]
        if code is None or (code in _INTERRUPTED and job.state == State.RUNNING):
            self.queue.requeue(job.id, job.attempt, begun=begun)
        else:
            state = State.FINISHED if code == 0 else State.FAILED
            self.queue.finish(job.id, job.attempt, state, exit["error"])

    def _read_events(self, job: QueuedJob, attempt: Attempt) -> None:
        """Adds the lines that the command has written since the last time to the events of the job."""
        offset = self.queue.offset(job.id)
        while attempt.events.is_file():
            with open(attempt.events, "rb") as file:
                file.seek(offset)
                content = file.read(_READ_BYTES)
            complete = content.rfind(b"\n") + 1
            if not complete and len(content) < _READ_BYTES:
                return
            complete = complete or len(content)  # A line that is too long is left out.
            events = [event for line in content[:complete].splitlines() if (event := _parse(line)) is not None]
            offset += complete
            self.queue.record(job.id, job.attempt, *events, offset=offset)


def _parse(line: bytes) -> EventData | None:
    """Returns the event of a line, with null for numbers that JSON cannot represent; None for a line that is none."""
    try:
        event: Any = json.loads(line, parse_constant=lambda name: None)
    except ValueError:
        return None
    if not isinstance(event, dict) or not isinstance(event.get("kind"), str) or event["kind"] == "state":
        return None
    numbers = [event.get(name) for name in ("progress", "seconds_left")]
    metrics = event.get("metrics", {})
    if not isinstance(metrics, dict) or not all(map(_is_number, [*numbers, *metrics.values()])):
        return None
    if not isinstance(event.get("stage"), str | None):
        return None
    if not event.get("time") or not _is_number(event["time"]):
        event.pop("time", None)
    return event


def _is_number(value: object) -> bool:
    """Returns whether a value is a finite number, or null for one that is not known."""
    return value is None or (isinstance(value, int | float) and math.isfinite(value))
