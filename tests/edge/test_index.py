"""Tests of bundles of vectors, of the search among vectors, and of indexes in float32, 8 bits and one bit."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas
import pytest

from distill.core.errors import UserError
from distill.edge import Bundle, Index, index
from distill.edge.__main__ import main
from distill.edge.index import PRECISIONS, Precision, find_nearest, similarity, take_dimensions
from tests.edge.conftest import Output, Patch, Write


def clusters(*, rows: int = 400, queries: int = 20, width: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """Returns queries and a corpus in which every query has near vectors."""
    random = np.random.default_rng(0)
    centers = random.normal(size=(queries, width))
    corpus = centers[random.integers(queries, size=rows)] + 0.8 * random.normal(size=(rows, width))
    return centers, corpus


@pytest.fixture
def bundle(write: Write) -> Bundle:
    return Bundle(write("vectors"))


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
    cosines, rows = Index(corpus, precision="int8").search(queries, 10)
    expected = np.take_along_axis(similarity(queries, corpus), rows, axis=1)
    np.testing.assert_allclose(cosines, expected, atol=5e-3)


def test_signs_by_hand() -> None:
    """Of 3 signs, 3, 2 and 1 agree with those of the query."""
    corpus = np.array([[-1.0, 2.0, -3.0], [1.0, 2.0, 3.0], [5.0, -1.0, 0.5]])
    made = Index(corpus, precision="binary")
    cosines, rows = made.search(np.array([[0.1, 0.2, 0.3]]), 3, rescore=0)
    assert rows.tolist() == [[1, 2, 0]]
    np.testing.assert_allclose(cosines, [[1.0, 1 - 2 / 3, 1 - 4 / 3]], atol=1e-6)
    assert made.nbytes == 3 * 8


def test_rescored_signs_find_more_than_signs_alone(monkeypatch: Patch) -> None:
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


def test_damaged_indexes_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is no index: it has no index.json"):
        Index.load(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="is there and no index: name another directory"):
        Index(np.ones((1, 2))).save(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
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


def test_what_cannot_be_indexed_or_searched_is_named() -> None:
    vectors, query = np.ones((2, 3)), np.ones((1, 3))
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: Index(vectors, precision="int4"), "got precision='int4', expected one of float32"),  # type: ignore[arg-type]
        (lambda: Index(np.ones(3)), r"got vectors of shape \[3\] \(float64\), expected vectors \[n, D\]"),
        (lambda: Index(vectors, dimensions=4), "got dimensions=4, expected a whole number from 1 to 3, the wid"),
        (lambda: Index(vectors).search(np.ones((1, 2))), "got queries 2 wide, expected at least the 3 dimensi"),
        (lambda: Index(vectors).search(query, 0), "got k=0, expected a whole number of at least 1"),
        (lambda: Index(vectors).search(query, rescore=-1), "got rescore=-1, expected a whole number of at least 0"),
        (lambda: find_nearest(np.ones(3), vectors, 1), r"got queries of shape \[3\] \(float64\), expected vectors"),
        (lambda: find_nearest(query, np.array([["a", "b", "c"]]), 1), "got corpus of shape"),
        (lambda: find_nearest(query, np.ones((2, 4)), 1), r"got vectors 3 and 4 wide \(corpus\), expected vectors of"),
        (lambda: find_nearest(query, vectors * np.nan, 1), "got corpus with numbers that are not finite, expected vec"),
        (lambda: find_nearest(query, vectors, 1.5), "got k=1.5, expected a whole number of at least 1"),  # type: ignore[arg-type]
    ]
    for call, message in calls:
        with pytest.raises(UserError, match=message):
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
    with pytest.raises(UserError, match="the index is of another model than .*: make it again with Bundle.index"):
        bundle.search(["x"], Index(bundle.encode(corpus), source="another"))
    assert bundle.search(["x y z"], Index(bundle.encode(corpus)), k=2) == bundle.search(["x y z"], corpus, k=2)
    bundle.manifest["files"]["model.onnx"] = "the SHA-256 of other weights"
    with pytest.raises(UserError, match="the index is of another model"):
        bundle.search(["x"], made)


def test_texts_are_encoded_in_their_order(bundle: Bundle) -> None:
    vectors = bundle.encode(["a lovely film", "film", "a film"], batch_size=2)
    assert vectors.tolist() == [[5.0, 1.0], [3.0, 1.0], [4.0, 1.0]]
    assert vectors.dtype == np.float32
    assert bundle.encode(iter(["film", "a film"])).tolist() == [[3.0, 1.0], [4.0, 1.0]]  # type: ignore[arg-type]
    assert bundle.encode([]).shape == (0, 2)
    assert bundle.predict(["film", ["film", "a film"]]) == [
        {"vector": [3.0, 1.0]},
        {"vector": [[3.0, 1.0], [4.0, 1.0]]},
    ]
    for texts, message in (
        ("film", "expected a list of records"),
        (["film", " "], "got ' ', expected a text or a list"),
        ([["film", "a film"], "film"], "got \\['film', 'a film'\\], expected a text$"),
    ):
        with pytest.raises(UserError, match=message):
            bundle.encode(texts)


def test_a_corpus_in_an_array_of_texts_is_encoded_and_tables_are_refused(bundle: Bundle) -> None:
    texts = ["a lovely film", "film"]
    expected = bundle.search(["film"], texts)
    assert expected[0][0] == (1, pytest.approx(1.0))
    for corpus in (np.array(texts), np.array(texts, dtype=object), pandas.Series(texts), iter(texts)):
        assert bundle.search(np.array(["film"]), corpus) == expected
    assert bundle.search(["film"], bundle.encode(texts)) == expected
    with pytest.raises(UserError, match=r"got corpus of shape \[2\] \(int64\), expected vectors \[n, D\] of numbers"):
        bundle.search(["film"], np.array([1, 2]))
    frame = pandas.DataFrame({"text": texts})
    for call in (
        lambda: bundle.encode(frame),
        lambda: bundle.search(["film"], frame),
        lambda: bundle.search(frame, []),
    ):
        with pytest.raises(UserError, match=r"got a table \(DataFrame\), expected a list of records"):
            call()
    with pytest.raises(UserError, match="got None, expected a list of records"):
        bundle.similarity(["film"], None)  # type: ignore[arg-type]


def test_the_nearest_texts_are_found(bundle: Bundle) -> None:
    """A cosine grows with the number of tokens that two texts have in common, which is all that a vector counts."""
    corpus = ["a b c d e f", "a", "a b c"]
    [found] = bundle.search(["x y z"], corpus, k=2)
    assert [position for position, _ in found] == [2, 0]
    assert found[0][1] == pytest.approx(1.0)
    assert bundle.search(["x y z"], bundle.encode(corpus), k=2) == [found]
    assert [len(rows) for rows in bundle.search(["x", "y"], corpus)] == [3, 3]
    assert bundle.similarity(["x y z"], corpus)[0, [2, 0]].tolist() == [cosine for _, cosine in found]
    assert bundle.search([], corpus) == []
    assert bundle.search(["x"], []) == [[]]


def test_a_search_in_parts_equals_a_sort_of_all(monkeypatch: Patch) -> None:
    random = np.random.default_rng(0)
    queries, corpus = random.normal(size=(5, 8)), random.normal(size=(40, 8))
    corpus[3] = 0.0
    cosines = (queries @ corpus.T) / np.linalg.norm(queries, axis=1)[:, None]
    cosines /= np.maximum(np.linalg.norm(corpus, axis=1), 1e-9)
    np.testing.assert_allclose(similarity(queries, corpus), cosines, atol=1e-6)
    expected = np.argsort(-cosines, axis=1, kind="stable")
    for cosines_at_once in (2**24, 5 * 7, 1):
        monkeypatch.setattr(index, "CHUNK_COSINES", cosines_at_once)
        scores, rows = find_nearest(queries, corpus, 6)
        assert rows.tolist() == expected[:, :6].tolist()
        np.testing.assert_allclose(scores, np.take_along_axis(cosines, rows, axis=1), atol=1e-6)
    equal = np.repeat([[1.0, 0.0]], 9, axis=0)
    assert find_nearest(equal[:1], equal, 4)[1].tolist() == [[0, 1, 2, 3]]


def test_the_command_writes_vectors_and_finds_the_nearest_lines(bundle: Bundle, tmp_path: Path, capsys: Output) -> None:
    directory, corpus = str(bundle.directory), tmp_path / "corpus.txt"
    assert main([directory, "a film", "film", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [{"text": "a film", "vector": [4.0, 1.0]}, {"text": "film", "vector": [3.0, 1.0]}]
    assert main([directory, "film", " "]) == 0
    assert capsys.readouterr().out == "3 1\tfilm\n\n"
    corpus.write_text("a lovely film\n\nfilm\na film\n")
    texts = ["a lovely film", "film", "a film"]
    [expected] = bundle.search(["film"], texts, k=2)
    command = [directory, "search", "film", "--corpus", str(corpus), "--top-k", "2"]
    assert main([*command, "a film"]) == 0
    found = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert found[:2] == [["film", f"{cosine:.4f}", texts[row]] for row, cosine in expected]
    assert [line[0] for line in found[2:]] == ["a film"] * 2
    assert main([*command, "--json"]) == 0
    [hits] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (hits["query"], [(hit["text"], hit["position"]) for hit in hits["results"]]) == (
        "film", [("film", 1), ("a film", 2)]
    )  # fmt: skip
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines() == [f"{cosine:.4f}\t{texts[row]}" for row, cosine in expected]


def test_a_search_that_cannot_be_is_refused(write: Write, monkeypatch: Patch, capsys: Output) -> None:
    monkeypatch.chdir(write("vectors").parent)
    Path("empty.txt").write_text("\n")
    write(name="classes")
    assert main(["classes", "search"]) == 0
    assert capsys.readouterr().out.endswith("\tsearch\n")  # A text.
    for arguments, message in (
        (["bundle", '["film", 3]', "--jsonl"], "text 1: got ['film', 3], expected a text or a list of texts, and no"),
        (["bundle", "search"], "got search without a query or its corpus, expected search TEXT --corpus FILE"),
        (["bundle", "search", "film"], "got search without a query or its corpus"),
        (["bundle", "search", "film", "--corpus", "empty.txt"], "empty.txt is empty, expected a text on each line"),
        (["bundle", "search", "film", "--corpus", "missing.txt"], "missing.txt cannot be read: No such file"),
        (["bundle", "film", "--corpus", "empty.txt"], "got --corpus without search, expected BUNDLE search TEXT --co"),
        (["classes", "search", "--corpus", "x"], "gives no vectors to search with: leave it out"),
    ):
        assert main(arguments) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(UserError, match="is of a classification and has no vectors of texts: call predict instead"):
        Bundle("classes").encode(["a film"])
