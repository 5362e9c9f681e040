"""Exact search among vectors: the cosines of all pairs, and the nearest vectors of each query."""

from collections.abc import Iterable
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from distill.errors import UserError

Vectors = NDArray[np.floating]
CHUNK_COSINES = 2**24  # That are in memory at once, 64 MiB in float32.


def similarity(first: Vectors, second: Vectors) -> NDArray[np.float32]:
    """Returns the cosines `[n, m]` of vectors `[n, D]` and `[m, D]`; those of a vector of zeros are 0.

    Raises:
        UserError: for arrays of another shape, vectors of different widths, and numbers that are not finite.
    """
    return normalize(check_vectors(first, "first")) @ normalize(check_vectors(second, "second", np.shape(first)[-1])).T


def find_nearest(queries: Vectors, corpus: Vectors, k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Returns the cosines and the rows of the `k` vectors of the corpus nearest to each query, `[queries, k]` each.

    The nearest come first, and of equal cosines the lower rows. A corpus of fewer vectors gives all of them. The search
    is exact, and takes the corpus in parts, so that memory does not grow with it.

    Args:
        queries: `[queries, D]`.
        corpus: `[rows, D]`.

    Raises:
        UserError: for arrays of another shape, vectors of different widths, numbers that are not finite, and a `k`
            below 1.
    """
    queries = normalize(check_vectors(queries, "queries"))
    corpus = check_vectors(corpus, "corpus", queries.shape[-1])
    check_count("k", k)
    size = max(1, CHUNK_COSINES // max(1, len(queries)))
    parts = (queries @ normalize(corpus[first : first + size]).T for first in range(0, len(corpus), size))
    return select_best(parts, len(queries), k)


def select_best(
    parts: Iterable[NDArray[np.float32]], queries: int, k: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Returns the `k` largest scores of each query and their rows, `[queries, k]` each; of equal ones the lower rows.

    Args:
        parts: the scores `[queries, n]` of one part of the rows after the other.
    """
    scores = np.empty((queries, 0), dtype=np.float32)
    rows = np.empty((queries, 0), dtype=np.int64)
    first = 0
    for part in parts:
        numbers = np.broadcast_to(np.arange(first, first + part.shape[1]), part.shape)
        scores, rows = np.hstack([scores, part]), np.hstack([rows, numbers])
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]  # Earlier rows stay before later ones.
        scores, rows = np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)
        first += part.shape[1]
    return scores, rows


def match_pairs(first: Vectors, second: Vectors, groups: NDArray[np.generic]) -> NDArray[np.int64]:
    """Returns the row that is nearest to each row among those of the other side in its group, `[2, N]`.

    Args:
        first, second: `[N, D]`, the two sides of each pair.
        groups: `[N]`, such as the language of each pair.
    """
    nearest = np.empty((2, len(groups)), dtype=np.int64)
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        for side, (queries, corpus) in enumerate(((first, second), (second, first))):
            _, found = find_nearest(queries[rows], corpus[rows], 1)
            nearest[side, rows] = rows[found[:, 0]]
    return nearest


def check_count(name: str, value: object, *, least: int = 1, most: int | None = None, meaning: str = "") -> None:
    """Raises UserError unless the value of an option is a whole number from `least` to `most`.

    Args:
        meaning: words about `most` for the message.
    """
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole or not least <= int(value) <= (most or int(value)):  # type: ignore[call-overload]
        expected = f"from {least} to {most}{meaning}" if most else f"of at least {least}"
        raise UserError(f"got {name}={value}, expected a whole number {expected}")


def check_vectors(vectors: Vectors, name: str, width: int | None = None) -> NDArray[np.float32]:
    """Returns vectors `[n, D]` in float32.

    Raises:
        UserError: for arrays of another shape, numbers that are not finite, and vectors of another width.
    """
    array = np.asarray(vectors)
    if array.ndim != 2 or not np.issubdtype(array.dtype, np.floating):
        raise UserError(f"got {name} of shape {list(array.shape)} ({array.dtype}), expected vectors [n, D] of numbers")
    if not np.isfinite(array).all():
        raise UserError(f"got {name} with numbers that are not finite, expected vectors as Bundle.encode returns them")
    if width is not None and array.shape[-1] != width:
        raise UserError(f"got vectors {width} and {array.shape[-1]} wide ({name}), expected vectors of one model")
    return array.astype(np.float32, copy=False)


def normalize(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns vectors of length 1; those of zeros stay."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1), dtype=np.float32)
