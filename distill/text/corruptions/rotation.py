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
        starts = np.flatnonzero(np.diff(symbols.documents(ids), prepend=-1))
        sizes = np.diff(starts, append=len(ids))
        start, size, shift = (np.repeat(of, sizes) for of in (starts, sizes, random.integers(sizes)))
        rotated: np.ndarray = ids[start + (np.arange(len(ids)) - start + shift) % size]
        return rotated
