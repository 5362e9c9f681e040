"""The table of an experiment: the numbers of its runs beside those of papers, and the differences from one row."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from distill.errors import UserError
from distill.records.collection import read_record
from distill.records.comparison import read_metric, read_seeds
from distill.records.curves import Curve, read_curves
from distill.records.experiment import MEAN, Column, Experiment, Published, figures_of
from distill.records.experiment_runs import Outcome
from distill.records.intervals import (
    Values,
    compare_values,
    count_examples,
    is_noise,
    name_seeds_of_rows,
    read_measured,
)
from distill.records.shape import DEV, metric_name
from distill.storage.files import JsonObject
from distill.training.parts import average
from distill.training.statistics import Difference

SECONDS = "seconds"  # The metric of a column of times.
SEEN, NOT_SEEN, NOISE, UNTESTED = "as published", "opposite", "undecided", "no interval"


@dataclass(frozen=True)
class Cell:
    """A number of the table.

    Attributes:
        values: by seed; empty if it is missing.
        task: of run.json, with the metric of the column.
        errors: the reasons why runs have no number.
        any_seed: whether its model is the same with every seed of the experiment.
    """

    values: Values = field(default_factory=dict)
    task: JsonObject = field(default_factory=dict)
    errors: Sequence[str] = ()
    any_seed: bool = False

    @property
    def mean(self) -> float | None:
        """Returns the mean over seeds; None without values."""
        return statistics.fmean(self.values.values()) if self.values else None

    @property
    def median(self) -> float | None:
        """Returns the median over seeds; None without values."""
        return statistics.median(self.values.values()) if self.values else None

    def values_beside(self, other: "Cell") -> Values:
        """Returns the values for a comparison: one that no seed changes stands beside each of the other cell."""
        if self.any_seed and len(self.values) == 1 and len(other.values) > 1:
            return dict.fromkeys(other.values, next(iter(self.values.values())))
        return self.values


@dataclass(frozen=True)
class Effect:
    """The difference of a row from the reference in one column, ours and that of a paper.

    Attributes:
        ours: None without both numbers.
        published: in the unit of the paper; None without both figures.
        sign: `SEEN`, `NOT_SEEN`, `NOISE` or `UNTESTED`; None without both differences.
    """

    row: str
    column: str
    ours: Difference | None
    published: float | None
    sign: str | None


@dataclass(frozen=True)
class ExperimentTable:
    """An experiment with its runs."""

    experiment: Experiment
    outcomes: Sequence[Outcome]
    command: Sequence[str]

    @cached_property
    def directories(self) -> list[Path]:
        """Returns the directory of each run once."""
        return list(dict.fromkeys(outcome.directory for outcome in self.outcomes if outcome.directory))

    @cached_property
    def cells(self) -> dict[str, dict[str, Cell]]:
        """Returns the cells of each row by column, with the mean over tasks at the end where there is one."""
        if len(self.averaged) < 2:
            return self._of_tasks
        return {
            row: {**of, MEAN: _average_row([of[task] for task in self.averaged])} for row, of in self._of_tasks.items()
        }

    @cached_property
    def _of_tasks(self) -> dict[str, dict[str, Cell]]:
        return {
            row: {column: self._read_cell(row, column) for column in self.experiment.columns}
            for row in self.experiment.rows
        }

    @cached_property
    def columns(self) -> list[str]:
        """Returns the columns, the mean over tasks last."""
        return list(next(iter(self.cells.values())))

    @cached_property
    def averaged(self) -> list[str]:
        """Returns the tasks that the mean is over: those of which more is better and that every row has.

        A row without any number counts for none.
        """
        rows = [of for of in self._of_tasks.values() if any(cell.values for cell in of.values())]
        tasks = [task for task in self.experiment.columns if all(of[task].task.get("selects") != "min" for of in rows)]
        return [task for task in tasks if rows and all(of[task].values for of in rows)]

    def _read_cell(self, row: str, column: str) -> Cell:
        """Returns the numbers of the runs of a cell. A run of several seeds is read once."""
        of, values, task = self.experiment.columns[column], dict[int, float](), dict[str, Any]()
        errors, read = list[str](), set[Path]()
        for outcome in self.outcomes:
            if (outcome.place.row, outcome.place.column) != (row, column) or outcome.directory in read:
                continue
            if outcome.directory is None:
                errors.append(outcome.error or "it was not run")
                continue
            read.add(outcome.directory)
            try:
                record = read_record(outcome.directory)
            except UserError as error:
                errors.append(str(error))
                continue
            task = dict(record["task"] or {})
            task |= {} if of.metric is None else {"metric": of.metric}
            task |= {} if of.selects is None else {"selects": of.selects}
            task |= {} if of.seconds is None else {"metric": SECONDS, "selects": "min"}
            found = _read_values(outcome, record, task, of)
            if not found:
                errors.append(f"its run has no {metric_name(task, of.split) if task else 'result'}")
            values |= found
        any_seed = len(read) == 1 < len(self.experiment.seeds) and not errors
        return Cell(values, task, list(dict.fromkeys(errors)), any_seed)

    def published(self, row: str, column: str) -> float | None:
        """Returns the figure of a paper; None without one."""
        return next((value for _, value in self._find_published(row, column)), None)

    def _find_published(self, row: str, column: str) -> Iterator[tuple[Published, float]]:
        """Yields the figures of a cell with their blocks. The only column or task has those of the mean."""
        is_summary = column == MEAN or len(self.experiment.columns) == 1 or self.averaged == [column]
        for block in self.experiment.published:
            figures = figures_of(block.values.get(row, {}))
            if column == MEAN and self._is_known(block) and figures:
                yield block, statistics.fmean(figures[task] for task in self.averaged)
            elif column in figures:
                yield block, figures[column]
            elif is_summary and MEAN in figures:
                yield block, figures[MEAN]

    def _is_known(self, block: Published) -> bool:
        """Returns whether a paper has the figures of all averaged tasks for each of its rows."""
        rows = [figures_of(values) for values in block.values.values()]
        return all(task in figures for figures in rows for task in self.averaged)

    def curves(self, column: str) -> dict[str, Curve]:
        """Returns the metric of a column on dev over the steps of the first run of each row; a shared run counts once.

        Rows whose runs were evaluated once are left out.
        """
        found, read = dict[str, Curve](), set[Path]()
        for row, of in self.cells.items():
            directory = next(
                (outcome.directory for outcome in self.outcomes
                 if (outcome.place.row, outcome.place.column) == (row, column) and outcome.directory), None,
            )  # fmt: skip
            if directory is None or directory in read:
                continue
            read.add(directory)
            curve = read_curves(directory).get(f"{DEV}/{of[column].task.get('metric')}", [])
            if len(curve) > 1:
                found[row] = curve
        return found

    def effects(self) -> list[Effect]:
        """Returns the differences of all rows from the reference in all columns."""
        reference = self.experiment.reference
        return [
            self._compare(row, column)
            for column in self.columns
            for row in self.experiment.rows
            if row != reference
        ]  # fmt: skip

    def _compare(self, row: str, column: str) -> Effect:
        cell, other = self.cells[row][column], self.cells[self.experiment.reference][column]
        split = self.experiment.columns[column].split if column in self.experiment.columns else ""
        examples = count_examples(cell.task, split)
        ours = compare_values(cell.values_beside(other), other.values_beside(cell), examples)
        if column == MEAN and ours is not None and ours["interval"] is None:
            ours = _combine(ours, [self._compare(row, task).ours for task in self.averaged])
        published, block = self._published_difference(row, column)
        return Effect(row, column, ours, published, _name_sign(ours, published, block, cell.task))

    def _published_difference(self, row: str, column: str) -> tuple[float | None, Published | None]:
        """Returns the paper's difference of a row from the reference, with the paper's block."""
        reference = self.experiment.reference
        for block, value in self._find_published(row, column):
            if block.reference is not None:
                return (value, block) if block.reference == reference else (None, None)
            for other, known in self._find_published(reference, column):
                if other is block:
                    return value - known, block
        return None, None

    def correlations(self) -> dict[str, tuple[float, int]]:
        """Returns Spearman's correlation of our order of the rows with that of a paper, and the number of rows.

        A column with fewer than three rows of both has none, and one in which all rows are alike neither.
        """
        from scipy import stats

        found = {}
        for column in self.columns:
            pairs = list(self._pair(column))
            ours, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
            if len(pairs) > 2 and len(set(ours)) > 1 and len(set(theirs)) > 1:
                found[column] = float(stats.spearmanr(ours, theirs).statistic), len(pairs)
        return found

    def _pair(self, column: str) -> Iterator[tuple[float, float]]:
        """Yields our number and that of a paper for each row that has both, more of which is better."""
        for row in self.experiment.rows:
            cell = self.cells[row][column]
            found = next(self._find_published(row, column), None)
            if found is None and (block := self._block_of_differences(row, column)):
                found = block, 0.0
            if cell.mean is not None and found is not None:
                block, value = found
                yield _sign_of(cell.task) * cell.mean, _sign_of(cell.task, block) * value

    def _block_of_differences(self, row: str, column: str) -> Published | None:
        """Returns the figures that are differences from this row."""
        others = [other for other in self.experiment.rows if other != row]
        return next(
            (block for other in others for block, _ in self._find_published(other, column) if block.reference == row),
            None,
        )

    def seeds(self) -> str:
        """Returns the seeds of the cells in words."""
        return name_seeds_of_rows(cell.values for of in self.cells.values() for cell in of.values())


def _combine(mean: Difference, tasks: Sequence[Difference | None]) -> Difference:
    """Returns the difference of a mean over tasks with the interval of tasks that are independent of each other.

    Without an interval over examples of each task it has none.
    """
    known = [
        (task["difference"], *task["interval"])
        for task in tasks
        if task is not None and task["interval"] is not None and task["over"] == "examples"
    ]
    if len(known) < len(tasks):
        return mean
    below = math.hypot(*(value - low for value, low, _ in known)) / len(known)
    above = math.hypot(*(high - value for value, _, high in known)) / len(known)
    interval = [mean["difference"] - below, mean["difference"] + above]
    return {**mean, "interval": interval, "over": "examples", "number": sum(task["number"] for task in tasks if task)}


def _read_values(outcome: Outcome, record: JsonObject, task: JsonObject, of: Column) -> dict[int, float]:
    """Returns the number of a finished run by seed: of the students, or of the model that the run trained."""
    if record["status"] != "finished" or not task:
        return {}
    seed = outcome.place.seed
    if of.seconds is not None:
        value = _read_seconds(record, of.seconds)
        return {} if value is None else {int(record["seed"] or 0) if seed is None else seed: value}
    # Parts are of the metric that selects checkpoints.
    is_own = task["metric"] == record["task"]["metric"]
    if record["job"] == "distill":
        entries = read_seeds([(outcome.directory or Path(), record)])
        return read_metric(entries, task, of.split, entries=entries if is_own else None)
    value = ((record["teacher"] or {}).get("metrics") or {}).get(metric_name(task, of.split))
    if value is None:
        return {}
    found = read_measured(value, record if is_own else {}, "teacher", of.split)
    return {int(record["seed"] or 0) if seed is None else seed: found}


def _read_seconds(record: JsonObject, form: str) -> float | None:
    """Returns the seconds of the student in torch or in a format of files for a pass over dev; None if untimed."""
    rows = [row for row in record.get("dev_pass") or [] if row["model"] == "student"]
    return next((row["seconds"] for row in rows if row["format"].rpartition("-")[2] == form), None)  # onnx-fp32


def _average_row(cells: Sequence[Cell]) -> Cell:
    """Returns the mean over tasks for each seed that all of them have; with none, that of their means."""
    if not all(cell.values for cell in cells):
        return Cell(task={"metric": MEAN, "selects": "max"})
    seeds = sorted(set.intersection(*(set(cell.values) for cell in cells)))
    values: dict[int, float] = {seed: average([cell.values[seed] for cell in cells]) for seed in seeds}
    if not values:
        values = {0: statistics.fmean(cell.mean or 0.0 for cell in cells)}
    return Cell(values, {"metric": MEAN, "selects": "max"}, any_seed=all(cell.any_seed for cell in cells))


def _sign_of(task: JsonObject, block: Published | None = None) -> float:
    """Returns 1 where more is better, and -1 where less is."""
    selects = (block.selects if block else None) or task.get("selects")
    return -1.0 if selects == "min" else 1.0


def _name_sign(
    ours: Difference | None, published: float | None, block: Published | None, task: JsonObject
) -> str | None:
    """Returns whether a difference has the sign of the paper's, beyond noise."""
    if ours is None or published is None:
        return None
    if is_noise(ours):
        return NOISE if ours["interval"] else UNTESTED
    same = _sign_of(task) * ours["difference"] * _sign_of(task, block) * published > 0
    return SEEN if same else NOT_SEEN
