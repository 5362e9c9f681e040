"""Shuffling of short runs of tokens, whose right order a model is to restore (StructBERT, arXiv 1908.04577)."""

import numpy as np


def shuffle_runs(free: np.ndarray, *, number: float, size: int, random: np.random.Generator) -> np.ndarray:
    """Returns runs of adjacent tokens, each in a random order: positions `[runs, size]`.

    The sorted positions of a row are the places of its tokens. From StructBERT (Wang et al., arXiv 1908.04577, section
    2.2), which shuffles trigrams of unmasked tokens. Every order is equally likely, so that some runs stay as they are.

    No two runs overlap. A text without `size` free tokens in a row has no run.

    Args:
        free: `[n]` (bool), the tokens that may be moved.
        number: of runs. Its fraction is the probability of one more, so that short texts have this number on average.
        size: number of tokens of a run.
    """
    inside = np.convolve(free, np.ones(size, dtype=int), mode="valid") == size if len(free) >= size else free[:0]
    wanted = int(number + random.random())
    starts: list[int] = []
    for start in random.permutation(np.flatnonzero(inside)).tolist():
        if len(starts) == wanted:
            break
        if all(abs(start - other) >= size for other in starts):
            starts.append(start)
    runs = np.array(starts, dtype=int).reshape(-1, 1) + np.arange(size)
    return random.permuted(runs, axis=1)
