"""Tests of the candidates of queries: by BM25 and by the vectors of a bundle, which are cached."""

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from distill.core.errors import UserError
from distill.edge import Bundle
from distill.kinds.reranking import find_candidates
from tests.edge.conftest import write_toy_bundle, write_vector_bundle

QUERIES, DOCUMENTS = ["film", "a dull and moving film"], ["a dull and moving film", " ", "film", "a dull film"]


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
