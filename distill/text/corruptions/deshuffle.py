"""Deshuffling: the source has the tokens of a text in another order (arXiv 1910.10683, section 3.3.1 and table 3)."""

import numpy as np

from distill.text.corruptions.symbols import Symbols


class Deshuffle:
    """Shuffles the tokens of each document."""

    restores_whole = True
    least = 1

    def check(self, tokens: int, symbols: Symbols) -> None:
        """Needs nothing of a vocabulary."""

    def __call__(self, ids: np.ndarray, random: np.random.Generator, symbols: Symbols) -> np.ndarray:
        order = np.lexsort((random.random(len(ids)), symbols.documents(ids)))
        shuffled: np.ndarray = ids[order]
        return shuffled
