"""Writes the reports of one run and of several as Markdown, HTML pages and CSV."""

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from distill.core.errors import UserError
from distill.core.files import JsonObject, write_text
from distill.records import comparison, plots, prediction_analysis, row_tables
from distill.records.comparison import Row, compare_runs, describe_ranking, read_metric, read_seeds
from distill.records.experiment_table import DIFFERENCES, VALUES, TablePage
from distill.records.headline import describe_result
from distill.records.plots import Figure, read_curves
from distill.records.prediction_analysis import Analysis, Sample, analyze_predictions, read_samples
from distill.records.report import (
    BY_LENGTH,
    PACKAGE,
    SOFTWARE,
    breakdown_heading,
    render_report,
    render_template,
    section_heading,
)
from distill.records.row_tables import LatexTable, create_table
from distill.records.run import ELLIPSIS, hide_in_text, hide_paths, relative_path, show_command
from distill.records.schema import Runs, fill_record, metric_name
from distill.records.verdict import MISSING, describe_names, task_sections
from distill.training.statistics import Values, describe_bars, name_seeds, name_seeds_of_rows

Figures = Mapping[str, Sequence[Figure]]  # By the heading of their section, which is empty before the first one.


def render_page(markdown: str, figures: Figures, *, refresh: int | None, insets: Mapping[str, Markup | None]) -> str:
    """Returns the HTML page of a report.

    Args:
        markdown: the text, whose first line is the title.
        figures: drawn at the end of their sections.
        insets: further HTML for the end of a section, by its heading.
        refresh: seconds after which a browser loads the page again; None for a page that does not change.
    """
    reader = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    # A wide table scrolls by itself on a small screen.
    reader.add_render_rule("table_open", lambda *_: '<div class="table" tabindex="0">\n<table>\n')
    reader.add_render_rule("table_close", lambda *_: "</table>\n</div>\n")
    sections = []
    for number, text in enumerate(f"\n{markdown}".split("\n## ")):
        heading = text.partition("\n")[0] if number else ""
        html = Markup(_mark_short_cells(reader.render(f"## {text}" if number else text)))  # Escaped by the reader.
        drawn = [(figure.caption, Markup(figure.svg)) for figure in figures.get(heading, ())]
        sections.append((html, drawn, insets.get(heading) or ""))
    return render_html(
        "page.html.jinja", title=markdown.partition("\n")[0].lstrip("# "), sections=sections, refresh=refresh,
        made=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )  # fmt: skip


def render_html(template: str, package: str = PACKAGE, /, **values: object) -> Markup:
    """Returns the HTML of a template of a package, in which values are escaped."""
    return Markup(_templates(package).get_template(template).render(**values))


@cache
def _templates(package: str) -> Environment:
    return Environment(loader=PackageLoader(package), autoescape=True, undefined=StrictUndefined)


def _mark_short_cells(html: str) -> str:
    """Returns the HTML with a class for cells that are too short to be broken into lines."""
    return re.sub(r"<td([^>]*)>([^<]{1,24})</td>", r'<td class="short"\1>\2</td>', html)


REPORT = "report"
MARKDOWN, PAGE = f"{REPORT}.md", f"{REPORT}.html"


def write_report(directory: Path, record: JsonObject, *, to: Path | None = None, refresh: int | None = None) -> Path:
    """Writes the report of a run, and returns the path of its page.

    Args:
        directory: of the run.
        to: the directory of the report; None for that of the run.
        refresh: seconds after which a browser loads the page again.
    """
    return render_run(directory, record).write(to or directory, refresh=refresh)


def draw_report(directory: Path, record: JsonObject) -> list[Figure]:
    """Returns the figures of the report of a run in their order."""
    return [figure for of_section in render_run(directory, record).figures.values() for figure in of_section]


