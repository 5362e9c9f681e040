"""Logits over a vocabulary, computed only at the items and in chunks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import ModelOutput

from distill.contracts import Items, Outputs
from distill.models.forward import ENCODE, run_encoder, run_head

CHUNK_LOGITS = 2**25  # 128 MiB in float32, about 1,100 tokens of BERT's vocabulary.


@dataclass(frozen=True, eq=False)
class EncoderPass:
    """The outputs of a model's encoder, from which its head computes the logits in chunks of items.

    For all tokens, the logits over a vocabulary would take as long as the encoder.

    Args:
        model: the model with its head.
        output: the output of its encoder.
        states: the last hidden states at all items, `[n, H]`.
        segments: whether to compute the head for two segments too.
    """

    model: PreTrainedModel
    output: ModelOutput
    states: Tensor
    segments: bool = False

    @property
    def chunk_size(self) -> int:
        return max(1, CHUNK_LOGITS // int(self.model.config.vocab_size))

    def whole(self) -> Outputs:
        """Returns all outputs except the logits of the items."""
        return Outputs(
            hidden_states=self.output.get("hidden_states"),
            attentions=self.output.get("attentions"),
            attention_vectors=self.output.get("attention_vectors"),
            segment_logits=self._segment_logits,
        )

    def at(self, items: Items) -> Outputs:
        """Returns the logits `[n, V]` of these items, and those of the segments if they are computed."""
        states = self.states[items.span]
        logits = run_head(self.model, self.output, states).logits[0]
        return Outputs(logits=logits, segment_logits=self._segment_logits)

    @cached_property
    def _segment_logits(self) -> Tensor | None:
        if not self.segments:
            return None
        # The head for two segments reads only the pooled output.
        logits: Tensor = run_head(self.model, self.output, self.output.last_hidden_state[:, 0]).seq_relationship_logits
        return logits


def run_encoder_pass(
    model: PreTrainedModel,
    batch: Mapping[str, Tensor],
    items: Items,
    needs: frozenset[str] = frozenset(),
    *,
    segments: bool = False,
) -> EncoderPass:
    """Runs the encoder and selects the last hidden states `[n, H]` at the items."""
    # A method if FSDP has sharded the model.
    encode: Callable[..., Any] = getattr(model, ENCODE, partial(run_encoder, model))
    output = encode(batch, needs)
    return EncoderPass(model, output, output.last_hidden_state.flatten(0, 1)[items.index], segments)
