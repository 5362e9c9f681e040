"""Encoders and decoders with fewer heads and inner neurons in each layer, and narrow embeddings of words.

Requires torch and transformers. `save_pretrained` copies this file into the model's directory, and
`from_pretrained(directory, trust_remote_code=True)` loads the model from there.

The heads keep their size, so that the queries, keys and values of a layer are narrower than its states, which the
configurations of most families cannot say.
"""

import re
from collections.abc import Sequence
from functools import cache, partial
from typing import Any, NamedTuple

from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from .modeling_texts import ENCODER_HEADS, derive_models, register

PREFIX = "distill_narrow_"  # Of the types of these models, before that of the family.


class Axis(NamedTuple):
    """The linear layers of a layer that share an axis, of its heads or of its inner neurons.

    Args:
        writers: have it in their outputs.
        reader: has it in its inputs.
        stacked: how many times the axis stands in the outputs of a writer, one after another.
        counters: numbers in the layer that are multiples of its size.
    """

    writers: tuple[str, ...]
    reader: str
    stacked: int = 1
    counters: tuple[str, ...] = ()


class Architecture(NamedTuple):
    """What is cut in the layers of a family.

    Args:
        layers: their list in the model without its head.
        heads: queries, keys and values. Where several heads share their keys, the axis is of these groups.
        neurons: of the feed-forward network.
        biased: an attention to which the scores of all heads are added from outside, if any.
        norms: behind the attention and behind the feed-forward network, of a layer that has no other tensors.
        size: the number of neurons in the configuration.
    """

    layers: str
    heads: Axis
    neurons: Axis
    biased: str | None = None
    norms: tuple[str, ...] = ()
    size: str = "intermediate_size"

    @property
    def modules(self) -> tuple[str, ...]:
        """Returns the names of the linear layers and norms of a layer, of the attention first."""
        of_heads, of_neurons = ((*axis.writers, axis.reader) for axis in (self.heads, self.neurons))
        return (*of_heads, *self.norms[:1], *of_neurons, *self.norms[1:])


def _heads(attention: str, writers: str, reader: str, counters: str = "num_attention_heads all_head_size") -> Axis:
    own = tuple(f"{attention}.{name}" for name in writers.split())
    return Axis(own, reader, counters=tuple(f"{attention}.{name}" for name in counters.split()))


_BERT_FFN = Axis(("intermediate.dense",), "output.dense")
_BERT = Architecture(
    "encoder.layer", _heads("attention.self", "query key value", "attention.output.dense"), _BERT_FFN,
    norms=("attention.output.LayerNorm", "output.LayerNorm"),
)  # fmt: skip
_LLAMA = Architecture(
    "layers",
    _heads("self_attn", "q_proj k_proj v_proj", "self_attn.o_proj", counters=""),
    Axis(("mlp.gate_proj", "mlp.up_proj"), "mlp.down_proj"),
)
# By the type of a family in transformers.
ARCHITECTURES = {
    **dict.fromkeys(("bert", "camembert", "electra", "roberta", "xlm-roberta"), _BERT),
    **dict.fromkeys(("eurobert", "gemma", "llama", "mistral", "qwen2", "qwen3"), _LLAMA),
    "deberta-v2": _BERT._replace(
        heads=_heads(
            "attention.self", "query_proj key_proj value_proj pos_key_proj pos_query_proj", "attention.output.dense"
        )
    ),
    "distilbert": Architecture(
        "transformer.layer", _heads("attention", "q_lin k_lin v_lin", "attention.out_lin", "n_heads"),
        Axis(("ffn.lin1",), "ffn.lin2"), norms=("sa_layer_norm", "output_layer_norm"), size="hidden_dim",
    ),
    "modernbert": Architecture(
        "layers", Axis(("attn.Wqkv",), "attn.Wo", stacked=3), Axis(("mlp.Wi",), "mlp.Wo", stacked=2)
    ),
    "mpnet": _BERT._replace(
        heads=_heads("attention.attn", "q k v", "attention.attn.o"), biased="attention.attn",
        norms=("attention.LayerNorm", "output.LayerNorm"),
    ),
}  # fmt: skip
_FAMILIES = {name.replace("-", "_"): name for name in ARCHITECTURES}  # As they stand behind the PREFIX.


def family_of(config: PreTrainedConfig) -> str | None:
    """Returns the type in transformers of a model or a narrow one, None for a family that is not in ARCHITECTURES."""
    return _FAMILIES.get(config.model_type.replace("-", "_").removeprefix(PREFIX))


def architecture_of(config: PreTrainedConfig) -> Architecture:
    """Returns the description of a model's family; raises KeyError for a family that is not in ARCHITECTURES."""
    return ARCHITECTURES[family_of(config) or config.model_type]


def count_groups(config: PreTrainedConfig) -> int:
    """Returns how many heads, or groups of heads that share their keys, a layer has before a cut."""
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


def count_whole(config: PreTrainedConfig) -> tuple[int, int]:
    """Returns the `count_groups` and how many neurons a layer has before a cut."""
    return count_groups(config), int(getattr(config, architecture_of(config).size))


