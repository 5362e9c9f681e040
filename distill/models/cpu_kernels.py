"""Faster dropout and attention for training on a CPU.

torch draws one random number per element for dropout. Here one random 64-bit word masks four elements. With dropout,
torch cannot use its fused attention kernel, whose backward pass is slow as well. Here attention is computed by matrix
products.
"""

import math
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

ATTENTION = "distill_cpu"
_LEVELS = 2**15  # Number of different dropout probabilities.


class _DropoutFunction(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: Tensor, p: float) -> Tensor:
        mask = draw_dropout_mask(values.shape, p, values.dtype)
        context.save_for_backward(mask)
        return values * mask

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (mask,) = context.saved_tensors
        return gradient * mask, None


def apply_dropout(values: Tensor, p: float, training: bool = True) -> Tensor:
    """Zeroes each element with probability `p` and scales the others by `1 / (1 - p)` (arXiv 1207.0580).

    `p` is rounded to a multiple of 1 / 32768. The random numbers come from torch's generator.
    """
    if not training or p == 0:
        return values
    dropped: Tensor = _DropoutFunction.apply(values, p)
    return dropped


def draw_dropout_mask(shape: torch.Size, p: float, dtype: torch.dtype) -> Tensor:
    """Returns a tensor whose elements are 0 with probability `p` and `1 / (1 - p)` otherwise."""
    threshold = round(p * _LEVELS)
    if threshold == _LEVELS:
        return torch.zeros(shape, dtype=dtype)
    count = math.prod(shape)
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_()
    # Each 16-bit number has 15 random bits. Numbers below the threshold become negative and then 0. The others become
    # -1, which has all bits set, so that the last step gives them the bits of the scale.
    numbers = words.view(torch.int16)[:count].bitwise_and_(_LEVELS - 1).sub_(threshold)
    keep = numbers.bitwise_right_shift_(15).bitwise_not_()
    scale = torch.tensor(_LEVELS / (_LEVELS - threshold))
    if dtype == torch.bfloat16:
        return keep.bitwise_and_(scale.to(dtype).view(torch.int16)).view(dtype).view(shape)
    return keep.to(dtype).mul_(-scale).view(shape)


def compute_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: object,
) -> tuple[Tensor, None]:
    """Computes scaled dot-product attention (arXiv 1706.03762, equation 1), `[B, A, L, H / A]` -> `[B, L, A, H / A]`.

    Causal attention without a mask, position biases, grouped heads and mixed dtypes are passed on to torch's kernel.

    Args:
        attention_mask: `[B, 1, 1 or L, L]`, boolean with True for visible keys, or numbers to add to the scores. In
            bf16 the scores are rounded before the softmax, as in eager attention under autocast.
    """
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    is_mixed = (query.dtype, query.shape[1]) != (key.dtype, key.shape[1]) or key.dtype != value.dtype
    if is_mixed or options.get("position_bias") is not None or (attention_mask is None and causal):
        options |= {"dropout": dropout, "scaling": scaling}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)  # type: ignore[no-any-return]
    with torch.autocast("cpu", enabled=False):
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        scores = torch.matmul(query * scale, key.transpose(-1, -2))  # [B, A, L, L]
        if attention_mask is not None:
            if attention_mask.dtype == torch.bool:
                bias = torch.zeros(attention_mask.shape, dtype=scores.dtype)
                attention_mask = bias.masked_fill_(~attention_mask, torch.finfo(scores.dtype).min)
            # The smallest number of float32 is infinite in bf16.
            scores = scores + attention_mask.clamp(min=torch.finfo(scores.dtype).min).to(scores.dtype)
        weights = apply_dropout(scores.softmax(dim=-1), dropout, module.training)
        return torch.matmul(weights, value).transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION, compute_attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


@contextmanager
def use_cpu_kernels(model: PreTrainedModel) -> Iterator[None]:
    """Replaces the model's dropout and attention by those of this module, and restores them on exit."""
    layers = [module for module in model.modules() if type(module) is nn.Dropout]
    uses_sdpa = getattr(model.config, "_attn_implementation", None) == "sdpa"
    for layer in layers:
        layer.forward = types.MethodType(_forward_dropout, layer)  # type: ignore[method-assign]
    if uses_sdpa:
        model.set_attn_implementation(ATTENTION)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
        if uses_sdpa:
            model.set_attn_implementation("sdpa")


def _forward_dropout(layer: nn.Dropout, values: Tensor) -> Tensor:
    return apply_dropout(values, layer.p, layer.training)
