"""Renders run.json as report.md, a model card and a terminal table."""

import re
import textwrap
from collections.abc import Sequence
from functools import cache
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import ChainableUndefined, Environment, PackageLoader
from rich.box import SIMPLE_HEAD
from rich.table import Table

from distill.installation import WHEEL
from distill.records.headline import render_headline
from distill.records.licences import find_data_license, find_model_license, is_on_hub, join_licenses
from distill.records.measures import (
    MISSING,
    Record,
    fastest_teacher_file,
    first_timing,
    format_megabytes,
    format_number,
    format_points,
    is_missing,
    number_format,
    select_timing,
)
from distill.records.paths import hide_paths, show_command
from distill.records.plain_text import list_text_results
from distill.records.prediction_analysis import Analysis
from distill.records.shape import DEV
from distill.records.tables import (
    breakdown_table,
    metric_table,
    seed_table,
    summary_columns,
    summary_rows,
    transfer_table,
)
from distill.records.verdict import BOTH, find_split
from distill.records.word_table import WordTable
from distill.records.written_texts import Sample, tabulate_written

HEADER_WIDTH = 10  # Characters of a line of a header in a terminal.
LONGEST_TEXT = 300  # Characters of a text of the data.
SECTIONS = (
    "task", "objective", "teacher", "student", "baseline", "training", "export", "attempts", "benchmark", "budget",
    "pruning", "seconds", "environment", "command",
)  # fmt: skip
BY_LENGTH = "length in tokens"
# Kind of groups of examples -> their field of run.json, and a number that each group has.
BREAKDOWNS = {
    "type": ("breakdown", "number"), BY_LENGTH: ("lengths", "number"), "maximum length": ("cuts", "truncated"),
}  # fmt: skip
SOFTWARE = ("python", "torch", "transformers", "onnxruntime")
# Characters of a text that Markdown would read as its own.
_MARKUP = re.compile(r"([\\`*|<]|(?<!\w)_|_(?!\w)|\](?=[(\[:])|&(?=#?\w+;))")
# Our names of metrics to those of https://huggingface.co/metrics, where the two differ.
HUB_METRICS = {"matthews": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr"}


def render_report(
    record: Record,
    *,
    analysis: Analysis | None = None,
    samples: Sequence[Sample] = (),
    sections: Sequence[str] = (),
    is_section: bool = False,
) -> str:
    """Returns report.md: the metrics, the exported files, the latency and how they were measured.

    A part of the record that is missing or empty has no section. A run that failed early, or is still at its beginning,
    has only its error, its command and its environment.

    Args:
        analysis: statistics of the predictions.
        samples: texts that were written for rows of dev.
        sections: the reports of each of several tasks.
        is_section: leaves out what concerns the whole run: its status, the training and the environment. Headings are
            those of a section.
    """
    record = hide_paths(record)
    status = {"status": record.get("status"), "error": record.get("error")}
    if not record["task"] or not record["teacher"] or (record.get("job") == "distill" and not record["student"]):
        return render_template("unfinished.md.jinja", title=_title(record), **_sections(record), **status)
    columns, *rows = metric_table(record)
    seed_columns, *seed_rows = seed_table(record)
    breakdowns = {
        breakdown_heading(record["task"]["metric"], kind): {
            split: breakdown_table(models, record, kind, number) for split, models in (record.get(field) or {}).items()
        }
        for kind, (field, number) in BREAKDOWNS.items()
    }
    text = _render(
        "report.md.jinja", record, title=_title(record), metric_columns=columns, metric_rows=rows,
        seed_columns=seed_columns, seed_rows=seed_rows, transfer=transfer_table(record), breakdowns=breakdowns,
        analysis=analysis, written=tabulate_written(record), samples=samples, sections=sections, is_section=is_section,
        **({} if is_section else status),
    )  # fmt: skip
    return re.sub(r"^#", "##", text, flags=re.M) if is_section else text


def render_template(template: str, /, **values: object) -> str:
    """Returns the text of a template without repeated blank lines."""
    text = _templates().get_template(template).render(**values)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def breakdown_heading(metric: str, kind: str) -> str:
    """Returns the heading of the metric of groups of examples, without its marks."""
    return f"{metric} by {kind}"


def section_heading(section: Record) -> str:
    """Returns the heading of the report of one of several tasks, without its marks."""
    return _cell(_title(hide_paths(section)))


def render_overview_card(record: Record, *, is_repository: bool = False) -> str:
    """Returns the README.md beside the bundles of several tasks: how much of its teacher each head kept.

    With `is_repository` it is that of a repository, which has the bundles in `bundle` and the heads in torch beside it.
    """
    return _render(
        "overview_card.md.jinja", hide_paths(record), names=list(record["tasks"]), shared=record.get("shared") or {},
        is_repository=is_repository, wheel=WHEEL,
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
        wheel=WHEEL,
    )  # fmt: skip
    return str(ModelCard(f"---\n{card.to_yaml()}\n---\n\n{body}"))


def seed_sentences(record: Record) -> list[str]:
    """Returns the sentence about the spread over several seeds; none for one seed."""
    seeds = [str(entry["seed"]) for entry in record.get("seeds") or []]
    return [
        f"Metrics of students are mean ± standard deviation over the seeds {', '.join(seeds)}; student/ and bundle/ "
        f"are those of seed {seed}, the first one and not the best."
        for seed in seeds[:1]
    ]


def transfer_sentences(record: Record) -> list[str]:
    """Returns one sentence for each set that selected nothing: the metric of every model on it."""
    header, *rows = transfer_table(record) or [()]
    return [
        f"On {name} ({examples} examples): "
        + ", ".join(f"{model} {value}" for model, value in zip(header[2:], values, strict=True))
        for name, examples, *values in rows[1:]
    ]


def comparison_sentences(record: Record) -> list[str]:
    """Returns one sentence for each comparison of the student."""
    comparison = record.get("comparison") or {}
    openings = {"baseline": "With the teacher", "teacher": "Against the teacher itself"}
    return [
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
    split = difference.get("split") or DEV
    counted = f"seed{'s' if difference['number'] > 1 else ''} on {split}"
    if difference["over"] == "examples":
        counted = f"{split} examples"
    elif difference["over"] == BOTH:
        counted = f"{counted} and its examples"
    words = [f"{format_points(difference['difference'], task)} {unit}"]
    if difference["interval"] is not None:
        low, high = (format_points(end, task) for end in difference["interval"])
        words.append(f"95% interval {low} to {high}")
    words.append(f"{difference['number']:,} {counted}")
    if difference["p"] is not None:
        words.append("p < 0.001" if difference["p"] < 0.001 else f"p = {difference['p']:.2g}")
    return ", ".join(words)


def summary_table(record: Record) -> Table:
    """Returns `summary_rows` as a table for a terminal, with headers of several lines, so that it fits 120 columns.

    A terminal that is still too narrow lacks parameters and sizes first, and then the last columns, but never the
    column of the metric.
    """
    columns = summary_columns(record)
    table = WordTable(
        title=_title(hide_paths(record)), title_justify="left", title_style="bold", box=SIMPLE_HEAD, show_edge=False,
        pad_edge=False, padding=(0, 1, 0, 0), least=("parameters", "size", *reversed(columns[3:])),
    )  # fmt: skip
    for place, column in enumerate(columns):
        header = textwrap.fill(column, HEADER_WIDTH, break_long_words=False)
        table.add_column(header, justify="right" if place else "left", overflow="fold", vertical="bottom")
    for row in summary_rows(record):
        table.add_row(*row)
    return table


def render_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    macros: Any = _templates().get_template("macros.md.jinja").module
    return str(macros.table(columns, rows)).strip()


def example_argument(task: Record) -> str:
    """Returns the argument that the example command of a bundle shows, quoted for a shell."""
    if task.get("example"):
        return str(task["example"])
    return "$'a sentence\\tanother one'" if task.get("pair") else '"a sentence"'


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
    results.sort(key=lambda result: result.dataset_split != find_split(record))
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
        "timing": first_timing(record["benchmark"]),
        "teacher_timing": select_timing(record, "teacher", "torch"),
        "own": number_format(own) if (own := fastest_teacher_file(record)) else None,
    }
    return render_template(
        template, **_sections(record), **values, columns=summary_columns(record), rows=summary_rows(record),
        timings=timings, verdict=render_headline(record), split=find_split(record),
        comparisons=[*seed_sentences(record), *comparison_sentences(record)],
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
        undefined=ChainableUndefined, finalize=lambda value: MISSING if is_missing(value) else value,
    )  # fmt: skip
    environment.filters |= {
        "cell": _cell, "number": format_number, "megabytes": format_megabytes, "shortened": _shorten,
    }  # fmt: skip
    return environment


def _cell(value: object) -> str:
    """Returns a text in one line of Markdown, in which no character has a meaning: the text of a cell of a table."""
    return MISSING if is_missing(value) else _MARKUP.sub(r"\\\1", " ".join(str(value).split()))


def _shorten(value: object) -> str:
    """Returns a text of the data, or what was predicted, in at most `LONGEST_TEXT` characters."""
    text = MISSING if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"