@dataclass(frozen=True)
class Report:
    """The Markdown of a report, its figures and its further HTML, the latter two by the heading of their section."""

    markdown: str
    figures: Figures
    insets: Mapping[str, Markup | None] = field(default_factory=dict)

    def write(self, to: Path, *, name: str = REPORT, refresh: int | None = None) -> Path:
        """Writes the Markdown and the page, and returns the path of the latter."""
        page = to / f"{name}.html"
        write_text(page.with_suffix(".md"), self.markdown)
        write_text(page, render_page(self.markdown, self.figures, refresh=refresh, insets=self.insets))
        return page


def render_run(directory: Path, record: JsonObject) -> Report:
    """Returns the report of a run."""
    return _describe_run(directory, fill_record(record))


def _describe_run(directory: Path, record: JsonObject, *, is_section: bool = False) -> Report:
    """Returns the report of a run, or of one of its several tasks, whose files are in `directory`."""
    analysis: Analysis | None = None
    samples: list[Sample] = []
    notes = []
    try:
        analysis = analyze_predictions(directory, answer=(record["task"] or {}).get("answer"))
        samples = read_samples(directory)
    except UserError as error:
        notes.append(hide_in_text(str(error)))
    [row] = compare_runs([(directory, record)])
    figures = draw_run(directory, record, row, analysis)
    sections = {
        section_heading(section): _describe_run(directory / "tasks" / name, fill_record(section), is_section=True)
        for name, section in task_sections(record).items()
    }
    markdown = render_report(
        record, analysis=analysis, samples=samples, sections=[section.markdown for section in sections.values()],
        is_section=is_section,
    )  # fmt: skip
    markdown += "".join(f"\n> **Notice.** {note}\n" for note in notes)
    # The page draws those of a task at the end of its section, which has no headings of the same level.
    drawn_by_task = {
        heading: [figure for drawn in section.figures.values() for figure in drawn]
        for heading, section in sections.items()
    }
    return Report(markdown, {**figures, **drawn_by_task})


def draw_run(directory: Path, record: JsonObject, row: Row, analysis: Analysis | None) -> Mapping[str, list[Figure]]:
    """Returns the figures of a run by the heading of their section."""
    task, curves = record["task"] or {}, read_curves(directory)
    figures: dict[str, list[Figure]] = {}
    figures[""] = [figure for figure in (_draw_models(record, row), draw_files([row])) if figure]
    if len(record["seeds"]) > 1 and row.values:
        figures["Seeds"] = [_draw_seeds(row)]
    for split, models in record["lengths"].items():
        by_length = prediction_analysis.draw_by_length(models, metric=task["metric"], split=split)
        figures.setdefault(breakdown_heading(task["metric"], BY_LENGTH), []).append(by_length)
    figures["Latency"] = [cost] if (cost := prediction_analysis.draw_cost_by_length(record["benchmark"])) else []
    if record["pruning"]:
        figures["Pruning"] = [prediction_analysis.draw_pruning(record["pruning"], metric=task["metric"])]
    training = [losses] if (losses := plots.draw_losses(curves)) else []
    if scored := curves.get(f"dev/{task.get('metric')}"):
        training.append(plots.draw_dev(scored, metric=task["metric"]))
    figures["Training"] = training
    figures["Predictions"] = draw_predictions(analysis) if analysis else []
    return figures


def _draw_models(record: JsonObject, row: Row) -> Figure | None:
    """Returns the metric of all models of a run: teacher, best constant, baseline, student and exported files."""
    if not row.values:
        return None
    metric = metric_name(row.task, row.split)
    constant = (record["teacher"] or {}).get("constant") or {}
    students = {seed: {"metrics": entry["metrics"]} for seed, entry in read_seeds([(Path(), record)]).items()}
    values: dict[str, Values] = {
        "teacher": _one_value(row.teacher_score),
        str(constant.get("answer") or ""): _one_value((constant.get("metrics") or {}).get(metric)),
        "baseline, no teacher": row.baselines[row.split],
        "student in torch": read_metric(students, row.task, row.split),
        **{f"student {name}": file.metrics[row.split] for name, file in row.files.items()},
    }
    models = {name: found for name, of in values.items() if (found := row.estimate(of))}
    bars = describe_bars(models.values(), name_seeds(sorted(row.scores)), row.examples)
    return prediction_analysis.draw_models(models, metric=row.task["metric"], split=row.split, bars=bars)


