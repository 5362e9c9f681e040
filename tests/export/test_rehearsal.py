"""Tests that a student whose family may not be exportable is exported before it is trained."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Gemma3TextConfig, Gemma3TextModel, PreTrainedModel, PreTrainedTokenizerBase

from distill.core.errors import UserError
from distill.export import rehearsal
from distill.export.onnx import export_model
from tests.conftest import toy_bert


@pytest.fixture
def stranger(tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch) -> PreTrainedModel:
    """A model of a family that no test exports."""
    monkeypatch.setattr(rehearsal, "KNOWN", frozenset({"distilbert"}))
    return toy_bert(len(tokenizer), layers=1).train()


def replace_export(monkeypatch: pytest.MonkeyPatch, export: Callable[..., None]) -> None:
    monkeypatch.setattr(rehearsal, "export_model", export)


def test_a_known_family_is_not_exported(tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_export(monkeypatch, lambda *_, **__: pytest.fail("it was exported"))
    rehearsal.rehearse_export(toy_bert(len(tokenizer), layers=1), tokenizer, name="distilbert", max_length=40)


def test_another_family_whose_file_equals_it_is_trained(
    stranger: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {name: tensor.clone() for name, tensor in stranger.state_dict().items()}
    rehearsal.rehearse_export(stranger, tokenizer, name="mine", max_length=40)
    assert "student mine (BertForSequenceClassification) is exported once before" in capsys.readouterr().out
    assert stranger.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in stranger.state_dict().items())


def test_a_family_that_cannot_be_exported_is_refused_with_the_first_reason(
    stranger: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        try:
            raise ValueError("item() of a tensor\nand more")
        except ValueError as error:
            raise RuntimeError("step 1 of 3 failed") from error

    replace_export(monkeypatch, fail)
    with pytest.raises(UserError) as error:
        rehearsal.rehearse_export(stranger, tokenizer, name="mine", max_length=40)
    assert str(error.value) == (
        "student mine (BertForSequenceClassification) cannot be exported to ONNX (item() of a tensor): set "
        "export.enabled=false, or take +student=bilstm, which follows a teacher of any family"
    )
    assert stranger.training


def test_a_family_whose_file_differs_is_refused(
    stranger: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = toy_bert(len(tokenizer), layers=1, seed=1)

    def export_other(_: PreTrainedModel, path: Path, **options: Any) -> None:
        export_model(other, path, **options)

    replace_export(monkeypatch, export_other)
    with pytest.raises(UserError, match=r"student mine .* has other outputs in ONNX than in torch, by up to \d"):
        rehearsal.rehearse_export(stranger, tokenizer, name="mine", max_length=40)


@pytest.mark.slow
def test_padding_that_sees_padding_alone_is_not_compared(tokenizer: PreTrainedTokenizerBase) -> None:
    """The kernels of torch differ where a Gemma 3 that reads both sides of a window has padding alone in it."""
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=8, intermediate_size=16, sliding_window=8, use_bidirectional_attention=True, initializer_range=0.2,
        layer_types=["sliding_attention", "full_attention"], pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = Gemma3TextModel(config).eval()
    rehearsal.rehearse_export(model, tokenizer, name="gemma", max_length=40)
    batch = rehearsal._draw_inputs(np.random.default_rng(0), tokenizer, (2, 40))
    inputs = {name: torch.from_numpy(batch[name]) for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        states = [model(**inputs).last_hidden_state]
        model.set_attn_implementation("eager")
        states.append(model(**inputs).last_hidden_state)
    assert (states[0] - states[1])[inputs["attention_mask"] == 0].abs().max() > 0.01


@pytest.mark.parametrize("side", ["right", "left"])
def test_random_texts_have_their_special_tokens_and_padding_on_its_side(
    side: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    own = copy.deepcopy(tokenizer)
    own.padding_side = side
    inputs = rehearsal._draw_inputs(np.random.default_rng(0), own, (2, 8))
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    padded = [1] * 5 + [0] * 3 if side == "right" else [0] * 4 + [1] * 4
    assert mask.tolist() == [[1] * 8, padded]
    for row, shown in zip(ids, mask.astype(bool), strict=True):
        assert (row[shown][0], row[shown][-1]) == (own.cls_token_id, own.sep_token_id)
        assert set(row[~shown].tolist()) <= {own.pad_token_id}
        assert not {*row[shown][1:-1].tolist()} & {*own.all_special_ids}
