"""Writes the report of one run, report.md and report.html, from run.json and the files beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from distill.errors import UserError
from distill.records import curve_plots, run_plots, sweep_plots
from distill.records.comparison import Row, compare_runs, read_metric, read_seeds
from distill.records.curves import read_curves
from distill.records.figures import Figure
from distill.records.intervals import Values, describe_bars, name_seeds, name_seeds_of_rows
from distill.records.measures import task_sections
from distill.records.page import render_page
from distill.records.paths import hide_in_text
from distill.records.prediction_analysis import Analysis, analyze_predictions
from distill.records.report import BY_LENGTH, breakdown_heading, render_report, section_heading
from distill.records.shape import fill_record, metric_name
from distill.records.written_texts import Sample, read_samples
from distill.storage.files import JsonObject, write_text

MARKDOWN, PAGE = "report.md", "report.html"


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
    """The Markdown of a report, and its figures by the heading of their section."""

    markdown: str
    figures: Mapping[str, Sequence[Figure]]

    def write(self, to: Path, *, refresh: int | None = None) -> Path:
        """Writes report.md and report.html, and returns the path of the page."""
        write_text(to / MARKDOWN, self.markdown)
        write_text(to / PAGE, render_page(self.markdown, self.figures, refresh=refresh))
        return to / PAGE


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
        by_length = run_plots.draw_by_length(models, metric=task["metric"], split=split)
        figures.setdefault(breakdown_heading(task["metric"], BY_LENGTH), []).append(by_length)
    figures["Latency"] = [cost] if (cost := draw_cost_by_length(record["benchmark"])) else []
    if record["pruning"]:
        figures["Pruning"] = [run_plots.draw_pruning(record["pruning"], metric=task["metric"])]
    training = [losses] if (losses := curve_plots.draw_losses(curves)) else []
    if scored := curves.get(f"dev/{task.get('metric')}"):
        training.append(curve_plots.draw_dev(scored, metric=task["metric"]))
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
        "teacher": _one_value(row.teacher.on(row.split) if row.teacher else None),
        str(constant.get("answer") or ""): _one_value((constant.get("metrics") or {}).get(metric)),
        "baseline, no teacher": row.baselines[row.split],
        "student in torch": read_metric(students, row.task, row.split),
        **{f"student {name}": file.on(row.split) for name, file in row.files.items()},
    }
    models = {name: found for name, of in values.items() if (found := row.estimate(of))}
    bars = describe_bars(models.values(), name_seeds(sorted(row.scores)), row.examples)
    return run_plots.draw_models(models, metric=row.task["metric"], split=row.split, bars=bars)


def _draw_seeds(row: Row) -> Figure:
    """Returns the metric of every seed: of the student, its other files and the baseline."""
    files = {name: file.on(row.split) for name, file in row.files.items() if name != "fp32"}
    models = {"baseline": row.baselines[row.split], "student": row.scores, **files}
    return run_plots.draw_seeds(
        {name: list(values.values()) for name, values in models.items() if values}, metric=row.task["metric"],
        teacher=row.teacher.on(row.split) if row.teacher else None,
        caption=f"{row.task['metric']} on {row.split} of {name_seeds(sorted(row.scores))}, with the mean",
    )  # fmt: skip


def draw_cost_by_length(timings: Sequence[JsonObject]) -> Figure | None:
    """Returns latency against length at the smallest batch and the first number of threads; None for few lengths."""
    if not timings:
        return None
    batch, threads = min(row["batch"] for row in timings), timings[0]["threads"]
    rows = [row for row in timings if (row["batch"], row["threads"]) == (batch, threads)]
    return run_plots.draw_cost_by_length(rows, conditions=f"batch {batch}, {threads} thread{'s' * (threads != 1)}")


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
    split, shown = rows[0].split if rows else "dev", timed or rows
    files = [
        (cost, found, _series(row, name, rows))
        for row in shown
        for name, file in row.files.items()
        if (found := row.estimate(file.on(split))) and (cost := file.p50_ms if usual else (file.bytes or 0) / 1e6)
    ]
    if not files:
        return None
    # Of a teacher that several rows have, the last time.
    teachers = {
        (row.teacher.name, found): (cost, found, "teacher")
        for row in shown
        if row.teacher and (found := row.estimate(_one_value(row.teacher.on(split))))
        if (cost := row.teacher.p50_ms if usual else (row.teacher.bytes or 0) / 1e6)
    }
    models = [*files, *teachers.values()]
    points = [sweep_plots.Point(cost, found.value, name, found.interval) for cost, found, name in models]
    other = len(rows) - len(timed) if usual else 0
    left_out = f"; {other} row(s) without such a time are left out" if other else ""
    seeds = name_seeds_of_rows(row.scores for row in shown)
    bars = describe_bars([found for _, found, _ in models], seeds, rows[0].examples)
    against = f"latency: {usual}" if usual else "size, as nothing was timed"
    return sweep_plots.draw_cost(
        points, metric=f"{metric} on {split}", cost="p50 latency in ms" if usual else "size in MB",
        caption=f"{metric} on {split} against {against}{left_out}{bars}", references=find_references(shown),
        lower_is_better=any(row.task.get("selects") == "min" for row in rows if row.task),
    )  # fmt: skip


def find_references(rows: Sequence[Row]) -> dict[str, float]:
    """Returns the metric of the teacher and of the baseline, if all rows have the same one."""
    teachers = {value for row in rows if row.teacher and (value := row.teacher.on(row.split)) is not None}
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
    return f"{row.label} {format}" if sum(len(of.files) for of in rows) < sweep_plots.MOST_SERIES else format
