"""Runs below a directory, read from their run.json files, with those that cannot be read."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from distill.errors import UserError
from distill.files import JsonObject
from distill.records.record import RECORD, open_run
from distill.records.shape import check_record, fill_record

# In the directory of a sweep, a line for each run: its directory relative to that one, a tab, and its launch.
SWEEP_RUNS = "runs.txt"


def add_run(sweep: Path, directory: Path, launch: str) -> None:
    """Adds a run to the list of its sweep. Several machines may do so at once, so that the list is locked."""
    with FileLock(sweep / f".{SWEEP_RUNS}.lock"), open(sweep / SWEEP_RUNS, "a", encoding="utf-8") as file:
        file.write(f"{os.path.relpath(directory, sweep)}\t{launch}\n")


def find_launched(sweep: Path, launch: str) -> Path | None:
    """Returns the directory of the run that an earlier worker began with this `launch`."""
    found = [path for path, other in _read_launches(sweep) if other == launch]
    return found[-1] if found else None


def _read_launches(sweep: Path) -> list[tuple[Path, str]]:
    """Returns the directory and the launch of each line of a sweep's list; earlier versions wrote no launch."""
    listed = sweep / SWEEP_RUNS
    lines = listed.read_text(encoding="utf-8").splitlines() if listed.is_file() else []
    columns = [line.partition("\t") for line in lines]
    return [((sweep / path).resolve(), launch) for path, _, launch in columns]


@dataclass(frozen=True)
class Runs:
    """The runs below a directory, oldest first, and one message for each run.json that cannot be read."""

    readable: Sequence[tuple[Path, JsonObject]]
    unreadable: Sequence[str]


def find_runs(directory: Path) -> Runs:
    """Returns the runs of a sweep, or all runs below a directory.

    Raises:
        UserError: if there is none.
    """
    if not directory.is_dir():
        raise UserError(f"runs={directory} is no directory: give that of a run or a sweep, or one with runs below it")
    if (directory / SWEEP_RUNS).is_file():
        found = list(dict.fromkeys(path for path, _ in _read_launches(directory)))
    else:
        found = sorted((path.parent for path in directory.rglob(RECORD)), key=lambda path: (path.name, str(path)))
    readable: list[tuple[Path, JsonObject]] = []
    unreadable: list[str] = []
    for path in found:
        try:
            readable.append((path, read_record(path)))
        except UserError as error:
            unreadable.append(str(error))
    if not readable and not unreadable:
        raise UserError(
            f"runs={directory} has no runs: give the directory of a run or a sweep, or one with runs below it"
        )
    return Runs(readable, unreadable)


def read_record(directory: Path) -> JsonObject:
    """Returns the record of a run, in which every field that a report reads is there and of the right type.

    Raises:
        UserError: if it is no run, or its record is damaged.
    """
    record = open_run(directory).record
    try:
        check_record(record)
    except ValueError as error:
        raise UserError(f"{directory / RECORD} is damaged: {error}") from error
    return fill_record(record)
