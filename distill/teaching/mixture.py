"""The weighted mean of several teachers' predictions, which teaches as one teacher does."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from distill.contracts import Batch, Items, Likelihood, Outputs, Scores
from distill.teaching.output_cache import CachedOutputs, CachedPass


@dataclass(frozen=True)
class Mixture:
    """The mean of probabilities, or of numbers.

    Args:
        shares: the weight of each teacher, with a sum of 1.
        likelihood: the meaning of the logits: `softmax`, `sigmoid`, or `gaussian` for numbers.
    """

    shares: tuple[float, ...]
    likelihood: Likelihood

    def mix(self, logits: Sequence[Tensor]) -> Tensor:
        """Returns the logits `[n, C]` of the mean of the teachers' `logits`, each `[n, C]`, in float32.

        Those of classes are the logarithms of the mean probabilities, and those of labels of their own the log-odds.
        """
        stacked = torch.stack([of_teacher.float() for of_teacher in logits])
        shares = torch.tensor(self.shares, device=stacked.device).reshape(-1, *[1] * (stacked.dim() - 1))
        if self.likelihood == "gaussian":
            return (shares * stacked).sum(dim=0)
        if self.likelihood == "sigmoid":
            present, absent = ((F.logsigmoid(of) + shares.log()).logsumexp(dim=0) for of in (stacked, -stacked))
            return present - absent
        return (stacked.log_softmax(dim=-1) + shares.log()).logsumexp(dim=0)

    def mix_scores(self, scores: Sequence[Scores]) -> Scores:
        """Returns the scores of the mean, from those of the teachers in the same order of items."""
        mixed = self.mix([torch.from_numpy(of_teacher.columns["logits"]) for of_teacher in scores])
        return replace(scores[0], columns={**scores[0].columns, "logits": mixed.numpy()})


@dataclass(frozen=True)
class MixedOutputs:
    """The cached outputs of several teachers for one split. Hidden states are those of the first teacher."""

    members: Sequence[CachedOutputs]
    mixture: Mixture

    def __call__(self, batch: Batch, items: Items) -> "MixedPass":
        return MixedPass([outputs(batch, items) for outputs in self.members], self.mixture)

    def bytes(self) -> int:
        """Returns the size of all files."""
        return sum(outputs.bytes() for outputs in self.members)

    def describe(self) -> str:
        """Describes what is cached where."""
        return "; ".join(outputs.describe() for outputs in self.members)


@dataclass(frozen=True)
class MixedPass:
    """The outputs of several teachers for one batch."""

    members: Sequence[CachedPass]
    mixture: Mixture
    chunk_size: int | None = None

    def whole(self) -> Outputs:
        """Returns all outputs of the first teacher except its logits."""
        return self.members[0].whole()

    def at(self, items: Items) -> Outputs:
        """Returns the outputs of the first teacher with the mixed logits `[n, C]` of these items."""
        outputs = [cast(Outputs, member.at(items)) for member in self.members]  # Not over a vocabulary.
        return replace(outputs[0], logits=self.mixture.mix([cast(Tensor, output.logits) for output in outputs]))


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
