"""The weighted mean of several teachers' predictions, which teaches as one teacher does."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from distill.contracts import Items, Likelihood, Outputs, Scores


@dataclass(frozen=True)
class Mixture:
    """The mean of probabilities, or of numbers.

    Args:
        shares: the weight of each teacher, with a sum of 1.
        likelihood: the meaning of the logits: `softmax`, `sigmoid`, or `gaussian` for numbers.
    """

    shares: tuple[float, ...]
    likelihood: Likelihood

    def mix(self, logits: Sequence[Tensor], *, temperature: float = 1.0) -> Tensor:
        """Returns logits `[n, C]` whose softmax, or sigmoid, at a temperature is the mean of the teachers' at it.

        The soft targets of an ensemble are the mean of its softened distributions (Hinton et al., arXiv 1503.02531).
        Numbers have no temperature.

        Args:
            logits: of each teacher, `[n, C]`. The result is in float32.
        """
        stacked = torch.stack([of_teacher.float() for of_teacher in logits])
        shares = torch.tensor(self.shares, device=stacked.device).reshape(-1, *[1] * (stacked.dim() - 1))
        if self.likelihood == "gaussian":
            return (shares * stacked).sum(dim=0)
        softened = stacked / temperature
        if self.likelihood == "sigmoid":
            present, absent = ((F.logsigmoid(of) + shares.log()).logsumexp(dim=0) for of in (softened, -softened))
            return temperature * (present - absent)
        return temperature * (softened.log_softmax(dim=-1) + shares.log()).logsumexp(dim=0)

    def mix_scores(self, scores: Sequence[Scores]) -> Scores:
        """Returns the scores of the mean, from those of the teachers in the same order of items."""
        mixed = self.mix([torch.from_numpy(of_teacher.columns["logits"]) for of_teacher in scores])
        return replace(scores[0], columns={**scores[0].columns, "logits": mixed.numpy()})


@dataclass(frozen=True)
class EnsembleOutputs(Outputs):
    """The outputs of the first teacher with the mean of all teachers' predictions.

    Args:
        members: the logits of each teacher, `[n, C]`.
    """

    members: Sequence[Tensor] = ()
    mixture: Mixture = Mixture((1.0,), "softmax")

    def at(self, items: Items) -> "EnsembleOutputs":
        """Returns the outputs with the logits of these items."""
        members = [logits[items.span] for logits in self.members]
        return replace(self, logits=cast(Tensor, self.logits)[items.span], members=members)

    @classmethod
    def create(cls, outputs: Sequence[Outputs], mixture: Mixture) -> "EnsembleOutputs":
        """Returns the mean of the outputs of each teacher, which have logits."""
        members = [cast(Tensor, output.logits) for output in outputs]
        first = {field.name: getattr(outputs[0], field.name) for field in fields(Outputs)}
        return cls(**first | {"logits": mixture.mix(members)}, members=members, mixture=mixture)

    def logits_at(self, temperature: float) -> Tensor:
        """Returns logits `[n, C]` whose softmax at this temperature is the mean of the softened distributions."""
        return self.mixture.mix(self.members, temperature=temperature)


def normalize_shares(weights: Sequence[float] | None, teachers: int) -> tuple[float, ...]:
    """Returns weights with a sum of 1, equal ones for None.

    Raises:
        ValueError: unless there is a positive weight for each teacher.
    """
    if weights is None:
        return (1 / teachers,) * teachers
    if len(weights) != teachers or not all(math.isfinite(weight) and weight > 0 for weight in weights):
        raise ValueError(f"{teachers} positive numbers, one for each teacher")
    return tuple(weight / sum(weights) for weight in weights)
