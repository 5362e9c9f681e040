"""Locks of files that end with the process that holds them, however it ends.

They are those of `flock`, which most network file systems show to other machines. Without `flock`, as on Windows,
nothing is locked.
"""

import os
import sys
from pathlib import Path

if sys.platform != "win32":
    import fcntl


def acquire(path: Path, *, shared: bool = False, wait: bool = False) -> int | None:
    """Locks a file, which is created if it is missing; returns its descriptor, which `release` takes.

    Returns None where another descriptor has a lock that excludes this one, and where nothing can be locked. A shared
    lock needs no right to write the file.

    Args:
        shared: whether others may hold shared locks at the same time.
        wait: whether to wait until others have released theirs.
    """
    if sys.platform == "win32":
        return None
    descriptor = _open(path)
    if descriptor is None:
        return None
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def release(descriptor: int | None) -> None:
    """Ends a lock; None is none."""
    if descriptor is not None:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Returns whether a file may be locked: also where this cannot be found out."""
    if not path.is_file():
        return False
    descriptor = acquire(path)
    release(descriptor)
    return descriptor is None


def _open(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        try:
            return os.open(path, os.O_RDONLY)
        except OSError:
            return None
