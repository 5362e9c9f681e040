"""Vectors of texts: the pooling of hidden states, the layers behind it, and the files of sentence-transformers."""

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, get_args

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from distill.core.contracts import VECTOR_SETTINGS
from distill.core.errors import UserError
from distill.core.files import make_directory, write_json, write_text

Pooling = Literal["mean", "cls", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
AUTO: Literal["auto"] = "auto"  # The pooling of a model's own files, else the mean.
JOINED = "+"  # Between the names of several poolings, whose vectors are joined in this order.
# The names of poolings in the files of sentence-transformers, in the order in which it joins them.
POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max", "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}  # fmt: skip
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid")
DENSE = "Dense"
_LAYERS = "vector_layers"  # The attribute of a model with layers behind its pooling.
_POOLING_FILE = Path("1_Pooling") / "config.json"
_WEIGHTS = "model.safetensors"


class DenseSettings(TypedDict):
    """The entries of the config.json of a layer behind the pooling, and its folder where it was read from one."""

    in_features: int
    out_features: int
    bias: bool
    activation_function: str
    use_residual: NotRequired[bool]
    folder: NotRequired[str]


class VectorSettings(TypedDict):
    """How the last hidden states of an encoder become the vector of a text.

    `pooling` may have several names with `+` between them. `dense` are the layers behind it, `dimensions` is the number
    of first numbers that are the vector, and `normalize` is whether it has length 1. `max_length` is the most tokens of
    a text. `known_width` is that of the vectors in a file, which teach in the place of the model's.
    """

    pooling: str
    normalize: bool
    max_length: NotRequired[int]
    dense: NotRequired[list[DenseSettings]]
    dimensions: NotRequired[int]
    known_width: NotRequired[int]


class Dense(nn.Module):
    """A layer behind the pooling: `f(W x + b)`, and with `use_residual` the vector itself, mapped to the new width."""

    def __init__(self, settings: DenseSettings) -> None:
        super().__init__()
        self.folder = settings.get("folder")
        self.settings = {name: value for name, value in settings.items() if name != "folder"}
        width, target = settings["in_features"], settings["out_features"]
        self.linear = nn.Linear(width, target, bias=settings["bias"])
        self.activation: nn.Module = getattr(nn, settings["activation_function"].rpartition(".")[2])()
        self.residual: nn.Module | None = None
        if settings.get("use_residual"):
            self.residual = nn.Identity() if width == target else nn.Linear(width, target, bias=False)

    def forward(self, vectors: Tensor) -> Tensor:
        mapped: Tensor = self.activation(self.linear(vectors))
        return mapped if self.residual is None else mapped + self.residual(vectors)


def vector_settings(config: PreTrainedConfig) -> VectorSettings | None:
    """Returns how the vectors of an encoder are computed, None for a model without vectors."""
    settings: VectorSettings | None = getattr(config, VECTOR_SETTINGS, None)
    return settings


def vector_width(config: PreTrainedConfig) -> int:
    """Returns the width of the vector of a text; of a model without vectors that of its hidden states."""
    settings = vector_settings(config)
    if settings is None:
        return int(config.hidden_size)
    if "known_width" in settings:
        return settings["known_width"]
    dense = settings.get("dense")
    width = dense[-1]["out_features"] if dense else _pooled_width(config, settings)
    return min(width, settings.get("dimensions", width))


def _pooled_width(config: PreTrainedConfig, settings: VectorSettings) -> int:
    return int(config.hidden_size) * len(settings["pooling"].split(JOINED))


def set_known_width(model: PreTrainedModel, width: int) -> None:
    """Gives an encoder the width of the vectors of a file, which teach in the place of its own."""
    setattr(model.config, VECTOR_SETTINGS, {**(vector_settings(model.config) or {}), "known_width": width})


def list_dense(model: PreTrainedModel) -> list[Dense]:
    """Returns the layers behind the pooling of a model."""
    return list(getattr(model, _LAYERS, None) or ())


def put_dense(model: PreTrainedModel, layers: Sequence[Dense]) -> None:
    """Gives a model the layers behind its pooling, which are a part of its parameters."""
    settings = vector_settings(model.config)
    assert settings is not None
    others = {name: value for name, value in settings.items() if name != "dense"}
    dense = [layer.settings for layer in layers]
    setattr(model, _LAYERS, nn.Sequential(*layers) if layers else None)
    setattr(model.config, VECTOR_SETTINGS, {**others, **({"dense": dense} if dense else {})})


