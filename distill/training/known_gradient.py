"""The gradient of a loss over a vocabulary, computed in the forward pass, a chunk of items at a time."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from distill.contracts import AttentionVectors, Items, Outputs


def sum_with_gradient(
    compute: Callable[[Outputs, Items], tuple[Tensor, Tensor]],
    outputs: Outputs,
    items: Items,
    parameters: Iterable[Tensor],
) -> tuple[Tensor, Tensor]:
    """Returns the sums over chunks of `outputs.chunk_size` items: of a loss `[]`, and of further values.

    The gradient of a chunk is computed together with its loss, on states that are cut off from the encoder, and its
    logits are then freed. The backward pass of the sum only passes on what is known: to the encoder, and once to every
    parameter. It can run once.

    Args:
        compute: returns the loss and the further values of some items, from outputs with the logits of these items.
        outputs: of a model, with `states` and `decode`.
        parameters: those that `compute` may read.
    """
    states, decode = outputs.states, outputs.decode
    assert states is not None  # The caller makes sure of both.
    assert decode is not None
    cut, leaves = _cut_off(replace(outputs, states=None))
    sources = [*leaves, *(parameter for parameter in parameters if parameter.requires_grad)]
    inputs = [*leaves.values(), *sources[len(leaves) :]]
    gradients: list[Tensor | None] = [None] * len(inputs)
    of_states, losses, values = torch.zeros_like(states), [], []
    for part in items.parts(outputs.chunk_size):
        chunk = states[part.span].detach().requires_grad_()
        of_part = replace(cut, logits=decode(chunk), head=None, chunk_size=None, span=part.span)
        loss, further = compute(of_part, part)
        losses.append(loss.detach())
        values.append(further.detach())
        if loss.requires_grad:
            of_chunk, *others = torch.autograd.grad(loss, [chunk, *inputs], allow_unused=True)
            if of_chunk is not None:
                of_states[part.span] = of_chunk
            gradients = [_add(sum_, gradient) for sum_, gradient in zip(gradients, others, strict=True)]
    known = [pair for pair in zip(sources, gradients, strict=True) if pair[1] is not None]
    tensors = [states, *(source for source, _ in known)]
    total: Tensor = _Known.apply(  # type: ignore[no-untyped-call]
        torch.stack(losses).sum(), [of_states, *(gradient for _, gradient in known)], *tensors
    )
    return total, torch.stack(values).sum(dim=0)


def _add(earlier: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    """Returns the sum of two gradients, in place of the first one; None is 0."""
    if gradient is None:
        return earlier
    # A new gradient may share its memory with another one.
    return gradient.clone() if earlier is None else earlier.add_(gradient)


def _cut_off(outputs: Outputs) -> tuple[Outputs, dict[Tensor, Tensor]]:
    """Returns the outputs without their history, and the tensors that stand for those of them with one."""
    leaves: dict[Tensor, Tensor] = {}

    def cut(value: Any) -> Any:
        if isinstance(value, Tensor):
            if not value.requires_grad:
                return value
            return leaves.setdefault(value, value.detach().requires_grad_())
        if isinstance(value, Outputs):
            return replace(value, **{field.name: cut(getattr(value, field.name)) for field in fields(value)})
        if isinstance(value, AttentionVectors):
            return AttentionVectors(*map(cut, value))
        if isinstance(value, Mapping):
            return {key: cut(each) for key, each in value.items()}
        if isinstance(value, Sequence):
            return [cut(each) for each in value]
        return value

    of: Outputs = cut(outputs)
    return of, leaves


class _Known(torch.autograd.Function):
    """A loss `[]` whose gradients for some tensors are known."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, gradients: list[Tensor], *tensors: Tensor) -> Tensor:
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        gradients, ctx.gradients = ctx.gradients, None  # A gradient takes no memory besides that of its parameter.
        return (None, None, *(gradient.mul_(factor) for gradient in gradients))
