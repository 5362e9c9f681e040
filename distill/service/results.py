"""Runs of a job and their results, from the run.json of each."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from distill.errors import UserError
from distill.records import verdict as verdicts
from distill.records.collection import read_record
from distill.records.headline import describe_verdict
from distill.records.measures import describe_gate, select_timing, task_sections
from distill.records.option_names import describe_options, flatten_options, select_options, shorten_names
from distill.records.record import RECORD
from distill.records.saved_config import CONFIG, read_plain
from distill.records.shape import fill_record
from distill.storage.files import JsonObject

Result = dict[str, Any]
NUMBERS = (
    "task", "metric", "split", "teacher", "student", "retained", "file", "exported", "mb", "ms", "gate", "reason",
)  # fmt: skip


def list_runs(root: Path) -> list[str]:
    """Returns the directories of the runs below `root`, relative to it, oldest first: several of a sweep."""
    found = [path.parent for path in root.rglob(RECORD)]
    return [path.relative_to(root).as_posix() for path in sorted(found, key=lambda path: (path.name, str(path)))]


def read_results(root: Path, typed: Collection[str] = ()) -> list[Result]:
    """Returns a result for each run below `root` whose record can be read, and for each task of a run on several.

    Args:
        typed: the names of the options of the job, for the `title` of each of several runs.
    """
    found: list[Result] = []
    runs = list_runs(root)
    titles = name_runs(root, runs, typed)
    for run in runs:
        try:
            record = read_record(root / run)
        except UserError:  # It is being written, or was begun by another version.
            continue
        found += [{"run": run, "title": titles[run], **read_result(section)} for section in sections(record)]
    return found


def name_runs(root: Path, runs: Sequence[str], typed: Collection[str] = ()) -> dict[str, str]:
    """Returns the options in which each of several runs differs from the others; where that is nothing, its directory.

    Args:
        typed: the names of the options of the job, which stand before others.
    """
    options = []
    for run in runs:
        try:
            options.append(flatten_options(read_plain(root / run / CONFIG)))
        except UserError:  # It has none, or is being written.
            options.append({})
    chosen = select_options(options, typed)
    names = shorten_names(name for row in chosen for name in row)
    titles = [describe_options(row, names) for row in chosen]
    is_unique = len(set(titles)) == len(runs)
    return {run: title if is_unique and title else run for run, title in zip(runs, titles, strict=True)}


def sections(record: JsonObject) -> list[JsonObject]:
    """Returns the record of each of several tasks, or the record itself."""
    return [fill_record(section) for section in task_sections(record).values()] or [record]


def read_result(record: JsonObject) -> Result:
    """Returns the headline of a record: the metric of teacher and student, the share kept, size, time and gate.

    `student` is the metric in torch. `file` is the recommended file, whose metric, size and time (for one text of the
    smallest length that was timed) are `exported`, `mb` and `ms`. Values that are not known are None. `verdict` are
    sentences, a title first.
    """
    task = record["task"]
    if not task:
        return {**dict.fromkeys(NUMBERS), "verdict": []}
    split, decided = verdicts.find_split(record), verdicts.decide(record)
    teacher = verdicts.measure(record, "teacher", split)
    file = record["export"].get(decided.file) if decided and decided.file else None
    exported = verdicts.measure(record, decided.file, split) if decided and decided.file else None
    timing = select_timing(record, "student", f"onnx-{decided.file}") if decided and file else None
    return {
        "task": task["name"], "metric": task["metric"], "split": split,
        "teacher": teacher and teacher["mean"], "student": decided and decided.student["mean"],
        "retained": decided and decided.share, "file": file and file["file"], "exported": exported and exported["mean"],
        "mb": file and file["bytes"] / 1e6, "ms": timing and timing["p50_ms"],
        "gate": find_gate(record["export"]), "reason": describe_gates(record["export"]),
        "verdict": describe_verdict(record),
    }  # fmt: skip


def find_gate(export: Mapping[str, Any]) -> str | None:
    """Returns the gate of the file to use: `passed`, `undecided`, or `failed` if no file passed; None without files."""
    if not export:
        return None
    chosen = verdicts.recommend(export)
    return "failed" if chosen is None else str(export[chosen]["gate"])


def describe_gates(export: Mapping[str, Any]) -> str | None:
    """Returns why no file passed its gate; None if one did."""
    if find_gate(export) != "failed":
        return None
    return "; ".join(f"{file['file']} {describe_gate(file)}" for file in export.values() if file.get("reason"))