def encode_states(model: PreTrainedModel, states: Tensor, attention_mask: Tensor, *, normalize: bool = True) -> Tensor:
    """Returns the vectors `[B, D]` (float32) of a model's last hidden states `[B, L, H]`, if wanted of length 1.

    A static model has pooled its states `[B, H]` itself.
    """
    settings = vector_settings(model.config)
    assert settings is not None
    vectors = states if states.ndim == 2 else pool(states, attention_mask, {**settings, "normalize": False})
    for layer in list_dense(model):
        vectors = layer(vectors.to(layer.linear.weight.dtype))
    vectors = vectors.float()
    if "dimensions" in settings:
        vectors = vectors[..., : settings["dimensions"]]
    return F.normalize(vectors, dim=-1) if normalize and settings["normalize"] else vectors


def pool(states: Tensor, attention_mask: Tensor, settings: VectorSettings) -> Tensor:
    """Returns the pooled hidden states `[B, H]` (float32) of `[B, L, H]`; several poolings are joined.

    `mean` and `max` are over all tokens of `attention_mask [B, L]`, `weightedmean` weights them by their number from
    1, and `mean_sqrt_len_tokens` divides their sum by the root of their number. `cls` is the first token and
    `lasttoken` the last one, wherever padding is.
    """
    states, mask = states.float(), attention_mask.to(states.device)
    pooled = [_pool(name, states, mask) for name in settings["pooling"].split(JOINED)]
    vectors = pooled[0] if len(pooled) == 1 else torch.cat(pooled, dim=-1)
    return F.normalize(vectors, dim=-1) if settings["normalize"] else vectors


def _pool(name: str, states: Tensor, mask: Tensor) -> Tensor:
    if name == "max":
        return states.masked_fill(mask.unsqueeze(-1) == 0, torch.finfo(states.dtype).min).amax(dim=1)
    if name in ("cls", "lasttoken"):
        number = mask.argmax(dim=1) if name == "cls" else mask.cumsum(dim=1).argmax(dim=1)
        return states.gather(1, number.view(-1, 1, 1).expand(-1, 1, states.shape[-1])).squeeze(1)
    weights = (mask.cumsum(dim=1) * mask if name == "weightedmean" else mask).unsqueeze(-1).to(states.dtype)
    total, number = (states * weights).sum(dim=1), weights.sum(dim=1).clamp(min=1)
    return total / (number.sqrt() if name == "mean_sqrt_len_tokens" else number)


