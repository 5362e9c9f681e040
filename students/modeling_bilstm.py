"""A bidirectional LSTM with the heads of every kind of task as Hugging Face models. Requires torch and transformers.

`save_pretrained` copies this file into the model's directory, and `from_pretrained(directory, trust_remote_code=True)`
loads the model from there.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import (
    BaseModelOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)


class BilstmConfig(PreTrainedConfig):
    """Configuration of the model.

    Args:
        hidden_dim: width of each direction, half the width of the hidden states.
        classifier_dim: width of the ReLU layer of a head for whole texts.
        pooling: `last` (the last state of each direction), `max` or `mean` over the tokens, for a head for whole texts.
        pair: a head for whole texts encodes the two texts of a pair separately and compares them; the first separator
            ends the first text.
    """

    model_type = "distill_bilstm"

    def __init__(
        self,
        *,
        vocab_size: int = 30522,
        embedding_dim: int = 300,
        hidden_dim: int = 150,
        num_hidden_layers: int = 1,
        classifier_dim: int = 200,
        dropout: float = 0.1,
        pooling: str = "last",
        pair: bool = False,
        sep_token_id: int | None = None,
        pad_token_id: int | None = 0,
        **kwargs: object,
    ) -> None:
        self.vocab_size = vocab_size
        self.embedding_dim = embedding_dim
        self.hidden_dim = hidden_dim
        self.num_hidden_layers = num_hidden_layers
        self.classifier_dim = classifier_dim
        self.dropout = dropout
        self.pooling = pooling
        self.pair = pair
        super().__init__(pad_token_id=pad_token_id, sep_token_id=sep_token_id, **kwargs)

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states, of both directions together."""
        return 2 * self.hidden_dim


