"""Writes the report of several runs: report.md, report.html and report.csv, with a section for each task."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distill.errors import UserError
from distill.records import comparison, curve_plots, row_table, sweep_plots
from distill.records.collection import Runs
from distill.records.comparison import Row
from distill.records.curves import read_curves
from distill.records.experiment_report import DIFFERENCES, VALUES, TablePage
from distill.records.figures import Figure
from distill.records.headline import describe_result
from distill.records.intervals import describe_bars, name_seeds_of_rows
from distill.records.latex import Table
from distill.records.measures import MISSING
from distill.records.option_names import describe_names
from distill.records.paths import ELLIPSIS, hide_in_text, hide_paths, relative_path, show_command
from distill.records.prediction_analysis import Analysis, analyze_predictions
from distill.records.ranking import describe_ranking
from distill.records.report import SOFTWARE, render_template
from distill.records.run_report import (
    MARKDOWN,
    PAGE,
    Report,
    draw_files,
    draw_predictions,
    find_references,
    render_run,
)
from distill.records.sweep_table import create_table
from distill.storage.files import JsonObject, write_text

CSV = "report.csv"
MOST_PARAMETERS = 8  # With a figure of their own.
NO_TASK = "runs without a result"


@dataclass(frozen=True)
class Group:
    """The distillations of one task.

    Attributes:
        title: the heading of its section.
        headline: one sentence about the first row; None without a result.
        rows: those of the table, those with the best metric on dev first.
        analysis: statistics of the predictions of the first row; None without its predictions.
        notes: what could not be read.
        ranking: whether one row is ahead of the others; None for fewer than two rows with a result.
    """

    title: str
    headline: str | None
    rows: Sequence[Row]
    analysis: Analysis | None = None
    notes: Sequence[str] = ()
    ranking: str | None = None

    def names(self) -> str | None:
        """Returns the full names of the options in a sentence; None if none is shortened."""
        return describe_names(self.rows[0].names) if self.rows else None

    def predictions_title(self) -> str:
        """Returns the heading of the section about the predictions."""
        return f"Predictions of {self.title}"

    def table(self) -> list[tuple[str, ...]]:
        """Returns the cells of the table, the header first."""
        return row_table.table(self.rows)


@dataclass(frozen=True)
class Collection:
    """A report that was written.

    Attributes:
        page: its path.
        groups: of its tables.
        report: its text and its figures.
        tables: those of the experiment and the groups as a paper shows them, by the heading of their section.
    """

    page: Path
    groups: Sequence[Group]
    report: Report
    tables: Mapping[str, Table]


def write_collection(
    runs: Runs, directory: Path, *, refresh: int | None = None, table: TablePage | None = None
) -> Collection:
    """Writes the report of runs into a directory.

    A single run has the report of a run, with a table of its own as CSV.

    Args:
        refresh: seconds after which a browser loads the page again.
        table: of an experiment, which comes first.
    """
    groups = list(_group_by_task(runs.readable))
    rows = [row for group in groups for row in group.rows]
    tables: dict[str, Table] = {}
    if len(runs.readable) == 1 and not runs.unreadable and table is None:
        [(path, record)] = runs.readable
        report = render_run(path, record)
    else:
        groups = [_analyze_first(group) for group in groups]
        report = _render(runs, groups, directory, table)
        tables = dict(table.tables) if table else {}
        tables |= {group.title: create_table(group.title, group.rows, directory) for group in groups if group.rows}
    page = report.write(directory, refresh=refresh)
    if rows:
        write_text(directory / CSV, row_table.to_csv(rows, directory))
    return Collection(page, groups, report, tables)


def _render(runs: Runs, groups: Sequence[Group], directory: Path, table: TablePage | None) -> Report:
    """Returns the report of several runs."""
    figures: dict[str, list[Figure]] = {DIFFERENCES: [*table.figures]} if table and table.figures else {}
    figures |= {group.title: draw_group(group.rows) for group in groups}
    figures |= {group.predictions_title(): _draw_first(group) for group in groups}
    values = _describe(runs, groups, directory) | {"table": table, "headings": (VALUES, DIFFERENCES)}
    return Report(render_template("collection.md.jinja", **values), figures)


def _draw_first(group: Group) -> list[Figure]:
    """Returns the figures of the predictions of the first row, whose name is in their captions."""
    if group.analysis is None:
        return []
    row = group.rows[0]
    run = f"{row.label}, seed {min(row.values)}" if row.values else row.label
    return [replace(figure, caption=f"{figure.caption} ({run})") for figure in draw_predictions(group.analysis)]


def _group_by_task(runs: Sequence[tuple[Path, JsonObject]]) -> Iterator[Group]:
    """Yields the distillations of each task and metric; a run that failed early has the task of its configuration."""
    by_task: dict[str, list[tuple[Path, JsonObject]]] = {}
    metrics = {str(record["task"]["name"]): str(record["task"]["metric"]) for _, record in runs if record["task"]}
    for path, record in runs:
        if record["job"] != "distill":
            continue
        task = record["task"]
        name = task["name"] if task else comparison.read_options(path, record).get("task.name")
        metric = task["metric"] if task else metrics.get(str(name))
        title = f"{name}: {metric}" if metric else str(name or NO_TASK)
        by_task.setdefault(title, []).append((path, record))
    for title, group in by_task.items():
        rows = comparison.compare_runs(group)
        headline = next((found for row in rows if (found := describe_result(row))), None)
        yield Group(title, headline, rows, ranking=describe_ranking(rows))


def _analyze_first(group: Group) -> Group:
    """Returns the group with the predictions of the first run of its first row."""
    if not group.rows or not group.rows[0].values:
        return group
    try:
        first = group.rows[0]
        return replace(group, analysis=analyze_predictions(first.directories[0], answer=first.task.get("answer")))
    except UserError as error:
        return replace(group, notes=[hide_in_text(str(error))])


def draw_group(rows: Sequence[Row]) -> list[Figure]:
    """Returns the figures of one task: cost, the swept parameters, and the trainings of the best rows."""
    scored = [row for row in rows if row.values]
    cost = draw_files(scored)
    return [*([cost] if cost else []), *_draw_parameters(scored), *_draw_trainings(scored)]


def _draw_trainings(rows: Sequence[Row]) -> list[Figure]:
    """Returns the metric and the losses over the steps, of the first run of each of the first rows."""
    if len(rows) < 2:
        return []
    curves = {row.label: read_curves(row.directories[0]) for row in rows[: sweep_plots.MOST_SERIES]}
    return curve_plots.compare_trainings(curves, metric=str(rows[0].task["metric"]))


def _draw_parameters(rows: Sequence[Row]) -> list[Figure]:
    """Returns the metric against each swept parameter, and against the combinations of two."""
    figures: list[Figure] = []
    estimates = [row.estimate(row.scores) for row in rows]
    settings = [
        sweep_plots.Setting(row.short_options(), found.value, found.errors())
        for row, found in zip(rows, estimates, strict=True)
        if found is not None
    ]
    names = dict.fromkeys(name for setting in settings for name in setting.values)
    swept = [name for name in names if len(sweep_plots.order_values([of.values.get(name) for of in settings])) > 1]
    if len(settings) < 2 or not swept:
        return figures
    metric, split = str(rows[0].task["metric"]), rows[0].split
    seeds = name_seeds_of_rows(row.scores for row in rows)
    bars = describe_bars(estimates, seeds, rows[0].examples)
    if len(swept) == 2 and len(settings) > 3:
        caption = f"{metric} on {split} by {swept[0]} and {swept[1]}, the mean over {seeds}"
        figures.append(sweep_plots.draw_heat_map(settings, (swept[0], swept[1]), caption=caption))
    for name in [name for name in swept if sweep_plots.is_varied(settings, name)][:MOST_PARAMETERS]:
        caption = f"{metric} on {split} against {name}{bars}"
        figures.append(
            sweep_plots.draw_parameter(
                settings, name, metric=f"{metric} on {split}", caption=caption, references=find_references(rows)
            )
        )
    return figures


def _describe(runs: Runs, groups: Sequence[Group], directory: Path) -> dict[str, Any]:
    """Returns the values of the template."""
    statuses = [str(record["status"]) for _, record in runs.readable]
    counts = [f"{statuses.count(name)} {name}" for name in ("finished", "running", "failed") if name in statuses]
    rows = [_describe_run(path, record, directory) for path, record in runs.readable]
    unreadable = [hide_in_text(message.replace(f"{directory}/", "")) for message in runs.unreadable]
    environments: dict[str, int] = {}
    for _, record in runs.readable:
        text = _describe_environment(record["environment"])
        environments[text] = environments.get(text, 0) + 1
    return {
        "number": len(runs.readable), "counts": ", ".join(counts), "groups": groups, "note": row_table.NOTE,
        "runs": rows, "environments": environments, "unreadable": unreadable, "csv": CSV,
    }  # fmt: skip


def _describe_run(path: Path, record: JsonObject, directory: Path) -> Mapping[str, str]:
    """Returns the cells of a run in the table of all runs."""
    relative, record = relative_path(path, directory), hide_paths(record)
    page = next((name for name in (PAGE, MARKDOWN) if (path / name).is_file()), None)
    link = f"{relative}/{page}" if page and relative != "." and not relative.startswith(ELLIPSIS) else ""
    task, teacher, student = (record[name] or {} for name in ("task", "teacher", "student"))
    value = ((student or teacher).get("metrics") or {}).get(task.get("metric"))
    return {
        "name": relative, "link": link, "job": record["job"],
        "task": task.get("name") or MISSING, "status": record["status"],
        "metric": MISSING if value is None else f"{task['metric']} {value:.4f}", "error": record["error"] or "",
        "command": show_command(record["command"] or []) or MISSING,
    }  # fmt: skip


def _describe_environment(environment: JsonObject) -> str:
    software = [f"{name} {environment[name]}" for name in SOFTWARE if environment.get(name)]
    machine = [str(environment.get("cpu") or "an unknown processor"), f"{environment.get('cores') or '?'} cores"]
    accelerator = [str(environment["accelerator"])] if environment.get("accelerator") else []
    return ", ".join([*machine, *accelerator, *software])
