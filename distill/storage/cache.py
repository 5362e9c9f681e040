"""Entries of the cache directory, each of which is written once, whole, and read by all later runs.

If the cache is at a URL, an entry that is missing here is fetched, and a new one is sent. A run holds a shared lock of
each entry that it reads, so that `job=cache` does not remove it. A complete cache may be read-only.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distill.console import print_notice
from distill.errors import UserError
from distill.storage import locks, mirror
from distill.storage.files import atomic_directory, is_intact, make_directory

LEASE = ".lease"  # In an entry: the file that its readers lock.
_held: dict[Path, int] = {}  # The descriptors of the locks of this process by entry.


def entry_key(kind: str, version: int, *parts: object) -> str:
    """Returns the SHA-256 of everything that an entry depends on; an entry of another version is never read.

    Args:
        kind: of the entries, whose other versions and kinds have other keys.
        version: of the format of these entries.
        parts: values that JSON can represent.
    """
    return hashlib.sha256(json.dumps(["distill", kind, version, *parts], sort_keys=True).encode()).hexdigest()


def open_cache(directory: Path) -> None:
    """Creates the cache's directory; one that is there may be read-only.

    Raises:
        UserError: if the directory cannot be created.
    """
    if not directory.is_dir():
        make_directory(directory)


def has_entry(directory: Path, *, needed: bool = True) -> bool:
    """Returns whether the cache has this entry and its checksums match; it is then not removed while it is read.

    Args:
        needed: whether the entry would be computed in vain if it cannot be written.

    Raises:
        UserError: if it is missing, needed, and cannot be written.
    """
    if _read(directory):
        return True
    mirror.try_fetch(directory)
    if _read(directory):
        return True
    if needed:
        check_writable(directory)
    return False


def has_intact_entry(directory: Path, name: str, *, needed: bool = True) -> bool:
    """Returns `has_entry`, and says of an entry that is damaged that it is made again.

    Args:
        name: of what is cached, in words, such as `the adapted teacher`.
        needed: as in `has_entry`.
    """
    if has_entry(directory, needed=needed):
        return True
    if directory.is_dir():
        print_notice(f"{name} {directory} is damaged and made again")
    return False


def check_writable(directory: Path) -> None:
    """Raises UserError if an entry that is missing cannot be written."""
    if not is_writable(directory):
        existing = _find_parent(directory)
        raise UserError(
            f"the cache lacks {directory}, and {existing} cannot be written: make it writable, or set another cache_dir"
        )


def is_writable(directory: Path) -> bool:
    """Returns whether an entry that is missing can be written."""
    return os.access(_find_parent(directory), os.W_OK)


def _find_parent(directory: Path) -> Path:
    """Returns the nearest parent that exists."""
    return next(parent for parent in directory.absolute().parents if parent.exists())


@contextmanager
def new_entry(directory: Path) -> Iterator[Path]:
    """Yields a temporary directory that becomes this entry, unless another process has completed it by then."""
    with atomic_directory(directory, reuse_intact=True) as temporary:
        yield temporary
    lease(directory)
    mirror.try_send(directory)


def lease(directory: Path) -> bool:
    """Keeps `job=cache` from removing an entry until `leases` or the process ends; returns whether it is there."""
    held = _held.get(directory)
    if held is not None and _is_lock_of(held, directory):
        return True
    if not directory.is_dir():
        return False
    descriptor = locks.acquire(directory / LEASE, shared=True, wait=True)
    if descriptor is None:  # It has none and is read-only, or nothing can be locked.
        return directory.is_dir()
    if not _is_lock_of(descriptor, directory):  # It was removed meanwhile.
        locks.release(descriptor)
        return False
    locks.release(_held.pop(directory, None))
    _held[directory] = descriptor
    return True


@contextmanager
def leases() -> Iterator[None]:
    """Ends at its end the locks of the entries that were read meanwhile."""
    before = set(_held)
    try:
        yield
    finally:
        for directory in _held.keys() - before:
            locks.release(_held.pop(directory))


def _read(directory: Path) -> bool:
    if not lease(directory):
        return False
    if is_intact(directory):
        return True
    locks.release(_held.pop(directory, None))
    return False


def _is_lock_of(descriptor: int, directory: Path) -> bool:
    """Returns whether a lock is that of the directory that has this name now."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), os.stat(directory / LEASE))
    return False
