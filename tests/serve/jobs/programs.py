"""Stand-ins for the command of a job, and waits for what they and their processes do."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

from distill.serve.jobs.attempts import Attempt
from distill.serve.jobs.queue import QueuedJob

T = TypeVar("T")
LIMIT = 180.0  # Seconds, for what hangs.

# Starts processes that leave its group, its session and its parent, one of them without its environment, and waits.
ESCAPING = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
wait = [sys.executable, "-c", "import os, sys, signal, time; signal.signal(15, signal.SIG_IGN); "
        "open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(1000)"]
subprocess.Popen([*wait, "child"])
subprocess.Popen([*wait, "session"], start_new_session=True)
subprocess.Popen([*wait, "bare"], start_new_session=True, env={})
if os.fork() == 0:  # A daemon.
    os.setsid()
    if os.fork() == 0:
        os.execv(wait[0], [*wait, "daemon"])
    os._exit(0)
time.sleep(1000)
"""
ESCAPED = ("child", "session", "bare", "daemon")


def run_override(job: QueuedJob, attempt: Attempt) -> tuple[str, ...]:
    """Returns the command of a job whose only override is a program in Python."""
    return (sys.executable, "-c", job.overrides[0])


def wait_for(condition: Callable[[], T]) -> T:
    """Returns the first true value of a condition."""
    end = time.monotonic() + LIMIT
    while not (value := condition()):
        assert time.monotonic() < end, "it has not come about"
        time.sleep(0.01)
    return value


def read_pids(directory: Path) -> list[int]:
    """Returns the processes that `ESCAPING` has started, once all have begun."""
    wait_for(lambda: all((directory / name).is_file() and (directory / name).read_text() for name in ESCAPED))
    return [int((directory / name).read_text()) for name in ESCAPED]


def is_running(pid: int) -> bool:
    """Returns whether a process runs, which one that only waits for its parent does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
