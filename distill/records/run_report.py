"""Writes the report of one run, report.md and report.html, from run.json and the files beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from distill.errors import UserError
from distill.files import JsonObject, write_text
from distill.records import curve_plots, run_plots, sweep_plots
from distill.records.comparison import Row, compare_runs
from distill.records.curves import read_curves
from distill.records.figures import Figure
from distill.records.measures import task_sections
from distill.records.page import render_page
from distill.records.prediction_analysis import Analysis, analyze_predictions
from distill.records.report import render_report, section_heading
from distill.records.shape import fill_record

MARKDOWN, PAGE = "report.md", "report.html"


def write_report(directory: Path, record: JsonObject, *, to: Path | None = None, refresh: int | None = None) -> Path:
    """Writes the report of a run, and returns the path of its page.

    Args:
        directory: of the run.
        to: the directory of the report; None for that of the run.
        refresh: seconds after which a browser loads the page again.
    """
    record = fill_record(record)
    report = _describe_run(directory, record)
    to = to or directory
    write_text(to / MARKDOWN, report.markdown)
    write_text(to / PAGE, render_page(report.markdown, report.figures, refresh=refresh))
    return to / PAGE


@dataclass(frozen=True)
class _Report:
    """The Markdown of a report, and its figures by the heading of their section."""

    markdown: str
    figures: Mapping[str, list[Figure]]


def _describe_run(directory: Path, record: JsonObject, *, is_section: bool = False) -> _Report:
    """Returns the report of a run, or of one of its several tasks, whose files are in `directory`."""
    analysis: Analysis | None = None
    notes = []
    try:
        analysis = analyze_predictions(directory, answer=(record["task"] or {}).get("answer"))
    except UserError as error:
        notes.append(str(error))
    [row] = compare_runs([(directory, record)])
    figures = draw_run(directory, record, row, analysis)
    sections = {
        section_heading(section): _describe_run(directory / "tasks" / name, fill_record(section), is_section=True)
        for name, section in task_sections(record).items()
    }
    markdown = render_report(
        record, analysis=analysis, sections=[section.markdown for section in sections.values()], is_section=is_section
    )
    markdown += "".join(f"\n> **Notice.** {note}\n" for note in notes)
    # The page draws those of a task at the end of its section, which has no headings of the same level.
    of_tasks = {
        heading: [figure for drawn in section.figures.values() for figure in drawn]
        for heading, section in sections.items()
    }
    return _Report(markdown, {**figures, **of_tasks})


def draw_run(directory: Path, record: JsonObject, row: Row, analysis: Analysis | None) -> Mapping[str, list[Figure]]:
    """Returns the figures of a run by the heading of their section."""
    task, curves = record["task"] or {}, read_curves(directory)
    figures: dict[str, list[Figure]] = {}
    if cost := draw_files([row]):
        figures[""] = [cost]
    if len(record["seeds"]) > 1 and row.values:
        teacher = row.teacher.metric if row.teacher else None
        models = {name: list(file.values.values()) for name, file in row.files.items() if file.values}
        models = {"student": list(row.values.values())} | {name: of for name, of in models.items() if name != "fp32"}
        figures["Seeds"] = [run_plots.draw_seeds(models, metric=task["metric"], teacher=teacher)]
    training = [losses] if (losses := curve_plots.draw_losses(curves)) else []
    if scored := curves.get(f"dev/{task.get('metric')}"):
        training.append(curve_plots.draw_dev(scored, metric=task["metric"]))
    figures["Training"] = training
    figures["Predictions"] = draw_predictions(analysis) if analysis else []
    return figures


def draw_predictions(analysis: Analysis) -> list[Figure]:
    """Returns the figures of the predictions."""
    model, figures = analysis.model, []
    shown = {name: found for name, found in analysis.calibration.items() if name in ("teacher", "student", model)}
    if shown:
        figures.append(run_plots.draw_calibration(shown))
    if analysis.confusion is not None:
        figures.append(run_plots.draw_confusion(analysis.classes, analysis.confusion, model=model))
    if analysis.numbers is not None:
        figures.append(run_plots.draw_numbers(analysis.numbers, model=model))
    if any(analysis.lengths):
        figures.append(run_plots.draw_lengths(analysis.lengths))
    return figures


def draw_files(rows: list[Row]) -> Figure | None:
    """Returns metric against latency of all files, against size if no run was timed; None without files.

    Times of different machines, batches or lengths are not comparable: the figure has those of most rows.
    """
    conditions = [row.conditions for row in rows if row.conditions]
    usual = max(dict.fromkeys(conditions), key=conditions.count, default=None)
    timed = [row for row in rows if row.conditions == usual] if usual else []
    metric = next((str(row.task["metric"]) for row in rows if row.task), "metric")
    points = [
        sweep_plots.Point(cost, spread["mean"], _series(row, name, rows), spread["std"])
        for row in timed or rows
        for name, file in row.files.items()
        if (spread := file.spread()) and (cost := file.p50_ms if usual else (file.bytes or 0) / 1e6)
    ]
    if not points:
        return None
    teachers = {row.teacher.name: row.teacher for row in timed or rows if row.teacher}
    for teacher in teachers.values():
        cost = teacher.p50_ms if usual else (teacher.bytes or 0) / 1e6
        if cost and teacher.metric is not None:
            points.append(sweep_plots.Point(cost, teacher.metric, "teacher"))
    metrics = {teacher.metric for teacher in teachers.values() if teacher.metric is not None}
    other = len(rows) - len(timed) if usual else 0
    left_out = f"; {other} row(s) without such a time are left out" if other else ""
    return sweep_plots.draw_cost(
        points, metric=metric, cost="p50 in ms" if usual else "MB",
        caption=f"{metric} on dev against {f'latency: {usual}' if usual else 'size, as nothing was timed'}{left_out}",
        reference=metrics.pop() if len(metrics) == 1 else None,
        lower_is_better=any(row.task.get("selects") == "min" for row in rows if row.task),
    )  # fmt: skip


def _series(row: Row, format: str, rows: list[Row]) -> str:
    """Returns the name of a file in the legend, which many rows share."""
    if len(rows) == 1:
        return f"student {format}"
    return f"{row.label} {format}" if sum(len(of.files) for of in rows) < sweep_plots.MOST_SERIES else format