def _draw_seeds(row: Row) -> Figure:
    """Returns the metric of every seed: of the student, its other files and the baseline."""
    files = {name: file.metrics[row.split] for name, file in row.files.items() if name != "fp32"}
    models = {"baseline": row.baselines[row.split], "student": row.scores, **files}
    return prediction_analysis.draw_seeds(
        {name: list(values.values()) for name, values in models.items() if values}, metric=row.task["metric"],
        teacher=row.teacher_score,
        caption=f"{row.task['metric']} on {row.split} of {name_seeds(sorted(row.scores))}, with the mean",
    )  # fmt: skip


def draw_predictions(analysis: Analysis) -> list[Figure]:
    """Returns the figures of the predictions."""
    model, figures = analysis.model, []
    shown = {name: found for name, found in analysis.calibration.items() if name in ("teacher", "student", model)}
    if shown:
        figures.append(prediction_analysis.draw_calibration(shown))
    if analysis.confusion is not None:
        figures.append(prediction_analysis.draw_confusion(analysis.classes, analysis.confusion, model=model))
    if analysis.numbers is not None:
        figures.append(prediction_analysis.draw_numbers(analysis.numbers, model=model))
    if any(analysis.lengths):
        figures.append(prediction_analysis.draw_lengths(analysis.lengths))
    return figures


def draw_files(rows: list[Row]) -> Figure | None:
    """Returns metric against latency of all files, against size if no run was timed; None without files.

    Times of different machines, batches or lengths are not comparable: the figure has those of most rows.
    """
    conditions = [row.conditions for row in rows if row.conditions]
    usual = max(dict.fromkeys(conditions), key=conditions.count, default=None)
    timed = [row for row in rows if row.conditions == usual] if usual else []
    metric = next((str(row.task["metric"]) for row in rows if row.task), "metric")
    split, shown = rows[0].split if rows else "dev", timed or rows
    files = [
        (cost, found, _series(row, name, rows))
        for row in shown
        for name, file in row.files.items()
        if (found := row.estimate(file.metrics[split])) and (cost := file.p50_ms if usual else (file.bytes or 0) / 1e6)
    ]
    if not files:
        return None
    # Of a teacher that several rows have, the last time.
    teachers = {
        (row.teacher.name, found): (cost, found, "teacher")
        for row in shown
        if row.teacher and (found := row.estimate(_one_value(row.teacher_score)))
        if (cost := row.teacher.p50_ms if usual else (row.teacher.bytes or 0) / 1e6)
    }
    models = [*files, *teachers.values()]
    points = [plots.Point(cost, found.value, name, found.interval) for cost, found, name in models]
    other = len(rows) - len(timed) if usual else 0
    left_out = f"; {other} row(s) without such a time are left out" if other else ""
    seeds = name_seeds_of_rows(row.scores for row in shown)
    bars = describe_bars([found for _, found, _ in models], seeds, rows[0].examples)
    against = f"latency: {usual}" if usual else "size, as nothing was timed"
    return plots.draw_cost(
        points, metric=f"{metric} on {split}", cost="p50 latency in ms" if usual else "size in MB",
        caption=f"{metric} on {split} against {against}{left_out}{bars}", references=find_references(shown),
        lower_is_better=any(row.unit.less_is_better for row in rows),
    )  # fmt: skip


def find_references(rows: Sequence[Row]) -> dict[str, float]:
    """Returns the metric of the teacher and of the baseline, if all rows have the same one."""
    teachers = {value for row in rows if (value := row.teacher_score) is not None}
    baselines = {round(found.value, 6) for row in rows if (found := row.estimate(row.baselines.get(row.split, {})))}
    models = {"teacher's metric": teachers, "baseline's metric": baselines}
    return {name: values.pop() for name, values in models.items() if len(values) == 1}


