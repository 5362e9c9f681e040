"""Convolutions over word pieces with heads for whole texts and for tokens as Hugging Face models.

A convolution is a product of one matrix with shifted copies of its input, because ONNX Runtime computes a matrix
product faster in int8 than in float32, and its int8 convolution slower. Requires torch and transformers.

`save_pretrained` copies this file into the model's directory, and `from_pretrained(directory, trust_remote_code=True)`
loads the model from there.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedConfig

from .modeling_texts import Scores, TextHead, TextModel, TokenHead, compare, mark_texts, register


class CnnConfig(PreTrainedConfig):
    """Configuration of the model.

    Args:
        hidden_dim: outputs of all widths of windows together, or of each layer for tokens.
        widths: tokens of the windows over a whole text; empty for a model of tokens.
        dilations: distance between neighbouring inputs of each layer for tokens; empty for a model of whole texts.
        tag_width: inputs of a layer for tokens, an odd number.
        classifier_dim: width of the ReLU layer of the head for whole texts.
        pair: the head for whole texts reads the two texts of a pair separately and compares them.
    """

    model_type = "distill_cnn"

    vocab_size: int = 30522
    embedding_dim: int = 200
    hidden_dim: int = 300
    widths: Sequence[int] = ()
    dilations: Sequence[int] = ()
    tag_width: int = 3
    classifier_dim: int = 200
    dropout: float = 0.1
    pair: bool = False
    sep_token_id: int | None = None
    pad_token_id: int | None = 0

    @property
    def hidden_size(self) -> int:
        return self.hidden_dim

    @property
    def num_hidden_layers(self) -> int:
        """Number of convolutions one behind the other. The windows over a whole text are one."""
        return len(self.dilations) or 1


def shift_copies(states: Tensor, copies: int, distance: int = 1) -> Tensor:
    """Joins `copies` of `states [B, W, D]`, each shifted by `distance`, where all overlap -> `[B, L, copies * D]`.

    L is `W - (copies - 1) * distance`.
    """
    reach = (copies - 1) * distance
    # Ends counted from the last state are constants of an exported graph.
    return torch.cat([states[:, first : first - reach or None] for first in range(0, reach + 1, distance)], dim=-1)


class Windows(nn.Module):
    """Features of windows of several widths, each of which begins at a token.

    The narrower widths have weights of 0 for the rest of the widest one, so that one product computes all of them.
    """

    def __init__(self, input_dim: int, hidden_dim: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.widest = max(widths)
        outputs = hidden_dim // len(widths)
        self.filters = nn.ModuleList(nn.Linear(width * input_dim, outputs) for width in widths)

    def forward(self, states: Tensor) -> Tensor:
        """Returns features `[B, W, hidden_dim]` of `states [B, W, D]`, with zeros behind the last one."""
        copies = shift_copies(functional.pad(states, (0, 0, 0, self.widest - 1)), self.widest)
        weights, biases = ([layer.get_parameter(name) for layer in self.filters] for name in ("weight", "bias"))
        padded = [functional.pad(weight, (0, copies.shape[-1] - weight.shape[1])) for weight in weights]
        return functional.linear(copies, torch.cat(padded), torch.cat(tuple(biases)))


class DilatedLayer(nn.Module):
    """A convolution with a ReLU whose output is as long as its input, added to it if they are as wide."""

    def __init__(self, input_dim: int, hidden_dim: int, *, width: int, dilation: int) -> None:
        super().__init__()
        self.width, self.dilation, self.is_residual = width, dilation, input_dim == hidden_dim
        self.filters = nn.Linear(width * input_dim, hidden_dim)

    def forward(self, states: Tensor) -> Tensor:
        """Returns `[B, L, hidden_dim]` of `states [B, L, D]`, with zeros before the first one and behind the last."""
        reach = self.width // 2 * self.dilation
        padded = functional.pad(states, (0, 0, reach, reach))
        output = torch.relu(self.filters(shift_copies(padded, self.width, self.dilation)))
        return states + output if self.is_residual else output


class CnnPreTrainedModel(TextModel):
    """Embeddings of token ids, which are 0 for padding; the subclasses have the convolutions and the heads.

    Attributes:
        layers_by: the entry of the configuration that lists the convolutions of this head.
    """

    config_class = CnnConfig
    embeddings: nn.Embedding
    layers_by: str

    def __init__(self, config: CnnConfig) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.embedding_dim)
        self.dropout = nn.Dropout(config.dropout)

    def embed(self, input_ids: Tensor, is_token: Tensor) -> Tensor:
        """Returns the embeddings `[B, L, D]` of `input_ids [B, L]`, 0 where `is_token [B, L]` is 0."""
        embedded: Tensor = self.embeddings(input_ids) * is_token[..., None]
        return self.dropout(embedded)  # type: ignore[no-any-return]


class CnnForSequenceClassification(TextHead, CnnPreTrainedModel):
    """Windows of several widths -> their maximum over a text -> a ReLU layer -> `logits [B, C]` (arXiv 1408.5882).

    Other than in the paper, every token begins a window, which may reach beyond the text, and a ReLU layer stands
    before the last one. The two texts of a pair share the windows, none of which reads both, and are compared by
    `[u; v; u * v; |u - v|]`.
    """

    layers_by = "widths"

    def __init__(self, config: CnnConfig) -> None:
        super().__init__(config)
        self.windows = Windows(config.embedding_dim, config.hidden_dim, config.widths)
        self.add_classifier(config.hidden_dim)

    def score(self, input_ids: Tensor, mask: Tensor, output_hidden_states: bool, features: None) -> Scores:
        """Returns the scores `[B, C]` of `input_ids [B, L]`; it has no states of tokens."""
        is_token, texts = mask, mask.bool()[:, None]  # [B, L], [B, 1, L]
        if self.config.pair:
            texts = mark_texts(input_ids, mask, separator=self.config.sep_token_id)
            input_ids, texts = self._separate(input_ids, texts)  # [B, W], [B, 2, W]
            is_token = texts.sum(dim=1)
        states = self.windows(self.embed(input_ids, is_token))[:, None]  # [B, 1, W, hidden_dim]
        lowest = torch.finfo(states.dtype).min  # A text without tokens has features of 0.
        pooled = torch.relu(states.masked_fill(~texts[..., None], lowest).amax(dim=2))  # [B, T, hidden_dim]
        return self.classify(compare(pooled)), None

    def _separate(self, input_ids: Tensor, texts: Tensor) -> tuple[Tensor, Tensor]:
        """Moves the second text so far behind the first that no window reads tokens of both.

        Args:
            input_ids: `[B, L]`.
            texts: tokens of either text, `[B, 2, L]` (bool).

        Returns:
            The ids `[B, W]` and the texts `[B, 2, W]`, with `W = L + gap`. The ids in the gap belong to no text.
        """
        gap, length = self.windows.widest - 1, input_ids.shape[1]
        is_behind = texts[:, 1].cumsum(dim=1) > 0  # [B, L]: the second text and the padding behind it
        is_behind = functional.pad(is_behind, (gap, 0), value=False)  # [B, W]
        position = torch.arange(length + gap, device=input_ids.device)
        source = (position - gap * is_behind).clamp(max=length - 1)  # [B, W]
        first, second = functional.pad(texts[:, 0], (0, gap), value=False), texts[:, 1].gather(1, source) & is_behind
        return input_ids.gather(1, source), torch.stack([first, second], dim=1)


class CnnForTokenClassification(TokenHead, CnnPreTrainedModel):
    """Dilated layers -> `logits [B, L, C]` of the tags of each token (one block of arXiv 1702.02098).

    Other than in the paper, a layer adds its output to its input.
    """

    layers_by = "dilations"

    def __init__(self, config: CnnConfig) -> None:
        super().__init__(config)
        inputs = [config.embedding_dim] + [config.hidden_dim] * len(config.dilations)
        self.layers = nn.ModuleList(
            DilatedLayer(width, config.hidden_dim, width=config.tag_width, dilation=dilation)
            for width, dilation in zip(inputs, config.dilations, strict=False)
        )
        self.classifier = nn.Linear(inputs[-1], config.num_labels)
        self.post_init()

    def score(self, input_ids: Tensor, mask: Tensor, output_hidden_states: bool, features: None) -> Scores:
        """Returns the scores `[B, L, C]` of `input_ids [B, L]`."""
        states = self.embed(input_ids, mask)
        for layer in self.layers:
            states = layer(states) * mask[..., None]
        return self.classifier(self.dropout(states)), None


register(CnnForSequenceClassification, CnnForTokenClassification)
