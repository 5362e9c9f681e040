"""Models around others: several heads on one encoder, known logits, entailment, and a module of its own.

Several models as one: a student with an encoder that its heads share, teachers of several tasks, or a pair. The pair is
a discriminator and its generator.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import SequenceClassifierOutput

from distill.core.errors import UserError
from distill.models.compatibility import longest
from distill.models.forward import input_embeddings, input_names


class SeveralHeads(PreTrainedModel):
    """Models by name, such as those of several tasks, each a complete model of transformers with its own head.

    `config` is that of the first one. What the models share is one module with one set of weights.
    """

    config_class = PreTrainedConfig
    base_model_prefix = "encoder"
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True

    def __init__(self, heads: Mapping[str, PreTrainedModel]) -> None:
        super().__init__(next(iter(heads.values())).config)
        self.heads = nn.ModuleDict(heads)

    def head(self, name: str) -> PreTrainedModel:
        """Returns the model with this name, that of a task for example."""
        model = self.heads[name]
        assert isinstance(model, PreTrainedModel)
        return model

    def set_attn_implementation(self, attn_implementation: str | dict[str, str], **options: bool) -> None:
        """Sets the attention of every model."""
        for name in self.heads:
            self.head(name).set_attn_implementation(attn_implementation, **options)


def share_encoder(models: Mapping[str, PreTrainedModel], *, name: str) -> SeveralHeads:
    """Returns the models with the encoder of the first one in the place of their own.

    Its `inherited` has the tensors of the first model and those of the others' heads.

    Args:
        name: of the student.

    Raises:
        UserError: for a model whose encoder is no module of its own, or has other tensors than the first one's.
    """
    first_name, first = next(iter(models.items()))
    check_encoder(first, name)
    inherited: dict[str, str] = {}
    for task, model in models.items():
        if shapes_of(model.base_model) != shapes_of(first.base_model):
            raise UserError(
                f"student {name} has another encoder for task {task} ({type(model.base_model).__name__}) than for task "
                f"{first_name} ({type(first.base_model).__name__}): give teachers with encoders of one kind and size"
            )
        setattr(model, model.base_model_prefix, first.base_model)
        own = () if model is first else f"{model.base_model_prefix}."
        copied: Mapping[str, str] = getattr(model, "inherited", {})
        inherited |= {f"heads.{task}.{key}": value for key, value in copied.items() if not key.startswith(own)}
    student = SeveralHeads(models)
    student.encoder = first.base_model
    if all(hasattr(model, "inherited") for model in models.values()):
        student.inherited = inherited  # type: ignore[assignment]
    return student


def check_encoder(model: PreTrainedModel, name: str) -> None:
    """Raises UserError for a model of the student `name` whose encoder is not a module of its own."""
    if model.base_model is model:
        raise UserError(
            f"student {name} ({type(model).__name__}) has no encoder apart from its head, which several tasks could "
            "share: take +student=distilbert"
        )


def heads_of(model: PreTrainedModel) -> dict[str, PreTrainedModel]:
    """Returns the models that this one stands for by name, and another model under the empty name."""
    return {name: model.head(name) for name in model.heads} if isinstance(model, SeveralHeads) else {"": model}


def shapes_of(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of all tensors of a module by name."""
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def find_table(student: PreTrainedModel) -> nn.Module | None:
    """Returns the embeddings of the pieces, which the models of several tasks share; None for a model without them."""
    return input_embeddings(next(iter(heads_of(student).values())))


class LabelledEncoder(PreTrainedModel):
    """An encoder, and a module that gives the logits of the same inputs.

    `config` is that of the encoder, which runs only where its hidden states or attentions are asked for.

    Args:
        model: the encoder, whose head is not read.
        labels: returns logits `[B, C]` for `input_ids` and `attention_mask`, `[B, L]` both.
    """

    config_class = PreTrainedConfig
    base_model_prefix = "encoder"
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True

    def __init__(self, model: PreTrainedModel, labels: nn.Module) -> None:
        super().__init__(model.config)
        self.encoder, self.labels = model.base_model, labels

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> SequenceClassifierOutput:
        """Returns the logits `[B, C]`, and of the encoder what is asked for."""
        logits = self.labels(input_ids, attention_mask)
        if not (output_hidden_states or output_attentions):
            return SequenceClassifierOutput(logits=logits)
        inputs: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None and "token_type_ids" in input_names(self.encoder):
            inputs["token_type_ids"] = token_type_ids
        encoded = self.encoder(**inputs, output_hidden_states=output_hidden_states, output_attentions=output_attentions)
        return SequenceClassifierOutput(
            logits=logits, hidden_states=encoded.get("hidden_states"), attentions=encoded.get("attentions")
        )


ENTAILMENT = "entail"  # The beginning of the name of the class that says that the text entails the hypothesis.


