"""Tests that a student whose family may not be exportable is exported before it is trained."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.errors import UserError
from distill.export import rehearsal
from distill.export.files import export_model
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
