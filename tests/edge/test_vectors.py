"""Tests of bundles of vectors, and of the search among vectors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from transformers import PreTrainedTokenizerBase

from distill.core.errors import UserError
from distill.edge import index
from distill.edge.__main__ import main
from distill.edge.bundle import Bundle
from distill.edge.index import find_nearest, similarity
from tests.edge.conftest import write_toy_bundle, write_vector_bundle


@pytest.fixture
def directory(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> Path:
    write_vector_bundle(tmp_path, tokenizer)
    return tmp_path


def test_texts_are_encoded_in_their_order(directory: Path) -> None:
    bundle = Bundle(directory)
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


def test_a_corpus_in_an_array_of_texts_is_encoded_and_tables_are_refused(directory: Path) -> None:
    bundle, texts = Bundle(directory), ["a lovely film", "film"]
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


def test_the_texts_of_a_list_run_in_batches_too(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = Bundle(directory)
    sizes: list[int] = []
    original = bundle._make_inputs

    def make_inputs(batch: Any) -> Any:
        inputs = original(batch)
        sizes.append(len(inputs["input_ids"]))
        return inputs

    monkeypatch.setattr(bundle, "_make_inputs", make_inputs)
    assert bundle.predict([["film", "a film", "a lovely film"], "film"], batch_size=2) == [
        {"vector": [[3.0, 1.0], [4.0, 1.0], [5.0, 1.0]]}, {"vector": [3.0, 1.0]},
    ]  # fmt: skip
    assert sizes == [2, 2]


def test_the_command_writes_vectors(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(directory), "a film", "film", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [{"text": "a film", "vector": [4.0, 1.0]}, {"text": "film", "vector": [3.0, 1.0]}]
    assert main([str(directory), "film", " "]) == 0
    assert capsys.readouterr().out == "3 1\tfilm\n\n"
    assert main([str(directory), '["film", 3]', "--jsonl"]) == 2
    assert "text 1: got ['film', 3], expected a text or a list of texts, and no empty text" in capsys.readouterr().err


def test_the_nearest_texts_are_found(directory: Path) -> None:
    """A cosine grows with the number of tokens that two texts have in common, which is all that a vector counts."""
    bundle, corpus = Bundle(directory), ["a b c d e f", "a", "a b c"]
    [found] = bundle.search(["x y z"], corpus, k=2)
    assert [position for position, _ in found] == [2, 0]
    assert found[0][1] == pytest.approx(1.0)
    assert bundle.search(["x y z"], bundle.encode(corpus), k=2) == [found]
    assert [len(rows) for rows in bundle.search(["x", "y"], corpus)] == [3, 3]
    assert bundle.similarity(["x y z"], corpus)[0, [2, 0]].tolist() == [cosine for _, cosine in found]
    assert bundle.search([], corpus) == []
    assert bundle.search(["x"], []) == [[]]


def test_a_search_in_parts_equals_a_sort_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(
    ("queries", "corpus", "k", "expected"),
    [
        (
            np.ones(3),
            np.ones((2, 3)),
            1,
            r"got queries of shape \[3\] \(float64\), expected vectors \[n, D\] of numbers",
        ),
        (np.ones((1, 3)), np.array([["a", "b", "c"]]), 1, "got corpus of shape"),
        (np.ones((1, 3)), np.ones((2, 4)), 1, r"got vectors 3 and 4 wide \(corpus\), expected vectors of one model"),
        (np.ones((1, 3)), np.full((2, 3), np.nan), 1, "got corpus with numbers that are not finite, expected vectors"),
        (np.ones((1, 3)), np.ones((2, 3)), 0, "got k=0, expected a whole number of at least 1"),
        (np.ones((1, 3)), np.ones((2, 3)), 1.5, "got k=1.5, expected a whole number of at least 1"),
    ],
)
def test_vectors_that_cannot_be_compared_are_named(
    queries: np.ndarray, corpus: np.ndarray, k: int, expected: str
) -> None:
    with pytest.raises(UserError, match=expected):
        find_nearest(queries, corpus, k)


def test_the_command_finds_the_nearest_lines_of_a_corpus(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("a lovely film\n\nfilm\na film\n")
    [expected] = Bundle(directory).search(["film"], ["a lovely film", "film", "a film"], k=2)
    command = [str(directory), "search", "film", "--corpus", str(corpus), "--top-k", "2"]
    assert main(command) == 0
    lines = [f"{cosine:.4f}\t{['a lovely film', 'film', 'a film'][row]}" for row, cosine in expected]
    assert capsys.readouterr().out.splitlines() == lines
    assert lines[0] == "1.0000\tfilm"
    assert main([*command, "a film", "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert [hit["text"] for hit in first["results"]] == ["film", "a film"]
    assert (second["query"], second["results"][0]["position"]) == ("a film", 2)
    assert main([*command, "a film"]) == 0
    assert [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()] == ["film"] * 2 + ["a film"] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search"], "got search without a query or its corpus, expected search TEXT --corpus FILE"),
        (["search", "film"], "got search without a query or its corpus"),
        (["search", "film", "--corpus", "empty.txt"], "empty.txt is empty, expected a text on each line"),
        (["search", "film", "--corpus", "missing.txt"], "missing.txt cannot be read: No such file"),
        (["film", "--corpus", "empty.txt"], "got --corpus without search, expected BUNDLE search TEXT --corpus FILE"),
    ],
)
def test_a_search_that_cannot_be_is_refused(
    arguments: list[str], message: str, directory: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(directory)
    (directory / "empty.txt").write_text("\n")
    assert main([".", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_search_is_a_text_for_a_bundle_without_vectors(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, capsys: pytest.CaptureFixture[str]
) -> None:
    write_toy_bundle(tmp_path, tokenizer)
    assert main([str(tmp_path), "search"]) == 0
    assert capsys.readouterr().out.endswith("\tsearch\n")
    assert main([str(tmp_path), "search", "--corpus", "x"]) == 2
    assert "gives no vectors to search with: leave it out" in capsys.readouterr().err
