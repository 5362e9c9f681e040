"""Dropout and attention for training on a CPU: what torch does, drawn and computed in a fraction of the time.

torch draws dropout one number at a time, and a dropout inside attention keeps its fused kernel out, whose backward
pass is the slower one besides. Here one random word decides for four numbers, and attention is three matrix products.
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
_STEPS = 2**15  # A probability is rounded to one of so many.


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: Tensor, p: float) -> Tensor:
        mask = draw_mask(values.shape, p, values.dtype)
        context.save_for_backward(mask)
        return values * mask

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (mask,) = context.saved_tensors
        return gradient * mask, None


def dropout(values: Tensor, p: float, training: bool = True) -> Tensor:
    """Zero each number with probability `p` and scale the others by `1 / (1 - p)` (arXiv 1207.0580).

    `p` is rounded to a multiple of 1 / 32768. What is drawn follows from torch's seed.
    """
    if not training or p == 0:
        return values
    dropped: Tensor = _Dropout.apply(values, p)
    return dropped


def draw_mask(shape: torch.Size, p: float, dtype: torch.dtype) -> Tensor:
    """A tensor of zeros, with probability `p`, and `1 / (1 - p)`."""
    threshold = round(p * _STEPS)
    if threshold == _STEPS:
        return torch.zeros(shape, dtype=dtype)
    count = math.prod(shape)
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_()
    # Of a 16-bit number the lower 15 are random. Those below the threshold become negative, then 0; all others -1,
    # every bit set, so that the last step leaves them the bits of the scale.
    numbers = words.view(torch.int16)[:count].bitwise_and_(_STEPS - 1).sub_(threshold)
    keep = numbers.bitwise_right_shift_(15).bitwise_not_()
    scale = torch.tensor(_STEPS / (_STEPS - threshold))
    if dtype == torch.bfloat16:
        return keep.bitwise_and_(scale.to(dtype).view(torch.int16)).view(dtype).view(shape)
    return keep.to(dtype).mul_(-scale).view(shape)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention (arXiv 1706.03762, equation 1) of `[B, A, L, H / A]`, to `[B, L, A, H / A]`.

    `attention_mask [B, 1, 1 or L, L]` is true where a key may be seen, or is added to the scores. In bf16 these are
    rounded in front of the softmax, as eager attention under autocast does. What asks for more than this goes to torch.
    """
    causal = others.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    unlike = (query.dtype, query.shape[1]) != (key.dtype, key.shape[1]) or key.dtype != value.dtype
    if unlike or others.get("position_bias") is not None or (attention_mask is None and causal):
        named = {**others, "dropout": dropout, "scaling": scaling}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **named)  # type: ignore[no-any-return]
    with torch.autocast("cpu", enabled=False):
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        scores = torch.matmul(query * scale, key.transpose(-1, -2))  # [B, A, L, L]
        if attention_mask is not None:
            if attention_mask.dtype == torch.bool:
                seen = torch.zeros(attention_mask.shape, dtype=scores.dtype)
                attention_mask = seen.masked_fill_(~attention_mask, torch.finfo(scores.dtype).min)
            scores = scores + attention_mask
        weights = _dropout(scores.softmax(dim=-1), dropout, module.training)
        return torch.matmul(weights, value).transpose(1, 2).contiguous(), None


_dropout = dropout  # `attention` has to call its argument as transformers does.
AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


@contextmanager
def training_on_cpu(model: PreTrainedModel) -> Iterator[None]:
    """Let the model train with this file's dropout and attention, and have its own back at the end."""
    layers = [module for module in model.modules() if type(module) is nn.Dropout]
    fuses = getattr(model.config, "_attn_implementation", None) == "sdpa"
    for layer in layers:
        layer.forward = types.MethodType(_forward, layer)  # type: ignore[method-assign]
    if fuses:
        model.set_attn_implementation(ATTENTION)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
        if fuses:
            model.set_attn_implementation("sdpa")


def _forward(layer: nn.Dropout, values: Tensor) -> Tensor:
    return dropout(values, layer.p, layer.training)
