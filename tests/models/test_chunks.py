"""Tests of students that read a long text in chunks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from distill.builtin.students import distilbert
from torch import Tensor
from transformers import PreTrainedModel

from distill.core.contracts import VECTOR_SETTINGS
from distill.core.errors import UserError
from distill.kinds import Classification, Embedding
from distill.models import compatibility
from distill.models.architectures.modeling_chunked import ChunkedConfig, cut_chunks
from tests.models.test_families import OTHERS, SIZES, family_tokenizer

CLS, SEP, PAD = 2, 3, 0
OPTIONS: dict[str, Any] = {
    "vocab_size": 90, "max_position_embeddings": 42, "pad_token_id": PAD, "sep_token_id": SEP, "cls_token_id": CLS,
    **SIZES, "num_hidden_layers": 1,
}  # fmt: skip


def bert(head: str = "ForSequenceClassification", **options: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    model = getattr(transformers, f"Bert{head}")(transformers.BertConfig(**OPTIONS | options))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(6)
    return model.eval()


def text(words: int, seed: int = 0) -> list[int]:
    """Returns the ids of a text of so many tokens between its special ones."""
    random = np.random.default_rng(seed)
    return [CLS, *random.integers(5, 90, words).tolist(), SEP]


def pad(texts: list[list[int]], side: str = "right") -> dict[str, Tensor]:
    width = max(map(len, texts))
    rows = [(t + [PAD] * (width - len(t)) if side == "right" else [PAD] * (width - len(t)) + t) for t in texts]
    ids = torch.tensor(rows)
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}


def config(chunk: int, overlap: int) -> ChunkedConfig:
    return ChunkedConfig(
        encoder=transformers.BertConfig(**OPTIONS), chunk=chunk, chunk_overlap=overlap, chunk_pooling="mean",
        cls_token_id=CLS, sep_token_id=SEP, pad_token_id=PAD,
    )  # fmt: skip


def chunks_of(ids: list[int], chunk: int, overlap: int) -> list[list[int]]:
    """The chunks of a text by the definition."""
    words, size = ids[1:-1], chunk - 2
    starts = range(0, max(1, len(words) - overlap), size - overlap)
    return [[CLS, *words[start : start + size], SEP] for start in starts]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("chunk", "overlap"), [(7, 0), (7, 2), (8, 5), (40, 0), (3, 0)])
def test_texts_are_cut_as_the_definition_says(chunk: int, overlap: int, side: str) -> None:
    texts = [text(words, seed) for seed, words in enumerate((0, 1, 5, 6, 11, 17, 23))]
    batch = pad(texts, side)
    chunks = cut_chunks(batch["input_ids"], batch["attention_mask"], config(chunk, overlap))
    ids = chunks.input_ids.unflatten(0, chunks.is_used.shape)
    mask = chunks.attention_mask.unflatten(0, chunks.is_used.shape)
    for row, one in enumerate(texts):
        used = [ids[row, k][mask[row, k].bool()].tolist() for k in torch.nonzero(chunks.is_used[row]).flatten()]
        assert used == chunks_of(one, chunk, overlap)
    # Every token finds itself in its chunk.
    restored = chunks.restore(chunks.input_ids[..., None].float())[..., 0].long()
    assert restored[batch["attention_mask"].bool()].tolist() == [token for one in texts for token in one]


@torch.no_grad()
@pytest.mark.parametrize("pooling", ["mean", "max", "learned"])
def test_scores_are_pooled_over_the_chunks_of_each_text(pooling: Any) -> None:
    teacher = bert()
    student = distilbert.from_teacher(teacher, depth=1, chunk=12, chunk_overlap=3, chunk_pooling=pooling).eval()
    reader = distilbert.from_teacher(teacher, depth=1).eval()
    texts = [text(words, seed) for seed, words in enumerate((3, 10, 19, 35))]
    expected = []
    if pooling == "learned":
        torch.nn.init.normal_(student.weigh.weight)
    for one in texts:
        every = [reader(input_ids=torch.tensor([c]), output_hidden_states=True) for c in chunks_of(one, 12, 3)]
        scores = torch.cat([output.logits for output in every])
        vectors = torch.cat([output.hidden_states[-1][:, 0] for output in every])
        weights = student.weigh(vectors).softmax(dim=0) if pooling == "learned" else 1 / len(scores)
        expected.append(scores.amax(dim=0) if pooling == "max" else (scores * weights).sum(dim=0))
    logits = student(**pad(texts)).logits
    torch.testing.assert_close(logits, torch.stack(expected), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(student(**pad(texts, "left")).logits, logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(student(**pad(texts[:1])).logits, logits[:1], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_text_of_one_chunk_is_read_as_by_the_model_without_chunks() -> None:
    teacher = bert()
    student = distilbert.from_teacher(teacher, depth=1, chunk=30).eval()
    whole = distilbert.from_teacher(teacher, depth=1).eval()
    batch = pad([text(20), text(28, 1)])
    outputs = [model(**batch, output_hidden_states=True) for model in (student, whole)]
    torch.testing.assert_close(outputs[0].logits, outputs[1].logits, atol=1e-5, rtol=1e-5)
    tokens = batch["attention_mask"].bool()
    for states, expected in zip(outputs[0].hidden_states, outputs[1].hidden_states, strict=True):
        torch.testing.assert_close(states[tokens], expected[tokens], atol=1e-5, rtol=1e-5)


def test_a_student_is_saved_with_its_code_and_reads_any_length(tmp_path: Path) -> None:
    student = distilbert.from_teacher(bert(), chunk=12, chunk_pooling="learned").eval()
    tokenizer = family_tokenizer("bert_large")
    tokenizer.model_max_length = 4096
    assert compatibility.longest(student, tokenizer) == 4096
    assert student.inherited.keys() <= dict(student.named_parameters()).keys()
    assert student.model.config.max_position_embeddings == 12
    assert sum(name.startswith("model.distilbert.transformer") for name in student.inherited) == 16
    student.save_pretrained(tmp_path)
    assert "def cut_chunks" in (tmp_path / "modeling_chunked.py").read_text()
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "distill_chunked"
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    batch = pad([text(300), text(5)])
    torch.testing.assert_close(again(**batch).logits, student(**batch).logits)


@torch.no_grad()
def test_a_vector_is_the_mean_of_the_tokens_of_all_chunks() -> None:
    teacher = bert("Model")
    task = Embedding(pooling="mean")
    student = distilbert.from_teacher(teacher, depth=1, chunk=12, task=task).eval()
    reader = distilbert.from_teacher(teacher, depth=1).eval()
    one = text(25)
    states = student(**pad([one])).last_hidden_state[0]
    expected = [reader(input_ids=torch.tensor([c])).last_hidden_state[0, 1:-1] for c in chunks_of(one, 12, 0)]
    torch.testing.assert_close(states[1:-1], torch.cat(expected), atol=1e-5, rtol=1e-5)
    assert task.info.model_settings[VECTOR_SETTINGS]["pooling"] == "mean"


def test_a_longformer_gives_a_short_student_with_full_attention() -> None:
    teacher = OTHERS["longformer"](OPTIONS | {"max_position_embeddings": 102, "pad_token_id": 1})
    student = distilbert.from_teacher(teacher, attention="full", chunk=20).eval()
    assert type(student.model).__name__ == "RobertaForSequenceClassification"
    assert student.model.config.max_position_embeddings == 22  # With the two before the first position.
    assert student(**pad([text(90)])).logits.shape == (1, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk": 2}, "got student.chunk=2, expected a whole number of at least 3"),
        ({"chunk": 50}, "student.chunk=50, but the student reads 42 tokens at most"),
        ({"chunk": 10, "chunk_overlap": 8}, "got student.chunk_overlap=8, expected 0 to 7"),
        ({"chunk": 10, "chunk_overlap": -1}, "got student.chunk_overlap=-1, expected 0 to 7"),
        ({"chunk": 10, "chunk_pooling": "sum"}, "student.chunk_pooling=sum is unknown, expected one of mean, max"),
        ({"chunk_overlap": 3}, "student.chunk_overlap and student.chunk_pooling are of chunks"),
        ({"chunk": 10, "attention": "local", "window": 8}, "student.chunk reads chunks with full attention, and this"),
        ({"chunk": 10, "attention": "full"}, "student.attention=full is for models of Longformer, Local"),
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        distilbert.from_teacher(bert(), **options)


def test_tasks_without_scores_to_pool_are_refused_by_name() -> None:
    with pytest.raises(UserError, match="student.chunk is for classes, numbers and vectors of single texts"):
        distilbert.from_teacher(bert("ForTokenClassification"), chunk=10)
    task = Classification(name="pairs", text=["a", "b"])
    with pytest.raises(UserError, match=r"not for task pairs \(classification\): take student.attention=local"):
        distilbert.from_teacher(bert(), chunk=10, task=task)
    with pytest.raises(UserError, match="got student.chunk_pooling=mean and task.pooling=cls, expected mean for both"):
        distilbert.from_teacher(bert("Model"), chunk=10, task=Embedding(pooling="cls"))
    with pytest.raises(UserError, match="the tokenizer has no cls_token_id"):
        distilbert.from_teacher(bert(cls_token_id=None), chunk=10)
