"""Rows of CSV, TSV and JSONL files, which may be compressed with gzip."""

import csv
import json
import re
import reprlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from distill.errors import UserError, did_you_mean, first_line
from distill.readers.dialect import Dialect, find_dialect
from distill.readers.lines import iterate_lines, lone_carriage_return, reading_errors

SUFFIXES = (".tsv", ".csv", ".jsonl", ".tsv.gz", ".csv.gz", ".jsonl.gz")

_LONGEST_FIELD = 2**31 - 1  # Characters of a CSV field; the default of `csv` is 131,072.
_NAMES_SHOWN = 20
_LEAST_SIMILAR = 0.75  # Of the name of a column that may be meant.
_DIGITS = re.compile(r"\d+$")

Row = Mapping[str, object]
Skipped = dict[int, UserError]  # The errors of lines that are left out, by the number of the line.


def read_rows(path: Path, skipped: Skipped | None = None) -> Iterator[tuple[int, Row]]:
    """Yields the first line and the values by column of each row of a file of a type in `SUFFIXES`.

    Fields of CSV and TSV are strings. TSV has no quotes. Blank lines are skipped.

    Args:
        skipped: receives the errors of lines that have no clear meaning, which end the reading without it.

    Raises:
        UserError: if the file cannot be read, or a line of it has no clear meaning.
    """
    if is_delimited(path):
        fields = read_fields(path, skipped)
        _, names = next(fields)
        yield from ((number, dict(zip(names, row, strict=True))) for number, row in fields)
        return
    found: dict[str, None] = {}
    for number, row in read_objects(path, skipped):
        found.update(dict.fromkeys(row))
        yield number, row
    if not found:
        none = UserError(f"{path} has no examples, expected an object on every line")
        raise next(iter((skipped or {}).values()), none)
    check_names(str(path), tuple(found))


def is_delimited(path: Path) -> bool:
    """Returns whether a file is CSV or TSV."""
    return path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv"))


def read_dialect(path: Path) -> Dialect:
    """Returns the form of a CSV file, that of usual CSV for others.

    Raises:
        UserError: if the file cannot be read.
    """
    with reading_errors(path), _long_fields():
        return Dialect() if _is_tsv(path) else find_dialect(path)


def read_fields(
    path: Path, skipped: Skipped | None = None, dialect: Dialect | None = None
) -> Generator[tuple[int, list[str]], None, None]:
    """Yields the first line and the fields of the header of a CSV or TSV file, and then of each row.

    Numbers with a decimal comma have a point.

    Args:
        skipped: receives the rows of another number of fields than the header, which end the reading without it.
        dialect: that of `read_dialect`; None finds it.

    Raises:
        UserError: if the file cannot be read, has no row, or has rows of another number of fields than its header.
    """
    names: list[str] = []
    dialect = dialect or read_dialect(path)
    with reading_errors(path), _long_fields():
        number = 0
        for first, row in _parse_tsv(path) if _is_tsv(path) else _parse_csv(path, dialect):
            if len(row) < 2 and not any(field.strip() for field in row):
                continue
            if not names:
                names = row
                check_names(str(path), names)
            elif len(row) == len(names):
                number = first
            else:
                fields = "1 field" if len(row) == 1 else f"{len(row)} fields"
                error = UserError(
                    f"{path}, line {first} has {fields}, its header {len(names)}: expected as many in every row"
                )
                if skipped is None:
                    raise error
                skipped[first] = error
                continue
            yield first, dialect.convert(row) if number else row
    if not names:
        raise UserError(f"{path} is empty, expected a header and examples")
    if not number:
        raise next(iter((skipped or {}).values()), UserError(f"{path} has a header and no examples"))


