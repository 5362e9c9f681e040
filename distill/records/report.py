"""Renders run.json as report.md, a model card and the tables of a run.

The tables of a run: its models and files, all metrics, seeds, types and tasks. The task's metric in them is that of the
first split, as in the verdict.
"""

import re
import textwrap
from collections.abc import Mapping, Sequence
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
    Results,
    Unit,
    first_timing,
    format_megabytes,
    format_millions,
    format_number,
    format_spread,
    is_missing,
    number_format,
    recommend,
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
    return _file_table(Results(record)) if record["export"] else metric_table(record)


def _list_rows(columns: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """Returns the rows of a table, the header first, from its columns by their header."""
    return [tuple(columns), *zip(*columns.values(), strict=True)]


def _file_table(results: Results) -> list[tuple[str, ...]]:
    """Returns models and files with their metric, size and time, and relative to teacher and baseline."""
    unit, lines = results.unit, _file_lines(results)
    columns = {
        "": [line.name for line in lines],
        "parameters": [format_millions(line.parameters) for line in lines],
        f"{results.task['metric']} on {results.split}": [format_spread(line.value) for line in lines],
        **_compare_with_teacher(results, lines),
    }
    if (baseline := results.measure("baseline")) is not None:
        students = [line.value if line.kind == "student" else None for line in lines]
        columns[f"{unit.word} against baseline".strip()] = [_subtract(value, baseline, unit) for value in students]
    times = [line.timing["p50_ms"] if line.timing else None for line in lines]
    columns["size"] = [format_megabytes(line.bytes) for line in lines]
    columns["p50"] = [format_number(time, ".2f", " ms") for time in times]
    own = results.fastest_teacher_file()
    for name, reference in {"torch": results.timing("teacher", "torch"), own and number_format(own): own}.items():
        if reference:
            factors = [None if time is None else reference["p50_ms"] / time for time in times]
            columns[f"speed-up ({name})"] = [format_number(factor, ".1f", "x") for factor in factors]
    return _list_rows(columns)


def _compare_with_teacher(results: Results, lines: Sequence[_Line]) -> dict[str, list[str]]:
    """Returns the column of shares of the teacher's metric, or of points where one of them would mean nothing."""
    whole, reference = "teacher" if results.record["student"] else "model", results.measure("teacher")
    values = [line.value["mean"] for line in lines if line.value and line.kind in ("student", "baseline")]
    if values and reference and None not in map(results.share_of_teacher, values):
        shares = [line.value["mean"] / reference["mean"] if line.value else None for line in lines]
        return {f"of the {whole}": [format_number(share, ".1%") for share in shares]}
    others = [None if line.kind == "teacher" else line.value for line in lines]
    header = f"{results.unit.word} against {whole}".strip()
    return {header: [_subtract(value, reference, results.unit) for value in others]}


def _file_lines(results: Results) -> list[_Line]:
    """Returns the rows of the table of files: the teacher and its files, the constant, the baseline, the student's."""
    record, student = results.record, results.record["student"]
    whole, exported = ("teacher", "student") if student else ("model", "model")
    exported = "baseline" if (student or {}).get("untaught") else exported
    in_torch, parameters = results.timing("teacher", "torch"), record["teacher"].get("parameters")
    size = in_torch["bytes"] if in_torch else results.teacher_bytes()
    lines = [_Line(f"{whole} (torch)", "teacher", parameters, results.measure("teacher"), size, in_torch)]
    for format in ("onnx-fp32", "onnx-int8"):
        if timing := results.timing("teacher", format):
            name = f"{whole} {number_format(timing)}"
            lines.append(_Line(name, "teacher", parameters, None, timing["bytes"], timing))
    if constant := results.measure("constant"):
        lines.append(_Line(_constant_name(results), "constant", value=constant))
    parameters = (student or record["teacher"]).get("parameters")

    def add_file(kind: str, name: str, format: str, file: Record, value: Spread | None) -> None:
        mark = "" if file["gate"] == "passed" else f" (gate {file['gate']})"
        timing = results.timing(kind, timed_name(format, file["file"]))
        lines.append(_Line(f"{name} {format}{mark}", kind, parameters, value, file["bytes"], timing))

    if record["baseline"]:
        lines.append(_Line("baseline, no teacher", "baseline", parameters, results.measure("baseline")))
        for format, file in (record["baseline"].get("export") or {}).items():
            # Of several seeds the first one is exported, and its metric is not their mean.
            own = None if record.get("seeds") else file["metrics"].get(metric_name(results.task, results.split))
            add_file("baseline", "baseline", format, file, None if own is None else {"mean": own, "std": None})
    for format, file in record["export"].items():
        add_file("student", exported, format, file, results.measure(format))
    return lines


def _constant_name(results: Results) -> str:
    """Returns the best constant prediction in words, shortened."""
    answer = results.constant_answer
    return answer if len(answer) <= LONGEST_NAME else f"{answer[: LONGEST_NAME - 1]}…"


def _subtract(value: Spread | None, reference: Spread | None, unit: Unit) -> str:
    return unit.format(value["mean"] - reference["mean"]) if value and reference else MISSING


def seed_table(record: Record) -> list[tuple[str, ...]]:
    """Returns the task's metric on the first split of every seed and all of its models, the header first.

    It is empty for one seed.
    """
    seeds = record.get("seeds") or []
    if not seeds:
        return []
    metric, baselines = metric_name(record["task"], Results(record).split), [entry.get("baseline") for entry in seeds]
    models = {"student (torch)": seeds}
    models |= {name: [entry["export"].get(name) for entry in seeds] for name in seeds[0]["export"]}
    models |= {"baseline": baselines} if any(baselines) else {}
    values = {name: [(entry or {}).get("metrics", {}).get(metric) for entry in of] for name, of in models.items()}
    columns = {name: [format_number(value, ".4f") for value in of] for name, of in values.items()}
    return _list_rows({"seed": [str(entry["seed"]) for entry in seeds], **columns})


def transfer_table(record: Record) -> list[tuple[str, ...]]:
    """Returns the task's metric of teacher, student and files on each set that selects nothing, the header first.

    The share of the teacher's metric on the same set stands behind the others. The first row is the split of the
    verdict, for comparison. It is empty for a run without such sets, which are the splits besides train, dev and test,
    and for several tasks, each of which has its own.
    """
    results, sizes = Results(record), record["task"]["examples"]
    further = [name for name in sizes if name not in ("train", DEV, TEST)]
    if not further or record.get("tasks"):
        return []
    whole, exported = ("teacher", "student") if record["student"] else ("model", "model")
    models = {"student (torch)": "student"} if record["student"] else {}
    models |= {f"{exported} {format}": format for format in record["export"]}
    sets = [results.split, *further]
    means = [f"mean of {len(further)} sets"] if len(further) > 1 else []
    teachers = _with_mean([results.measure("teacher", name) for name in sets])
    columns = {
        "set": sets + means, "examples": [f"{sizes[name]:,}" for name in sets] + [""] * len(means),
        whole: list(map(format_spread, teachers)),
    }  # fmt: skip
    for header, model in models.items():
        values = _with_mean([results.measure(model, name) for name in sets])
        columns[header] = [_with_share(*pair, results.unit) for pair in zip(values, teachers, strict=True)]
    return _list_rows(columns)


def _with_mean(values: list[Spread | None]) -> list[Spread | None]:
    """Returns metrics of the split of the verdict and of further sets, of several of them with their mean behind."""
    further = [value["mean"] for value in values[1:] if value is not None]
    if len(values) < 3:
        return values
    return [*values, Spread(mean=sum(further) / len(further), std=None) if len(further) == len(values) - 1 else None]


def _with_share(value: Spread | None, teacher: Spread | None, unit: Unit) -> str:
    """Returns a metric, and behind it the share of the teacher's: `0.6120 (97.8%)`."""
    share = unit.share_kept(value["mean"], teacher["mean"]) if value and teacher else None
    return format_spread(value) + ("" if share is None else f" ({share:.1%})")


ESCALATED = 0.1  # The share of dev in the sentence about texts that are left to the teacher.


def escalation_table(record: Record) -> list[tuple[str, ...]]:
    """Returns the accuracy and the costs of each share of dev that is left to the teacher, the header first.

    Their file is the recommended one. It is empty without a teacher to compare, or labels of dev.
    """
    results, file, rows = Results(record), *_list_escalations(record)
    if not rows:
        return []
    teacher, timed = record["teacher"], results.timing("student", timed_name(file, record["export"][file]["file"]))
    call, price = teacher.get("milliseconds"), teacher.get("dollars_per_million_texts")
    if call is None:  # The predictions are those of torch.
        call = (results.timing("teacher", "torch") or {}).get("p50_ms")
    left, own = [row["left"][DEV] for row in rows], timed["p50_ms"] if timed else None
    means = [None if own is None else own if not share else call and own + share * call for share in left]
    columns = {
        "left to the teacher": [f"{row['share']:.0%}" for row in rows],
        "accuracy on dev": [format_number(row["accuracy"][DEV], ".4f") for row in rows],
        "95% interval": [" to ".join(f"{end:.4f}" for end in row["interval"]) for row in rows],
        **{
            f"accuracy on {split}": [format_number(row["accuracy"].get(split), ".4f") for row in rows]
            for split in rows[0]["accuracy"]
            if split != DEV
        },
        "calls saved": [f"{1 - share:.1%}" for share in left],
        "$ a million texts": [format_number(None if price is None else share * price, ",.2f") for share in left],
        "ms a text": [format_number(mean, ".2f") for mean in means],
    }
    return _list_rows(columns)


def escalation_sentence(record: Record) -> str | None:
    """Returns the accuracy in words where `ESCALATED` of dev is left to the teacher; None without a table."""
    for row in _list_escalations(record)[1]:
        if row["share"] == ESCALATED:
            low, high = row["interval"]
            return (
                f"At {ESCALATED:.0%} left to the teacher: {row['accuracy'][DEV]:.1%} of the predictions are right "
                f"({low:.1%} to {high:.1%} in a fresh sample as large as dev), and {1 - row['left'][DEV]:.1%} of the "
                "calls are saved."
            )
    return None


def _list_escalations(record: Record) -> tuple[str, list[Record]]:
    """Returns the recommended format, and its shares of dev with an accuracy; none without a recommended file."""
    file = recommend(record["export"] or {})
    rows = record["export"][file].get("escalate") or [] if file else []
    return file or "", [row for row in rows if row["interval"]]


def breakdown_table(models: Record, record: Record, kind: str, number: str) -> list[tuple[str, ...]]:
    """Returns a header and the rows of a split: each group, its number, and each model's metric.

    Args:
        models: the groups of each model.
        kind: of the groups, such as `type`, for the header.
        number: the name of a number of examples or items that each group has.
    """
    metric = record["task"]["metric"]
    groups = {name: of[number] for name, of in next(iter(models.values())).items() if of.get("number") != 0}
    columns = {kind: list(groups), number: [f"{value:,.0f}" for value in groups.values()]}
    columns |= {model: [format_number(of[name].get(metric), ".4f") for name in groups] for model, of in models.items()}
    return _list_rows(columns)


def _task_table(record: Record) -> list[tuple[str, ...]]:
    """Returns the metrics of each of several tasks and of their mean, and what the student gains, the header first."""
    sections = {name: Results(section) for name, section in task_sections(record).items()}
    parts = {**sections, record["task"]["metric"]: Results(record)}
    models = {model: [part.measure(model) for part in parts.values()] for model in ("teacher", "student", "baseline")}
    gains = zip(models["student"], models["baseline"], parts.values(), strict=True)
    columns = {
        "task": list(parts),
        "metric": [f"{of.task['metric']} on {of.split}" for of in sections.values()] + [f"on {Results(record).split}"],
        **{model: [format_spread(value) for value in values] for model, values in models.items()},
        "points against baseline": [_subtract(value, other, part.unit) for value, other, part in gains],
    }
    for format in dict.fromkeys(format for section in sections.values() for format in section.record["export"]):
        values = [section.measure(format) for section in sections.values()]
        values.append(_mean_of_tasks([section.measure(format, Results(record).split) for section in sections.values()]))
        columns |= _compare_files(format, values, list(parts.values()))
    columns["gate"] = [
        ", ".join(f"{format} {file['gate']}" for format, file in part.record["export"].items())
        for part in parts.values()
    ]
    return _list_rows({name: cells for name, cells in columns.items() if set(cells) - {"", MISSING}})


def _compare_files(format: str, values: Sequence[Spread | None], parts: Sequence[Results]) -> dict[str, list[str]]:
    """Returns the column of a file of every task: shares of the teacher's metric, or points where one means nothing."""
    pairs = list(zip(parts, values, strict=True))
    shares = [part.share_of_teacher(value["mean"]) if value else None for part, value in pairs]
    if None not in shares:
        return {f"of the teacher ({format})": [format_number(share, ".1%") for share in shares]}
    points = [_subtract(value, part.measure("teacher"), part.unit) for part, value in pairs]
    return {f"points against teacher ({format})": points}


def _mean_of_tasks(values: Sequence[Spread | None]) -> Spread | None:
    """Returns the mean over the tasks of a file's metric; None if one of them has none."""
    means = [value["mean"] for value in values if value is not None]
    return {"mean": sum(means) / len(means), "std": None} if means and len(means) == len(values) else None


def metric_table(record: Record) -> list[tuple[str, ...]]:
    """Returns all metrics of all models and exported files, those of the first split first, below a header.

    Without an export the number of parameters is the second column.
    """
    results, teacher, student, export = Results(record), record["teacher"], record["student"], record["export"]
    suffix = " (torch)" if export else ""
    name, exported = ("teacher", "student") if student else ("model", "model")
    constant = teacher.get("constant") or {}
    # Each with its name, what has its parameters, its metrics, and its name in `measure_metric`.
    models: list[tuple[str, Record, Record, str]] = [(f"{name}{suffix}", teacher, teacher["metrics"], "teacher")]
    if teacher.get("before"):
        models.insert(0, (f"{name}, before training", teacher, teacher["before"], ""))
    if constant.get("metrics"):
        models.append((_constant_name(results), {}, constant["metrics"], "constant"))
    if record["baseline"]:
        models.append(("baseline, no teacher", student, record["baseline"]["metrics"], "baseline"))
    if student:
        models.append((f"student{suffix}", student, student["metrics"], "student"))
    models += [(f"{exported} {format}", student, file["metrics"], format) for format, file in export.items()]
    columns = {"": [label for label, *_ in models]}
    if not export:
        columns["parameters"] = [format_millions(of.get("parameters")) for _, of, *_ in models]
    first = "" if results.split == DEV else f"{results.split}/"
    metrics = dict.fromkeys(metric for _, _, values, _ in models for metric in values)
    for metric in sorted(metrics, key=lambda metric: not (first and metric.startswith(first))):
        columns[metric] = [
            format_spread(results.measure_metric(model, metric)) if model else format_number(values.get(metric), ".4f")
            for _, _, values, model in models
        ]
    return _list_rows(columns)


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
        transfer=transfer_table(record), breakdowns=breakdowns, escalation=escalation_table(record),
        escalated=escalation_sentence(record),
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
    difference = (record["student"] or {}).get("untaught")  # From the baseline that the card is about.
    body = _render(
        "model_card.md.jinja", record, name=_model(record)["name"], example=example_argument(task),
        prediction=task.get("prediction") or _default_prediction(task, labels), auto_class=auto_class,
        license=card.license, data_license=find_data_license(task.get("hub_id")),
        untaught=describe_difference(difference, task) if difference else None,
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
        (f"On {name} ({examples} examples): " if examples else f"The {name}: ")
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


def describe_difference(difference: Record, task: Record) -> str:
    """Returns a difference in words: `+0.8 points of accuracy, 95% interval +0.2 to +1.4, 3 seeds, p = 0.02`.

    A metric of which less is better is no share, and has no points.
    """
    unit, metric = Unit.of(task), task["metric"]
    name = f"in {metric} (less is better)" if unit.less_is_better else f"points of {metric}"
    split = difference.get("split") or DEV
    counted = f"seed{'s' if difference['number'] > 1 else ''} on {split}"
    if difference["over"] == "examples":
        counted = f"{split} examples"
    elif difference["over"] == BOTH:
        counted = f"{counted} and its examples"
    words = [f"{unit.format(difference['difference'])} {name}"]
    if difference["interval"] is not None:
        words.append(f"95% interval {unit.format_ends(difference['interval'])}")
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
    members = record["teacher"].get("members") or [record["teacher"]]  # Of an ensemble.
    teachers = list(dict.fromkeys(member["resolved"] for member in members))
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
    results.sort(key=lambda result: result.dataset_split != Results(record).split)
    return ModelCardData(
        library_name="transformers" if is_torch or not export else "onnx", pipeline_tag=pipeline_tag,
        license=join_licenses([find_model_license(name) for name in teachers]),
        base_model=[name for name in teachers if is_on_hub(name)] or None,
        tags=tags, datasets=[dataset] if dataset else None,
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        model_name=f"{model['name']}-{task['name']}", eval_results=results or None,
    )  # fmt: skip


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
    results = Results(record)
    timings = {
        "timing": first_timing(record["benchmark"]),
        "teacher_timing": results.timing("teacher", "torch"),
        "own": number_format(own) if (own := results.fastest_teacher_file()) else None,
    }
    return render_template(
        template, **_sections(record), **values, summary=summary_cells(record),
        timings=timings, verdict=render_headline(record), split=results.split,
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
