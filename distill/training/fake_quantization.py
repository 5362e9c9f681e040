"""Training with the rounding errors of an int8 file, so that the weights learn to live with them."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

WEIGHT_STEPS = 127  # Of each sign, for a weight.
ACTIVATION_STEPS = 255  # Between the smallest and the largest activation.


class RoundedWeight(nn.Module):
    """Rounds a weight `[O, I]` to int8 with a scale for each of its rows; gradients pass as if it did not.

    Args:
        steps: largest integer, 127 for 8 bits and 63 for 7.
    """

    def __init__(self, steps: int = WEIGHT_STEPS) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, weight: Tensor) -> Tensor:
        scale = weight.detach().abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / self.steps
        return weight + ((weight / scale).round() * scale - weight).detach()


def round_activations(x: Tensor) -> Tensor:
    """Rounds activations to 8 bits with one scale and offset for the whole tensor, as dynamic int8 does.

    Gradients pass as if it did not: the straight-through estimator (Jacob et al., arXiv 1712.05877, section 3).
    """
    values = x.detach().float()
    low, high = values.amin().clamp_max(0), values.amax().clamp_min(0)
    scale = ((high - low) / ACTIVATION_STEPS).clamp_min(1e-12)
    offset = (-low / scale).round()
    rounded = ((values / scale).round() + offset).clamp(0, ACTIVATION_STEPS) - offset
    return x + (rounded * scale - values).to(x.dtype)


@contextlib.contextmanager
def fake_quantized(model: nn.Module, *, bits: int) -> Iterator[None]:
    """Rounds the weights and inputs of the model's linear layers while the context is open.

    Recurrent layers and embeddings are left as they are.

    Args:
        bits: of a weight, 8 or 7.
    """
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    hooks = [layer.register_forward_pre_hook(_round_input) for layer in layers]
    for layer in layers:
        parametrize.register_parametrization(layer, "weight", RoundedWeight(2 ** (bits - 1) - 1), unsafe=True)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for layer in layers:
            _restore(layer)


def _round_input(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return (round_activations(arguments[0]), *arguments[1:])


@torch.no_grad()
def _restore(layer: nn.Linear) -> None:
    """Gives a layer its own weight back, not the rounded one."""
    original = layer.parametrizations["weight"].original  # type: ignore[index, union-attr]
    parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
    assert layer.weight is original
