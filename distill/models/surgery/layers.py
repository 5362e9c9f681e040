"""The layers of an encoder and the modules inside them, some of which a narrower student copies, with its options."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from transformers import AlbertConfig, PreTrainedConfig, PreTrainedModel

from distill.core.errors import UserError
from distill.models.architectures.modeling_bilstm import FeatureBilstmPreTrainedModel
from distill.models.architectures.modeling_narrow import (
    ARCHITECTURES,
    Axis,
    architecture_of,
    count_groups,
    derive_family,
    family_of,
    find_writers,
    is_narrow,
    read_sizes,
)
from distill.models.architectures.modeling_shared_albert import SharedAlbertConfig, group_of
from distill.models.forward import model_class
from distill.models.loading import auto_class_of
from distill.models.surgery.copies import Copies, pass_on

_ATTENTION = ("attention.query", "attention.key", "attention.value", "attention.dense", "attention.LayerNorm")
_FFN = ("ffn", "ffn_output", "full_layer_layer_norm")
MODULES = (*_ATTENTION, *_FFN)
# The same modules in the layers of other families.
BART_LAYER = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj", "self_attn_layer_norm", "fc1",
    "fc2", "final_layer_norm",
)  # fmt: skip
_LAYOUTS = (
    tuple(f"albert_layers.0.{name}" for name in MODULES),
    *(ARCHITECTURES[family].modules for family in ("bert", "distilbert", "mpnet")),
)
_GLOBAL = "_global."  # In the names of Longformer's second projections, for its global tokens.

Parts = Mapping[str, Any]  # Modules by name.


def list_layers(model: PreTrainedModel) -> list[nn.Module]:
    """Returns the module that is called as each layer of the encoder; shared layers are one module.

    Raises:
        UserError: if the encoder has no list of as many layers as its configuration says.
    """
    config, encoder = model.config, model.base_model
    total = config.num_hidden_layers
    if isinstance(config, SharedAlbertConfig):
        return [encoder.encoder.layer_call] * total
    if isinstance(config, AlbertConfig):
        groups = encoder.encoder.albert_layer_groups
        return [groups[group_of(layer, layers=total, groups=len(groups))] for layer in range(total)]
    found = _find_list(model, encoder, total)
    if found is None:
        raise UserError(f"a {type(model).__name__} has no list of {total} layers to copy from: take +student=bilstm")
    return list(found[1])


def _find_list(model: PreTrainedModel, half: nn.Module, total: int) -> tuple[str, nn.ModuleList] | None:
    """Returns the first list of so many modules inside a half of the model, with its name in the model."""
    inside = set(half.modules())
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and module in inside and len(module) == total > 0:
            return name, module
    return None


def spread_layers(total: int, depth: int) -> list[int]:
    """Returns the first, the last and evenly spaced layers between them, rounded to the nearest, halves down."""
    if depth == 1:
        return [0]
    return [math.ceil(index * (total - 1) / (depth - 1) - 0.5) for index in range(depth)]


def read_positions(config: PreTrainedConfig, *, writes: bool = False) -> int | None:
    """Returns the number of positions that a configuration names, None for a family that reads any length.

    Args:
        writes: whether to return those of a decoder behind an encoder, which are others in a LED.
    """
    half = "max_decoder_position_embeddings" if writes else "max_encoder_position_embeddings"
    number = getattr(config, half, None) or getattr(config, "max_position_embeddings", None)
    return None if number is None or number < 1 else int(number)  # That of an XLNet is -1.


def position_tables(model: PreTrainedModel) -> dict[str, nn.Embedding]:
    """Returns the tables of absolute positions by the names of their tensors; several have several encoders."""
    named = ((name, module) for name, module in model.named_modules() if isinstance(module, nn.Embedding))
    return {f"{name}.weight": table for name, table in named if name.rpartition(".")[2] == "position_embeddings"}


def reserved_rows(table: nn.Embedding | None) -> int:
    """Returns the row of position 0: RoBERTa and its relatives count from the one behind the padding's."""
    return 0 if table is None or table.padding_idx is None else table.padding_idx + 1


def reserved_positions(model: PreTrainedModel) -> int:
    """Returns the number of rows of the table of positions in front of that of the first token."""
    return reserved_rows(next(iter(position_tables(model).values()), None))


