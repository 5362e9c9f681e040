"""The key `generation` of bundle.json: how the texts of a model begin and end."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from distill.edge.strings import shorten
from distill.edge.token_choice import EarlyStopping
from distill.errors import UserError


@dataclass(frozen=True)
class GenerationSettings:
    """The key `generation` of bundle.json.

    Args:
        eos: tokens that end a text; empty where only its length does.
        start: the first token of a decoder with an encoder; of a causal model the token before a text, None for none.
        max_new_tokens: tokens that a text has at most where a call gives no number.
        positions: tokens that the model can read; None for any number.
        forced_bos, forced_eos: as in `Endings`.
        length_penalty, early_stopping: of a beam search, as in `Endings`.
    """

    eos: tuple[int, ...]
    start: int | None
    max_new_tokens: int
    positions: int | None
    forced_bos: int | None = None
    forced_eos: int | None = None
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False

    @classmethod
    def read(cls, values: object) -> "GenerationSettings":
        """Returns the settings of bundle.json; raises UserError for a value that is missing or invalid."""
        if not isinstance(values, Mapping):
            raise UserError(f"generation is {shorten(values)}, expected the rules by which texts begin and end")
        for name, (is_valid, expected) in _VALUES.items():
            if not is_valid(values.get(name)):
                raise UserError(f"generation has {name} {shorten(values.get(name))}, expected {expected}")
        given = {name: values[name] for name in _VALUES if values.get(name) is not None and name != "eos"}
        return cls(**{"start": None, "positions": None, "eos": tuple(values["eos"])} | given)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_count(value: object) -> bool:
    return _is_id(value) and value != 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# Whether a value of `generation` in bundle.json is valid, None if it is missing, and the valid ones in words.
_VALUES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "eos": (lambda value: isinstance(value, list) and all(map(_is_id, value)), "a list of tokens"),
    "start": (lambda value: value is None or _is_id(value), "a token or null"),
    "max_new_tokens": (_is_count, "a whole number of at least 1"),
    "positions": (lambda value: value is None or _is_count(value), "a whole number of at least 1, or null"),
    "forced_bos": (lambda value: value is None or _is_id(value), "a token or null"),
    "forced_eos": (lambda value: value is None or _is_id(value), "a token or null"),
    "length_penalty": (lambda value: value is None or _is_number(value), "a number"),
    "early_stopping": (lambda value: value in (None, True, False, "never"), "true, false or never"),
}
