"""Runs attempts as processes of this machine."""

import contextlib
import subprocess
import time
from pathlib import Path

import psutil

from distill.service.engine import Attempt, EngineState, Work, prepare
from distill.service.processes import find_descendants, find_marked, kill

_PATIENCE = 120.0  # Seconds after which a runner that has not ended its command is killed itself.


class LocalEngine:
    """Starts a runner for each attempt, in a session of its own, which goes on when the service is killed.

    Args:
        directory: that of the service.
    """

    seconds_between_checks = 0.2

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._runners: dict[str, subprocess.Popen[bytes]] = {}
        self._cancelled: dict[str, float] = {}

    def submit(self, work: Work) -> str:
        """Starts the runner of an attempt."""
        command = prepare(work)
        with open(self._attempt(work.name).path / "runner.log", "ab") as log:
            self._runners[work.name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        return work.name

    def state(self, handle: str) -> EngineState:
        """Returns whether the runner lives, and how its command ended."""
        attempt = self._attempt(handle)
        runner = self._runners.get(handle)
        if runner is not None and runner.poll() is None:
            return attempt.state() or "waiting"  # It has just been started.
        self._runners.pop(handle, None)
        return attempt.state() or "lost"

    def log(self, handle: str, offset: int) -> bytes:
        """Returns the output of the command from a byte on."""
        return self._attempt(handle).read_log(offset)

    def cancel(self, handle: str) -> None:
        """Stops the runner, which ends all of its processes; kills those whose runner has been killed."""
        attempt = self._attempt(handle)
        runner = _find_runner(attempt)
        if runner is None:
            kill(find_marked(attempt.job))
            return
        now = time.monotonic()
        if now - self._cancelled.setdefault(handle, now) > _PATIENCE:
            kill([*find_descendants(runner.pid), runner])
        else:
            with contextlib.suppress(psutil.NoSuchProcess):
                runner.terminate()

    def list(self) -> list[str]:
        """Returns the handles of attempts whose runner lives."""
        files = self.directory.glob("jobs/*/attempts/*/pid.json")
        attempts = [Attempt(self.directory, file.parts[-4], int(file.parts[-2])) for file in files]
        return [attempt.name for attempt in attempts if attempt.is_alive()]

    def _attempt(self, handle: str) -> Attempt:
        return Attempt.find(self.directory, handle)


def _find_runner(attempt: Attempt) -> psutil.Process | None:
    """Returns the process that runs an attempt, None if there is none."""
    pid = attempt.read_process() if attempt.is_alive() else None
    try:
        runner = None if pid is None else psutil.Process(pid)
        words = [] if runner is None else runner.cmdline()
    except psutil.NoSuchProcess:
        return None
    return runner if words[-2:] == [attempt.job, str(attempt.number)] else None
