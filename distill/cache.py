"""Entries of the cache directory, each of which is written once, whole, and read by all later runs.

If the cache is at a URL, an entry that is missing here is fetched, and a new one is sent.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distill import mirror
from distill.files import atomic_directory, is_intact


def has_entry(directory: Path) -> bool:
    """Returns whether the cache has this entry and its checksums match."""
    if is_intact(directory):
        return True
    mirror.try_fetch(directory)
    return is_intact(directory)


@contextmanager
def new_entry(directory: Path) -> Iterator[Path]:
    """Yields a temporary directory that becomes this entry, unless another process has completed it by then."""
    with atomic_directory(directory, reuse_intact=True) as temporary:
        yield temporary
    mirror.try_send(directory)
