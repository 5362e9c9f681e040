"""Renders run.json as report.md, a model card and the tables of a run.

The tables of a run: its models and files, all metrics, seeds, types and tasks. The task's metric in them is that of the
first split, as in the verdict.
"""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import ChainableUndefined, ChoiceLoader, Environment, PackageLoader

from distill.core.errors import WHEEL
from distill.edge.bundle_files import timed_name
from distill.records.headline import TerminalTable, list_text_results, render_headline
from distill.records.plots import label_axes
from distill.records.prediction_analysis import Analysis, Sample, tabulate_written
from distill.records.run import (
    find_data_license,
    find_model_license,
    hide_paths,
    is_on_hub,
    join_licenses,
    show_command,
)
from distill.records.schema import DEV, TEST, metric_name
from distill.records.verdict import (
    BOTH,
    MISSING,
    Record,
    fastest_teacher_file,
    find_split,
    find_teacher_bytes,
    first_timing,
    format_megabytes,
    format_millions,
    format_number,
    format_points,
    format_spread,
    is_missing,
    measure,
    measure_metric,
    number_format,
    select_timing,
    share_kept,
    share_of_teacher,
    task_sections,
)
from distill.training.statistics import Spread

PACKAGE = "distill.records"  # Of the templates.
LONGEST_NAME = 28  # Characters of a constant prediction in the first column.


@dataclass(frozen=True)
class _Line:
    """A row of the table of files before its numbers are texts.

    Attributes:
        kind: `teacher`, `constant`, `student` or `baseline`.
    """

    name: str
    kind: str
    parameters: int | None = None
    value: Spread | None = None
    bytes: int | None = None
    timing: Record | None = None


def summary_cells(record: Record) -> list[tuple[str, ...]]:
    """Returns a header and a row for each model and file, or without an export for each model with all its metrics.

    Of several tasks it is one row for each task, and one for their mean. The first column names the row.
    """
    if record.get("tasks"):
        return _task_table(record)
    return _file_table(record) if record["export"] else metric_table(record)


def _file_table(record: Record) -> list[tuple[str, ...]]:
    """Returns models and files with their metric, size and time, and relative to teacher and baseline."""
    task, split, lines = record["task"], find_split(record), _file_lines(record)
    in_torch, own = select_timing(record, "teacher", "torch"), fastest_teacher_file(record)
    baseline = measure(record, "baseline", split)
    columns: list[tuple[str, Sequence[str]]] = [
        ("", [line.name for line in lines]),
        ("parameters", [format_millions(line.parameters) for line in lines]),
        (f"{task['metric']} on {split}", [format_spread(line.value) for line in lines]),
        _compare_with_teacher(record, lines),
    ]
    if baseline is not None:
        unit = "" if task.get("selects") == "min" else "points "
        columns.append((
            f"{unit}against baseline",
            [_points(line.value if line.kind == "student" else None, baseline, task) for line in lines],
        ))  # fmt: skip
    columns += [
        ("size", [format_megabytes(line.bytes) for line in lines]),
        ("p50", [format_number(line.timing["p50_ms"] if line.timing else None, ".2f", " ms") for line in lines]),
    ]
    for name, reference in {"torch": in_torch, **({number_format(own): own} if own else {})}.items():
        if reference:
            factors = [reference["p50_ms"] / line.timing["p50_ms"] if line.timing else None for line in lines]
            columns.append((f"speed-up ({name})", [format_number(factor, ".1f", "x") for factor in factors]))
    return [tuple(name for name, _ in columns), *zip(*(cells for _, cells in columns), strict=True)]


def _compare_with_teacher(record: Record, lines: Sequence[_Line]) -> tuple[str, list[str]]:
    """Returns the column of shares of the teacher's metric, or of points where one of them would mean nothing."""
    task, whole = record["task"], "teacher" if record["student"] else "model"
    reference = measure(record, "teacher", find_split(record))
    values = [line.value["mean"] for line in lines if line.value and line.kind in ("student", "baseline")]
    if values and reference and None not in [share_of_teacher(record, value) for value in values]:
        shares = [line.value["mean"] / reference["mean"] if line.value else None for line in lines]
        return f"of the {whole}", [format_number(share, ".1%") for share in shares]
    unit = "" if task.get("selects") == "min" else "points "
    return f"{unit}against {whole}", [
        MISSING if line.kind == "teacher" else _points(line.value, reference, task) for line in lines
    ]


