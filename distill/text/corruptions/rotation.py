"""Document rotation: the source begins at a token of the document, behind whose end its beginning follows.

Lewis et al., arXiv 1910.13461, section 2.2.
"""

import numpy as np

from distill.text.corruptions.symbols import Symbols


class Rotation:
    """Rotates each document of a sequence to a token that is drawn uniformly."""

    restores_whole = True
    least = 1

    def check(self, tokens: int, symbols: Symbols) -> None:
        """Needs nothing of a vocabulary."""

    def __call__(self, ids: np.ndarray, random: np.random.Generator, symbols: Symbols) -> np.ndarray:
        documents = symbols.documents(ids)
        edges = np.concatenate(([0], (documents[1:] != documents[:-1]).nonzero()[0] + 1, [len(ids)]))
        sizes = edges[1:] - edges[:-1]
        start, size, shift = (of.repeat(sizes) for of in (edges[:-1], sizes, random.integers(sizes)))
        rotated: np.ndarray = ids[start + (np.arange(len(ids)) - start + shift) % size]
        return rotated
