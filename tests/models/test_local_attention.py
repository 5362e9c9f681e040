"""Tests of models with local attention: their equality with Longformer, their students, their files and refusals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from distill.builtin.students import distilbert
from distill.builtin.teachers.pretrained import Pretrained
from torch import Tensor
from transformers import PreTrainedModel

from distill.core.errors import UserError
from distill.data import splits
from distill.kinds import Classification
from distill.kinds.classification import OneClass
from distill.losses import Cosine, MiniLMv2, Objective
from distill.models import compatibility
from distill.models.architectures.modeling_local import ATTENTION, LocalRobertaForMaskedLM  # type: ignore[attr-defined]
from distill.models.forward import output_logits
from distill.models.surgery.long_texts import LongTexts, repeat_rows
from tests.conftest import LABELS
from tests.models.test_families import OTHERS, SIZES, family_tokenizer

OPTIONS: dict[str, Any] = {
    "vocab_size": 90, "max_position_embeddings": 42, "pad_token_id": 1, "sep_token_id": 2,
    **SIZES, "num_hidden_layers": 2,
    # More heads than are computed at once.
    "num_attention_heads": 6, "hidden_size": 48,
}  # fmt: skip
HEADS = (
    "Model", "ForMaskedLM", "ForMultipleChoice", "ForQuestionAnswering", "ForSequenceClassification",
    "ForTokenClassification",
)  # fmt: skip


def enlarge(model: PreTrainedModel) -> PreTrainedModel:
    """Makes the weights large enough for differences to show."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(6)
    return model.eval()


def longformer(head: str = "ForSequenceClassification", window: int | list[int] = 8) -> PreTrainedModel:
    """Returns a Longformer whose global tokens have the projections of the local ones, as before its pre-training."""
    torch.manual_seed(0)
    config = transformers.LongformerConfig(**OPTIONS | {"max_position_embeddings": 66}, attention_window=window)
    model = enlarge(getattr(transformers, f"Longformer{head}")(config))
    for layer in model.base_model.encoder.layer:
        for name in ("query", "key", "value"):
            projection = getattr(layer.attention.self, name)
            getattr(layer.attention.self, f"{name}_global").load_state_dict(projection.state_dict())
    return model


