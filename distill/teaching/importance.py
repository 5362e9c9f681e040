"""Ranks the heads and the inner neurons of a model by the gradient of the loss on labels."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.contracts import Batch, Examples, Learnable, Loader, Outputs, Stream
from distill.errors import UserError
from distill.losses import Objective
from distill.models.forward import to_device
from distill.models.layers import list_parts
from distill.models.narrowing import Importance, head_size

BATCHES = 200  # Of train, at most.
_GATED = ("attention.dense", "ffn_output")  # The modules that read the heads and the inner neurons.


def measure_importance(
    model: PreTrainedModel, task: Learnable, objective: Objective, loader: Loader, *, batches: int = BATCHES
) -> Importance:
    """Returns the importance of the heads and the inner neurons of each layer for a loss.

    That of a head is the expected size of the derivative by a factor 1 of its output, `E |A^T dL/dA|` (arXiv
    1905.10650, equation 2), and that of a neuron the same of its activation, both over the tokens of an example. In
    each layer they are divided by their Euclidean norm, as there (section 4.1).

    Args:
        objective: learns from labels alone.
        loader: yields lists of batches, of which the first `batches` are read.

    Raises:
        UserError: for a model whose layers are of another layout than BERT's.
    """
    parts, width = list_parts(model), head_size(model)
    if not parts:
        raise UserError(f"a {type(model).__name__} has no layers of BERT's layout, whose heads could be ranked")
    modules = [part[name] for part in parts for name in _GATED]
    sums = [torch.zeros(0)] * len(modules)
    was_training = model.training
    model.eval()
    with _record_inputs(modules) as inputs:
        for batch in islice(_micro_batches(loader), batches):
            loss = _loss(model, task, objective, to_device(batch, model.device))
            states = [inputs[module] for module in modules]
            for place, (state, gradient) in enumerate(zip(states, torch.autograd.grad(loss, states), strict=True)):
                effects = (state.detach() * gradient).float().sum(dim=1)  # [B, A * D] or [B, F]
                if place % len(_GATED) == 0:
                    effects = effects.unflatten(1, (-1, width)).sum(dim=2)  # [B, A]
                found = effects.abs().sum(dim=0).cpu() * len(effects)  # The loss is a mean over the batch.
                sums[place] = sums[place] + found if len(sums[place]) else found
    model.train(was_training)
    normalized = [of / of.norm().clamp_min(torch.finfo(of.dtype).tiny) for of in sums]
    return Importance(normalized[:: len(_GATED)], normalized[1 :: len(_GATED)])


def labelled_loader(examples: Examples | Stream, **batches: Any) -> Loader:
    """Returns the loader that the importance is measured with."""
    return examples.training_loader(steps=BATCHES, **batches)


def _micro_batches(loader: Loader) -> Iterator[Batch]:
    for step in loader:
        yield from step


def _loss(model: PreTrainedModel, task: Learnable, objective: Objective, batch: Batch) -> Tensor:
    items = task.select(batch)
    outputs = task.run(model, batch, items, objective.student_needs).at(items)
    loss: Tensor = objective(outputs, Outputs(), items)[0]
    return loss


@contextmanager
def _record_inputs(modules: Sequence[nn.Module]) -> Iterator[dict[nn.Module, Tensor]]:
    """Yields the inputs `[B, L, W]` of the modules in the last forward pass, whose gradients can be computed.

    A model without gradients has them from the first of these inputs on.
    """
    inputs: dict[nn.Module, Tensor] = {}

    def record(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        inputs[module] = arguments[0] if arguments[0].requires_grad else arguments[0].requires_grad_()

    handles: list[Any] = [module.register_forward_pre_hook(record) for module in modules]
    try:
        yield inputs
    finally:
        for handle in handles:
            handle.remove()
