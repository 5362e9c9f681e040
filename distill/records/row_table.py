"""The table of several runs, for a page, a terminal and as CSV, with a line for each of their rows."""

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table

from distill.records.comparison import REFERENCE, FileResult, Row
from distill.records.intervals import Values, is_noise
from distill.records.measures import MISSING, format_points, format_spread
from distill.records.paths import relative_path
from distill.records.ranking import compare_with_first, judge_row
from distill.records.shape import DEV, TEST
from distill.records.verdict import EQUAL, UNDECIDED, UNKNOWN
from distill.records.word_table import WordTable
from distill.training.statistics import Difference, spread

NOTE = (
    "The metric is that of the exported fp32 file, or of the student in torch without one: mean ± standard deviation "
    "over the seeds. Rows are in the order of dev. Differences are in points, of a metric of which less is better in "
    "its own unit, paired by seed and example. 95% "
    "intervals are over the seeds and the examples together, with one seed over the examples alone, so that the noise "
    "of training is not in them; those of runs of earlier versions are over the seeds alone. A row is equal to the "
    "first one if the interval of their difference has 0 and ends within report.margin, and undecided if it ends "
    "further away, or there is none. The baseline is the student that the same run trained without a teacher, and "
    f"{REFERENCE} is a run without one. Of many rows, one in twenty has an interval without 0 by chance."
)
FIRST = "first"
MARKS = {EQUAL: EQUAL, UNDECIDED: UNDECIDED, UNKNOWN: UNDECIDED}  # After a difference from the first row.
_FORMULAS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # These begin a formula, also in full width.
# Columns that a table without such values lacks.
OPTIONAL = (
    "95% interval", "on dev", "against the first", "baseline", "against the baseline", f"against {REFERENCE}", "int8",
    "MB", "p50 ms", "speed-up",
)  # fmt: skip
# Columns that only a page has room for.
LEAST = ("seconds", "int8", "seeds", "speed-up")  # Columns that a narrow terminal lacks, the first one first.
WIDE = ("95% interval", "on dev", "baseline", "MB", "p50 ms")
_DIFFERENCE = ("difference", "low", "high", "p")


