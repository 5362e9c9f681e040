"""Values of tables by which files and programs mark that a row has no label or no text."""

import re
from collections.abc import Iterable

# What pandas reads as a missing value, and what other programs write for one.
MARKS = frozenset({
    "nan", "NaN", "NAN", "-nan", "-NaN", "NaT", "None", "null", "NULL", "NA", "N/A", "n/a", "<NA>", "#NA", "#N/A",
    "undefined", "-",
})  # fmt: skip
WHOLE = re.compile(r"-?[0-9]{1,18}(\.0+)?")  # An integer, which a table with gaps writes as 1.0.
_MINUS_ONE = ("-1", "-1.0")


def is_blank(value: object) -> bool:
    """Returns whether a value is nothing, or a text without any character to see."""
    return value is None or (isinstance(value, str) and not value.strip())


def is_missing(value: object) -> bool:
    """Returns whether a value is nothing, NaN, or a text without any character to see."""
    return is_blank(value) or value != value


def is_without_label(value: object) -> bool:
    """Returns whether a value marks an example without a label: -1, a list of -1, or nothing."""
    if isinstance(value, list):
        return bool(value) and all(map(is_without_label, value))
    return is_missing(value) or str(value) in _MINUS_ONE


def find_marks(values: Iterable[object]) -> frozenset[str]:
    """Returns the classes that mean that a row has no label, as text: those of `MARKS`, and -1.

    A hyphen beside a plus sign is a class, and so is -1 unless all others are non-negative integers. Nothing is a mark
    where fewer than two classes would be left.

    Args:
        values: of all rows that are trained on or select a checkpoint.
    """
    words = {str(value) for value in values if not isinstance(value, list) and not is_missing(value)}
    marks = {word for word in words & MARKS if not (word == "-" and "+" in words)}
    others = words - marks - set(_MINUS_ONE)
    if all(WHOLE.fullmatch(word) and not word.startswith("-") for word in others):
        marks |= words & set(_MINUS_ONE)
    return frozenset(marks) if len(words - marks) >= 2 else frozenset()


def has_no_label(value: object, marks: frozenset[str] = frozenset()) -> bool:
    """Returns whether a row with this label has none: nothing, NaN, an empty text, or one of `marks`."""
    return is_missing(value) or (bool(marks) and str(value) in marks)