class BilstmLayer(nn.Module):
    """A bidirectional LSTM layer whose backward direction starts at the last token of each text.

    The backward direction of a bidirectional `nn.LSTM` would start in the padding. Packed sequences would avoid that,
    but cannot be exported.
    """

    def __init__(self, input_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.forwards = nn.LSTM(input_dim, hidden_dim, batch_first=True)
        self.backwards = nn.LSTM(input_dim, hidden_dim, batch_first=True)

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Encodes `states [N, W, D]` of texts of `lengths [N]` -> `[N, W, 2 * hidden_dim]`."""
        position = torch.arange(states.shape[1], device=states.device)
        reversed_position = (lengths[:, None] - 1 - position).clamp(min=0)  # [N, W], its own inverse within a text.
        forward_states, _ = self.forwards(states)
        backward_states, _ = self.backwards(_gather(states, reversed_position))
        return torch.cat([forward_states, _gather(backward_states, reversed_position)], dim=-1)


@dataclass
class EncodedTexts:
    """The states of texts, which begin at the position 0 whatever padding the batch has.

    Attributes:
        states: of the embeddings and each layer, `[B * T, W, D]`, for T texts in a row of the batch.
        starts: first position of each text in the batch, `[B, T]`.
        lengths: tokens of each text, `[B, T]`.
        mask: `[B, L]`.
        width: W, which an export cannot read from the states.
    """

    states: list[Tensor]
    starts: Tensor
    lengths: Tensor
    mask: Tensor
    width: int

    def last_hidden_state(self) -> Tensor:
        """Returns the states of the last layer at the positions of the tokens, `[B, L, D]`."""
        return self._restore_positions(self.states[-1])

    def hidden_states(self, requested: bool) -> tuple[Tensor, ...] | None:
        """Returns the states of the embeddings and each layer at the positions of the tokens, if they are requested."""
        if not requested:
            return None
        return tuple(map(self._restore_positions, self.states))

    def _restore_positions(self, states: Tensor) -> Tensor:
        """Moves states of texts `[B * T, W, D]` to the positions of their tokens, `[B, L, D]`, 0 for padding."""
        batch, texts = self.starts.shape
        position = torch.arange(self.mask.shape[1], device=self.mask.device).expand(batch, -1)
        if texts == 1:
            within = (position - self.starts).clamp(min=0, max=self.width - 1)
            return _gather(states, within) * self.mask[..., None]
        # An empty second text starts at 0 and has no tokens.
        text = ((position >= self.starts[:, 1:]) & (self.starts[:, 1:] > self.starts[:, :1])).long()
        within = (position - self.starts.gather(1, text)).clamp(min=0, max=self.width - 1)
        by_row = states.unflatten(0, (batch, texts)).flatten(1, 2)
        return _gather(by_row, text * self.width + within) * self.mask[..., None]


class BilstmPreTrainedModel(PreTrainedModel):
    """Token ids -> embeddings -> BiLSTM layers; the subclasses have the heads."""

    config_class = BilstmConfig

    def __init__(self, config: BilstmConfig) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.embedding_dim)
        widths = [config.embedding_dim] + [config.hidden_size] * config.num_hidden_layers
        self.layers = nn.ModuleList(BilstmLayer(width, config.hidden_dim) for width in widths[:-1])
        self.dropout = nn.Dropout(config.dropout)

    def _init_weights(self, module: nn.Module) -> None:
        """Uses torch's initialization, because the default of transformers does not cover LSTMs."""
        if isinstance(module, nn.Linear | nn.Embedding | nn.LSTM):
            module.reset_parameters()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embeddings = value

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None, *, pair: bool = False) -> EncodedTexts:
        """Encodes each row of `input_ids [B, L]` as one text, or as the two texts of a pair by themselves."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        starts, lengths = self._locate_texts(input_ids, mask, pair=pair)  # [B, T], for T texts
        width = input_ids.shape[1] if torch.compiler.is_exporting() else int(lengths.max().clamp(min=1))
        position = torch.arange(width, device=input_ids.device)
        source = (starts[:, :, None] + position).clamp(max=input_ids.shape[1] - 1).flatten(1)  # [B, T * W]
        embedded = self.embeddings(input_ids.gather(1, source))
        states = [embedded.unflatten(1, (-1, width)).flatten(0, 1)]  # [B * T, W, E]
        for layer in self.layers:
            states.append(layer(self.dropout(states[-1]), lengths.flatten()))
        return EncodedTexts(states, starts, lengths, mask, width)

    def _locate_texts(self, input_ids: Tensor, mask: Tensor, *, pair: bool) -> tuple[Tensor, Tensor]:
        """Returns first position and length of each text, both `[B, T]`, for padding on either side."""
        is_token = mask.bool()
        if not pair:
            return is_token.int().argmax(dim=1, keepdim=True), is_token.sum(dim=1, keepdim=True)
        separators = ((input_ids == self.config.sep_token_id) & is_token).long()
        in_second = is_token & (separators.cumsum(dim=1) - separators > 0)
        in_first = is_token & ~in_second
        texts = torch.stack([in_first, in_second], dim=1)  # [B, 2, L]
        return texts.int().argmax(dim=2), texts.sum(dim=2)


class BilstmTextScorer(BilstmPreTrainedModel):
    """Hidden states -> pooling -> a ReLU layer -> `outputs` scores of a text or a pair (arXiv 1903.12136, section 3.1).

    The two texts of a pair share the encoder and are compared by `[u; v; u * v; |u - v|]`. Separators belong to one of
    the texts, so that every token has a hidden state.
    """

    def __init__(self, config: BilstmConfig, outputs: int) -> None:
        super().__init__(config)
        self.pre_classifier = nn.Linear(config.hidden_size * (4 if config.pair else 1), config.classifier_dim)
        self.classifier = nn.Linear(config.classifier_dim, outputs)
        self.post_init()

    def score(
        self, input_ids: Tensor, attention_mask: Tensor | None, output_hidden_states: bool
    ) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """Returns the scores `[B, outputs]` of `input_ids [B, L]`, and if requested the hidden states `[B, L, D]`."""
        encoded = self.encode(input_ids, attention_mask, pair=self.config.pair)
        pooled = self._pool(encoded.states[-1], encoded.lengths.flatten())
        pooled = pooled.unflatten(0, (-1, encoded.starts.shape[1]))  # [B, T, 2 * hidden_dim]
        first = pooled[:, 0]
        if self.config.pair:
            second = pooled[:, 1]
            first = torch.cat([first, second, first * second, (first - second).abs()], dim=-1)
        features = torch.relu(self.pre_classifier(self.dropout(first)))
        return self.classifier(self.dropout(features)), encoded.hidden_states(output_hidden_states)

    def _pool(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Pools `states [N, W, H]` over the first `lengths [N]` tokens -> `[N, H]`, 0 for an empty text."""
        is_token = (torch.arange(states.shape[1], device=states.device) < lengths[:, None])[..., None]  # [N, W, 1]
        if self.config.pooling == "mean":
            return (states * is_token).sum(dim=1) / lengths.clamp(min=1)[:, None]
        if self.config.pooling == "max":
            largest = states.masked_fill(~is_token, torch.finfo(states.dtype).min).amax(dim=1)
            return largest * (lengths > 0)[:, None]
        last = _gather(states, (lengths - 1).clamp(min=0)[:, None])[:, 0]
        half = self.config.hidden_dim
        return torch.cat([last[:, :half], states[:, 0, half:]], dim=-1) * (lengths > 0)[:, None]


