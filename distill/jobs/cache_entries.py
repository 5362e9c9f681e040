"""The job `cache`: lists the entries of the cache directory and removes old ones.

An entry is a directory that a run writes once and later runs read. Only names that `distill` gives to its entries are
listed and removed, so that a `cache_dir` that also holds other files is safe.
"""

import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from omegaconf import DictConfig
from rich.filesize import decimal
from rich.table import Table

from distill.core import storage
from distill.core.console import console, print_line, print_notice
from distill.core.errors import UserError
from distill.core.files import TEMPORARY, acquire_lock, is_abandoned, is_locked, release_lock
from distill.core.storage import LEASE
from distill.jobs.preflight import refuse_other_options

DAY = 86_400.0
TEMPORARY_SECONDS = DAY  # The age at which what another machine was writing is taken for that of a killed process.
WRITING_SECONDS = 600.0  # The longest pause between two files that a running writer adds to an entry.
_HEX = "[0-9a-f]"


@dataclass(frozen=True)
class EntryKind:
    """A kind of cache entry: its label, its names below the folder, and whether it is written atomically.

    A run adds files one by one to entries that are not `whole`.
    """

    label: str
    names: re.Pattern[str]
    whole: bool = True


# Folder below cache_dir -> kind of its entries.
KINDS = {
    "teachers": EntryKind("fine-tuned teacher", re.compile(rf".+-{_HEX}{{16}}")),
    "general": EntryKind("general stage", re.compile(rf".+-{_HEX}{{16}}(-training)?")),
    "baselines": EntryKind("baseline", re.compile(rf".+-{_HEX}{{16}}")),
    "outputs": EntryKind("teacher outputs", re.compile(rf"{_HEX}{{20}}"), whole=False),
    "onnx": EntryKind("teacher ONNX files", re.compile(rf"{_HEX}{{16}}-(channel|tensor|rows)-\d+")),
    "frozen_outputs": EntryKind("targets by other models", re.compile(rf"{_HEX}{{20}}")),
    "candidates": EntryKind("candidates of queries", re.compile(rf"{_HEX}{{20}}")),
    "banks": EntryKind("banks of sentences", re.compile(rf"{_HEX}{{20}}")),
    "adaptation": EntryKind("training texts of tasks", re.compile(rf"{_HEX}{{20}}")),
    "targets": EntryKind("texts of teachers", re.compile(rf"{_HEX}{{20}}"), whole=False),
    "augmented": EntryKind("augmented texts", re.compile(rf"{_HEX}{{20}}")),
    "tokens": EntryKind("tokens", re.compile(rf"{_HEX}{{20}}")),
    "data": EntryKind("built-in data", re.compile(rf"docstrings-{_HEX}+")),
    "stages": EntryKind("seconds of stages", re.compile("last")),
}


@dataclass(frozen=True)
class Entry:
    """An entry of the cache, or with `temporary` the directory of an unfinished write.

    Attributes:
        used: time of the last use in seconds since the epoch, where the file system records it, otherwise of the
            last change.
        in_use: whether another process reads it or may be writing it.
    """

    path: Path
    kind: EntryKind
    name: str
    bytes: int
    used: float
    in_use: bool
    temporary: bool = False


def run_cache(config: DictConfig) -> None:
    """Lists the cache, or removes the entries that `job.older_than_days` and `job.to_gb` select.

    Raises:
        UserError: if an option is out of range or has no effect, the directory is missing, or a file cannot be
            removed.
    """
    older_than_days = _limit("older_than_days", config.job.older_than_days)
    to_gb = _limit("to_gb", config.job.to_gb)
    dry_run = config.job.dry_run
    if not isinstance(dry_run, bool):
        raise UserError(f"job.dry_run={dry_run}, expected true or false")
    if dry_run and older_than_days is None and to_gb is None:
        raise UserError("job.dry_run=true has no effect alone: add job.older_than_days=DAYS or job.to_gb=GB")
    refuse_other_options("cache")
    cache_dir = storage.local_path(config.cache_dir)
    if storage.is_copy(cache_dir):
        raise UserError(
            f"job=cache lists directories of this machine: cache_dir={cache_dir} is the copy of {config.cache_dir}, "
            "where entries are removed with the tools of that storage"
        )
    if not cache_dir.is_dir():
        raise UserError(
            f"cache_dir={cache_dir} is not a directory, expected the cache of earlier runs: set cache_dir=DIR or "
            "DISTILL_CACHE=DIR"
        )
    entries = scan(cache_dir)
    if older_than_days is None and to_gb is None:
        console.print(entry_table(entries, cache_dir))
        return
    chosen = select_for_removal(entries, older_than_days=older_than_days, to_gb=to_gb)
    removed = [entry for entry in chosen if dry_run or remove(entry)]
    _print_removed(removed, entries, cache_dir, dry_run=dry_run, to_gb=to_gb)


