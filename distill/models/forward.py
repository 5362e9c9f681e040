"""A model on a batch: which tensors it reads, and its encoder and its head one after the other."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling, ModelOutput

ENCODE = "run_encoder"  # Of a model whose weights are spread over processes: the method that gathers them for it.


def run_model(model: PreTrainedModel, batch: Mapping[str, Tensor], needs: frozenset[str] = frozenset()) -> ModelOutput:
    """The model's output for those tensors of the batch that it knows; a pair's token types reach who has them."""
    return _with_logits(_run(model, model, batch, needs))


def run_encoder(
    model: PreTrainedModel, batch: Mapping[str, Tensor], needs: frozenset[str] = frozenset()
) -> ModelOutput:
    """The output of all that is below the model's head: `last_hidden_state [B, L, H]`, and what the terms need."""
    return _run(model, model.base_model, batch, needs)


def run_head(model: PreTrainedModel, encoded: ModelOutput, states: Tensor) -> ModelOutput:
    """What the head says of hidden states `[n, H]` out of what the encoder has said: `logits [1, n, V]`.

    A vocabulary is so wide that the logits of all tokens cost as much as the encoder. Families name the parts of their
    heads as they please, so the whole model runs, over an encoder that gives these states.
    """
    said = BaseModelOutputWithPooling(
        last_hidden_state=states.unsqueeze(0), pooler_output=getattr(encoded, "pooler_output", None)
    )
    with _standing_in(model, said):
        return _with_logits(model(input_ids=states.new_zeros((1, len(states)), dtype=torch.long)))


def _with_logits(output: ModelOutput) -> ModelOutput:
    if "prediction_logits" in output:  # A model for pre-training, which has a second head, calls them so.
        output.logits = output.prediction_logits
    return output


def _run(model: PreTrainedModel, part: nn.Module, batch: Mapping[str, Tensor], needs: frozenset[str]) -> ModelOutput:
    output: ModelOutput = part(
        **{name: batch[name] for name in input_names(model) if name in batch},
        output_hidden_states="hidden_states" in needs,
        output_attentions="attentions" in needs,
    )
    return output


class _Said(nn.Module):
    """An encoder that has said what it says; whatever else a head asks of it, the encoder itself answers."""

    def __init__(self, encoder: nn.Module, output: ModelOutput) -> None:
        super().__init__()
        self.output = output
        self.__dict__["encoder"] = encoder  # Past the registry: it is nobody's part.

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["encoder"], name)

    def forward(self, *inputs: object, **options: object) -> ModelOutput:
        return self.output


@contextmanager
def _standing_in(model: PreTrainedModel, said: ModelOutput) -> Iterator[None]:
    """The model with this output in the place of its encoder."""
    encoder = model.base_model
    setattr(model, model.base_model_prefix, _Said(encoder, said))
    try:
        yield
    finally:
        setattr(model, model.base_model_prefix, encoder)


def moved(batch: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """The batch on another device."""
    return {name: tensor.to(device) for name, tensor in batch.items()}


def input_names(model: PreTrainedModel) -> list[str]:
    """Tensors that the model reads: its `forward`'s, out of those that a tokenizer makes."""
    accepted = inspect.signature(model.forward).parameters
    return [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in accepted]
