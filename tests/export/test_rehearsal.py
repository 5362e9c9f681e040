"""Tests that a student whose family may not be exportable is exported before it is trained."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distill.builtin.students.distilbert import from_teacher
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.core.errors import UserError
from distill.export import rehearsal
from distill.export.onnx import export_model
from tests.conftest import toy_bert
from tests.edge.conftest import Output, Patch
from tests.export.test_export import tagger


@pytest.fixture
def stranger(tokenizer: PreTrainedTokenizerBase, monkeypatch: Patch) -> PreTrainedModel:
    """A model of a family that no test exports."""
    monkeypatch.setattr(rehearsal, "KNOWN", frozenset({"distilbert"}))
    return toy_bert(len(tokenizer), layers=1).train()


def test_a_family_that_is_not_known_and_whose_file_equals_it_is_trained(
    stranger: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, capsys: Output
) -> None:
    rehearsal.rehearse_export(from_teacher(stranger, layers=[0]), tokenizer, name="known", max_length=40)
    assert capsys.readouterr().out == ""
    before = {name: tensor.clone() for name, tensor in stranger.state_dict().items()}
    rehearsal.rehearse_export(stranger, tokenizer, name="mine", max_length=40)
    assert "student mine (BertForSequenceClassification) is exported once before" in capsys.readouterr().out
    assert stranger.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in stranger.state_dict().items())


def test_a_family_that_cannot_be_exported_is_refused_with_the_first_reason(
    stranger: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, monkeypatch: Patch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        try:
            raise ValueError("item() of a tensor\nand more")
        except ValueError as error:
            raise RuntimeError("step 1 of 3 failed") from error

    monkeypatch.setattr(rehearsal, "export_model", fail)
    with pytest.raises(UserError) as error:
        rehearsal.rehearse_export(stranger, tokenizer, name="mine", max_length=40)
    assert str(error.value) == (
        "student mine (BertForSequenceClassification) cannot be exported to ONNX (item() of a tensor): set "
        "export.enabled=false, or take +student=bilstm, which follows a teacher of any family"
    )
    assert stranger.training


def test_a_family_whose_file_differs_is_refused(
    stranger: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, monkeypatch: Patch
) -> None:
    other = toy_bert(len(tokenizer), layers=1, seed=1)

    def export_other(_: PreTrainedModel, path: Path, **options: Any) -> None:
        export_model(other, path, **options)

    monkeypatch.setattr(rehearsal, "export_model", export_other)
    with pytest.raises(UserError, match=r"student mine .* has other outputs in ONNX than in torch, by up to \d"):
        rehearsal.rehearse_export(stranger, tokenizer, name="mine", max_length=40)


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


def test_outputs_of_padding_are_not_compared(tokenizer: PreTrainedTokenizerBase, monkeypatch: Patch) -> None:
    """Nobody reads them, and in some families they depend on the kernel of the attention."""
    model = tagger(len(tokenizer))

    class File:
        def run(self, names: list[str], feed: dict[str, np.ndarray]) -> list[np.ndarray]:
            with torch.no_grad():
                logits = model(**{name: torch.from_numpy(values) for name, values in feed.items()}).logits.numpy()
            logits[feed["attention_mask"] == 0] = 99
            return [logits]

    monkeypatch.setattr(rehearsal, "session", lambda path, threads: File())
    assert rehearsal._compare(model, Path(), tokenizer, [(3, 17)]) < 1e-5
