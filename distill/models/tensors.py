"""Checks that the tensors of a checkpoint are those of the model that they were loaded into."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.errors import UserError


class LoadingInfo(TypedDict):
    """The report of `from_pretrained`: names of tensors, with the shapes of checkpoint and model if they differ."""

    missing_keys: Collection[str]
    unexpected_keys: Collection[str]
    mismatched_keys: Collection[tuple[str, torch.Size, torch.Size]]


def check_tensors(
    model: PreTrainedModel, info: LoadingInfo, directory: Path, *, encodes: bool, new_head: bool
) -> list[str]:
    """Returns notices about tensors of the encoder's layers that the checkpoint has and the model does not read.

    The checkpoint must have all tensors of the encoder but those of its pooler. Only a head may be new.

    Args:
        encodes: whether the model is an encoder without a head.
        new_head: whether the head may have another shape than in the checkpoint, and is then new.

    Raises:
        UserError: if the encoder lacks tensors, a tensor has another shape than the configuration says, or positions
            are relative and the model has absolute ones.
    """
    encoder, name = f"{model.base_model_prefix}.", type(model).__name__
    mismatched = [entry for entry in info["mismatched_keys"] if not new_head or entry[0].startswith(encoder)]
    if mismatched:
        tensor, saved, expected = min(mismatched)
        raise UserError(
            f"{directory} cannot be loaded: {tensor} is of shape {list(saved)} in its weights and {list(expected)} by "
            "its config.json, which are not of the same model"
        )
    within = tuple(_layer_prefixes(model))
    embeddings = find_embeddings(model, directory)
    read = [name for name, parameter in model.named_parameters() if parameter is embeddings]
    # Some classes have their head beside the encoder's layers, without a prefix that tells them apart.
    whole = ("",) if encodes else () if model.base_model is model else (encoder,)
    poolers = tuple(f"{prefix}pooler" for prefix in whole)
    missing = [
        tensor
        for tensor in info["missing_keys"]
        if tensor.startswith(within) or tensor in read or (tensor.startswith(whole) and not tensor.startswith(poolers))
    ]
    if missing:
        raise UserError(
            f"{directory} cannot be loaded: its weights lack {len(missing)} tensors of the encoder of a {name}, such "
            f"as {min(missing)}"
        )
    unread = [tensor for tensor in info["unexpected_keys"] if tensor.startswith(within)]
    if any("distance_embedding" in tensor for tensor in unread):
        raise UserError(
            f"{directory} cannot be loaded: it has relative positions (position_embedding_type in config.json), and a "
            f"{name} of this version of transformers has absolute ones only"
        )
    return [_describe(unread, name)] if unread else []


def find_embeddings(model: PreTrainedModel, directory: Path) -> Tensor:
    """Returns the table of the embeddings of tokens `[V, H]`; raises UserError for a model without one."""
    try:
        table = getattr(model.get_input_embeddings(), "weight", None)
    except NotImplementedError:
        table = None
    if table is None:
        raise UserError(
            f"{directory} has a {type(model).__name__}, which has no table of token embeddings (it may read "
            "characters or other inputs), expected a model that reads the tokens of a vocabulary, such as a BERT"
        )
    assert isinstance(table, Tensor)
    return table


def _describe(unread: Sequence[str], name: str) -> str:
    return (
        f"a {name} has no place for {len(unread)} tensors in the layers of the checkpoint, such as {min(unread)}: its "
        "outputs are not those of the model that was saved"
    )


def _layer_prefixes(model: PreTrainedModel) -> list[str]:
    """Returns the beginnings of the names of all tensors in the encoder's lists of layers."""
    is_encoder = model.base_model is model  # Its tensors have no prefix.
    modules = model.base_model.named_modules(prefix="" if is_encoder else model.base_model_prefix)
    return [f"{name}." for name, module in modules if isinstance(module, nn.ModuleList)]
