"""Tests of the prediction by token frequencies, the constant that a language model must be better than."""

import math
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from distill.core.contracts import Scores
from distill.data.batches import evaluation_loader
from distill.kinds import CausalLM, MaskedLM
from distill.kinds.masked_lm import UNIGRAM, TokenScores
from distill.teachers.prepared import compare_with_constant, measure_constant
from distill.text.sequences import Sequences, SequenceSettings
from tests.conftest import write_corpus

# Of five tokens, the first is special and never predicted.
COUNTS = np.array([-1, 5, 2, 0, 1])
SCORING = TokenScores(SequenceSettings(mask=None), counts=COUNTS)


def scores_of(losses: list[float], labels: list[int], examples: list[int]) -> Scores:
    columns = {"loss": np.array(losses, dtype=np.float32), "correct": np.zeros(len(labels), dtype=np.float32)}
    columns["prediction"], columns["probability"] = np.zeros(len(labels)), np.zeros(len(labels))
    return Scores(columns, np.array(labels), np.array(examples))


def test_the_loss_is_the_entropy_by_hand() -> None:
    [constant] = SCORING.constants(scores_of([0.0], [1], [0]))
    assert constant.answer == UNIGRAM
    predicted = constant.predict(scores_of([9.0] * 3, [1, 3, 4], [0, 1, 2]))
    # Each count is one more, so that a token that train does not have is possible: 6, 3, 1 and 2 of 12.
    expected = [math.log(12 / 6), math.log(12 / 1), math.log(12 / 2)]
    assert predicted.columns["loss"].tolist() == pytest.approx(expected, rel=1e-6)
    metrics = SCORING.metrics(predicted)
    assert metrics["loss"] == pytest.approx(sum(expected) / 3, rel=1e-6)
    assert metrics["perplexity"] == pytest.approx(144 ** (1 / 3), rel=1e-5)
    assert metrics["accuracy"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(("loss", "is_weak"), [(0.1, False), (3.0, True)])
def test_a_model_that_is_no_better_is_weak(loss: float, is_weak: bool) -> None:
    labels = [1 + number % 4 for number in range(120)]
    comparison = compare_with_constant(SCORING, {"dev": scores_of([loss] * 120, labels, [n // 4 for n in range(120)])})
    assert comparison is not None
    assert (comparison.weakness is not None) == is_weak
    assert comparison.difference["difference"] == pytest.approx(
        math.exp(loss) - comparison.metrics["perplexity"], rel=1e-5
    )
    if is_weak:
        assert f'of "{UNIGRAM}"' in str(comparison.weakness)


@pytest.mark.parametrize("kind", [MaskedLM, CausalLM])
def test_the_tokens_of_train_that_may_be_predicted_are_counted(
    kind: type[MaskedLM] | type[CausalLM], tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    task = kind(data_dir=str(write_corpus(tmp_path)), documents="line", max_length=16, dev_fraction=0.2)
    data = task.read(tmp_path / "cache")
    examples = task.encode(data, tokenizer, tmp_path / "cache")
    train, dev = (cast(Sequences, examples[split]) for split in ("train", "dev"))
    expected = np.bincount(train._rows.columns["input_ids"], minlength=len(tokenizer))
    if kind is MaskedLM:
        expected[tokenizer.all_special_ids] = -1
    assert train.token_counts.tolist() == expected.tolist()
    scoring, loader = data.with_examples(examples).scoring, evaluation_loader(dev)
    metrics = measure_constant(scoring, task, loader)
    assert metrics is not None
    labels = np.concatenate([task.select(batch).labels.numpy() for step in loader for batch in step])
    shares = (expected + 1) / (expected + 1).sum()
    assert metrics["loss"] == pytest.approx(-np.log(shares[labels]).mean(), rel=1e-5)
    assert metrics["loss"] < math.log(len(tokenizer))
