"""Readers of labelled rows: CSV, TSV, JSONL and Parquet files, and data sets of the `datasets` library.

Every file is read anew, so that no cache can hold an older or a damaged version of it.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from distill.console import print_notice
from distill.errors import UserError
from distill.readers.columns import SAMPLED, Table, is_string, read_table
from distill.readers.lines import reading_errors
from distill.readers.rows import check_names
from distill.readers.squad import read_articles

if TYPE_CHECKING:
    import datasets

SQUAD = (".json", ".json.gz")  # Questions in the nested format of SQuAD.


def read_file(path: Path, wanted: Collection[str]) -> Table:
    """Reads the wanted columns of a file of a type in `SUFFIXES` or `SQUAD`.

    Each question of SQuAD's JSON becomes a row with its `context`, the `title` of the article if it has one, and its
    own keys, such as `id`, `question` and `answers`. The classes of a data set that the `datasets` library has written
    as Parquet are read too.

    Raises:
        UserError: if the file cannot be read, or a line of it has no clear meaning.
    """
    if not path.name.endswith(SQUAD):
        table = read_table(path, wanted)
        if table.note:
            print_notice(f"{path}: {table.note}")
        return table if table.schema is None else _add_classes(table)
    with reading_errors(path):
        if path.stat().st_size == 0:
            raise UserError(f"{path} is empty, expected a header and examples")
        return _read_squad(path, wanted)


def from_dataset(dataset: "datasets.Dataset", source: str, wanted: Collection[str]) -> Table:
    """Converts a data set of the `datasets` library."""
    names = tuple(dataset.column_names)
    check_names(source, names)
    plain = dataset.with_format(None)  # Another format would return tensors.
    columns = {name: list(plain[name]) for name in names if name in wanted}
    others = [name for name in names if name not in wanted and is_string(dataset.features[name])]
    samples = dict(plain.select_columns(others)[:SAMPLED]) if others else {}
    return Table(source, names, columns, _get_class_names(dataset.features, columns), samples=samples)


def _read_squad(path: Path, wanted: Collection[str]) -> Table:
    """Reads the nested JSON of SQuAD 1.1 and 2.0: articles of `data`, their `paragraphs`, and the `qas` of each."""
    rows = read_articles(path)
    names = tuple(dict.fromkeys(name for row in rows for name in row))
    return Table(str(path), names, {name: [row.get(name) for row in rows] for name in names if name in wanted})


def _add_classes(table: Table) -> Table:
    """Returns the rows of Parquet with the names of classes that the `datasets` library has written."""
    if b"huggingface" not in (table.schema.metadata or {}):
        return table
    import datasets

    try:
        features = datasets.Features.from_arrow_schema(table.schema)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{table.source} has damaged metadata of the datasets library, expected its features"
        ) from error
    return replace(table, classes=_get_class_names(features, table.columns))


def _get_class_names(features: Mapping[str, object], columns: Collection[str]) -> dict[str, tuple[str, ...]]:
    import datasets

    # The classes of a column of lists, such as the tags of words, are those of its values.
    of_values = {name: getattr(feature, "feature", feature) for name, feature in features.items()}
    return {
        name: tuple(feature.names)
        for name, feature in of_values.items()
        if name in columns and isinstance(feature, datasets.ClassLabel)
    }
