"""Mask-Predict: the masks of a text are predicted in rounds, each of which masks the least certain tokens again."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from distill.edge.masks import MaskedTokens

Floats = NDArray[np.floating]


def refine_masks(
    rows: Sequence[MaskedTokens],
    logits: Sequence[Floats],
    predict: Callable[[Sequence[MaskedTokens | None]], Sequence[Floats]],
    *,
    rounds: int,
    mask_id: int,
    tokens: int,
) -> list[Floats]:
    """Returns the logits `[N, V]` of the N masks of each row, each from the last round that predicted it.

    Round t of T (from 0) masks the `N * (T - t) // T` tokens of the lowest probability again and predicts them from all
    others, which keep their token and its probability (Ghazvininejad et al., arXiv 1904.09324, section 3.2). Of equal
    probabilities the earlier token is masked.

    Args:
        rows: with all masks.
        logits: `[N, V]` of each row, of round 0, which predicted all masks at once.
        predict: returns the logits `[n, V]` at the positions of each row; a row that is finished is None and has any.
        rounds: T, at least 1.
        mask_id: of the token that stands for a mask.
        tokens: size of the vocabulary. Logits beyond it belong to no token.
    """
    latest = [of.copy() for of in logits]
    certain = [best_log_probability(of[:, :tokens]) for of in latest]
    for number in range(1, rounds):
        counts = [len(row.positions) * (rounds - number) // rounds for row in rows]
        chosen = [np.sort(np.argsort(of, kind="stable")[:count]) for of, count in zip(certain, counts, strict=True)]
        masked = [
            _mask_again(row, of[:, :tokens].argmax(axis=-1), which, mask_id) if len(which) else None
            for row, of, which in zip(rows, latest, chosen, strict=True)
        ]
        if not any(counts):
            break
        for row, (which, new) in enumerate(zip(chosen, predict(masked), strict=True)):
            if len(which):
                latest[row][which] = new
                certain[row][which] = best_log_probability(new[:, :tokens])
    return latest


def best_log_probability(logits: Floats) -> Floats:
    """Returns the log-probability `[N]` (float64) of the most probable token of each row `[N, V]`."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(-np.log(shifted.sum(axis=-1, dtype=np.float64)))


def _mask_again(row: MaskedTokens, best: NDArray[np.integer], which: NDArray[np.integer], mask_id: int) -> MaskedTokens:
    """Returns the row with its predicted tokens, and masks at those of them that are predicted anew.

    Args:
        best: the predicted tokens, `[N]`.
        which: those that are masked, `[n]`, in ascending order.
    """
    ids, positions = np.array(row.ids), np.array(row.positions)
    ids[positions] = best
    ids[positions[which]] = mask_id
    return replace(row, ids=ids.tolist(), positions=positions[which].tolist(), spans=())
