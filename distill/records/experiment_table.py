"""The table of an experiment beside the numbers of papers: its values, its cells, its sentences and its figure."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distill.core.errors import UserError
from distill.core.files import JsonObject
from distill.records.comparison import read_metric, read_seeds
from distill.records.experiment import MEAN, Column, Experiment, Outcome, Published, figures_of
from distill.records.headline import TerminalTable
from distill.records.plots import INK, SERIES, Curve, Figure, draw, draw_rows, label_axes, read_curves
from distill.records.row_tables import LatexTable
from distill.records.run import hide_in_text, show_command
from distill.records.schema import DEV, metric_name, read_record
from distill.records.verdict import MISSING, format_number
from distill.training.statistics import (
    POWER,
    Difference,
    Values,
    average,
    compare_values,
    count_share_examples,
    is_noise,
    name_seeds_of_rows,
    read_measured,
    smallest_shown,
    spread,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


SECONDS = "seconds"  # The metric of a column of times.
SEEN, NOT_SEEN, UNTESTED = "as published", "opposite", "no interval"
NONE_SEEN, TOO_SMALL = "not seen", "too small to tell"  # The interval has 0 alone, or the published difference too.


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
        sign: `SEEN`, `NOT_SEEN`, `NONE_SEEN`, `TOO_SMALL` or `UNTESTED`; None without both differences.
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

    def _outcomes(self, row: str, column: str) -> list[Outcome]:
        return [of for of in self.outcomes if (of.place.row, of.place.column) == (row, column)]

    def _read_cell(self, row: str, column: str) -> Cell:
        """Returns the numbers of the runs of a cell. A run of several seeds is read once."""
        of, values, task = self.experiment.columns[column], dict[int, float](), dict[str, Any]()
        errors, read = list[str](), set[Path]()
        for outcome in self._outcomes(row, column):
            if outcome.directory in read:
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
            directory = next((run.directory for run in self._outcomes(row, column) if run.directory), None)
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
        examples = count_share_examples(cell.task, split)
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
    if ours["interval"] is None:
        return UNTESTED
    expected = _sign_of(task) * _sign_of(task, block) * published
    if is_noise(ours):
        low, high = (_scale(task) * end for end in ours["interval"])
        return TOO_SMALL if low <= expected <= high else NONE_SEEN
    return SEEN if ours["difference"] * expected > 0 else NOT_SEEN


NO_VALUE = "missing"
PAPER, MEDIAN, KEPT = "paper", "median", "share"
VALUES, DIFFERENCES = "Table", "Differences"
POWERED = "could have shown"
LEFT = ("on", "sign", "setting")  # Columns of texts besides the first one.


@dataclass(frozen=True)
class TablePage:
    """What a report says of the table of an experiment.

    Attributes:
        title: of the table.
        tables: that of the numbers, and that of the differences from the reference row if there is another row, by the
            headings `VALUES` and `DIFFERENCES`.
        sentences: how to read them, with what is missing, cut and different.
        sources: of the published figures.
        figures: by the heading below which they stand.
        record: all numbers as JSON; None where `tables` have all.
    """

    title: str
    tables: Mapping[str, LatexTable]
    reference: str
    sentences: Sequence[str]
    sources: Sequence[str]
    command: str
    figures: Mapping[str, Sequence[Figure]]
    record: JsonObject | None = None

    def terminal_tables(self) -> Iterator[TerminalTable]:
        """Yields the tables for a terminal."""
        titles = {VALUES: self.title, DIFFERENCES: f"Differences from {self.reference}"}
        for heading, of in self.tables.items():
            yield TerminalTable(titles[heading], of.cells, left=(of.cells[0][0], *LEFT))


def describe_table(table: ExperimentTable) -> TablePage:
    """Returns the page of a table."""
    experiment, effects = table.experiment, table.effects()
    sentences = list(_sentences(table, effects))
    caption = " ".join([f"{experiment.title}.", *sentences])
    cells = {
        VALUES: (_value_cells(table), _plain_values(table)),
        DIFFERENCES: (_difference_cells(table, effects), _plain_differences(table, effects)),
    }
    names = {VALUES: f"{experiment.name} values", DIFFERENCES: f"{experiment.name} differences"}
    return TablePage(
        title=experiment.title, reference=experiment.reference, sentences=sentences,
        tables={
            heading: LatexTable(names[heading], caption, shown, plain=plain)
            for heading, (shown, plain) in cells.items() if shown
        },
        sources=[f"{block.source} ({block.metric})" for block in experiment.published],
        command=show_command(hide_in_text(word) for word in table.command),
        figures={DIFFERENCES: list(_figures(table, effects))},
    )  # fmt: skip


def _scale(task: JsonObject) -> float:
    """Returns the factor of a metric as the table shows it: one of which more is better is in percent."""
    return 1.0 if task.get("selects") == "min" else 100.0


def _format(cell: Cell) -> str:
    """Returns mean and standard deviation over the seeds: `84.12 ± 0.31`."""
    if not cell.values:
        return NO_VALUE
    found, scale = spread(list(cell.values.values())), _scale(cell.task)
    deviation = "" if found["std"] is None else f" ± {scale * found['std']:.2f}"
    return f"{scale * found['mean']:.2f}{deviation}"


def _value_cells(table: ExperimentTable) -> list[list[str]]:
    """Returns our numbers, each column followed by the paper's where there are any, and the share of the reference."""
    columns: dict[str, list[str]] = {"row": list(table.experiment.rows)}
    for column in table.columns:
        cells = {row: of[column] for row, of in table.cells.items()}
        columns[_name_column(table, column)] = [_format(cell) for cell in cells.values()]
        if column == MEAN and any(len(cell.values) > 1 for cell in cells.values()):
            columns[MEDIAN] = [_format_median(table, row) for row in cells]
        published = [table.published(row, column) for row in cells]
        if any(value is not None for value in published):
            shown = [value if value is None else round(value, 2) for value in published]
            columns[f"{column}, {PAPER}"] = [format_number(value, "g") for value in shown]
    if any(share is not None for share in _shares(table)):
        header = f"{KEPT} of {table.experiment.reference}"
        columns[header] = [MISSING if share is None else f"{100 * share:.1f}%" for share in _shares(table)]
    return [list(columns), *(list(line) for line in zip(*columns.values(), strict=True))]