class EntailmentLogits(nn.Module):
    """Runs a model of natural language inference once for each class (Yin et al., arXiv 1909.00161).

    The logit of a class is that of entailment, so that the softmax is over the classes. Where each class has a
    probability of its own, it is the log-odds of entailment against contradiction, or against all other classes of a
    model without contradiction.

    Args:
        model: classifies pairs of a text and a hypothesis.
        hypotheses: the tokens that follow those of a text, of each class: `input_ids` and perhaps `token_type_ids`.
        independent: whether each class has a probability of its own.
        padding: id of the token that pads a batch.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        hypotheses: Sequence[Mapping[str, Sequence[int]]],
        *,
        independent: bool,
        padding: int,
    ) -> None:
        super().__init__()
        self.model, self.hypotheses, self.independent, self.padding = model, hypotheses, independent, padding
        names = {index: str(name).lower() for index, name in model.config.id2label.items()}
        self.entailment = find_entailment(model.config.id2label, type(model).__name__)
        opposite = [index for index, name in names.items() if name.startswith("contradict")]
        self.others = opposite or [index for index in names if index != self.entailment]

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Returns the logits `[B, C]` in float32, for tokens and mask `[B, L]`."""
        # Tokens first and padding last, so that a hypothesis follows its text.
        order = (1 - attention_mask).argsort(dim=1, stable=True)
        ids, mask = input_ids.gather(1, order), attention_mask.gather(1, order)
        lengths = mask.sum(dim=1, keepdim=True)
        return torch.stack([self._score(ids, lengths, hypothesis) for hypothesis in self.hypotheses], dim=1)

    def _score(self, ids: Tensor, lengths: Tensor, hypothesis: Mapping[str, Sequence[int]]) -> Tensor:
        """Returns the logit of one class, `[B]`."""
        added = {name: torch.tensor(values, device=ids.device) for name, values in hypothesis.items()}
        size = len(added["input_ids"])
        places = lengths + torch.arange(size, device=ids.device)  # [B, tokens of the hypothesis]
        width = ids.shape[1] + size
        positions = torch.arange(width, device=ids.device)
        mask = (positions < lengths + size).long()
        padded = torch.nn.functional.pad(ids, (0, size), value=self.padding).masked_fill(mask == 0, self.padding)
        inputs = {"input_ids": padded.scatter(1, places, added["input_ids"].expand(len(ids), -1))}
        if "token_type_ids" in added:
            types = torch.zeros_like(padded)
            inputs["token_type_ids"] = types.scatter(1, places, added["token_type_ids"].expand(len(ids), -1))
        logits: Tensor = self.model(**inputs, attention_mask=mask).logits.float()
        entailment = logits[:, self.entailment]
        return entailment - logits[:, self.others].logsumexp(dim=1) if self.independent else entailment


def find_entailment(id2label: Mapping[int, str], source: str) -> int:
    """Returns the index of the class of entailment.

    Args:
        source: names the model in messages.

    Raises:
        UserError: for a model without exactly one.
    """
    found = [index for index, name in id2label.items() if str(name).lower().startswith(ENTAILMENT)]
    if len(found) != 1:
        raise UserError(
            f"{source} has the labels {', '.join(map(str, id2label.values()))}, expected those of natural language "
            "inference, one of them called entailment: give a model that is fine-tuned on pairs of premise and "
            "hypothesis, with the names of its labels as id2label in its config.json"
        )
    return int(found[0])


def tokenize_hypotheses(
    hypotheses: Sequence[str], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, max_length: int
) -> list[dict[str, list[int]]]:
    """Returns the tokens that follow those of a text if a hypothesis is the second text of a pair.

    Args:
        max_length: tokens of the longest text.

    Raises:
        UserError: for a tokenizer whose pairs do not begin with the tokens of the first text alone, and for texts that
            are too long with a hypothesis.
    """
    alone = tokenizer("text")["input_ids"]
    tokens = []
    for hypothesis in hypotheses:
        pair = tokenizer("text", hypothesis)
        if pair["input_ids"][: len(alone)] != alone:
            raise UserError(
                f"the tokenizer {type(tokenizer).__name__} has other tokens for a text in a pair than for the text "
                "alone: give a model of another family, such as BERT, RoBERTa or DeBERTa-v2"
            )
        tokens.append({name: pair[name][len(alone) :] for name in ("input_ids", "token_type_ids") if name in pair})
    added = max(len(values["input_ids"]) for values in tokens)
    limit = longest(model, tokenizer)
    if max_length + added > limit:
        raise UserError(
            f"task.max_length={max_length} and a hypothesis of {added} tokens are more than the {limit} that the model "
            f"reads: set task.max_length={limit - added}, which cuts longer texts"
        )
    return tokens
