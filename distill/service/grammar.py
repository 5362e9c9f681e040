"""Reads overrides by a strict part of the grammar of the command line, and writes them so that Hydra reads the same.

A value is a number, a word, a text in quotes, a list or a mapping; several with commas between them, or `range(1,4)`,
are a sweep. Every other form is refused: functions, references, escapes, packages and deletions. Because an override is
written anew from what was read, no text is read in two ways.

    +teacher=minilm                   ->  Override("+", ("teacher",), (Scalar("minilm"),))
    seed=range(1,4)                   ->  Override("", ("seed",), (Scalar("1"), Scalar("2"), Scalar("3")))
    task.text=["my review",'a, b']    ->  Override("", ("task", "text"), ([Scalar(...), Scalar(...)],))
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from distill.errors import UserError
from distill.service.names import show

LONGEST = 10_000  # Characters of an override.
MOST_VALUES = 1_000  # Items of a list or values of a sweep.
MOST_PARTS = 10  # Of a key.
DEEPEST = 4  # Lists and mappings within each other.

_KEY = re.compile(r"(\+\+|\+|)([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)=", re.ASCII)
_RANGE = re.compile(r"range\(\s*(-?\d{1,18})\s*(?:,\s*(-?\d{1,18})\s*)?(?:,\s*(-?\d{1,18})\s*)?\)", re.ASCII)
_MAPPING_KEY = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9_-]*)\s*:", re.ASCII)
_UNQUOTED = re.compile(r"""[^,\[\]{}()'"=\\]+""")
# Scalars that stand without quotes; Hydra reads their types.
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
_DIGITS = r"(?:0|[1-9](?:_?[0-9])*)"
_NUMBER = re.compile(rf"[+-]?(?:{_DIGITS}(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)


class OverrideError(UserError):
    """An override that the service does not take."""


@dataclass(frozen=True)
class Scalar:
    """A number, a word or a text."""

    text: str
    is_quoted: bool = False


Value: TypeAlias = "Scalar | list[Value] | dict[str, Value]"


@dataclass(frozen=True)
class Override:
    """An override: its sign `+`, `++` or none, the parts of its key, and one value or those of a sweep."""

    sign: str
    key: tuple[str, ...]
    values: tuple[Value, ...]

    @property
    def name(self) -> str:
        """Returns the key as it is typed."""
        return ".".join(self.key)

    def __str__(self) -> str:
        return f"{self.sign}{self.name}={','.join(map(write_value, self.values))}"


def parse_override(text: str) -> Override:
    """Reads an override.

    Raises:
        OverrideError: for one of another form.
    """
    if len(text) > LONGEST:
        raise OverrideError(f"an override has {len(text):,} characters, the limit is {LONGEST:,}: {show(text)}")
    if not text.isprintable() or "${" in text:
        reason = "a reference ${...}" if "${" in text else "a character that does not print"
        raise OverrideError(f"the override {show(text)} has {reason}, which the service does not take")
    key = _KEY.match(text)
    if key is None or key[2].count(".") >= MOST_PARTS:
        raise OverrideError(
            f"got the override {show(text)}, expected key=value or +key=value with a key such as task.label"
        )
    parts = tuple(key[2].split("."))
    return Override(key[1], parts, _Reader(text, key.end()).read_values())


def write_override(key: str, value: object) -> str:
    """Returns the override that gives a key a value of JSON: a text, a number, true, null, a list or a mapping.

    Raises:
        OverrideError: for a key or a text that no override can have.
    """
    return str(parse_override(f"{key}={write_value(_from_json(value))}"))


def write_value(value: Value) -> str:
    """Returns a value as Hydra reads it."""
    if isinstance(value, list):
        return f"[{','.join(map(write_value, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{write_value(item)}' for key, item in value.items())}}}"
    is_plain = _WORD.fullmatch(value.text) or _NUMBER.fullmatch(value.text)
    if is_plain and not value.is_quoted:
        return value.text
    escaped = value.text.replace("'", "\\'")
    return f"'{escaped}'"


def is_sweep(overrides: Sequence[str]) -> bool:
    """Returns whether one of the overrides, which this module has written, has several values."""
    return any(len(parse_override(text).values) > 1 for text in overrides)


def _from_json(value: object) -> Value:
    if isinstance(value, Mapping):
        return {str(key): _from_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_from_json(item) for item in value]
    if isinstance(value, bool) or value is None:
        return Scalar({True: "true", False: "false", None: "null"}[value])
    return Scalar(value, is_quoted=True) if isinstance(value, str) else Scalar(str(value))


class _Reader:
    """Reads the values of an override from a position on."""

    def __init__(self, text: str, start: int) -> None:
        self.text, self.position = text, start

    def read_values(self) -> tuple[Value, ...]:
        swept = _RANGE.fullmatch(self.text, self.position)
        if swept:
            return self._count(*(None if group is None else int(group) for group in swept.groups()))
        if self.position == len(self.text):
            return (Scalar("", is_quoted=True),)
        values = self._read_items("", 0)
        if self.position != len(self.text):
            raise self._refuse()
        return tuple(values)

    def _count(self, first: int | None, last: int | None, step: int | None) -> tuple[Value, ...]:
        start, end = (0, first) if last is None else (first, last)
        numbers = range(start or 0, end or 0, 1 if step is None else step) if step != 0 else range(0)
        if not 0 < len(numbers) <= MOST_VALUES:
            raise OverrideError(f"{show(self.text)} has no values, or more than {MOST_VALUES:,}")
        return tuple(Scalar(str(number)) for number in numbers)

    def _read_items(self, closing: str, depth: int) -> list[Value]:
        """Reads values with commas between them; the text ends, or `closing` follows."""
        items: list[Value] = []
        while True:
            items.append(self._read_value(depth))
            if len(items) > MOST_VALUES:
                raise OverrideError(f"{show(self.text)} has more than {MOST_VALUES:,} values")
            self._skip_spaces()
            if not self.text.startswith(",", self.position):
                return items
            self.position += 1

    def _read_value(self, depth: int) -> Value:
        self._skip_spaces()
        if depth > DEEPEST:
            raise OverrideError(f"{show(self.text)} has lists or mappings in more than {DEEPEST} others")
        sign = self.text[self.position : self.position + 1]
        if sign == "[":
            self.position += 1
            if self._ends("]"):
                return []
            items = self._read_items("]", depth + 1)
            self._close("]")
            return items
        if sign == "{":
            return self._read_mapping(depth)
        return self._read_quoted(sign) if sign in ("'", '"') else self._read_unquoted()

    def _read_mapping(self, depth: int) -> dict[str, Value]:
        self.position += 1
        items: dict[str, Value] = {}
        if self._ends("}"):
            return items
        while True:
            key = _MAPPING_KEY.match(self.text, self.position)
            if key is None or key[1] in items or len(items) >= MOST_VALUES:
                raise self._refuse()
            self.position = key.end()
            items[key[1]] = self._read_value(depth + 1)
            self._skip_spaces()
            if not self.text.startswith(",", self.position):
                self._close("}")
                return items
            self.position += 1

    def _read_quoted(self, quote: str) -> Scalar:
        letters = list[str]()
        self.position += 1
        while self.position < len(self.text):
            letter = self.text[self.position]
            self.position += 1
            if letter == quote:
                return Scalar("".join(letters), is_quoted=True)
            if letter == "\\":
                if not self.text.startswith(quote, self.position):
                    raise OverrideError(f"{show(self.text)} has a backslash, which the service does not take")
                letter = quote
                self.position += 1
            letters.append(letter)
        raise OverrideError(f"{show(self.text)} opens a quote that is never closed")

    def _read_unquoted(self) -> Scalar:
        found = _UNQUOTED.match(self.text, self.position)
        if found is None or not found[0].strip():
            raise self._refuse()
        self.position = found.end()
        return Scalar(found[0].strip())

    def _skip_spaces(self) -> None:
        while self.text.startswith(" ", self.position):
            self.position += 1

    def _ends(self, closing: str) -> bool:
        self._skip_spaces()
        if not self.text.startswith(closing, self.position):
            return False
        self.position += 1
        return True

    def _close(self, closing: str) -> None:
        if not self._ends(closing):
            raise self._refuse()

    def _refuse(self) -> OverrideError:
        return OverrideError(
            f"the override {show(self.text)} cannot be read at character {self.position + 1}: put each text in quotes, "
            'as in task.text=["my text","a, b"]'
        )
