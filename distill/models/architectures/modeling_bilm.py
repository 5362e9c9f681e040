"""A bidirectional language model of two stacks of one-way LSTMs with its heads (ELMo, arXiv 1802.05365).

Layers of LSTMs that read texts from their first or their last token, whatever padding a batch has. It is saved with the
models that are made of them.

Requires torch and transformers. `save_pretrained` copies this file into the model's directory, and
`from_pretrained(directory, trust_remote_code=True)` loads the model from there.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import AutoModelForPreTraining, PreTrainedConfig
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput

from .modeling_texts import AnswerHead, Scores, TextHead, TextModel, TextReader, TokenHead, register


def gather(states: Tensor, positions: Tensor) -> Tensor:
    """Selects `states [N, W, D]` at `positions [N, K]` -> `[N, K, D]`."""
    return states.gather(1, positions[..., None].expand(-1, -1, states.shape[-1]))


def locate_text(is_token: Tensor) -> tuple[Tensor, Tensor]:
    """Returns first position and length of the text in each row, both `[B, 1]`, for padding on either side.

    Args:
        is_token: `[B, L]` (bool).
    """
    return is_token.int().argmax(dim=1, keepdim=True), is_token.sum(dim=1, keepdim=True)


class BilstmLayer(nn.Module):
    """A bidirectional LSTM layer whose backward direction starts at the last token of each text.

    The backward direction of a bidirectional `nn.LSTM` would start in the padding. Packed sequences would avoid that,
    but cannot be exported.
    """

    def __init__(self, input_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.forwards = nn.LSTM(input_dim, hidden_dim, batch_first=True)
        self.backwards = nn.LSTM(input_dim, hidden_dim, batch_first=True)

    def forward(self, states: Tensor, lengths: Tensor, backward_states: Tensor | None = None) -> Tensor:
        """Encodes `states [N, W, D]` of texts of `lengths [N]` -> `[N, W, 2 * hidden_dim]`.

        Args:
            backward_states: those that the backward direction reads; None for the same.
        """
        position = torch.arange(states.shape[1], device=states.device)
        reversed_position = (lengths[:, None] - 1 - position).clamp(min=0)  # [N, W], its own inverse within a text.
        forward_states, _ = self.forwards(states)
        sources = states if backward_states is None else backward_states
        reversed_states, _ = self.backwards(gather(sources, reversed_position))
        return torch.cat([forward_states, gather(reversed_states, reversed_position)], dim=-1)


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
            return gather(states, within) * self.mask[..., None]
        # An empty second text starts at 0 and has no tokens.
        text = ((position >= self.starts[:, 1:]) & (self.starts[:, 1:] > self.starts[:, :1])).long()
        within = (position - self.starts.gather(1, text)).clamp(min=0, max=self.width - 1)
        by_row = states.unflatten(0, (batch, texts)).flatten(1, 2)
        return gather(by_row, text * self.width + within) * self.mask[..., None]


class BilmConfig(PreTrainedConfig):
    """Configuration of the model.

    Args:
        hidden_dim: width of the embeddings and of each direction, half the width of the hidden states.
        dropout: share of the inputs of each layer and of the head that is dropped.
        tie_word_embeddings: whether the head over the vocabulary has the table of the embeddings. The paper's has one
            of its own, as its embeddings are made of characters.
    """

    model_type = "distill_bilm"

    vocab_size: int = 30522
    hidden_dim: int = 512
    num_hidden_layers: int = 2
    dropout: float = 0.1
    tie_word_embeddings: bool = True
    pad_token_id: int | None = 0
    sep_token_id: int | None = None

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states, of both directions together."""
        return 2 * self.hidden_dim


@dataclass
class BilmOutput(BaseModelOutput):
    """Output of the encoder.

    Attributes:
        direction_states: the last hidden states of the forward stack, which has read the token and those before it, and
            of the backward stack, which has read the token and those behind it, `[B, L, 2, hidden_dim]`.
    """

    direction_states: Tensor | None = None


class ScalarMix(nn.Module):
    """The sum of the hidden states `h_k` with learned weights, `gamma * sum_k softmax(s)_k h_k` (equation 1)."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, hidden_states: tuple[Tensor, ...]) -> Tensor:
        """Mixes the states `[B, L, D]` of the embeddings and each layer -> `[B, L, D]`."""
        return self.gamma * (torch.stack(hidden_states, dim=-1) * self.weights.softmax(dim=0)).sum(dim=-1)


class BilmPreTrainedModel(TextModel):
    """The encoder `bilm` below a head."""

    config_class = BilmConfig
    base_model_prefix = "bilm"

    def _init_weights(self, module: nn.Module) -> None:
        """Uses torch's initialization, because the default of transformers does not cover LSTMs."""
        if isinstance(module, nn.Linear | nn.LSTM):
            module.reset_parameters()
        elif isinstance(module, nn.Embedding):
            # Rows of the norm 1, because the head over the vocabulary has the same table.
            nn.init.normal_(module.weight, std=self.config.hidden_dim**-0.5)
        elif isinstance(module, ScalarMix):
            nn.init.zeros_(module.weights)
            nn.init.ones_(module.gamma)