def _name_column(table: ExperimentTable, column: str) -> str:
    """Returns a column with its metric and, of a mean that lacks tasks, the number of those that it has."""
    if column == MEAN:
        return f"{MEAN} of {len(table.averaged)}"
    metric = next((str(of[column].task["metric"]) for of in table.cells.values() if of[column].task), None)
    return column if metric in (None, column) else f"{column}: {metric}"


def _format_median(table: ExperimentTable, row: str) -> str:
    """Returns the mean over tasks of the medians over seeds."""
    medians = [table.cells[row][task].median for task in table.averaged]
    known = [value for value in medians if value is not None]
    return f"{100 * sum(known) / len(known):.2f}" if len(known) == len(medians) else NO_VALUE


def _shares(table: ExperimentTable) -> list[float | None]:
    """Returns the share of the reference's mean that each row has, of the last column if more of it is better."""
    last = {row: of[table.columns[-1]] for row, of in table.cells.items()}
    whole = last[table.experiment.reference]
    if not whole.mean or whole.mean <= 0 or whole.task.get("selects") == "min":
        return [None] * len(last)
    return [None if cell.mean is None else cell.mean / whole.mean for cell in last.values()]


def _difference_cells(table: ExperimentTable, effects: Sequence[Effect]) -> list[list[str]]:
    shown = [effect for effect in effects if effect.ours is not None or effect.published is not None]
    if not shown:
        return []
    lines = [
        [effect.row, effect.column, *_format_difference(table, effect),
         MISSING if effect.published is None else f"{effect.published:+.2f}", effect.sign or MISSING]
        for effect in shown
    ]  # fmt: skip
    return [["row", "on", "ours", POWERED, PAPER, "sign"], *lines]


def _format_difference(table: ExperimentTable, effect: Effect) -> tuple[str, str]:
    """Returns a difference with its 95% interval, `-1.20 (-2.00 to -0.40)`, and the smallest that it could show."""
    if effect.ours is None:
        return NO_VALUE, MISSING
    scale = _scale(table.cells[effect.row][effect.column].task)
    interval, least = effect.ours["interval"], smallest_shown(effect.ours)
    ends = "" if interval is None else f" ({scale * interval[0]:+.2f} to {scale * interval[1]:+.2f})"
    shown = MISSING if least is None else f"{scale * least:.2f}"
    return f"{scale * effect.ours['difference'] + 0.0:+.2f}{ends}", shown


def _sentences(table: ExperimentTable, effects: Sequence[Effect]) -> Iterator[str]:
    """Yields how to read the table, and what it lacks."""
    experiment = table.experiment
    is_mean = any(len(cell.values) > 1 for of in table.cells.values() for cell in of.values())
    seeds = f"mean ± standard deviation over {table.seeds()}" if is_mean else f"of {table.seeds()}"
    yield (
        f"Numbers are in percent where more is better, {seeds}. Differences "
        f"are from {experiment.reference}, with 95% intervals: paired by seed, or over examples for one seed, "
        "where a mean over tasks has that of independent tasks if each has one. "
        f"`{POWERED}` is the smallest true difference that {POWER:.0%} of such comparisons show."
    )
    if MEAN in table.columns:
        without = [task for task in experiment.columns if task not in table.averaged]
        rest = f", without {', '.join(without)}" if without else ""
        yield f"The mean is over {', '.join(table.averaged)}{rest}."
    for column, (value, number) in table.correlations().items():
        yield f"Spearman's correlation of our order with the published one, {column}: {value:+.2f} of {number} rows."
    signs = [effect.sign for effect in effects if effect.sign is not None]
    if signs:
        counts = ", ".join(f"{signs.count(sign)} {sign}" for sign in dict.fromkeys(signs))
        yield f"Signs of {len(signs)} published differences: {counts}."
    yield from _missing_cells(table)
    cut = experiment.describe_cut()
    if cut is not None:
        yield f"Cut here: {hide_in_text(cut)}. The same command with experiment.cut=null cuts nothing."
    if experiment.differs:
        yield f"What differs: {experiment.differs.strip()}"


