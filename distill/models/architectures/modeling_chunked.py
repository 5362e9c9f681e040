"""A model that reads a long text in chunks, each as a text of its own. Requires torch and transformers.

`save_pretrained` copies this file into the model's directory, and `from_pretrained(directory, trust_remote_code=True)`
loads the model from there.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from .modeling_texts import AroundEncoderConfig, Scores, TextHead, TextReader, register


class ChunkedConfig(AroundEncoderConfig):
    """Configuration of a model that reads chunks, each with an encoder.

    Args:
        chunk: tokens of a chunk with its first and last special token.
        chunk_overlap: tokens that a chunk has in common with the one before it.
        chunk_pooling: of the scores of the chunks: `mean`, `max`, or `learned`, a mean with weights from their vectors.
    """

    model_type = "distill_chunked"

    chunk: int
    chunk_overlap: int
    chunk_pooling: str

    def __post_init__(self, **options: Any) -> None:
        super().__post_init__(**options)
        self.vocab_size = int(self.encoder.vocab_size)

    @property
    def attention_window(self) -> int:
        """A token attends to those of its chunk alone."""
        return self.chunk


@dataclass
class Chunks:
    """The chunks of a batch of texts, as many for each text as the longest one may have.

    Attributes:
        input_ids: `[B * k, W]`.
        attention_mask: `[B * k, W]`.
        is_used: whether a chunk has tokens that no chunk before it has, `[B, k]`.
        place: of each token of the texts among those of its chunks, `[B, L]`, from 0 to k * W - 1.
    """

    input_ids: Tensor
    attention_mask: Tensor
    is_used: Tensor
    place: Tensor

    def restore(self, states: Tensor) -> Tensor:
        """Returns the states of the texts' tokens `[B, L, H]` from those of the chunks `[B * k, W, H]`."""
        by_text = states.unflatten(0, self.is_used.shape).flatten(1, 2)  # [B, k * W, H]
        restored: Tensor = by_text.gather(1, self.place[..., None].expand(-1, -1, states.shape[-1]))
        return restored


