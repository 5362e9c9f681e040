"""The signs between the columns of a CSV file, and its columns of numbers with a decimal comma."""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from distill.readers.lines import iterate_lines

_COMPARED = 20  # Rows that are read with either delimiter.
_NUMBER = re.compile(r"[+-]?\d+(,\d+)?")


@dataclass(frozen=True)
class Dialect:
    """The form of a CSV file; that of Excel in Europe has semicolons, because commas are in its numbers.

    Args:
        delimiter: between the columns.
        decimals: places of the columns whose values are numbers with a decimal comma.
        header: number of lines before the header, of which `sep=;` is one.
    """

    delimiter: str = ","
    decimals: frozenset[int] = frozenset()
    header: int = 0

    def convert(self, row: list[str]) -> list[str]:
        """Returns a row with a decimal point in its numbers."""
        if not self.decimals:
            return row
        return [field.replace(",", ".") if place in self.decimals else field for place, field in enumerate(row)]

    def describe(self, names: Sequence[str]) -> str | None:
        """Returns what is unusual about the file in words, None for commas."""
        if self.delimiter == ",":
            return None
        numbers = [name for place, name in enumerate(names) if place in self.decimals]
        commas = f", and 3,5 in {', '.join(numbers)} is the number 3.5" if numbers else ""
        return f"the columns are read as separated by {self.delimiter!r}{commas}"


def find_dialect(path: Path) -> Dialect:
    """Returns the form of a CSV file: semicolons if they give columns and commas do not.

    Raises:
        UserError: for lines that cannot be read.
    """
    first = next(iterate_lines(path), "").strip().strip('"').casefold()
    header = int(first in ("sep=;", "sep=,"))
    semicolon, comma = (_count_columns(path, sign, header) for sign in ";,")
    if first != "sep=;" and (semicolon < 2 or comma > 1):
        return Dialect(header=header)
    return Dialect(";", _find_decimals(path, header), header)


def _count_columns(path: Path, delimiter: str, header: int) -> int:
    """Returns the number of columns of the header, 0 if most of the first rows have another one or cannot be read."""
    try:
        counts = [len(row) for row in islice(_read(path, delimiter, header), _COMPARED)]
    except csv.Error:
        return 0
    return counts[0] if counts and 2 * counts.count(counts[0]) > len(counts) else 0


def _find_decimals(path: Path, header: int) -> frozenset[int]:
    """Returns the places of the columns whose values are all numbers, at least one of them with a comma."""
    numbers: dict[int, bool] = {}  # Whether a column of numbers has a comma.
    try:
        rows = _read(path, ";", header)
        numbers = dict.fromkeys(range(len(next(rows))), False)
        for row in rows:
            for place in [place for place in numbers if place < len(row) and row[place].strip()]:
                if _NUMBER.fullmatch(row[place].strip()):
                    numbers[place] |= "," in row[place]
                else:
                    del numbers[place]
    except csv.Error:  # The reader of the rows reports it.
        return frozenset()
    return frozenset(place for place, has_comma in numbers.items() if has_comma)


def _read(path: Path, delimiter: str, header: int) -> Iterator[list[str]]:
    """Yields the rows of a file that are not blank."""
    rows = csv.reader(islice(iterate_lines(path), header, None), strict=True, delimiter=delimiter)
    return (row for row in rows if any(field.strip() for field in row))
