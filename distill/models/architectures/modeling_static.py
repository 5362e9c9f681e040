"""A text as the weighted mean of the vectors of its pieces, as Hugging Face models. Requires torch and transformers.

`save_pretrained` copies this file into the model's directory, and `from_pretrained(directory, trust_remote_code=True)`
loads the model from there.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.modeling_outputs import ModelOutput

from .modeling_texts import Scores, TextHead, TextModel, TextReader, mark_texts, register

_FACTOR = 1_000_003  # Of the first piece in the hash of two; a prime.


class StaticConfig(PreTrainedConfig):
    """Configuration of the model.

    Args:
        embedding_dim: width of the vectors of pieces.
        buckets: number of vectors of two pieces in a row, which share them by a hash; 0: none.
        bucket_dim: width of these vectors.
        classifier_dim: width of the ReLU layer of a head for whole texts.
        dropout: share of the inputs of both layers of the head that is dropped.
        token_dropout: share of the pieces of a text that a training step leaves out.
        pair: a head for whole texts compares the two texts of a pair; the first separator ends the first text.
    """

    model_type = "distill_static"

    vocab_size: int = 30522
    embedding_dim: int = 256
    buckets: int = 0
    bucket_dim: int = 64
    classifier_dim: int = 512
    dropout: float = 0.1
    token_dropout: float = 0.0
    pair: bool = False
    sep_token_id: int | None = None
    pad_token_id: int | None = 0

    @property
    def hidden_size(self) -> int:
        """Width of the vector of a text."""
        return self.embedding_dim + (self.bucket_dim if self.buckets else 0)

    @property
    def num_hidden_layers(self) -> int:
        """Number of layers between the vectors of pieces and the head."""
        return 0


@dataclass
class StaticOutput(ModelOutput):
    """The vectors of texts, and the states of tokens whose sums they are.

    Attributes:
        logits: the vectors, `[B, D]`.
        last_hidden_state, hidden_states: `[B, L, D]`, in training and evaluation alone.
    """

    logits: Tensor | None = None
    last_hidden_state: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class StaticPreTrainedModel(TextModel):
    """Piece ids -> their vectors -> the weighted mean of each text; the subclasses have the heads.

    The vector of a text is `sum_i w_i v_i / n` over its n pieces (Arora et al., "A simple but tough-to-beat baseline
    for sentence embeddings", ICLR 2017, algorithm 1, whose weights are not learned), and if there are buckets beside it
    `sum_i g(hash(piece_i, piece_i+1)) / n`. Special tokens are no pieces of a text.

    Attributes:
        weights: the weight of each piece, `[V, 1]`, an embedding as well, so that it is trained like one.
        counted: 1 for a piece and 0 for a special token, `[V]`.
        codes: the number of each piece that its hashes are made of, `[V]`, which stays when a piece gets another id.
    """

    config_class = StaticConfig
    embeddings: nn.Embedding
    counted: Tensor
    codes: Tensor

    def __init__(self, config: StaticConfig) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.embedding_dim)
        self.weights = nn.Embedding(config.vocab_size, 1)
        self.register_buffer("counted", torch.ones(config.vocab_size))
        self.pairs: nn.Embedding | None = None
        if config.buckets:
            self.pairs = nn.Embedding(config.buckets, config.bucket_dim)
            self.register_buffer("codes", torch.arange(config.vocab_size, dtype=torch.int32))
        self.dropout = nn.Dropout(config.dropout)

    def _init_weights(self, module: nn.Module) -> None:
        """Uses torch's initialization; vectors of two pieces begin at zero, and add nothing before they are trained."""
        super()._init_weights(module)
        if isinstance(module, StaticPreTrainedModel):
            nn.init.ones_(module.weights.weight)
            nn.init.ones_(module.counted)
            if module.pairs is not None:
                nn.init.zeros_(module.pairs.weight)
                torch.arange(len(module.codes), out=module.codes)

    @torch.no_grad()
    def select_pieces(self, kept: Tensor) -> None:
        """Keeps these pieces, `[V']`, under new ids from 0, in all that a piece has besides its embedding."""
        self.weights = nn.Embedding.from_pretrained(self.weights.weight[kept], freeze=False)
        self.counted = self.counted[kept]
        if self.pairs is not None:
            self.codes = self.codes[kept]

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None, *, pair: bool = False) -> Tensor:
        """Returns the vectors `[B, T, D]` of the T texts of each row of `input_ids [B, L]`, 0 for an empty text."""
        marks, weights = self._mark(input_ids, attention_mask, pair=pair)
        sums = [torch.matmul(marks * weights, self.embeddings(input_ids))]
        if self.pairs is not None:
            sums.append(torch.matmul(*self._hash(input_ids, marks)))
        return torch.cat(sums, dim=-1) / marks.sum(dim=-1, keepdim=True).clamp(min=1)

    def states(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Returns the terms of the sum of each row, read as one text, at their tokens: `[B, L, D]`."""
        marks, weights = self._mark(input_ids, attention_mask, pair=False)
        terms = [self.embeddings(input_ids) * (marks * weights).transpose(1, 2)]
        if self.pairs is not None:
            marks, vectors = self._hash(input_ids, marks)
            terms.append(vectors * marks[:, 0, :, None])
        return torch.cat(terms, dim=-1)

    def _mark(self, input_ids: Tensor, attention_mask: Tensor | None, *, pair: bool) -> tuple[Tensor, Tensor]:
        """Returns 1 for the pieces of each text, `[B, T, L]`, and the weights of the pieces, `[B, 1, L]`."""
        separator = self.config.sep_token_id if pair else None
        marks = mark_texts(input_ids, attention_mask, separator=separator) * self.counted[input_ids][:, None]
        if self.training and self.config.token_dropout:
            marks = marks * (torch.rand(input_ids.shape, device=marks.device) >= self.config.token_dropout)[:, None]
        return marks, self.weights(input_ids).transpose(1, 2)

    def _hash(self, input_ids: Tensor, marks: Tensor) -> tuple[Tensor, Tensor]:
        """Returns 1 for each piece that has another one of its text behind it, `[B, T, L]`, and the pairs' vectors."""
        assert self.pairs is not None
        codes = self.codes[input_ids].long()
        has_next = marks * torch.cat([marks[..., 1:], torch.zeros_like(marks[..., :1])], dim=-1)
        following = torch.cat([codes[:, 1:], codes[:, :1]], dim=-1)
        return has_next, self.pairs((codes * _FACTOR + following) % self.config.buckets)


class StaticForSequenceClassification(TextHead, StaticPreTrainedModel):
    """Scores of the classes of one text or a pair of texts: `logits [B, C]`.

    A pair is compared by `[u; v; |u - v|; u * v]` (arXiv 1705.02364, section 3.1).
    """

    def __init__(self, config: StaticConfig) -> None:
        super().__init__(config)
        self.add_classifier(config.hidden_size)

    def score(self, input_ids: Tensor, mask: Tensor, output_hidden_states: bool, features: None) -> Scores:
        """Returns the scores `[B, C]` of `input_ids [B, L]`, and if requested the states, one of `[B, L, D]`."""
        texts = self.encode(input_ids, mask, pair=self.config.pair)
        vector = texts[:, 0]
        if self.config.pair:
            other = texts[:, 1]
            vector = torch.cat([vector, other, (vector - other).abs(), vector * other], dim=-1)
        states = (self.states(input_ids, mask),) if output_hidden_states else None
        return self.classify(vector), states


class StaticModel(TextReader, StaticPreTrainedModel):
    """Vectors of texts. It reads a pair as one text."""

    def __init__(self, config: StaticConfig) -> None:
        super().__init__(config)
        self.post_init()

    def read(self, input_ids: Tensor, mask: Tensor, output_hidden_states: bool, features: None) -> StaticOutput:
        """Returns the vectors `[B, D]` of `input_ids [B, L]` as `logits`, of length 1 if the configuration says so."""
        vectors = self.encode(input_ids, mask)[:, 0]
        if (getattr(self.config, "sentence_vector", None) or {}).get("normalize"):
            vectors = nn.functional.normalize(vectors, dim=-1)
        states = self.states(input_ids, mask)
        return StaticOutput(
            logits=vectors, last_hidden_state=states, hidden_states=(states,) if output_hidden_states else None
        )


register(StaticModel, StaticForSequenceClassification)