class BilmModel(TextReader, BilmPreTrainedModel):
    """Embeddings of token ids -> a stack of forward LSTMs and one of backward LSTMs, which do not read each other.

    The embeddings are scaled by the root of their width (arXiv 1706.03762, section 3.4). The layers after the first one
    add their inputs to their outputs. Unlike in the paper, the cells have the width of the states and no projection. A
    pair of texts is read as one text.
    """

    def __init__(self, config: BilmConfig) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_dim)
        self.layers = nn.ModuleList(
            BilstmLayer(config.hidden_dim, config.hidden_dim) for _ in range(config.num_hidden_layers)
        )
        self.dropout = nn.Dropout(config.dropout)
        self.post_init()

    def read(self, input_ids: Tensor, mask: Tensor, output_hidden_states: bool, features: None) -> BilmOutput:
        """Returns `last_hidden_state [B, L, 2 * hidden_dim]` of `input_ids [B, L]`, and if requested all states.

        The first hidden states are the embeddings, once for each direction.
        """
        encoded = self._encode(input_ids, mask)
        last = encoded.last_hidden_state()
        return BilmOutput(
            last_hidden_state=last, hidden_states=encoded.hidden_states(output_hidden_states),
            direction_states=last.unflatten(-1, (2, -1)),
        )  # fmt: skip

    def _encode(self, input_ids: Tensor, mask: Tensor) -> EncodedTexts:
        starts, lengths = locate_text(mask.bool())
        width = input_ids.shape[1] if torch.compiler.is_exporting() else int(lengths.max().clamp(min=1))
        source = (starts + torch.arange(width, device=input_ids.device)).clamp(max=input_ids.shape[1] - 1)  # [B, W]
        embedded = self.embeddings(input_ids.gather(1, source)) * self.config.hidden_dim**0.5
        states = [torch.cat([embedded, embedded], dim=-1)]
        for number, layer in enumerate(self.layers):
            forwards, backwards = self.dropout(states[-1]).chunk(2, dim=-1)
            output = layer(forwards, lengths.flatten(), backwards)
            states.append(output if number == 0 else output + states[-1])
        return EncodedTexts(states, starts, lengths, mask, width)


class BilmForPreTraining(TextReader, BilmPreTrainedModel):
    """Predicts the next token from the forward states and the previous one from the backward states, with one head."""

    family = AutoModelForPreTraining
    _tied_weights_keys = {"decoder.weight": "bilm.embeddings.weight"}  # noqa: RUF012

    def __init__(self, config: BilmConfig) -> None:
        super().__init__(config)
        self.bilm = BilmModel(config)
        self.dropout = nn.Dropout(config.dropout)
        self.decoder = nn.Linear(config.hidden_dim, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.decoder = new_embeddings

    def read(self, input_ids: Tensor, mask: Tensor, output_hidden_states: bool, features: None) -> MaskedLMOutput:
        """Returns `logits [B, L, 2, V]` of the token behind each token and of the one before it.

        An encoder that returns states of one direction, `[B, L, hidden_dim]`, leads to `logits [B, L, V]`.
        """
        encoded = self.bilm(input_ids, mask, output_hidden_states=output_hidden_states)
        states = encoded.last_hidden_state.unflatten(-1, (-1, self.config.hidden_dim))
        logits = self.decoder(self.dropout(states)).squeeze(-2)
        return MaskedLMOutput(logits=logits, hidden_states=encoded.hidden_states)


class BilmScorer(BilmPreTrainedModel):
    """Hidden states of the embeddings and all layers -> their `ScalarMix` -> scores of tokens, or of their mean."""

    is_pooled = False

    def __init__(self, config: BilmConfig) -> None:
        super().__init__(config)
        self.bilm = BilmModel(config)
        self.mix = ScalarMix(config.num_hidden_layers + 1)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.hidden_size, self.count_outputs(config))
        self.post_init()

    def score(self, input_ids: Tensor, mask: Tensor, output_hidden_states: bool, features: None) -> Scores:
        """Returns the scores `[B, L, outputs]`, or of the mean of the tokens `[B, outputs]`, and maybe all states."""
        hidden_states = self.bilm(input_ids, mask, output_hidden_states=True).hidden_states
        states = self.mix(hidden_states)  # 0 for padding.
        if self.is_pooled:
            states = states.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)
        return self.classifier(self.dropout(states)), hidden_states if output_hidden_states else None


class BilmForSequenceClassification(TextHead, BilmScorer):
    """Scores of the classes of a text, from the mean of its tokens."""

    is_pooled = True


class BilmForTokenClassification(TokenHead, BilmScorer):
    """Scores of the tags of each token."""


class BilmForQuestionAnswering(AnswerHead, BilmScorer):
    """Scores of each token as the start and as the end of an answer."""


register(
    BilmModel, BilmForPreTraining, BilmForSequenceClassification, BilmForTokenClassification, BilmForQuestionAnswering
)
