"""Copies tensors and labels of one model to another one, and records which tensor each was made from."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel


class Copies:
    """Tensors of a model that are made from those of another one.

    Attributes:
        names: the name of each with that of the tensor that it was made from.
    """

    def __init__(self, source: PreTrainedModel, target: PreTrainedModel) -> None:
        self.sources, self.targets = dict(source.named_parameters()), dict(target.named_parameters())
        self.names: dict[str, str] = {}
        self._of_tensors = {id(tensor): name for of in (self.sources, self.targets) for name, tensor in of.items()}

    @torch.no_grad()
    def copy(self, own: Tensor, source: Tensor, value: Tensor | None = None) -> None:
        """Copies a tensor, or a `value` that was made from it."""
        own.copy_(source if value is None else value)
        self.names[self._of_tensors[id(own)]] = self._of_tensors[id(source)]

    def copy_module(self, own: nn.Module, *sources: nn.Module) -> None:
        """Copies the mean of the tensors of several modules, which counts as made from the last of them."""
        tensors = [dict(source.named_parameters()) for source in sources]
        for name, target in own.named_parameters():
            if name in tensors[-1]:  # The norm of a ModernBERT has no bias.
                mean = torch.stack([of[name].detach().float().to(target.device) for of in tensors]).mean(dim=0)
                self.copy(target, tensors[-1][name], mean)

    def copy_equal(self, rename: Callable[[str], str | None]) -> None:
        """Copies the tensors that both models have in the same shape.

        Args:
            rename: returns the name in the target of a tensor of the source, None for one that it does not have.
        """
        for name, tensor in self.sources.items():
            target = self.targets.get(rename(name) or "")
            if target is not None and target.shape == tensor.shape:
                self.copy(target, tensor)


def pass_on(source: PreTrainedModel, target: PreTrainedModel, names: Mapping[str, str]) -> None:
    """Gives a model that is made from another one what that has `inherited`, if anything.

    Args:
        names: of the target's tensors, with those of the source's.
    """
    inherited: Mapping[str, str] | None = getattr(source, "inherited", None)
    if inherited is not None:
        # An attribute of the object only, which is not saved.
        target.inherited = {own: inherited[name] for own, name in names.items() if name in inherited}  # type: ignore[assignment]


def copy_labels(config: PreTrainedConfig) -> dict[str, Any]:
    """Returns the entries of a configuration that its head has."""
    return {
        "id2label": dict(config.id2label), "label2id": {label: index for index, label in config.id2label.items()},
        "problem_type": config.problem_type,
    }  # fmt: skip
