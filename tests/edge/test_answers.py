"""Tests of the most probable answers to a question, of a bundle whose logits can be worked out by hand."""

import numpy as np
import pytest

from distill.core.errors import UserError
from distill.edge.answering import find_candidates
from distill.edge.bundle import Bundle
from tests.edge.conftest import Write

RECORD = {"question": "film", "context": " a dull film and a moving film"}


def write_bundle(write: Write, threshold: float | None) -> Bundle:
    decoding = {"n_best": 6, "max_answer_length": 2, "null_threshold": threshold}
    return Bundle(
        write("tags", decoder="spans", labels=["start", "end"], pair=True, doc_stride=0, decoding=decoding)
    )  # fmt: skip


@pytest.mark.parametrize("threshold", [None, 0.0, -20.0])
def test_a_question_has_its_most_probable_answers(write: Write, threshold: float | None) -> None:
    bundle = write_bundle(write, threshold)
    [prediction, few, plain] = bundle.predict([{**RECORD, "top_k": 6}, {**RECORD, "top_k": 2}, RECORD])
    answers = prediction.pop("answers")
    assert few.pop("answers") == answers[:2]
    assert prediction == few == plain
    first = answers[0]
    assert first == {**plain, "score": pytest.approx(plain["score"])}
    assert (first["answer"] is None) == (threshold == -20)
    scores = [each["score"] for each in answers]
    assert scores == sorted(scores, reverse=True)
    for each in answers:
        if each["answer"] is not None:
            assert RECORD["context"][each["start"] : each["end"]] == each["answer"] == each["answer"].strip()
    if threshold is None:  # All six spans are there, and no answer is not among them.
        assert sum(scores) == pytest.approx(1)
        assert len({(each["start"], each["end"]) for each in answers}) == 6


def test_probabilities_are_shared_between_spans_and_no_answer() -> None:
    """The token 0 stands for no answer. Starts and ends have the logits 0 to 3, in two windows of one question."""
    logits = np.array([[0.0, 1, 2], [0, 2, 3], [1, 0, 0], [1, 0, 0]])
    characters = np.array([[-1, 0, 5], [-1, 4, 9], [-1, 10, 15], [-1, 14, 19]])
    found = find_candidates(logits, characters, np.array([7, 7]), n_best=20, max_answer_length=2)
    assert list(zip(found.start, found.end, found.score, strict=True)) == [
        (5, 9, 5.0), (0, 9, 4.0), (0, 4, 3.0), (10, 14, 0.0), (10, 19, 0.0), (15, 19, 0.0),
    ]  # fmt: skip
    exponentials = np.exp(found.score)
    np.testing.assert_allclose(found.probabilities(None), exponentials / exponentials.sum())
    # No answer scores 0, the smaller one of the windows, less the threshold.
    np.testing.assert_allclose(found.probabilities(-1.0), exponentials / (exponentials.sum() + np.e))
    assert (found.best().start[0], found.best().end[0], found.best().question[0]) == (5, 9, 7)


def test_the_number_of_answers_is_checked(write: Write) -> None:
    bundle = write_bundle(write, None)
    for top_k in (0, 7, True, "2"):
        message = f"got top_k={top_k}, expected a whole number from 1 to 6, the spans that the"
        with pytest.raises(UserError, match=message):
            bundle.predict([{**RECORD, "top_k": top_k}])
