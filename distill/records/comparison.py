"""The table of several runs: runs that differ only in their seeds are one row, with mean, deviation and difference.

A row is compared with the row of the same options and the objective `supervised`, paired by seed.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from rich.table import Table

from distill.console import print_notice
from distill.errors import UserError
from distill.files import JsonObject
from distill.records.record import RECORD, open_run
from distill.records.report import MISSING, format_points, format_spread
from distill.training.statistics import Difference, Spread, compare_seeds, spread

SWEEP_RUNS = "runs.txt"  # In the directory of a sweep: the directory of each run, relative to it.
REFERENCE = "supervised"
# Options that differ between runs of one row.
NOT_COMPARED = ("seed", "seeds", "trainer.seed", "resume", "output_dir", "cache_dir", "dry_run", "job.name")
NOTE = (
    "The metric is that of the exported fp32 file on dev, or of the student in torch without one: mean ± standard "
    f"deviation over the seeds. The difference from {REFERENCE}, the student without a teacher, is paired by seed, in "
    "points, with its 95% interval by Student's t. Of many rows, one in twenty has an interval without 0 by chance."
)
Options = Mapping[str, object]


@dataclass(frozen=True)
class Row:
    """All runs with the same options but for the seed.

    Attributes:
        label: the options in which the row differs from others.
        task: the `task` of run.json; empty if no run got that far.
        values: the metric of each seed.
        kept: share of the teacher's metric, the mean over seeds.
        difference: from the reference; None for the reference itself and without one.
        seconds: of one training, the mean over seeds.
        error: of the last run that failed, or `unfinished`.
    """

    label: str
    task: JsonObject
    values: Mapping[int, float]
    kept: float | None
    seconds: float | None
    error: str | None
    directories: Sequence[Path]
    difference: Difference | None = None

    def spread(self) -> Spread | None:
        """Returns mean and standard deviation over the seeds."""
        return spread(list(self.values.values())) if self.values else None


def find_runs(directory: Path) -> list[tuple[Path, JsonObject]]:
    """Returns the distillations of a sweep, or of all runs below a directory, oldest first.

    Raises:
        UserError: if there is none.
    """
    if not directory.is_dir():
        raise UserError(f"job.runs={directory} is no directory: give that of a sweep, or one with runs below it")
    listed = directory / SWEEP_RUNS
    if listed.is_file():
        lines = dict.fromkeys(listed.read_text(encoding="utf-8").splitlines())
        found = [Path(directory / line).resolve() for line in lines]
    else:
        found = sorted((path.parent for path in directory.rglob(RECORD)), key=lambda path: path.name)
    runs: list[tuple[Path, JsonObject]] = []
    for path in found:
        try:
            record = open_run(path).record
        except UserError as error:
            print_notice(f"{error}; it is left out")
            continue
        if record["job"] == "distill":
            runs.append((path, record))
    if not runs:
        raise UserError(f"job.runs={directory} has no distillation: give the directory of a sweep, or one with runs")
    return runs


def compare_runs(runs: Sequence[tuple[Path, JsonObject]]) -> list[Row]:
    """Returns one row for all runs with the same options but for the seed, the best ones first."""
    groups: dict[str, list[tuple[Path, JsonObject]]] = {}
    options: dict[str, Options] = {}
    for directory, record in runs:
        flat = _read_options(directory, record)
        key = json.dumps(flat, sort_keys=True, default=str)
        options[key] = flat
        groups.setdefault(key, []).append((directory, record))
    labels = _labels(list(options.values()))
    rows = {key: _create_row(label, groups[key]) for key, label in zip(groups, labels, strict=True)}
    references = {_without_objective(options[key]): row for key, row in rows.items() if _is_reference(options[key])}
    compared = []
    for key, row in rows.items():
        reference = references.get(_without_objective(options[key]))
        compared.append(row if reference in (None, row) else _compare(row, reference))
    return sorted(compared, key=_order)


def table(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Returns the cells of the table, the header first."""
    metrics = {str(row.task["metric"]) for row in rows if row.task}
    metric = metrics.pop() if len(metrics) == 1 else "metric"
    header = ("run", metric, "seeds", "of the teacher", f"against {REFERENCE}", "seconds", "error")
    return [header, *(_cells(row) for row in rows)]


def terminal_table(rows: Sequence[Row]) -> Table:
    """Returns the table for a terminal."""
    header, *cells = table(rows)
    result = Table()
    for column in header:
        result.add_column(column, justify="left" if column in ("run", "error") else "right", overflow="fold")
    for row in cells:
        result.add_row(*row)
    return result


