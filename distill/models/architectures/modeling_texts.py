"""What the models of this package have in common: texts of a row, encoders, heads, and their registration.

It is saved with the models that need it.
"""

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import (
    ModelOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)


def mark_texts(input_ids: Tensor, attention_mask: Tensor | None = None, *, separator: int | None = None) -> Tensor:
    """Marks the tokens of each text in `input_ids [B, L]`, `[B, T, L]` (bool), for padding on either side.

    Args:
        attention_mask: `[B, L]`; None if nothing is padding.
        separator: id of the token that ends the first text of a pair, which gives T = 2; None reads a row as one text.
            Separators belong to one of the texts, so that every token does.
    """
    is_token = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
    if separator is None:
        return is_token[:, None]
    separators = ((input_ids == separator) & is_token).long()
    in_second = is_token & (separators.cumsum(dim=1) - separators > 0)
    return torch.stack([is_token & ~in_second, in_second], dim=1)


class AroundEncoderConfig(PreTrainedConfig):
    """Configuration of a model around an encoder, whose sizes it has.

    Args:
        encoder: configuration of the encoder.
    """

    has_no_defaults_at_init = True

    encoder: Any

    def __post_init__(self, **options: Any) -> None:
        if isinstance(self.encoder, dict):
            self.encoder = AutoConfig.for_model(**self.encoder)
        super().__post_init__(**options)

    @property
    def hidden_size(self) -> int:
        return int(self.encoder.hidden_size)

    @property
    def num_hidden_layers(self) -> int:
        return int(self.encoder.num_hidden_layers)

    @property
    def num_attention_heads(self) -> int | None:
        heads: int | None = getattr(self.encoder, "num_attention_heads", None)
        return heads


class TextModel(PreTrainedModel):
    """A model whose encoder has a table of `embeddings`, and which has a `dropout`."""

    _input_embed_layer = "embeddings"
    embeddings: Any
    dropout: nn.Module

    def _init_weights(self, module: nn.Module) -> None:
        """Uses torch's initialization: that of transformers covers no LSTM, and ignores the number of inputs."""
        if isinstance(module, nn.Linear | nn.Embedding | nn.LSTM):
            module.reset_parameters()

    def add_classifier(self, width: int) -> None:
        """Adds a ReLU layer and the scores behind it, for vectors of this width, and initializes the model."""
        self.pre_classifier = nn.Linear(width * (4 if self.config.pair else 1), self.config.classifier_dim)
        self.classifier = nn.Linear(self.config.classifier_dim, cast(Any, self).count_outputs(self.config))
        self.post_init()

    def classify(self, vectors: Tensor) -> Tensor:
        """Returns the scores `[B, C]` of vectors `[B, D]`."""
        scores: Tensor = self.classifier(self.dropout(torch.relu(self.pre_classifier(self.dropout(vectors)))))
        return scores


def compare(texts: Tensor) -> Tensor:
    """Returns `[u; v; u * v; |u - v|]` of the two texts of `[B, 2, D]`, or the only one of `[B, 1, D]`."""
    first = texts[:, 0]
    if texts.shape[1] == 1:
        return first
    second = texts[:, 1]
    return torch.cat([first, second, first * second, (first - second).abs()], dim=-1)


class TextReader:
    """The forward pass of a model that has `read(input_ids [B, L], mask [B, L], output_hidden_states, features)`.

    Attributes:
        family: the auto class of models with this kind of head.
    """

    family: Any = AutoModel

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        inputs_embeds: Tensor | None = None,
        **kwargs: object,
    ) -> ModelOutput:
        """Returns the output for `input_ids [B, L]`, and if requested the `hidden_states [B, L, D]`.

        Args:
            inputs_embeds: features `[B, L, F]` in place of the embeddings of the tokens, for a model that reads them.
        """
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        output: ModelOutput = cast(Any, self).read(input_ids, mask, output_hidden_states, inputs_embeds)
        return output


