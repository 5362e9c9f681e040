"""The direction in which a language model reads a text."""

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from distill.errors import UserError
from distill.models.forward import model_class, try_model

BOTH_SIDES = ("AutoModelForTokenClassification", "AutoModelForQuestionAnswering")  # Read the tokens behind each too.
TOLERANCE = 1e-3  # Of the largest logit. A model of both directions changes logits by as much as another text does.
_LENGTH = 8


@torch.no_grad()
def check_causal(model: PreTrainedModel, name: str) -> None:
    """Raises UserError if the logits at a token depend on the tokens behind it, which they are to predict.

    Transformers loads a masked language model such as BERT's as a causal one too, which then reads in both directions.
    """
    ids = torch.arange(1, _LENGTH + 1).unsqueeze(0) % int(model.config.vocab_size)
    other = ids.clone()
    other[:, -1] = 0
    logits, expected = (_logits_before_last(model, tokens) for tokens in (other, ids))
    if bool((logits - expected).abs().max() > TOLERANCE * expected.abs().max()):
        raise UserError(
            f"{name} has a {type(model).__name__} that reads the tokens behind each token too, expected a model that "
            "reads those before it alone: take one such as GPT-2 (job=pretrain has +teacher=gpt2_tiny), or task=mlm"
        )


def check_reads_both_sides(config: PreTrainedConfig, auto_class: str, name: str) -> None:
    """Raises UserError for a decoder with a head for tags or answers, which depend on the tokens behind each token."""
    if is_decoder(config) and auto_class in BOTH_SIDES:
        asked = "tags" if auto_class == BOTH_SIDES[0] else "answers"
        raise UserError(
            f"{name} has a model of type {config.model_type}, a decoder, which reads the tokens before each token "
            f"alone, and {asked} depend on those behind it too: take an encoder such as BERT, or task=classification, "
            "which a decoder can learn"
        )


def is_decoder(config: PreTrainedConfig) -> bool:
    """Returns whether a model reads the tokens before each token alone.

    A family is one of decoders if it has a causal language model and no masked one. XLNet, which reads both sides, says
    so in its configuration.
    """
    causal, masked = (model_class(head, type(config)) for head in ("AutoModelForCausalLM", "AutoModelForMaskedLM"))
    return causal is not None and masked is None and getattr(config, "attn_type", "uni") != "bi"


def _logits_before_last(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Returns the logits `[1, L - 1, V]` at all tokens but the last one."""
    logits: Tensor = try_model(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}).logits
    return logits[:, :-1]
