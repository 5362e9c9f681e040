"""The weighted mean of several teachers' predictions, which teaches as one teacher does."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from distill.contracts import Likelihood, Scores


def mix_logits(
    logits: Sequence[Tensor], shares: Sequence[float], likelihood: Likelihood, *, temperature: float = 1.0
) -> Tensor:
    """Returns logits `[n, C]` whose softmax, or sigmoid, at a temperature is the mean of the teachers' at it.

    The soft targets of an ensemble are the mean of its softened distributions (Hinton et al., arXiv 1503.02531).
    Numbers have no temperature.

    Args:
        logits: of each teacher, `[n, C]`. The result is in float32.
        shares: the weight of each teacher, with a sum of 1.
        likelihood: the meaning of the logits: `softmax`, `sigmoid`, or `gaussian` for numbers.
    """
    stacked = torch.stack([of_teacher.float() for of_teacher in logits])
    weights = torch.tensor(shares, device=stacked.device).reshape(-1, *[1] * (stacked.dim() - 1))
    if likelihood == "gaussian":
        return (weights * stacked).sum(dim=0)
    softened = stacked / temperature
    if likelihood == "sigmoid":
        present, absent = ((F.logsigmoid(odds) + weights.log()).logsumexp(dim=0) for odds in (softened, -softened))
        return temperature * (present - absent)
    return temperature * (softened.log_softmax(dim=-1) + weights.log()).logsumexp(dim=0)


def mix_scores(scores: Sequence[Scores], shares: Sequence[float], likelihood: Likelihood) -> Scores:
    """Returns the scores of the mean, from those of the teachers in the same order of items."""
    mixed = mix_logits([torch.from_numpy(teacher.columns["logits"]) for teacher in scores], shares, likelihood)
    return replace(scores[0], columns={**scores[0].columns, "logits": mixed.numpy()})


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
