"""Exact search among vectors, and an index of the vectors of a corpus.

An index of the vectors of a corpus in float32, in 8 bits, or in one bit for each dimension, for an exact search.
Vectors of one bit are compared by the number of equal bits, and the best ones again by the cosine of the query in
float32 with the document in 8 bits (Yamada et al., arXiv 2106.00882, section 3.2, with the sign of the vector itself in
place of a learned code, and with 8 bits in place of one in the second step).
"""

import importlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distill.core.errors import UserError, first_line, shorten
from distill.core.files import atomic_directory, write_json
from distill.edge.values import check_count

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
    parts = (queries @ normalize(rows).T for rows in _parts(corpus, len(queries)))
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


Precision = Literal["float32", "int8", "binary"]
PRECISIONS: tuple[Precision, ...] = ("float32", "int8", "binary")
QUERY, DOCUMENT = ROLES = ("query", "document")  # Of the texts of a search, and the names of their prompts.
RESCORED = 4  # Documents that are compared again for each one that a search among bits is to find.
NAME = "index.json"
FORMAT = 1
_LARGEST = 127  # Of 8 bits; -128 is not used.


class VectorForm(NamedTuple):
    """The number of first dimensions of vectors, their precision, and `rescore` as in `Index.search`.

    `documents` says whose vectors are searched: those of the model of the queries (`own`), or its `teacher`'s.
    """

    dimensions: int
    precision: Precision = "float32"
    rescore: int = 0
    documents: Literal["own", "teacher"] = "own"


