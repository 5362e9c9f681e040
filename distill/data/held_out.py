"""Rows that belong together, such as those of equal texts, on one side of a split into train and dev."""

from collections.abc import Hashable, Iterable, Sequence
from functools import partial

import numpy as np

from distill.readers.equal_texts import normalize_text

# Of each row, for one reason to keep rows together: those with an equal key other than None are on one side.
Keys = Sequence[Hashable]


def text_key(texts: Iterable[object]) -> Hashable:
    """Returns a key that is equal for the same texts in any order, as `normalize_text` sees them."""
    return tuple(sorted(normalize_text(str(text)) for text in texts if text is not None))


def text_keys(*columns: Sequence[object]) -> Keys:
    """Returns the `text_key` of each row.

    A pair is another row's pair if both texts are. One text in common is none: the pairs of a premise, or of a question
    that many others are compared with, would be one group.

    Args:
        columns: of texts; what is no text counts as a text too.
    """
    return [text_key(values) for values in zip(*columns, strict=True)]


def number_units(keys: Iterable[Keys], rows: int) -> np.ndarray:
    """Returns the number of the unit of each row `[N]`, its first row: rows with an equal key of any kind are one unit.

    Args:
        keys: of the rows, once for each kind of them. None is no key.
    """
    parents = list(range(rows))

    def find(row: int) -> int:
        while parents[row] != row:
            parents[row] = parents[parents[row]]
            row = parents[row]
        return row

    for of_kind in keys:
        first: dict[Hashable, int] = {}
        for row, key in enumerate(of_kind):
            if key is not None:
                one, other = find(first.setdefault(key, row)), find(row)
                parents[max(one, other)] = min(one, other)
    return np.array([find(row) for row in range(rows)])


def keep_together(
    dev: np.ndarray, units: np.ndarray, *, classes: Sequence[str] | None = None, fixed: Sequence[int] = ()
) -> np.ndarray:
    """Returns the rows of dev after units that are on both sides have been put on one, in ascending order.

    Units that are on one side stay there, so that a table without repeated rows keeps its split. Of the others, as many
    are dev as make up for the rows that were drawn of them, class by class and in an order that is the same in every
    run: first those whose first row was drawn. A unit has the class of its first row.

    Args:
        dev: rows that were drawn.
        units: of all rows, `[N]`, as `number_units` returns them.
        classes: of all rows. Train keeps every one, and so does dev if it has two units.
        fixed: rows of train that stay there.
    """
    every, sizes, is_dev = np.arange(len(units)), np.bincount(units, minlength=len(units)), np.zeros(len(units), bool)
    is_dev[dev] = True
    in_dev = np.bincount(units[dev], minlength=len(units))
    crosses = (in_dev > 0) & (in_dev < sizes)  # By the first row of a unit, as `chosen`.
    if not crosses.any():
        return np.sort(dev)
    names, numbers = np.unique([""] * len(units) if classes is None else list(classes), return_inverse=True)
    count = partial(np.bincount, minlength=len(names))
    chosen = (in_dev > 0) & ~crosses
    room, units_in_dev = count(numbers[is_dev & crosses[units]]), count(numbers[chosen])
    units_in_all = count(numbers[units == every])
    crosses[units[list(fixed)]] = False
    order = np.random.default_rng(0).permutation(np.flatnonzero(crosses))
    candidates: dict[int, list[int]] = {}
    for row in order[np.argsort(~is_dev[order], kind="stable")].tolist():
        candidates.setdefault(int(numbers[row]), []).append(row)
    for number, rows in candidates.items():
        taken = _fill(rows, sizes, int(room[number]))
        if not taken and not units_in_dev[number] and units_in_all[number] > 1:
            taken = [min(rows, key=sizes.__getitem__)]
        if units_in_dev[number] + len(taken) == units_in_all[number]:
            taken.remove(max(taken, key=sizes.__getitem__))
        chosen[taken] = True
    lacking = np.flatnonzero(count(numbers[~chosen[units]]) == 0)
    chosen[units[np.isin(numbers, lacking) & (sizes[units] > 1)]] = False
    return np.flatnonzero(chosen[units])


def _fill(rows: Sequence[int], sizes: np.ndarray, room: int) -> list[int]:
    """Returns the units whose sizes together are nearest to a number of rows, taken one after another."""
    taken = []
    for row in rows:
        if sizes[row] <= 2 * room:
            taken.append(row)
            room -= int(sizes[row])
    return taken
