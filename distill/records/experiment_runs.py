"""The runs of the cells of an experiment, which the directory of its sweep lists in table.json."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distill.errors import UserError
from distill.records.collection import TABLE
from distill.records.experiment import Place
from distill.storage.files import JsonObject, write_json


@dataclass(frozen=True)
class Outcome:
    """The run of a cell with one seed, or the reason why it has none."""

    place: Place
    directory: Path | None
    error: str | None = None


@dataclass(frozen=True)
class TableRuns:
    """An experiment as its YAML describes it, with the runs of its cells and the command."""

    content: JsonObject
    outcomes: Sequence[Outcome]
    command: Sequence[str]


def write_runs(directory: Path, runs: TableRuns) -> None:
    """Writes the runs of a table into the directory of its sweep."""
    cells = [
        {
            **vars(outcome.place), "error": outcome.error,
            "directory": None if outcome.directory is None else os.path.relpath(outcome.directory, directory),
        }
        for outcome in runs.outcomes
    ]  # fmt: skip
    write_json(directory / TABLE, {"experiment": runs.content, "command": list(runs.command), "cells": cells})


def read_runs(directory: Path) -> TableRuns | None:
    """Returns the runs of the table of a sweep; None if it is of no experiment.

    Raises:
        UserError: if its file is damaged.
    """
    path = directory / TABLE
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        outcomes = [
            Outcome(
                Place(cell["row"], cell["column"], cell["seed"]),
                None if cell["directory"] is None else (directory / cell["directory"]).resolve(), cell["error"],
            )
            for cell in content["cells"]
        ]  # fmt: skip
        return TableRuns(content["experiment"], outcomes, content["command"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}): run the experiment again") from error
