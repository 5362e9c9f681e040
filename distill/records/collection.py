"""Runs below a directory, read from their run.json files, with those that cannot be read."""

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from distill.errors import UserError
from distill.records.record import RECORD, open_run
from distill.records.shape import check_record, fill_record
from distill.storage import mirror
from distill.storage.files import JsonObject

# The lists of a sweep's runs in its directory, one of each process, so that none needs a lock. A line is the directory
# of a run relative to that of the sweep, a tab, and the run's launch.
SWEEP_RUNS = "runs*.txt"
TABLE = "table.json"  # The cells of an experiment with their runs, in the directory of its sweep.
# Files of a run that no report reads.
UNREAD = ("*.ckpt", "*.safetensors", "*.onnx", "*.onnx.data", "*.xml", "*.bin", "*tokenizer.json", "*vocab.txt")


@cache
def _own_list(process: int) -> str:
    """Returns the name of the lists that this process writes, which no process of any machine has."""
    return SWEEP_RUNS.replace("*", f".{uuid.uuid4().hex}")


def add_run(sweep: Path, directory: Path, launch: str) -> None:
    """Adds a run to the list of its sweep that this process writes."""
    with open(sweep / _own_list(os.getpid()), "a", encoding="utf-8") as file:
        file.write(f"{os.path.relpath(directory, sweep)}\t{launch}\n")
    mirror.try_send(sweep)


def find_launched(sweep: Path, launch: str) -> Path | None:
    """Returns the directory of the run that an earlier worker began with this `launch`."""
    mirror.fetch_files(sweep, SWEEP_RUNS)
    found = [path for path, other in _read_launches(sweep) if other == launch]
    return found[-1] if found else None


def _read_launches(sweep: Path) -> list[tuple[Path, str]]:
    """Returns the directory and the launch of each run of a sweep, oldest first."""
    lists = [listed.read_text(encoding="utf-8").splitlines() for listed in sweep.glob(SWEEP_RUNS)]
    columns = [line.partition("\t") for lines in sorted(lists) for line in lines]
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
    fetch_runs(directory)
    given = f"runs={mirror.address(directory)}"
    if not directory.is_dir():
        raise UserError(f"{given} is no directory: give that of a run or a sweep, or one with runs below it")
    if any(directory.glob(SWEEP_RUNS)):
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
        raise UserError(f"{given} has no runs: give the directory of a run or a sweep, or one with runs below it")
    return Runs(readable, unreadable)


def fetch_runs(directory: Path) -> None:
    """Fetches from the URL of a directory what reports read: of a sweep's runs, or of all runs below it.

    Raises:
        UserError: if the URL cannot be read.
    """
    if not mirror.is_copy(directory):
        return
    for pattern in (SWEEP_RUNS, TABLE):
        mirror.fetch_files(directory, pattern)
    if not any(directory.glob(SWEEP_RUNS)):
        mirror.fetch_holders(directory, RECORD, skip=UNREAD)
    for path in dict.fromkeys(path for path, _ in _read_launches(directory)):
        mirror.fetch(path, skip=UNREAD)


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
