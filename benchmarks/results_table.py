"""Writes the results of runs into a table of a page.

    python benchmarks/results_table.py docs/results.md "Tags of words" runs/atis_slots/...
    python benchmarks/results_table.py docs/results.md Depth multirun/depth --table 1

The runs are those of a directory with its sweeps, and those that differ in nothing but their seed are one row, as in a
report. `tables.yaml` beside the page has the cells of its lines. A line of the table with the same first cell is
replaced, another one is added.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from distill.records.comparison import FileResult, Row, compare_runs, read_options
from distill.records.row_tables import plain_cells
from distill.records.schema import DEV, TEST, find_runs, read_record
from distill.records.verdict import MISSING, format_spread
from distill.training.statistics import spread

_FIELD = re.compile(r"\{([\w.]+)(?::([^}]*))?\}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("heading")
    parser.add_argument("runs", type=Path, help="a directory with runs")
    parser.add_argument("--table", type=int, default=1, help="its number below the heading")
    given = parser.parse_args(arguments)
    tables = yaml.safe_load(given.page.with_name("tables.yaml").read_text(encoding="utf-8"))
    try:
        cells = tables[given.page.name][given.heading][given.table]
    except KeyError:
        parser.error(f"tables.yaml has no table {given.table} of {given.heading!r} in {given.page.name}")
    values = [read_values(row) for row in compare_runs(find_runs(given.runs).readable)]
    lines = [[fill(cell, of_row) for cell in line] for of_row in values for line in cells]
    page = given.page.read_text(encoding="utf-8")
    given.page.write_text(write_lines(page, given.heading, lines, number=given.table), encoding="utf-8")


def read_values(row: Row) -> dict[str, object]:
    """Returns what a cell can show of runs that differ in nothing but their seed."""
    header, line = plain_cells([row], row.directories[0])
    last = row.directories[-1]
    values = {**read_options(last, read_record(last)), **dict(zip(map(str, header), line, strict=True))}
    teacher = row.teacher
    of_teacher = teacher and teacher.metrics[DEV]
    for name in ("fp32", "int8"):
        file: FileResult | None = row.files.get(name)
        for end, split in (("", DEV), ("_test", TEST)):
            found = format_spread(file.spread(split) if file else None)
            values[f"{name}{end}"] = None if found == MISSING else found
        mean = file and file.spread()
        values[f"of_{name}"] = mean["mean"] / of_teacher if mean and of_teacher else None
        values[f"{name}_mb"] = file.bytes / 1e6 if file and file.bytes else None
        values[f"{name}_p50_ms"] = file and file.p50_ms
    values["teacher_mb"] = teacher.bytes / 1e6 if teacher and teacher.bytes else None
    before, after = teacher and teacher.p50_ms, row.files["int8"].p50_ms if "int8" in row.files else None
    values["speed_up"] = before / after if before and after else None
    untaught = list(row.baselines.get(DEV, {}).values())
    values["baseline"] = format_spread(spread(untaught)) if untaught else None
    return values


def fill(cell: str, values: Mapping[str, object]) -> str:
    """Returns a cell with its values, empty where one is not there.

    Raises:
        KeyError: if no run has such a value.
    """
    names = [found[1] for found in _FIELD.finditer(cell)]
    if any(values[name] is None for name in names):
        return ""
    return _FIELD.sub(lambda found: format(values[found[1]], found[2] or ""), cell)


def write_lines(page: str, heading: str, lines: Sequence[Sequence[str]], *, number: int = 1) -> str:
    """Returns a page in which a table of a section has these lines.

    Raises:
        ValueError: if the section has no such table, or a line has fewer cells than its header; more are left out.
    """
    texts = page.splitlines()
    level = next((text for text in texts if re.fullmatch(rf"#+ {re.escape(heading)}", text)), None)
    start = texts.index(level) if level else len(texts)
    rules = [place for place in range(start, len(texts)) if re.fullmatch(r"\|[-:| ]+\|", texts[place])]
    ends = [place for place in range(start + 1, len(texts)) if re.match(r"#+ ", texts[place])] or [len(texts)]
    if level is None or len(rules) < number or rules[number - 1] > ends[0]:
        raise ValueError(f"the page has no table {number} below {heading!r}")
    begin = end = rules[number - 1] + 1
    while end < len(texts) and texts[end].startswith("|"):
        end += 1
    rows, width = texts[begin:end], texts[begin - 1].count("|") - 1
    for line in lines:
        if len(line) < width:
            raise ValueError(f"a line has {len(line)} cells, and the table of {heading!r} has {width}")
        new = " ".join(f"| {' | '.join(line[:width])} |".split())
        place = next((place for place, row in enumerate(rows) if row.split("|")[1].strip() == line[0]), len(rows))
        rows[place : place + 1] = [new]
    return "\n".join([*texts[:begin], *rows, *texts[end:]]) + "\n"


if __name__ == "__main__":
    main()
