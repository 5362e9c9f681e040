"""The layers of an encoder and the modules inside them, by the names that they have in an ALBERT."""

import math
from collections.abc import Mapping
from itertools import chain

from torch import nn
from transformers import AlbertConfig, PreTrainedConfig, PreTrainedModel

from distill.errors import UserError
from distill.models.modeling_shared_albert import SharedAlbertConfig, group_of

_ATTENTION = ("attention.query", "attention.key", "attention.value", "attention.dense", "attention.LayerNorm")
_FFN = ("ffn", "ffn_output", "full_layer_layer_norm")
# Names in the layers of other families, in the same order.
_LAYOUTS = (
    tuple(f"albert_layers.0.{name}" for name in _ATTENTION + _FFN),
    # BERT, RoBERTa and its relatives, ELECTRA, Longformer
    (
        "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
        "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm",
    ),
    # DistilBERT
    (
        "attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin", "sa_layer_norm", "ffn.lin1",
        "ffn.lin2", "output_layer_norm",
    ),
    # MPNet
    (
        "attention.attn.q", "attention.attn.k", "attention.attn.v", "attention.attn.o", "attention.LayerNorm",
        "intermediate.dense", "output.dense", "output.LayerNorm",
    ),
)  # fmt: skip
_GLOBAL = "_global."  # In the names of Longformer's second projections, for its global tokens.

Parts = Mapping[str, nn.Module]


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
    for module in encoder.modules():
        if isinstance(module, nn.ModuleList) and len(module) == total > 0:
            return list(module)
    raise UserError(f"a {type(model).__name__} has no list of {total} layers to copy from: take +student=bilstm")


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
    total = count_decoder_layers(model.config) if decoder else model.config.num_hidden_layers
    half = model.get_decoder() if decoder else model
    for name, module in model.named_modules():
        is_inside = half is model or any(module is part for part in half.modules())
        if isinstance(module, nn.ModuleList) and is_inside and len(module) == total and total > 0:
            return f"{name}."
    if isinstance(model.config, AlbertConfig):
        raise UserError(
            f"a {type(model).__name__} has no {total} separate layers to choose from (they share one set of "
            "weights), which a distilbert student would copy: take +student=albert, whose layers share theirs"
        )
    raise UserError(
        f"a {type(model).__name__} has no list of {total} layers, from which a distilbert student would choose: take "
        "+student=bilstm, which follows a teacher of any family"
    )


def renumber_layer(name: str, prefix: str, numbers: Mapping[int, int]) -> str | None:
    """Returns a tensor's name with another number of its layer, None for a layer that has none in `numbers`."""
    if not name.startswith(prefix):
        return name
    layer, _, rest = name.removeprefix(prefix).partition(".")
    number = numbers.get(int(layer))
    return None if number is None else f"{prefix}{number}.{rest}"


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
                {own: layer.get_submodule(name) for own, name in zip(_ATTENTION + _FFN, layout, strict=True)}
                for layer in layers
            ]
    return []


def name_in_whole(student: PreTrainedModel, *, encoder: PreTrainedModel, whole: PreTrainedModel) -> None:
    """Renames what a student has `inherited` from a model of transformers to its names in a model built on this one.

    What it has from the head of `encoder` is left out, because that head is new.
    """
    prefix = f"{encoder.base_model_prefix}."
    copied: Mapping[str, str] = student.inherited  # type: ignore[assignment]
    student.inherited = {  # type: ignore[assignment]
        name: f"{whole.base_model_prefix}.{source.removeprefix(prefix)}"
        for name, source in copied.items()
        if source.startswith(prefix)
    }


def _has_exactly(layer: nn.Module, layout: tuple[str, ...]) -> bool:
    """Returns whether the tensors of the layer are those of the layout's modules."""
    names = {name for name, _ in layer.named_parameters() if _GLOBAL not in name}
    return names == set(chain.from_iterable((f"{module}.weight", f"{module}.bias") for module in layout))