def to_csv(rows: Sequence[Row]) -> str:
    """Returns the table as CSV, with plain numbers."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ("difference", "low", "high", "p")
    writer.writerow(
        ("run", "task", "metric", "mean", "std", "seeds", "share_kept", *names, "seconds", "error", "directories")
    )
    for row in rows:
        found, difference = row.spread(), row.difference
        numbers: tuple[float | None, ...] = (None,) * len(names)
        if difference is not None:
            numbers = (difference["difference"], *(difference["interval"] or (None, None)), difference["p"])
        writer.writerow(
            (
                row.label, row.task.get("name"), row.task.get("metric"), found and found["mean"],
                found and found["std"], " ".join(map(str, row.values)), row.kept, *numbers, row.seconds, row.error,
                " ".join(map(str, row.directories)),
            )
        )  # fmt: skip
    return text.getvalue()


def _read_options(directory: Path, record: JsonObject) -> Options:
    """Returns the options that the results depend on, by their full names; from Python there is only the record."""
    path = directory / "config.yaml"
    if path.is_file():
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    else:
        names = {name: {"name": (record.get(name) or {}).get("name")} for name in ("task", "student")}
        teacher = {"name": (record.get("teacher") or {}).get("requested")}
        content = {**names, "teacher": teacher, "objective": record.get("objective")}
    flat = _flatten(content, "")
    return {name: value for name, value in flat.items() if name not in NOT_COMPARED and not name.startswith("logger.")}


def _flatten(node: object, name: str) -> dict[str, object]:
    if not isinstance(node, dict) or not node:
        return {name: node}
    prefix = f"{name}." if name else ""
    return {key: value for inner, below in node.items() for key, value in _flatten(below, f"{prefix}{inner}").items()}


def _labels(options: Sequence[Options]) -> list[str]:
    """Returns the options in which each row differs from others: of another objective, student, ... only the name."""
    names = list(dict.fromkeys(name for row in options for name in row))
    varying = [name for name in names if len({repr(row.get(name)) for row in options}) > 1]
    labels = []
    for row in options:
        shown = [name for name in varying if name in row and _is_shown(name, row, options)]
        short = {name: name.removesuffix(".name") for name in shown}
        labels.append(" ".join(f"{short[name]}={row[name]}" for name in shown) or _objective(row))
    return labels


def _objective(row: Options) -> str:
    """Returns the label of the only row; a run that failed early may have no objective."""
    return f"objective={row.get('objective.name') or 'unknown'}"


def _is_shown(name: str, row: Options, options: Sequence[Options]) -> bool:
    """Returns whether a varying option is more than a part of a group whose name already differs."""
    group = f"{name.partition('.')[0]}.name"
    if name == group or group not in row:
        return True
    same = [other for other in options if other.get(group) == row[group]]
    return len({repr(other.get(name)) for other in same}) > 1


def _create_row(label: str, runs: Sequence[tuple[Path, JsonObject]]) -> Row:
    """Returns the row of runs that differ in their seeds; of two runs with the same seed the later one counts."""
    entries: dict[int, JsonObject] = {}
    task: JsonObject = {}
    error = None
    for _, record in runs:
        task = record["task"] or task
        entries |= {int(entry["seed"]): entry for entry in record.get("seeds") or _only_seed(record)}
        if record["status"] != "finished":
            error = str(record["error"] or "unfinished")
    shares = [
        (entry["retention"] or {}).get("fp32", (entry["retention"] or {}).get("torch")) for entry in entries.values()
    ]
    return Row(
        label=label, task=task, error=error, directories=[directory for directory, _ in runs],
        values={seed: _metric(entries[seed], str(task["metric"])) for seed in sorted(entries)},
        kept=_mean(shares), seconds=_mean([entry["seconds"] for entry in entries.values()]),
    )  # fmt: skip


def _only_seed(record: JsonObject) -> list[dict[str, Any]]:
    if record["status"] != "finished" or not record["student"]:
        return []
    return [
        {
            "seed": record["seed"], "metrics": record["student"]["metrics"], "export": record["export"],
            "retention": record["retention"], "seconds": record["training"]["seconds"],
        }
    ]  # fmt: skip


def _metric(entry: JsonObject, metric: str) -> float:
    return float(entry["export"].get("fp32", entry)["metrics"][metric])


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
    return Row(**{**vars(row), "difference": compare_seeds(*values)})


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
    return (
        row.label, format_spread(row.spread()), str(len(row.values)),
        MISSING if row.kept is None else f"{row.kept:.1%}", shown,
        MISSING if row.seconds is None else f"{row.seconds:.0f}", row.error or "",
    )  # fmt: skip
