"""A bidirectional LSTM with the heads of every kind of task as Hugging Face models. Requires torch and transformers.

Its inputs are embeddings of tokens, or features: the hidden states of a frozen encoder.

`save_pretrained` copies this file into the model's directory, and `from_pretrained(directory, trust_remote_code=True)`
loads the model from there.
"""

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, ModelOutput

from .modeling_bilm import (
    BilmConfig,  # noqa: F401  # Registers the encoder of features with the auto classes.
    BilstmLayer,
    EncodedTexts,
    gather,
    locate_text,
)
from .modeling_texts import (
    AnswerHead,
    AroundEncoderConfig,
    ChoiceHead,
    Scores,
    TextHead,
    TextModel,
    TextReader,
    TokenHead,
    compare,
    mark_texts,
    register,
)


class BilstmConfig(PreTrainedConfig):
    """Configuration of the model.

    Args:
        vocab_size: None for a model without embeddings of tokens, whose inputs are features.
        summed_layers: number of hidden states, one behind the other in the features, whose sum with learned weights the
            first layer reads; 0: it reads the features as they are.
        hidden_dim: width of each direction, half the width of the hidden states.
        classifier_dim: width of the ReLU layer of a head for whole texts.
        pooling: `last` (the last state of each direction), `max` or `mean` over the tokens, for a head for whole texts.
        pair: a head for whole texts encodes the two texts of a pair separately and compares them; the first separator
            ends the first text.
    """

    model_type = "distill_bilstm"

    vocab_size: int | None = 30522
    embedding_dim: int = 300
    summed_layers: int = 0
    hidden_dim: int = 150
    num_hidden_layers: int = 1
    classifier_dim: int = 200
    dropout: float = 0.1
    pooling: str = "last"
    pair: bool = False
    sep_token_id: int | None = None
    pad_token_id: int | None = 0

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states, of both directions together."""
        return 2 * self.hidden_dim


class BilstmPreTrainedModel(TextModel):
    """Embeddings of token ids, or features -> BiLSTM layers; the subclasses have the heads."""

    config_class = BilstmConfig
    embeddings: nn.Embedding | None

    def __init__(self, config: BilstmConfig) -> None:
        super().__init__(config)
        self.embeddings = None
        if config.vocab_size is not None:
            self.embeddings = nn.Embedding(config.vocab_size, config.embedding_dim)
        self.layer_weights = nn.Parameter(torch.zeros(config.summed_layers)) if config.summed_layers else None
        widths = [config.embedding_dim] + [config.hidden_size] * config.num_hidden_layers
        self.layers = nn.ModuleList(BilstmLayer(width, config.hidden_dim) for width in widths[:-1])
        self.dropout = nn.Dropout(config.dropout)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, BilstmPreTrainedModel) and module.layer_weights is not None:
            nn.init.zeros_(module.layer_weights)

    def encode(self, input_ids: Tensor, mask: Tensor, features: Tensor | None, *, pair: bool = False) -> EncodedTexts:
        """Encodes each row of `input_ids [B, L]` as one text, or as the two texts of a pair by themselves.

        Args:
            features: `[B, L, F]`, read in place of the embeddings of the tokens.
        """
        starts, lengths = self._locate_texts(input_ids, mask, pair=pair)  # [B, T], for T texts
        width = input_ids.shape[1] if torch.compiler.is_exporting() else int(lengths.max().clamp(min=1))
        position = torch.arange(width, device=input_ids.device)
        source = (starts[:, :, None] + position).clamp(max=input_ids.shape[1] - 1).flatten(1)  # [B, T * W]
        if features is not None:
            embedded = gather(self._sum_layers(features), source)
        elif self.embeddings is not None:
            embedded = self.embeddings(input_ids.gather(1, source))
        else:
            raise ValueError(f"a {type(self).__name__} without embeddings got no features, expected inputs_embeds")
        states = [embedded.unflatten(1, (-1, width)).flatten(0, 1)]  # [B * T, W, E]
        for layer in self.layers:
            states.append(layer(self.dropout(states[-1]), lengths.flatten()))
        return EncodedTexts(states, starts, lengths, mask, width)

    def _sum_layers(self, features: Tensor) -> Tensor:
        """Returns the weighted sum of the hidden states in `features [B, L, layers * D]`, `[B, L, D]`."""
        if self.layer_weights is None:
            return features
        layers = features.unflatten(-1, (len(self.layer_weights), -1))
        summed: Tensor = (layers * self.layer_weights.softmax(dim=0)[:, None]).sum(dim=-2)
        return summed

    def _locate_texts(self, input_ids: Tensor, mask: Tensor, *, pair: bool) -> tuple[Tensor, Tensor]:
        """Returns first position and length of each text, both `[B, T]`, for padding on either side."""
        if not pair:
            return locate_text(mask.bool())
        texts = mark_texts(input_ids, mask, separator=self.config.sep_token_id)  # [B, 2, L]
        return texts.int().argmax(dim=2), texts.sum(dim=2)


class BilstmTextScorer(BilstmPreTrainedModel):
    """Hidden states -> pooling -> a ReLU layer -> `outputs` scores of a text or a pair (arXiv 1903.12136, section 3.1).

    The two texts of a pair share the encoder and are compared by `[u; v; u * v; |u - v|]`. Separators belong to one of
    the texts, so that every token has a hidden state.
    """

    def __init__(self, config: BilstmConfig) -> None:
        super().__init__(config)
        self.add_classifier(config.hidden_size)

    def score(self, input_ids: Tensor, mask: Tensor, output_hidden_states: bool, features: Tensor | None) -> Scores:
        """Returns the scores `[B, outputs]` of `input_ids [B, L]`, and if requested the hidden states `[B, L, D]`."""
        encoded = self.encode(input_ids, mask, features, pair=self.config.pair)
        pooled = self._pool(encoded.states[-1], encoded.lengths.flatten())
        pooled = pooled.unflatten(0, (-1, encoded.starts.shape[1]))  # [B, T, 2 * hidden_dim]
        return self.classify(compare(pooled)), encoded.hidden_states(output_hidden_states)

    def _pool(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Pools `states [N, W, H]` over the first `lengths [N]` tokens -> `[N, H]`, 0 for an empty text."""
        is_token = (torch.arange(states.shape[1], device=states.device) < lengths[:, None])[..., None]  # [N, W, 1]
        if self.config.pooling == "mean":
            return (states * is_token).sum(dim=1) / lengths.clamp(min=1)[:, None]
        if self.config.pooling == "max":
            largest = states.masked_fill(~is_token, torch.finfo(states.dtype).min).amax(dim=1)
            return largest * (lengths > 0)[:, None]
        last = gather(states, (lengths - 1).clamp(min=0)[:, None])[:, 0]
        half = self.config.hidden_dim
        return torch.cat([last[:, :half], states[:, 0, half:]], dim=-1) * (lengths > 0)[:, None]


