"""Experiments: tables whose rows, tasks and seeds are runs, and the runs of their cells."""

import difflib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass as checked_dataclass

from distill.core.errors import OptionError, UserError
from distill.core.files import JsonObject, write_json
from distill.core.options import STRICT, raise_option_errors
from distill.records.schema import DEV, TABLE

MEAN = "mean"  # The column of the mean over tasks.
RUN = "run"  # The step of an experiment that names none.
SEED = "{seed}"
Options = Annotated[tuple[str, ...], Field(strict=False, description="a list of options")]
Seeds = Annotated[tuple[NonNegativeInt, ...], Field(strict=False, description="a list of whole numbers")]
Names = Annotated[tuple[str, ...], Field(strict=False, description="a list of names")]


@raise_option_errors
@checked_dataclass(frozen=True, config=STRICT)
class Column:
    """A task, or another number of the runs.

    Attributes:
        options: of its runs.
        step: whose runs have its metric; None for the last one.
        metric: one of the task's; None for the one that selects the checkpoint.
        split: that the metric is of.
        selects: whether more or less of the metric is better; None for that of the task.
        seconds: the format of the student whose seconds for a whole pass over dev are the number, in place of a metric.
        rows: that are run on the task; None for all.
    """

    options: Options = ()
    step: str | None = None
    metric: str | None = None
    split: Literal["dev", "test"] = DEV
    seconds: Literal["torch", "fp32", "int8"] | None = None
    selects: Literal["max", "min"] | None = None
    rows: Names | None = None


@raise_option_errors
@checked_dataclass(frozen=True, config=STRICT)
class Published:
    """Figures of a paper.

    Attributes:
        source: title, arXiv id and table.
        metric: of the figures, with its unit.
        values: of each row, the figure of each column. A single number is that of the mean, or of the only
            column or task.
        reference: the row from which the figures are differences; None for figures that are no differences.
        selects: whether more or less of them is better; None for what is better in our column.
    """

    metric: str
    values: dict[str, float | dict[str, float]]
    source: str | None = None
    reference: str | None = None
    selects: Literal["max", "min"] | None = None


@raise_option_errors
@checked_dataclass(frozen=True, config=STRICT)
class Cut:
    """Parts of an experiment that are left out, so that it costs less.

    Attributes:
        rows: that are run; None for all.
        tasks: that are run; None for all.
        seeds: number of them; None for all.
        steps: further options of the runs of each step.
        row_steps: further options of the runs of each step of single rows.
    """

    rows: Names | None = None
    tasks: Names | None = None
    seeds: PositiveInt | None = None
    steps: dict[str, Options] = Field(default_factory=dict)
    row_steps: dict[str, dict[str, Options]] = Field(default_factory=dict)

    def options(self, step: str, row: str) -> Sequence[str]:
        """Returns the further options of a row's runs in a step."""
        return [*self.steps.get(step, ()), *self.row_steps.get(row, {}).get(step, ())]

    def describe(self) -> Iterator[str]:
        """Yields the further options in words."""
        for name, steps in [("", self.steps), *((f"{row}, ", of) for row, of in self.row_steps.items())]:
            yield from (f"{name}{step}: {' '.join(options)}" for step, options in steps.items() if options)


@raise_option_errors
@checked_dataclass(frozen=True, config=STRICT)
class _Content:
    """The `experiment` of a YAML, as it is written."""

    name: str
    title: str
    rows: dict[str, dict[str, Options] | Options]
    tasks: dict[str, Any] | None = None
    steps: dict[str, Options] | None = None
    reference: str | None = None
    seeds: PositiveInt | Seeds | None = None
    published: list[dict[str, Any]] | None = None
    differs: str | None = None
    data: str | None = None  # The YAML itself refers to it.
    cut: dict[str, Any] | None = None


@plain_dataclass(frozen=True)
class Place:
    """A cell of the table with one seed; None for that of the runs."""

    row: str
    column: str
    seed: int | None