def _file_lines(record: Record) -> list[_Line]:
    """Returns the rows of the table of files: the teacher and its files, the constant, the baseline, the student's."""
    split, student, teacher = find_split(record), record["student"], record["teacher"]
    whole, exported = ("teacher", "student") if student else ("model", "model")
    exported = "baseline" if (student or {}).get("untaught") else exported
    in_torch, parameters = select_timing(record, "teacher", "torch"), teacher.get("parameters")
    size = in_torch["bytes"] if in_torch else find_teacher_bytes(record)
    lines = [_Line(f"{whole} (torch)", "teacher", parameters, measure(record, "teacher", split), size, in_torch)]
    for format in ("onnx-fp32", "onnx-int8"):
        if timing := select_timing(record, "teacher", format):
            name = f"{whole} {number_format(timing)}"
            lines.append(_Line(name, "teacher", parameters, None, timing["bytes"], timing))
    if constant := measure(record, "constant", split):
        lines.append(_Line(_constant_name(record), "constant", value=constant))
    owner = student or teacher
    if record["baseline"]:
        value = measure(record, "baseline", split)
        lines.append(_Line("baseline, no teacher", "baseline", owner.get("parameters"), value))
        for format, file in (record["baseline"].get("export") or {}).items():
            # Of several seeds the first one is exported, and its metric is not their mean.
            own = file["metrics"].get(metric_name(record["task"], split)) if not record.get("seeds") else None
            value = None if own is None else {"mean": own, "std": None}
            lines.append(_file_line(record, "baseline", "baseline", format, file, value))
    for format, file in record["export"].items():
        lines.append(_file_line(record, "student", exported, format, file, measure(record, format, split)))
    return lines


def _file_line(record: Record, kind: str, name: str, format: str, file: Record, value: Spread | None) -> _Line:
    mark = "" if file["gate"] == "passed" else f" (gate {file['gate']})"
    timing = select_timing(record, kind, timed_name(format, file["file"]))
    parameters = (record["student"] or record["teacher"]).get("parameters")
    return _Line(f"{name} {format}{mark}", kind, parameters, value, file["bytes"], timing)


def _constant_name(record: Record) -> str:
    """Returns the best constant prediction in words, shortened."""
    answer = str(record["teacher"]["constant"].get("answer") or "always the same")
    return answer if len(answer) <= LONGEST_NAME else f"{answer[: LONGEST_NAME - 1]}…"


def _points(value: Spread | None, reference: Spread | None, task: Record) -> str:
    return format_points(value["mean"] - reference["mean"], task) if value and reference else MISSING


def seed_table(record: Record) -> list[tuple[str, ...]]:
    """Returns the task's metric on the first split of every seed and all of its models, the header first.

    It is empty for one seed.
    """
    seeds, metric = record.get("seeds") or [], metric_name(record["task"], find_split(record))
    if not seeds:
        return []
    names = list(seeds[0]["export"])
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


def transfer_table(record: Record) -> list[tuple[str, ...]]:
    """Returns the task's metric of teacher, student and files on each set that selects nothing, the header first.

    The share of the teacher's metric on the same set stands behind the others. The first row is the split of the
    verdict, for comparison. It is empty for a run without such sets, which are the splits besides train, dev and test,
    and for several tasks, each of which has its own.
    """
    task, sizes = record["task"], record["task"]["examples"]
    further = [name for name in sizes if name not in ("train", DEV, TEST)]
    if not further or record.get("tasks"):
        return []
    whole, exported = ("teacher", "student") if record["student"] else ("model", "model")
    models = {"student (torch)": "student"} if record["student"] else {}
    models |= {f"{exported} {format}": format for format in record["export"]}
    rows = []
    for name in [find_split(record), *further]:
        teacher = measure(record, "teacher", name)
        cells = [_with_share(measure(record, model, name), teacher, task) for model in models.values()]
        rows.append((name, f"{sizes[name]:,}", format_spread(teacher), *cells))
    return [("set", "examples", whole, *models), *rows]


