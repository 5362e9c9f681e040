"""Processes of a job: all descendants of its runner, and all that have its id in their environment."""

import ctypes
import os
import signal
import sys
from collections.abc import Iterable

import psutil

from distill.service.engine import MARKER

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
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def kill(processes: Iterable[psutil.Process]) -> None:
    """Kills processes at once."""
    for process in processes:
        try:
            process.kill()
        except psutil.Error:
            continue