def find_writers(layer: nn.Module, axis: Axis) -> list[nn.Linear]:
    """Returns the writers that a layer has: one of a DeBERTa may have no projections of positions."""
    named = dict(layer.named_modules())
    return [named[name] for name in axis.writers if name in named]  # type: ignore[misc]


class FactorizedEmbedding(nn.Embedding):
    """A table `[V, E]` with a projection `[H, E]` to the width of the table `[V, H]` in whose place it stands."""

    def __init__(self, table: nn.Embedding, width: int) -> None:
        super().__init__(table.num_embeddings, width, padding_idx=table.padding_idx)
        self.projection = nn.Linear(width, table.embedding_dim, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        """Returns the embeddings `[B, L, H]` of `input [B, L]`."""
        embeddings: Tensor = self.projection(super().forward(input))
        return embeddings


class NarrowModel(PreTrainedModel):
    """A model of transformers whose layers are cut after they were made."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        if self.base_model is self or not isinstance(self.base_model, NarrowModel):  # As the head of a Llama makes it.
            _cut(self.base_model, config)
        self.post_init()


def _cut(model: PreTrainedModel, config: PreTrainedConfig) -> None:
    """Replaces the linear layers by smaller ones with random weights."""
    family = architecture_of(config)
    whole = count_whole(config)
    for place, layer in enumerate(model.get_submodule(family.layers)):
        for axis, total, numbers in zip((family.heads, family.neurons), whole, read_sizes(config), strict=True):
            for name in (*axis.writers, axis.reader, *axis.counters):
                owner, own = layer.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
                old = getattr(owner, own, None)
                if isinstance(old, int):
                    setattr(owner, own, old // total * numbers[place])
                elif old is not None:  # A DeBERTa may have no projections of positions.
                    read, written = old.in_features, old.out_features
                    if name == axis.reader:
                        read = read // total * numbers[place]
                    else:
                        written = written // total * numbers[place]
                    setattr(owner, own, nn.Linear(read, written, bias=old.bias is not None))
        if family.biased and config.kept_heads:
            attention = layer.get_submodule(family.biased)
            attention.register_forward_pre_hook(partial(_select_heads, config.kept_heads[place]))
    if config.word_width is not None:
        model.set_input_embeddings(FactorizedEmbedding(model.get_input_embeddings(), config.word_width))


def is_narrow(config: PreTrainedConfig) -> bool:
    """Returns whether a configuration is one of this module's."""
    return bool(config.model_type.startswith(PREFIX))


def read_sizes(config: PreTrainedConfig) -> tuple[Sequence[int], Sequence[int]]:
    """Returns the numbers of heads, or of groups of them, and of inner neurons of each layer."""
    own = [getattr(config, name, None) for name in ("layer_heads", "layer_ffn")]
    heads, neurons = (
        given or [whole] * config.num_hidden_layers for given, whole in zip(own, count_whole(config), strict=True)
    )
    return heads, neurons


def _select_heads(kept: Sequence[int], attention: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Gives an attention the scores `[1, A, L, L]` of its own heads, the third of its arguments."""
    states, mask, bias, *others = arguments
    return (states, mask, None if bias is None else bias[:, list(kept)], *others)


@cache
def derive_family(name: str) -> Any:
    """Creates and registers the narrow models of a family of ARCHITECTURES, and returns their configuration.

    It has the numbers of heads `layer_heads` and of inner neurons `layer_ffn` of each layer, the width `word_width` of
    the embeddings of words, and of a family with biases the indices `kept_heads` of the heads. None is for the
    family's own sizes.
    """
    family = CONFIG_MAPPING[name]
    numbers = {"layer_heads": list[int] | None, "layer_ffn": list[int] | None, "word_width": int | None}
    annotations = numbers | {"kept_heads": list[list[int]] | None}
    members = {
        "__module__": __name__, "__doc__": f"A {family.__name__} of a narrow model.", "__annotations__": annotations,
        "model_type": PREFIX + name.replace("-", "_"), **dict.fromkeys(annotations),
    }  # fmt: skip
    config = globals()[f"Narrow{family.__name__}"] = type(f"Narrow{family.__name__}", (family,), members)
    with_heads = (AutoModel, *ENCODER_HEADS, AutoModelForCausalLM)
    classes = [auto for auto in with_heads if family in auto._model_mapping]  # type: ignore[attr-defined]
    register(*derive_models(globals(), "Narrow", config, classes, NarrowModel))
    return config


def register_type(kind: str) -> None:
    """Registers the models of a type with the PREFIX."""
    derive_family(_FAMILIES[kind.removeprefix(PREFIX)])


def __getattr__(name: str) -> Any:
    """Returns a class of a family that was not derived yet, for transformers and pickle, which know it by its name."""
    for family in ARCHITECTURES:
        stem = CONFIG_MAPPING_NAMES[family].removesuffix("Config")
        if re.fullmatch(rf"Narrow{stem}(Config|Model|For\w+)", name):
            derive_family(family)
            return globals()[name]
    raise AttributeError(name)
