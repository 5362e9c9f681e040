"""Reads the choices of a question and its answer, the same in a run and of a file that a bundle is scored on."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from distill.edge.strings import shorten

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Answer(NamedTuple):
    """The answer of an example as the data has it, its choices, and their names, such as A to D, if they have names."""

    value: object
    choices: Sequence[str]
    names: Sequence[str] | None = None


def split_choices(value: object) -> tuple[list[object], list[object] | None]:
    """Returns the texts and the names of choices, whatever their types are.

    The value is a list of texts, one of `{"text", "label"}`, or `{"text": [...], "label": [...]}` as the Hub has it.
    """
    if isinstance(value, Mapping) and isinstance(value.get("text"), list):
        names = value.get("label")
        return value["text"], names if isinstance(names, list) else None
    if not isinstance(value, list | tuple):
        return [], None
    entries = list(value)
    if entries and all(isinstance(entry, Mapping) for entry in entries):
        return [entry.get("text") for entry in entries], [entry.get("label") for entry in entries]
    return entries, None


def join_choices(entries: Iterable[object]) -> list[object]:
    """Returns the choices out of one column for each; empty columns at the end of a row are no choices."""
    choices = list(entries)
    while choices and (choices[-1] is None or (isinstance(choices[-1], str) and not choices[-1].strip())):
        choices.pop()
    return choices


def choose_reading(answers: Iterable[Answer], usual: str | None = None) -> str:
    """Returns the name of the first reading that finds the most answers.

    Args:
        usual: the reading to take if it finds every answer.
    """
    answers = list(answers)
    has_names = any(answer.names is not None for answer in answers)
    names = [name for name in READINGS if has_names or name != "name"]
    names.sort(key=lambda name: name != usual)
    return max(names, key=lambda name: sum(READINGS[name](answer) is not None for answer in answers))


def other_reading(answers: Iterable[Answer], reading: str) -> str | None:
    """Returns the name of another reading that finds every answer too, and another choice for some; None without."""
    answers = list(answers)
    taken = [READINGS[reading](answer) for answer in answers]
    for name, read in READINGS.items():
        found = [read(answer) for answer in answers]
        if None not in found and found != taken:
            return name
    return None


def describe_expected(answer: Answer, reading: str) -> str:
    """Returns which answers of an example a reading understands."""
    choices = answer.choices
    return {
        "name": f"one of the names {', '.join(answer.names or ())}",
        "index": f"an index from 0 to {len(choices) - 1}",
        "number": f"a number from 1 to {len(choices)}",
        "letter": f"a letter from A to {LETTERS[min(len(choices), len(LETTERS)) - 1]}",
        "text": f"the text of one of {shorten(list(choices))}",
    }[reading]


def _as_name(answer: Answer) -> int | None:
    names = answer.names
    return names.index(str(answer.value)) if names is not None and str(answer.value) in names else None


def _as_index(answer: Answer) -> int | None:
    number = _to_integer(answer.value)
    return number if number is not None and 0 <= number < len(answer.choices) else None


def _as_number(answer: Answer) -> int | None:
    number = _to_integer(answer.value)
    return number - 1 if number is not None and 1 <= number <= len(answer.choices) else None


def _as_letter(answer: Answer) -> int | None:
    value = answer.value
    index = LETTERS.find(value.strip().upper()) if isinstance(value, str) and len(value.strip()) == 1 else -1
    return index if 0 <= index < len(answer.choices) else None


def _as_text(answer: Answer) -> int | None:
    value, choices = answer.value, list(answer.choices)
    return choices.index(value) if isinstance(value, str) and choices.count(value) == 1 else None


def _to_integer(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return int(number) if number.is_integer() else None


# Each returns the index of a choice, or None. The first one that has an index for every answer is taken: a text that is
# one of the choices is hardly there by chance, while every small number is an index.
READINGS: Mapping[str, Callable[[Answer], int | None]] = {
    "name": _as_name, "text": _as_text, "index": _as_index, "number": _as_number, "letter": _as_letter,
}  # fmt: skip
