"""LaTeX of tables (booktabs) and figures with their captions."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from distill.records.measures import MISSING

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
_NUMBER = re.compile(r"[+-]?[0-9][0-9,]*(\.[0-9]+)?%?")


@dataclass(frozen=True)
class Table:
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


def render_table(table: Table) -> str:
    """Returns a table as LaTeX, for which a document needs the packages booktabs and graphicx."""
    header, *rows = table.cells
    lines = [
        *_comment(table.notes), r"\begin{table}[t]", r"  \centering", rf"  \caption{{{escape(table.caption)}}}",
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


def _comment(notes: Sequence[str]) -> list[str]:
    return [f"% {' '.join(note.split())}" for note in (r"Needs \usepackage{booktabs,graphicx}.", *notes)]


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
            letters.append("r" if any(map(_NUMBER.match, column)) and all(map(_is_number, column)) else "l")
    return "".join(letters)


def _is_number(cell: str) -> bool:
    """Returns whether a cell is missing or begins with a number, such as one with its deviation."""
    return cell in ("", MISSING) or _NUMBER.match(cell) is not None
