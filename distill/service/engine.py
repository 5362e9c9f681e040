"""The contract of an engine, which runs the attempts of jobs somewhere, and the files of an attempt.

Every engine runs the same program, `distill.service.runner`, in a directory that it shares with the service. The files
of an attempt, and not the engine, show whether it runs and how it ended, so that a service that was killed finds out.
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from distill.installation import PACKAGE, is_checkout
from distill.storage import locks
from distill.storage.files import JsonObject, write_json

EngineState = Literal["waiting", "running", "finished", "failed", "lost"]
MARKER = "DISTILL_SERVICE_JOB"  # The environment variable with the id of the job, which all of its processes inherit.


@dataclass(frozen=True)
class Work:
    """One attempt of a job.

    Args:
        job: id of the job.
        attempt: its number, from 1.
        command: the program and its arguments.
        directory: that of the service.
        environment: variables that the command gets in addition.
        grace_seconds: time for a checkpoint after a cancel, before its processes are killed.
    """

    job: str
    attempt: int
    command: tuple[str, ...]
    directory: Path
    environment: Mapping[str, str]
    grace_seconds: float

    @property
    def name(self) -> str:
        """The name of the attempt."""
        return Attempt(self.directory, self.job, self.attempt).name


class Engine(Protocol):
    """Runs attempts of jobs. The handle of an attempt is its name, also after a restart of the service."""

    seconds_between_checks: float  # Of the state of an attempt.

    def submit(self, work: Work) -> str:
        """Starts an attempt, or hands it to a cluster, and returns its handle."""

    def state(self, handle: str) -> EngineState:
        """Returns whether the attempt waits, runs or has ended; `lost` if the engine knows nothing of it."""

    def log(self, handle: str, offset: int) -> bytes:
        """Returns the output of the attempt from a byte on."""

    def cancel(self, handle: str) -> None:
        """Begins to end all processes of the attempt, and does not wait for them. It may be called repeatedly."""

    def list(self) -> list[str]:
        """Returns the handles of attempts that wait or run."""


@dataclass(frozen=True)
class Attempt:
    """The files of one attempt: `DIRECTORY/jobs/ID/attempts/N`.

    An attempt with a file `exit.json` is over, and a runner that finds one does not begin.
    """

    directory: Path
    job: str
    number: int

    @classmethod
    def find(cls, directory: Path, name: str) -> "Attempt":
        """Returns the attempt of a name."""
        job, _, number = name.partition("/")
        return cls(directory, job, int(number))

    @property
    def name(self) -> str:
        """The id of the job and the number of the attempt: `ID/N`."""
        return f"{self.job}/{self.number}"

    @property
    def path(self) -> Path:
        """The directory of the files."""
        return self.job_directory / "attempts" / str(self.number)

    @property
    def job_directory(self) -> Path:
        """The directory of the job."""
        return job_directory(self.directory, self.job)

    @property
    def log(self) -> Path:
        """The output of the command."""
        return self.path / "log"

    @property
    def events(self) -> Path:
        """The events of the command, one JSON object a line."""
        return self.path / "events.jsonl"

    @property
    def exit(self) -> Path:
        """How the attempt ended: `code`, None where the command did not run or was lost, and `error`."""
        return self.path / "exit.json"

    @property
    def process(self) -> Path:
        """The `pid` of the runner, which locks this file for as long as it lives."""
        return self.path / "pid.json"

    @property
    def work(self) -> Path:
        """The `command` and its `environment`."""
        return self.path / "work.json"

    @property
    def stop(self) -> Path:
        """A file on which the runner stops its command, as on SIGTERM, whatever machine it is on."""
        return self.path / "stop"

    @property
    def lock(self) -> Path:
        """The lock of the job, which only one attempt holds at a time."""
        return self.job_directory / "lock"

    def is_alive(self) -> bool:
        """Returns whether the runner of this attempt runs."""
        return locks.is_held(self.process)

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

    def read_log(self, offset: int) -> bytes:
        """Returns the output of the command from a byte on."""
        try:
            with open(self.log, "rb") as file:
                file.seek(offset)
                return file.read()
        except FileNotFoundError:
            return b""

    def close(self) -> bool:
        """Ends an attempt that does not run, for good. Returns whether it is over, which it is not if it runs."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = locks.acquire(self.lock)
        if lock is None:
            return False
        try:
            if not self.exit.exists():
                write_json(self.exit, {"code": None, "error": None, "time": time.time()})
        finally:
            locks.release(lock)
        return True


def job_directory(directory: Path, job: str) -> Path:
    """Returns the directory of a job of a service."""
    return directory / "jobs" / job


def prepare(work: Work) -> tuple[str, ...]:
    """Writes the files of an attempt, and returns the command of its runner."""
    attempt = Attempt(work.directory, work.job, work.attempt)
    attempt.path.mkdir(parents=True, exist_ok=True)
    write_json(
        attempt.work,
        {
            "command": list(work.command), "environment": dict(work.environment), "grace_seconds": work.grace_seconds
        },
    )  # fmt: skip
    runner = (sys.executable, "-m", "distill.service.runner")
    return (*_find_package(), *runner, str(work.directory.absolute()), work.job, str(work.attempt))


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
