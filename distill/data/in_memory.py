"""Converts data in memory to tables: lists, pandas frames, and data sets of the `datasets` library."""

from collections.abc import Iterable, Mapping, Sequence, Set, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import SkipValidation

from distill.errors import UserError, first_line

if TYPE_CHECKING:
    import datasets
    import pandas

# A mapping holds columns by their names, a list rows with the names of the columns, a tuple texts and labels.
if TYPE_CHECKING:
    Table: TypeAlias = (
        datasets.Dataset
        | pandas.DataFrame
        | Mapping[str, Sequence[object]]
        | list[Mapping[str, object]]
        | tuple[Sequence[object], Sequence[object]]
    )
    TableSplits: TypeAlias = Mapping[str, Table]
else:
    # `check_arguments` would import the libraries, and copy the data to check it.
    Table = TableSplits = Annotated[object, SkipValidation]

EXPECTED = (
    "expected a path, (texts, labels), a mapping of columns, a pandas frame, rows, a datasets.Dataset, or a mapping of "
    "split names to one of these"
)


def tables(
    data: "Table | TableSplits | None", splits: "Mapping[str, Table | None]", *, text: Sequence[str], label: str
) -> "dict[str, datasets.Dataset] | None":
    """Returns the tables by split, a single one under the name `data`, or None without data.

    Args:
        data: one table, or a mapping of split names to tables.
        splits: the tables by split, None for a missing one. Excludes `data`.
        text: names of the text columns, for data in lists.
        label: name of the label column, for data in lists.

    Raises:
        UserError: if the data is of another type, or both `data` and splits are given.
    """
    named = {name: value for name, value in splits.items() if value is not None}
    if data is None and not named:
        return None
    if data is not None and named:
        raise UserError(f"got data and {' and '.join(named)}, expected one of them: leave out the other")
    if named:
        return {name: _to_table(value, text=text, label=label) for name, value in named.items()}
    if isinstance(data, Mapping) and not any(column in data for column in (*text, label)):
        return {str(name): _to_table(value, text=text, label=label) for name, value in data.items()}
    return {"data": _to_table(data, text=text, label=label)}


def further_tables(
    sets: "Mapping[str, str | Path | Table]", *, text: Sequence[str], label: str
) -> "dict[str, str | datasets.Dataset]":
    """Returns further sets by name, each the path that it was given as, or a table.

    Raises:
        UserError: for data of another type.
    """
    return {
        name: str(value) if isinstance(value, str | Path) else _to_table(value, text=text, label=label)
        for name, value in sets.items()
    }


def text_table(value: object, text: Sequence[str]) -> "datasets.Dataset":
    """Returns a table of texts without labels from a table, or from a sequence of texts or of pairs of texts.

    Raises:
        UserError: if the data is of another type.
    """
    import datasets
    import pandas
    import pyarrow

    if isinstance(value, datasets.Dataset | pandas.DataFrame | Mapping):
        return _to_table(value, text=text, label="")
    try:
        return datasets.Dataset.from_dict(_split_texts(_to_list("unlabelled", value), text))
    except (pyarrow.ArrowException, ValueError, OverflowError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"the texts of unlabelled cannot be read ({first_line(error)}), expected text only") from error


def _to_table(value: object, *, text: Sequence[str], label: str) -> "datasets.Dataset":
    import datasets
    import pandas
    import pyarrow

    if isinstance(value, datasets.Dataset):
        return value
    try:
        if isinstance(value, pandas.DataFrame):
            return datasets.Dataset.from_pandas(value, preserve_index=False)
        if isinstance(value, Mapping):
            return datasets.Dataset.from_dict(_to_columns(value))
        if isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
            names = dict.fromkeys(str(name) for row in value for name in row)
            return datasets.Dataset.from_dict({name: [row.get(name) for row in value] for name in names})
        if isinstance(value, tuple) and len(value) == 2:
            return datasets.Dataset.from_dict(_join_columns(*value, text=text, label=label))
    except (pyarrow.ArrowException, ValueError, OverflowError, NotImplementedError) as error:
        if isinstance(error, UserError):
            raise
        reason = first_line(error)
        raise UserError(
            f"the data cannot be made a table ({reason}): every column needs a name of its own and values of one type"
        ) from error
    raise UserError(f"got data of type {type(value).__name__}, {EXPECTED}")


def _join_columns(given: object, labels: object, *, text: Sequence[str], label: str) -> dict[str, list[Any]]:
    """Returns the columns of texts, and of their labels, which may be a frame with a column for each label."""
    import pandas

    texts = _to_list("texts", given)
    columns = _split_texts(texts, text)
    if isinstance(labels, pandas.DataFrame) and len(labels.columns) > 1:
        of_labels = {str(name): labels.iloc[:, place].tolist() for place, name in enumerate(labels.columns)}
        if len(of_labels.keys() - columns.keys()) < len(labels.columns):
            raise UserError(f"got labels with the columns {', '.join(of_labels)}, expected other names than of texts")
    else:
        values = labels.iloc[:, 0] if isinstance(labels, pandas.DataFrame) else labels
        of_labels = {label: _to_list("labels", values)}
    for values in of_labels.values():
        if len(texts) != len(values):
            raise UserError(f"got {len(texts)} texts and {len(values)} labels, expected as many of both")
    return columns | of_labels


def _to_columns(table: Mapping[object, object]) -> dict[str, list[Any]]:
    columns = {str(name): _to_list(str(name), column) for name, column in table.items()}
    if len({len(column) for column in columns.values()}) > 1:
        lengths = ", ".join(f"{name} {len(column)}" for name, column in columns.items())
        raise UserError(f"got columns of unequal lengths ({lengths}), expected as many rows in each")
    return columns


def _to_list(name: str, column: object) -> list[Any]:
    if isinstance(column, str | Set) or not isinstance(column, Iterable):  # A set has no order.
        raise UserError(f"got {name} of type {type(column).__name__}, expected a list or an array")
    return list(column)


def _split_texts(texts: list[Any], names: Sequence[str]) -> dict[str, list[Any]]:
    """Returns the columns of texts, of pairs of texts, or of records with names."""
    if texts and all(isinstance(row, Mapping) for row in texts):
        return {name: [row[name] for row in texts] for name in _shared_names(texts)}
    if len(names) == 1:
        return {names[0]: texts}
    for row in texts:
        if isinstance(row, str) or not isinstance(row, Sized) or len(row) != len(names):
            raise UserError(f"got the text {row!r}, expected {len(names)} texts for {', '.join(names)}")
    return {name: [row[index] for row in texts] for index, name in enumerate(names)}


def _shared_names(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the names that all records have."""
    names = list(records[0])
    for number, record in enumerate(records, 1):
        if set(record) != set(names):
            raise UserError(
                f"got record {number} with {', '.join(record)}, expected {', '.join(names)} as in the first"
            )
    return names
