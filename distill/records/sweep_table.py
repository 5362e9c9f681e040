"""The table of a sweep for a paper: a column for each option, and a caption with seeds, intervals and tests."""

import re
from collections.abc import Sequence
from pathlib import Path

from distill.options import show_value
from distill.records import row_table
from distill.records.comparison import Row
from distill.records.intervals import name_seeds_of_rows
from distill.records.latex import Table
from distill.records.measures import MISSING
from distill.records.option_names import describe_names
from distill.records.ranking import compare_with_first
from distill.training.statistics import BOTH, Difference

INTERVAL = "95% interval"
# Columns of a page that a paper has no room for. The interval is below the metric.
LEFT_OUT = ("run", INTERVAL, "baseline", "seconds", "error")
_DIFFERENCE = re.compile(rf"(\S+) (\([^)]*\))(, (?:{'|'.join(set(row_table.MARKS.values()))}))?")


def create_table(title: str, rows: Sequence[Row], directory: Path) -> Table:
    """Returns the table of the rows with a result, or of all rows if none has one.

    Args:
        title: of its section, which names its files.
        directory: of the report, from which the paths in the CSV file are.
    """
    shown = [row for row in rows if row.values] or list(rows)
    header, *cells = _select_columns(shown)
    names = list(dict.fromkeys(name for row in shown for name in row.options))
    short = shown[0].names
    options = [[show_value(row.options[name]) if name in row.options else MISSING for name in names] for row in shown]
    if not names:
        names, options = ["run"], [[row.label] for row in shown]
    plain_header, *plain = row_table.plain_cells(shown, directory)
    return Table(
        title, _caption(shown),
        cells=[[*(short.get(name, name) for name in names), *header],
               *([*of, *line] for of, line in zip(options, cells, strict=True))],
        notes=[note for note in [describe_names(short)] if note],
        plain=[[*names, *plain_header], *([*of, *line] for of, line in zip(options, plain, strict=True))],
    )  # fmt: skip


def _select_columns(rows: Sequence[Row]) -> list[list[str]]:
    """Returns the lines of the page's table with the columns of a paper; seeds only where rows have other numbers."""
    numbers = {len(row.scores) for row in rows}
    left_out = LEFT_OUT if len(numbers) > 1 else (*LEFT_OUT, "seeds")
    columns = {name: cells for name, *cells in zip(*row_table.table(rows), strict=True)}
    metric, *_ = [name for name in columns if name != "run"]
    intervals = columns.get(INTERVAL, [MISSING] * len(rows))
    columns[metric] = [
        cell if interval == MISSING else f"{cell}\n({interval})"
        for cell, interval in zip(columns[metric], intervals, strict=True)
    ]
    used = {name: cells for name, cells in columns.items() if name not in left_out}
    return [list(used), *(list(map(_break, line)) for line in zip(*used.values(), strict=True))]


def _break(cell: str) -> str:
    """Returns a difference with its interval on a second line, without the page's word for one with 0 in it."""
    if cell == row_table.FIRST:
        return MISSING
    found = _DIFFERENCE.fullmatch(cell)
    return f"{found[1]}\n{found[2]}" if found else cell


def _caption(rows: Sequence[Row]) -> str:
    """Returns the caption: the metric, the seeds, and which intervals and tests the cells are of."""
    first = rows[0]
    task, metric = first.task.get("name") or "the task", first.task.get("metric") or "the metric"
    seeds = name_seeds_of_rows(row.scores for row in rows)
    examples = (first.task.get("examples") or {}).get(first.split)
    counted = f" ({examples:,} examples)" if examples else ""
    is_mean = any(len(row.scores) > 1 for row in rows)
    over = f"mean ± standard deviation over {seeds}" if is_mean else seeds
    scored = f"{metric} on {first.split} of {task}{counted}: {over}."
    return " ".join([scored, *_describe_intervals(rows), *_describe_differences(rows)])


def _describe_intervals(rows: Sequence[Row]) -> list[str]:
    over = {found.over for row in rows if (found := row.estimate(row.scores)) and found.interval}
    words = {
        BOTH: "over seeds and examples together", "seeds": "over seeds (Student's t)",
        "examples": "over examples for one seed" + (" (Wilson's score)" if rows[0].examples else ""),
    }  # fmt: skip
    kinds = [text for name, text in words.items() if name in over]
    return [f"In brackets is the 95% interval of the metric {', and '.join(kinds)}."] if kinds else []


def _describe_differences(rows: Sequence[Row]) -> list[str]:
    """Returns the unit of the differences and the tests that their intervals are of."""
    own = [of for row in rows for of in (row.difference, row.gain, row.from_teacher)]
    tests = list(dict.fromkeys(filter(None, [*map(_name_test, own), *map(_name_test, compare_with_first(rows))])))
    if not any(of is not None for of in own):
        return []
    is_share = rows[0].task.get("selects") != "min"
    unit = "in points (hundredths of the metric)" if is_share else "in the unit of the metric"
    intervals = f", with 95% intervals: {'; '.join(tests)}" if tests else ""
    return [f"Differences are {unit}{intervals}."]


def _name_test(difference: Difference | None) -> str | None:
    """Returns the test of which a difference has its interval; None without one."""
    if difference is None or difference["interval"] is None:
        return None
    if difference["over"] == "seeds":
        return "t-test over seeds, paired by seed (Welch's where no two seeds are the same)"
    if difference["over"] == BOTH:
        return "t-test over seeds and examples together, paired by both (by examples where no two seeds are the same)"
    # Runs of earlier versions have no parts of their metrics, so that their difference has no p.
    return "paired over examples" if difference["p"] is not None else "Newcombe's interval over examples"
