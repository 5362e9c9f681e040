"""Token deletion: the source lacks tokens, and the model is to find out where (arXiv 1910.13461, section 2.2)."""

import numpy as np

from distill.text.corruptions.symbols import Symbols, count_noise


class Deletion:
    """Deletes tokens that are drawn uniformly.

    Args:
        share: share of the tokens that is deleted, which the paper does not name.
    """

    restores_whole = True
    least = 2

    def __init__(self, share: float = 0.15) -> None:
        self.share = share

    def check(self, tokens: int, symbols: Symbols) -> None:
        """Needs nothing of a vocabulary."""

    def __call__(self, ids: np.ndarray, random: np.random.Generator, symbols: Symbols) -> np.ndarray:
        places = np.flatnonzero(~symbols.special[ids])
        if len(places) < self.least:  # After another corruption.
            return ids
        return np.delete(ids, random.permutation(places)[: count_noise(len(places), self.share)])