class BilstmForSequenceClassification(BilstmTextScorer):
    """Scores of the classes of one text or a pair of texts: `logits [B, C]`."""

    def __init__(self, config: BilstmConfig) -> None:
        super().__init__(config, outputs=config.num_labels)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        **kwargs: object,
    ) -> SequenceClassifierOutput:
        """Returns `logits [B, C]` of `input_ids [B, L]`, and if requested the `hidden_states [B, L, D]`."""
        logits, hidden_states = self.score(input_ids, attention_mask, output_hidden_states)
        return SequenceClassifierOutput(logits=logits, hidden_states=hidden_states)


class BilstmForMultipleChoice(BilstmTextScorer):
    """One score for each choice, which the model reads as a pair with its question: `logits [B, K]`."""

    def __init__(self, config: BilstmConfig) -> None:
        super().__init__(config, outputs=1)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        **kwargs: object,
    ) -> MultipleChoiceModelOutput:
        """Returns `logits [B, K]` of `input_ids [B, K, L]`, and if requested `hidden_states [B * K, L, D]`."""
        mask = None if attention_mask is None else attention_mask.flatten(0, 1)
        scores, hidden_states = self.score(input_ids.flatten(0, 1), mask, output_hidden_states)
        return MultipleChoiceModelOutput(logits=scores.view(-1, input_ids.shape[1]), hidden_states=hidden_states)


class BilstmModel(BilstmPreTrainedModel):
    """The encoder without a head, for vectors of texts. It reads a pair as one text."""

    def __init__(self, config: BilstmConfig) -> None:
        super().__init__(config)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        **kwargs: object,
    ) -> BaseModelOutput:
        """Returns `last_hidden_state [B, L, 2 * hidden_dim]` of `input_ids [B, L]`, and if requested all states."""
        encoded = self.encode(input_ids, attention_mask)
        return BaseModelOutput(
            last_hidden_state=encoded.last_hidden_state(), hidden_states=encoded.hidden_states(output_hidden_states)
        )


class BilstmTokenScorer(BilstmPreTrainedModel):
    """Hidden states -> `outputs` scores of each token. A pair is read as one text, so that its texts see each other."""

    def __init__(self, config: BilstmConfig, outputs: int) -> None:
        super().__init__(config)
        self.classifier = nn.Linear(config.hidden_size, outputs)
        self.post_init()

    def score(
        self, input_ids: Tensor, attention_mask: Tensor | None, output_hidden_states: bool
    ) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """Returns the scores `[B, L, outputs]`, and if requested the hidden states `[B, L, D]`."""
        encoded = self.encode(input_ids, attention_mask)
        scores = self.classifier(self.dropout(encoded.last_hidden_state()))
        return scores, encoded.hidden_states(output_hidden_states)


class BilstmForTokenClassification(BilstmTokenScorer):
    """Scores of the tags of each token: `logits [B, L, C]`."""

    def __init__(self, config: BilstmConfig) -> None:
        super().__init__(config, outputs=config.num_labels)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        **kwargs: object,
    ) -> TokenClassifierOutput:
        """Returns `logits [B, L, C]` of `input_ids [B, L]`, and if requested the `hidden_states [B, L, D]`."""
        logits, hidden_states = self.score(input_ids, attention_mask, output_hidden_states)
        return TokenClassifierOutput(logits=logits, hidden_states=hidden_states)


class BilstmForQuestionAnswering(BilstmTokenScorer):
    """Scores of each token as the start and as the end of an answer: `start_logits` and `end_logits [B, L]`."""

    def __init__(self, config: BilstmConfig) -> None:
        super().__init__(config, outputs=2)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        **kwargs: object,
    ) -> QuestionAnsweringModelOutput:
        """Returns both logits `[B, L]` of `input_ids [B, L]`, and if requested the `hidden_states [B, L, D]`."""
        scores, hidden_states = self.score(input_ids, attention_mask, output_hidden_states)
        start_logits, end_logits = scores.unbind(dim=-1)
        return QuestionAnsweringModelOutput(
            start_logits=start_logits, end_logits=end_logits, hidden_states=hidden_states
        )


def _gather(states: Tensor, positions: Tensor) -> Tensor:
    """Selects `states [N, W, D]` at `positions [N, K]` -> `[N, K, D]`."""
    return states.gather(1, positions[..., None].expand(-1, -1, states.shape[-1]))


AutoConfig.register(BilstmConfig.model_type, BilstmConfig)
BilstmConfig.register_for_auto_class()
for _auto_class, _model in {
    AutoModel: BilstmModel,
    AutoModelForSequenceClassification: BilstmForSequenceClassification,
    AutoModelForMultipleChoice: BilstmForMultipleChoice,
    AutoModelForTokenClassification: BilstmForTokenClassification,
    AutoModelForQuestionAnswering: BilstmForQuestionAnswering,
}.items():
    _auto_class.register(BilstmConfig, _model)
    _model.register_for_auto_class(_auto_class.__name__)
