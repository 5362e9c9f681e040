"""The labels of all splits, or of a file to evaluate, as class indices or numbers.

Whether values are names of classes or their indices is decided once for all splits, never value by value.
"""

import math
import re
import reprlib
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from typing import Any, Self

import numpy as np

from distill.core.errors import UserError
from distill.rows.formats import WHOLE, Lines, Notify, is_missing, list_marks, name_row, show_names, to_number

_DIGITS = re.compile(r"([0-9]+(?:\.[0-9]+)?)")
_NUMBER = re.compile(r"-?[0-9]{1,18}(\.[0-9]+)?")


def natural_key(text: str) -> list[tuple[Decimal, str]]:
    """Returns the key that sorts texts by their letters, and the numbers in them by their values."""
    parts = _DIGITS.split(text)  # Every second one is a number.
    return [(Decimal(part), "") if place % 2 else (Decimal(0), part) for place, part in enumerate(parts)]


def sort_classes(names: Iterable[str], key: Callable[[str], Any] = natural_key) -> list[str]:
    """Returns the names of classes in order: by their values if all are numbers, else by a key, as tables show them."""
    known = set(names)
    if all(map(_NUMBER.fullmatch, known)):
        return sorted(known, key=lambda name: (Decimal(name), name))
    return sorted(known, key=key)


_SELECTING = ("train", "dev")


@dataclass(frozen=True)
class LabelColumn:
    """The labels of one split.

    Args:
        source: names the split in messages.
        values: of all examples.
        classes: names of the classes of a `datasets.ClassLabel`, whose values are their indices; None for others.
        rows: the example of each value, where examples have several; None for one value each.
        lines: of the examples.
    """

    source: str
    values: Sequence[object]
    classes: tuple[str, ...] | None = None
    rows: Sequence[int] | None = None
    lines: Lines = None

    def place(self, index: int) -> str:
        """Returns the name in messages of the example that has a value."""
        return f"{self.source}, {self.example(index)}"

    def example(self, index: int) -> str:
        """Returns the name, within its split, of the example that has a value."""
        row = index if self.rows is None else self.rows[index]
        return name_row(row, self.lines)


Columns = Mapping[str, LabelColumn]


def to_numbers(column: LabelColumn) -> np.ndarray:
    """Returns the labels of a regression, float32.

    Raises:
        UserError: for a value that is no finite number.
    """
    numbers = np.empty(len(column.values), dtype=np.float32)
    for row, value in enumerate(column.values):
        number = to_number(value)
        if number is None:
            raise UserError(
                f"{column.place(row)}: label {reprlib.repr(value)} is no number; for classes take task=classification"
            )
        numbers[row] = number
    return numbers


def find_kinds(values: Sequence[object], rows: Iterable[int]) -> dict[str, list[int]]:
    """Returns these rows by the kind of their labels, as messages name it; a value that is no class has none."""
    kinds: dict[str, list[int]] = {}
    for row in rows:
        kind = _kind(values[row])
        if kind is not None:
            kinds.setdefault(kind, []).append(row)
    return kinds


def to_classes(
    columns: Columns, given: tuple[str, ...] | None, notify: Notify
) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """Returns the names of the classes in order, and the class index of each example by split.

    The classes are those that are given, or the names of train's `datasets.ClassLabel`, or the values of train, sorted
    as numbers or alphabetically. Values of other columns are names of classes, or else indices of them.

    Raises:
        UserError: for a value that is neither, for values of both kinds, and for values that look alike.
    """
    own = columns["train"].classes
    labels = LabelWords.read(columns, given, notify)
    values = set(labels.words["train"])
    if len(values) < 2:
        raise UserError(
            f"{columns['train'].source} has one class only ({show_names(sorted(values)) or 'none'}), expected at least "
            "two"
        )
    names = given or own or _sort(values)
    if given is not None:
        labels.rename(given)
    labels.name_indices(names, indices=given is not None or own is not None, notify=notify)
    return names, labels.to_indices(names)


def find_classes(column: LabelColumn, names: tuple[str, ...], notify: Notify) -> np.ndarray:
    """Returns the class index of each label of a file, whose classes are known.

    Labels are names, or else indices if these cannot be taken for other names: 0 to 4 are no indices of 1 to 5.

    Raises:
        UserError: for a value that is neither, and for values of both kinds.
    """
    labels = LabelWords.read({"": column}, names, notify)
    numbers = {name: place for place, name in enumerate(names) if _NUMBER.fullmatch(name)}
    unlike = any(Decimal(name) != place for name, place in numbers.items())
    labels.name_indices(names, indices=not unlike, notify=notify)
    return labels.to_indices(names)[""]


