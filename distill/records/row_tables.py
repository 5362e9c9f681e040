"""Tables of several runs for a page, a terminal, CSV and a paper, and the files that a paper takes."""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from distill.core.files import atomic_file, make_directory, write_text
from distill.core.options import show_value
from distill.records.comparison import REFERENCE, FileResult, Row, compare_with_first, judge_row
from distill.records.headline import TerminalTable
from distill.records.plots import Figure, standalone
from distill.records.run import relative_path
from distill.records.schema import DEV, TEST
from distill.records.verdict import EQUAL, MISSING, UNDECIDED, UNKNOWN, describe_names, format_number, format_spread
from distill.training.statistics import BOTH, Difference, Values, is_noise, name_seeds_of_rows, spread

LONGEST = 40  # Characters of a cell in one line.
# A table that is wider than a line is made smaller, and no other one.
_FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
_ESCAPED = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "±": r"$\pm$", "\u00d7": r"$\times$", "…": r"\ldots{}", "\u2212": r"$-$",
}  # fmt: skip
_SPECIAL = re.compile("|".join(map(re.escape, _ESCAPED)))
_MINUS = re.compile(r"(?<![\w.)\]-])-(?=[0-9])")
_NUMBER_START = re.compile(r"[+-]?[0-9][0-9,]*(\.[0-9]+)?%?")


@dataclass(frozen=True)
class LatexTable:
    """A table of a report.

    Attributes:
        name: of its files, without an ending.
        cells: of its rows, the header first. A line feed in a cell begins a second line, in smaller letters.
        notes: sentences for who reads the source.
        plain: the cells of a CSV file, with plain numbers; None for those of a page.
    """

    name: str
    caption: str
    cells: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    plain: Sequence[Sequence[object]] | None = None


