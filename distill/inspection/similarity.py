"""How alike the layers of two models are, by linear centred kernel alignment (CKA)."""

from collections.abc import Sequence

import numpy as np

from distill.errors import UserError

MOST_ROWS = 4000  # States that are compared.
FEWEST_ROWS = 4  # That have an unbiased estimate.


def linear_cka(first: np.ndarray, second: np.ndarray) -> float:
    """Returns the linear CKA of two sets of states of the same items, by the unbiased estimate of HSIC.

    It is 1 for states that a rotation and one factor turn into each other, whatever their widths. For states that have
    nothing in common its mean is 0, so that it may be below 0. That of arXiv 1905.00414 is far above 0 unless there are
    many more items than the states have numbers. The estimate is that of arXiv 2010.15327, equation 3.

    Args:
        first: `[n, P]`.
        second: `[n, Q]`.

    Raises:
        ValueError: for different numbers of items, or fewer than 4.
    """
    if len(first) != len(second):
        raise ValueError(f"got states of {len(first)} and {len(second)} items, expected those of the same ones")
    if len(first) < FEWEST_ROWS:
        raise ValueError(f"got states of {len(first)} items, expected at least {FEWEST_ROWS}")
    x, y = (of.astype(np.float64) - of.mean(axis=0, dtype=np.float64) for of in (first, second))
    x, y = (of / (np.sqrt(np.square(of).mean()) or 1.0) for of in (x, y))  # No factor changes it.
    own = _unbiased_hsic(x, x), _unbiased_hsic(y, y)
    return float(_unbiased_hsic(x, y) / np.sqrt(own[0] * own[1])) if min(own) > 0 else 0.0


def _unbiased_hsic(x: np.ndarray, y: np.ndarray) -> float:
    """Returns the unbiased estimate of HSIC (arXiv 2010.15327, equation 3), without the `[n, n]` products of states.

    Of the products `K = x x'` and `L = y y'` those of an item with itself count as 0.
    """
    items = len(x)
    lengths, of_y = np.square(x).sum(axis=1), np.square(y).sum(axis=1)
    rows, rows_of_y = x @ x.sum(axis=0) - lengths, y @ y.sum(axis=0) - of_y  # K 1 and L 1
    trace = np.square(x.T @ y).sum() - lengths @ of_y
    means = rows.sum() * rows_of_y.sum() / ((items - 1) * (items - 2)) - 2 / (items - 2) * (rows @ rows_of_y)
    return float((trace + means) / (items * (items - 3)))


def compared_rows(items: int) -> np.ndarray:
    """Returns the items whose states are compared, evenly spaced ones of many."""
    return np.unique(np.linspace(0, items - 1, MOST_ROWS).astype(int))


def compare_layers(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the CKA of every layer of the first model with every layer of the second, `[N, M]`.

    Args:
        first: the states `[n, P]` of each layer, of the embeddings first.
        second: those of the other model, `[n, Q]`, of the same items.

    Raises:
        UserError: for fewer than 4 items.
    """
    chosen = compared_rows(len(first[0]))
    if len(chosen) < FEWEST_ROWS:
        raise UserError(
            f"layers are compared by the states of at least {FEWEST_ROWS} items, and the split has {len(chosen)}: take "
            "a larger one with inspect.split"
        )
    return np.array([[linear_cka(one[chosen], other[chosen]) for other in second] for one in first])
