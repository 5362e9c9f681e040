"""Several labels of an example as a vector of 0 and 1: how they are told from lists of indices, and one by column."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from distill.errors import UserError
from distill.readers.label_lists import Lists
from distill.readers.labels import Columns, LabelColumn
from distill.readers.lines import Lines

Names: TypeAlias = Sequence[str] | None

_BITS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "False": 0, "True": 1, "false": 0, "true": 1}
ADVICE = "write the names of the labels in their place, or give each label a column of 0 and 1 (task.label=[a,b])"


def stack_columns(source: str, columns: Mapping[str, Sequence[object]], lines: Lines = None) -> LabelColumn:
    """Returns the labels of examples that have a column of 0 and 1 for each label, as lists of their indices.

    Raises:
        UserError: for another value.
    """
    values: list[list[int]] = [[] for _ in next(iter(columns.values()))]
    stacked = LabelColumn(source, values, tuple(columns), lines=lines)
    for number, (name, column) in enumerate(columns.items()):
        for row, value in enumerate(column):
            bit = to_bit(value)
            if bit is None:
                raise UserError(
                    f"{stacked.place(row)}: column {name} is {value!r}, expected 0 or 1, because there is a column for "
                    f"each of the labels {', '.join(columns)}"
                )
            if bit:
                values[row].append(number)
    return stacked


def to_bit(value: object) -> int | None:
    """Returns 0 or 1 for a number, a truth value or a text that means one of them, otherwise None."""
    if isinstance(value, str):
        return _BITS.get(value.strip())
    return int(value) if isinstance(value, int | float) and value in (0, 1) else None


def find_width(columns: Columns, lists: Lists, names: Names) -> int | None:
    """Returns the length of the vectors of 0 and 1 that the lists of all splits are, None for names or indices.

    Lists of one length of at least two are vectors if one of them has a value twice, which no list of indices has.
    Those of three and more values always have.

    Raises:
        UserError: if the lists may be both or are neither, and for vectors that do not fit the names.
    """
    rows = [row for split in lists.values() for row in split]
    filled = [row for row in rows if row]
    if not filled or any(to_bit(value) is None for row in filled for value in row):
        _check_values(columns, lists)
        return None
    widths = {len(row) for row in filled}
    has_double = any(map(_has_double, filled))
    if len(widths) == 1 and has_double:
        width = widths.pop()
        _check_vectors(columns, lists, width, names)
        return width
    if has_double:
        _check_values(columns, lists)
    if _may_be_vectors(columns, rows, widths, names):
        place, shown = next(
            (column.place(row), value)
            for split, column in columns.items()
            for row, value in enumerate(column.values)
            if lists[split][row]
        )
        raise UserError(
            f"{place}: labels such as {shown!r} may be indices of labels, or a 0 or 1 for each of them: {ADVICE}"
        )
    return None


def check_indices(columns: Columns, lists: Lists) -> None:
    """Raises UserError for a list of indices of a `datasets.ClassLabel` with one twice, as a vector of 0 and 1 has."""
    for split, column in columns.items():
        for row, labels in enumerate(lists[split]):
            if len(set(map(str, labels or ()))) < len(labels or ()):
                raise UserError(
                    f"{column.place(row)}: the labels {labels!r} have an index twice, expected each once, because "
                    "the data set names the labels; give a vector of 0 and 1 as numbers"
                )


def _may_be_vectors(columns: Columns, rows: Sequence[Sequence[object] | None], widths: set[int], names: Names) -> bool:
    """Returns whether values of 0 and 1, none of which is twice in a list, may be vectors as well as indices."""
    if widths == {1}:  # One column of several, or a vector of a single label.
        are_lists = any(isinstance(value, list | tuple) for column in columns.values() for value in column.values)
        return not are_lists or names is None
    fits = names is None or len(names) == 2
    return widths == {2} and fits and [] not in rows  # Each example has one of two labels, or both.


def _has_double(row: Sequence[object]) -> bool:
    return len(set(map(to_bit, row))) < len(row)


def _check_vectors(columns: Columns, lists: Lists, width: int, names: Names) -> None:
    """Raises UserError for vectors without a name for each value, and for an example without one."""
    for split, rows in lists.items():
        for row, labels in enumerate(rows):
            if not labels:
                raise UserError(f"{columns[split].place(row)} has no labels, expected {width} values of 0 and 1")
    if names is not None and len(names) != width:
        raise UserError(
            f"{columns[next(iter(columns))].source}: lists of {width} values of 0 and 1 do not fit the {len(names)} "
            f"labels {', '.join(names[:8])}: expected one value for each"
        )


def _check_values(columns: Columns, lists: Lists) -> None:
    """Raises UserError for a list with a fraction, or with a whole number twice, which is no list of labels."""
    for split, rows in lists.items():
        for row, labels in enumerate(rows):
            place = columns[split].place(row)
            for value in labels or ():
                if isinstance(value, float) and not value.is_integer():
                    raise UserError(f"{place}: label {value!r} is no label, expected names, indices, or 0 and 1")
            numbers = [value for value in map(str, labels or ()) if value.partition(".")[0].isdecimal()]
            if len(set(numbers)) < len(numbers):
                double = next(value for value in numbers if numbers.count(value) > 1)
                raise UserError(
                    f"{place}: label {double} is there twice, expected each index once, or as many values of 0 and 1 "
                    f"in every example, while {_find_other(columns, lists, len(labels or ()))}"
                )


def _find_other(columns: Columns, lists: Lists, width: int) -> str:
    """Returns the first example, with what it has, that is no vector of 0 and 1 of this length."""
    for split, rows in lists.items():
        for row, labels in enumerate(rows):
            place = columns[split].place(row)
            other = next((value for value in labels or () if to_bit(value) is None), None)
            if other is not None or None in (labels or ()):
                return f"{place} has {other!r}"
            if labels and len(labels) != width:
                return f"{place} has {len(labels)} values"
    raise AssertionError("all labels are vectors of one length")
