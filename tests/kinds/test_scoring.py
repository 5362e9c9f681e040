"""Tests of scoring: the defaults of what a kind must not write, and metrics of written texts by hand."""

import sys
from typing import Any

import numpy as np
import pytest
import torch

from distill.core.contracts import Items, Outputs, Scores
from distill.core.errors import UserError
from distill.kinds.scoring import (
    CORPUS,
    MEANS,
    Scoring,
    break_down_by_length,
    distinct_ngrams,
    score_examples,
    score_sentences,
    text_metrics,
)


class Least(Scoring):
    """The scoring of one class an item, with what must be written."""

    names = ("accuracy",)

    def metrics(self, scores: Scores) -> dict[str, float]:
        return {"accuracy": float((self.predictions(scores) == scores.labels).mean())}

    def tabulate(self, scores: Scores, splits: Any, *, examples: int) -> dict[str, list[Any]]:
        return {"prediction": self.predictions(scores).tolist()}

    def describe(self, splits: Any) -> dict[str, Any]:
        return {"labels": []}

    def summary(self, splits: Any) -> str:
        return "two classes"


def test_a_member_that_must_be_written_says_so() -> None:
    with pytest.raises(TypeError, match="Scoring has no "):
        Scoring().metrics(None)  # type: ignore[arg-type]


def test_the_defaults_are_those_of_one_class_an_item() -> None:
    """Two of three predictions are right. Probabilities are 0.5 or 0.75, and 0.25 apart at most."""
    scoring, high = Least(), float(np.log(3))
    labels = np.array([0, 1, 1])
    scores, reference = (
        Scores({"logits": np.array(logits)}, labels, np.arange(3))
        for logits in ([[high, 0.0], [0.0, high], [high, 0.0]], [[high, 0.0], [0.0, high], [0.0, 0.0]])
    )
    assert scoring.metric == "accuracy"
    assert scoring.metrics(scores) == {"accuracy": pytest.approx(2 / 3)}
    assert scoring.agreement(scores, reference) == 1.0
    assert scoring.probability_diff(scores, reference) == pytest.approx(0.25)
    assert scoring.calibration_error(scores) == pytest.approx(0.75 - 2 / 3)
    assert (scoring.condense(scores), scoring.held_out(scores)) == (scores, scores)
    assert (scoring.fit_decoder(scores), scoring.breakdown(scores), scoring.hits(scores)) == ({}, {}, {})
    assert (scoring.spoil(scores), scoring.example_metric(scores), scoring.constants(scores)) == (None, None, [])
    with pytest.raises(TypeError, match="Least cannot abstain"):
        scoring.confidences(scores)


def test_logits_are_what_is_kept_and_what_another_model_replaces() -> None:
    batch = {"example_id": torch.arange(2)}
    items = Items(batch=batch, row=torch.arange(2), labels=torch.zeros(2), labelled=torch.ones(2).bool())
    columns = Least().score(Outputs(logits=torch.ones(2, 3).half()), items)
    assert {name: (column.dtype, column.shape) for name, column in columns.items()} == {
        "logits": (torch.float32, (2, 3))
    }
    assert Least().compare(columns, Outputs()) == {}
    scores = Scores({"logits": columns["logits"].numpy()}, np.zeros(2), np.arange(2))
    narrow = [np.full((1, 2), 5.0), np.full((1, 3), 6.0)]
    assert Least().rescore(scores, narrow).columns["logits"][:, :2].tolist() == [[5.0, 5.0], [6.0, 6.0]]
    with pytest.raises(ValueError, match="got outputs without logits"):
        Least().score(Outputs(), items)


# Written texts


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
