"""DistilBERT with fewer heads and inner neurons in each layer, and narrow embeddings. Requires torch and transformers.

The heads keep their size, so that the queries, keys and values of a layer are narrower than its states, which a
DistilBERT (arXiv 1910.01108) cannot be.

`save_pretrained` copies this file into the model's directory, and `from_pretrained(directory, trust_remote_code=True)`
loads the model from there.
"""

from torch import Tensor, nn
from transformers import AutoModel, DistilBertConfig, DistilBertModel
from transformers.models.distilbert.modeling_distilbert import (
    FFN,
    DistilBertPreTrainedModel,
    DistilBertSelfAttention,
    Embeddings,
    Transformer,
    TransformerBlock,
)

from .modeling_texts import ENCODER_HEADS, derive_models, register


class NarrowDistilBertConfig(DistilBertConfig):
    """Configuration of the model; `dim // n_heads` is the size of a head.

    Args:
        layer_heads: number of heads of each layer; None for `n_heads`.
        layer_ffn: number of inner neurons of each layer; None for `hidden_dim`.
        embedding_size: width of the embeddings of words; None for `dim`.
    """

    model_type = "distill_narrow_distilbert"
    attribute_map = {"hidden_size": "dim", "num_hidden_layers": "n_layers"}  # noqa: RUF012

    layer_heads: list[int] | None = None
    layer_ffn: list[int] | None = None
    embedding_size: int | None = None

    @property
    def num_attention_heads(self) -> int:
        """The number of heads of the layer that has most."""
        return int(max(self.layer_heads or [self.n_heads]))


class NarrowAttention(DistilBertSelfAttention):
    """Attention with some heads of the size `dim // n_heads`."""

    def __init__(self, config: NarrowDistilBertConfig, heads: int) -> None:
        super().__init__(config)
        self.n_heads = heads
        width = heads * self.attention_head_size
        self.q_lin, self.k_lin, self.v_lin = (nn.Linear(config.dim, width) for _ in range(3))
        self.out_lin = nn.Linear(width, config.dim)


class NarrowFFN(FFN):
    """The feed-forward network of a layer with some inner neurons."""

    def __init__(self, config: NarrowDistilBertConfig, neurons: int) -> None:
        super().__init__(config)
        self.lin1, self.lin2 = nn.Linear(config.dim, neurons), nn.Linear(neurons, config.dim)


class NarrowBlock(TransformerBlock):
    """One layer."""

    def __init__(self, config: NarrowDistilBertConfig, heads: int, neurons: int) -> None:
        super().__init__(config)
        self.attention = NarrowAttention(config, heads)
        self.ffn = NarrowFFN(config, neurons)


class NarrowTransformer(Transformer):
    """The layers."""

    def __init__(self, config: NarrowDistilBertConfig) -> None:
        nn.Module.__init__(self)
        self.n_layers = config.n_layers
        heads = config.layer_heads or [config.n_heads] * config.n_layers
        sizes = zip(heads, config.layer_ffn or [config.hidden_dim] * config.n_layers, strict=True)
        self.layer = nn.ModuleList(NarrowBlock(config, heads, neurons) for heads, neurons in sizes)
        self.gradient_checkpointing = False


class NarrowEmbeddings(Embeddings):
    """Embeddings of words `[V, E]` with a projection to the width of the layers, which those of positions have."""

    def __init__(self, config: NarrowDistilBertConfig) -> None:
        super().__init__(config)
        width = config.embedding_size or config.dim
        self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.word_projection = nn.Linear(width, config.dim, bias=False)

    def forward(
        self, input_ids: Tensor, inputs_embeds: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        """Returns the normalized embeddings `[B, L, H]` of `input_ids [B, L]` or of `inputs_embeds [B, L, E]`."""
        rows = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        embeddings: Tensor = super().forward(None, self.word_projection(rows), position_ids)
        return embeddings


_RECORDED = {"hidden_states": NarrowBlock, "attentions": NarrowAttention}


class NarrowDistilBertModel(DistilBertModel):
    """The encoder."""

    config_class = NarrowDistilBertConfig
    family = AutoModel
    _can_record_outputs = _RECORDED

    def __init__(self, config: NarrowDistilBertConfig) -> None:
        DistilBertPreTrainedModel.__init__(self, config)
        self.embeddings = Embeddings(config) if config.embedding_size is None else NarrowEmbeddings(config)
        self.transformer = NarrowTransformer(config)
        self.post_init()


class _Head:
    """Replaces the encoder of a DistilBERT with a head."""

    _can_record_outputs = _RECORDED

    def __init__(self, config: NarrowDistilBertConfig) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        self.distilbert = NarrowDistilBertModel(config)
        self.post_init()  # type: ignore[attr-defined]


register(NarrowDistilBertModel, *derive_models(globals(), "Narrow", NarrowDistilBertConfig, ENCODER_HEADS, _Head))
