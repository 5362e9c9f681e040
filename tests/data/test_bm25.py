"""Tests of BM25: values worked out by hand, the order, and texts without words."""

import math

import pytest

from distill.core.errors import UserError
from distill.kinds.reranking import BM25

DOCUMENTS = ["wing flow flow", "wing heat", "plate heat transfer rate"]


def by_hand(frequency: int, length: int, with_word: int) -> float:
    """The share of one word in the score of a document, of three documents with nine words."""
    idf = math.log(1 + (3 - with_word + 0.5) / (with_word + 0.5))
    return idf * frequency / (frequency + 0.9 * (1 - 0.4 + 0.4 * length / 3))


def test_scores_are_those_of_the_formula() -> None:
    model = BM25(DOCUMENTS)
    counts = model._vectorizer.transform(["flow of heat", "the wing"])
    scores = (counts @ model._weights.T).toarray()
    assert scores[0] == pytest.approx([by_hand(2, 3, 1), by_hand(1, 2, 2), by_hand(1, 4, 2)])
    assert scores[1] == pytest.approx([by_hand(1, 3, 2), by_hand(1, 2, 2), 0])


def test_the_best_documents_come_first_and_those_without_a_word_of_the_query_are_not_found() -> None:
    model = BM25([*DOCUMENTS, DOCUMENTS[1]])
    assert model.search(["heat on a wing", "flow", "of the", "unknown"], 3) == [[1, 3, 0], [0], [], []]
    assert model.search(["heat"], 1) == [[1]]  # Of equal scores the earlier one.


def test_many_queries_are_scored_in_parts() -> None:
    model = BM25(DOCUMENTS)
    assert model.search(["flow", "plate"] * 300, 2) == [[0], [2]] * 300


def test_documents_without_words_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"the 2 documents have no words to rank them by with BM25: set task.candidates"
    ):
        BM25(["a", "the"])
