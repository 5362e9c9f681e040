"""The table of an experiment as cells, sentences and a figure, for a page, a terminal and a paper."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table as TerminalTable

from distill.records.curve_plots import draw_rows
from distill.records.experiment import MEAN
from distill.records.experiment_table import Cell, Effect, ExperimentTable
from distill.records.figures import INK, SERIES, Figure, add_legend, draw, label
from distill.records.latex import Table
from distill.records.measures import MISSING
from distill.records.paths import hide_in_text, show_command
from distill.records.word_table import WordTable
from distill.training.statistics import spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NO_VALUE = "missing"
PAPER, MEDIAN, KEPT = "paper", "median", "share"
VALUES, DIFFERENCES = "Table", "Differences"


@dataclass(frozen=True)
class TablePage:
    """What a report says of the table of an experiment.

    Attributes:
        title: of the table.
        values: cells of the numbers, the header first.
        differences: cells of the differences from the reference row, the header first; empty without another row.
        sentences: how to read them, with what is missing, cut and different.
        sources: of the published figures.
    """

    title: str
    values: Sequence[Sequence[str]]
    differences: Sequence[Sequence[str]]
    reference: str
    sentences: Sequence[str]
    sources: Sequence[str]
    command: str
    figures: Sequence[Figure]
    tables: Mapping[str, Table]

    def terminal_tables(self) -> Iterator[TerminalTable]:
        """Yields the tables for a terminal."""
        yield _terminal_table(self.title, self.values)
        if self.differences:
            yield _terminal_table(f"Differences from {self.reference}", self.differences)


def describe_table(table: ExperimentTable) -> TablePage:
    """Returns the page of a table."""
    experiment, effects = table.experiment, table.effects()
    values, differences = _value_cells(table), _difference_cells(table, effects)
    sentences = list(_sentences(table, effects))
    caption = " ".join([f"{experiment.title}.", *sentences])
    named = [(f"{experiment.name} values", VALUES, values, _plain_values(table))]
    if differences:
        named.append((f"{experiment.name} differences", DIFFERENCES, differences, _plain_differences(table, effects)))
    return TablePage(
        title=experiment.title, values=values, differences=differences, reference=experiment.reference,
        sentences=sentences,
        sources=[f"{block.source} ({block.metric})" for block in experiment.published],
        command=show_command(hide_in_text(word) for word in table.command), figures=list(_figures(table, effects)),
        tables={
            heading: Table(name, caption, cells, plain=plain) for name, heading, cells, plain in named
        },
    )  # fmt: skip


def _scale(cell: Cell) -> float:
    """Returns the factor of a number as the table shows it: a metric of which more is better is in percent."""
    return 1.0 if cell.task.get("selects") == "min" else 100.0


def _format(cell: Cell) -> str:
    """Returns mean and standard deviation over the seeds: `84.12 ± 0.31`."""
    if not cell.values:
        return NO_VALUE
    found, scale = spread(list(cell.values.values())), _scale(cell)
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
            columns[f"{column}, {PAPER}"] = list(map(_format_published, published))
    if any(share is not None for share in _shares(table)):
        header = f"{KEPT} of {table.experiment.reference}"
        columns[header] = [MISSING if share is None else f"{100 * share:.1f}%" for share in _shares(table)]
    return [list(columns), *(list(line) for line in zip(*columns.values(), strict=True))]


def _format_published(value: float | None) -> str:
    return MISSING if value is None else f"{round(value, 2):g}"


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
        [effect.row, effect.column, _format_difference(table, effect),
         MISSING if effect.published is None else f"{effect.published:+.2f}", effect.sign or MISSING]
        for effect in shown
    ]  # fmt: skip
    return [["row", "on", "ours", PAPER, "sign"], *lines]


def _format_difference(table: ExperimentTable, effect: Effect) -> str:
    """Returns a difference with its 95% interval: `-1.20 (-2.00 to -0.40)`."""
    if effect.ours is None:
        return NO_VALUE
    scale = _scale(table.cells[effect.row][effect.column])
    interval = effect.ours["interval"]
    ends = "" if interval is None else f" ({scale * interval[0]:+.2f} to {scale * interval[1]:+.2f})"
    return f"{scale * effect.ours['difference'] + 0.0:+.2f}{ends}"


def _sentences(table: ExperimentTable, effects: Sequence[Effect]) -> Iterator[str]:
    """Yields how to read the table, and what it lacks."""
    experiment = table.experiment
    is_mean = any(len(cell.values) > 1 for of in table.cells.values() for cell in of.values())
    seeds = f"mean ± standard deviation over {table.seeds()}" if is_mean else f"of {table.seeds()}"
    yield (
        f"Numbers are in percent where more is better, {seeds}. Differences "
        f"are from {experiment.reference}, with 95% intervals: paired by seed, or over examples for one seed, "
        "where a mean over tasks has that of independent tasks if each has one."
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
        ["row", "column", "reference", "difference", "low", "high", "p", "over", PAPER, "sign"]
    ]
    for effect in effects:
        ours = effect.ours
        low, high = (ours["interval"] if ours else None) or (None, None)
        lines.append([
            effect.row, effect.column, table.experiment.reference, ours and ours["difference"], low, high,
            ours and ours["p"], ours and ours["over"], effect.published, effect.sign,
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
    scale = _scale(table.cells[shown[0].row][column])

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
        axes.set_yticks(places, [label(effect.row, longest=24) for effect in shown])
        axes.invert_yaxis()
        axes.set_xlabel(label(f"{_name_column(table, column)}, difference from {table.experiment.reference}"))
        add_legend(axes)

    caption = (
        f"{table.experiment.title}: differences from {table.experiment.reference} on {column}"
        f"{' in points' if scale > 1 else ''}, with 95% intervals where there are any, beside the published ones"
    )
    return draw(caption, plot, name=table.experiment.name, height=max(1.8, 1 + 0.35 * len(shown)))


def _terminal_table(title: str, cells: Sequence[Sequence[str]]) -> TerminalTable:
    header, *lines = cells
    found = WordTable(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, show_edge=False, pad_edge=False,
        padding=(0, 1, 0, 0),
    )  # fmt: skip
    for column in header:
        justify: Literal["left", "right"] = "left" if column in ("row", "on", "sign") else "right"
        found.add_column(column, justify=justify, overflow="fold", vertical="top")
    for line in lines:
        found.add_row(*line)
    return found
