"""Several labels of each example, as rows of 0 and 1."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from distill.errors import UserError
from distill.readers.label_lists import check_texts, to_lists
from distill.readers.label_vectors import check_indices, find_width, to_bit
from distill.readers.labels import Columns, LabelColumn, Notify, find_classes, to_classes


def to_label_sets(
    columns: Columns, given: tuple[str, ...] | None, notify: Notify
) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """Returns the names of the labels in order, and by split which of them each example has, `[N, C]` (float32).

    Args:
        columns: of lists, as `read_lists` returns them. Their labels are classes as those of `labels.to_classes`.

    Raises:
        UserError: if no example of train has a label, and for a label that is empty or no class.
    """
    flat = {split: _flatten(column) for split, column in columns.items()}
    if not len(flat["train"].values):
        raise UserError(
            f"{columns['train'].source} has no label in any of its {len(columns['train'].values):,} examples, expected "
            "lists of labels, or texts with task.separator between labels: name their column with task.label=..."
        )
    names, classes = to_classes(flat, given, notify)
    return names, {split: _to_rows(column, columns[split], classes[split], names) for split, column in flat.items()}


def find_label_sets(column: LabelColumn, names: tuple[str, ...], separator: str, notify: Notify) -> np.ndarray:
    """Returns which of the labels each row of a file has, `[N, C]` (float32), whose names are known.

    Raises:
        UserError: for values that `read_lists` refuses, and for a label that is no class.
    """
    [lists] = read_lists({"": column}, names, separator=separator, notify=notify, checks_texts=False).values()
    flat = _flatten(lists)
    if lists.classes is not None:
        flat = replace(flat, values=[lists.classes[int(str(value))] for value in flat.values], classes=None)
    return _to_rows(flat, lists, find_classes(flat, names, notify), names)


def read_lists(
    columns: Columns,
    names: tuple[str, ...] | None,
    *,
    separator: str,
    notify: Notify,
    further: Sequence[str] = (),
    checks_texts: bool = True,
) -> dict[str, LabelColumn]:
    """Returns columns whose values are lists of labels.

    A value is a list of labels, a text of several with the separator between them, or a vector with 0 or 1 for each
    label. One that is empty is no label.

    Args:
        names: of the labels, where they are known.
        further: names for vectors of as many values where they are not.
        checks_texts: whether texts with another separator are refused.

    Raises:
        UserError: for values that can be read in two ways.
    """
    plain = {split: column for split, column in columns.items() if column.classes is None}
    if checks_texts:
        check_texts(plain, separator, names)
    lists = to_lists(columns, separator, notify)
    check_indices({split: column for split, column in columns.items() if split not in plain}, lists)
    width = find_width(plain, {split: lists[split] for split in plain}, names)
    found = {split: replace(column, values=[row or () for row in lists[split]]) for split, column in columns.items()}
    if width is None:
        return found
    if names is None:
        names = tuple(further) if len(further) == width else tuple(map(str, range(width)))
        if len(further) != width:
            notify(
                f"labels are read as {width} values of 0 and 1, one for each label, and named {names[0]} to "
                f"{names[-1]}: name them with task.labels=[...]"
            )
    for split in plain:
        indices = [[number for number, bit in enumerate(map(to_bit, row)) if bit] for row in lists[split] if row]
        found[split] = replace(found[split], values=indices, classes=names)
    return found


def first_rows(column: LabelColumn) -> list[int]:
    """Returns the first example with each label of a column of lists, so that a split with them has every label."""
    flat, found = _flatten(column), dict[str, int]()
    for row, label in zip(flat.rows or (), flat.values, strict=True):
        found.setdefault(str(label), row)
    return sorted(set(found.values()))


def _flatten(column: LabelColumn) -> LabelColumn:
    """Returns the labels of all examples one after another."""
    values, rows = list[object](), list[int]()
    for row, labels in enumerate(column.values):
        assert isinstance(labels, list | tuple)
        values += labels
        rows += [row] * len(labels)
    return replace(column, values=values, rows=rows)


def _to_rows(flat: LabelColumn, column: LabelColumn, classes: np.ndarray, names: Sequence[str]) -> np.ndarray:
    rows = np.zeros((len(column.values), len(names)), dtype=np.float32)
    rows[np.asarray(flat.rows, dtype=np.int64), classes] = 1
    return rows