def _limit(name: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise UserError(f"job.{name}={value}, expected a number of 0 or more, or null")
    return float(value)


def scan(cache_dir: Path) -> list[Entry]:
    """Returns all entries and all temporary directories below `cache_dir`, the least recently used first."""
    entries: list[Entry] = []
    for folder, kind in KINDS.items():
        root = cache_dir / folder
        for path in root.glob("*"):
            match = TEMPORARY.fullmatch(path.name)
            name = path.relative_to(root).with_name(match["name"] if match else path.name).as_posix()
            if kind.names.fullmatch(name) and path.is_dir() and not path.is_symlink():
                entries += _read_entry(path, kind, f"{folder}/{name}", temporary=match is not None)
    read = [not entry.temporary and is_locked(entry.path / LEASE) for entry in entries]
    entries = [replace(entry, in_use=entry.in_use or is_read) for entry, is_read in zip(entries, read, strict=True)]
    return sorted(entries, key=lambda entry: (entry.used, entry.name))


def _read_entry(path: Path, kind: EntryKind, name: str, *, temporary: bool) -> Iterator[Entry]:
    """Yields the entry at `path`, and before it each temporary directory in it as an entry of its own."""
    now = time.time()
    size, in_use, used, changed = 0, False, 0.0, path.lstat().st_mtime
    for directory, folders, files in os.walk(path):
        for folder in [] if temporary else list(filter(TEMPORARY.fullmatch, folders)):
            folders.remove(folder)
            [unfinished] = _read_entry(Path(directory, folder), kind, f"{name}/{folder}", temporary=True)
            in_use |= unfinished.in_use
            yield unfinished
        for file in (Path(directory, file) for file in files):
            try:
                status = file.lstat()
            except FileNotFoundError:  # Another process has renamed or removed it.
                continue
            size += status.st_size
            changed = max(changed, status.st_mtime)
            used = max(used, status.st_atime, status.st_mtime)
    if temporary:
        abandoned = is_abandoned(path)
        in_use = now - changed < TEMPORARY_SECONDS if abandoned is None else not abandoned
    elif not kind.whole:
        in_use |= now - changed < WRITING_SECONDS
    yield Entry(path, kind, name, size, used or changed, in_use, temporary)


def select_for_removal(
    entries: list[Entry], *, older_than_days: float | None = None, to_gb: float | None = None
) -> list[Entry]:
    """Returns the entries to remove, the least recently used first, and all temporary directories of killed writers.

    Entries that another process reads or may be writing are never among them.
    """
    free = sorted((entry for entry in entries if not entry.in_use), key=lambda entry: (entry.used, entry.name))
    left = sum(entry.bytes for entry in entries)
    oldest = time.time() - (older_than_days or 0.0) * DAY
    chosen = []
    for entry in sorted(free, key=lambda entry: not entry.temporary):
        too_old = older_than_days is not None and entry.used < oldest
        too_much = to_gb is not None and left > to_gb * 1e9
        if entry.temporary or too_old or too_much:
            chosen.append(entry)
            left -= entry.bytes
    return chosen


def remove(entry: Entry) -> bool:
    """Removes an entry, and returns False when another process has used or removed it since it was listed.

    It is renamed before it is deleted, so that no process finds half of it.

    Raises:
        UserError: when it cannot be removed.
    """
    aside: Path | None = entry.path
    try:
        aside = entry.path if entry.temporary else _move_aside(entry)
        if aside is None:
            return False
        shutil.rmtree(aside)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UserError(f"{aside} cannot be removed ({error.strerror}): check its permissions") from error
    return True


def _move_aside(entry: Entry) -> Path | None:
    """Renames an entry; returns its new path, None if another process has used it since it was listed.

    A process that begins to read it meanwhile waits, and then finds it missing.
    """
    lease = entry.path / LEASE
    lock = acquire_lock(lease) if lease.is_file() else None  # A new file would pass for a use.
    if lock is None and lease.is_file():
        return None
    try:
        *_, current = _read_entry(entry.path, entry.kind, entry.name, temporary=False)
        if current.in_use or current.used > entry.used:
            return None
        aside = entry.path.with_name(f".{entry.path.name}.{uuid.uuid4().hex}")
        os.replace(entry.path, aside)
    finally:
        release_lock(lock)
    return aside


def entry_table(entries: list[Entry], cache_dir: Path) -> Table:
    """Returns the entries as a table with their total; times are of the last use."""
    table = Table(title=f"Cache {cache_dir}", title_justify="left", title_style="bold", show_footer=True)
    table.add_column("kind", footer="total", no_wrap=True)
    table.add_column("name", footer=_count(entries), overflow="fold")
    table.add_column("size", footer=decimal(sum(entry.bytes for entry in entries)), justify="right", no_wrap=True)
    table.add_column("last used", justify="right", no_wrap=True)
    for entry in entries:
        kind = f"{entry.kind.label}, unfinished" if entry.temporary else entry.kind.label
        table.add_row(kind, entry.name, decimal(entry.bytes), f"{_age(entry.used)} ago")
    return table


def _print_removed(
    removed: list[Entry], entries: list[Entry], cache_dir: Path, *, dry_run: bool, to_gb: float | None
) -> None:
    verb = "Would remove" if dry_run else "Removed"
    for entry in removed:
        label = "unfinished" if entry.temporary else entry.kind.label
        print_line(f"{verb}  {entry.name}  ({label}, {decimal(entry.bytes)}, last used {_age(entry.used)} ago)")
    size = sum(entry.bytes for entry in removed)
    left = sum(entry.bytes for entry in entries) - size
    print_line(f"{verb} {_count(removed)}, {decimal(size)}; {decimal(left)} left in {cache_dir}")
    in_use = [entry for entry in entries if entry.in_use]
    if in_use and to_gb is not None and left > to_gb * 1e9:
        reason, names = "because another process may be reading or writing", ", ".join(entry.name for entry in in_use)
        print_notice(f"{_count(in_use)} not removed, {reason}: {names}")


def _count(entries: list[Entry]) -> str:
    """Returns the number of entries, and of temporary ones if there are any."""
    temporary = sum(entry.temporary for entry in entries)
    whole = len(entries) - temporary
    text = f"{whole} {'entry' if whole == 1 else 'entries'}"
    return f"{text} and {temporary} unfinished" if temporary else text


def _age(moment: float) -> str:
    seconds = max(0.0, time.time() - moment)
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 2 * DAY else f"{seconds / DAY:.0f} days"
