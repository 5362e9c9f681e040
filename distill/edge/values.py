"""Checks of values: those that a call gives, and those that bundle.json has."""

import sys
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any

from distill.core.errors import UserError, shorten

IsValid = Callable[[Any], bool]
Rule = tuple[IsValid, str]  # Whether a value is valid, and the valid ones in words.


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_size(value: object) -> bool:
    return is_count(value) and value != 0


def are_counts(value: object) -> bool:
    return isinstance(value, list) and all(map(is_count, value))


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def is_share(value: Any) -> bool:
    return is_number(value) and 0 <= value <= 1


def null_or(is_valid: IsValid, expected: str) -> Rule:
    """Returns the rule of a value that may be None or missing."""
    return lambda value: value is None or is_valid(value), expected


COUNT = (is_count, "a whole number")
SIZE = (is_size, "a whole number of at least 1")
SIZE_OR_NONE = null_or(*SIZE)
TOKENS = (are_counts, "a list of tokens")


def check_values(owner: str, values: Mapping[str, Any], rules: Mapping[str, Rule]) -> None:
    """Raises UserError for the first value of bundle.json that is invalid.

    Args:
        owner: the key of bundle.json that has the values.
        rules: of each value, which is None if it is missing.
    """
    for name, (is_valid, expected) in rules.items():
        if not is_valid(values.get(name)):
            raise UserError(f"{owner} has {name} {shorten(values.get(name))}, expected {expected}")


def check_count(name: str, value: object, *, least: int = 1, most: int | None = None, meaning: str = "") -> None:
    """Raises UserError unless the value of an option is a whole number from `least` to `most`.

    Args:
        meaning: words about `most` for the message.
    """
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole or not least <= int(value) <= (most or int(value)):  # type: ignore[call-overload]
        expected = f"from {least} to {most}{meaning}" if most else f"of at least {least}"
        raise UserError(f"got {name}={value}, expected a whole number {expected}")
