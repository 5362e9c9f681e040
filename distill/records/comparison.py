"""The table of several runs: runs that differ only in their seeds are one row, with mean, deviation and difference.

A row is compared with the row of the same options and the objective `supervised`, paired by seed.
"""

import csv
import io
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from distill.edge.model_files import timed_name
from distill.errors import UserError
from distill.files import JsonObject
from distill.options import show_value
from distill.records.measures import (
    MISSING,
    describe_conditions,
    describe_gate,
    fastest_teacher_file,
    find_teacher_bytes,
    format_points,
    format_spread,
    number_format,
    select_timing,
)
from distill.records.saved_config import CONFIG, read_plain
from distill.training.statistics import Difference, Spread, compare_seeds, spread

REFERENCE = "supervised"
# Options that differ between runs of one row.
NOT_COMPARED = ("seed", "seeds", "trainer.seed", "resume", "output_dir", "cache_dir", "dry_run", "job.name")
_GROUPS_NOT_COMPARED = ("logger.", "paper.")
NOTE = (
    "The metric is that of the exported fp32 file on dev, or of the student in torch without one: mean ± standard "
    f"deviation over the seeds. The difference from {REFERENCE}, the student without a teacher, is paired by seed, in "
    "points, with its 95% interval by Student's t. Of many rows, one in twenty has an interval without 0 by chance."
)
_FORMULAS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # These begin a formula, also in full width.
OPTIONAL = ("int8", "MB", "p50 ms", "speed-up")  # Columns of the table.
Options = Mapping[str, object]


@dataclass(frozen=True)
class FileResult:
    """An exported file of a row.

    Attributes:
        file: its name.
        values: its metric by seed.
        bytes: its size in the last run.
        p50_ms: of the last run that was timed; None without one.
        passed: whether it passed its gate with every seed.
        verdicts: the reasons of the seeds with which it did not, in words.
    """

    file: str
    values: Mapping[int, float]
    bytes: int | None
    p50_ms: float | None
    passed: bool
    verdicts: Sequence[str] = ()

    def spread(self) -> Spread | None:
        """Returns mean and standard deviation over the seeds."""
        return spread(list(self.values.values())) if self.values else None


@dataclass(frozen=True)
class TeacherResult:
    """The teacher of a row: its name, its metric on dev, its p50 in ms in torch, and the bytes of its weights.

    `fastest` has the number format and the p50 in ms of its own fastest ONNX file; None without one.
    """

    name: str
    metric: float | None
    p50_ms: float | None
    bytes: int | None
    fastest: tuple[str, float] | None = None


@dataclass(frozen=True)
class Row:
    """All runs with the same options but for the seed.

    Attributes:
        label: the options in which the row differs from others.
        options: these options with their values.
        task: the `task` of run.json; empty if no run got that far.
        values: the metric of each seed.
        files: the exported files by format.
        teacher: None if no run has one yet.
        conditions: of the times, with the processor and whether it was busy; None without times.
        kept: share of the teacher's metric, the mean over seeds.
        difference: from the reference; None for the reference itself and without one.
        seconds: of one training, the mean over seeds.
        error: of the last run that failed, or `unfinished`.
    """

    label: str
    options: Options
    task: JsonObject
    values: Mapping[int, float]
    files: Mapping[str, FileResult]
    teacher: TeacherResult | None
    conditions: str | None
    kept: float | None
    seconds: float | None
    error: str | None
    directories: Sequence[Path]
    difference: Difference | None = None

    def spread(self) -> Spread | None:
        """Returns mean and standard deviation over the seeds."""
        return spread(list(self.values.values())) if self.values else None


