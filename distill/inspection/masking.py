"""What a model is worth without one of its heads."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.errors import UserError
from distill.models.layers import list_layers, list_parts
from distill.models.narrowing import head_size

KEPT_BYTES = 2**30  # Of the outputs of layers that are kept at once.


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


@contextmanager
def run_once(layers: Sequence[nn.Module]) -> Iterator[Callable[[], None]]:
    """Runs these layers in one pass over some batches, and gives their outputs again in each later pass over them.

    Yields:
        A function that begins the next pass. Its batches have to be the same ones in the same order.
    """
    kept: list[list[Any]] = [[] for _ in layers]
    places, size = [0] * len(layers), 0

    def replay(number: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            nonlocal size
            place, outputs = places[number], kept[number]
            places[number] += 1
            if place < len(outputs):
                return outputs[place]
            output = forward(*arguments, **named)
            states = output if isinstance(output, Tensor) else output[0]
            if place == len(outputs) and size + states.nbytes <= KEPT_BYTES:
                outputs.append(output)
                size += states.nbytes
            return output

        return run

    def rewind() -> None:
        places[:] = [0] * len(places)

    for number, layer in enumerate(layers):
        layer.forward = replay(number, layer.forward)
    try:
        yield rewind
    finally:
        for layer in layers:
            del layer.forward


@torch.no_grad()
def score_without_heads(model: PreTrainedModel, score: Callable[[], float]) -> list[list[float]]:
    """Returns the score of the model without each head, `[N][A]`.

    The layers below that of a head run for the first head alone.

    Args:
        score: runs the model over the same batches in the same order in each call.
    """
    found, layers = [], list_layers(model)
    are_shared = len({id(layer) for layer in layers}) < len(layers)
    for layer, heads in enumerate(heads_of(model), start=1):
        values = []
        with run_once([] if are_shared else layers[: layer - 1]) as rewind:
            for head in range(1, heads + 1):
                rewind()
                with masked_head(model, layer, head):
                    values.append(score())
        found.append(values)
    return found
