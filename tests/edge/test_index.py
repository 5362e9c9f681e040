"""Tests of indexes of vectors in float32, 8 bits and one bit."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from distill.core.errors import UserError
from distill.edge import Bundle, Index, index
from distill.edge.index import PRECISIONS, Precision, find_nearest, take_dimensions
from tests.edge.conftest import write_vector_bundle


def clusters(*, rows: int = 400, queries: int = 20, width: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """Returns queries and a corpus in which every query has near vectors."""
    random = np.random.default_rng(0)
    centers = random.normal(size=(queries, width))
    corpus = centers[random.integers(queries, size=rows)] + 0.8 * random.normal(size=(rows, width))
    return centers, corpus


@pytest.fixture
def bundle(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> Bundle:
    (tmp_path / "bundle").mkdir()
    write_vector_bundle(tmp_path / "bundle", tokenizer)
    return Bundle(tmp_path / "bundle")


def test_an_index_in_float32_is_the_exact_search() -> None:
    queries, corpus = clusters()
    expected = find_nearest(queries[:, :30], corpus[:, :30], 7)
    for made in (Index(corpus[:, :30]), Index(corpus, dimensions=30)):
        cosines, rows = made.search(queries, 7)
        assert rows.tolist() == expected[1].tolist()
        np.testing.assert_allclose(cosines, expected[0], atol=1e-6)


def test_8_bits_have_nearly_the_cosines_of_float32() -> None:
    queries, corpus = clusters()
    corpus[:, 5] = 0.0  # A dimension without a range.
    every, numbers = find_nearest(queries, corpus, 400)
    exact = dict(zip(numbers[0].tolist(), every[0].tolist(), strict=True))
    cosines, rows = Index(corpus, precision="int8").search(queries, 10)
    np.testing.assert_allclose(cosines[0], [exact[row] for row in rows[0].tolist()], atol=5e-3)


def test_signs_by_hand() -> None:
    """Of 3 signs, 3, 2 and 1 agree with those of the query."""
    corpus = np.array([[-1.0, 2.0, -3.0], [1.0, 2.0, 3.0], [5.0, -1.0, 0.5]])
    made = Index(corpus, precision="binary")
    cosines, rows = made.search(np.array([[0.1, 0.2, 0.3]]), 3, rescore=0)
    assert rows.tolist() == [[1, 2, 0]]
    np.testing.assert_allclose(cosines, [[1.0, 1 - 2 / 3, 1 - 4 / 3]], atol=1e-6)
    assert made.nbytes == 3 * 8


def test_rescored_signs_find_more_than_signs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, corpus = clusters()
    best = find_nearest(queries, corpus, 10)[1]
    made = Index(corpus, precision="binary")

    def share(rescore: int) -> float:
        rows = made.search(queries, 10, rescore=rescore)[1]
        return float(
            np.mean([len(set(own) & set(of)) / 10 for own, of in zip(rows.tolist(), best.tolist(), strict=True)])
        )

    assert share(0) < share(2) < share(4)
    assert share(4) > 0.9
    whole = made.search(queries, 10, rescore=40)[1]  # Every document is compared again.
    assert whole.tolist() == Index(corpus, precision="int8").search(queries, 10)[1].tolist()
    expected = made.search(queries, 5)
    monkeypatch.setattr(index, "CHUNK_COSINES", 3 * len(queries))
    np.testing.assert_array_equal(made.search(queries, 5)[1], expected[1])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_equal_vectors_come_in_their_order_and_zeros_last(precision: Precision) -> None:
    corpus = np.repeat([[1.0, -1.0]], 4, axis=0)
    corpus[1] = 0.0
    made = Index(corpus, precision=precision)
    assert made.search(np.array([[1.0, -1.0]]), 9)[1].tolist() == [[0, 2, 3, 1]]
    assert made.search(np.empty((0, 2)), 9)[1].shape == (0, 4)
    assert Index(np.empty((0, 2)), precision=precision).search(corpus[:1], 2)[1].shape == (1, 0)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_index_is_saved_and_read_again(precision: Precision, tmp_path: Path) -> None:
    queries, corpus = clusters(rows=50)
    made = Index(corpus, precision=precision, dimensions=70, source="a")
    for _ in range(2):  # The second one replaces the first.
        made.save(tmp_path / "index")
    read = Index.load(tmp_path / "index")
    assert (read.precision, read.dimensions, read.source, len(read)) == (precision, 70, "a", 50)
    assert repr(read) == repr(made)
    for first, second in zip(read.search(queries), made.search(queries), strict=True):
        np.testing.assert_array_equal(first, second)


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="is there and no index: name another directory"):
        Index(np.ones((1, 2))).save(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_damaged_indexes_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is no index: it has no index.json"):
        Index.load(tmp_path)
    directory = tmp_path / "index"
    Index(np.ones((3, 2)), precision="binary").save(directory)
    np.save(directory / "bits.npy", np.zeros((2, 1), dtype=np.uint64))
    with pytest.raises(UserError, match=r"is a damaged index: bits.npy has the shape \[2, 1\] \(uint64\)"):
        Index.load(directory)
    (directory / "bits.npy").write_bytes(b"nothing")
    with pytest.raises(UserError, match="is a damaged index: "):
        Index.load(directory)
    about = json.loads((directory / "index.json").read_text())
    (directory / "index.json").write_text(json.dumps(about | {"precision": "int4"}))
    with pytest.raises(UserError, match="is a damaged index: got precision='int4', expected one of float32, int8, bin"):
        Index.load(directory)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: Index(np.ones((2, 3)), precision="int4"), "got precision='int4', expected one of float32, int8, bin"),
        (lambda: Index(np.ones(3)), r"got vectors of shape \[3\] \(float64\), expected vectors \[n, D\]"),
        (
            lambda: Index(np.ones((2, 3)), dimensions=4),
            "got dimensions=4, expected a whole number from 1 to 3, the wid",
        ),
        (
            lambda: Index(np.ones((2, 3)), dimensions=0),
            "got dimensions=0, expected a whole number from 1 to 3, the wid",
        ),
        (lambda: Index(np.ones((2, 3))).search(np.ones((1, 2))), "got queries 2 wide, expected at least the 3 dimensi"),
        (lambda: Index(np.ones((2, 3))).search(np.ones((1, 3)), 0), "got k=0, expected a whole number of at least 1"),
        (
            lambda: Index(np.ones((2, 3))).search(np.ones((1, 3)), rescore=-1),
            "got rescore=-1, expected a whole number of at least 0",
        ),
    ],
)
def test_what_cannot_be_indexed_or_searched_is_named(call: Any, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        call()


def test_prefixes_have_the_length_of_the_whole_vector() -> None:
    vectors = np.array([[3.0, 4.0, 12.0], [0.0, 0.0, 1.0]], dtype=np.float32)
    np.testing.assert_allclose(take_dimensions(vectors, 2), [[7.8, 10.4], [0.0, 0.0]], rtol=1e-6)


def test_a_bundle_encodes_fewer_dimensions(bundle: Bundle) -> None:
    whole, prefix = bundle.encode(["a film"]), bundle.encode(["a film"], dimensions=1)
    assert whole.tolist() == [[4.0, 1.0]]
    np.testing.assert_allclose(prefix, [[17**0.5]], rtol=1e-6)
    for wrong in (0, 3, 1.5, True):
        with pytest.raises(UserError, match=f"got dimensions={wrong}, expected a whole number from 1 to 2, the width"):
            bundle.encode(["a film"], dimensions=wrong)  # type: ignore[arg-type]
    assert bundle.dimensions == []


def test_a_bundle_searches_in_an_index_of_its_own(bundle: Bundle, tmp_path: Path) -> None:
    corpus = ["a b c d e f", "a", "a b c"]
    made = bundle.index(corpus)
    assert bundle.search(["x y z"], made, k=2) == bundle.search(["x y z"], corpus, k=2)
    made.save(tmp_path / "index")
    assert bundle.search(["x y z"], Index.load(tmp_path / "index"), k=1)[0][0][0] == 2
    for precision in ("int8", "binary"):
        narrow = bundle.index(corpus, precision=precision, dimensions=1)
        assert len(bundle.search(["x y z"], narrow, k=2)[0]) == 2
    for options, message in (
        ({"precision": "int4"}, "got precision='int4'"),
        ({"dimensions": 3}, "got dimensions=3, exp"),
    ):
        with pytest.raises(UserError, match=message):
            bundle.index(iter(()), **options)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="the index is of another bundle than .*: make it again with Bundle.index"):
        bundle.search(["x"], Index(bundle.encode(corpus), source="another"))
    assert bundle.search(["x y z"], Index(bundle.encode(corpus)), k=2) == bundle.search(["x y z"], corpus, k=2)
    bundle.manifest["files"]["model.onnx"] = "the SHA-256 of other weights"
    with pytest.raises(UserError, match="the index is of another bundle"):
        bundle.search(["x"], made)
