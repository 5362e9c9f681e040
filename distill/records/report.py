"""Renders run.json as report.md, a model card and a terminal table."""

import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import ChainableUndefined, Environment, PackageLoader, Undefined
from rich.table import Table

from distill.edge.model_files import timed_name
from distill.files import JsonObject
from distill.records.licences import find_data_license, find_model_license, is_on_hub, join_licenses
from distill.records.paths import hide_paths, show_command
from distill.records.plain_text import list_text_results
from distill.records.prediction_analysis import Analysis
from distill.records.record import whole_section

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Record = JsonObject
Number = float | Undefined | None  # Undefined is jinja's, for a value that the record lacks.
MISSING = "-"
LONGEST_TEXT = 300  # Characters of a text of the data.
FILE_COLUMNS = ("", "parameters", "metric", "of the teacher", "size", "p50", "speed-up")
SECTIONS = (
    "task", "objective", "teacher", "student", "baseline", "training", "export", "ladder", "benchmark", "budget",
    "seconds", "environment", "command",
)  # fmt: skip
SOFTWARE = ("python", "torch", "transformers", "onnxruntime")
# Characters of a text that Markdown would read as its own.
_MARKUP = re.compile(r"([\\`*|<]|(?<!\w)_|_(?!\w)|\](?=[(\[:])|&(?=#?\w+;))")
# Our names of metrics to those of https://huggingface.co/metrics, where the two differ.
HUB_METRICS = {"matthews": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr"}


def render_report(
    record: Record,
    *,
    headline: str | None = None,
    analysis: Analysis | None = None,
    sections: Sequence[str] = (),
    is_section: bool = False,
) -> str:
    """Returns report.md: the metrics, the exported files, the latency and how they were measured.

    A part of the record that is missing or empty has no section. A run that failed early, or is still at its beginning,
    has only its error, its command and its environment.

    Args:
        headline: one sentence about the result.
        analysis: statistics of the predictions.
        sections: the reports of each of several tasks.
        is_section: leaves out what concerns the whole run: its status, the training and the environment. Headings are
            those of a section.
    """
    record = hide_paths(record)
    status = {"status": record.get("status"), "error": record.get("error")}
    if not record["task"] or not record["teacher"] or (record.get("job") == "distill" and not record["student"]):
        return render_template("unfinished.md.jinja", title=_title(record), **_sections(record), **status)
    columns, *rows = _metric_table(record)
    seed_columns, *seed_rows = _seed_table(record)
    breakdown = {split: _breakdown_table(of_models, record) for split, of_models in record.get("breakdown", {}).items()}
    text = _render(
        "report.md.jinja", record, title=_title(record), metric_columns=columns, metric_rows=rows,
        seed_columns=seed_columns, seed_rows=seed_rows, breakdown=breakdown, headline=headline, analysis=analysis,
        sections=sections, is_section=is_section, **({} if is_section else status),
    )  # fmt: skip
    return re.sub(r"^#", "##", text, flags=re.M) if is_section else text


def render_template(template: str, /, **values: object) -> str:
    """Returns the text of a template without repeated blank lines."""
    text = _templates().get_template(template).render(**values)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def section_heading(section: Record) -> str:
    """Returns the heading of the report of one of several tasks, without its marks."""
    return _cell(_title(hide_paths(section)))


def task_sections(record: Record) -> dict[str, Record]:
    """Returns the record of each of several tasks by name; none for a run on one task."""
    return {
        name: whole_section(record, section) | {"tasks": {}} for name, section in (record.get("tasks") or {}).items()
    }


def render_overview_card(record: Record, *, is_repository: bool = False) -> str:
    """Returns the README.md beside the bundles of several tasks: how much of its teacher each head kept.

    With `is_repository` it is that of a repository, which has the bundles in `bundle` and the heads in torch beside it.
    """
    return _render(
        "overview_card.md.jinja", hide_paths(record), names=list(record["tasks"]), shared=record.get("shared") or {},
        is_repository=is_repository,
    )  # fmt: skip


def render_model_card(record: Record, labels: Sequence[str], *, auto_class: str | None = None) -> str:
    """Returns the README.md of a bundle, with the YAML header that the Hugging Face Hub reads.

    With `auto_class` it is that of the student as a Hugging Face model, which transformers loads with this class.
    `labels` are the names of the classes, or the one name of a number.
    """
    task = record["task"]
    card = _card_data(record, is_torch=auto_class is not None)
    record = hide_paths(record)
    body = _render(
        "model_card.md.jinja", record, name=_model(record)["name"], example=example_argument(task),
        prediction=task.get("prediction") or _default_prediction(task, labels), auto_class=auto_class,
        license=card.license, data_license=find_data_license(task.get("hub_id")), untaught=_describe_untaught(record),
    )  # fmt: skip
    return str(ModelCard(f"---\n{card.to_yaml()}\n---\n\n{body}"))


def comparison_sentences(record: Record) -> list[str]:
    """Returns one sentence for each comparison of the student, and one about the spread over several seeds."""
    seeds = [str(entry["seed"]) for entry in record.get("seeds") or []]
    sentences = [
        f"Metrics of students are mean ± standard deviation over the seeds {', '.join(seeds)}; student/ and bundle/ "
        f"are those of seed {seed}, the first one and not the best."
        for seed in seeds[:1]
    ]
    comparison = record.get("comparison") or {}
    openings = {"baseline": "With the teacher", "teacher": "Against the teacher itself"}
    return sentences + [
        f"{opening}: {describe_difference(comparison[name], record['task'])}."
        for name, opening in openings.items()
        if name in comparison
    ]


def _describe_untaught(record: Record) -> str | None:
    """Returns the difference of the student from the baseline that a card is about; None for another card."""
    difference = (record["student"] or {}).get("untaught")
    return describe_difference(difference, record["task"]) if difference else None


def describe_difference(difference: Record, task: Record) -> str:
    """Returns a difference in words: `+0.8 points of accuracy, 95% interval +0.2 to +1.4, 3 seeds, p = 0.02`.

    A metric of which less is better is no share, and has no points.
    """
    lower_is_better = task.get("selects") == "min"
    unit = f"in {task['metric']} (less is better)" if lower_is_better else f"points of {task['metric']}"
    examples = f"{difference.get('split', 'dev')} examples"
    counted = examples if difference["over"] == "examples" else f"seed{'s' if difference['number'] > 1 else ''}"
    words = [f"{format_points(difference['difference'], task)} {unit}"]
    if difference["interval"] is not None:
        low, high = (format_points(end, task) for end in difference["interval"])
        words.append(f"95% interval {low} to {high}")
    words.append(f"{difference['number']:,} {counted}")
    if difference["p"] is not None:
        words.append("p < 0.001" if difference["p"] < 0.001 else f"p = {difference['p']:.2g}")
    return ", ".join(words)


def format_points(value: float, task: Record) -> str:
    """Returns a difference with its sign, a share in points: `+0.8`."""
    return f"{value:+.3f}" if task.get("selects") == "min" else f"{100 * value:+.1f}"


def share_kept(value: float, teacher: float, task: Record) -> float | None:
    """Returns the share of the teacher's metric that a student keeps; None if it means nothing.

    Of a metric of which less is better it is the teacher's as a share of the student's.
    """
    part, whole = (teacher, value) if task.get("selects") == "min" else (value, teacher)
    return part / whole if whole > 0 and teacher > 0 else None


def format_spread(spread: Record | None) -> str:
    """Returns a mean with its standard deviation: `0.9128 ± 0.0012`."""
    if spread is None:
        return MISSING
    return format_number(spread["mean"], ".4f") + ("" if spread["std"] is None else f" ± {spread['std']:.4f}")


def summary_table(record: Record) -> Table:
    """Returns `summary_rows` as a table for a terminal."""
    table = Table(title=_title(hide_paths(record)), title_justify="left", title_style="bold")
    for column in summary_columns(record):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for row in summary_rows(record):
        table.add_row(*row)
    return table


def summary_columns(record: Record) -> tuple[str, ...]:
    """Returns the header of `summary_rows`; the first column names the row."""
    if record.get("tasks"):
        return _task_table(record)[0]
    if not record["export"]:
        return _metric_table(record)[0]
    return tuple(record["task"]["metric"] if column == "metric" else column for column in FILE_COLUMNS)


def summary_rows(record: Record) -> list[tuple[str, ...]]:
    """Returns one row for each exported file, or without an export one for each model with all of its metrics.

    Of several tasks it is one row for each task, and one for their mean.
    """
    if record.get("tasks"):
        return _task_table(record)[1:]
    return _file_rows(record) if record["export"] else _metric_table(record)[1:]


def select_timing(record: Record, model: str, format: str) -> Record | None:
    """Returns the measurement of a model at its smallest batch and length, None without one."""
    return _first_timing([row for row in record["benchmark"] if row["model"] == model and row["format"] == format])


def find_teacher_bytes(record: Record) -> int | None:
    """Returns the size of the teacher's ONNX file, else of its weights in float32; None if neither is known."""
    file, parameters = select_timing(record, "teacher", "onnx-fp32"), record["teacher"].get("parameters")
    return file["bytes"] if file else 4 * parameters if parameters else None


def _first_timing(rows: Sequence[Record]) -> Record | None:
    return min(rows, key=lambda row: (row["batch"], row["length"]), default=None)


def render_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    macros: Any = _templates().get_template("macros.md.jinja").module
    return str(macros.table(columns, rows)).strip()


def example_argument(task: Record) -> str:
    """Returns the argument that the example command of a bundle shows, quoted for a shell."""
    if task.get("example"):
        return str(task["example"])
    return "$'a sentence\\tanother one'" if task.get("pair") else '"a sentence"'


def _file_rows(record: Record) -> list[tuple[str, ...]]:
    metric, student = record["task"]["metric"], record["student"]
    teacher_metric = record["teacher"]["metrics"].get(metric)
    reference = select_timing(record, "teacher", "torch")

    def row(
        name: str, model: Record, metrics: Record, timing: Record | None, size: int | None, spread: Record | None = None
    ) -> tuple[str, ...]:
        value = spread["mean"] if spread else metrics.get(metric)
        share = share_kept(value, teacher_metric, record["task"]) if value is not None and teacher_metric else None
        p50 = timing["p50_ms"] if timing else None
        speed_up = reference["p50_ms"] / p50 if reference and p50 else None
        return (
            name, _millions(model.get("parameters")), _value(value, spread), format_number(share, ".1%"),
            _megabytes(size), format_number(p50, ".2f", " ms"), format_number(speed_up, ".1f", "x"),
        )  # fmt: skip

    teacher_file = select_timing(record, "teacher", "onnx-fp32")
    size = teacher_file["bytes"] if teacher_file else None
    whole, exported = ("teacher", "student") if student else ("model", "model")
    exported = "baseline" if student and student.get("untaught") else exported
    rows = [row(f"{whole} (torch)", record["teacher"], record["teacher"]["metrics"], reference, size)]
    for name, file in record["export"].items():
        mark = "" if file["gate"] == "passed" else f" (gate {file['gate']})"
        timing = select_timing(record, "student", timed_name(name, file["file"]))
        spread = _spread(record, metric, name)
        model = student or record["teacher"]
        rows.append(row(f"{exported} {name}{mark}", model, file["metrics"], timing, file["bytes"], spread))
    if record["baseline"]:
        spread = _spread(record, metric, "baseline")
        rows.append(row("baseline, no teacher (torch)", student, record["baseline"]["metrics"], None, None, spread))
    if constant := record["teacher"].get("constant"):
        rows.append(row(constant["answer"], {}, constant["metrics"], None, None))
    return rows


def _spread(record: Record, metric: str, model: str | None) -> Record | None:
    """Returns the spread of a metric over seeds: of the student, an exported file or the baseline; None for one seed.

    `model` is the name of the file or `baseline`, and None for the student in torch and for models without a spread.
    """
    summary = (record.get("summary") or {}).get(metric, {})
    found = summary if model == "torch" else summary.get("baseline") if model == "baseline" else None
    return found or summary.get("files", {}).get(model) or None


def _value(value: Number, spread: Record | None) -> str:
    return format_spread(spread) if spread else format_number(value, ".4f")


def _seed_table(record: Record) -> list[tuple[str, ...]]:
    """Returns the task's metric of every seed and all of its models, the header first."""
    seeds, metric = record.get("seeds") or [], record["task"]["metric"]
    names = list(seeds[0]["export"]) if seeds else []
    with_baseline = any(entry.get("baseline") for entry in seeds)
    rows = [
        (
            str(entry["seed"]),
            *(format_number(model.get(metric), ".4f") for model in (
                entry["metrics"], *((entry["export"].get(name) or {}).get("metrics", {}) for name in names),
                *([(entry.get("baseline") or {}).get("metrics", {})] if with_baseline else []),
            )),
        )
        for entry in seeds
    ]  # fmt: skip
    return [("seed", "student (torch)", *names, *(["baseline"] if with_baseline else [])), *rows]


def _breakdown_table(of_models: Record, record: Record) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Returns the header and the rows of a split: each type of answer that it has, its number, each model's metric."""
    metric, types = record["task"]["metric"], next(iter(of_models.values()))
    rows = [
        (
            kind,
            f"{values['number']:,.0f}",
            *(format_number(of_model[kind].get(metric), ".4f") for of_model in of_models.values()),
        )
        for kind, values in types.items()
        if values["number"]
    ]
    return ("type", "number", *of_models), rows


def _task_table(record: Record) -> list[tuple[str, ...]]:
    """Returns the metrics of teacher and student and the shares kept of each of several tasks, the header first."""
    sections = {**task_sections(record), record["task"]["metric"]: record}
    formats = list(dict.fromkeys(name for section in sections.values() for name in section["retention"] or {}))
    rows = [
        (
            name,
            "" if section is record else section["task"]["metric"],
            *(format_number((section[model] or {"metrics": {}})["metrics"].get(section["task"]["metric"]), ".4f")
              for model in ("teacher", "student", "baseline")),
            *(format_number((section["retention"] or {}).get(format), ".1%") for format in formats),
            ", ".join(f"{format} {file['gate']}" for format, file in section["export"].items()),
        )
        for name, section in sections.items()
    ]  # fmt: skip
    kept = [f"kept ({format})" for format in formats]
    columns = ("task", "metric", "teacher", "student", "baseline", *kept, "gate")
    empty = {place for place in range(1, len(columns)) if all(row[place] in ("", MISSING) for row in rows)}
    return [tuple(cell for place, cell in enumerate(row) if place not in empty) for row in (columns, *rows)]


def _metric_table(record: Record) -> list[tuple[str, ...]]:
    """Returns all metrics of all models and exported files, the header first.

    Without an export the number of parameters is the second column.
    """
    teacher, student, export = record["teacher"], record["student"], record["export"]
    suffix = " (torch)" if export else ""
    name = "teacher" if student else "model"
    before = [(f"{name}, before training", teacher, teacher["before"], None)] if teacher.get("before") else []
    models: list[tuple[str, Record, Record, str | None]]
    models = [*before, (f"{name}{suffix}", teacher, teacher["metrics"], None)]
    if student:
        models.append((f"student{suffix}", student, student["metrics"], "torch"))
    exported = "student" if student else "model"
    models += [(f"{exported} {format}", student, file["metrics"], format) for format, file in export.items()]
    if record["baseline"]:
        models.append(("baseline, no teacher (torch)", student, record["baseline"]["metrics"], "baseline"))
    if constant := teacher.get("constant"):
        models.append((constant["answer"], {}, constant["metrics"], None))
    metrics = list(dict.fromkeys(metric for _, _, values, _ in models for metric in values))
    parameters = () if export else ("parameters",)
    rows = [
        (
            name,
            *(_millions(model.get(column)) for column in parameters),
            *(_value(values.get(metric), _spread(record, metric, spread)) for metric in metrics),
        )
        for name, model, values, spread in models
    ]
    return [("", *parameters, *metrics), *rows]


def _card_data(record: Record, *, is_torch: bool) -> ModelCardData:
    """Returns the YAML header of a model card, with the metrics of every exported file, or of the torch model.

    `task["hub_id"]`, the Hub's data set and after a colon its configuration, is there only for data of the Hub.
    """
    task, model, export = record["task"], _model(hide_paths(record)), record["export"]
    dataset, _, config = re.sub("@[^:]*", "", task.get("hub_id") or "").partition(":")
    pipeline_tag = task.get("pipeline_tag") or "text-classification"
    torch_model = (f"{model['name']}, torch" if export else model["name"], model["metrics"])
    files = [(file["file"], file["metrics"]) for file in export.values()]
    files = [torch_model, *files] if is_torch or not files else files
    teachers = _teachers(record)
    tags = None if (record["student"] or {}).get("untaught") else ["knowledge-distillation"]
    results = [
        EvalResult(
            task_type=pipeline_tag, dataset_type=dataset or task["name"], dataset_name=task["name"],
            dataset_config=config or None, dataset_split=split or "dev", metric_type=HUB_METRICS.get(metric, metric),
            metric_value=round(float(value), 4), metric_name=f"{metric} ({file})",
        )
        for file, metrics in files
        for (split, _, metric), value in ((name.rpartition("/"), value) for name, value in metrics.items())
        if value is not None
    ]  # fmt: skip
    return ModelCardData(
        library_name="transformers" if is_torch or not export else "onnx", pipeline_tag=pipeline_tag,
        license=join_licenses([find_model_license(name) for name in teachers]),
        base_model=[name for name in teachers if is_on_hub(name)] or None,
        tags=tags, datasets=[dataset] if dataset else None,
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        model_name=f"{model['name']}-{task['name']}", eval_results=results or None,
    )  # fmt: skip


def _teachers(record: Record) -> list[str]:
    """Returns the names of the teacher, or of the members of an ensemble."""
    teacher = record["teacher"]
    return list(dict.fromkeys(member["resolved"] for member in teacher.get("members") or [teacher]))


def _default_prediction(task: Record, labels: Sequence[str]) -> str:
    if task.get("answer") == "number":
        return f"Predicts a number: {labels[0]}."
    return f"Labels: {', '.join(labels)}." if labels else ""


def _model(record: Record) -> Record:
    """Returns the name and the metrics of the trained model: the student, or a teacher trained without one."""
    student, teacher = record["student"], record["teacher"]
    return student or {"name": teacher["resolved"], "metrics": teacher["metrics"]}


def _title(record: Record) -> str:
    student, teacher, task = (record.get(name) or {} for name in ("student", "teacher", "task"))
    words = [f"{student['name']} from"] if student else []
    words.append(teacher.get("resolved") or f"{record.get('job')} without a result")
    return " ".join([*words, *([f"on {task['name']}"] if task else [])])


def _render(template: str, record: Record, **values: object) -> str:
    timings = {
        "timing": _first_timing(record["benchmark"]),
        "teacher_timing": select_timing(record, "teacher", "torch"),
        "teacher_file": select_timing(record, "teacher", "onnx-fp32"),
    }
    return render_template(
        template, **_sections(record), **values, columns=summary_columns(record), rows=summary_rows(record),
        timings=timings, comparisons=comparison_sentences(record),
        texts=list_text_results(record["task"], record["export"] or {}),
    )  # fmt: skip


def _sections(record: Record) -> Record:
    """Returns the parts of a record that a template shows, empty ones for those that it lacks."""
    sections = {name: record.get(name) or {} for name in SECTIONS}
    environment = sections["environment"]
    software = [f"{name} {environment[name]}" for name in SOFTWARE if environment.get(name)]
    return {**sections, "software": software, "shell": show_command(sections["command"])}


@cache
def _templates() -> Environment:
    """Returns the environment of `templates/`, where a missing value is shown as `MISSING`."""
    environment = Environment(
        loader=PackageLoader("distill.records"), autoescape=False, trim_blocks=True, lstrip_blocks=True,
        undefined=ChainableUndefined, finalize=lambda value: MISSING if _is_missing(value) else value,
    )  # fmt: skip
    environment.filters |= {"cell": _cell, "number": format_number, "megabytes": _megabytes, "shortened": _shorten}
    return environment


def _is_missing(value: object) -> "TypeIs[Undefined | None]":
    return value is None or isinstance(value, Undefined)


def _cell(value: object) -> str:
    """Returns a text in one line of Markdown, in which no character has a meaning: the text of a cell of a table."""
    return MISSING if _is_missing(value) else _MARKUP.sub(r"\\\1", " ".join(str(value).split()))


def _shorten(value: object) -> str:
    """Returns a text of the data, or what was predicted, in at most `LONGEST_TEXT` characters."""
    text = MISSING if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


def format_number(value: Number, specification: str, unit: str = "") -> str:
    """Returns a number with its unit, or a dash for one that is missing."""
    return MISSING if _is_missing(value) else f"{value:{specification}}{unit}"


def _megabytes(size: Number) -> str:
    return MISSING if _is_missing(size) else f"{size / 1e6:.1f} MB"


def _millions(number: Number) -> str:
    return MISSING if _is_missing(number) else f"{number / 1e6:.1f} M"