def compare_runs(runs: Sequence[tuple[Path, JsonObject]]) -> list[Row]:
    """Returns one row for all runs with the same options but for the seed, the best ones first."""
    groups: dict[str, list[tuple[Path, JsonObject]]] = {}
    options: dict[str, Options] = {}
    for directory, record, flat in _tell_apart([(*run, read_options(*run)) for run in runs]):
        key = json.dumps(flat, sort_keys=True, default=str)
        options[key] = flat
        groups.setdefault(key, []).append((directory, record))
    typed = {word.lstrip("+~").partition("=")[0] for _, record in runs for word in record.get("command") or ()}
    shown = _select_shown(list(options.values()), typed)
    rows = {key: _create_row(options[key], chosen, groups[key]) for key, chosen in zip(groups, shown, strict=True)}
    references = {_without_objective(options[key]): row for key, row in rows.items() if _is_reference(options[key])}
    compared = []
    for key, row in rows.items():
        reference = references.get(_without_objective(options[key]))
        compared.append(row if reference in (None, row) else _compare(row, reference))
    return sorted(compared, key=_order)


def _tell_apart(
    runs: Sequence[tuple[Path, JsonObject, Options]],
) -> list[tuple[Path, JsonObject, Options]]:
    """Returns the runs, with their directory as an option where seeds cannot tell them apart.

    A run from Python has no config.yaml, so that its record may lack the option in which it differs from another. Two
    such runs with the same seed are no seeds of one row, and which of them others belong to is not known.
    """
    keys = [json.dumps(flat, sort_keys=True, default=str) for *_, flat in runs]
    seeds: dict[str, list[int]] = {}
    for key, (directory, record, _) in zip(keys, runs, strict=True):
        if read_config(directory) is None:
            entries = record.get("seeds") or _only_seed(record)
            seeds.setdefault(key, []).extend(int(entry["seed"]) for entry in entries)
    unclear = {key for key, of_key in seeds.items() if len(set(of_key)) < len(of_key)}
    return [
        (directory, record, {**flat, "directory": str(directory)} if key in unclear else flat)
        for key, (directory, record, flat) in zip(keys, runs, strict=True)
    ]


