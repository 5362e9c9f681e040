"""Tests of the candidates of queries: by BM25, with scores by hand, and by vectors of a bundle, which are cached."""

import math
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from distill.core.errors import UserError
from distill.edge import Bundle
from distill.kinds.reranking import BM25, find_candidates
from tests.edge.conftest import write_toy_bundle, write_vector_bundle

QUERIES, DOCUMENTS = ["film", "a dull and moving film"], ["a dull and moving film", " ", "film", "a dull film"]


SHORT = ["wing flow flow", "wing heat", "plate heat transfer rate"]


def by_hand(frequency: int, length: int, with_word: int) -> float:
    """The share of one word in the score of a document, of three documents with nine words."""
    idf = math.log(1 + (3 - with_word + 0.5) / (with_word + 0.5))
    return idf * frequency / (frequency + 0.9 * (1 - 0.4 + 0.4 * length / 3))


def test_scores_are_those_of_the_formula() -> None:
    model = BM25(SHORT)
    counts = model._vectorizer.transform(["flow of heat", "the wing"])
    scores = (counts @ model._weights.T).toarray()
    assert scores[0] == pytest.approx([by_hand(2, 3, 1), by_hand(1, 2, 2), by_hand(1, 4, 2)])
    assert scores[1] == pytest.approx([by_hand(1, 3, 2), by_hand(1, 2, 2), 0])


def test_the_best_documents_come_first_and_those_without_a_word_of_the_query_are_not_found() -> None:
    model = BM25([*SHORT, SHORT[1]])
    assert model.search(["heat on a wing", "flow", "of the", "unknown"], 3) == [[1, 3, 0], [0], [], []]
    assert model.search(["heat"], 1) == [[1]]  # Of equal scores the earlier one.
    assert BM25(SHORT).search(["flow", "plate"] * 300, 2) == [[0], [2]] * 300  # Many queries are scored in parts.


def test_documents_without_words_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"the 2 documents have no words to rank them by with BM25: set task.candidates"
    ):
        BM25(["a", "the"])


def test_documents_that_are_empty_are_no_candidates() -> None:
    assert find_candidates("bm25", ["dull film"], DOCUMENTS, 9, None) == [[3, 0, 2]]
    assert find_candidates("bm25", ["dull film"], DOCUMENTS, 1, None) == [[3]]


def test_a_bundle_finds_the_nearest_vectors_once(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vector of a text is its number of tokens and 1, so that texts of similar lengths are near."""
    (tmp_path / "bundle").mkdir()
    write_vector_bundle(tmp_path / "bundle", tokenizer)
    directory, cache_dir = str(tmp_path / "bundle"), tmp_path / "cache"
    found = find_candidates(directory, QUERIES, DOCUMENTS, 2, cache_dir)
    assert [row[0] for row in found] == [2, 0]
    assert [len(row) for row in found] == [2, 2]
    assert find_candidates(directory, QUERIES, DOCUMENTS, 2, None) == found
    entries = list((cache_dir / "candidates").iterdir())
    monkeypatch.setattr(Bundle, "search", None)  # A second search would fail.
    assert find_candidates(directory, QUERIES, DOCUMENTS, 2, cache_dir) == found
    assert list((cache_dir / "candidates").iterdir()) == entries
    with pytest.raises(TypeError):
        find_candidates(directory, QUERIES, DOCUMENTS, 3, cache_dir)


def test_a_directory_without_vectors_is_refused(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(UserError, match=r"task.candidates=.*: .* is no bundle: .*; expected bm25 or a bundle of"):
        find_candidates(str(tmp_path), QUERIES, DOCUMENTS, 2, None)
    write_toy_bundle(tmp_path, tokenizer)
    with pytest.raises(UserError, match=r"is a bundle of a classification, expected bm25 or a bundle of vectors"):
        find_candidates(str(tmp_path), QUERIES, DOCUMENTS, 2, None)