def inherit_vectors(
    model: PreTrainedModel, parent: PreTrainedModel, pooling: str, *, follows: bool, width: int | None
) -> None:
    """Gives a new encoder of vectors what its parent computes behind the pooling, and the width of a space.

    Args:
        pooling: that of the task.
        follows: whether its vectors are to begin as those of its parent.
        width: of the space of its teacher, into which a linear layer maps vectors of another width; None for none.
    """
    own, of_parent = vector_settings(model.config), vector_settings(parent.config)
    assert own is not None
    if follows and of_parent is not None and not list_dense(model):
        if pooling == AUTO:
            own = {**own, "pooling": of_parent["pooling"]}
        setattr(model.config, VECTOR_SETTINGS, own)
        if _pooled_width(model.config, own) == _pooled_width(parent.config, of_parent):
            if "dimensions" in of_parent:
                setattr(model.config, VECTOR_SETTINGS, {**own, "dimensions": of_parent["dimensions"]})
            put_dense(model, [copy.deepcopy(layer).requires_grad_() for layer in list_dense(parent)])
    if width is not None and vector_width(model.config) != width:
        settings = dict(getattr(model.config, VECTOR_SETTINGS))
        setattr(model.config, VECTOR_SETTINGS, {name: settings[name] for name in settings if name != "dimensions"})
        before = vector_width(model.config)
        layer = Dense({
            "in_features": before, "out_features": width, "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        })  # fmt: skip
        put_dense(model, [*list_dense(model), layer])


def check_dense(content: Mapping[str, object], folder: str, directory: Path, width: int | None) -> DenseSettings:
    """Returns the settings of a layer in its config.json.

    Args:
        width: of the vectors that it reads, None if it is not known.

    Raises:
        UserError: for a layer that cannot be computed here, and for one of another width.
    """
    place = f"{directory / folder}/config.json"
    name = str(content.get("activation_function", "torch.nn.modules.activation.Tanh"))
    if name.rpartition(".")[2] not in ACTIVATIONS:
        raise UserError(f"{place} has the activation {name}, expected one of {', '.join(ACTIVATIONS)}")
    inputs = ("sentence_embedding", None)
    if content.get("module_input_name") not in inputs or content.get("module_output_name") not in inputs:
        raise UserError(f"{place} reads or gives vectors of tokens, expected those of texts: take another model")
    before, after = content.get("in_features"), content.get("out_features")
    if not isinstance(before, int) or not isinstance(after, int) or min(before, after) < 1:
        raise UserError(f"{place} is damaged: it has in_features={before} and out_features={after}")
    if width is not None and before != width:
        raise UserError(f"{place} reads vectors {before} wide, and those before it are {width} wide")
    settings = DenseSettings(
        in_features=before, out_features=after, bias=bool(content.get("bias", True)), activation_function=name,
        folder=folder,
    )  # fmt: skip
    if content.get("use_residual"):
        settings["use_residual"] = True
    return settings


def load_layers(model: PreTrainedModel, directory: Path) -> None:
    """Loads the layers behind the pooling that the configuration of a model names.

    Raises:
        UserError: for weights that are missing, or of other sizes.
    """
    settings = vector_settings(model.config)
    if settings is None or not settings.get("dense") or model.base_model is not model:
        return
    layers = list(map(Dense, settings["dense"]))
    for number, layer in enumerate(layers, 2):
        path = directory / (layer.folder or f"{number}_{DENSE}") / _WEIGHTS
        if not path.is_file():
            raise UserError(f"{path} is missing: save the model again with a newer version of sentence-transformers")
        try:
            layer.load_state_dict({name: tensor.float() for name, tensor in load_file(path).items()})
        except RuntimeError as error:
            raise UserError(f"{path} has other tensors than its config.json says: {error}") from error
    put_dense(model, layers)


@contextmanager
def _without_layers(model: PreTrainedModel) -> Iterator[None]:
    """Takes the layers behind the pooling out of a model, whose own files do not have them."""
    layers = getattr(model, _LAYERS, None)
    if layers is not None:
        setattr(model, _LAYERS, None)
    try:
        yield
    finally:
        if layers is not None:
            setattr(model, _LAYERS, layers)


def save_encoder(model: PreTrainedModel, directory: Path, prompts: Mapping[str, str] | None = None) -> None:
    """Writes a model, and beside an encoder of vectors the files by which sentence-transformers loads it."""
    with _without_layers(model):
        model.save_pretrained(directory)
    write_modules(model, directory, prompts)


def write_modules(model: PreTrainedModel, directory: Path, prompts: Mapping[str, str] | None = None) -> None:
    """Writes the files by which sentence-transformers loads an encoder of vectors; of other models it writes none.

    Args:
        prompts: the beginnings of texts by their names.
    """
    settings = vector_settings(model.config)
    if settings is None:
        return
    layers = list_dense(model)
    names = ["Transformer", "Pooling", *(DENSE for _ in layers), *(["Normalize"] if settings["normalize"] else [])]
    folders = ["", *(f"{number}_{name}" for number, name in enumerate(names) if number)]
    modules = [
        {"idx": number, "name": str(number), "path": folder, "type": f"sentence_transformers.models.{name}"}
        for number, (name, folder) in enumerate(zip(names, folders, strict=True))
    ]
    write_text(directory / "modules.json", json.dumps(modules, indent=2) + "\n")
    limits = {"max_seq_length": settings.get("max_length"), "do_lower_case": False}
    write_json(directory / "sentence_bert_config.json", limits)
    for folder in folders[1:]:
        make_directory(directory / folder)
    chosen = settings["pooling"].split(JOINED)
    flags: dict[str, Any] = {flag: pooling in chosen for flag, pooling in POOLING_FLAGS.items()}
    modes = flags if len(chosen) == 1 else {"pooling_mode": chosen}  # Flags have no order.
    write_json(directory / _POOLING_FILE, {"word_embedding_dimension": model.config.hidden_size, **modes})
    for layer, folder in zip(layers, folders[2:], strict=False):
        write_json(directory / folder / "config.json", layer.settings)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in layer.state_dict().items()}
        save_file(tensors, directory / folder / _WEIGHTS)
    if prompts or "dimensions" in settings:
        write_json(directory / "config_sentence_transformers.json", {
            "prompts": dict(prompts or {}), "default_prompt_name": None, "similarity_fn_name": "cosine",
            **({"truncate_dim": settings["dimensions"]} if "dimensions" in settings else {}),
        })  # fmt: skip
