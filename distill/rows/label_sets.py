"""Several labels of an example: lists, texts with separators, vectors of 0 and 1, and columns."""

import ast
import json
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeGuard

import numpy as np

from distill.core.errors import UserError
from distill.rows.formats import Lines, Notify, is_missing
from distill.rows.labels import Columns, LabelColumn, find_classes, to_classes

Lists = Mapping[str, list[Sequence[object]]]  # By split; () for a blank value.

_ITEM = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|-?[0-9]+(?:\.[0-9]*)?|True|False|true|false)"""
_LIST = re.compile(rf"\[\s*(?:{_ITEM}(?:\s*,\s*{_ITEM})*(?:\s*,)?)?\s*\]", re.DOTALL)
_BRACKETS = re.compile(r"\[.*\]|[({]\s*['\"].*[)}]", re.DOTALL)  # Also tuples and sets of texts.
_SEPARATORS = (",", ";", "|", "#", "\n", "\t")
_IN_NAMES = (" ", "/", "&", "+", ":")  # Separators that are often a part of a name.
_DIGITS = re.compile(r"[01]{2,}")  # A 0 or 1 for each label, without anything between them.
_SHOWN = 60  # Characters of a text in a message.


def to_lists(columns: Columns, separator: str, notify: Notify) -> Lists:
    """Returns the labels of each example by split.

    If all texts are lists in the notation of JSON or Python, they are read as such. Otherwise they have the separator
    between labels.

    Raises:
        UserError: for a text with nothing on one side of a separator.
    """
    texts = {text for _, text in _texts(columns)}
    written = {text: labels for text in texts if (labels := _parse_list(text)) is not None}
    are_lists = bool(texts) and len(written) == len(texts)
    if are_lists:
        notify(f"labels are read as lists, such as {_show(min(texts))}")
    return {
        split: [
            (written[value] if are_lists else _split(value, separator, column.place(row)))
            if _is_text(value)
            else _to_list(value)
            for row, value in enumerate(column.values)
        ]
        for split, column in columns.items()
    }


def check_texts(columns: Columns, separator: str, names: Sequence[str] | None) -> None:
    """Checks that texts with several labels have the separator between them, unless all are lists.

    Texts whose labels are all among `names` are as they should be.

    Raises:
        UserError: for a text that looks like a list, and for texts with another separator.
    """
    texts = [text for _, text in _texts(columns)]
    labels = {label.strip() for text in set(texts) for label in text.split(separator)}
    if labels <= set(names or ()) or all(_parse_list(text) is not None for text in set(texts)):
        return
    for place, text in _texts(columns):
        if _BRACKETS.fullmatch(text.strip()):
            raise UserError(
                f'{place}: label {_show(text)} looks like a list, expected every text as ["a", "b"], or with '
                f"{separator!r} between labels; if it is the name of one label, name all with task.labels=[...]"
            )
    if len(set(map(len, labels))) == 1 and all(map(_DIGITS.fullmatch, labels)) and any(of[0] == "0" for of in labels):
        raise UserError(
            f"{next(_texts(columns))[0]}: label {_show(texts[0])} looks like a 0 or 1 for each label, expected "
            f"{separator!r} between them; if it is the name of one label, name all with task.labels=[...]"
        )
    for other in (*_SEPARATORS, *_IN_NAMES):
        if other != separator and _separates(other, texts, labels, separator):
            place = next(place for place, text in _texts(columns) if other in text)
            raise _other_separator(place, texts, separator, other)


def _other_separator(place: str, texts: Sequence[str], separator: str, other: str) -> UserError:
    """Returns the error for texts with another separator between labels."""
    share, expected = (sum(of in text for text in texts) / len(texts) for of in (other, separator))
    having = f"only {expected:.0%} of the texts have" if expected else "no text has"
    # Quotes for the shell, which reads an escape only in $'...'.
    option = f'"task.separator={other!r}"' if other.isprintable() else f"$'task.separator=\"{repr(other)[1:-1]}\"'"
    return UserError(
        f"{place}: {having} {separator!r} between labels, and {share:.0%} have {other!r}: set {option}, or name the "
        f"labels with task.labels=[...] if {other!r} belongs to their names"
    )


def check_single(columns: Columns, names: Sequence[str] | None) -> None:
    """Raises UserError for a text that is a list, where an example has one label."""
    for place, text in _texts(columns) if names is None else ():
        if text.strip()[0] == "[" and _parse_list(text) is not None:
            raise UserError(
                f"{place}: label {_show(text)} is a list, expected one label: set task.multi_label=true, or name the "
                "classes with task.labels=[...] if it is the name of one"
            )


def _separates(other: str, texts: Sequence[str], labels: set[str], separator: str) -> bool:
    """Returns whether another separator seems to stand between the labels.

    It does if there are fewer labels without it, or if most texts have it and none has the separator of the task. One
    that is often a part of a name does if all that it separates are labels by themselves, or 0 and 1.
    """
    joined = {label for label in labels if other in label}
    parts = {part.strip() for label in joined for part in label.split(other)}
    if not joined:
        return False
    if other in _IN_NAMES:
        return parts <= labels - joined or parts == {"0", "1"}
    in_most = 2 * sum(other in text for text in texts) > len(texts) and not any(separator in text for text in texts)
    return in_most or len(parts | (labels - joined)) < len(labels)


def _texts(columns: Columns) -> Iterator[tuple[str, str]]:
    """Yields the place and the content of each text that is not blank."""
    for column in columns.values():
        for row, value in enumerate(column.values):
            if _is_text(value):
                yield column.place(row), value


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value.strip())


def _show(text: str) -> str:
    return text if len(text) <= _SHOWN and text.isprintable() else reprlib.repr(text)


def _parse_list(text: str) -> list[object] | None:
    """Returns the texts and numbers of a list in the notation of JSON or Python, None for another text."""
    if not _LIST.fullmatch(text.strip()):  # Python would join texts without commas between them.
        return None
    try:
        labels: list[object] = json.loads(text)
    except ValueError:
        try:
            labels = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError):
            return None
    return labels


def _to_list(value: object) -> Sequence[object]:
    if isinstance(value, list | tuple):
        return value
    return () if is_missing(value) else (value,)


def _split(text: str, separator: str, place: str) -> Sequence[object]:
    labels = [label.strip() for label in text.split(separator)]
    if not all(labels):
        raise UserError(
            f"{place}: label {text!r} has nothing on one side of {separator!r}, expected a label on both: remove the "
            "separator, or set task.separator"
        )
    return labels


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


def _list_examples(columns: Columns, lists: Lists) -> Iterator[tuple[str, Sequence[object], object]]:
    """Yields the place of each example, its list and its value."""
    for split, column in columns.items():
        for row, (labels, value) in enumerate(zip(lists[split], column.values, strict=True)):
            yield column.place(row), labels, value


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
    has_double = any(len(set(map(to_bit, row))) < len(row) for row in filled)
    if len(widths) == 1 and has_double:
        width = widths.pop()
        _check_vectors(columns, lists, width, names)
        return width
    if has_double:
        _check_values(columns, lists)
    if _may_be_vectors(columns, rows, widths, names):
        place, shown = next((place, value) for place, labels, value in _list_examples(columns, lists) if labels)
        raise UserError(
            f"{place}: labels such as {shown!r} may be indices of labels, or a 0 or 1 for each of them: {ADVICE}"
        )
    return None


def check_indices(columns: Columns, lists: Lists) -> None:
    """Raises UserError for a list of indices of a `datasets.ClassLabel` with one twice, as a vector of 0 and 1 has."""
    for place, labels, _ in _list_examples(columns, lists):
        if len(set(map(str, labels))) < len(labels):
            raise UserError(
                f"{place}: the labels {labels!r} have an index twice, expected each once, because the data set names "
                "the labels; give a vector of 0 and 1 as numbers"
            )


def _may_be_vectors(columns: Columns, rows: Sequence[Sequence[object]], widths: set[int], names: Names) -> bool:
    """Returns whether values of 0 and 1, none of which is twice in a list, may be vectors as well as indices."""
    if widths == {1}:  # One column of several, or a vector of a single label.
        are_lists = any(isinstance(value, list | tuple) for column in columns.values() for value in column.values)
        return not are_lists or names is None
    fits = names is None or len(names) == 2
    return widths == {2} and fits and [] not in rows  # Each example has one of two labels, or both.


def _check_vectors(columns: Columns, lists: Lists, width: int, names: Names) -> None:
    """Raises UserError for vectors without a name for each value, and for an example without one."""
    for place, labels, _ in _list_examples(columns, lists):
        if not labels:
            raise UserError(f"{place} has no labels, expected {width} values of 0 and 1")
    if names is not None and len(names) != width:
        raise UserError(
            f"{columns[next(iter(columns))].source}: lists of {width} values of 0 and 1 do not fit the {len(names)} "
            f"labels {', '.join(names[:8])}: expected one value for each"
        )


def _check_values(columns: Columns, lists: Lists) -> None:
    """Raises UserError for a list with a fraction, or with a whole number twice, which is no list of labels."""
    for place, labels, _ in _list_examples(columns, lists):
        for value in labels:
            if isinstance(value, float) and not value.is_integer():
                raise UserError(f"{place}: label {value!r} is no label, expected names, indices, or 0 and 1")
        numbers = [value for value in map(str, labels) if value.partition(".")[0].isdecimal()]
        if len(set(numbers)) < len(numbers):
            double = next(value for value in numbers if numbers.count(value) > 1)
            raise UserError(
                f"{place}: label {double} is there twice, expected each index once, or as many values of 0 and 1 in "
                f"every example, while {_find_other(columns, lists, len(labels))}"
            )


def _find_other(columns: Columns, lists: Lists, width: int) -> str:
    """Returns the first example, with what it has, that is no vector of 0 and 1 of this length."""
    for place, labels, _ in _list_examples(columns, lists):
        other = next((value for value in labels if to_bit(value) is None), None)
        if other is not None or None in labels:
            return f"{place} has {other!r}"
        if labels and len(labels) != width:
            return f"{place} has {len(labels)} values"
    raise AssertionError("all labels are vectors of one length")


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
    flat = _flatten(lists if lists.classes is None else replace(lists, values=name_lists(lists), classes=None))
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
    found = {split: replace(column, values=lists[split]) for split, column in columns.items()}
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


def name_lists(column: LabelColumn) -> list[list[str]]:
    """Returns the labels of a column of lists as text, those of a `datasets.ClassLabel` by their names."""
    classes = column.classes
    return [
        [str(label) if classes is None else classes[int(str(label))] for label in labels]
        for labels in column.values
        if isinstance(labels, list | tuple)
    ]


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