@plain_dataclass(frozen=True)
class Experiment:
    """The plan of a table.

    Attributes:
        name: of its directory.
        title: its heading.
        steps: options of the runs of each step, in their order. Runs of an earlier step are inputs of later ones.
        rows: further options of each row by step.
        columns: the tasks by name.
        reference: the row that others are compared with.
        seeds: of the runs; `[None]` for that of the command.
        published: figures of papers.
        differs: in words, what is not as in the papers.
        cut: what is left out.
        left_out: rows and tasks that are left out by it.
    """

    name: str
    title: str
    steps: Mapping[str, Sequence[str]]
    rows: Mapping[str, Mapping[str, Sequence[str]]]
    columns: Mapping[str, Column]
    reference: str
    seeds: Sequence[int | None]
    published: Sequence[Published]
    differs: str | None
    cut: Cut | None
    left_out: Mapping[str, Sequence[str]]

    def places(self) -> Iterator[Place]:
        """Yields every cell that is run, with every seed, row by row."""
        for row in self.rows:
            for name, column in self.columns.items():
                if column.rows is None or row in column.rows:
                    yield from (Place(row, name, seed) for seed in self.seeds)

    def step_of(self, place: Place) -> str:
        """Returns the step whose run has the number of a cell."""
        return self.columns[place.column].step or list(self.steps)[-1]

    def options(self, step: str, place: Place) -> list[str]:
        """Returns the options of a cell's run in a step, later ones in place of earlier ones.

        They may have `{NAME}` for the model of an earlier step.
        """
        column = self.columns[place.column]
        of_task = column.options if step == self.step_of(place) else ()
        of_row = self.rows[place.row].get(step, ())
        of_cut = self.cut.options(step, place.row) if self.cut else ()
        found = [*self.steps[step], *of_task, *of_row, *of_cut]
        if place.seed is not None:
            found = [option.replace(SEED, str(place.seed)) for option in found]
        return replace_options(found)

    def inputs(self, step: str, place: Place) -> list[str]:
        """Returns the earlier steps whose models a cell's run in a step reads."""
        options = self.options(step, place)
        return [name for name in self.steps if any(_placeholder(name) in option for option in options)]

    def needed(self, place: Place) -> list[str]:
        """Returns the steps of a cell in their order."""
        found, waiting = set[str](), [self.step_of(place)]
        while waiting:
            step = waiting.pop()
            found.add(step)
            waiting += self.inputs(step, place)
        return [step for step in self.steps if step in found]

    def describe_cut(self) -> str | None:
        """Returns what is left out, in words; None if nothing is."""
        if self.cut is None:
            return None
        words = [f"{kind} left out: {', '.join(names)}" for kind, names in self.left_out.items() if names]
        if self.cut.seeds is not None:
            words.append(f"{len(self.seeds)} seed{'s' if len(self.seeds) != 1 else ''}")
        return "; ".join([*words, *self.cut.describe()]) or None


def fill_models(options: Sequence[str], models: Mapping[str, str]) -> list[str]:
    """Returns options with the models of earlier steps in their places."""
    found = list(options)
    for name, model in models.items():
        found = [option.replace(_placeholder(name), model) for option in found]
    return found


def replace_options(options: Iterable[str]) -> list[str]:
    """Returns the options without those that a later one replaces. `~NAME` leaves out those of NAME that came before.

    >>> replace_options(["+teacher=minilm", "seed=1", "teacher=bert_base"])
    ['seed=1', 'teacher=bert_base']
    >>> replace_options(["trainer.max_epochs=1", "trainer.seed=1", "seed=1", "~trainer"])
    ['seed=1']
    """
    found: dict[str, str] = {}
    for option in options:
        name = option_name(option)
        if option.startswith("~") and "=" not in option:
            found = {key: of for key, of in found.items() if key != name and not key.startswith(f"{name}.")}
        else:
            found.pop(name, None)
            found[name] = option
    return list(found.values())


def option_name(option: str) -> str:
    """Returns the name of an option of the command line."""
    return option.lstrip("+~").partition("=")[0]


def read_experiment(content: JsonObject) -> Experiment:
    """Returns the experiment that the `experiment` of a YAML describes.

    Raises:
        UserError: for a part that cannot be, which the message names.
    """
    given: _Content = _create(_Content, content, "experiment")
    steps: dict[str, Options] = {RUN: ()} if given.steps is None else given.steps
    last = list(steps)[-1]
    rows = {name: of if isinstance(of, dict) else {last: of} for name, of in given.rows.items()}
    columns = {
        name: _create(Column, of if isinstance(of, dict) else {"options": of}, f"experiment.tasks.{name}")
        for name, of in (given.tasks or {}).items()
    }
    seeds = range(given.seeds) if isinstance(given.seeds, int) else given.seeds
    published = [
        _create(Published, each, f"experiment.published[{number}]") for number, each in enumerate(given.published or [])
    ]
    cut = None if given.cut is None else _create(Cut, given.cut, "experiment.cut")
    experiment = Experiment(
        name=given.name, title=given.title, steps=steps, rows=rows, columns=columns,
        reference=given.reference or next(iter(rows), ""), seeds=[None] if seeds is None else list(seeds),
        published=published, differs=given.differs, cut=cut, left_out={},
    )  # fmt: skip
    _check(experiment)
    return experiment if cut is None else _apply(experiment, cut)


