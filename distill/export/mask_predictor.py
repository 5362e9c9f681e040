"""Export of models that fill the masks of targets to float32 ONNX: an encoder, and a decoder that reads its states."""

import copy
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.edge.model_files import encoder_file
from distill.export.onnx import save_program

BATCH, TARGET, SOURCE = 2, 5, 13  # Of the example. The exporter treats 0, 1 and equal sizes as fixed.
ROWS = "batch_size"


def export_mask_predictor(model: PreTrainedModel, path: Path) -> None:
    """Writes two files: a decoder to `path`, and its encoder beside it, which runs once for all rounds.

    The encoder has the inputs `input_ids [B, L]` and `attention_mask [B, L]`, and the outputs `last_hidden_state
    [B, L, H]` and `length_logits [B, M+1]`, of the lengths of a target from 0. The decoder has the inputs `input_ids
    [B, T]`, `attention_mask [B, T]`, `encoder_hidden_states [B, L, H]`, `encoder_attention_mask [B, L]` and
    `positions [n]`, counted over `[B * T]`, and the output `logits [n, V]`.
    """
    exported = copy.deepcopy(model).cpu().float().eval()
    exported.set_attn_implementation("eager")
    size = model.config.vocab_size
    source, target = (torch.arange(BATCH * length).reshape(BATCH, length) % size for length in (SOURCE, TARGET))
    mask, read = torch.ones_like(source), torch.ones_like(target)
    mask[1, -2:], read[1, -2:] = 0, 0
    axes, target_axes = {0: ROWS, 1: "source"}, {0: ROWS, 1: "length"}
    save_program(
        _Encoder(exported), (source, mask), encoder_file(path), inputs=["input_ids", "attention_mask"],
        outputs=["last_hidden_state", "length_logits"], shapes=(axes, axes),
    )  # fmt: skip
    states = torch.zeros(BATCH, SOURCE, model.config.hidden_size)
    save_program(
        _Decoder(exported), (target, read, states, mask, torch.tensor([1, 3, 6])), path,
        inputs=["input_ids", "attention_mask", "encoder_hidden_states", "encoder_attention_mask", "positions"],
        outputs=["logits"], shapes=(target_axes, target_axes, axes, axes, {0: "tokens"}),
    )  # fmt: skip


class _Encoder(nn.Module):
    """The encoder, with the prediction of lengths."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        states = self.model.get_encoder()(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return states, self.model.model.predict_lengths(states, attention_mask)


class _Decoder(nn.Module):
    """The decoder, with the head over the vocabulary at some positions."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, mask: Tensor, states: Tensor, source_mask: Tensor, positions: Tensor
    ) -> Tensor:
        output = self.model.model(
            attention_mask=source_mask, decoder_input_ids=input_ids, decoder_attention_mask=mask,
            encoder_outputs=(states,),
        )  # fmt: skip
        chosen = output.last_hidden_state.flatten(0, 1).index_select(0, positions)
        logits: Tensor = self.model.lm_head(chosen) + self.model.final_logits_bias
        return logits