class BilstmForSequenceClassification(TextHead, BilstmTextScorer):
    """Scores of the classes of one text or a pair of texts."""


class BilstmForMultipleChoice(ChoiceHead, BilstmTextScorer):
    """One score for each choice."""


class BilstmModel(TextReader, BilstmPreTrainedModel):
    """The encoder without a head, for vectors of texts. It reads a pair as one text."""

    def __init__(self, config: BilstmConfig) -> None:
        super().__init__(config)
        self.post_init()

    def read(
        self, input_ids: Tensor, mask: Tensor, output_hidden_states: bool, features: Tensor | None
    ) -> BaseModelOutput:
        """Returns `last_hidden_state [B, L, 2 * hidden_dim]` of `input_ids [B, L]`, and if requested all states."""
        encoded = self.encode(input_ids, mask, features)
        return BaseModelOutput(
            last_hidden_state=encoded.last_hidden_state(), hidden_states=encoded.hidden_states(output_hidden_states)
        )


class BilstmTokenScorer(BilstmPreTrainedModel):
    """Hidden states -> `outputs` scores of each token. A pair is read as one text, so that its texts see each other."""

    def __init__(self, config: BilstmConfig) -> None:
        super().__init__(config)
        self.classifier = nn.Linear(config.hidden_size, self.count_outputs(config))
        self.post_init()

    def score(self, input_ids: Tensor, mask: Tensor, output_hidden_states: bool, features: Tensor | None) -> Scores:
        """Returns the scores `[B, L, outputs]`, and if requested the hidden states `[B, L, D]`."""
        encoded = self.encode(input_ids, mask, features)
        scores = self.classifier(self.dropout(encoded.last_hidden_state()))
        return scores, encoded.hidden_states(output_hidden_states)


class BilstmForTokenClassification(TokenHead, BilstmTokenScorer):
    """Scores of the tags of each token."""


class BilstmForQuestionAnswering(AnswerHead, BilstmTokenScorer):
    """Scores of each token as the start and as the end of an answer."""


FEATURES = ("last", "second_to_last", "sum_last_4", "concat_last_4", "sum_all", "input_embeddings")


def feature_layers(features: str, depth: int) -> tuple[int, ...]:
    """Returns the layers of an encoder of `depth` layers, whose hidden states are the features; 0: its embeddings.

    Raises:
        ValueError: for an unknown name, or an encoder with too few layers.
    """
    first = {"last": 0, "second_to_last": 1, "sum_last_4": 3, "concat_last_4": 3, "sum_all": depth - 1}.get(features)
    if features == "input_embeddings":
        return (0,)
    if first is None:
        raise ValueError(f"got features={features}, expected one of {', '.join(FEATURES)}")
    if first >= depth:
        raise ValueError(f"got an encoder of {depth} layers for {features}, expected at least {first + 1}")
    last = depth - 1 if features == "second_to_last" else depth
    return tuple(range(depth - first, last + 1))


