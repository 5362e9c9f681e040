"""Numbers of a run.json that tables and sentences show, and their texts.

Every page and the terminal write them alike:

- a metric, a probability and the agreement of two models with decimals: `0.9128`;
- a difference of two metrics in points, which are hundredths, and of a metric of which less is better in its own unit:
  `+0.8`;
- a share of a whole as a percentage: of the teacher's metric, the examples or the tokens: `98.7%`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jinja2 import Undefined

from distill.records.record import whole_section
from distill.storage.files import JsonObject

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from distill.training.statistics import Spread

Record = JsonObject
Number = float | Undefined | None  # Undefined is jinja's, for a value that the record lacks.
MISSING = "-"


def format_points(value: float, task: Record) -> str:
    """Returns a difference with its sign, a share in points: `+0.8`."""
    if task.get("selects") == "min":
        return f"{round(value, 3) + 0.0:+.3f}"
    return f"{round(100 * value, 1) + 0.0:+.1f}"  # The sum makes 0 of -0.


def format_margin(margin: float, task: Record) -> str:
    """Returns a margin in its unit: `1 point`, `2 points`, and percent of a metric of which less is better."""
    return f"{margin:g}%" if task.get("selects") == "min" else f"{margin:g} point{'s' * (margin != 1)}"


def format_spread(spread: "Spread | None") -> str:
    """Returns a mean with its standard deviation: `0.9128 ± 0.0012`."""
    if spread is None:
        return MISSING
    return format_number(spread["mean"], ".4f") + ("" if spread["std"] is None else f" ± {spread['std']:.4f}")


def format_number(value: Number, specification: str, unit: str = "") -> str:
    """Returns a number with its unit, or a dash for one that is missing."""
    return MISSING if is_missing(value) else f"{value:{specification}}{unit}"


def is_missing(value: object) -> "TypeIs[Undefined | None]":
    """Returns whether the record lacks a value."""
    return value is None or isinstance(value, Undefined)


def format_megabytes(size: Number) -> str:
    """Returns a size in bytes as `4.1 MB`."""
    return MISSING if is_missing(size) else f"{size / 1e6:.1f} MB"


def format_millions(number: Number) -> str:
    """Returns a number of parameters as `17.4 M`."""
    return MISSING if is_missing(number) else f"{number / 1e6:.1f} M"


def share_kept(value: float, teacher: float, task: Record) -> float | None:
    """Returns the share of the teacher's metric that a student keeps; None if it means nothing.

    Of a metric of which less is better it is the teacher's as a share of the student's.
    """
    part, whole = (teacher, value) if task.get("selects") == "min" else (value, teacher)
    return part / whole if whole > 0 and teacher > 0 else None


def select_timing(record: Record, model: str, format: str) -> Record | None:
    """Returns the measurement of a model at its smallest batch and length, None without one."""
    return first_timing([row for row in record["benchmark"] if row["model"] == model and row["format"] == format])


def first_timing(rows: Sequence[Record]) -> Record | None:
    """Returns the measurement at the smallest batch and length, None without one."""
    return min(rows, key=lambda row: (row["batch"], row["length"]), default=None)


def number_format(timing: Record) -> str:
    """Returns the number format of a timed ONNX file: `int8` of `onnx-int8`."""
    return str(timing["format"]).removeprefix("onnx-")


def find_teacher_bytes(record: Record) -> int | None:
    """Returns the size of the teacher's ONNX file, else of its weights in float32; None if neither is known."""
    file, parameters = select_timing(record, "teacher", "onnx-fp32"), record["teacher"].get("parameters")
    return file["bytes"] if file else 4 * parameters if parameters else None


def describe_conditions(record: Record) -> str | None:
    """Returns batch size, length, threads and processor of the times of a run, and whether it was busy with other work.

    None without times.
    """
    timing = min(record.get("benchmark") or (), key=lambda row: (row["batch"], row["length"]), default=None)
    if timing is None:
        return None
    processor = (record.get("environment") or {}).get("cpu") or "an unknown processor"
    shape = timing["batch"], timing["length"]
    busy = any(row.get("disturbed") for row in record["benchmark"] if (row["batch"], row["length"]) == shape)
    threads = f"{format_number(timing['threads'], 'd')} thread{'s' if timing['threads'] != 1 else ''}"
    where = f"{threads} of {processor}{', busy with other work' if busy else ''}"
    return f"batch {timing['batch']}, length {timing['length']}, {where}"


def describe_gate(file: Record) -> str:
    """Returns why a file did not pass its gate, as a sentence about it goes on after its name."""
    return f"{'failed its gate' if file['gate'] == 'failed' else 'is ' + file['gate']}: {file['reason']}"


def task_sections(record: Record) -> dict[str, Record]:
    """Returns the record of each of several tasks by name; none for a run on one task."""
    return {
        name: whole_section(record, section) | {"tasks": {}} for name, section in (record.get("tasks") or {}).items()
    }


def fastest_teacher_file(record: Record) -> Record | None:
    """Returns the measurement of the teacher's fastest ONNX file at the smallest batch and length, None without one."""
    reference = first_timing([row for row in record["benchmark"] if row["model"] == "student"])
    if reference is None:
        return None
    rows = [
        row
        for row in record["benchmark"]
        if row["model"] == "teacher" and row["format"].startswith("onnx-")
        and all(row[name] == reference[name] for name in ("batch", "length", "threads"))
    ]  # fmt: skip
    return min(rows, key=lambda row: float(row["p50_ms"]), default=None)
