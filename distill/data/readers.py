"""Readers of labelled rows: CSV, TSV, JSONL and Parquet files, and data sets of the `datasets` library.

Every file is read anew, so that no cache can hold an older or a damaged version of it.
"""

import codecs
import csv
import gzip
import json
import reprlib
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from distill.errors import UserError, first_line

if TYPE_CHECKING:
    import datasets

SUFFIXES = (".tsv", ".csv", ".jsonl", ".parquet", ".tsv.gz", ".csv.gz", ".jsonl.gz")
SQUAD = (".json", ".json.gz")  # Questions in the nested format of SQuAD.

_LONGEST_FIELD = 2**31 - 1  # Characters of a CSV field; the default of `csv` is 131,072.
_NAMES_SHOWN = 20


@dataclass(frozen=True)
class Table:
    """The rows of one source, with the columns that a task reads.

    Args:
        source: names the rows in messages.
        names: all columns of the source.
        columns: values of the wanted columns that the source has.
        classes: names of the classes of each column that is a `datasets.ClassLabel`, or a list of them, whose values
            are their indices, or -1 for an example without a label.
    """

    source: str
    names: tuple[str, ...]
    columns: Mapping[str, Sequence[object]]
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def select(self, indices: Iterable[int], source: str) -> "Table":
        """Returns these rows, under another name in messages."""
        chosen = list(indices)
        columns = {name: [values[index] for index in chosen] for name, values in self.columns.items()}
        return replace(self, source=source, columns=columns)


def read_file(path: Path, wanted: Collection[str]) -> Table:
    """Reads the wanted columns of a file of a type in `SUFFIXES` or `SQUAD`.

    Fields of CSV and TSV are strings. TSV has no quotes. Blank lines of CSV, TSV and JSONL are skipped. Each question
    of SQuAD's JSON becomes a row with its `context` and its own keys, such as `id`, `question` and `answers`.

    Raises:
        UserError: if the file cannot be read, or a line of it has no clear meaning.
    """
    kind = path.name.removesuffix(".gz")
    with _reading_errors(path):
        if path.stat().st_size == 0:
            raise UserError(f"{path} is empty, expected a header and examples")
        if kind.endswith(".parquet"):
            return _read_parquet(path, wanted)
        if kind.endswith(".jsonl"):
            return _read_jsonl(path, wanted)
        if kind.endswith(".json"):
            return _read_squad(path, wanted)
        with _long_fields():
            return _read_delimited(path, _parse_tsv(path) if kind.endswith(".tsv") else _parse_csv(path), wanted)


def read_lines(path: Path) -> list[str]:
    """Returns the lines of a text file, which may be `.gz`, without their ends.

    Raises:
        UserError: if the file cannot be read.
    """
    with _reading_errors(path):
        return [line.rstrip("\r\n") for line in _read_lines(path)]


def from_dataset(dataset: "datasets.Dataset", source: str, wanted: Collection[str]) -> Table:
    """Converts a data set of the `datasets` library."""
    names = tuple(dataset.column_names)
    _check_names(source, names)
    plain = dataset.with_format(None)  # Another format would return tensors.
    columns = {name: list(plain[name]) for name in names if name in wanted}
    return Table(source, names, columns, _get_class_names(dataset.features, columns))


def show_names(names: Sequence[str]) -> str:
    """Returns names on one line: with quotes where white space or a control character would not show."""
    shown = [
        reprlib.repr(name) if name != name.strip() or not name.isprintable() or len(name) > 60 else name
        for name in names[:_NAMES_SHOWN]
    ]
    return ", ".join(shown) + (f", ... ({len(names)} in all)" if len(names) > _NAMES_SHOWN else "")


@contextmanager
def _reading_errors(path: Path) -> Iterator[None]:
    """Converts errors of the readers to a UserError of one line with the path."""
    try:
        yield
    except UserError:
        raise
    except (OSError, EOFError, zlib.error, ValueError, NotImplementedError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} cannot be read: {getattr(error, 'strerror', None) or first_line(error)}")


