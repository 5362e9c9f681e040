"""Tests of the encoder-decoder that fills targets: both sides are read, as by a BART with a full mask."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, BartConfig, BartForConditionalGeneration

from distill.core.contracts import DECODER_INPUTS, TARGET_MASK
from distill.models.architectures.modeling_mask_predict import MaskPredictForConditionalGeneration
from distill.models.forward import fills_targets, predicts_tokens, run_encoder, run_head, writes_targets
from tests.mask_predict import SIZES, make_model

REPLACED = 4  # The place of the token that is another one.


@pytest.fixture(scope="module")
def model() -> MaskPredictForConditionalGeneration:
    return make_model()


def batch_of() -> dict[str, Tensor]:
    """Returns three pairs, one shorter source and one shorter target."""
    random = torch.Generator().manual_seed(1)
    ids, target = (torch.randint(5, 35, (3, length), generator=random) for length in (7, 6))
    mask, is_read = torch.ones_like(ids), torch.ones_like(target)
    mask[1, 4:], is_read[2, 5:] = 0, 0
    return {"input_ids": ids, "attention_mask": mask, DECODER_INPUTS: target, TARGET_MASK: is_read}


def bart_of(model: MaskPredictForConditionalGeneration) -> BartForConditionalGeneration:
    """Returns a BART with the model's tensors."""
    bart = BartForConditionalGeneration(BartConfig(**SIZES)).eval()
    _, strange = bart.load_state_dict(model.state_dict(), strict=False)
    assert strange == ["model.length_head.weight", "model.length_head.bias"]
    return bart


@torch.no_grad()
def test_a_token_is_predicted_from_those_on_both_sides(model: MaskPredictForConditionalGeneration) -> None:
    batch = batch_of()
    other = batch[DECODER_INPUTS].clone()
    other[:, REPLACED] = 5 + (other[:, REPLACED] - 4) % 30
    changes = [
        (each(**batch).logits - each(**{**batch, DECODER_INPUTS: other}).logits).abs().amax(dim=(0, 2))
        for each in (model, bart_of(model))
    ]
    assert changes[0].min() > 0.01
    assert changes[1][:REPLACED].max() == 0  # A BART's decoder reads nothing behind a token.
    assert changes[1][REPLACED:].min() > 0.01


@torch.no_grad()
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_logits_are_those_of_a_bart_without_a_causal_mask(implementation: str) -> None:
    model, batch = make_model(), batch_of()
    bart = bart_of(model)
    for each in (model, bart):
        each.set_attn_implementation(implementation)
    visible = torch.zeros(3, 1, 6, 6).masked_fill(batch[TARGET_MASK][:, None, None] == 0, torch.finfo(torch.float).min)
    expected = bart(**{**batch, TARGET_MASK: visible}).logits
    is_read = batch[TARGET_MASK] == 1
    torch.testing.assert_close(model(**batch).logits[is_read], expected[is_read], atol=1e-5, rtol=0)


@torch.no_grad()
def test_the_distribution_of_lengths_by_hand(model: MaskPredictForConditionalGeneration) -> None:
    states = torch.arange(2 * 3 * 32.0).reshape(2, 3, 32) / 100
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    means = torch.stack([(states[0, 0] + states[0, 1] + states[0, 2]) / 3, (states[1, 0] + states[1, 1]) / 2])
    head = model.model.length_head
    expected = (means @ head.weight.T + head.bias).softmax(dim=-1)
    found = model.model.predict_lengths(states, mask).softmax(dim=-1)
    assert found.shape == (2, 13)  # The lengths 0 to 12.
    torch.testing.assert_close(found, expected)


@torch.no_grad()
def test_the_head_by_itself_has_the_logits_of_the_whole_model(model: MaskPredictForConditionalGeneration) -> None:
    batch = batch_of()
    output, whole = run_encoder(model, batch), model(**batch)
    logits = run_head(model, output, output.last_hidden_state.flatten(0, 1)[:7]).logits[0]
    torch.testing.assert_close(logits, whole.logits.flatten(0, 1)[:7], atol=1e-5, rtol=0)
    torch.testing.assert_close(output.length_logits, whole.length_logits)


def test_a_saved_model_is_loaded_and_generates_nothing(
    model: MaskPredictForConditionalGeneration, tmp_path: Path
) -> None:
    model.save_pretrained(tmp_path)
    assert "class MaskPredictForConditionalGeneration" in (tmp_path / "modeling_mask_predict.py").read_text()
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    assert fills_targets(loaded)
    assert writes_targets(loaded)
    assert not predicts_tokens(loaded)
    assert not loaded.can_generate()
    assert loaded.config.most_tokens == 12
    with torch.no_grad():
        torch.testing.assert_close(loaded(**batch_of()).logits, model(**batch_of()).logits)
