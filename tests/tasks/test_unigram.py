"""Tests of the prediction by token frequencies, the constant that a language model must be better than."""

import math
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from distill.contracts import IGNORED, Scores
from distill.data.batching import evaluation_loader
from distill.tasks import CausalLM
from distill.tasks.masked_lm import UNIGRAM, TokenScores
from distill.teaching.constants import compare_with_constant, measure_constant
from distill.text.sequences import SequenceSettings
from distill.training.statistics import Difference
from tests.conftest import write_corpus
from tests.text.conftest import make_task

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
    difference: Difference = comparison.difference
    assert difference["difference"] == pytest.approx(math.exp(loss) - comparison.metrics["perplexity"], rel=1e-5)
    if is_weak:
        assert f'of "{UNIGRAM}"' in str(comparison.weakness)


def test_tokens_of_train_that_may_be_predicted_are_counted(
    tokenizer: PreTrainedTokenizerBase, corpus_file: Path, tmp_path: Path
) -> None:
    task = make_task(corpus_file)
    data = task.read(tmp_path)
    examples = data.encode(tokenizer, tmp_path)
    train, special = examples["train"], tokenizer.all_special_ids
    ids = np.concatenate([train[[row]]["input_ids"][0].numpy() for row in range(len(train))])  # type: ignore[arg-type, index]
    assert (train.token_counts[special] == -1).all()  # type: ignore[union-attr]
    assert train.token_counts.sum() + len(special) > 0.8 * np.isin(ids, special, invert=True).sum()  # type: ignore[union-attr]
    scoring = data.with_examples(examples).scoring
    loader = evaluation_loader(examples["dev"], batch_size=4)  # type: ignore[arg-type]
    metrics = measure_constant(scoring, task, loader)
    assert metrics is not None
    labels = np.concatenate([task.select(batch).labels.numpy() for step in loader for batch in step])
    counts = train.token_counts + 1  # type: ignore[union-attr]
    assert metrics["loss"] == pytest.approx(-np.log(counts[labels] / counts.sum()).mean(), rel=1e-5)
    assert metrics["loss"] < math.log((counts > 0).sum())