def table(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Returns the cells of the table, the header first; a column of files or times is left out if it is empty."""
    metrics = {str(row.task["metric"]) for row in rows if row.task}
    metric = metrics.pop() if len(metrics) == 1 else "metric"
    header = (
        "run", metric, "seeds", "of the teacher", f"against {REFERENCE}", "int8", "MB", "p50 ms", "speed-up", "seconds",
        "error",
    )  # fmt: skip
    cells = [header, *(_cells(row) for row in rows)]
    columns = list(zip(*cells, strict=True))
    used = [column for column in columns if column[0] not in OPTIONAL or set(column[1:]) != {MISSING}]
    return list(zip(*used, strict=True))


def terminal_table(rows: Sequence[Row], *, title: str | None = None) -> Table:
    """Returns the table for a terminal."""
    header, *cells = table(rows)
    result = Table(title=title, title_justify="left", title_style="bold")
    for column in header:
        result.add_column(column, justify="left" if column in ("run", "error") else "right", overflow="fold")
    for row in cells:
        result.add_row(*row)
    return result


def to_csv(rows: Sequence[Row]) -> str:
    """Returns the table as CSV, with plain numbers. A spreadsheet reads its texts as texts."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ("difference", "low", "high", "p")
    writer.writerow(
        (
            "run", "task", "metric", "mean", "std", "seeds", "share_kept", *names, "seconds", "error", "directories",
            "teacher_metric", "int8_mean", "int8_std", "int8_bytes", "int8_p50_ms", "teacher_p50_ms",
        )
    )  # fmt: skip
    for row in rows:
        found, difference = row.spread(), row.difference
        numbers: tuple[float | None, ...] = (None,) * len(names)
        if difference is not None:
            numbers = (difference["difference"], *(difference["interval"] or (None, None)), difference["p"])
        small, teacher = row.files.get("int8"), row.teacher
        small_spread = small.spread() if small else None
        writer.writerow(
            (
                *map(_plain_text, (row.label, row.task.get("name"), row.task.get("metric"))), found and found["mean"],
                found and found["std"], " ".join(map(str, row.values)), row.kept, *numbers, row.seconds,
                *map(_plain_text, (row.error, " ".join(map(str, row.directories)))), teacher and teacher.metric,
                small_spread and small_spread["mean"], small_spread and small_spread["std"], small and small.bytes,
                small and small.p50_ms, teacher and teacher.p50_ms,
            )
        )  # fmt: skip
    return text.getvalue()


def _plain_text(value: object) -> object:
    """Returns a text in one line, with an apostrophe before what a spreadsheet would run as a formula."""
    if not isinstance(value, str):
        return value
    text = re.sub(r"[\t\r\n]", " ", value)
    return f"'{text}" if text.lstrip().startswith(_FORMULAS) else text


def read_options(directory: Path, record: JsonObject) -> Options:
    """Returns the options that the results depend on, by their full names; from Python there is only the record."""
    flat = _flatten(read_config(directory) or _reconstruct_config(record), "")
    return {
        name: value
        for name, value in flat.items()
        if name not in NOT_COMPARED and not name.startswith(_GROUPS_NOT_COMPARED)
    }


def read_config(directory: Path) -> JsonObject | None:
    """Returns the config.yaml of a run; None without one, or with one that is damaged."""
    path = directory / CONFIG
    try:
        return read_plain(path) if path.is_file() else None
    except UserError:
        return None


def _reconstruct_config(record: JsonObject) -> JsonObject:
    settings = record.get("settings") or {}
    names = {
        name: {"name": (record.get(name) or {}).get("name"), **settings.get(name, {})} for name in ("task", "student")
    }
    teacher = {"name": (record.get("teacher") or {}).get("requested")}
    return {**settings, **names, "teacher": teacher, "objective": record.get("objective")}


def _flatten(node: object, name: str) -> dict[str, object]:
    if not isinstance(node, dict) or not node:
        return {name: node}
    prefix = f"{name}." if name else ""
    return {key: value for inner, below in node.items() for key, value in _flatten(below, f"{prefix}{inner}").items()}


def _select_shown(options: Sequence[Options], typed: Collection[str]) -> list[Options]:
    """Returns the options that tell rows apart: names of groups, what was typed, and of the rest only what is needed.

    Args:
        typed: the names on the command lines.
    """
    names = list(dict.fromkeys(name for row in options for name in row))
    values = {name: [repr(row.get(name)) for row in options] for name in names}
    varying = [name for name in names if len(set(values[name])) > 1]
    chosen = [name for name in varying if name in typed or name.endswith(".name")]
    keys = list(zip(*(values[name] for name in chosen), strict=True)) or [()] * len(options)
    for name in varying:
        finer = [(*key, value) for key, value in zip(keys, values[name], strict=True)]
        if name not in chosen and len(set(finer)) > len(set(keys)):
            chosen.append(name)
            keys = finer
    chosen.sort(key=names.index)
    return [{name.removesuffix(".name"): row[name] for name in chosen if name in row} for row in options]


def _create_row(options: Options, shown: Options, runs: Sequence[tuple[Path, JsonObject]]) -> Row:
    """Returns the row of runs that differ in their seeds; of two runs with the same seed the later one counts."""
    entries: dict[int, JsonObject] = {}
    task: JsonObject = {}
    error = teacher = None
    timed: JsonObject = {}
    for _, record in runs:
        task = record["task"] or task
        entries |= {int(entry["seed"]): entry for entry in record.get("seeds") or _only_seed(record)}
        timed = record if record["benchmark"] else timed
        teacher = _describe_teacher(record, task) or teacher
        if record["status"] != "finished":
            error = str(record["error"] or "unfinished")
    shares = [
        (entry.get("retention") or {}).get("fp32", (entry.get("retention") or {}).get("torch"))
        for entry in entries.values()
    ]
    label = " ".join(f"{name}={show_value(value)}" for name, value in shown.items())
    metrics = {seed: _metric(entries[seed], str(task["metric"])) for seed in sorted(entries)}
    return Row(
        label=label or f"objective={options.get('objective.name') or 'unknown'}", options=shown, task=task, error=error,
        directories=[directory for directory, _ in runs], files=_collect_files(entries, task, timed), teacher=teacher,
        values={seed: value for seed, value in metrics.items() if value is not None},
        conditions=describe_conditions(timed), kept=_mean(shares),
        seconds=_mean([entry.get("seconds") for entry in entries.values()]),
    )  # fmt: skip


def _describe_teacher(record: JsonObject, task: JsonObject) -> TeacherResult | None:
    teacher = record["teacher"]
    if not teacher or not task:
        return None
    timing, own = select_timing(record, "teacher", "torch"), fastest_teacher_file(record)
    return TeacherResult(
        str(teacher["resolved"]), teacher["metrics"].get(task["metric"]), timing["p50_ms"] if timing else None,
        find_teacher_bytes(record), (number_format(own), own["p50_ms"]) if own else None,
    )  # fmt: skip


def _collect_files(entries: Mapping[int, JsonObject], task: JsonObject, timed: JsonObject) -> dict[str, FileResult]:
    """Returns the exported files of all seeds by format, with the times of the last run that was timed."""
    found: dict[str, FileResult] = {}
    for format in dict.fromkeys(format for entry in entries.values() for format in entry["export"]):
        files = {seed: entries[seed]["export"][format] for seed in sorted(entries) if format in entries[seed]["export"]}
        metrics = {seed: file["metrics"].get(task["metric"]) for seed, file in files.items()}
        last = list(files.values())[-1]
        timing = select_timing(timed, "student", timed_name(format, last["file"])) if timed else None
        found[format] = FileResult(
            file=last["file"], values={seed: float(value) for seed, value in metrics.items() if value is not None},
            bytes=last["bytes"], p50_ms=timing["p50_ms"] if timing else None,
            passed=all(file["gate"] == "passed" for file in files.values()),
            verdicts=list(dict.fromkeys(map(describe_gate, filter(_has_reason, files.values())))),
        )  # fmt: skip
    return found


def _has_reason(file: JsonObject) -> bool:
    return file["gate"] != "passed" and bool(file.get("reason"))


def _only_seed(record: JsonObject) -> list[dict[str, Any]]:
    if record["status"] != "finished" or not record["student"]:
        return []
    return [
        {
            "seed": record["seed"] or 0, "metrics": record["student"]["metrics"], "export": record["export"],
            "retention": record["retention"], "seconds": (record["training"] or {}).get("seconds"),
        }
    ]  # fmt: skip


def _metric(entry: JsonObject, metric: str) -> float | None:
    value = entry["export"].get("fp32", entry)["metrics"].get(metric)
    return None if value is None else float(value)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _is_reference(options: Options) -> bool:
    return options.get("objective.name") == REFERENCE


def _without_objective(options: Options) -> str:
    rest = {name: value for name, value in options.items() if name.partition(".")[0] != "objective"}
    return json.dumps(rest, sort_keys=True, default=str)


def _compare(row: Row, reference: Row | None) -> Row:
    """Returns the row with its difference from the reference over the seeds that both have."""
    if reference is None:
        return row
    seeds = [seed for seed in row.values if seed in reference.values]
    if not seeds:
        return row
    values = [[of.values[seed] for seed in seeds] for of in (row, reference)]
    return replace(row, difference=compare_seeds(*values))


def _order(row: Row) -> tuple[bool, str, float]:
    """Returns the position of a row: by task, the best first, and at the end what has no result."""
    found = row.spread()
    if found is None:
        return True, row.label, 0.0
    return False, str(row.task["name"]), found["mean"] if row.task.get("selects") == "min" else -found["mean"]


def _cells(row: Row) -> tuple[str, ...]:
    difference, shown = row.difference, MISSING
    if difference is not None:
        shown = format_points(difference["difference"], row.task)
        if difference["interval"] is not None:
            low, high = (format_points(end, row.task) for end in difference["interval"])
            shown += f" ({low} to {high})"
    small = row.files.get("int8")
    size, p50 = (small.bytes, small.p50_ms) if small else (None, None)
    before = row.teacher.p50_ms if row.teacher else None
    return (
        row.label, format_spread(row.spread()), str(len(row.values)),
        MISSING if row.kept is None else f"{row.kept:.1%}", shown, format_spread(small.spread() if small else None),
        MISSING if size is None else f"{size / 1e6:.1f}", MISSING if p50 is None else f"{p50:.2f}",
        f"{before / p50:.1f}x" if before and p50 else MISSING, MISSING if row.seconds is None else f"{row.seconds:.0f}",
        row.error or "",
    )  # fmt: skip