def _sort(values: Iterable[str]) -> tuple[str, ...]:
    """Returns labels in the order of their classes: by their values if all are numbers, else alphabetically."""
    return tuple(sort_classes(values, key=str))


def _to_words(column: LabelColumn) -> list[str]:
    """Returns the labels as text: for a `datasets.ClassLabel` the names of the classes."""
    words = []
    for row, value in enumerate(column.values):
        if is_missing(value):
            raise UserError(f"{column.place(row)}: label {value!r} is empty, expected a class: remove rows without one")
        if _kind(value) is None:
            raise UserError(f"{column.place(row)}: label {reprlib.repr(value)} is no name and no number of a class")
        words.append(_get_class(column, row, value) if column.classes else str(value))
    kinds = find_kinds(column.values, range(len(words)))
    if len(kinds) > 1:
        (kind, [row, *_]), (other, [other_row, *_]) = list(kinds.items())[:2]
        raise UserError(
            f"{column.place(row)}: label {column.values[row]!r} is {kind} and {column.values[other_row]!r} of "
            f"{column.example(other_row)} {other}, expected labels of one kind"
        )
    for word in set(words):
        try:
            word.encode()
        except UnicodeEncodeError:  # JSON can contain "\ud800".
            raise UserError(f"{column.place(words.index(word))}: label {word!r} has an unpaired surrogate") from None
    return words


def _kind(value: object) -> str | None:
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, float):
        return "a number" if math.isfinite(value) else None
    return "a number" if isinstance(value, int | Decimal) else None


def _get_class(column: LabelColumn, row: int, value: object) -> str:
    assert column.classes is not None
    if not isinstance(value, int) or not 0 <= value < len(column.classes):
        raise UserError(
            f"{column.place(row)}: label {value!r} is no index of the classes {show_names(column.classes)}, expected 0 "
            f"to {len(column.classes) - 1}"
        )
    return column.classes[value]


def simplify(label: str) -> str:
    """Returns a label without surrounding white space and invisible characters, with composed accents."""
    visible = "".join(letter for letter in unicodedata.normalize("NFC", label) if unicodedata.category(letter) != "Cf")
    return visible.strip()


