"""What a model is worth without one of its heads."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.errors import UserError
from distill.models.layers import list_parts
from distill.models.narrowing import head_size


def heads_of(model: PreTrainedModel) -> list[int]:
    """Returns the number of heads of each layer; none for a layout whose heads cannot be told apart, as of a BiLSTM."""
    return [module.in_features // head_size(model) for module in _outputs(model)]


def _outputs(model: PreTrainedModel) -> Sequence[nn.Linear]:
    """Returns the layer that reads all heads, for each layer of the encoder."""
    try:
        parts = list_parts(model)
    except (AttributeError, UserError):
        return []
    return [part["attention.dense"] for part in parts]  # type: ignore[misc]


@contextmanager
def masked_head(model: PreTrainedModel, layer: int, head: int) -> Iterator[None]:
    """Replaces the output of one head by zeros (arXiv 1905.10650, equation 1).

    Args:
        layer: counted from 1.
        head: counted from 1.
    """
    size, [*outputs] = head_size(model), _outputs(model)
    chosen = slice((head - 1) * size, head * size)

    def mask(module: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        states = arguments[0].clone()  # [B, L, A * D]
        states[..., chosen] = 0.0
        return (states, *arguments[1:])

    handle = outputs[layer - 1].register_forward_pre_hook(mask)
    try:
        yield
    finally:
        handle.remove()


@torch.no_grad()
def score_without_heads(model: PreTrainedModel, score: Callable[[], float]) -> list[list[float]]:
    """Returns the score of the model without each head, `[N][A]`."""
    found = []
    for layer, heads in enumerate(heads_of(model), start=1):
        values = []
        for head in range(1, heads + 1):
            with masked_head(model, layer, head):
                values.append(score())
        found.append(values)
    return found
