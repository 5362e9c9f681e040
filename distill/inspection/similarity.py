"""How alike the layers of two models are, by linear centred kernel alignment (CKA)."""

from collections.abc import Sequence

import numpy as np

MOST_ROWS = 4000  # States that are compared.


def linear_cka(first: np.ndarray, second: np.ndarray) -> float:
    """Returns the linear CKA of two sets of states of the same items (arXiv 1905.00414, equation 3 and section 3).

    It is 1 for states that a rotation and one factor turn into each other, whatever their widths, and near 0 for
    states that have nothing in common.

    Args:
        first: `[n, P]`.
        second: `[n, Q]`.

    Raises:
        ValueError: for different numbers of items.
    """
    if len(first) != len(second):
        raise ValueError(f"got states of {len(first)} and {len(second)} items, expected those of the same ones")
    x, y = (of.astype(np.float64) - of.mean(axis=0, dtype=np.float64) for of in (first, second))
    size = float(np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y))
    return float(np.linalg.norm(y.T @ x) ** 2) / size if size else 0.0


def compare_layers(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the CKA of every layer of the first model with every layer of the second, `[N, M]`.

    Args:
        first: the states `[n, P]` of each layer, of the embeddings first.
        second: those of the other model, `[n, Q]`, of the same items.
    """
    chosen = np.unique(np.linspace(0, len(first[0]) - 1, MOST_ROWS).astype(int))
    return np.array([[linear_cka(one[chosen], other[chosen]) for other in second] for one in first])
