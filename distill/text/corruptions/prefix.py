"""Prefix language modelling: the source is the beginning of a text, the target the rest of it.

Raffel et al., arXiv 1910.10683, section 3.3.1 and table 3.
"""

import numpy as np

from distill.text.corruptions.symbols import Symbols, check_text


class Prefix:
    """Splits the text at a place that is drawn uniformly, with at least one token on both sides."""

    restores_whole = False
    least = 2

    def count_targets(self, tokens: int) -> int:
        """Returns the largest number of tokens of a target."""
        return tokens - 1

    def check(self, tokens: int, symbols: Symbols) -> None:
        """Needs nothing of a vocabulary."""

    def __call__(self, ids: np.ndarray, random: np.random.Generator, symbols: Symbols) -> tuple[np.ndarray, np.ndarray]:
        check_text(len(ids), self.least, "prefix")
        end = int(random.integers(1, len(ids)))
        return ids[:end], ids[end:]
