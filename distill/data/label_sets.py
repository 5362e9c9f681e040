"""Reads several labels of each example, as rows of 0 and 1."""

from collections.abc import Sequence

import numpy as np

from distill.data.labels import Columns, LabelColumn, to_classes
from distill.errors import UserError


def to_label_sets(
    columns: Columns, given: tuple[str, ...] | None, *, separator: str
) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """Returns the names of the labels in order, and by split which of them each example has, `[N, C]` (float32).

    A value is a list of labels, or a text of several with the separator between them. An empty one is no label. The
    labels are classes as those of `to_classes`.

    Raises:
        UserError: if no example of train has a label, and for a label that is empty or no class.
    """
    flat = {split: _flatten(column, separator) for split, column in columns.items()}
    if not len(flat["train"].values):
        raise UserError(
            f"{columns['train'].source} has no label in any of its {len(columns['train'].values):,} examples, expected "
            f"lists of labels, or texts with {separator!r} between labels: name their column with task.label=..."
        )
    names, classes = to_classes(flat, given)
    sets = {split: np.zeros((len(column.values), len(names)), dtype=np.float32) for split, column in columns.items()}
    for split, column in flat.items():
        sets[split][np.asarray(column.rows, dtype=np.int64), classes[split]] = 1
    return names, sets


def first_rows(column: LabelColumn, separator: str) -> list[int]:
    """Returns the first example with each label, so that a training split with them has every label."""
    flat, found = _flatten(column, separator), dict[str, int]()
    for row, label in zip(flat.rows or (), flat.values, strict=True):
        found.setdefault(str(label), row)
    return sorted(set(found.values()))


def _flatten(column: LabelColumn, separator: str) -> LabelColumn:
    """Returns the labels of all examples one after another."""
    values, rows = list[object](), list[int]()
    for row, value in enumerate(column.values):
        labels = _split(value, separator, column.place(row))
        values += labels
        rows += [row] * len(labels)
    return LabelColumn(column.source, values, column.classes, rows)


def _split(value: object, separator: str, place: str) -> Sequence[object]:
    """Returns the labels of one example."""
    if isinstance(value, list | tuple):
        return value
    if value is None or value != value or (isinstance(value, str) and not value.strip()):
        return ()
    if not isinstance(value, str):
        return (value,)
    labels = [label.strip() for label in value.split(separator)]
    if not all(labels):
        raise UserError(
            f"{place}: label {value!r} has nothing on one side of {separator!r}, expected a label on both: remove the "
            "separator, or set task.separator"
        )
    return labels