@contextmanager
def _long_fields() -> Iterator[None]:
    """Raises the limit of `csv`, which is global, for the time of one file."""
    limit = csv.field_size_limit(_LONGEST_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _read_lines(path: Path) -> Iterator[str]:
    """Yields the lines of a text file with their line feeds, without a byte order mark."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                raise UserError(f"{path} is in UTF-16 or UTF-32, expected UTF-8: convert it with iconv")
            if b"\0" in line:
                raise UserError(
                    f"{path}, line {number} has a NUL byte, expected text in UTF-8: is it UTF-16, or no text file?"
                )
            try:
                yield (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).decode()
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{path}, line {number} is not UTF-8 (byte 0x{error.object[error.start]:02x}), expected UTF-8: "
                    "convert the file with iconv"
                ) from error


def _parse_tsv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields the number and the fields of each line."""
    for number, line in enumerate(_read_lines(path), 1):
        content = line.removesuffix("\n").removesuffix("\r")
        if "\r" in content:
            raise lone_carriage_return(path, number)
        yield number, content.split("\t")


def _parse_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields the first line and the fields of each row, which may have more than one line."""
    rows = csv.reader(_read_lines(path), strict=True)
    first = 1
    try:
        for row in rows:
            yield first, row
            first = rows.line_num + 1
    except csv.Error as error:
        if "new-line" in str(error):
            raise lone_carriage_return(path, rows.line_num) from error
        if "end of data" in str(error):
            raise UserError(f"{path}, line {first} opens a quote that is never closed") from error
        raise UserError(
            f"{path}, line {first}: {error}; a quote inside of a quoted field is written as two quotes"
        ) from error


def lone_carriage_return(path: Path, number: int) -> UserError:
    """Returns the error for a line with a carriage return inside."""
    return UserError(
        f"{path}, line {number} has a carriage return (\\r) without a line feed, which may end a row or belong to a "
        "text: expected lines that end in \\n or \\r\\n"
    )


def _read_delimited(path: Path, rows: Iterator[tuple[int, list[str]]], wanted: Collection[str]) -> Table:
    filled = ((number, row) for number, row in rows if len(row) > 1 or any(field.strip() for field in row))
    _, header = next(filled, (0, []))
    if not header:
        raise UserError(f"{path} is empty, expected a header and examples")
    names = tuple(header)
    _check_names(str(path), names)
    places = {name: place for place, name in enumerate(names) if name in wanted}
    columns: dict[str, list[str]] = {name: [] for name in places}
    number = 0
    for number, row in filled:
        if len(row) != len(names):
            fields = "1 field" if len(row) == 1 else f"{len(row)} fields"
            raise UserError(
                f"{path}, line {number} has {fields}, its header {len(names)}: expected as many in every row"
            )
        for name, place in places.items():
            columns[name].append(row[place])
    if not number:
        raise UserError(f"{path} has a header and no examples")
    return Table(str(path), names, columns)


def _read_jsonl(path: Path, wanted: Collection[str]) -> Table:
    names: dict[str, None] = {}
    columns: dict[str, list[object]] = {name: [] for name in wanted}
    number = 0
    for number, line in enumerate(_read_lines(path), 1):
        if not line.strip():
            continue
        row = _parse_json(path, number, line)
        names.update(dict.fromkeys(row))
        for name, values in columns.items():
            values.append(row.get(name))
    if not names:
        raise UserError(f"{path} has no examples, expected an object on every line")
    _check_names(str(path), tuple(names))
    return Table(str(path), tuple(names), {name: values for name, values in columns.items() if name in names})


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


def _read_squad(path: Path, wanted: Collection[str]) -> Table:
    """Reads the nested JSON of SQuAD 1.1 and 2.0: articles of `data`, their `paragraphs`, and the `qas` of each."""
    try:
        content = json.loads("".join(_read_lines(path)))
        rows = [
            {"context": paragraph["context"], **question}
            for article in content["data"]
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not valid JSON: {first_line(error)}") from error
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path} is not in the format of SQuAD ({type(error).__name__}: {first_line(error)}), expected "
            '{"data": [{"paragraphs": [{"context": ..., "qas": [...]}]}]}; give rows as .jsonl'
        ) from error
    if not rows:
        raise UserError(f"{path} has no questions")
    names = tuple(dict.fromkeys(name for row in rows for name in row))
    return Table(str(path), names, {name: [row.get(name) for row in rows] for name in names if name in wanted})


def _read_parquet(path: Path, wanted: Collection[str]) -> Table:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            schema = file.schema_arrow
            names = tuple(schema.names)
            _check_names(str(path), names)
            table = file.read(columns=[name for name in names if name in wanted])
    except (pyarrow.ArrowException, MemoryError) as error:
        raise _unreadable(path, error) from error
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    if b"huggingface" not in (schema.metadata or {}):
        return Table(str(path), names, columns)
    import datasets

    try:
        features = datasets.Features.from_arrow_schema(schema)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(f"{path} has damaged metadata of the datasets library, expected its features") from error
    return Table(str(path), names, columns, _get_class_names(features, columns))


def _get_class_names(features: Mapping[str, object], columns: Collection[str]) -> dict[str, tuple[str, ...]]:
    import datasets

    # The classes of a column of lists, such as the tags of words, are those of its values.
    of_values = {name: getattr(feature, "feature", feature) for name, feature in features.items()}
    return {
        name: tuple(feature.names)
        for name, feature in of_values.items()
        if name in columns and isinstance(feature, datasets.ClassLabel)
    }


def _check_names(source: str, names: Sequence[str]) -> None:
    """Raises UserError for column names that differ in nothing but white space. Columns without a name are allowed."""
    seen: dict[str, str] = {}
    for name in names:
        plain = name.strip()
        if plain and plain in seen:
            columns = f"the column {name}" if seen[plain] == name else f"the columns {seen[plain]!r} and {name!r}"
            twice = " twice" if seen[plain] == name else ""
            raise UserError(f"{source} has {columns}{twice}, expected different names: rename one of them")
        seen[plain] = name