# The number of layers of a decoder behind an encoder, in configurations.
_DECODER_LAYERS = ("num_decoder_layers", "decoder_layers")


def decoder_layers_option(config: PreTrainedConfig) -> str | None:
    """Returns the name of the number of layers of a decoder behind an encoder, None for a model without one."""
    if not getattr(config, "is_encoder_decoder", False):
        return None
    return next((name for name in _DECODER_LAYERS if isinstance(getattr(config, name, None), int)), None)


def count_decoder_layers(config: PreTrainedConfig) -> int | None:
    """Returns the number of layers of a decoder behind an encoder, None for a model without one."""
    name = decoder_layers_option(config)
    return None if name is None else int(getattr(config, name))


def find_layer_prefix(model: PreTrainedModel, *, decoder: bool = False) -> str:
    """Returns the name of the encoder's list of layers, with a dot at its end.

    Args:
        decoder: whether to return that of the decoder behind the encoder.

    Raises:
        UserError: for an encoder whose layers are not separate modules.
    """
    total = (count_decoder_layers(model.config) or 0) if decoder else int(model.config.num_hidden_layers)
    found = _find_list(model, model.get_decoder() if decoder else model, total)
    if found is not None:
        return f"{found[0]}."
    if isinstance(model.config, AlbertConfig):
        raise UserError(
            f"a {type(model).__name__} has no {total} separate layers to choose from (they share one set of "
            "weights), which a distilbert student would copy: take +student=albert, whose layers share theirs"
        )
    raise UserError(
        f"a {type(model).__name__} has no list of {total} layers, from which a distilbert student would choose: take "
        "+student=bilstm, which follows a teacher of any family"
    )


def renumber_layer(name: str, chosen: Mapping[str, Sequence[int]]) -> str | None:
    """Returns a tensor's name with the new number of its layer, None for a layer that is not chosen.

    Args:
        chosen: the numbers of the layers in their new order, by the prefix of their names.
    """
    for prefix, layers in chosen.items():
        if name.startswith(prefix):
            layer, _, rest = name.removeprefix(prefix).partition(".")
            return f"{prefix}{layers.index(int(layer))}.{rest}" if int(layer) in layers else None
    return name


def list_parts(model: PreTrainedModel) -> list[Parts]:
    """Returns the modules of each layer of the encoder under their names in an ALBERT; none for an unknown layout."""
    config, total = model.config, model.config.num_hidden_layers
    if isinstance(config, SharedAlbertConfig):
        encoder, sizes = model.base_model.encoder, (config.attention_groups, config.ffn_groups)
        places = [[group_of(layer, layers=total, groups=size) for size in sizes] for layer in range(total)]
        return [
            {name: encoder.attention[first].get_submodule(name.partition(".")[2]) for name in _ATTENTION}
            | {name: encoder.ffn[second].get_submodule(name) for name in _FFN}
            for first, second in places
        ]
    layers = list_layers(model)
    for layout in _LAYOUTS:
        if all(_has_exactly(layer, layout) for layer in layers):
            return [
                {own: layer.get_submodule(name) for own, name in zip(MODULES, layout, strict=True)} for layer in layers
            ]
    return []


# Lists in configurations with one entry for each layer.
_PER_LAYER = (
    "layer_types", "attention_layers", "mlp_layer_types", "attention_window", "layer_heads", "layer_ffn", "kept_heads",
)  # fmt: skip


def take_layers(config: PreTrainedConfig, layers: Sequence[int]) -> PreTrainedConfig:
    """Returns the configuration of a model with some of the layers of an encoder, in this order.

    Raises:
        UserError: for a family whose configuration has no number of layers.
    """
    taken = copy.deepcopy(config)
    try:
        taken.num_hidden_layers = len(layers)
    except NotImplementedError:  # Of a ProphetNet, which has another name, and of a Funnel, which has blocks.
        if not hasattr(config, "num_encoder_layers"):
            raise UserError(
                f"the configuration of a model of type {config.model_type} has no number of layers, which a distilbert "
                "student would lower: take +student=bilstm"
            ) from None
        taken.num_encoder_layers = len(layers)
    for name in _PER_LAYER:
        values = getattr(config, name, None)
        # That of a Mamba or a Jamba follows from the number of layers.
        if isinstance(values, list | tuple) and not isinstance(getattr(type(config), name, None), property):
            setattr(taken, name, [values[index] for index in layers])
    if getattr(taken, "attention_types", None):  # GPT-Neo's, from which its list for each layer is made.
        taken.attention_types = [[[kind], 1] for kind in taken.attention_layers]
    return taken


