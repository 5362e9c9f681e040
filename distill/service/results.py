"""Runs of a job and their results, from the run.json of each."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distill.errors import UserError
from distill.records import verdict as verdicts
from distill.records.collection import read_record
from distill.records.measures import describe_gate, select_timing, task_sections
from distill.records.record import RECORD
from distill.records.shape import fill_record
from distill.storage.files import JsonObject

Result = dict[str, Any]


def list_runs(root: Path) -> list[str]:
    """Returns the directories of the runs below `root`, relative to it, oldest first: several of a sweep."""
    found = [path.parent for path in root.rglob(RECORD)]
    return [path.relative_to(root).as_posix() for path in sorted(found, key=lambda path: (path.name, str(path)))]


def read_results(root: Path) -> list[Result]:
    """Returns a result for each run below `root` whose record can be read, and for each task of a run on several."""
    found: list[Result] = []
    for run in list_runs(root):
        try:
            record = read_record(root / run)
        except UserError:  # It is being written, or was begun by another version.
            continue
        found += [{"run": run, **read_result(section)} for section in sections(record)]
    return found


def sections(record: JsonObject) -> list[JsonObject]:
    """Returns the record of each of several tasks, or the record itself."""
    return [fill_record(section) for section in task_sections(record).values()] or [record]


def read_result(record: JsonObject) -> Result:
    """Returns the headline of a record: the metric of teacher and student, the share kept, size, time and gate.

    `mb` and `ms` (for one text of the smallest length that was timed) are those of the recommended file. Values that
    are not known are None.
    """
    task = record["task"]
    if not task:
        return dict.fromkeys(
            ("task", "metric", "split", "teacher", "student", "retained", "mb", "ms", "gate", "reason")
        )
    split, decided = verdicts.find_split(record), verdicts.decide(record)
    teacher = verdicts.measure(record, "teacher", split)
    file = record["export"].get(decided.file) if decided and decided.file else None
    timing = select_timing(record, "student", f"onnx-{decided.file}") if decided and file else None
    return {
        "task": task["name"], "metric": task["metric"], "split": split,
        "teacher": teacher and teacher["mean"], "student": decided and decided.student["mean"],
        "retained": decided and decided.share, "mb": file and file["bytes"] / 1e6, "ms": timing and timing["p50_ms"],
        "gate": find_gate(record["export"]), "reason": describe_gates(record["export"]),
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
