"""A table for a terminal that breaks no word: a narrow one has more lines in a row, and at last fewer columns."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table

LONGEST_WORD = 30  # Characters; a longer one, such as a path, is broken.


class WordTable(Table):
    """A table whose columns are at least as wide as their longest word.

    Args:
        least: headers of columns that a narrow terminal lacks, the first one first.
        options: of `rich.table.Table`.
    """

    def __init__(self, *, least: Sequence[str] = (), **options: Any) -> None:
        super().__init__(**options)
        self.least, self.options = least, options

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = self._select(options.max_width)
        table = Table(**self.options)
        for column, width in zip(columns, self._share(columns, options.max_width), strict=True):
            table.add_column(
                column.header, justify=column.justify, overflow=column.overflow, vertical=column.vertical, width=width
            )
        for row in zip(*(column.cells for column in columns), strict=True):
            table.add_row(*row)
        yield table

    def _select(self, width: int) -> list[Column]:
        """Returns the columns that fit."""
        columns = list(self.columns)
        for name in self.least:
            if sum(map(_longest_word, columns)) <= self._count_room(len(columns), width):
                break
            columns = [column for column in columns if _words(column.header) != name.split()]
        return columns

    def _share(self, columns: Sequence[Column], width: int) -> list[int]:
        """Returns the width of each column: that of its longest word, and a share of the rest for its longest line."""
        shortest, longest = list(map(_longest_word, columns)), list(map(_longest_line, columns))
        room, wanted = self._count_room(len(columns), width) - sum(shortest), sum(longest) - sum(shortest)
        share = min(1.0, max(0, room) / max(1, wanted))
        return [low + int(share * (high - low)) for low, high in zip(shortest, longest, strict=True)]

    def _count_room(self, number: int, width: int) -> int:
        """Returns the characters that the cells of a line have, without the lines and the spaces between them."""
        _, right, _, left = self.padding
        return width - number * (left + right + 1) - (1 if self.show_edge else -1)


def _words(text: object) -> list[str]:
    return str(text).split()


def _texts(column: Column) -> list[str]:
    return [str(text) for text in (column.header, *column.cells)]


def _longest_word(column: Column) -> int:
    return min(LONGEST_WORD, max((len(word) for text in _texts(column) for word in _words(text)), default=1))


def _longest_line(column: Column) -> int:
    lines = (line for text in _texts(column) for line in text.splitlines())
    return max(_longest_word(column), max(map(len, lines), default=1))
