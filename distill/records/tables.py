"""The tables of a run: its models and files, all metrics, seeds, types and tasks.

The task's metric in them is that of the first split, as in the verdict.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from distill.edge.model_files import timed_name
from distill.records.measures import (
    MISSING,
    fastest_teacher_file,
    find_teacher_bytes,
    format_megabytes,
    format_millions,
    format_number,
    format_points,
    format_spread,
    number_format,
    select_timing,
    share_kept,
    task_sections,
)
from distill.records.shape import DEV, TEST, metric_name
from distill.records.verdict import (
    find_split,
    measure,
    measure_metric,
    share_of_teacher,
)
from distill.storage.files import JsonObject
from distill.training.statistics import Spread

Record = JsonObject
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


def summary_columns(record: Record) -> tuple[str, ...]:
    """Returns the header of `summary_rows`; the first column names the row."""
    return _summary_table(record)[0]


def summary_rows(record: Record) -> list[tuple[str, ...]]:
    """Returns one row for each model and exported file, or without an export one for each model with all its metrics.

    Of several tasks it is one row for each task, and one for their mean.
    """
    return _summary_table(record)[1:]


def _summary_table(record: Record) -> list[tuple[str, ...]]:
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
    """Returns the task's metric on the first split of every seed and all of its models, the header first."""
    seeds, metric = record.get("seeds") or [], metric_name(record["task"], find_split(record))
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


def breakdown_table(
    models: Record, record: Record, kind: str, number: str
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Returns the header and the rows of a split: each group, its number, and each model's metric.

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
    return (kind, number, *models), rows


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