def _missing_cells(table: ExperimentTable) -> Iterator[str]:
    """Yields the cells that are missing, those of one column for one reason together."""
    rows: dict[tuple[str, str], list[str]] = {}
    for row, of in table.cells.items():
        for column, cell in of.items():
            if cell.errors:
                rows.setdefault((column, "; ".join(cell.errors)), []).append(row)
    for (column, why), of_rows in rows.items():
        where = "every row" if len(of_rows) == len(table.cells) else ", ".join(of_rows)
        yield f"{column} is missing from {where}: {hide_in_text(why)}."


def _plain_values(table: ExperimentTable) -> list[list[object]]:
    """Returns a line for each cell, with plain numbers and its value with every seed."""
    header = ["row", "column", "metric", "split", "mean", "std", "median", "seeds", "values", PAPER, "missing"]
    lines: list[list[object]] = [[*header]]
    for row, of in table.cells.items():
        for column, cell in of.items():
            found = spread(list(cell.values.values())) if cell.values else None
            split = table.experiment.columns[column].split if column in table.experiment.columns else None
            lines.append([
                row, column, cell.task.get("metric"), split, found and found["mean"], found and found["std"],
                cell.median, " ".join(map(str, cell.values)), " ".join(map(str, cell.values.values())),
                table.published(row, column), "; ".join(map(hide_in_text, cell.errors)),
            ])  # fmt: skip
    return lines


def _plain_differences(table: ExperimentTable, effects: Sequence[Effect]) -> list[list[object]]:
    lines: list[list[object]] = [
        ["row", "column", "reference", "difference", "low", "high", "p", "over", "smallest_shown", PAPER, "sign"]
    ]
    for effect in effects:
        ours = effect.ours
        low, high = (ours["interval"] if ours else None) or (None, None)
        lines.append([
            effect.row, effect.column, table.experiment.reference, ours and ours["difference"], low, high,
            ours and ours["p"], ours and ours["over"], ours and smallest_shown(ours), effect.published, effect.sign,
        ])  # fmt: skip
    return lines


def _figures(table: ExperimentTable, effects: Sequence[Effect]) -> Iterator[Figure]:
    """Yields the differences, and for each number of an earlier step how fast it came there."""
    if (differences := _draw(table, effects)) is not None:
        yield differences
    for name, column in table.experiment.columns.items():
        if column.step is not None and (curves := table.curves(name)):
            metric = next(str(of[name].task["metric"]) for of in table.cells.values() if of[name].task)
            yield draw_rows(curves, metric=metric)


def _draw(table: ExperimentTable, effects: Sequence[Effect]) -> Figure | None:
    """Returns the differences of the rows from the reference in the last column that has some, and the paper's."""
    known = [effect for effect in effects if effect.ours is not None]
    if not known:
        return None
    column = known[-1].column
    shown = [effect for effect in known if effect.column == column]
    scale = _scale(table.cells[shown[0].row][column].task)

    def plot(axes: "Axes") -> None:
        places = list(range(len(shown)))
        ours = [effect.ours for effect in shown if effect.ours is not None]
        values = [scale * of["difference"] for of in ours]
        ends = [of["interval"] or [of["difference"]] * 2 for of in ours]
        errors = [
            [value - scale * low for value, (low, _) in zip(values, ends, strict=True)],
            [scale * high - value for value, (_, high) in zip(values, ends, strict=True)],
        ]
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.errorbar(values, places, xerr=errors, fmt="o", color=SERIES[0], capsize=3, label="ours")
        theirs = [(effect.published, place) for place, effect in enumerate(shown) if effect.published is not None]
        if theirs:
            axes.plot(*zip(*theirs, strict=True), "D", color=SERIES[1], label="published")
        axes.set_yticks(places, [label_axes(effect.row, longest=24) for effect in shown])
        axes.invert_yaxis()
        axes.set_xlabel(label_axes(f"{_name_column(table, column)}, difference from {table.experiment.reference}"))

    caption = (
        f"{table.experiment.title}: differences from {table.experiment.reference} on {column}"
        f"{' in points' if scale > 1 else ''}, with 95% intervals where there are any, beside the published ones"
    )
    return draw(caption, plot, name=table.experiment.name, height=max(1.8, 1 + 0.35 * len(shown)))
