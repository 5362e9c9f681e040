"""Runs one attempt of a job: `python -m distill.service.runner DIRECTORY ID ATTEMPT`.

The runner holds the lock of the job, so that it never runs twice at once, and does not begin if its attempt is over. On
SIGTERM it stops the command, which may write a checkpoint. In the end it kills whatever the command has left, also
processes with a session of their own, and writes how the command ended.
"""

import contextlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from distill.errors import first_line
from distill.service.engine import MARKER, Attempt
from distill.service.processes import adopt_orphans, die_with_parent, find_descendants, find_marked, kill
from distill.storage import locks

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
        lock = locks.acquire(attempt.lock, wait=True)
        if lock is None:
            print(f"error: {attempt.lock} cannot be locked", file=sys.stderr)
            return 1
        if attempt.exit.exists():
            return 0
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGALRM, self._check)
        process = locks.acquire(attempt.process, wait=True)
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
                kill(left)
                os.waitpid(-1, 0)
        kill(find_marked(self.attempt.job))
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
            kill(find_descendants(os.getpid()))

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