def table(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Returns the cells of the table, the header first; a column is left out if it is optional and empty."""
    metrics = {str(row.task["metric"]) for row in rows if row.task}
    metric = metrics.pop() if len(metrics) == 1 else "metric"
    split = next((row.split for row in rows), DEV)
    header = (
        "run", f"{metric} on test" if split == TEST else metric, "95% interval", "on dev", "seeds",
        "against the first", "against the teacher", "baseline", "against the baseline", f"against {REFERENCE}", "int8",
        "MB", "p50 ms", "speed-up", "seconds", "error",
    )  # fmt: skip
    from_first = compare_with_first(rows)
    shown = [_cells(row, difference) for row, difference in zip(rows, from_first, strict=True)]
    if any(from_first):
        place = header.index("against the first")
        shown[0] = (*shown[0][:place], FIRST, *shown[0][place + 1 :])
    columns = list(zip(header, *shown, strict=True))
    used = [column for column in columns if column[0] not in OPTIONAL or set(column[1:]) != {MISSING}]
    return list(zip(*used, strict=True))


def terminal_table(rows: Sequence[Row], *, title: str | None = None) -> Table:
    """Returns the table for a terminal, without the columns that only a page has room for, and without empty ones."""
    columns = [column for column in zip(*table(rows), strict=True) if column[0] not in WIDE and any(column[1:])]
    header, *cells = zip(*columns, strict=True)
    result = WordTable(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, show_edge=False, pad_edge=False,
        padding=(0, 1, 0, 0), least=LEAST,
    )  # fmt: skip
    for column in header:
        justify: Literal["left", "right"] = "left" if column in ("run", "error") else "right"
        result.add_column(column, justify=justify, overflow="fold", vertical="top")
    for row in cells:
        result.add_row(*row)
    return result


def to_csv(rows: Sequence[Row], directory: Path) -> str:
    """Returns the table as CSV, with plain numbers. A spreadsheet reads its texts as texts.

    Args:
        directory: of the report, from which the paths of the runs are.
    """
    text = io.StringIO()
    header, *lines = plain_cells(rows, directory)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(map(plain_text, line) for line in lines)
    return text.getvalue()


def plain_cells(rows: Sequence[Row], directory: Path) -> list[list[object]]:
    """Returns the table with plain numbers, the header first.

    Args:
        directory: as in `to_csv`.
    """
    lines = [
        _csv_line(row, difference, directory) for row, difference in zip(rows, compare_with_first(rows), strict=True)
    ]
    return [list(lines[0]), *(list(line.values()) for line in lines)]


def _csv_line(row: Row, from_first: Difference | None, directory: Path) -> dict[str, object]:
    """Returns the values of a row by the names of their columns. `mean` and `std` are of dev."""
    small, teacher, interval = row.files.get("int8"), row.teacher, _interval(row)
    return {
        "run": row.full_label, "task": row.task.get("name"), "metric": row.task.get("metric"),
        **_spread_columns("", row, DEV), "seeds": " ".join(map(str, row.values)), "share_kept": row.kept,
        **_difference_columns("", row.difference), "seconds": row.seconds, "error": row.error,
        "directories": " ".join(relative_path(path, directory) for path in row.directories),
        "teacher_metric": teacher and teacher.metric,
        **_spread_columns("int8_", small, DEV), "int8_bytes": small and small.bytes,
        "int8_p50_ms": small and small.p50_ms, "teacher_p50_ms": teacher and teacher.p50_ms,
        **_spread_columns("test_", row, TEST), "teacher_test_metric": teacher and teacher.test,
        "compared_on": row.split, "interval_low": interval[0], "interval_high": interval[1],
        **_difference_columns("teacher_", row.from_teacher),
        "baseline_mean": _mean(row.baselines.get(DEV)), "baseline_test_mean": _mean(row.baselines.get(TEST)),
        **_difference_columns("baseline_", row.gain), **_difference_columns("first_", from_first),
        "within_noise_of_first": None if from_first is None else is_noise(from_first),
    }  # fmt: skip


def _spread_columns(prefix: str, of: Row | FileResult | None, split: str) -> dict[str, object]:
    found = of.spread(split) if of else None
    return {f"{prefix}mean": found and found["mean"], f"{prefix}std": found and found["std"]}


def _difference_columns(prefix: str, difference: Difference | None) -> dict[str, object]:
    if difference is None:
        return {f"{prefix}{name}": None for name in _DIFFERENCE}
    low, high = difference["interval"] or (None, None)
    return {
        f"{prefix}difference": difference["difference"], f"{prefix}low": low, f"{prefix}high": high,
        f"{prefix}p": difference["p"],
    }  # fmt: skip


def _interval(row: Row) -> tuple[float | None, float | None]:
    found = row.estimate(row.scores)
    return (found.interval if found else None) or (None, None)


def _mean(values: Values | None) -> float | None:
    return sum(values.values()) / len(values) if values else None


def plain_text(value: object) -> object:
    """Returns a text in one line, with an apostrophe before what a spreadsheet would run as a formula."""
    if not isinstance(value, str):
        return value
    text = re.sub(r"[\t\r\n]", " ", value)
    return f"'{text}" if text.lstrip().startswith(_FORMULAS) else text


def _cells(row: Row, from_first: Difference | None) -> tuple[str, ...]:
    low, high = _interval(row)
    small = row.files.get("int8")
    size, p50 = (small.bytes, small.p50_ms) if small else (None, None)
    before = row.teacher.p50_ms if row.teacher else None
    untaught = row.baselines.get(row.split)
    found = None if from_first is None else MARKS.get(judge_row(from_first, row))
    mark = f", {found}" if found else ""
    return (
        row.label, format_spread(row.spread(row.split)),
        MISSING if low is None or high is None else f"{low:.4f} to {high:.4f}",
        format_spread(row.spread(DEV)) if row.split == TEST else MISSING, str(len(row.scores)),
        _points(from_first, row) + mark, _points(row.from_teacher, row),
        format_spread(spread(list(untaught.values())) if untaught else None), _points(row.gain, row),
        _points(row.difference, row), format_spread(small.spread(row.split) if small else None),
        MISSING if size is None else f"{size / 1e6:.1f}", MISSING if p50 is None else f"{p50:.2f}",
        f"{before / p50:.1f}x" if before and p50 else MISSING, MISSING if row.seconds is None else f"{row.seconds:.0f}",
        row.error or "",
    )  # fmt: skip


def _points(difference: Difference | None, row: Row) -> str:
    """Returns a difference with its interval: `+3.0 (-1.3 to +7.3)`."""
    if difference is None:
        return MISSING
    shown = format_points(difference["difference"], row.task)
    if difference["interval"] is None:
        return shown
    low, high = (format_points(end, row.task) for end in difference["interval"])
    return f"{shown} ({low} to {high})"