class Index:
    """The vectors of a corpus, in which the nearest ones of a query are found.

    >>> from distill.edge import Index
    >>> index = Index([[1.0, 0.0], [0.6, 0.8]], precision="binary")
    >>> index.search([[0.0, 1.0]], k=1)[1]
    array([[1]])

    Args:
        vectors: `[texts, D]`, as `Bundle.encode` returns them.
        precision: `float32`; `int8` for numbers of 8 bits, with a scale for each dimension; or `binary` for the signs,
            with vectors in `int8` beside them to compare the best documents again.
        dimensions: number of first dimensions; None for all.
        source: identifies the bundle of the vectors, so that no other one searches in them; None for any.

    Attributes:
        dimensions: of the vectors that are compared.

    Raises:
        UserError: for another precision, vectors that are no array of finite numbers, and dimensions they have not.
    """

    def __init__(
        self,
        vectors: Vectors,
        *,
        precision: Precision = "float32",
        dimensions: int | None = None,
        source: str | None = None,
    ) -> None:
        self.check_precision(precision)
        corpus = check_vectors(vectors, "vectors")
        self.dimensions = check_dimensions(dimensions, corpus.shape[-1])
        self.precision, self.source = precision, source
        rows = normalize(corpus[:, : self.dimensions])
        self._scale = np.ones(self.dimensions, dtype=np.float32)
        self._bits: NDArray[np.uint64] | None = _pack(rows) if precision == "binary" else None
        self._rows: NDArray[Any] = rows
        if precision != "float32":
            largest = np.abs(rows).max(axis=0, initial=0)
            self._scale = np.where(largest > 0, largest / _LARGEST, 1).astype(np.float32)
            self._rows = np.rint(rows / self._scale).astype(np.int8)

    @staticmethod
    def check_precision(precision: str) -> None:
        """Raises UserError for a precision that an index cannot have."""
        if precision not in PRECISIONS:
            raise UserError(f"got precision={shorten(precision)}, expected one of {', '.join(PRECISIONS)}")

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"Index({len(self):,} vectors of {self.dimensions} dimensions, {self.precision}, {self.nbytes:,} bytes)"

    @property
    def nbytes(self) -> int:
        """Size of what a search goes through; of a binary index the vectors in 8 bits are as large as 8 times that."""
        return int(self._rows.nbytes if self._bits is None else self._bits.nbytes)

    def search(
        self, queries: Vectors, k: int = 10, *, rescore: int = RESCORED
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Returns the cosines and the rows of the `k` vectors nearest to each query, `[queries, k]` each.

        The nearest come first, and of equal cosines the lower rows. A corpus of fewer vectors gives all of them.

        Args:
            queries: `[queries, D]`, of which the first `dimensions` count.
            k: number of rows for each query.
            rescore: in a binary index, `rescore * k` documents are compared again. With 0 none is, and the cosines are
                those of the signs.

        Raises:
            UserError: for queries that are no array of finite numbers or are narrower, and a `k` or a `rescore` that is
                no such number.
        """
        vectors = check_vectors(queries, "queries")
        if vectors.shape[-1] < self.dimensions:
            raise UserError(
                f"got queries {vectors.shape[-1]} wide, expected at least the {self.dimensions} dimensions of the index"
            )
        check_count("rescore", rescore, least=0)
        check_count("k", k)
        vectors = normalize(vectors[:, : self.dimensions])
        if self._bits is None:
            scaled = np.asarray(vectors * self._scale, dtype=np.float32)
            parts = (scaled @ rows.astype(np.float32, copy=False).T for rows in _parts(self._rows, len(vectors)))
            return select_best(parts, len(vectors), k)
        found = select_best(self._compare_bits(vectors, self._bits), len(vectors), k * max(1, rescore))
        return found if rescore == 0 else self._rescore(vectors, found[1], k)

    def _compare_bits(self, queries: NDArray[np.float32], corpus: NDArray[np.uint64]) -> Iterator[NDArray[np.float32]]:
        """Yields the cosines of the signs, `1 - 2 h / D` with the Hamming distance `h`, of parts of the corpus."""
        signs = _pack(queries)
        for bits in _parts(corpus, len(queries)):
            distances = np.zeros((len(signs), len(bits)), dtype=np.int32)
            for word in range(bits.shape[1]):
                distances += np.bitwise_count(signs[:, word, None] ^ bits[None, :, word])
            yield (1 - 2 * distances / self.dimensions).astype(np.float32)

    def _rescore(
        self, queries: NDArray[np.float32], candidates: NDArray[np.int64], k: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Returns the `k` best candidates `[queries, n]` by the cosines of the queries and the vectors in 8 bits."""
        candidates = np.sort(candidates, axis=1)  # Of equal cosines the lower rows come first.
        cosines = np.empty(candidates.shape, dtype=np.float32)
        for row, (query, own) in enumerate(zip(queries * self._scale, candidates, strict=True)):
            cosines[row] = self._rows[own].astype(np.float32) @ query
        order = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(cosines, order, axis=1), np.take_along_axis(candidates, order, axis=1)

    def save(self, directory: str | Path) -> None:
        """Writes the index to a directory, and replaces an index that is there.

        Args:
            directory: of the index, which is created.

        Raises:
            UserError: if the directory holds something else.
        """
        target = Path(directory)
        if target.exists() and not (target / NAME).is_file():
            raise UserError(f"{target} is there and no index: name another directory")
        with atomic_directory(target) as draft:
            for name, array in self._arrays().items():
                np.save(draft / name, array)
            about = {"precision": self.precision, "dimensions": self.dimensions, "rows": len(self)}
            write_json(draft / NAME, {"format": FORMAT, **about, "source": self.source})

    @classmethod
    def load(cls, directory: str | Path) -> "Index":
        """Returns the index of a directory. The vectors in 8 bits of a binary index stay on the disk until needed.

        Args:
            directory: to which `save` wrote an index.

        Raises:
            UserError: if the directory has no index, or a damaged one.
        """
        path = Path(directory)
        if not (path / NAME).is_file():
            raise UserError(f"{path} is no index: it has no {NAME}")
        try:
            about = json.loads((path / NAME).read_text(encoding="utf-8"))
            index = cls(np.empty((0, int(about["dimensions"])), dtype=np.float32), precision=about["precision"])
            index.source = about["source"]
            rows, number = index._arrays(), int(about["rows"])
            for name, empty in rows.items():
                on_disk = index._bits is not None and name == "rows.npy"
                rows[name] = np.load(path / name, mmap_mode="r" if on_disk else None, allow_pickle=False)
                length = empty.shape[0] if name == "scale.npy" else number
                if rows[name].dtype != empty.dtype or rows[name].shape != (length, *empty.shape[1:]):
                    raise ValueError(f"{name} has the shape {list(rows[name].shape)} ({rows[name].dtype})")
        except (OSError, ValueError, KeyError, TypeError, UserError) as error:
            raise UserError(f"{path} is a damaged index: {first_line(error)}") from error
        index._rows, index._scale, index._bits = rows["rows.npy"], rows["scale.npy"], rows.get("bits.npy")
        return index

    @classmethod
    def read(cls, path: str | Path) -> "Index":
        """Returns an index of a directory of `save`, or of the vectors in a file that another program wrote.

        Args:
            path: the directory, or `.npy`, `.parquet` with the column `vector`, or `.faiss` where faiss is installed.

        Raises:
            UserError: for a file of another type, one that is damaged or has no vectors, and a library that is missing.
        """
        file = Path(path)
        if file.is_dir():
            return cls.load(file)
        if (reader := READERS.get(file.suffix)) is None or not file.is_file():
            raise UserError(f"{file} is no index: expected a directory of Index.save, or {', '.join(READERS)}")
        try:
            vectors = reader(file)
        except ImportError as error:
            raise UserError(f"{file} needs {error.name}, which is not installed") from error
        except Exception as error:  # Of any library.
            raise UserError(f"{file} cannot be read: {first_line(error)}") from error
        try:
            return cls(np.asarray(vectors, dtype=np.float32))
        except (UserError, ValueError) as error:
            raise UserError(f"{file}: {first_line(error)}") from error

    def _arrays(self) -> dict[str, NDArray[Any]]:
        """Returns the arrays of the index by the name of their file."""
        bits = {} if self._bits is None else {"bits.npy": self._bits}
        return {"rows.npy": self._rows, "scale.npy": self._scale, **bits}


def _read_parquet(file: Path) -> Vectors:
    import pyarrow.parquet as pq

    return np.array(pq.read_table(file, columns=["vector"])["vector"].to_pylist(), dtype=np.float32)


def _read_faiss(file: Path) -> Vectors:
    index = importlib.import_module("faiss").read_index(str(file))
    vectors: Vectors = index.reconstruct_n(0, index.ntotal)
    return vectors


# Of vectors `[n, D]` by the end of the name of a file.
READERS: dict[str, Callable[[Path], Vectors]] = {
    ".npy": lambda file: np.load(file, allow_pickle=False), ".parquet": _read_parquet, ".faiss": _read_faiss,
}  # fmt: skip


def check_dimensions(dimensions: int | None, width: int) -> int:
    """Returns the number of first dimensions of vectors so wide; all of them for None.

    Raises:
        UserError: for a number that vectors of this width have not.
    """
    if dimensions is None:
        return width
    check_count("dimensions", dimensions, most=width, meaning=", the width of the vectors")
    return int(dimensions)


def take_dimensions(vectors: NDArray[np.float32], dimensions: int) -> NDArray[np.float32]:
    """Returns the first dimensions `[n, dimensions]` of vectors `[n, D]`, scaled to the length of the whole vector."""
    lengths = [np.linalg.norm(of, axis=-1, keepdims=True) for of in (vectors, vectors[:, :dimensions])]
    return np.asarray(vectors[:, :dimensions] * (lengths[0] / np.maximum(lengths[1], 1e-12)), dtype=np.float32)


def _pack(vectors: NDArray[np.float32]) -> NDArray[np.uint64]:
    """Returns a bit for each number above 0, in words of 64 bits, `[n, D / 64]`, filled up with zeros."""
    packed = np.packbits(vectors > 0, axis=-1)
    packed = np.pad(packed, ((0, 0), (0, -packed.shape[1] % 8)))
    return np.ascontiguousarray(packed).view(np.uint64)


def _parts(rows: NDArray[Any], queries: int) -> Iterator[NDArray[Any]]:
    """Yields parts of the rows whose cosines with the queries fit into memory at once."""
    size = max(1, CHUNK_COSINES // max(1, queries))
    return (rows[first : first + size] for first in range(0, len(rows), size))