def encoder_below_features(teacher: PreTrainedModel) -> PreTrainedModel:
    """Returns the encoder of a BiLSTM on features, with a new head of its own family; another teacher is returned."""
    return teacher.to_transformer() if isinstance(teacher, FeatureBilstmPreTrainedModel) else teacher


def name_in_whole(student: PreTrainedModel, *, encoder: PreTrainedModel, whole: PreTrainedModel) -> None:
    """Renames what a student has `inherited` from the `encoder_below_features` to its names in the `whole` model.

    What it has from the head of `encoder` is left out, because that head is new.
    """
    prefix = f"{encoder.base_model_prefix}."
    copied: Mapping[str, str] = student.inherited  # type: ignore[assignment]
    if encoder is not whole:
        student.inherited = {  # type: ignore[assignment]
            name: f"{whole.base_model_prefix}.{source.removeprefix(prefix)}"
            for name, source in copied.items()
            if source.startswith(prefix)
        }


def _has_exactly(layer: nn.Module, layout: tuple[str, ...]) -> bool:
    """Returns whether the tensors of the layer are those of the layout's modules."""
    names = {name for name, _ in layer.named_parameters() if _GLOBAL not in name}
    return names == {f"{module}.{kind}" for module in layout for kind in ("weight", "bias")}


# Of a configuration, and not of the sizes of its model.
_OF_CLASS = ("model_type", "architectures", "auto_map", "transformers_version", "dtype")


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
        """Returns the sizes of a model, whose heads are groups where several share their keys.

        Raises:
            UserError: for a model of another family than those of ARCHITECTURES, and for heads that do not divide the
                width of the layers.
        """
        if family_of(model.config) is None:
            raise UserError(
                "student.heads, student.ffn and student.prune cut the layers of BERT, DistilBERT, RoBERTa, ELECTRA, "
                "MPNet, DeBERTa-v3, ModernBERT, EuroBERT, Llama, Mistral, Gemma and Qwen, and this is a "
                f"{type(model).__name__}: leave them out, or take another teacher"
            )
        head_size(model)
        return cls(*map(list, read_sizes(model.config)))


def list_readers(model: PreTrainedModel) -> list[nn.Linear]:
    """Returns the linear layers that read the heads and the inner neurons of each layer, one after the other."""
    family = architecture_of(model.config)
    names = (family.heads.reader, family.neurons.reader)
    return [layer.get_submodule(name) for layer in list_layers(model) for name in names]  # type: ignore[misc]


