"""Masked sequence to sequence pre-training: the target is a fragment of the text, which the source hides (MASS).

Song et al., arXiv 1905.02450, section 3.2: the fragment has half of the tokens, each of which is a mask token in the
source. Unlike there the decoder reads the fragment alone, and not masks in the place of the other tokens before it.
"""

import numpy as np

from distill.text.corruptions.symbols import Symbols, check_mask, check_text, count_noise, mark_spans


class Mass:
    """Hides one fragment, whose start is drawn uniformly.

    Args:
        share: share of the tokens in the fragment.
    """

    restores_whole = False
    least = 2

    def __init__(self, share: float = 0.5) -> None:
        self.share = share

    def count_targets(self, tokens: int) -> int:
        """Returns the number of tokens of a target."""
        return count_noise(tokens, self.share)

    def check(self, tokens: int, symbols: Symbols) -> None:
        """Raises UserError for a vocabulary without a mask token."""
        check_mask(symbols, "mass")

    def __call__(self, ids: np.ndarray, random: np.random.Generator, symbols: Symbols) -> tuple[np.ndarray, np.ndarray]:
        text = ~symbols.special[ids]
        tokens = int(text.sum())
        check_text(tokens, self.least, "mass")
        length = count_noise(tokens, self.share)
        start = random.integers(tokens - length + 1, size=1)
        inside, _ = mark_spans(text, start, np.array([length]))
        return np.where(inside, check_mask(symbols, "mass"), ids).astype(ids.dtype), ids[inside]
