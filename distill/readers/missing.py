"""Values of tables by which files and programs mark that a row has no label or no text."""

import re
from collections.abc import Iterable, Sequence

# What pandas reads as a missing value, and what other programs write for one.
MARKS = frozenset({
    "nan", "NaN", "NAN", "-nan", "-NaN", "NaT", "None", "null", "NULL", "NA", "N/A", "n/a", "<NA>", "#NA", "#N/A",
    "undefined", "-",
})  # fmt: skip
WHOLE = re.compile(r"-?[0-9]{1,18}(\.0+)?")  # An integer, which a table with gaps writes as 1.0.
_MINUS_ONE = {"-1", "-1.0"}


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


def find_marks(values: Iterable[object], names: Sequence[str] = (), *, may_guess: bool = True) -> frozenset[str]:
    """Returns the labels that mean that a row has none, as text: those of `MARKS`, and -1 among non-negative integers.

    A hyphen beside a plus sign is a class. Nothing is a mark where fewer than two classes would be left.

    Args:
        values: the labels of all splits.
        names: of the classes, where they are given; no other label is one then.
        may_guess: whether -1 beside 0 and 1 alone is a class, as in the sentiments -1, 0 and 1.
    """
    words = {str(value) for value in values if not isinstance(value, list) and not is_missing(value)}
    marks, minus_one = {word for word in words & MARKS if not (word == "-" and "+" in words)}, words & _MINUS_ONE
    if names:
        return frozenset((marks | minus_one) - set(names))
    others = words - marks - minus_one
    are_indices = all(WHOLE.fullmatch(word) and not word.startswith("-") for word in others)
    if are_indices and not (may_guess and {word.partition(".")[0] for word in others} <= {"0", "1"}):
        marks |= minus_one
    return frozenset(marks) if len(words - marks) >= 2 else frozenset()


def has_no_label(value: object, marks: frozenset[str] = frozenset()) -> bool:
    """Returns whether a row with this label has none: nothing, NaN, an empty text, or one of `marks`."""
    return is_missing(value) or (bool(marks) and str(value) in marks)