def head_size(model: PreTrainedModel) -> int:
    """Returns the width of one head.

    Raises:
        UserError: for heads that do not divide the width of the layers.
    """
    config = model.config
    heads, width = int(config.num_attention_heads), int(config.hidden_size)
    if getattr(config, "head_dim", None) is not None:
        return int(config.head_dim)
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
    kept = [of_layer.index_fill(0, of_layer.argmax(), torch.inf) for of_layer in scores]  # The largest of each layer.
    ranked = torch.cat(kept).argsort(descending=True, stable=True)
    return torch.bincount(layer[ranked[:total]], minlength=len(scores)).tolist()


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
    `modeling_narrow`. What it has `inherited` is what the model has, as far as it was kept.

    Args:
        heads: the indices of the heads of each kept layer, in their new order.
        neurons: those of the inner neurons.
        layers: the indices of the kept layers; None for all.
        embedding_dim: width E of the embeddings of words, whose table `[V, H]` becomes the product of two factors
            `[V, E]` and `[E, H]`, its truncated singular value decomposition; None leaves the table as it is.
    """
    kept = list(range(model.config.num_hidden_layers)) if layers is None else list(layers)
    family = architecture_of(model.config)
    if family.biased:  # All heads in their own order, as the scores that are added to them.
        heads = [sorted(of) for of in heads]
    student = _create(model, kept, heads, [len(of) for of in neurons], embedding_dim)
    copies, chosen = Copies(model, student), {find_layer_prefix(model): kept}
    copies.copy_equal(lambda name: renumber_layer(name, chosen))
    whole, sources = Sizes.of(model), list_layers(model)
    for own, index, of_heads, of_neurons in zip(list_layers(student), kept, heads, neurons, strict=True):
        cuts = (family.heads, of_heads, whole.heads), (family.neurons, of_neurons, whole.neurons)
        for axis, units, totals in cuts:
            _copy_units(copies, own, sources[index], axis, torch.tensor(list(units)), total=totals[index])
    if embedding_dim is not None:
        table, factors = model.get_input_embeddings().weight, student.get_input_embeddings()
        rows = table.double()
        _, directions = torch.linalg.eigh(rows.T @ rows)  # The right singular vectors in ascending order.
        directions = directions[:, -embedding_dim:]  # [H, E]
        copies.copy(factors.weight, table, rows @ directions)
        copies.copy(factors.projection.weight, table, directions)
    pass_on(model, student, copies.names)
    return student.float().train(model.training)


def _copy_units(copies: Copies, own: nn.Module, source: nn.Module, axis: Axis, units: Tensor, *, total: int) -> None:
    """Copies what a layer has of some of the `total` heads or inner neurons of another one."""
    for target, writer in zip(find_writers(own, axis), find_writers(source, axis), strict=True):
        targets = dict(target.named_parameters())
        for name, tensor in writer.named_parameters():
            rows = tensor.unflatten(0, (axis.stacked, total, -1))[:, units].flatten(0, 2)
            copies.copy(targets[name], tensor, rows)
    kept, whole = (cast(nn.Linear, layer.get_submodule(axis.reader)).weight for layer in (own, source))
    copies.copy(kept, whole, whole.unflatten(1, (total, -1))[:, units].flatten(1))


def _create(
    model: PreTrainedModel, layers: Sequence[int], heads: Sequence[Sequence[int]], neurons: list[int],
    embedding_dim: int | None,
) -> PreTrainedModel:  # fmt: skip
    """Returns the student with random weights, of its family's own class if a configuration of it has its sizes."""
    config, name = take_layers(model.config, layers), family_of(model.config)
    assert name is not None  # As Sizes.of says.
    counts, whole = [len(of) for of in heads], count_groups(config)
    has_width = getattr(config, "head_dim", None) is not None  # Which need not be a share of the layers' width.
    is_even = len(set(neurons)) == len(set(counts)) == 1 and (has_width or counts[0] == whole)
    if is_even and embedding_dim is None and not is_narrow(config):
        if counts[0] != whole:
            config.num_attention_heads = config.num_attention_heads // whole * counts[0]
            config.num_key_value_heads = counts[0]
        setattr(config, ARCHITECTURES[name].size, neurons[0])
        return type(model)(config)
    narrow_config = derive_family(name)
    values = {name: value for name, value in config.to_dict().items() if name not in _OF_CLASS}
    values |= {"layer_heads": counts, "layer_ffn": neurons, "word_width": embedding_dim or values.get("word_width")}
    if ARCHITECTURES[name].biased:
        before = getattr(config, "kept_heads", None) or [list(range(whole))] * len(counts)
        values["kept_heads"] = [[old[index] for index in of] for old, of in zip(before, heads, strict=True)]
    create = model_class(auto_class_of(model), narrow_config)
    if create is None:
        raise UserError(f"no narrow model has the head of a {type(model).__name__}: leave out student.heads")
    return create(narrow_config(**values))


def is_whole(value: object, least: int = 1, most: int | None = None) -> bool:
    """Returns whether a value is a whole number in this range."""
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return value >= least and (most is None or value <= most)


def check_size(option: str, value: object, least: int = 1) -> None:
    """Raises UserError for an option, such as `student.chunk`, that is no whole number of at least `least`."""
    if not is_whole(value, least):
        raise UserError(f"got {option}={value}, expected a whole number of at least {least}")