Scores = tuple[Tensor, tuple[Tensor, ...] | None]  # With the hidden states, if they are requested.


class TextHead(TextReader):
    """Scores of the classes of one text or a pair of texts, `logits [B, C]`, by the `score` of a model.

    A model has `score(input_ids, mask, output_hidden_states, features)`, which returns the scores and, if they are
    requested, the hidden states `[B, L, D]`.
    """

    family = AutoModelForSequenceClassification
    output_class: type[ModelOutput] = SequenceClassifierOutput

    @staticmethod
    def count_outputs(config: PreTrainedConfig) -> int:
        """Returns the number of scores of a text or a token."""
        return int(config.num_labels)

    def read(self, *inputs: Any) -> ModelOutput:
        """Returns the scores with the hidden states."""
        scores, states = cast(Any, self).score(*inputs)
        return self.output_class(**self.name_scores(scores), hidden_states=states)

    def name_scores(self, scores: Tensor) -> dict[str, Tensor]:
        """Returns the fields of the output that have the scores."""
        return {"logits": scores}


class TokenHead(TextHead):
    """Scores of the tags of each token: `logits [B, L, C]`."""

    family = AutoModelForTokenClassification
    output_class = TokenClassifierOutput


class AnswerHead(TextHead):
    """Scores of each token as the start and as the end of an answer: `start_logits` and `end_logits [B, L]`."""

    family = AutoModelForQuestionAnswering
    output_class = QuestionAnsweringModelOutput

    @staticmethod
    def count_outputs(config: PreTrainedConfig) -> int:
        return 2

    def name_scores(self, scores: Tensor) -> dict[str, Tensor]:
        return dict(zip(("start_logits", "end_logits"), scores.unbind(dim=-1), strict=True))


class ChoiceHead(TextHead):
    """One score for each choice, which a model reads as a pair with its question: `logits [B, K]`."""

    family = AutoModelForMultipleChoice
    output_class = MultipleChoiceModelOutput

    @staticmethod
    def count_outputs(config: PreTrainedConfig) -> int:
        return 1

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, *args: Any, **options: Any
    ) -> ModelOutput:
        """Returns `logits [B, K]` of `input_ids [B, K, L]`, and if requested `hidden_states [B * K, L, D]`."""
        mask = None if attention_mask is None else attention_mask.flatten(0, 1)
        output = super().forward(input_ids.flatten(0, 1), mask, *args, **options)
        output["logits"] = output["logits"].view(-1, input_ids.shape[1])
        return output


# The heads that encoders of transformers have.
ENCODER_HEADS = (
    AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoModelForQuestionAnswering,
    AutoModelForMultipleChoice, AutoModelForMaskedLM,
)  # fmt: skip


def derive_models(
    module: dict[str, Any], prefix: str, config: type[PreTrainedConfig], auto_classes: Iterable[Any], base: type
) -> list[Any]:
    """Creates the models of the family of a configuration with another `base` in front, one for each auto class.

    Args:
        module: the globals of a module, in which a model that is loaded or unpickled looks them up by their names.
        prefix: the beginning of their names, before those of the family.
        config: a configuration of transformers' with further entries.
    """
    models = []
    for auto_class in auto_classes:
        own = auto_class._model_mapping[config.__base__]
        name = f"{prefix}{own.__name__}"
        described = {"__module__": module["__name__"], "__doc__": f"A {own.__name__} of a {config.__name__}."}
        module[name] = type(name, (base, own), described | {"config_class": config, "family": auto_class})
        models.append(module[name])
    return models


def register(*models: Any) -> None:
    """Registers models of one configuration with their auto classes, so that their code is saved with them."""
    config = models[0].config_class
    AutoConfig.register(config.model_type, config)
    config.register_for_auto_class()
    for model in models:
        model.family.register(config, model)
        model.register_for_auto_class(model.family.__name__)