class FeatureBilstmConfig(AroundEncoderConfig):
    """Configuration of a BiLSTM on the features of a frozen encoder.

    Args:
        bilstm: configuration of the BiLSTM.
        features: one of `FEATURES`.
    """

    model_type = "distill_feature_bilstm"

    bilstm: Any
    features: str

    def __post_init__(self, **options: Any) -> None:
        if isinstance(self.bilstm, dict):
            self.bilstm = BilstmConfig(**self.bilstm)
        super().__post_init__(**options)

    @property
    def vocab_size(self) -> int:
        return int(self.encoder.vocab_size)

    @property
    def max_position_embeddings(self) -> int | None:
        positions: int | None = getattr(self.encoder, "max_position_embeddings", None)
        return positions

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers whose hidden states are the features, counted from 1; 0 stands for the embeddings."""
        return feature_layers(self.features, self.num_hidden_layers)


class FeatureBilstmPreTrainedModel(PreTrainedModel):
    """Token ids -> frozen encoder -> features -> BiLSTM with a head (Devlin et al., arXiv 1810.04805, section 5.3).

    The hidden states and attentions of the output are those of the encoder.

    Attributes:
        head_class: the BiLSTM with the head.
    """

    config_class = FeatureBilstmConfig
    base_model_prefix = "encoder"
    head_class: Any

    def __init__(self, config: FeatureBilstmConfig) -> None:
        super().__init__(config)
        self.encoder = AutoModel.from_config(config.encoder, dtype=torch.get_default_dtype())
        if getattr(self.encoder, "pooler", None) is not None:
            self.encoder.pooler = None
        bilstm = copy.deepcopy(config.bilstm)
        bilstm.num_labels = config.num_labels
        self.head = self.head_class(bilstm)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        **kwargs: object,
    ) -> ModelOutput:
        """Returns the output of the BiLSTM for `input_ids [B, L]`, with the states of the encoder if requested."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        inputs = {"input_ids": input_ids, "attention_mask": mask}
        if token_type_ids is not None and "token_type_ids" in inspect.signature(self.encoder.forward).parameters:
            inputs["token_type_ids"] = token_type_ids
        encoded = self.encoder(**inputs, output_hidden_states=True, output_attentions=output_attentions)
        output: ModelOutput = self.head(input_ids, mask, inputs_embeds=self.select_features(encoded.hidden_states))
        if output_hidden_states:
            output["hidden_states"] = encoded.hidden_states
        if output_attentions:
            output["attentions"] = encoded.attentions
        return output

    def select_features(self, hidden_states: Sequence[Tensor]) -> Tensor:
        """Returns the features `[B, L, F]` from the encoder's hidden states `[B, L, H]`."""
        # Counted from the end, because the last one is that of the last layer in every family.
        depth = self.config.num_hidden_layers
        return torch.cat([hidden_states[layer - depth - 1] for layer in self.config.layers], dim=-1)

    def to_transformer(self) -> PreTrainedModel:
        """Returns a copy of the encoder with a head of its own family, which has random weights and the same labels."""
        config = copy.deepcopy(self.config.encoder)
        for name in ("id2label", "label2id", "problem_type", "pad_token_id", "sep_token_id"):
            setattr(config, name, copy.deepcopy(getattr(self.config, name, None)))
        model: PreTrainedModel = self.head_class.family.from_config(config, dtype=torch.float32)
        model.base_model.load_state_dict(self.encoder.state_dict(), strict=False)
        return model


class FeatureBilstmForTokenClassification(FeatureBilstmPreTrainedModel):
    """Tags of tokens from features of a frozen encoder."""

    head_class = BilstmForTokenClassification
    family = head_class.family


class FeatureBilstmForSequenceClassification(FeatureBilstmPreTrainedModel):
    """Classes of texts, or numbers, from features of a frozen encoder."""

    head_class = BilstmForSequenceClassification
    family = head_class.family


class FeatureBilstmForQuestionAnswering(FeatureBilstmPreTrainedModel):
    """Answers in a text from features of a frozen encoder."""

    head_class = BilstmForQuestionAnswering
    family = head_class.family


register(
    BilstmModel, BilstmForSequenceClassification, BilstmForMultipleChoice, BilstmForTokenClassification,
    BilstmForQuestionAnswering,
)  # fmt: skip
register(FeatureBilstmForSequenceClassification, FeatureBilstmForTokenClassification, FeatureBilstmForQuestionAnswering)