def _create(cls: Any, content: Mapping[str, Any], prefix: str) -> Any:
    try:
        return cls(**content)
    except OptionError as error:
        raise error.with_prefix(prefix) from None


def _check(experiment: Experiment) -> None:
    """Raises UserError for rows, tasks, steps and figures that do not fit together."""
    name, last = experiment.name, list(experiment.steps)[-1]
    if not experiment.rows:
        raise UserError(f"experiment {name} has no rows: add experiment.rows")
    for row, by_step in experiment.rows.items():
        for step in by_step:
            _check_name(step, experiment.steps, f"row {row} of experiment {name} has options of a step")
    for column, of in experiment.columns.items():
        _check_name(of.step or last, experiment.steps, f"task {column} of experiment {name} is of a step")
        for row in of.rows or ():
            _check_name(row, experiment.rows, f"task {column} of experiment {name} has a row")
    _check_name(experiment.reference, experiment.rows, f"experiment {name} has as its reference a row")
    for number, published in enumerate(experiment.published):
        _check_published(published, experiment, before=experiment.published[:number])
    if experiment.cut is not None:
        for row in experiment.cut.row_steps:
            _check_name(row, experiment.rows, f"the cut of experiment {name} has options of a row")
        for step in [*experiment.cut.steps, *(step for of in experiment.cut.row_steps.values() for step in of)]:
            _check_name(step, experiment.steps, f"the cut of experiment {name} has options of a step")
    every = [*experiment.steps.values(), *(options for row in experiment.rows.values() for options in row.values())]
    if len(experiment.seeds) > 1 and not any(SEED in option for options in every for option in options):
        raise UserError(
            f"experiment {name} has {len(experiment.seeds)} seeds, and no option of its steps and rows has {SEED}, "
            f"so that all seeds are the same run: add seed={SEED}"
        )


def _check_published(published: Published, experiment: Experiment, *, before: Sequence[Published]) -> None:
    name = experiment.name
    if not (published.source or "").strip():
        raise UserError(
            f"experiment {name} has published figures without a source ({', '.join(published.values)}): add source, "
            "the title, the arXiv id and the table of the paper"
        )
    for row, values in published.values.items():
        _check_name(row, experiment.rows, f"experiment {name} has published figures of a row")
        for column in figures_of(values):
            if experiment.columns:
                known = [*experiment.columns, MEAN]
                _check_name(column, known, f"experiment {name} has published figures of a task")
            if any(column in figures_of(each.values.get(row, {})) for each in before):
                raise UserError(
                    f"experiment {name} has two published figures of row {row} and task {column}: leave one out"
                )
    if published.reference is not None:
        _check_name(published.reference, experiment.rows, f"experiment {name} has differences from a row")


def figures_of(values: float | Mapping[str, float]) -> Mapping[str, float]:
    """Returns the published figures of a row by column."""
    return values if isinstance(values, Mapping) else {MEAN: values}


def _check_name(name: str, known: Collection[str], words: str) -> None:
    if name not in known:
        nearest = difflib.get_close_matches(name, list(known), n=1)
        hint = f" (did you mean {nearest[0]}?)" if nearest else ""
        raise UserError(f"{words} {name} that is not there{hint}, expected one of {', '.join(known)}")


def _apply(experiment: Experiment, cut: Cut) -> Experiment:
    """Returns the experiment without what is cut. Its reference stays, because others are compared with it."""
    for kind, names, known in (("rows", cut.rows, experiment.rows), ("tasks", cut.tasks, experiment.columns)):
        for name in names or ():
            _check_name(name, known, f"the cut of experiment {experiment.name} keeps one of its {kind},")
    rows = {
        name: of
        for name, of in experiment.rows.items()
        if cut.rows is None or name in cut.rows or name == experiment.reference
    }
    columns = {name: of for name, of in experiment.columns.items() if cut.tasks is None or name in cut.tasks}
    left_out = {
        "rows": [name for name in experiment.rows if name not in rows],
        "tasks": [name for name in experiment.columns if name not in columns],
    }
    seeds = experiment.seeds[: cut.seeds]
    return replace(experiment, rows=rows, columns=columns, seeds=seeds, left_out=left_out)


def _placeholder(step: str) -> str:
    return "{" + step + "}"


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
