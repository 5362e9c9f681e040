"""The lengths of texts in words, and how many have more tokens than a model reads."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from distill.readers.scripts import sample_texts

LIMIT = 128  # Tokens that a task reads by default.
LIMITS = (LIMIT, 256, 512)
_OVER = 0.05  # Share of longer texts from which on a larger limit is worth its time.
_PIECE = re.compile(r"\w+|[^\w\s]")
# Tokens for a word or a punctuation mark, measured with WordPiece on reviews, news and abstracts, and on translations
# with an English vocabulary. Scripts without spaces have one for each letter.
_TOKENS = {True: 1.1, False: 1.7}
_WITHOUT_SPACES = frozenset({"Han", "Kana", "Thai", "Lao", "Khmer", "Myanmar"})


@dataclass(frozen=True)
class Lengths:
    """The lengths of examples, of pairs those of both texts.

    Args:
        unit: words, or characters for scripts without spaces.
        median, p95, longest: in `unit`.
        over: estimated number of examples above each of `LIMITS`, by the tokens of a word in a sample.
    """

    unit: str
    median: int
    p95: int
    longest: int
    examples: int
    over: dict[int, int]

    @property
    def limit(self) -> int:
        """Returns the smallest limit that few examples exceed."""
        return next((limit for limit in LIMITS if self.over[limit] <= _OVER * self.examples), LIMITS[-1])


def measure_lengths(columns: Sequence[Sequence[str]], *, script: str, is_english: bool) -> Lengths:
    """Returns the lengths of examples of one text or of pairs; `script` is the most frequent one."""
    by_letter = script in _WITHOUT_SPACES
    measured = [[len(text) if by_letter else len(text.split()) for text in texts] for texts in columns]
    numbers = sorted(map(sum, zip(*measured, strict=True)))
    tokens = 1.0 if by_letter else _TOKENS[is_english] * _count_pieces(columns)
    special = 1 + len(columns)
    over = {limit: sum(number * tokens + special > limit for number in numbers) for limit in LIMITS}
    last = len(numbers) - 1
    return Lengths(
        "characters" if by_letter else "words", numbers[last // 2], numbers[int(0.95 * last)], numbers[last],
        len(numbers), over,
    )  # fmt: skip


def _count_pieces(columns: Sequence[Sequence[str]]) -> float:
    """Returns the mean number of words and punctuation marks in a word between spaces, of a sample."""
    sample = [text for texts in columns for text in sample_texts(texts)]
    words = sum(len(text.split()) for text in sample)
    return sum(len(_PIECE.findall(text)) for text in sample) / max(1, words)
