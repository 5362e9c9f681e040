"""Tests of models with more rows of embeddings than there are tokens, and of a student's saved tokenizer."""

import copy
import json
import math
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerBase

from distill.chain.task_run import save_model
from distill.core.contracts import Outputs, Scores
from distill.kinds import MaskedLM
from distill.kinds.masked_lm import TokenScores
from distill.models.compatibility import match_spare_rows
from tests.conftest import toy_bert


def language_model(rows: int) -> BertForMaskedLM:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return BertForMaskedLM(BertConfig(vocab_size=rows, **sizes)).eval()


@pytest.mark.parametrize(("spare", "spare_of_teacher"), [(0, 64), (64, 0), (13, 64)])
def test_a_student_of_a_language_model_gets_as_many_rows_as_its_teacher(
    tokenizer: PreTrainedTokenizerBase, spare: int, spare_of_teacher: int
) -> None:
    tokens = len(tokenizer)
    student, teacher = language_model(tokens + spare), language_model(tokens + spare_of_teacher)
    ids = torch.arange(5, 15).unsqueeze(0)
    with torch.no_grad():
        before = student(ids).logits[..., :tokens]
        change = match_spare_rows(student, teacher, tokenizer)
        after = student(ids).logits
    assert change is not None
    assert change.startswith(f"the student has {tokens + spare} rows of embeddings and the teacher ")
    assert after.shape[-1] == teacher.config.vocab_size
    torch.testing.assert_close(after[..., :tokens], before)
    assert match_spare_rows(student, teacher, tokenizer) is None


def test_a_student_that_lacks_a_token_keeps_its_rows(tokenizer: PreTrainedTokenizerBase) -> None:
    student = language_model(len(tokenizer) - 1)
    assert match_spare_rows(student, language_model(len(tokenizer)), tokenizer) is None
    assert student.config.vocab_size == len(tokenizer) - 1


def test_no_metric_counts_rows_beyond_the_tokenizer() -> None:
    scoring = TokenScores(MaskedLM().settings, tokens=3)
    logits = torch.tensor([[0.0, 1.0, 0.0, 9.0]])

    class Items:
        labels = torch.tensor([1])

    loss = -math.log(math.e / (math.e + 2))
    columns = scoring.score(Outputs(logits=logits), Items())  # type: ignore[arg-type]
    assert columns["loss"].item() == pytest.approx(loss)
    assert columns["prediction"].tolist() == [1]
    scores = scoring.rescore(Scores({}, Items.labels.numpy(), Items.labels.numpy()), [logits.numpy()])
    assert scores.columns["loss"].tolist() == [pytest.approx(loss)]


@pytest.mark.parametrize(("given", "expected"), [(512, 80), (48, 48)])
def test_the_tokenizer_of_a_student_has_the_longest_input_of_the_student(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, given: int, expected: int
) -> None:
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.model_max_length = given
    save_model(toy_bert(len(tokenizer), layers=1), tokenizer, tmp_path / "student")
    content = json.loads((tmp_path / "student" / "tokenizer_config.json").read_text())
    assert content["model_max_length"] == expected
    assert tokenizer.model_max_length == given  # The teacher's, which goes on being used.
