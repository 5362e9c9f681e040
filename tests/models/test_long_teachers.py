"""Tests of the teachers for long texts, Longformer and BigBird."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from distill.builtin.students import distilbert
from distill.builtin.teachers.pretrained import Pretrained
from torch import Tensor

from distill.core.errors import UserError
from distill.models.forward import run_encoder, run_head, run_model
from distill.models.surgery.long_texts import check_exportable
from tests.models.test_families import SIZES, family_tokenizer
from tests.models.test_local_attention import OPTIONS, batch_of, longformer

BIG_BIRD: dict[str, Any] = {
    "vocab_size": 200, "max_position_embeddings": 80, "pad_token_id": 0, "sep_token_id": 3, **SIZES, "block_size": 4,
}  # fmt: skip


@torch.no_grad()
def test_the_head_of_a_longformer_reads_the_states_of_its_encoder() -> None:
    """It passes on the global attention of an encoder's output, which other families have not."""
    model, batch = longformer("ForMaskedLM"), batch_of(12)
    encoded = run_encoder(model, batch)
    logits = run_head(model, encoded, encoded.last_hidden_state[0]).logits
    torch.testing.assert_close(logits[0], run_model(model, batch).logits[0], atol=1e-5, rtol=1e-5)


def question_batch() -> dict[str, Tensor]:
    """Returns two questions with their texts, `<s> q </s></s> c </s>`, the second one padded."""
    ids = torch.randint(3, 90, (2, 30), generator=torch.Generator().manual_seed(0))
    for row, (question, end) in enumerate(((5, 30), (8, 20))):
        ids[row, 0] = 0
        ids[row, [question, question + 1, end - 1]] = OPTIONS["sep_token_id"]
        ids[row, end:] = OPTIONS["pad_token_id"]
    return {"input_ids": ids, "attention_mask": (ids != OPTIONS["pad_token_id"]).long()}


@torch.no_grad()
def test_a_longformer_attends_from_the_question_as_its_own_class_does() -> None:
    model, batch = longformer("ForQuestionAnswering"), question_batch()
    own = model(**batch)
    tokens = batch["attention_mask"].bool()
    logits = run_model(model, batch).logits
    torch.testing.assert_close(logits[..., 0][tokens], own.start_logits[tokens], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits[..., 1][tokens], own.end_logits[tokens], atol=1e-5, rtol=1e-5)
    # Its own class refuses texts with other separators, such as those of a check before the training.
    assert run_model(model, {name: tensor[:, :4] for name, tensor in batch.items()}).logits.shape == (2, 4, 2)


def test_a_student_of_a_longformer_has_its_pattern_and_exports_with_local_attention() -> None:
    teacher = longformer(window=[4, 8])
    student = distilbert.from_teacher(teacher, layers="last", depth=1)
    assert type(student) is type(teacher)
    assert student.config.attention_window == [8]
    with pytest.raises(UserError, match=r"student distilbert \(LongformerFor.* cannot be exported"):
        check_exportable(student, "distilbert")
    exportable = distilbert.from_teacher(teacher, layers="last", depth=1, attention="local")
    check_exportable(exportable, "distilbert")
    assert exportable.config.attention_window == 8
    assert len(exportable.inherited) == len(dict(exportable.named_parameters()))


@torch.no_grad()
def test_a_big_bird_reads_every_text_with_full_attention(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokenizer = family_tokenizer("bert_large")
    sparse = transformers.BigBirdForSequenceClassification(transformers.BigBirdConfig(**BIG_BIRD))
    assert sparse.config.attention_type == "block_sparse"
    for part in (sparse, tokenizer):
        part.save_pretrained(tmp_path)
    start = Pretrained(name="big_bird", path=str(tmp_path)).load("AutoModelForSequenceClassification", ["0", "1"], [])
    assert start.model.config.attention_type == "original_full"
    assert any("grow with the square of the length" in notice for notice in start.notices)
    ids = torch.randint(5, 200, (1, 80), generator=torch.Generator().manual_seed(0))
    logits = start.model.eval()(input_ids=ids).logits
    start.model(input_ids=ids[:, :4])  # Would switch a BigBird from blocks to full attention.
    torch.testing.assert_close(start.model(input_ids=ids).logits, logits)
    student = distilbert.from_teacher(start.model)
    assert student.config.attention_type == "original_full"
    check_exportable(student, "distilbert")
