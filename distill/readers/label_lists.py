"""The labels of each example as a list, out of lists, texts with separators, and lists that are written as text."""

import ast
import json
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from typing import TypeGuard

from distill.errors import UserError
from distill.readers.labels import Columns, Notify

Lists = Mapping[str, list[Sequence[object] | None]]  # By split; None for a blank value.

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
    found: dict[str, list[Sequence[object] | None]] = {}
    for split, column in columns.items():
        found[split] = [
            (written[value] if are_lists else _split(value, separator, column.place(row)))
            if _is_text(value)
            else _to_list(value)
            for row, value in enumerate(column.values)
        ]
    return found


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


def _to_list(value: object) -> Sequence[object] | None:
    if isinstance(value, list | tuple):
        return value
    if value is None or isinstance(value, str) or (isinstance(value, float) and isnan(value)):
        return None
    return (value,)


def _split(text: str, separator: str, place: str) -> Sequence[object]:
    labels = [label.strip() for label in text.split(separator)]
    if not all(labels):
        raise UserError(
            f"{place}: label {text!r} has nothing on one side of {separator!r}, expected a label on both: remove the "
            "separator, or set task.separator"
        )
    return labels