@dataclass(frozen=True)
class LabelWords:
    """The labels of each split as text, with the columns that they are from."""

    columns: Columns
    words: dict[str, list[str]]

    @classmethod
    def read(cls, columns: Columns, given: tuple[str, ...] | None, notify: Notify) -> Self:
        """Returns the labels of columns, where 1 and 1.0 are one as in `join_spellings`.

        Args:
            given: names of the classes; None has those of train.

        Raises:
            UserError: for labels that are empty, look alike, or may mean that there is none.
        """
        labels = cls(columns, {split: _to_words(column) for split, column in columns.items()})
        labels._check_lookalikes()
        names = columns["train"].classes if given is None else given
        if names is None:
            labels._check_marks()
        labels.join_spellings(names or (), notify)
        return labels

    @property
    def plain(self) -> list[str]:
        """Returns the splits whose labels are no `datasets.ClassLabel`."""
        return [split for split, column in self.columns.items() if column.classes is None]

    def replace(self, changed: Mapping[str, str], splits: Sequence[str]) -> None:
        """Gives labels of splits another text."""
        for split in splits:
            self.words[split] = [changed.get(word, word) for word in self.words[split]]

    def to_indices(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Returns the class index of each label by split."""
        index = {name: number for number, name in enumerate(names)}
        return {split: np.array([index[word] for word in words], dtype=np.int64) for split, words in self.words.items()}

    def _find(self, splits: Sequence[str], fits: Callable[[str], bool]) -> tuple[str, str] | None:
        """Returns the first label for which `fits` is true, and the name of its example in messages."""
        for split in splits:
            unique = {word: fits(word) for word in set(self.words[split])}
            for row, word in enumerate(self.words[split]):
                if unique[word]:
                    return word, self.columns[split].place(row)
        return None

    def join_spellings(self, names: Sequence[str], notify: Notify) -> None:
        """Makes 1 and 1.0 one label if the data has both, one names a class, or all labels are such numbers."""
        words = {word for split in self.plain for word in self.words[split]}
        numbers = {word: word.partition(".")[0] for word in words if WHOLE.fullmatch(word)}
        named = {name.partition(".")[0]: name for name in names if WHOLE.fullmatch(name)}
        by_name = {word: named[number] for word, number in numbers.items() if word not in names and number in named}
        joined = {word: number for word, number in numbers.items() if "." in word}
        if names:  # Indices may have both spellings.
            joined = {}
        elif len(numbers) < len(words):
            joined = {word: number for word, number in joined.items() if number in numbers}
        if joined:
            word = min(joined)
            notify(
                f"the labels {word} and {joined[word]} are read as one class"
                if joined[word] in numbers
                else f"the labels {show_names(_sort(set(joined)))} are read as the whole numbers "
                f"{show_names(_sort(set(joined.values())))}, because programs write them so in a column with gaps"
            )
        self.replace(by_name | joined, self.plain)

    def _check_lookalikes(self) -> None:
        """Raises UserError for labels that differ only in white space, invisible characters or coding of accents."""
        words, seen = self.words, dict[str, tuple[str, str]]()
        for split, column in self.columns.items():
            for word in dict.fromkeys(words[split]):
                plain = simplify(word)
                other, place = seen.setdefault(plain, (word, split))
                if other != word:
                    raise UserError(
                        f"{column.place(words[split].index(word))}: label {word!a} looks like {other!a} of "
                        f"{self.columns[place].place(words[place].index(other))}, expected one of them: write both "
                        "alike"
                    )

    def _check_marks(self) -> None:
        """Raises UserError for a text in train or dev by which programs mark that there is no label."""
        splits = [split for split in self.plain if split in _SELECTING]
        values = set(chain.from_iterable(self.words[split] for split in splits))
        marks, minus_one = list_marks(values)
        found = self._find(splits, minus_one.__contains__) or self._find(splits, marks.__contains__)
        if found:
            names = ",".join(_sort(values)) if len(values) <= 10 else f"{found[0]},..."
            drop = "; task.missing=drop leaves these rows out" if minus_one and len(values - minus_one) > 1 else ""
            raise UserError(
                f"{found[1]}: label {found[0]} often marks an example without a label: remove these rows, or name the "
                f"classes with task.labels=[{names}]{drop}"
            )

    def rename(self, names: tuple[str, ...]) -> None:
        """Gives the classes of each `datasets.ClassLabel` the names of the task: the same words, or others by index."""
        for split, column in self.columns.items():
            own = column.classes
            if own is None or set(own) == set(names):
                continue
            is_renamed = len(own) == len(names) and all(
                first == second or (first not in names and second not in own)
                for first, second in zip(own, names, strict=True)
            )
            if not is_renamed:
                raise UserError(
                    f"{column.source} has the classes {show_names(own)} and task.labels {show_names(names)}: expected "
                    "the same names, or as many others in the same order"
                )
            self.replace(dict(zip(own, names, strict=True)), [split])

    def name_indices(self, names: tuple[str, ...], *, indices: bool, notify: Notify) -> None:
        """Replaces indices of classes by their names, if the plain labels of all splits together are indices.

        Raises:
            UserError: if they are neither all names nor, with `indices`, all indices.
        """
        splits = self.plain
        values = set(chain.from_iterable(self.words[split] for split in splits))
        by_index = {
            value: names[number]
            for value in values
            if indices and WHOLE.fullmatch(value) and 0 <= (number := int(value.partition(".")[0])) < len(names)
        }
        if values <= set(names):
            other = next((value for value in sorted(values) if by_index.get(value, value) != value), None)
            if other is not None and set(by_index) == values:
                notify(
                    f"the labels {show_names(_sort(values))} are read as names of classes and not as indices: {other} "
                    f"is the class {other}, not {by_index[other]}"
                )
            return
        if set(by_index) == values:
            other = next((value for value in _sort(values) if by_index[value] != value and value in names), None)
            if other is not None:
                notify(
                    f"the labels {show_names(_sort(values))} are read as indices of classes and not as names, because "
                    f"not all of them are names: {other} is the class {by_index[other]}"
                )
            self.replace(by_index, splits)
            return
        unknown = self._find(splits, lambda word: word not in names and word not in by_index)
        if unknown:
            numbers = f", or all labels from 0 to {len(names) - 1}" if indices else ""
            raise UserError(
                f"{unknown[1]}: label {reprlib.repr(unknown[0])} is unknown, expected one of {show_names(names)}"
                f"{numbers}"
            )
        index = self._find(splits, lambda word: word not in names)
        name = self._find(splits, lambda word: word not in by_index)
        assert index is not None
        assert name is not None
        raise UserError(
            f"{index[1]}: label {index[0]} is an index and {name[0]} of {name[1]} a name, expected only indices or "
            f"only names out of {show_names(names)}"
        )
