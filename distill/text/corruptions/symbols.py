"""The tokens of a vocabulary that corruptions of text insert or respect, and the spans of tokens that they choose."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from distill.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SENTINEL = "<extra_id_{}>"
_SENTENCE_ENDS = (".", "!", "?")


@dataclass(frozen=True)
class Symbols:
    """Tokens of a vocabulary of V.

    Args:
        special: `[V]` (bool), tokens that are no text, such as the one between documents. No corruption moves or hides
            them.
        ends: `[V]` (bool), tokens that end a sentence.
        sentinels: `[K]`, ids of the tokens that stand for the first, the second and further spans (`<extra_id_0>`).
        mask: id of the token that hides others; None without one.
    """

    special: np.ndarray
    ends: np.ndarray
    sentinels: np.ndarray
    mask: int | None

    @classmethod
    def of(cls, tokenizer: "PreTrainedTokenizerBase") -> Self:
        """Returns the tokens of a tokenizer. One without a mask token hides others behind its first sentinel."""
        vocabulary = tokenizer.get_vocab()
        special, ends = np.zeros((2, max(vocabulary.values()) + 1), dtype=bool)
        special[tokenizer.all_special_ids] = True
        ends[[id for token, id in vocabulary.items() if token.endswith(_SENTENCE_ENDS)]] = True
        sentinels: list[int] = []
        while (token := SENTINEL.format(len(sentinels))) in vocabulary:
            sentinels.append(vocabulary[token])
        special[sentinels] = True
        mask = tokenizer.mask_token_id
        if mask is None and sentinels:
            mask = sentinels[0]
        return cls(special, ends & ~special, np.array(sentinels, dtype=np.int32), mask)

    def documents(self, ids: np.ndarray) -> np.ndarray:
        """Returns the number of the document of each token `[n]`; a special token between two has one of its own."""
        special = self.special[ids]
        numbers: np.ndarray = 2 * np.cumsum(special) - special
        return numbers


def count_noise(tokens: int, share: float) -> int:
    """Returns the number of tokens that are a share of all, at least one and never all of them."""
    return max(1, min(round(tokens * share), tokens - 1))


def mark_spans(text: np.ndarray, gaps: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns which tokens are in a span, and which of these begin one, `[n]` (bool) both.

    A span that would reach across a token that is no text becomes two.

    Args:
        text: `[n]` (bool), tokens that may be in a span.
        gaps: `[S]`, tokens of the text before each span and behind the last one.
        lengths: `[S]`, tokens of the text in each span.
    """
    count = len(gaps)
    numbers, sizes = np.full(2 * count + 1, -1), np.empty(2 * count + 1, dtype=np.int64)
    numbers[1::2] = np.arange(count)
    sizes[:-1:2], sizes[1::2] = gaps, lengths
    sizes[-1] = text.sum() - gaps.sum() - lengths.sum()
    spans = np.full(len(text), -1)
    spans[text] = numbers.repeat(sizes)
    inside = spans >= 0
    first = inside.copy()
    first[1:] &= spans[1:] != spans[:-1]
    return inside, first


def check_text(tokens: int, least: int, name: str) -> None:
    """Raises UserError for fewer tokens of text than a corruption needs."""
    if tokens < least:
        raise UserError(
            f"task.corruption={name} got a sequence of {tokens} token{'' if tokens == 1 else 's'} of text, expected at "
            f"least {least}: set task.packing=full_sentences, which fills every sequence"
        )


def check_mask(symbols: Symbols, name: str) -> int:
    """Returns the id of the token that hides others; raises UserError for a vocabulary without one."""
    if symbols.mask is None:
        raise UserError(
            f"the vocabulary has neither a mask token nor sentinels (<extra_id_0>), which task.corruption={name} "
            "hides tokens behind: take another corruption, or a T5's or BART's tokenizer"
        )
    return symbols.mask
