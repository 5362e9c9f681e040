"""Order of texts with numbers in them: `2 stars` before `10 stars`."""

import re
from collections.abc import Iterable
from decimal import Decimal

_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)")
_IS_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")


def natural_key(text: str) -> list[tuple[Decimal, str]]:
    """Returns the key that sorts texts by their letters, and the numbers in them by their values."""
    parts = _NUMBER.split(text)  # Every second one is a number.
    return [(Decimal(part), "") if place % 2 else (Decimal(0), part) for place, part in enumerate(parts)]


def sort_classes(names: Iterable[str]) -> list[str]:
    """Returns the names of classes as tables show them: by their values if all are numbers, else by `natural_key`."""
    known = set(names)
    if all(map(_IS_NUMBER.fullmatch, known)):
        return sorted(known, key=lambda name: (Decimal(name), name))
    return sorted(known, key=natural_key)
