"""A teacher whose logits are those of a module of its own, beside an encoder that has its hidden states."""

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from distill.models.forward import input_names


class LabelledEncoder(PreTrainedModel):
    """An encoder, and a module that gives the logits of the same inputs.

    `config` is that of the encoder, which runs only where its hidden states or attentions are asked for.

    Args:
        model: the encoder, whose head is not read.
        labels: returns logits `[B, C]` for `input_ids` and `attention_mask`, `[B, L]` both.
    """

    config_class = PreTrainedConfig
    base_model_prefix = "encoder"
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True

    def __init__(self, model: PreTrainedModel, labels: nn.Module) -> None:
        super().__init__(model.config)
        self.encoder, self.labels = model.base_model, labels

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> SequenceClassifierOutput:
        """Returns the logits `[B, C]`, and of the encoder what is asked for."""
        logits = self.labels(input_ids, attention_mask)
        if not (output_hidden_states or output_attentions):
            return SequenceClassifierOutput(logits=logits)
        inputs: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None and "token_type_ids" in input_names(self.encoder):
            inputs["token_type_ids"] = token_type_ids
        encoded = self.encoder(**inputs, output_hidden_states=output_hidden_states, output_attentions=output_attentions)
        return SequenceClassifierOutput(
            logits=logits, hidden_states=encoded.get("hidden_states"), attentions=encoded.get("attentions")
        )