def batch_of(length: int) -> dict[str, Tensor]:
    """Returns three texts, of which one has half of the length."""
    ids = torch.randint(3, 90, (3, length), generator=torch.Generator().manual_seed(length))
    mask = torch.ones_like(ids)
    mask[1, (length + 1) // 2 :] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 1), "attention_mask": mask}


@torch.no_grad()
@pytest.mark.parametrize("global_tokens", [0, 1, 3])
@pytest.mark.parametrize("length", [1, 9, 37])
def test_the_attention_is_that_of_longformer(length: int, global_tokens: int) -> None:
    reference = longformer("ForMaskedLM")
    model = LongTexts("student", "local", global_tokens=global_tokens).apply(reference)
    assert type(model) is LocalRobertaForMaskedLM
    assert model.config.attention_window == 8
    batch = batch_of(length)
    is_global = torch.zeros_like(batch["input_ids"])
    is_global[:, :global_tokens] = 1
    expected = reference(**batch, global_attention_mask=is_global if global_tokens else None).logits
    tokens = batch["attention_mask"].bool()
    assert expected[tokens].std() > 0.1
    torch.testing.assert_close(model(**batch).logits[tokens], expected[tokens], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_longformer_that_scores_texts_gives_an_equal_model() -> None:
    reference, batch = longformer(), batch_of(40)
    model = LongTexts("student", "local").apply(reference)
    torch.testing.assert_close(model(**batch).logits, reference(**batch).logits, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_local_attention_becomes_full_again() -> None:
    teacher, batch = enlarge(OTHERS["bert"](dict(OPTIONS))), batch_of(30)
    local = LongTexts("teacher", "local", window=6).apply(teacher)
    student = LongTexts("student", "full").apply(local)
    assert type(student) is type(teacher)
    assert not hasattr(student.config, "attention_window")
    torch.testing.assert_close(student(**batch).logits, teacher(**batch).logits, atol=1e-5, rtol=1e-5)
    assert (local(**batch).logits - teacher(**batch).logits).abs().max() > 1e-3


def test_the_largest_of_several_windows_is_taken() -> None:
    assert LongTexts("student", "local").apply(longformer(window=[4, 8])).config.attention_window == 8


@torch.no_grad()
@pytest.mark.parametrize("name", ["xlm-roberta", "bert", "distilbert"])
def test_a_student_reads_more_positions_than_its_teacher_and_the_first_ones_alike(name: str) -> None:
    teacher = enlarge(OTHERS[name](dict(OPTIONS)))
    depth = teacher.config.num_hidden_layers
    full = distilbert.from_teacher(teacher, depth=depth).eval()
    limit = compatibility.longest(full, tokenizer := _unlimited())
    student = distilbert.from_teacher(teacher, depth=depth, attention="local", window=2 * limit, positions=100).eval()
    assert compatibility.longest(student, tokenizer) == 100
    assert student.inherited.keys() == full.inherited.keys()
    assert student.config.teacher_layers == list(range(depth))
    for length in (1, limit):
        batch = batch_of(length)
        torch.testing.assert_close(student(**batch).logits, full(**batch).logits, atol=1e-5, rtol=1e-5)
    assert student(**batch_of(100)).logits.isfinite().all()
    with pytest.raises((IndexError, RuntimeError)):
        student(**batch_of(101))


def _unlimited() -> transformers.PreTrainedTokenizerBase:
    tokenizer = family_tokenizer("roberta_base")
    tokenizer.model_max_length = 1_000_000
    return tokenizer


@torch.no_grad()
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("family", ["Bert", "Electra", "Roberta"])
def test_every_head_has_a_local_class(family: str, head: str) -> None:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**OPTIONS)
    teacher = enlarge(getattr(transformers, f"{family}{head}")(config))
    student = LongTexts("student", "local", window=6).apply(teacher)
    assert type(student).__name__ == f"Local{family}{head}"
    batch = batch_of(3)  # As long as one half of the window: every token attends to every other.
    if head == "ForMultipleChoice":
        batch = {name: tensor[None] for name, tensor in batch.items()}
    outputs = [output_logits(model, model(**batch), batch["attention_mask"]) for model in (student, teacher)]
    torch.testing.assert_close(*outputs, atol=1e-5, rtol=1e-5)


def test_a_local_student_is_saved_with_its_code_and_never_reads_with_full_attention(tmp_path: Path) -> None:
    student = distilbert.from_teacher(OTHERS["bert"](dict(OPTIONS)), attention="local", window=6).eval()
    student.save_pretrained(tmp_path)
    assert "def compute_local_attention" in (tmp_path / "modeling_local.py").read_text()
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["model_type"] == "distill_local_distilbert"  # No installation reads it as a DistilBERT.
    assert saved["auto_map"]["AutoConfig"] == "modeling_local.LocalDistilBertConfig"
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert (again.config._attn_implementation, again.config.attention_window) == (ATTENTION, 6)
    batch = batch_of(30)
    torch.testing.assert_close(again(**batch).logits, student(**batch).logits)
    with pytest.raises(ValueError, match="got attention eager for a LocalDistilBertForSequenceClassification"):
        again.set_attn_implementation("eager")
    with pytest.raises(ValueError, match="got attention sdpa"):
        again.set_attn_implementation("sdpa")


def test_a_teacher_with_repeated_positions_reads_them_and_has_another_fingerprint(tmp_path: Path) -> None:
    tokenizer = family_tokenizer("roberta_base")
    tokenizer.model_max_length = 42
    for part in (OTHERS["bert"](OPTIONS | {"vocab_size": len(tokenizer)}), tokenizer):
        part.save_pretrained(tmp_path)
    every: list[dict[str, Any]] = [{}, {"positions": 60}, {"positions": 60, "attention": "local", "window": 8}]
    teachers = [Pretrained(name="t", path=str(tmp_path), **options) for options in every]
    assert len({teacher.fingerprint() for teacher in teachers}) == 3
    starts = [teacher.load("AutoModelForSequenceClassification", LABELS, []) for teacher in teachers]
    assert [compatibility.longest(start.model, start.tokenizer) for start in starts] == [42, 60, 60]
    assert [type(start.model).__name__ for start in starts[1:]] == [
        "BertForSequenceClassification", "LocalBertForSequenceClassification",
    ]  # fmt: skip
    assert starts[2].model(**batch_of(60)).logits.shape == (3, len(LABELS))


def test_repeated_rows_begin_behind_the_reserved_ones() -> None:
    table = torch.arange(5.0)[:, None]
    assert repeat_rows(table, 9, reserved=2).flatten().tolist() == [0, 1, 2, 3, 4, 2, 3, 4, 2]
    assert repeat_rows(table, 7).flatten().tolist() == [0, 1, 2, 3, 4, 0, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "sparse"}, "student.attention=sparse is unknown, expected one of own, local, full"),
        ({"attention": "local", "window": 7}, "got student.window=7, expected an even number"),
        ({"attention": "local", "window": 0}, "got student.window=0, expected a whole number of at least 2"),
        ({"attention": "local", "window": 42}, "student.window=42 is as long as the 42 tokens that the student reads"),
        ({"attention": "local"}, "student.window=256 is as long as the 42 tokens that the student reads"),
        ({"window": 8}, "student.window is of local attention: add student.attention=local"),
        (
            {"attention": "local", "window": 8, "global_tokens": 5},
            "got student.global_tokens=5, expected 0 to 4, half of the window 8",
        ),
        ({"attention": "local", "window": 8, "global_tokens": -1}, "got student.global_tokens=-1, expected a whole"),
        ({"positions": 30}, "got student.positions=30, expected at least the 42 that the model has"),
        ({"positions": True}, "got student.positions=True, expected a whole number of at least 1"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        distilbert.from_teacher(OTHERS["bert"](dict(OPTIONS)), **options)


def test_families_without_local_attention_or_positions_are_refused_by_name() -> None:
    mpnet = OTHERS["mpnet"](dict(OPTIONS))
    with pytest.raises(UserError, match="student.attention=local is for models of Bert, .*, and this is a MPNetFor"):
        distilbert.from_teacher(mpnet, attention="local", window=8)
    config = transformers.DebertaV2Config(**OPTIONS, position_biased_input=False, relative_attention=True)
    deberta = transformers.DebertaV2ForSequenceClassification(config)
    with pytest.raises(UserError, match="teacher.positions is for models with a table of positions, and a DebertaV2"):
        LongTexts("teacher", positions=100).apply(deberta)


@pytest.mark.parametrize("term", [MiniLMv2(relation_heads=4)])
def test_terms_on_attention_are_refused_for_local_attention_and_others_are_not(term: Any) -> None:
    teacher = OTHERS["bert"](dict(OPTIONS))
    student = distilbert.from_teacher(teacher, attention="local", window=6)
    objective = Objective(name="toy", terms={"relations": term, "cosine": Cosine()})
    message = (
        "objective toy: the term relations compares the attention of all pairs of tokens, and the student "
        r"\(LocalDistilBertForSequenceClassification\) attends to those nearby alone: set its weight to 0"
    )
    with pytest.raises(UserError, match=message):
        compatibility.check_outputs(objective, teacher=teacher, student=student)
    compatibility.check_outputs(Objective(name="toy", terms={"cosine": Cosine()}), teacher=teacher, student=student)


def test_a_text_of_a_hundred_thousand_tokens_is_cut_and_counted() -> None:
    task = Classification(name="toy", text=["sentence"], max_length=4096)
    split = splits.text_split(["a lovely film " * 100_000, "dull"], labels=np.zeros(2, int))
    data = splits.LabelledData(LABELS, {"train": split, "dev": split}, sha256="", scoring=OneClass(("accuracy",)))
    examples = task.encode(data, _unlimited(), None)["train"]
    assert examples.truncated == 1
    assert examples[[0]]["input_ids"].shape == (1, 4096)
