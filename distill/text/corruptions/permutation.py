"""Sentence permutation: the source has the sentences of a document in another order (arXiv 1910.13461, section 2.2)."""

import numpy as np

from distill.text.corruptions.symbols import Symbols


class Permutation:
    """Shuffles the sentences of each document, which end with a full stop, a question or an exclamation mark."""

    restores_whole = True
    least = 1

    def check(self, tokens: int, symbols: Symbols) -> None:
        """Needs nothing of a vocabulary."""

    def __call__(self, ids: np.ndarray, random: np.random.Generator, symbols: Symbols) -> np.ndarray:
        ends = symbols.ends[ids]
        sentence = np.cumsum(ends) - ends
        keys = random.random(int(sentence[-1]) + 1)
        # The same sentence has the same key, and its tokens keep their order, because the sort is stable.
        order = np.lexsort((keys[sentence], symbols.documents(ids)))
        shuffled: np.ndarray = ids[order]
        return shuffled
