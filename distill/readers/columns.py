"""The columns of a file of rows with the line that each row begins in, and the lines that cannot be read."""

import codecs
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from distill.errors import UserError
from distill.readers.lines import Lines, name_row, open_file, reading_errors, select_lines
from distill.readers.parquet import open_parquet
from distill.readers.rows import SUFFIXES as ROW_SUFFIXES
from distill.readers.rows import Skipped, check_names, is_delimited, read_dialect, read_fields, read_rows

SUFFIXES = (*ROW_SUFFIXES, ".parquet")
_DELIMITERS = (";", "\t", "|", ",")
SAMPLED = 50  # Rows of the columns that no task reads, of which a message offers those of text.


@dataclass(frozen=True)
class Table:
    """The rows of one source, with the columns that a task reads.

    Args:
        source: names the rows in messages.
        names: all columns of the source.
        columns: values of the wanted columns that the source has; None where a row of JSONL lacks one.
        classes: names of the classes of each column that is a `datasets.ClassLabel`, or a list of them, whose values
            are their indices, or -1 for an example without a label.
        lines: of the rows.
        samples: the first values of the other columns.
        unreadable: the errors of lines that are left out.
        schema: of a Parquet file, None for others.
        parts: the files of several parts.
        note: what is unusual about the form of the file, in words.
    """

    source: str
    names: tuple[str, ...]
    columns: Mapping[str, Sequence[object]]
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lines: Lines = None
    samples: Mapping[str, Sequence[object]] = field(default_factory=dict)
    unreadable: Skipped = field(default_factory=dict)
    schema: Any = None
    parts: tuple[str, ...] = ()
    note: str | None = None

    @property
    def path(self) -> Path:
        """Returns the file, of several parts the first one."""
        return Path(self.parts[0] if self.parts else self.source)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def select(self, rows: Iterable[int], source: str | None = None) -> "Table":
        """Returns these rows, with `source` under another name in messages."""
        chosen = list(map(int, rows))
        columns = {name: [values[row] for row in chosen] for name, values in self.columns.items()}
        return replace(self, source=source or self.source, columns=columns, lines=select_lines(self.lines, chosen))

    def place(self, row: int) -> str:
        """Returns the name of a row in messages."""
        return f"{self.source}, {name_row(row, self.lines)}"


def read_table(path: Path, wanted: Collection[str] | None = None, skipped: Skipped | None = None) -> Table:
    """Reads the wanted columns of a file of a type in `SUFFIXES`, all of them without `wanted`.

    Fields of CSV and TSV are strings. TSV has no quotes. Blank lines of CSV, TSV and JSONL are skipped.

    Args:
        skipped: receives the errors of lines that have no clear meaning, which end the reading without it.

    Raises:
        UserError: if the file cannot be read.
    """
    with reading_errors(path):
        if path.stat().st_size == 0:
            raise UserError(f"{path} is empty, expected a header and examples")
        if path.name.endswith(".parquet"):
            return _read_parquet(path, wanted)
        return (_read_fields if is_delimited(path) else _read_objects)(path, wanted, skipped)


def join_tables(tables: Sequence[Table]) -> Table:
    """Returns the rows of one table, or of all parts of one, whose rows are counted from the first part on.

    Raises:
        UserError: for parts with other columns or classes than the first one.
    """
    first, *others = tables
    if not others:
        return first
    for other in others:
        if set(other.names) != set(first.names) or other.classes != first.classes:
            raise UserError(
                f"{other.source} has the columns {', '.join(other.names)}, and {first.source} has "
                f"{', '.join(first.names)}: expected the same columns and classes in all parts of a file"
            )
    columns = {name: [value for of in tables for value in of.columns[name]] for name in first.columns}
    unreadable = {line: error for of in tables for line, error in of.unreadable.items()}
    return replace(
        first, source=f"{first.source} and {len(others)} more", columns=columns, lines=None, unreadable=unreadable,
        parts=tuple(of.source for of in tables),
    )  # fmt: skip


def read_columns(*paths: Path) -> Table:
    """Reads all columns of a file of a type in `SUFFIXES`, or of its parts, without the lines of no clear meaning.

    Raises:
        UserError: if a file cannot be read at all, or has columns with another delimiter.
    """
    return join_tables([_read_all_columns(path) for path in paths])


def _read_all_columns(path: Path) -> Table:
    if not path.name.lower().endswith(SUFFIXES):
        raise UserError(
            f"{path} is of no known kind, expected one of {', '.join(SUFFIXES)}; others are checked by a dry run"
        )
    table = read_table(path, skipped={})
    if not len(table):
        raise UserError(f"{path} has no examples")
    return table


def has_mark(path: Path) -> bool:
    """Returns whether a text file begins with a byte order mark."""
    with reading_errors(path), open_file(path) as file:
        return file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8


def _read_fields(path: Path, wanted: Collection[str] | None, skipped: Skipped | None) -> Table:
    """Reads the wanted columns of CSV or TSV."""
    dialect = read_dialect(path)
    with closing(read_fields(path, skipped, dialect)) as rows:
        _, names = next(rows)
        if skipped is not None:
            _check_delimiter(path, names)
        places = {name: place for place, name in enumerate(names) if wanted is None or name in wanted}
        columns: dict[str, list[str]] = {name: [] for name in places}
        others = {name: place for place, name in enumerate(names) if name and name not in places}
        lines, samples = array("q"), {name: list[str]() for name in others}
        for line, row in rows:
            lines.append(line)
            for name, place in places.items():
                columns[name].append(row[place])
            if len(lines) <= SAMPLED:
                for name, place in others.items():
                    samples[name].append(row[place])
    return Table(
        str(path), tuple(names), columns, lines=lines, samples=samples, unreadable=skipped or {},
        note=dialect.describe(names),
    )  # fmt: skip


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


def _read_objects(path: Path, wanted: Collection[str] | None, skipped: Skipped | None) -> Table:
    """Reads the wanted columns of JSONL."""
    names: dict[str, None] = {}
    columns: dict[str, list[object]] = {}
    lines, samples = array("q"), dict[str, list[object]]()
    for line, row in read_rows(path, skipped):
        names.update(dict.fromkeys(row))
        for name, value in row.items():
            if wanted is None or name in wanted:
                columns.setdefault(name, [None] * len(lines))
            elif len(lines) < SAMPLED:
                samples.setdefault(name, []).append(value)
        for name, values in columns.items():
            values.append(row.get(name))
        lines.append(line)
    columns = {name: columns[name] for name in (names if wanted is None else wanted) if name in columns}
    return Table(str(path), tuple(names), columns, lines=lines, samples=samples, unreadable=skipped or {})


def _read_parquet(path: Path, wanted: Collection[str] | None) -> Table:
    """Reads the wanted columns of Parquet, which has no lines."""
    with open_parquet(path) as file:
        schema = file.schema_arrow
        names = tuple(schema.names)
        check_names(str(path), names)
        chosen = [name for name in names if wanted is None or name in wanted]
        table = file.read(columns=chosen)
        others = [name for name in names if name not in chosen and is_string(schema.field(name).type)]
        first = next(file.iter_batches(SAMPLED, columns=others), None) if others else None
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    return Table(str(path), names, columns, samples={} if first is None else first.to_pydict(), schema=schema)


def is_string(kind: object) -> bool:
    """Returns whether the values of a type of Arrow, or of a feature of `datasets`, are strings."""
    return str(getattr(kind, "dtype", kind)) in ("string", "large_string")
