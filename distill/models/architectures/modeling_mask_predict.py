"""A BART whose decoder reads targets from both sides and fills their masks, and that predicts their lengths.

The encoder-decoder of Mask-Predict (Ghazvininejad et al., arXiv 1904.09324, section 2), which predicts all masked
tokens of a target at once. Requires torch and transformers.

`save_pretrained` copies this file into the model's directory, and `from_pretrained(directory, trust_remote_code=True)`
loads the model from there.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSeq2SeqLM, BartConfig, BartForConditionalGeneration, BartModel
from transformers.modeling_outputs import Seq2SeqLMOutput, Seq2SeqModelOutput

from .modeling_texts import register


class MaskPredictConfig(BartConfig):
    """Configuration of the model.

    Args:
        most_tokens: the largest length of a target that is predicted, in tokens without special ones.
        options: those of a BART.
    """

    model_type = "distill_mask_predict"
    most_tokens: int = 128


@dataclass
class MaskPredictStates(Seq2SeqModelOutput):
    """The states of both halves, and `length_logits [B, M+1]`, of the lengths from 0."""

    length_logits: Tensor | None = None


@dataclass
class MaskPredictOutput(Seq2SeqLMOutput):
    """The logits `[B, T, V]` of a target, and `length_logits [B, M+1]`, of the lengths from 0."""

    length_logits: Tensor | None = None


class MaskPredictModel(BartModel):
    """Both halves without the head over the vocabulary."""

    config_class = MaskPredictConfig

    def __init__(self, config: MaskPredictConfig) -> None:
        super().__init__(config)
        self.length_head = nn.Linear(config.d_model, config.most_tokens + 1)
        self.post_init()

    def predict_lengths(self, states: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Returns logits `[B, M+1]` of the lengths from states `[B, L, H]` of the encoder.

        They are read from the mean of the states. The paper has a token of its own for the length, in front of the
        source, for which an encoder that was trained before has no embedding.
        """
        mask = states.new_ones(states.shape[:2]) if attention_mask is None else attention_mask.to(states.dtype)
        mean = (states * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)
        logits: Tensor = self.length_head(mean)
        return logits

    def forward(  # type: ignore[override]  # It has no caches of keys and values.
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        **options: Any,
    ) -> MaskPredictStates:
        """Returns the states of a source `[B, L]` and of a target `[B, T]` with masks."""
        assert decoder_input_ids is not None
        if decoder_attention_mask is None:
            decoder_attention_mask = torch.ones_like(decoder_input_ids)
        output = super().forward(
            input_ids, attention_mask=attention_mask, decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=hide_padding(decoder_attention_mask, self.decoder.layernorm_embedding.weight.dtype),
            encoder_outputs=encoder_outputs, **{**options, "use_cache": False, "return_dict": True},
        )  # fmt: skip
        states: Tensor = output.encoder_last_hidden_state
        return MaskPredictStates(**output, length_logits=self.predict_lengths(states, attention_mask))


def hide_padding(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns a mask `[B, 1, T, T]` by which each token reads all tokens but padding, from that of a target `[B, T]`.

    A BART's decoder makes a causal mask of one with two axes, and takes one with four as it is.
    """
    hidden = (1.0 - mask[:, None, None].to(dtype)) * torch.finfo(dtype).min
    return hidden.expand(-1, 1, mask.shape[1], -1)


class MaskPredictForConditionalGeneration(BartForConditionalGeneration):
    """The model with its head over the vocabulary. It writes no tokens one after another: `generate` is not for it."""

    config_class = MaskPredictConfig
    family = AutoModelForSeq2SeqLM

    def __init__(self, config: MaskPredictConfig) -> None:
        super().__init__(config)
        self.model = MaskPredictModel(config)
        self.post_init()

    @classmethod
    def can_generate(cls) -> bool:
        return False

    def forward(  # type: ignore[override]  # It has no caches of keys and values.
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        **options: Any,
    ) -> MaskPredictOutput:
        """Returns the logits of a target `[B, T]` with masks, of a source `[B, L]`, and of the target's length."""
        output = self.model(
            input_ids, attention_mask=attention_mask, decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask, encoder_outputs=encoder_outputs, **options,
        )  # fmt: skip
        logits = self.lm_head(output.last_hidden_state) + self.final_logits_bias
        fields = {name: value for name, value in output.items() if name != "last_hidden_state"}
        return MaskPredictOutput(logits=logits, **fields)


register(MaskPredictForConditionalGeneration)