def _one_value(value: float | None) -> Values:
    """Returns the metric of a model that is not trained with several seeds."""
    return {} if value is None else {0: value}


def _series(row: Row, format: str, rows: list[Row]) -> str:
    """Returns the name of a file in the legend, which many rows share."""
    if len(rows) == 1:
        return f"student {format}"
    return f"{row.label} {format}" if sum(len(of.files) for of in rows) < plots.MOST_SERIES else format


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
        return row_tables.table(self.rows)


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
    tables: Mapping[str, LatexTable]


def write_collection(
    runs: Runs, directory: Path, *, refresh: int | None = None, table: TablePage | None = None
) -> Collection:
    """Writes the report of runs into a directory.

    A single run has the report of a run, with a table of its own as CSV.

    Args:
        refresh: seconds after which a browser loads the page again.
        table: of an experiment or a choice, which comes first.
    """
    groups = list(_group_by_task(runs.readable))
    rows = [row for group in groups for row in group.rows]
    tables: dict[str, LatexTable] = {}
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
        write_text(directory / CSV, row_tables.to_csv(rows, directory))
    return Collection(page, groups, report, tables)


def _render(runs: Runs, groups: Sequence[Group], directory: Path, table: TablePage | None) -> Report:
    """Returns the report of several runs."""
    figures = {heading: [*of] for heading, of in table.figures.items() if of} if table else {}
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
    curves = {row.label: read_curves(row.directories[0]) for row in rows[: plots.MOST_SERIES]}
    return plots.compare_trainings(curves, metric=str(rows[0].task["metric"]))


def _draw_parameters(rows: Sequence[Row]) -> list[Figure]:
    """Returns the metric against each swept parameter, and against the combinations of two."""
    figures: list[Figure] = []
    estimates = [row.estimate(row.scores) for row in rows]
    settings = [
        plots.Setting(row.short_options(), found.value, found.errors())
        for row, found in zip(rows, estimates, strict=True)
        if found is not None
    ]
    names = dict.fromkeys(name for setting in settings for name in setting.values)
    swept = [name for name in names if len(plots.order_values([of.values.get(name) for of in settings])) > 1]
    if len(settings) < 2 or not swept:
        return figures
    metric, split = str(rows[0].task["metric"]), rows[0].split
    seeds = name_seeds_of_rows(row.scores for row in rows)
    bars = describe_bars(estimates, seeds, rows[0].examples)
    if len(swept) == 2 and len(settings) > 3:
        caption = f"{metric} on {split} by {swept[0]} and {swept[1]}, the mean over {seeds}"
        figures.append(plots.draw_heat_map(settings, (swept[0], swept[1]), caption=caption))
    for name in [name for name in swept if plots.is_varied(settings, name)][:MOST_PARAMETERS]:
        caption = f"{metric} on {split} against {name}{bars}"
        figures.append(
            plots.draw_parameter(
                settings, name, metric=f"{metric} on {split}", caption=caption, references=find_references(rows)
            )
        )
    return figures


def _describe(runs: Runs, groups: Sequence[Group], directory: Path) -> dict[str, Any]:
    """Returns the values of the template."""
    statuses = [str(record["status"]) for _, record in runs.readable]
    counts = [f"{statuses.count(name)} {name}" for name in ("finished", "running", "failed") if name in statuses]
    rows = [_describe_listed_run(path, record, directory) for path, record in runs.readable]
    unreadable = [hide_in_text(message.replace(f"{directory}/", "")) for message in runs.unreadable]
    environments: dict[str, int] = {}
    for _, record in runs.readable:
        text = _describe_environment(record["environment"])
        environments[text] = environments.get(text, 0) + 1
    return {
        "number": len(runs.readable), "counts": ", ".join(counts), "groups": groups, "note": row_tables.NOTE,
        "runs": rows, "environments": environments, "unreadable": unreadable, "csv": CSV,
    }  # fmt: skip


def _describe_listed_run(path: Path, record: JsonObject, directory: Path) -> Mapping[str, str]:
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