@dataclass(frozen=True)
class Width:
    """The width of a student.

    Args:
        heads: number of heads of a layer, of the teacher's size each, or one number for each layer; None for the
            teacher's. The most important ones are copied.
        ffn: number of inner neurons of a layer, as `heads`.
        embedding_dim: width of the embeddings of words, which are the teacher's by a truncated singular value
            decomposition, with a projection to the width of the layers; None for the teacher's.
        prune: `iterative` for a student that reaches its sizes in `prune_steps` steps, between which it is trained for
            `prune_share` of its training's steps; then the numbers of `heads` and `ffn` are means over the layers.
    """

    heads: int | Sequence[int] | None
    ffn: int | Sequence[int] | None
    embedding_dim: int | None
    prune: Literal["iterative"] | None
    prune_steps: int
    prune_share: float

    def __post_init__(self) -> None:
        share = self.prune_share
        if self.prune not in (None, "iterative"):
            raise UserError(f"student.prune={self.prune} is unknown, expected iterative or null")
        check_size("student.prune_steps", self.prune_steps)
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise UserError(f"got student.prune_share={share}, expected a number above 0 and at most 1")

    @property
    def is_set(self) -> bool:
        """Returns whether a student is changed at all, now or in steps."""
        return (self.heads, self.ffn, self.embedding_dim, self.prune) != (None, None, None, None)

    def check(self, *, copies: bool, can_be_cut: bool) -> None:
        """Raises UserError if the student starts from random weights, or is one that cannot be cut."""
        if self.is_set and not can_be_cut:
            raise UserError(
                "student.heads, ffn, embedding_dim and prune cut no student for long texts, and none of features: "
                "leave out student.attention, student.positions and student.chunk, or take another teacher"
            )
        if self.prune is not None and not copies:
            raise UserError("student.prune=iterative removes parts of the teacher, and student.init=random copies none")

    def apply(self, student: PreTrainedModel, importance: Callable[[], Importance] | None) -> PreTrainedModel:
        """Returns the student with the most important heads and inner neurons, and with narrow embeddings.

        Args:
            student: has some layers of its teacher, named in its configuration.
            importance: of the teacher; None keeps the first heads and neurons.

        Raises:
            UserError: for sizes that the student cannot have.
        """
        if not self.is_set:
            return student
        whole = Sizes.of(student)
        heads, neurons = (
            _choose_counts("heads", self.heads, whole.heads),
            _choose_counts("ffn", self.ffn, whole.neurons),
        )
        if self.embedding_dim is not None:
            _check_rank(student, self.embedding_dim)
        scores = Importance(*([torch.zeros(size) for size in sizes] for sizes in (whole.heads, whole.neurons)))
        if importance is not None and (heads, neurons) != (whole.heads, whole.neurons):
            scores = importance().of_layers(student.config.teacher_layers)
        return narrow(
            student, heads=take_strongest(scores.heads, heads), neurons=take_strongest(scores.neurons, neurons),
            embedding_dim=self.embedding_dim,
        )  # fmt: skip


def _choose_counts(option: str, given: int | Sequence[int] | None, whole: Sequence[int]) -> list[int]:
    """Returns the number of heads or inner neurons of each layer.

    Args:
        given: the value of the option, one number or one for each layer; None for all.
        whole: how many each layer has in the teacher.

    Raises:
        UserError: for no whole number, one out of range, or more or fewer numbers than layers.
    """
    if given is None:
        return list(whole)
    counts = [given] * len(whole) if not isinstance(given, Sequence) or isinstance(given, str) else list(given)
    if len(counts) != len(whole):
        raise UserError(
            f"student.{option}={counts} has {len(counts)} numbers, expected one for each of {len(whole)} layers"
        )
    for count, most in zip(counts, whole, strict=True):
        if not is_whole(count, 1, most):
            shown = "heads" if option == "heads" else "inner neurons"
            raise UserError(
                f"got student.{option}={given}, expected a whole number from 1 to {most}: a layer of the teacher has "
                f"{most} {shown}"
            )
    return counts


def _check_rank(student: PreTrainedModel, embedding_dim: int) -> None:
    """Raises UserError for a width of embeddings that a student cannot have."""
    table = student.get_input_embeddings()
    if type(table) is not nn.Embedding:
        raise UserError(
            f"student.embedding_dim factorizes a plain table, and a {type(student).__name__} has a "
            f"{type(table).__name__}: leave it out"
        )
    width = table.embedding_dim
    if not is_whole(embedding_dim, 1, width - 1):
        raise UserError(
            f"got student.embedding_dim={embedding_dim}, expected a whole number from 1 to {width - 1}, below the "
            f"width {width} of the embeddings: leave it out for embeddings of this width"
        )
    if student.get_output_embeddings() is not None:
        raise UserError(
            f"student.embedding_dim is for students without a head over the vocabulary, and a "
            f"{type(student).__name__} has one, which reads the table: leave it out, or take +student=albert"
        )
