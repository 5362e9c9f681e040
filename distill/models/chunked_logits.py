"""Logits over a vocabulary, computed only at the items and in chunks."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import ModelOutput

from distill.contracts import Items, Outputs
from distill.models.forward import ENCODE, collect_outputs, run_encoder, run_head, segment_logits

CHUNK_LOGITS = 2**23  # 32 MiB in float32, about 270 tokens of BERT's vocabulary and 170 of GPT-2's.


def run_encoder_pass(
    model: PreTrainedModel,
    batch: Mapping[str, Tensor],
    items: Items,
    needs: frozenset[str] = frozenset(),
    *,
    segments: bool = False,
    select_states: Callable[[ModelOutput], Tensor] | None = None,
) -> Outputs:
    """Runs the encoder, and the head at the items alone when their logits `[n, V]` are read, in chunks.

    For all tokens, the logits over a vocabulary would take as long as the encoder.

    Args:
        segments: whether to run the head for two segments too.
        select_states: returns the states `[n, D]` that the head reads at the items; None for the last hidden states of
            their tokens.
    """
    # A method if FSDP has sharded the model.
    encode: Callable[..., Any] = getattr(model, ENCODE, partial(run_encoder, model))
    output = encode(batch, needs)
    states = (  # [n, H]
        output.last_hidden_state.flatten(0, 1)[items.index] if select_states is None else select_states(output)
    )
    # The head for two segments reads only the pooled output.
    order = segment_logits(run_head(model, output, output.last_hidden_state[:, 0])) if segments else None

    def decode(states: Tensor) -> Tensor:
        logits: Tensor = run_head(model, output, states).logits[0]
        return logits

    return replace(
        collect_outputs(output),
        segment_logits=order,
        last_hidden_state=output.last_hidden_state,
        decode=decode,
        states=states,
        head=lambda span: decode(states[span]),
        chunk_size=max(1, CHUNK_LOGITS // int(model.config.vocab_size)),
    )
