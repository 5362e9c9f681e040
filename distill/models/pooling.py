"""The vector of a text: the pooled hidden states of an encoder, as its configuration says."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from distill.contracts import VECTOR_SETTINGS
from distill.storage.files import make_directory, write_json, write_text

Pooling = Literal["mean", "cls", "max"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
# The names of poolings in the files of sentence-transformers.
_FLAGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max"}
_POOLING_FILE = Path("1_Pooling") / "config.json"


class VectorSettings(TypedDict):
    """The pooling of an encoder's last hidden states, whether a vector has length 1, and the most tokens of a text."""

    pooling: str
    normalize: bool
    max_length: NotRequired[int]


def configure(model: PreTrainedModel, settings: Mapping[str, Any]) -> list[str]:
    """Writes a task's `model_settings` to the configuration of a model. An encoder of vectors loses its own pooler.

    Returns:
        A notice if the encoder was trained with another pooling, else none.
    """
    own, wanted = vector_settings(model.config), settings.get(VECTOR_SETTINGS)
    for name, value in settings.items():
        setattr(model.config, name, value)
    if wanted is None:
        return []
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
        inherited: Mapping[str, str] | None = getattr(model, "inherited", None)
        if inherited is not None:
            kept = {name: source for name, source in inherited.items() if not name.startswith("pooler.")}
            model.inherited = kept  # type: ignore[assignment]
    if own is None or own["pooling"] == wanted["pooling"]:
        return []
    trained = own["pooling"]
    return [
        f"the teacher was trained with {trained} pooling, and task.pooling is {wanted['pooling']}: set "
        f"task.pooling={trained} for the vectors that it was trained for"
    ]


def vector_settings(config: PreTrainedConfig) -> VectorSettings | None:
    """Returns how the vectors of an encoder are computed, None for a model without vectors."""
    settings: VectorSettings | None = getattr(config, VECTOR_SETTINGS, None)
    return settings


def pool(states: Tensor, attention_mask: Tensor, settings: VectorSettings) -> Tensor:
    """Returns the vectors `[B, H]` (float32) of the last hidden states `[B, L, H]`.

    `mean` and `max` are over all tokens of `attention_mask [B, L]`, and `cls` is the first one, wherever padding is.
    """
    states, mask = states.float(), attention_mask.to(states.device)
    if settings["pooling"] == "mean":
        weights = mask.unsqueeze(-1).to(states.dtype)  # [B, L, 1]
        vectors = (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)
    elif settings["pooling"] == "max":
        vectors = states.masked_fill(mask.unsqueeze(-1) == 0, torch.finfo(states.dtype).min).amax(dim=1)
    else:
        first = mask.argmax(dim=1).view(-1, 1, 1).expand(-1, 1, states.shape[-1])
        vectors = states.gather(1, first).squeeze(1)
    return F.normalize(vectors, dim=-1) if settings["normalize"] else vectors


def write_modules(model: PreTrainedModel, directory: Path) -> None:
    """Writes the files by which sentence-transformers loads an encoder of vectors; of other models it writes none."""
    settings = vector_settings(model.config)
    if settings is None:
        return
    names = ["Transformer", "Pooling", *(["Normalize"] if settings["normalize"] else [])]
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
    flags = {flag: pooling == settings["pooling"] for flag, pooling in _FLAGS.items()}
    write_json(directory / _POOLING_FILE, {"word_embedding_dimension": model.config.hidden_size, **flags})
