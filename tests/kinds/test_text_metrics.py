"""Tests of the metrics of written texts, with values worked out by hand."""

import sys

import numpy as np
import pytest

from distill.core.errors import UserError
from distill.kinds.scoring import (
    CORPUS,
    MEANS,
    break_down_by_length,
    distinct_ngrams,
    score_examples,
    score_sentences,
    text_metrics,
)


def test_a_perfect_text_has_every_share_at_one() -> None:
    metrics = text_metrics(["the cat sat on the mat"], [["the cat sat on the mat"]])
    assert metrics == pytest.approx(
        {"exact_match": 1, "rouge1": 1, "rouge2": 1, "rougeL": 1, "chrf": 1, "bleu": 1, "distinct1": 5 / 6,
         "distinct2": 1, "length_ratio": 1}
    )  # fmt: skip


def test_rouge_by_hand() -> None:
    # 3 of 4 words and 1 of 3 pairs of words are in the reference of 5 words; the longest common subsequence is a b d.
    scores = score_examples(["a b x d"], [["a b c d e"]])
    assert scores["rouge1"][0] == pytest.approx(2 * 3 / (4 + 5))
    assert scores["rouge2"][0] == pytest.approx(2 * 1 / (3 + 4))
    assert scores["rougeL"][0] == pytest.approx(2 * 3 / (4 + 5))


def test_bleu_by_hand() -> None:
    # Precisions 5/6, 3/5, 2/4, 1/3 without a brevity penalty.
    metrics = text_metrics(["a b c d x f"], [["a b c d e f"]])
    assert metrics["bleu"] == pytest.approx((5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)


def test_brevity_is_punished_over_the_whole_corpus() -> None:
    metrics = text_metrics(["a b c d", "a b c d"], [["a b c d"], ["a b c d e f g h"]])
    assert metrics["bleu"] == pytest.approx(np.exp(1 - 12 / 8))
    assert metrics["length_ratio"] == pytest.approx(8 / 12)


def test_chrf_by_hand() -> None:
    # One of two characters; of 2-grams none. F with beta 2 of precision and recall 1/2 and 0, each averaged over the
    # two orders that the texts are long enough for: 1/4.
    assert score_sentences(["ab"], [["ac"]], "chrf")[0] == pytest.approx(0.25)


def test_the_best_of_several_references_counts_and_their_number_may_differ() -> None:
    predictions, references = ["a dog ran", "b"], [["no", "a dog  ran ", "x"], ["b"]]
    scores = score_examples(predictions, references)
    assert scores["exact_match"].tolist() == [1, 1]
    assert scores["rougeL"].tolist() == [1, 1]
    assert text_metrics(predictions, references)["chrf"] == pytest.approx(1)
    assert text_metrics(predictions, references)["length_ratio"] == pytest.approx(1)


def test_an_empty_text_scores_nothing() -> None:
    metrics = text_metrics([""], [["some words"]])
    assert set(metrics.values()) == {0.0}


def test_distinct_ngrams_are_counted_over_all_texts() -> None:
    assert distinct_ngrams(["a b a", "a b"], 1) == pytest.approx(2 / 5)
    assert distinct_ngrams(["a b a", "a b"], 2) == pytest.approx(2 / 3)
    assert distinct_ngrams(["a"], 2) == 0


def test_breakdown_by_length() -> None:
    texts = ["one", "a " * 8, "a " * 9, "a " * 100]
    assert break_down_by_length({"rougeL": np.array([1.0, 0.0, 0.5, 0.25])}, texts) == {
        "up to 8 words": {"rougeL": 0.5, "number": 2},
        "up to 16 words": {"rougeL": 0.5, "number": 1},
        "more than 64 words": {"rougeL": 0.25, "number": 1},
    }
    columns = score_examples(["a b", "c", "x y", "a"], [["a c"], ["c"], ["x y"], ["b"]])
    assert break_down_by_length(columns, texts)["up to 8 words"] == pytest.approx(
        text_metrics(["a b", "c"], [["a c"], ["c"]], (*MEANS, *CORPUS)) | {"number": 2}
    )


@pytest.mark.parametrize(
    ("predictions", "references", "message"),
    [
        ([], [], "got no predictions"),
        (["a"], [["a"], ["b"]], "got 1 predictions and references of 2 examples"),
        (["a", "b"], [["a"], []], r"got \[\] as the references of example 1"),
        (["a"], ["abc"], "got 'abc' as the references of example 0"),
    ],
)
def test_wrong_arguments(predictions: list[str], references: list[list[str]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        text_metrics(predictions, references)


@pytest.mark.parametrize("package", ["rouge_score", "sacrebleu"])
def test_a_missing_library_is_named_with_its_command(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=f"scored with {package.replace('_', '-')}, which is not installed: pip"):
        text_metrics(["a"], [["a"]])
