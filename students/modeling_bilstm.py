"""A bidirectional LSTM for classification and multiple choice as Hugging Face models. Requires torch and transformers.

`save_pretrained` copies this file into the model's directory, and `from_pretrained(directory, trust_remote_code=True)`
loads the model from there.
"""

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForMultipleChoice,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import MultipleChoiceModelOutput, SequenceClassifierOutput


class BilstmConfig(PreTrainedConfig):
    """Configuration of the model.

    Args:
        hidden_dim: width of each direction, half the width of the hidden states.
        pooling: `last` (the last state of each direction), `max` or `mean` over the tokens.
        pair: encode the two texts of a pair separately and compare them; the first separator ends the first text.
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


class BilstmPreTrainedModel(PreTrainedModel):
    """Token ids -> BiLSTM layers -> pooling -> a ReLU layer -> `outputs` scores (arXiv 1903.12136, section 3.1).

    The two texts of a pair share the encoder and are compared by `[u; v; u * v; |u - v|]`. Separators belong to one of
    the texts, so that every token has a hidden state.
    """

    config_class = BilstmConfig

    def __init__(self, config: BilstmConfig, outputs: int) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.embedding_dim)
        widths = [config.embedding_dim] + [config.hidden_size] * config.num_hidden_layers
        self.layers = nn.ModuleList(BilstmLayer(width, config.hidden_dim) for width in widths[:-1])
        self.dropout = nn.Dropout(config.dropout)
        self.pre_classifier = nn.Linear(config.hidden_size * (4 if config.pair else 1), config.classifier_dim)
        self.classifier = nn.Linear(config.classifier_dim, outputs)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Uses torch's initialization, because the default of transformers does not cover LSTMs."""
        if isinstance(module, nn.Linear | nn.Embedding | nn.LSTM):
            module.reset_parameters()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embeddings = value

    def score(
        self, input_ids: Tensor, attention_mask: Tensor | None, output_hidden_states: bool
    ) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """Returns the scores `[B, outputs]` of `input_ids [B, L]`, and if requested the hidden states of each layer.

        The hidden states are `[B, L, 2 * hidden_dim]`.
        """
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        starts, lengths = self._locate_texts(input_ids, mask)  # [B, T], for T texts
        width = input_ids.shape[1] if torch.compiler.is_exporting() else int(lengths.max().clamp(min=1))
        position = torch.arange(width, device=input_ids.device)
        source = (starts[:, :, None] + position).clamp(max=input_ids.shape[1] - 1).flatten(1)  # [B, T * W]
        states = self.dropout(self.embeddings(input_ids.gather(1, source)))
        states = states.unflatten(1, (-1, width)).flatten(0, 1)  # [B * T, W, E]
        layer_states = []
        for index, layer in enumerate(self.layers):
            states = layer(states if index == 0 else self.dropout(states), lengths.flatten())
            layer_states.append(states)
        pooled = self._pool(states, lengths.flatten()).unflatten(0, (-1, starts.shape[1]))  # [B, T, 2 * hidden_dim]
        first = pooled[:, 0]
        if self.config.pair:
            second = pooled[:, 1]
            first = torch.cat([first, second, first * second, (first - second).abs()], dim=-1)
        features = torch.relu(self.pre_classifier(self.dropout(first)))
        hidden_states = None
        if output_hidden_states:
            hidden_states = tuple(_restore_positions(layer, starts, mask) for layer in layer_states)
        return self.classifier(self.dropout(features)), hidden_states

    def _locate_texts(self, input_ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Returns first position and length of each text, both `[B, T]`, for padding on either side."""
        is_token = mask.bool()
        if not self.config.pair:
            return is_token.int().argmax(dim=1, keepdim=True), is_token.sum(dim=1, keepdim=True)
        separators = ((input_ids == self.config.sep_token_id) & is_token).long()
        in_second = is_token & (separators.cumsum(dim=1) - separators > 0)
        in_first = is_token & ~in_second
        texts = torch.stack([in_first, in_second], dim=1)  # [B, 2, L]
        return texts.int().argmax(dim=2), texts.sum(dim=2)

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


class BilstmForSequenceClassification(BilstmPreTrainedModel):
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
        """Returns `logits [B, C]` of `input_ids [B, L]`, and if requested `hidden_states [B, L, 2 * hidden_dim]`."""
        logits, hidden_states = self.score(input_ids, attention_mask, output_hidden_states)
        return SequenceClassifierOutput(logits=logits, hidden_states=hidden_states)


class BilstmForMultipleChoice(BilstmPreTrainedModel):
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
        """Returns `logits [B, K]` of `input_ids [B, K, L]`, and if requested `hidden_states [B * K, L, H]`."""
        mask = None if attention_mask is None else attention_mask.flatten(0, 1)
        scores, hidden_states = self.score(input_ids.flatten(0, 1), mask, output_hidden_states)
        return MultipleChoiceModelOutput(logits=scores.view(-1, input_ids.shape[1]), hidden_states=hidden_states)


def _gather(states: Tensor, positions: Tensor) -> Tensor:
    """Selects `states [N, W, D]` at `positions [N, K]` -> `[N, K, D]`."""
    return states.gather(1, positions[..., None].expand(-1, -1, states.shape[-1]))


def _restore_positions(states: Tensor, starts: Tensor, mask: Tensor) -> Tensor:
    """Moves the states of the texts `[B * T, W, H]` to the positions of their tokens, `[B, L, H]`, 0 for padding."""
    batch, texts = starts.shape
    width = states.shape[1]
    position = torch.arange(mask.shape[1], device=mask.device).expand(batch, -1)
    text = torch.zeros_like(position)
    if texts == 2:  # An empty second text starts at 0 and has no tokens.
        text = ((position >= starts[:, 1:]) & (starts[:, 1:] > starts[:, :1])).long()
    within = (position - starts.gather(1, text)).clamp(min=0, max=width - 1)
    return _gather(states.unflatten(0, (batch, texts)).flatten(1, 2), text * width + within) * mask[..., None]


AutoConfig.register(BilstmConfig.model_type, BilstmConfig)
AutoModelForSequenceClassification.register(BilstmConfig, BilstmForSequenceClassification)
AutoModelForMultipleChoice.register(BilstmConfig, BilstmForMultipleChoice)
BilstmConfig.register_for_auto_class()
BilstmForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
BilstmForMultipleChoice.register_for_auto_class("AutoModelForMultipleChoice")
