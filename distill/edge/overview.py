"""The overview of an object: a table of HTML where a notebook shows the object, and aligned lines elsewhere.

>>> print(Overview("Bundle", [("model", "int8"), ("size", "14.2 MB")]))
Bundle
  model  int8
  size   14.2 MB
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

# Notebooks align the cells of a table to the right. Colours are those of the notebook, light or dark.
_CELL = 'style="text-align: left; vertical-align: top; white-space: normal"'


@dataclass(frozen=True)
class Overview:
    """A title, rows of texts of equal length, and sentences below them.

    Args:
        header: names of the columns; none for rows of a name and its value.
        notes: a line each.
    """

    title: str
    rows: Sequence[Sequence[str]]
    header: Sequence[str] = ()
    notes: Sequence[str] = ()

    def __str__(self) -> str:
        lines = [*([self.header] if self.header else []), *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        cells = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        return "\n".join([self.title, *(f"  {line}" for line in cells), *self.notes])

    def html(self) -> str:
        """Returns the table as HTML without scripts and colours; every text is escaped."""
        head = "".join(f"<th {_CELL}>{escape(name)}</th>" for name in self.header)
        lines = [f"<thead><tr>{head}</tr></thead>"] if head else []
        for first, *others in self.rows:
            cells = "".join(f"<td {_CELL}>{escape(text)}</td>" for text in others)
            lines.append(f'<tr><th scope="row" {_CELL}>{escape(first)}</th>{cells}</tr>')
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        # A wide table scrolls by itself.
        table = f'<div style="overflow-x: auto"><table>{"".join(lines)}</table></div>'
        return f"<div><p><strong>{escape(self.title)}</strong></p>{table}{notes}</div>"


class Shown:
    """An object that a notebook shows as its overview. A class writes `overview`."""

    def overview(self) -> Overview:
        """Returns the facts of the object that a reader looks for first."""
        raise TypeError(f"{type(self).__name__} has no overview()")

    def _repr_html_(self) -> str:
        return self.overview().html()


def describe_call(name: str, /, *values: object, **options: object) -> str:
    """Returns an object in one line, as the call that makes it; options that are None or empty are left out.

    >>> describe_call("Bundle", "runs/first/bundle", model="int8", threads=None)
    "Bundle('runs/first/bundle', model='int8')"
    """
    shown = [f"{option}={value!r}" for option, value in options.items() if value or value == 0]
    return f"{name}({', '.join([*map(repr, values), *shown])})"
