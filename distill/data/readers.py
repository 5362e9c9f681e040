"""Readers of labelled rows: CSV, TSV, JSONL and Parquet files, and data sets of the `datasets` library.

Every file is read anew, so that no cache can hold an older or a damaged version of it.
"""

import json
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from distill.errors import UserError, first_line
from distill.readers.lines import Lines, iterate_lines, name_row, reading_errors, select_lines, unreadable
from distill.readers.lines import lone_carriage_return as lone_carriage_return
from distill.readers.lines import read_lines as read_lines
from distill.readers.rows import SUFFIXES as ROW_SUFFIXES
from distill.readers.rows import check_names, is_delimited, read_fields, read_rows
from distill.readers.rows import show_names as show_names

if TYPE_CHECKING:
    import datasets

SUFFIXES = (*ROW_SUFFIXES, ".parquet")
SQUAD = (".json", ".json.gz")  # Questions in the nested format of SQuAD.
_SAMPLED = 50  # Rows of the columns that no task reads, of which a message offers those of text.


@dataclass(frozen=True)
class Table:
    """The rows of one source, with the columns that a task reads.

    Args:
        source: names the rows in messages.
        names: all columns of the source.
        columns: values of the wanted columns that the source has.
        classes: names of the classes of each column that is a `datasets.ClassLabel`, or a list of them, whose values
            are their indices, or -1 for an example without a label.
        lines: of the rows.
        samples: the first values of the other columns.
    """

    source: str
    names: tuple[str, ...]
    columns: Mapping[str, Sequence[object]]
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lines: Lines = None
    samples: Mapping[str, Sequence[object]] = field(default_factory=dict)

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


def read_file(path: Path, wanted: Collection[str]) -> Table:
    """Reads the wanted columns of a file of a type in `SUFFIXES` or `SQUAD`.

    Fields of CSV and TSV are strings. TSV has no quotes. Blank lines of CSV, TSV and JSONL are skipped. Each question
    of SQuAD's JSON becomes a row with its `context` and its own keys, such as `id`, `question` and `answers`.

    Raises:
        UserError: if the file cannot be read, or a line of it has no clear meaning.
    """
    with reading_errors(path):
        if path.stat().st_size == 0:
            raise UserError(f"{path} is empty, expected a header and examples")
        if is_delimited(path):
            return _read_fields(path, wanted)
        if path.name.endswith(".parquet"):
            return _read_parquet(path, wanted)
        return _read_squad(path, wanted) if path.name.endswith(SQUAD) else _read_objects(path, wanted)


def _read_fields(path: Path, wanted: Collection[str]) -> Table:
    """Reads the wanted columns of CSV or TSV."""
    rows = read_fields(path)
    _, names = next(rows)
    places = {name: place for place, name in enumerate(names) if name in wanted}
    columns: dict[str, list[str]] = {name: [] for name in places}
    others = {name: place for place, name in enumerate(names) if name and name not in wanted}
    lines, samples = array("q"), {name: list[str]() for name in others}
    for line, row in rows:
        lines.append(line)
        for name, place in places.items():
            columns[name].append(row[place])
        if len(lines) <= _SAMPLED:
            for name, place in others.items():
                samples[name].append(row[place])
    return Table(str(path), tuple(names), columns, lines=lines, samples=samples)


def _read_objects(path: Path, wanted: Collection[str]) -> Table:
    """Reads the wanted columns of JSONL. A value that a row lacks is None."""
    names: dict[str, None] = {}
    columns: dict[str, list[object]] = {name: [] for name in wanted}
    lines, samples = array("q"), dict[str, list[object]]()
    for line, row in read_rows(path):
        names.update(dict.fromkeys(row))
        lines.append(line)
        for name, values in columns.items():
            values.append(row.get(name))
        for name, value in row.items() if len(lines) <= _SAMPLED else ():
            if name not in wanted:
                samples.setdefault(name, []).append(value)
    columns = {name: values for name, values in columns.items() if name in names}
    return Table(str(path), tuple(names), columns, lines=lines, samples=samples)


def from_dataset(dataset: "datasets.Dataset", source: str, wanted: Collection[str]) -> Table:
    """Converts a data set of the `datasets` library."""
    names = tuple(dataset.column_names)
    check_names(source, names)
    plain = dataset.with_format(None)  # Another format would return tensors.
    columns = {name: list(plain[name]) for name in names if name in wanted}
    others = [name for name in names if name not in wanted and _is_string(dataset.features[name])]
    samples = dict(plain.select_columns(others)[:_SAMPLED]) if others else {}
    return Table(source, names, columns, _get_class_names(dataset.features, columns), samples=samples)


def _read_squad(path: Path, wanted: Collection[str]) -> Table:
    """Reads the nested JSON of SQuAD 1.1 and 2.0: articles of `data`, their `paragraphs`, and the `qas` of each."""
    try:
        content = json.loads("".join(iterate_lines(path)))
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
            check_names(str(path), names)
            table = file.read(columns=[name for name in names if name in wanted])
            others = [name for name in names if name not in wanted and _is_string(schema.field(name).type)]
            first = next(file.iter_batches(_SAMPLED, columns=others), None) if others else None
    except (pyarrow.ArrowException, MemoryError) as error:
        raise unreadable(path, error) from error
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    samples = {} if first is None else first.to_pydict()
    if b"huggingface" not in (schema.metadata or {}):
        return Table(str(path), names, columns, samples=samples)
    import datasets

    try:
        features = datasets.Features.from_arrow_schema(schema)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(f"{path} has damaged metadata of the datasets library, expected its features") from error
    return Table(str(path), names, columns, _get_class_names(features, columns), samples=samples)


def _is_string(kind: object) -> bool:
    """Returns whether the values of a feature of `datasets`, or of a type of Arrow, are strings."""
    return str(getattr(kind, "dtype", kind)) in ("string", "large_string")


def _get_class_names(features: Mapping[str, object], columns: Collection[str]) -> dict[str, tuple[str, ...]]:
    import datasets

    # The classes of a column of lists, such as the tags of words, are those of its values.
    of_values = {name: getattr(feature, "feature", feature) for name, feature in features.items()}
    return {
        name: tuple(feature.names)
        for name, feature in of_values.items()
        if name in columns and isinstance(feature, datasets.ClassLabel)
    }