def _with_share(value: Spread | None, teacher: Spread | None, task: Record) -> str:
    """Returns a metric, and behind it the share of the teacher's: `0.6120 (97.8%)`."""
    share = share_kept(value["mean"], teacher["mean"], task) if value and teacher else None
    return format_spread(value) + ("" if share is None else f" ({share:.1%})")


def breakdown_table(models: Record, record: Record, kind: str, number: str) -> list[tuple[str, ...]]:
    """Returns a header and the rows of a split: each group, its number, and each model's metric.

    Args:
        models: the groups of each model.
        kind: of the groups, such as `type`, for the header.
        number: the name of a number of examples or items that each group has.
    """
    metric, groups = record["task"]["metric"], next(iter(models.values()))
    rows = [
        (
            group,
            f"{values[number]:,.0f}",
            *(format_number(breakdown[group].get(metric), ".4f") for breakdown in models.values()),
        )
        for group, values in groups.items()
        if values.get("number") != 0
    ]
    return [(kind, number, *models), *rows]


def _task_table(record: Record) -> list[tuple[str, ...]]:
    """Returns the metrics of each of several tasks and of their mean, and what the student gains, the header first."""
    sections = task_sections(record)
    parts = {**sections, record["task"]["metric"]: record}
    formats = list(dict.fromkeys(format for section in sections.values() for format in section["export"]))
    models: dict[str, list[Spread | None]] = {
        model: [measure(part, model, find_split(part)) for part in parts.values()]
        for model in ("teacher", "student", "baseline")
    }
    files = {
        format: [*(measure(of, format, find_split(of)) for of in sections.values()), _mean_of_tasks(record, format)]
        for format in formats
    }
    baselines = zip(parts.values(), models["student"], models["baseline"], strict=True)
    columns: list[tuple[str, Sequence[str]]] = [
        ("task", list(parts)),
        ("metric", [f"{'' if part is record else part['task']['metric']} on {find_split(part)}".strip()
                    for part in parts.values()]),
        *((model, [format_spread(value) for value in values]) for model, values in models.items()),
        ("points against baseline", [_points(value, other, part["task"]) for part, value, other in baselines]),
        *(_compare_files(format, values, list(parts.values())) for format, values in files.items()),
        ("gate", [", ".join(f"{format} {file['gate']}" for format, file in part["export"].items())
                  for part in parts.values()]),
    ]  # fmt: skip
    used = [column for column in columns if set(column[1]) - {"", MISSING}]
    return [tuple(name for name, _ in used), *zip(*(cells for _, cells in used), strict=True)]


def _compare_files(format: str, values: Sequence[Spread | None], parts: Sequence[Record]) -> tuple[str, list[str]]:
    """Returns the column of a file of every task: shares of the teacher's metric, or points where one means nothing."""
    pairs = list(zip(parts, values, strict=True))
    shares = [share_of_teacher(part, value["mean"]) if value else None for part, value in pairs]
    if None not in shares:
        return f"of the teacher ({format})", [format_number(share, ".1%") for share in shares]
    return f"points against teacher ({format})", [
        _points(value, measure(part, "teacher", find_split(part)), part["task"]) for part, value in pairs
    ]


def _mean_of_tasks(record: Record, format: str) -> Spread | None:
    """Returns the mean over the tasks of a file's metric; None if one of them has none."""
    split = find_split(record)
    values = [measure(section, format, split) for section in task_sections(record).values()]
    means = [value["mean"] for value in values if value is not None]
    return {"mean": sum(means) / len(means), "std": None} if means and len(means) == len(values) else None