def render_table(table: LatexTable) -> str:
    """Returns a table as LaTeX, for which a document needs the packages booktabs and graphicx."""
    header, *rows = table.cells
    lines = [
        *(f"% {' '.join(note.split())}" for note in (r"Needs \usepackage{booktabs,graphicx}.", *table.notes)),
        r"\begin{table}[t]", r"  \centering", rf"  \caption{{{escape(table.caption)}}}",
        rf"  \label{{tab:{table.name}}}", f"  {_FIT}", rf"  \begin{{tabular}}{{{_align(table.cells)}}}",
        r"    \toprule", _row(header), r"    \midrule", *map(_row, rows), r"    \bottomrule",
        r"  \end{tabular}}", r"\end{table}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def render_figure(name: str, caption: str) -> str:
    """Returns a figure as LaTeX, for which a document needs the package graphicx.

    Args:
        name: of its file, without an ending.
    """
    lines = [
        r"\begin{figure}[t]", r"  \centering", rf"  \includegraphics[width=\linewidth]{{{name}}}",
        rf"  \caption{{{escape(caption)}}}", rf"  \label{{fig:{name}}}", r"\end{figure}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """Returns a text in one line of LaTeX, in which no character has a meaning."""
    words = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return _SPECIAL.sub(lambda found: _ESCAPED[found[0]], _MINUS.sub("\u2212", words))


def _row(cells: Sequence[str]) -> str:
    # After the end of a row, LaTeX would read a bracket or a star as an option of it.
    first, *rest = map(_cell, cells)
    return f"    {' & '.join(['{}' + first if first[:1] in ('[', '*') else first, *rest])} \\\\"


def _cell(cell: str) -> str:
    first, *more = [escape(line) for line in ("--" if cell == MISSING else cell).split("\n")]
    if not more:
        return first
    lines = r" \\ ".join([first, *(rf"\scriptsize {line}" for line in more)])
    return rf"\begin{{tabular}}[t]{{@{{}}r@{{}}}}{lines}\end{{tabular}}"


def _align(cells: Sequence[Sequence[str]]) -> str:
    """Returns the columns: numbers on the right, long texts in lines of their own, and others on the left."""
    letters = []
    for _, *column in zip(*cells, strict=True):
        if max((len(line) for cell in column for line in cell.split("\n")), default=0) > LONGEST:
            letters.append(r"p{0.4\linewidth}")
        else:
            letters.append("r" if any(map(_NUMBER_START.match, column)) and all(map(_is_number, column)) else "l")
    return "".join(letters)


def _is_number(cell: str) -> bool:
    """Returns whether a cell is missing or begins with a number, such as one with its deviation."""
    return cell in ("", MISSING) or _NUMBER_START.match(cell) is not None


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


def terminal_table(rows: Sequence[Row], *, title: str | None = None) -> TerminalTable:
    """Returns the table for a terminal, without the columns that only a page has room for, and without empty ones."""
    columns = [column for column in zip(*table(rows), strict=True) if column[0] not in WIDE and any(column[1:])]
    return TerminalTable(title, list(zip(*columns, strict=True)), left=("run", "error"), least=LEAST)


def to_csv(rows: Sequence[Row], directory: Path) -> str:
    """Returns the table as CSV, with plain numbers. A spreadsheet reads its texts as texts.

    Args:
        directory: of the report, from which the paths of the runs are.
    """
    return _write_csv(map(plain_text, line) for line in plain_cells(rows, directory))


def _write_csv(lines: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
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
        "teacher_metric": teacher and teacher.metrics[DEV],
        **_spread_columns("int8_", small, DEV), "int8_bytes": small and small.bytes,
        "int8_p50_ms": small and small.p50_ms, "teacher_p50_ms": teacher and teacher.p50_ms,
        **_spread_columns("test_", row, TEST), "teacher_test_metric": teacher and teacher.metrics[TEST],
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
    value, p = (difference["difference"], difference["p"]) if difference else (None, None)
    low, high = (difference["interval"] if difference else None) or (None, None)
    return {f"{prefix}difference": value, f"{prefix}low": low, f"{prefix}high": high, f"{prefix}p": p}


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
        MISSING if size is None else f"{size / 1e6:.1f}", format_number(p50, ".2f"),
        f"{before / p50:.1f}x" if before and p50 else MISSING, format_number(row.seconds, ".0f"), row.error or "",
    )  # fmt: skip


def _points(difference: Difference | None, row: Row) -> str:
    """Returns a difference with its interval: `+3.0 (-1.3 to +7.3)`."""
    if difference is None:
        return MISSING
    ends = difference["interval"]
    return row.unit.format(difference["difference"]) + (f" ({row.unit.format_ends(ends)})" if ends else "")


INTERVAL = "95% interval"
# Columns of a page that a paper has no room for. The interval is below the metric.
LEFT_OUT = ("run", INTERVAL, "baseline", "seconds", "error")
_DIFFERENCE_CELL = re.compile(rf"(\S+) (\([^)]*\))(, (?:{'|'.join(set(MARKS.values()))}))?")


def create_table(title: str, rows: Sequence[Row], directory: Path) -> LatexTable:
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
    plain_header, *plain = plain_cells(shown, directory)
    return LatexTable(
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
    columns = {name: cells for name, *cells in zip(*table(rows), strict=True)}
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
    if cell == FIRST:
        return MISSING
    found = _DIFFERENCE_CELL.fullmatch(cell)
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
    is_error = rows[0].unit.less_is_better
    unit = "in the unit of the metric" if is_error else "in points (hundredths of the metric)"
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


DIRECTORY = "report-paper"
_PLAIN_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")
FIGURES = "figures.tex"
_PACKAGES = "% Needs \\usepackage{graphicx}, and \\graphicspath{{path/to/report-paper/}} in another directory.\n"


@dataclass(frozen=True)
class PaperFiles:
    """The directory of the files, and the numbers of its figures and tables."""

    directory: Path
    figures: int
    tables: int

    def describe(self) -> str:
        """Returns its path and its content in one line."""
        return (
            f"{self.directory}: {_count(self.figures, 'figure')} as SVG and PDF, {_count(self.tables, 'table')} as "
            "LaTeX and CSV"
        )


def write_paper_files(
    directory: Path, markdown: str, figures: Mapping[str, Sequence[Figure]], *, tables: Mapping[str, LatexTable]
) -> PaperFiles:
    """Writes all figures and tables of a report into the directory `report-paper` beside it.

    Other files that are there already stay.

    Args:
        directory: of the report.
        markdown: the report, whose tables these are.
        figures: by the heading of their section.
        tables: in place of the first one of a section, by its heading.
    """
    drawn = name_figures(figures)
    listed = _name_tables([*read_tables(markdown, replaced=tables)])
    to = directory / DIRECTORY
    make_directory(to)
    for name, figure in drawn.items():
        write_text(to / f"{name}.svg", standalone(figure))
        with atomic_file(to / f"{name}.pdf") as temporary:
            temporary.write_bytes(figure.draw_pdf())
    floats = [render_figure(name, figure.caption) for name, figure in drawn.items()]
    write_text(to / FIGURES, "\n".join([_PACKAGES, *floats]))
    for table in listed:
        write_text(to / f"{table.name}.tex", render_table(table))
        write_text(to / f"{table.name}.csv", render_csv(table))
    return PaperFiles(to, len(drawn), len(listed))


def name_figures(figures: Mapping[str, Sequence[Figure]]) -> dict[str, Figure]:
    """Returns the figures by the names of their files, with their section before a name that several have."""
    every = [figure.name for section in figures.values() for figure in section]
    named: dict[str, Figure] = {}
    for heading, section in figures.items():
        for figure in section:
            name = f"{heading} {figure.name}" if every.count(figure.name) > 1 else figure.name
            named[_find_free(_slug(name), named)] = figure
    return named


def read_tables(markdown: str, *, replaced: Mapping[str, LatexTable]) -> Iterator[LatexTable]:
    """Yields the tables of a report. Their captions are the heading of a table and the paragraph before it."""
    tokens = MarkdownIt("commonmark", {"html": False}).enable("table").parse(markdown)
    headings: dict[str, str] = {}
    paragraph, rows, waiting = "", list[list[str]](), dict(replaced)
    for place, token in enumerate(tokens):
        if token.type == "heading_open":
            headings = {tag: text for tag, text in headings.items() if tag < token.tag and tag != "h1"}
            headings[token.tag] = _read_text(tokens[place + 1])
            paragraph = ""
        elif token.type == "paragraph_open":
            paragraph = _read_text(tokens[place + 1])
        elif token.type == "table_open":
            rows = []
        elif token.type == "tr_open":
            rows.append([])
        elif token.type in ("th_open", "td_open"):
            rows[-1].append(_read_text(tokens[place + 1]))
        elif token.type == "table_close":
            titles = [text for tag, text in headings.items() if tag != "h1"] or list(headings.values())
            name = _slug(" ".join(titles)) if "h2" in headings else "summary"
            found = LatexTable(name, ". ".join(filter(None, [*titles, paragraph])), rows)
            yield waiting.pop(headings.get("h2", ""), found)


def render_csv(table: LatexTable) -> str:
    """Returns a table as CSV. A spreadsheet reads its texts as texts."""
    return _write_csv(map(_plain, row) for row in table.plain or table.cells)


def _plain(cell: object) -> object:
    """Returns a cell as a number, nothing or a text of a spreadsheet."""
    if cell == MISSING:
        return ""
    return cell if isinstance(cell, str) and _PLAIN_NUMBER.fullmatch(cell) else plain_text(cell)


def _name_tables(tables: Sequence[LatexTable]) -> list[LatexTable]:
    """Returns the tables with names that each one has alone."""
    named: dict[str, LatexTable] = {}
    for table in tables:
        name = _find_free(_slug(table.name), named)
        named[name] = replace(table, name=name)
    return list(named.values())


def _find_free(name: str, taken: Mapping[str, object]) -> str:
    """Returns the name, with a number behind it if it is taken."""
    names = [name, *(f"{name}-{number}" for number in range(2, len(taken) + 2))]
    return next(free for free in names if free not in taken)


def _slug(text: str) -> str:
    """Returns a text as the name of a file: of letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:80].strip("-") or "untitled"


def _read_text(token: Token) -> str:
    """Returns the text of a paragraph, a heading or a cell without its marks."""
    parts = [" " if child.type in ("softbreak", "hardbreak") else child.content for child in token.children or ()]
    return "".join(parts).strip()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"
