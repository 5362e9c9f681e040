"""All columns of a file with the line that each row begins in, and the lines that cannot be read."""

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from distill.errors import UserError
from distill.readers.lines import open_file, reading_errors, unreadable
from distill.readers.rows import SUFFIXES as ROW_SUFFIXES
from distill.readers.rows import Skipped, check_names, is_delimited, read_fields, read_objects

SUFFIXES = (*ROW_SUFFIXES, ".parquet")
_DELIMITERS = (";", "\t", "|", ",")


@dataclass(frozen=True)
class FileColumns:
    """The rows of a file by column.

    Args:
        columns: values of each column by its name; None where a row of JSONL lacks it.
        lines: the line of the file that each row begins in; None for Parquet, which has none.
        unreadable: the errors of lines that are left out.
        has_mark: whether the file begins with a byte order mark.
    """

    path: Path
    columns: Mapping[str, Sequence[object]]
    lines: Sequence[int] | None
    unreadable: Skipped = field(default_factory=dict)
    has_mark: bool = False

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


def read_columns(path: Path) -> FileColumns:
    """Reads all columns of a file of a type in `SUFFIXES`, without the lines that have no clear meaning.

    Raises:
        UserError: if the file cannot be read at all.
    """
    if not path.name.lower().endswith(SUFFIXES):
        raise UserError(
            f"{path} is of no known kind, expected one of {', '.join(SUFFIXES)}; others are checked by a dry run"
        )
    with reading_errors(path):
        if path.stat().st_size == 0:
            raise UserError(f"{path} is empty, expected a header and examples")
        if path.name.endswith(".parquet"):
            return _read_parquet(path)
        with open_file(path) as file:
            has_mark = file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8
        return _read_fields(path, has_mark=has_mark) if is_delimited(path) else _read_objects(path, has_mark=has_mark)


def _read_fields(path: Path, *, has_mark: bool) -> FileColumns:
    skipped: Skipped = {}
    rows = read_fields(path, skipped)
    _, names = next(rows)
    _check_delimiter(path, names)
    lines, fields = zip(*rows, strict=True)
    columns = dict(zip(names, map(list, zip(*fields, strict=True)), strict=True))
    return FileColumns(path, columns, lines, skipped, has_mark)


def _check_delimiter(path: Path, names: Sequence[str]) -> None:
    """Raises UserError for a header whose names have another delimiter between them than the type of the file."""
    others = [delimiter for delimiter in _DELIMITERS if len(names) == 1 and delimiter in names[0]]
    if others:
        shown = {"\t": "a tab"}.get(others[0], repr(others[0]))
        kind, expected = (".csv", "commas") if ".csv" in path.name.lower() else (".tsv", "tabs")
        rename = {("\t", ".csv"): "rename it to .tsv", (",", ".tsv"): "rename it to .csv"}
        advice = rename.get((others[0], kind), f"write it again with {expected}")
        raise UserError(
            f"{path} has one column {names[0]!r} with {shown} in its name, expected {expected} between the columns of "
            f"{kind}: {advice}"
        )


def _read_objects(path: Path, *, has_mark: bool) -> FileColumns:
    skipped: Skipped = {}
    lines, objects = list[int](), list[Mapping[str, object]]()
    for number, row in read_objects(path, skipped):
        lines.append(number)
        objects.append(row)
    names = dict.fromkeys(name for row in objects for name in row)
    if not names:
        raise next(iter(skipped.values()), UserError(f"{path} has no examples, expected an object on every line"))
    check_names(str(path), tuple(names))
    columns = {name: [row.get(name) for row in objects] for name in names}
    return FileColumns(path, columns, lines, skipped, has_mark)


def _read_parquet(path: Path) -> FileColumns:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(f"{path} needs pyarrow: pip install 'distill[train]', or give the rows as .jsonl") from error
    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, MemoryError) as error:
        raise unreadable(path, error) from error
    check_names(str(path), table.column_names)
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    if not table.num_rows:
        raise UserError(f"{path} has no examples")
    return FileColumns(path, columns, None)