def cut_chunks(input_ids: Tensor, attention_mask: Tensor, config: Any) -> Chunks:
    """Cuts `[CLS] tokens [SEP]` of `input_ids [B, L]` into chunks of this form, for padding on either side."""
    length = input_ids.shape[1]
    size = config.chunk - 2  # Without special tokens.
    step = size - config.chunk_overlap
    count = 1 + torch.sym_max(0, (length - 3 - size + step) // step)
    width = torch.sym_min(length, config.chunk)
    start = attention_mask.argmax(dim=1)[:, None, None]  # [B, 1, 1], the position of [CLS]
    tokens = (attention_mask.sum(dim=1)[:, None, None] - 2).clamp(min=0)  # [B, 1, 1], without special tokens
    first = (torch.arange(count, device=input_ids.device) * step)[None, :, None]  # [1, k, 1], counted from 0
    position = torch.arange(width, device=input_ids.device)[None, None, :]  # [1, 1, W]
    inside = (tokens - first).clamp(min=0, max=size)  # [B, k, 1]
    source = (start + first + position).clamp(max=length - 1)
    ids = input_ids[:, None].expand(-1, count, -1).gather(2, source)
    ids = ids.where(position > 0, config.cls_token_id).where(position != inside + 1, config.sep_token_id)
    mask = position <= inside + 1  # [B, k, W]
    ids = ids.where(mask, config.pad_token_id)
    is_used = (first + config.chunk_overlap < tokens) | (first == 0)  # [B, k, 1]
    last = is_used.long().sum(dim=1) - 1  # [B, 1]
    index = torch.arange(length, device=input_ids.device)[None] - start[:, 0]  # [B, L], 0 at [CLS]
    chunk = ((index - 1).clamp(min=0) // step).minimum(last)
    place = (chunk * width + (index - chunk * step).clamp(min=0, max=width - 1)).clamp(min=0)
    return Chunks(ids.flatten(0, 1), mask.long().flatten(0, 1), is_used[..., 0], place)


class ChunkedPreTrainedModel(PreTrainedModel):
    """Token ids -> chunks -> a model of the same auto class that reads each; the subclasses pool its outputs."""

    config_class = ChunkedConfig
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True
    family: Any

    def __init__(self, config: ChunkedConfig) -> None:
        super().__init__(config)
        self.model = self.family.from_config(config.encoder, dtype=torch.get_default_dtype())

    def get_input_embeddings(self) -> nn.Module:
        embeddings: nn.Module = self.model.get_input_embeddings()
        return embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.model.set_input_embeddings(value)

    def set_attn_implementation(self, attn_implementation: str | dict[str, str], **options: bool) -> None:
        """Sets the attention of the model that reads a chunk."""
        self.model.set_attn_implementation(attn_implementation, **options)
        self.config._attn_implementation = attn_implementation

    def read_chunks(
        self, input_ids: Tensor, mask: Tensor, output_hidden_states: bool
    ) -> tuple[Chunks, Any, tuple[Tensor, ...] | None]:
        """Returns the chunks, the model's output for them, and if requested the states of the texts `[B, L, H]`."""
        chunks = cut_chunks(input_ids, mask.long(), self.config)
        needs_states = output_hidden_states or self.config.chunk_pooling == "learned"
        output = self.model(
            input_ids=chunks.input_ids, attention_mask=chunks.attention_mask, output_hidden_states=needs_states
        )
        states = tuple(map(chunks.restore, output.hidden_states)) if output_hidden_states else None
        return chunks, output, states


class ChunkedForSequenceClassification(TextHead, ChunkedPreTrainedModel):
    """Scores of the classes of a text, pooled over its chunks: `logits [B, C]`."""

    def __init__(self, config: ChunkedConfig) -> None:
        encoder = config.encoder
        encoder.id2label, encoder.label2id = dict(config.id2label), dict(config.label2id)
        super().__init__(config)
        self.weigh = nn.Linear(config.hidden_size, 1) if config.chunk_pooling == "learned" else None
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Gives every chunk the same weight at first."""
        if isinstance(module, ChunkedForSequenceClassification) and module.weigh is not None:
            nn.init.zeros_(module.weigh.weight)
            nn.init.zeros_(module.weigh.bias)

    def score(self, input_ids: Tensor, mask: Tensor, output_hidden_states: bool, features: None) -> Scores:
        """Returns the scores `[B, C]` of `input_ids [B, L]`, and if requested the hidden states `[B, L, H]`."""
        chunks, output, states = self.read_chunks(input_ids, mask, output_hidden_states)
        used = chunks.is_used[..., None]  # [B, k, 1]
        logits = output.logits.unflatten(0, chunks.is_used.shape)  # [B, k, C]
        lowest = torch.finfo(logits.dtype).min
        if self.config.chunk_pooling == "max":
            return logits.masked_fill(~used, lowest).amax(dim=1), states
        weights = used.to(logits.dtype) / used.sum(dim=1, keepdim=True)
        if self.weigh is not None:
            scores = self.weigh(output.hidden_states[-1][:, 0]).unflatten(0, chunks.is_used.shape)  # [B, k, 1]
            weights = scores.masked_fill(~used, lowest).softmax(dim=1)
        return (logits * weights).sum(dim=1), states


class ChunkedModel(TextReader, ChunkedPreTrainedModel):
    """The encoder without a head, for vectors: the states of a text's tokens, each from its chunk."""

    def __init__(self, config: ChunkedConfig) -> None:
        super().__init__(config)
        self.post_init()

    def read(self, input_ids: Tensor, mask: Tensor, output_hidden_states: bool, features: None) -> BaseModelOutput:
        """Returns `last_hidden_state [B, L, H]` of `input_ids [B, L]`, and if requested all states."""
        chunks, output, states = self.read_chunks(input_ids, mask, output_hidden_states)
        return BaseModelOutput(last_hidden_state=chunks.restore(output.last_hidden_state), hidden_states=states)


register(ChunkedModel, ChunkedForSequenceClassification)