def metric_table(record: Record) -> list[tuple[str, ...]]:
    """Returns all metrics of all models and exported files, those of the first split first, below a header.

    Without an export the number of parameters is the second column.
    """
    teacher, student, export = record["teacher"], record["student"], record["export"]
    suffix = " (torch)" if export else ""
    name, exported = ("teacher", "student") if student else ("model", "model")
    constant = teacher.get("constant") or {}
    # Each with its name, what has its parameters, its metrics, and its name in `measure_metric`.
    models: list[tuple[str, Record, Record, str]] = [
        *([(f"{name}, before training", teacher, teacher["before"], "")] if teacher.get("before") else []),
        (f"{name}{suffix}", teacher, teacher["metrics"], "teacher"),
        *([(_constant_name(record), {}, constant["metrics"], "constant")] if constant.get("metrics") else []),
    ]
    if record["baseline"]:
        models.append(("baseline, no teacher", student, record["baseline"]["metrics"], "baseline"))
    if student:
        models.append((f"student{suffix}", student, student["metrics"], "student"))
    models += [(f"{exported} {format}", student, file["metrics"], format) for format, file in export.items()]
    first = "" if find_split(record) == DEV else f"{find_split(record)}/"
    metrics = list(dict.fromkeys(metric for _, _, values, _ in models for metric in values))
    metrics.sort(key=lambda metric: not (first and metric.startswith(first)))
    parameters = () if export else ("parameters",)
    rows = [
        (
            label,
            *(format_millions(of.get(column)) for column in parameters),
            *(
                format_number(values.get(metric), ".4f") if not model
                else format_spread(measure_metric(record, model, metric))
                for metric in metrics
            ),
        )
        for label, of, values, model in models
    ]  # fmt: skip
    return [("", *parameters, *metrics), *rows]


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
    breakdowns = {
        breakdown_heading(record["task"]["metric"], kind): {
            split: breakdown_table(models, record, kind, number) for split, models in (record.get(field) or {}).items()
        }
        for kind, (field, number) in BREAKDOWNS.items()
    }
    text = _render(
        "report.md.jinja", record, title=_title(record), metrics=metric_table(record), seeds=seed_table(record),
        transfer=transfer_table(record), breakdowns=breakdowns,
        analysis=analysis, written=tabulate_written(record), samples=samples, sections=sections, is_section=is_section,
        **({} if is_section else status),
    )  # fmt: skip
    return re.sub(r"^#", "##", text, flags=re.M) if is_section else text


def render_template(template: str, package: str = PACKAGE, /, **values: object) -> str:
    """Returns the text of a template of a package without repeated blank lines."""
    text = _templates(package).get_template(template).render(**values)
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


def summary_table(record: Record) -> TerminalTable:
    """Returns `summary_cells` as a table for a terminal, with headers of several lines, so that it fits 120 columns.

    A terminal that is still too narrow lacks parameters and sizes first, and then the last columns, but never the
    column of the metric.
    """
    columns, *rows = summary_cells(record)
    header = [textwrap.fill(column, HEADER_WIDTH, break_long_words=False) for column in columns]
    return TerminalTable(
        _title(hide_paths(record)), [header, *rows], left=header[:1],
        least=("parameters", "size", *reversed(columns[3:])), vertical="bottom",
    )  # fmt: skip


def render_table(cells: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table, the header of which is the first row."""
    macros: Any = _templates(PACKAGE).get_template("macros.md.jinja").module
    return str(macros.table(cells)).strip()


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
        template, **_sections(record), **values, summary=summary_cells(record),
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
def _templates(package: str) -> Environment:
    """Returns the environment of `templates/` of a package and of this one, where a missing value is `MISSING`."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader(PACKAGE)]), autoescape=False, trim_blocks=True,
        lstrip_blocks=True, undefined=ChainableUndefined,
        finalize=lambda value: MISSING if is_missing(value) else value,
    )  # fmt: skip
    environment.filters |= {
        "cell": _cell, "label": label_axes, "number": format_number, "megabytes": format_megabytes,
        "millions": format_millions, "shortened": _shorten,
    }  # fmt: skip
    return environment


def _cell(value: object) -> str:
    """Returns a text in one line of Markdown, in which no character has a meaning: the text of a cell of a table."""
    return MISSING if is_missing(value) else _MARKUP.sub(r"\\\1", " ".join(str(value).split()))


def _shorten(value: object) -> str:
    """Returns a text of the data, or what was predicted, in at most `LONGEST_TEXT` characters."""
    text = MISSING if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"