def read_objects(path: Path, skipped: Skipped | None = None) -> Iterator[tuple[int, Row]]:
    """Yields the number and the object of each line of a JSONL file, which may have none.

    Args:
        skipped: receives the lines that are no object, which end the reading without it.

    Raises:
        UserError: if the file cannot be read, or a line is no object.
    """
    with reading_errors(path):
        for number, line in enumerate(iterate_lines(path), 1):
            if line.strip():
                try:
                    row = _parse_json(path, number, line)
                except UserError as error:
                    if skipped is None:
                        raise
                    skipped[number] = error
                    continue
                yield number, row


def check_names(source: str, names: Sequence[str]) -> None:
    """Raises UserError for column names that differ in nothing but white space. Columns without a name are allowed."""
    seen: dict[str, str] = {}
    for name in names:
        plain = name.strip()
        if plain and plain in seen:
            columns = f"the column {name}" if seen[plain] == name else f"the columns {seen[plain]!r} and {name!r}"
            twice = " twice" if seen[plain] == name else ""
            raise UserError(f"{source} has {columns}{twice}, expected different names: rename one of them")
        seen[plain] = name


def show_names(names: Sequence[str]) -> str:
    """Returns names on one line: with quotes where white space or a control character would not show."""
    shown = [
        reprlib.repr(name) if name != name.strip() or not name.isprintable() or len(name) > 60 else name
        for name in names[:_NAMES_SHOWN]
    ]
    return ", ".join(shown) + (f", ... ({len(names)} in all)" if len(names) > _NAMES_SHOWN else "")


def suggest_column(missing: Sequence[str], names: Sequence[str]) -> str:
    """Returns ` (did you mean NAME?)` for the first missing column that is misspelt.

    `text2` is no slip for `text1`, and a name with white space around it is shown with quotes elsewhere.
    """
    for name in missing:
        plain = [other for other in names if other == other.strip()]
        others = [other for other in plain if _DIGITS.sub("", other) != _DIGITS.sub("", name)]
        if hint := did_you_mean(name, others, cutoff=_LEAST_SIMILAR):
            return hint
    return ""


@contextmanager
def _long_fields() -> Iterator[None]:
    """Raises the limit of `csv`, which is global, for the time of one file."""
    limit = csv.field_size_limit(_LONGEST_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _is_tsv(path: Path) -> bool:
    return path.name.lower().removesuffix(".gz").endswith(".tsv")


def _parse_tsv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields the number and the fields of each line."""
    for number, line in enumerate(iterate_lines(path), 1):
        content = line.removesuffix("\n").removesuffix("\r")
        if "\r" in content:
            raise lone_carriage_return(path, number)
        yield number, content.split("\t")


def _parse_csv(path: Path, dialect: Dialect) -> Iterator[tuple[int, list[str]]]:
    """Yields the first line and the fields of each row, which may have more than one line."""
    rows = csv.reader(islice(iterate_lines(path), dialect.header, None), strict=True, delimiter=dialect.delimiter)
    skipped = dialect.header
    first = 1 + skipped
    try:
        for row in rows:
            yield first, row
            first = rows.line_num + 1 + skipped
    except csv.Error as error:
        if "new-line" in str(error):
            raise lone_carriage_return(path, rows.line_num + skipped) from error
        if "end of data" in str(error):
            raise UserError(f"{path}, line {first} opens a quote that is never closed") from error
        raise UserError(
            f"{path}, line {first}: {error}; a quote inside of a quoted field is written as two quotes"
        ) from error


def _parse_json(path: Path, number: int, line: str) -> dict[str, object]:
    def check_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
        content = dict(pairs)
        if len(content) < len(pairs):
            keys = [key for key, _ in pairs]
            doubled = next(key for key in keys if keys.count(key) > 1)
            raise UserError(f"{path}, line {number} has the key {reprlib.repr(doubled)} twice, expected it once")
        return content

    try:
        row = json.loads(line, object_pairs_hook=check_keys)
    except UserError:
        raise
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}, line {number} is not valid JSON: {first_line(error)}") from error
    if not isinstance(row, dict):
        raise UserError(f'{path}, line {number} is {reprlib.repr(row)}, expected an object such as {{"text": ...}}')
    return row
