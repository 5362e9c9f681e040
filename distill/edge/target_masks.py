"""Targets with masks: the tokens around them, the choice of those that are masked, and their decoder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from distill.edge.decoder import Example, Floats, Items, Prediction, Row, SourceTokens
from distill.edge.strings import shorten
from distill.edge.texts import Targets
from distill.errors import UserError


@dataclass(frozen=True)
class TargetFrame:
    """The special tokens before and after a target, the one that stands for a mask, and the most tokens of all."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    mask: int
    max_target: int

    @property
    def most(self) -> int:
        """The most tokens of a target without the special ones."""
        return self.max_target - len(self.before) - len(self.after)

    def put_around(self, tokens: Sequence[int]) -> list[int]:
        """Returns tokens with the special ones."""
        return [*self.before, *tokens, *self.after]

    def describe(self) -> dict[str, Any]:
        """Returns the values of bundle.json's `decoding`."""
        return {
            "before": list(self.before), "after": list(self.after), "mask": self.mask, "max_target": self.max_target
        }  # fmt: skip

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "TargetFrame":
        """Returns the frame of bundle.json's `decoding`; raises UserError for a value that is missing or invalid."""
        for name in ("before", "after"):
            if not isinstance(values.get(name), list) or not all(map(_is_count, values[name])):
                raise UserError(f"decoding has {name} {shorten(values.get(name))}, expected a list of tokens")
        for name in ("mask", "max_target"):
            if not _is_count(values.get(name)):
                raise UserError(f"decoding has {name} {shorten(values.get(name))}, expected a whole number")
        frame = cls(tuple(values["before"]), tuple(values["after"]), values["mask"], values["max_target"])
        if frame.most < 1:
            raise UserError(f"decoding has max_target {frame.max_target}, expected more than its special tokens")
        return frame


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def choose_masked(tokens: Sequence[int], visit: int = 0) -> list[int]:
    """Returns the places of the tokens that are masked, in ascending order: the same ones for the same tokens.

    Their number is drawn uniformly from 1 to all of them (Ghazvininejad et al., arXiv 1904.09324, section 3.1).

    Args:
        tokens: of a target without special ones.
        visit: of the same target, from 0. Each has masks of its own.
    """
    if not len(tokens):
        return []
    random = np.random.default_rng([visit, *tokens])
    number = int(random.integers(1, len(tokens), endpoint=True))
    places: list[int] = np.sort(random.choice(len(tokens), size=number, replace=False)).tolist()
    return places


@dataclass(frozen=True)
class MaskedTarget(SourceTokens):
    """The row of a model that fills targets: a source, and a `target` with masks at `positions`."""

    positions: Sequence[int] = ()


@dataclass(frozen=True)
class Filled:
    """A target whose masks are filled: its tokens without special ones, and the mean of their log-probabilities."""

    tokens: list[int]
    score: float


class FilledTargets(Targets):
    """The decoder of a model that fills all masks of a target at once: `text`, its `tokens` and its `score`.

    `tokens` are the ids without special ones, and `score` is the mean of their log-probabilities.

    Where it is scored, a record is `{"source": ..., "target": ...}`, and the items are the tokens of the target that
    `choose_masked` chooses.

    Args:
        decoding: the fields of `TargetFrame`, and the numbers of `rounds` and of `lengths` where a call gives none.
    """

    axes = 2
    fields: tuple[str, ...] = ("text", "tokens", "score")
    at_positions = True
    generates = False

    def __init__(self, labels: Sequence[str], pair: bool, decoding: Mapping[str, Any], tokenizer: Tokenizer) -> None:
        super().__init__(labels, pair, decoding, tokenizer)
        self.frame, self.size = TargetFrame.read(decoding), tokenizer.get_vocab_size()
        defaults = {name: decoding.get(name, 1) for name in ("rounds", "lengths")}
        for name, value in defaults.items():
            if not _is_count(value) or value < 1:
                raise UserError(f"decoding has {name} {shorten(value)}, expected a whole number of at least 1")
        self.rounds, self.lengths = int(defaults["rounds"]), int(defaults["lengths"])

    def cut(self, example: Example, row: Row, *, max_length: int, doc_stride: int | None, side: str) -> list[Row]:
        if example.target is None:
            return [row]
        [source] = row
        most = self.frame.most
        ids = self.tokenizer.encode(example.target, add_special_tokens=False).ids
        ids = ids[-most:] if side == "left" else ids[:most]
        places = choose_masked(ids)
        target = self.frame.put_around(ids)
        positions = [len(self.frame.before) + place for place in places]
        for position in positions:
            target[position] = self.frame.mask
        return [[MaskedTarget(source.ids, source.type_ids, source.attention_mask, target, positions)]]

    def select(self, example: Example, row: Row, logits: Floats) -> Items:
        return row, logits

    def decode(self, example: Example, rows: Sequence[Items]) -> Prediction:
        [(filled, _)] = rows
        text = self.tokenizer.decode(filled.tokens, skip_special_tokens=True).strip()
        return {"text": text, "tokens": filled.tokens, "score": filled.score}
