"""ALBERT whose layers share only their attention or only their feed-forward network. Requires torch and transformers.

ALBERT itself (arXiv 1909.11942) shares whole layers. Each shared part is one module that several layers call, so that
it stands once in every file.

`save_pretrained` copies this file into the model's directory, and `from_pretrained(directory, trust_remote_code=True)`
loads the model from there.
"""

from typing import Any

from torch import Tensor, nn
from transformers import AlbertConfig, AlbertModel, AutoModel, AutoModelForPreTraining
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.albert.modeling_albert import AlbertAttention, AlbertLayer

from .modeling_texts import ENCODER_HEADS, derive_models, register


class SharedAlbertConfig(AlbertConfig):
    """Configuration of the model; `num_hidden_groups` is not read.

    Args:
        attention_groups: number of groups of layers that share one attention.
        ffn_groups: number of groups of layers that share one feed-forward network.
    """

    model_type = "distill_shared_albert"

    attention_groups: int = 1
    ffn_groups: int = 1


def group_of(layer: int, *, layers: int, groups: int) -> int:
    """Returns the group of a layer, as ALBERT counts it."""
    return int(layer / (layers / groups))


class FeedForward(AlbertLayer):
    """The feed-forward network of a layer, with its residual and its norm."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config)
        del self.attention

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        """Returns the states `[B, L, H]` of the layer from those behind its attention."""
        states: Tensor = self.full_layer_layer_norm(self.ff_chunk(hidden_states) + hidden_states)
        return states


class LayerCall(nn.Module):
    """One layer, made of parts that are given. It has no weights, and its calls are recorded as those of a layer."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None,
        attention: AlbertAttention,
        feed_forward: FeedForward,
        **kwargs: Any,
    ) -> Tensor:
        """Returns the states `[B, L, H]` behind the layer."""
        attended, _ = attention(hidden_states, attention_mask, **kwargs)
        states: Tensor = feed_forward(attended)
        return states


class SharedAlbertEncoder(nn.Module):
    """The layers and the projection of the embeddings to their width."""

    def __init__(self, config: SharedAlbertConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding_hidden_mapping_in = nn.Linear(config.embedding_size, config.hidden_size)
        self.attention = nn.ModuleList(AlbertAttention(config) for _ in range(config.attention_groups))
        self.ffn = nn.ModuleList(FeedForward(config) for _ in range(config.ffn_groups))
        self.layer_call = LayerCall()

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> BaseModelOutput:
        """Returns the last states `[B, L, H]` for embeddings `[B, L, E]`."""
        config = self.config
        layers = config.num_hidden_layers
        states = self.embedding_hidden_mapping_in(hidden_states)
        for layer in range(layers):
            attention = self.attention[group_of(layer, layers=layers, groups=config.attention_groups)]
            feed_forward = self.ffn[group_of(layer, layers=layers, groups=config.ffn_groups)]
            states = self.layer_call(states, attention_mask, attention, feed_forward, **kwargs)
        return BaseModelOutput(last_hidden_state=states)


_RECORDED = {"hidden_states": LayerCall, "attentions": AlbertAttention}


class SharedAlbertModel(AlbertModel):
    """The encoder."""

    config_class = SharedAlbertConfig
    family = AutoModel
    _can_record_outputs = _RECORDED

    def __init__(self, config: SharedAlbertConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config, add_pooling_layer=add_pooling_layer)
        self.encoder = SharedAlbertEncoder(config)
        self.post_init()


class _Head:
    """Replaces the encoder of an ALBERT with a head."""

    _can_record_outputs = _RECORDED

    def __init__(self, config: SharedAlbertConfig) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        self.albert = SharedAlbertModel(config, add_pooling_layer=self.albert.pooler is not None)  # type: ignore[has-type]
        self.post_init()  # type: ignore[attr-defined]


_HEADS = (*ENCODER_HEADS, AutoModelForPreTraining)
register(SharedAlbertModel, *derive_models(globals(), "Shared", SharedAlbertConfig, _HEADS, _Head))
