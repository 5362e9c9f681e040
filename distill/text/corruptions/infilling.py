"""Text infilling: one mask token stands for a span, whose length the model is to find out (BART).

Lewis et al., arXiv 1910.13461, section 2.2: the lengths of spans are Poisson distributed with a mean of three. A span
of no tokens inserts a mask. The share of 30% is that of section 5.
"""

import numpy as np

from distill.text.corruptions.symbols import Symbols, check_mask, count_noise, mark_spans


class Infilling:
    """Replaces spans of a document with one mask each, at places that are drawn uniformly.

    Lengths are drawn until they have the share of the tokens; the last one is shortened. There are at
    most as many spans as hidden tokens.

    Args:
        share: share of the tokens in spans.
        mean_span: mean of the Poisson distribution.
    """

    restores_whole = True
    least = 2

    def __init__(self, share: float = 0.3, mean_span: float = 3.0) -> None:
        self.share, self.mean_span = share, mean_span

    def check(self, tokens: int, symbols: Symbols) -> None:
        """Raises UserError for a vocabulary without a mask token."""
        check_mask(symbols, "infilling")

    def __call__(self, ids: np.ndarray, random: np.random.Generator, symbols: Symbols) -> np.ndarray:
        mask, text = check_mask(symbols, "infilling"), ~symbols.special[ids]
        tokens = int(text.sum())
        if tokens < self.least:  # After another corruption.
            return ids
        noise = count_noise(tokens, self.share)
        lengths = self._draw_lengths(random, noise)
        # Every choice of places among the other tokens and the spans themselves is equally likely.
        places = np.sort(random.permutation(tokens - noise + len(lengths))[: len(lengths)]) - np.arange(len(lengths))
        gaps = places.copy()
        gaps[1:] -= places[:-1]
        inside, first = mark_spans(text, gaps, lengths)
        source = ids.copy()
        source[first] = mask
        left = first | ~inside
        kept: np.ndarray = source[left]
        empty = lengths == 0
        if not empty.any():
            return kept
        before = np.append(text.nonzero()[0], len(ids))[(places + lengths.cumsum())[empty]]
        return np.insert(kept, np.append(0, left.cumsum())[before], mask)

    def _draw_lengths(self, random: np.random.Generator, noise: int) -> np.ndarray:
        """Returns the lengths of spans that have `noise` tokens together."""
        lengths = random.poisson(self.mean_span, size=2 * int(noise / self.mean_span) + 8)
        while lengths.sum() < noise:
            lengths = np.append(lengths, random.poisson(self.mean_span, size=len(lengths)))
        ends = lengths.cumsum()
        last = int(np.searchsorted(ends, noise))
        lengths[last] -= ends[last] - noise
        lengths = lengths[: last + 1]
        # A source is never longer than its text.
        return np.delete(lengths, (lengths == 0).nonzero()[0][: max(0, len(lengths) - noise)])
