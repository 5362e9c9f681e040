"""The key `generation` of bundle.json: how the texts of a model begin and end."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from distill.edge.generation_options import MOST_BEAMS, GenerationOptions
from distill.edge.strings import shorten
from distill.edge.token_choice import EarlyStopping, Endings
from distill.edge.token_rules import TokenRules
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
        length_penalty, early_stopping, renormalizes: of a beam search, as in `Endings`.
        beams, repetition_penalty: where a call gives none.
        rules: the tokens that a text may not have, whose names are keys of `generation` too.
    """

    eos: tuple[int, ...]
    start: int | None
    max_new_tokens: int
    positions: int | None
    forced_bos: int | None = None
    forced_eos: int | tuple[int, ...] | None = None
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    renormalizes: bool = False
    beams: int = 1
    repetition_penalty: float = 1.0
    rules: TokenRules = field(default_factory=TokenRules)

    @classmethod
    def read(cls, values: object) -> "GenerationSettings":
        """Returns the settings of bundle.json; raises UserError for a value that is missing or invalid."""
        if not isinstance(values, Mapping):
            raise UserError(f"generation is {shorten(values)}, expected the rules by which texts begin and end")
        for name, (is_valid, expected) in _VALUES.items():
            if not is_valid(values.get(name)):
                raise UserError(f"generation has {name} {shorten(values.get(name))}, expected {expected}")
        given = {name: _freeze(values[name]) for name in _VALUES if values.get(name) is not None}
        rules = TokenRules(**{rule.name: given.pop(rule.name) for rule in fields(TokenRules) if rule.name in given})
        return cls(**{"start": None, "positions": None} | given, rules=rules)

    def complete(self, options: GenerationOptions) -> GenerationOptions:
        """Returns the options of a call with the beams and the penalty of the bundle where it gives none."""
        beams = (self.beams if options.temperature is None else 1) if options.beams is None else options.beams
        given = options.repetition_penalty
        return replace(options, beams=beams, repetition_penalty=self.repetition_penalty if given is None else given)

    def endings(self, most: int) -> Endings:
        """Returns the rules by which a text of at most `most` tokens is written."""
        return Endings(
            frozenset(self.eos), most, forced_bos=self.forced_bos, forced_eos=self.forced_eos,
            length_penalty=self.length_penalty, early_stopping=self.early_stopping, rules=self.rules,
            renormalizes=self.renormalizes,
        )  # fmt: skip


def _freeze(value: Any) -> Any:
    """Returns a value of JSON with tuples for its lists."""
    return tuple(map(_freeze, value)) if isinstance(value, list) else value


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_count(value: object) -> bool:
    return _is_id(value) and value != 0


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_id, value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# Whether a value of `generation` in bundle.json is valid, None if it is missing, and the valid ones in words.
_VALUES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "eos": (_is_ids, "a list of tokens"),
    "start": (lambda value: value is None or _is_id(value), "a token or null"),
    "max_new_tokens": (_is_count, "a whole number of at least 1"),
    "positions": (lambda value: value is None or _is_count(value), "a whole number of at least 1, or null"),
    "forced_bos": (lambda value: value is None or _is_id(value), "a token or null"),
    "forced_eos": (lambda value: value is None or _is_id(value) or (_is_ids(value) and value), "a token or null"),
    "length_penalty": (lambda value: value is None or _is_number(value), "a number"),
    "early_stopping": (lambda value: value in (None, True, False, "never"), "true, false or never"),
    "renormalizes": (lambda value: value in (None, True, False), "true or false"),
    "beams": (lambda value: value is None or (_is_count(value) and value <= MOST_BEAMS), f"from 1 to {MOST_BEAMS}"),
    "repetition_penalty": (lambda value: value is None or (_is_number(value) and value > 0), "a number above 0"),
    **{
        name: (lambda value: value is None or _is_id(value), "a whole number of at least 0")
        for name in ("min_length", "min_new_tokens", "no_repeat_ngram_size")
    },
    "bad_words_ids": (
        lambda value: value is None or (isinstance(value, list) and all(of and _is_ids(of) for of in value)),
        "lists of tokens",
    ),
    **{
        name: (lambda value: value is None or _is_ids(value), "a list of tokens")
        for name in ("suppress_tokens", "begin_suppress_tokens")
    },
}
