"""Rules that forbid tokens, with the meaning of the logits processors of transformers of the same names."""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


@dataclass(frozen=True)
class TokenRules:
    """The tokens that a text may not have, of a model's generation configuration.

    Args:
        min_length: tokens before the end of a text at least, those of the prompt too, or the start of a decoder.
        min_new_tokens: tokens before its end at least, without those.
        no_repeat_ngram_size: number of tokens that do not occur twice in the same order; 0 for any.
        bad_words_ids: sequences of tokens that do not occur. The end of a text alone stays possible.
        suppress_tokens: tokens that do not occur.
        begin_suppress_tokens: tokens that no text begins with, behind a forced one.
    """

    min_length: int = 0
    min_new_tokens: int = 0
    no_repeat_ngram_size: int = 0
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()

    def before_forced(self, tokens: Sequence[int], length: int, eos: Set[int]) -> set[int]:
        """Returns the tokens that may not follow, unless one is forced.

        Args:
            tokens: so far, those of the prompt too.
            length: tokens without those of the prompt.
            eos: tokens that end a text.
        """
        found = set(self._repeating(tokens)) | set(self._completing(tokens, eos))
        if len(tokens) < self.min_length or length < self.min_new_tokens:
            found |= eos
        return found

    def after_forced(self, length: int, *, is_begun: bool) -> set[int]:
        """Returns the tokens that may not follow in any case.

        Args:
            length: tokens without those of the prompt.
            is_begun: whether the first token is forced.
        """
        begins = length == int(is_begun)
        return {*self.suppress_tokens, *(self.begin_suppress_tokens if begins else ())}

    def _repeating(self, tokens: Sequence[int]) -> Iterable[int]:
        """Yields the tokens that would repeat a sequence."""
        size = self.no_repeat_ngram_size
        if not size or len(tokens) < size:
            return
        last = list(tokens[len(tokens) + 1 - size :])
        for begin in range(len(tokens) + 1 - size):
            if list(tokens[begin : begin + size - 1]) == last:
                yield tokens[begin + size - 1]

    def _completing(self, tokens: Sequence[int], eos: Set[int]) -> Iterable[int]:
        """Yields the tokens that would complete a sequence which may not occur."""
        for *before, token in self.bad_words_ids:
            if before:
                if list(tokens[-len(before) :]) == before:
                    yield token
            elif token not in eos:
                yield token


def forbid(scores: Floats, row: int, tokens: Set[int]) -> None:
    """Sets scores `[rows, V]` of a row to minus infinity; tokens beyond the vocabulary have none."""
    known = [token for token in tokens if token < scores.shape[1]]
    scores[row, known] = -np.inf
