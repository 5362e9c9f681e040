"""Runs below a directory, read from their run.json files, with those that cannot be read."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distill.errors import UserError
from distill.files import JsonObject
from distill.records.record import RECORD, open_run
from distill.records.shape import check_record, fill_record

SWEEP_RUNS = "runs.txt"  # In the directory of a sweep: the directory of each run, relative to it.


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
    listed = directory / SWEEP_RUNS
    if listed.is_file():
        lines = dict.fromkeys(listed.read_text(encoding="utf-8").splitlines())
        found = [Path(directory / line).resolve() for line in lines]
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
