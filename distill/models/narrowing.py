"""Cuts an encoder in width and depth: some of its layers, heads and inner neurons, and narrow embeddings of words."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import DistilBertConfig, PreTrainedModel

from distill.errors import UserError
from distill.models.forward import model_class
from distill.models.layers import Parts, find_layer_prefix, list_parts, renumber_layer
from distill.models.loading import auto_class_of
from distill.models.modeling_narrow import NarrowDistilBertConfig, NarrowEmbeddings

_HEAD_ROWS = ("attention.query", "attention.key", "attention.value")
# Of a configuration, and not of the sizes of its model.
_OF_CLASS = ("model_type", "architectures", "auto_map", "transformers_version", "dtype", "layer_heads", "layer_ffn")


@dataclass(frozen=True)
class Importance:
    """The importance of the heads and of the inner neurons of each layer, in each layer of the Euclidean norm 1.

    Args:
        heads: `[A]` of each layer.
        neurons: `[F]` of each layer.
    """

    heads: Sequence[Tensor]
    neurons: Sequence[Tensor]

    def of_layers(self, layers: Sequence[int]) -> "Importance":
        """Returns the importance in some of the layers, in this order."""
        return Importance([self.heads[index] for index in layers], [self.neurons[index] for index in layers])


@dataclass(frozen=True)
class Sizes:
    """The number of heads and of inner neurons of each layer.

    Args:
        heads: of each layer.
        neurons: of each layer.
    """

    heads: list[int]
    neurons: list[int]

    @classmethod
    def of(cls, model: PreTrainedModel) -> "Sizes":
        """Returns the sizes of a model.

        Raises:
            UserError: for a model whose layers are of another layout than BERT's.
        """
        parts, width = list_parts(model), head_size(model)
        if not parts:
            raise UserError(
                "student.heads, student.ffn and student.prune cut the layers of BERT, DistilBERT, RoBERTa, ELECTRA and "
                f"MPNet, and this is a {type(model).__name__}: leave them out, or take another teacher"
            )
        heads = [_linear(of["attention.query"]).out_features // width for of in parts]
        return cls(heads, [_linear(of["ffn"]).out_features for of in parts])


def head_size(model: PreTrainedModel) -> int:
    """Returns the width of one head.

    Raises:
        UserError: for heads that do not divide the width of the layers.
    """
    config = model.config
    heads = int(config.n_heads if isinstance(config, DistilBertConfig) else config.num_attention_heads)
    width = int(config.hidden_size)
    if width % heads:
        raise UserError(
            f"a {type(model).__name__} has {heads} heads, which do not divide the width {width} of its layers: its "
            "heads cannot be cut, so leave out student.heads, student.ffn and student.prune"
        )
    return width // heads


def take_strongest(scores: Sequence[Tensor], counts: Sequence[int]) -> list[list[int]]:
    """Returns the indices of the `counts` largest scores of each layer, the largest first; of equal ones the first."""
    orders = [of_layer.argsort(descending=True, stable=True).tolist() for of_layer in scores]
    return [order[:count] for order, count in zip(orders, counts, strict=True)]


def share_out(scores: Sequence[Tensor], total: int) -> list[int]:
    """Returns how many of each layer are among the `total` largest scores of all layers, where each keeps its largest.

    Raises:
        ValueError: for a total below the number of layers, or above that of the scores.
    """
    sizes = [len(of_layer) for of_layer in scores]
    if not len(scores) <= total <= sum(sizes):
        raise ValueError(f"got {total} of {sizes}, expected at least one of each layer")
    layer = torch.arange(len(scores)).repeat_interleave(torch.tensor(sizes))
    ranked = torch.cat([_without_largest(of_layer) for of_layer in scores]).argsort(descending=True, stable=True)
    return torch.bincount(layer[ranked[:total]], minlength=len(scores)).tolist()


def _without_largest(scores: Tensor) -> Tensor:
    """Returns the scores with infinity in the place of the largest one, which is always kept."""
    changed = scores.clone()
    changed[scores.argmax()] = torch.inf
    return changed


@torch.no_grad()
def narrow(
    model: PreTrainedModel,
    *,
    heads: Sequence[Sequence[int]],
    neurons: Sequence[Sequence[int]],
    layers: Sequence[int] | None = None,
    embedding_dim: int | None = None,
) -> PreTrainedModel:
    """Returns a copy of a model with some of its heads and inner neurons, in float32 and in its mode.

    It is of the model's own class if a configuration of it can describe the sizes, and else a model of
    `distill.models.modeling_narrow`. What it has `inherited` is what the model has, as far as it was kept.

    Args:
        heads: the indices of the heads of each kept layer, in their new order.
        neurons: those of the inner neurons.
        layers: the indices of the kept layers; None for all.
        embedding_dim: width E of the embeddings of words, whose table `[V, H]` becomes the product of two factors
            `[V, E]` and `[E, H]`, its truncated singular value decomposition; None leaves the table as it is.

    Raises:
        UserError: for heads or embeddings of a model that is no DistilBERT.
    """
    kept = list(range(model.config.num_hidden_layers)) if layers is None else list(layers)
    student = _create(model, [len(of) for of in heads], [len(of) for of in neurons], embedding_dim)
    tensors, own = dict(model.named_parameters()), dict(student.named_parameters())
    prefix, numbers = find_layer_prefix(model), {index: place for place, index in enumerate(kept)}
    sources = {renumber_layer(name, prefix, numbers): name for name in tensors}
    for name, tensor in own.items():
        if name in sources and tensors[sources[name]].shape == tensor.shape:
            tensor.copy_(tensors[sources[name]])
    parts = list_parts(model)
    for target, index, of_heads, of_neurons in zip(list_parts(student), kept, heads, neurons, strict=True):
        _copy_layer(parts[index], target, _expand(of_heads, head_size(model)), torch.tensor(list(of_neurons)))
    if embedding_dim is not None:
        embeddings = student.base_model.embeddings
        _factorize(model.get_input_embeddings().weight, embeddings)
        projection = next(name for name, tensor in own.items() if tensor is embeddings.word_projection.weight)
        sources[projection] = next(n for n, t in tensors.items() if t is model.get_input_embeddings().weight)
    inherited = getattr(model, "inherited", None)
    if inherited is not None:
        found = {name: inherited.get(source) for name, source in sources.items() if name in own}
        student.inherited = {name: source for name, source in found.items() if source is not None}  # type: ignore[assignment]
    return student.float().train(model.training)


def _create(model: PreTrainedModel, heads: list[int], neurons: list[int], embedding_dim: int | None) -> PreTrainedModel:
    """Returns the student with random weights."""
    config = model.config
    has_own_heads = heads == [config.hidden_size // head_size(model)] * len(heads)
    is_narrow = isinstance(config, NarrowDistilBertConfig)
    if not is_narrow and has_own_heads and len(set(neurons)) == 1 and embedding_dim is None:
        config = copy.deepcopy(config)
        config.num_hidden_layers = len(heads)
        setattr(config, "hidden_dim" if isinstance(config, DistilBertConfig) else "intermediate_size", neurons[0])
        return type(model)(config)
    if not isinstance(config, DistilBertConfig):
        raise UserError(
            "student.heads, student.embedding_dim and a student.ffn for each layer make a DistilBERT narrower, and the "
            f"student of this teacher is a {type(model).__name__}: take a BERT with layer_norm_eps 1e-12 as teacher, "
            "or student.ffn alone, one number"
        )
    values = {name: value for name, value in config.to_dict().items() if name not in _OF_CLASS}
    values |= {"n_layers": len(heads), "layer_heads": heads, "layer_ffn": neurons}
    if embedding_dim is not None:
        values["embedding_size"] = embedding_dim
    create = model_class(auto_class_of(model), NarrowDistilBertConfig)
    assert create is not None  # Each head of a DistilBERT has its narrow form.
    return create(NarrowDistilBertConfig(**values))


def _expand(heads: Sequence[int], size: int) -> Tensor:
    """Returns the indices of the rows of these heads."""
    return (torch.tensor(list(heads)).unsqueeze(1) * size + torch.arange(size)).flatten()


def _copy_layer(source: Parts, target: Parts, rows: Tensor, neurons: Tensor) -> None:
    """Copies the kept rows of heads and neurons of one layer."""
    for name in (*_HEAD_ROWS, "ffn"):
        kept = neurons if name == "ffn" else rows
        own, other = _linear(target[name]), _linear(source[name])
        own.weight.copy_(other.weight[kept])
        own.bias.copy_(other.bias[kept])
    for name, kept in (("attention.dense", rows), ("ffn_output", neurons)):
        _linear(target[name]).weight.copy_(_linear(source[name]).weight[:, kept])


def _factorize(table: Tensor, embeddings: nn.Module) -> None:
    """Starts embeddings and projection with the truncated singular value decomposition of the table `[V, H]`."""
    assert isinstance(embeddings, NarrowEmbeddings)
    rows = table.double()
    _, directions = torch.linalg.eigh(rows.T @ rows)  # The right singular vectors in ascending order.
    chosen = directions[:, -embeddings.word_embeddings.embedding_dim :]  # [H, E]
    embeddings.word_embeddings.weight.copy_(rows @ chosen)
    embeddings.word_projection.weight.copy_(chosen)


def _linear(layer: nn.Module) -> nn.Linear:
    assert isinstance(layer, nn.Linear)
    return layer
