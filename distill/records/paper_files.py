"""Writes the figures and tables of a report as files for a paper: SVG and PDF, LaTeX and CSV."""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from distill.records.figures import Figure, standalone
from distill.records.latex import Table, render_figure, render_table
from distill.records.measures import MISSING
from distill.records.row_table import plain_text
from distill.storage.files import atomic_file, make_directory, write_text

DIRECTORY = "report-paper"
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")
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
    directory: Path, markdown: str, figures: Mapping[str, Sequence[Figure]], *, tables: Mapping[str, Table]
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


def read_tables(markdown: str, *, replaced: Mapping[str, Table]) -> Iterator[Table]:
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
            found = Table(name, ". ".join(filter(None, [*titles, paragraph])), rows)
            yield waiting.pop(headings.get("h2", ""), found)


def render_csv(table: Table) -> str:
    """Returns a table as CSV. A spreadsheet reads its texts as texts."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [_plain(cell) for cell in row] for row in (table.plain or table.cells)
    )
    return text.getvalue()


def _plain(cell: object) -> object:
    """Returns a cell as a number, nothing or a text of a spreadsheet."""
    if cell == MISSING:
        return ""
    return cell if isinstance(cell, str) and _NUMBER.fullmatch(cell) else plain_text(cell)


def _name_tables(tables: Sequence[Table]) -> list[Table]:
    """Returns the tables with names that each one has alone."""
    named: dict[str, Table] = {}
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
