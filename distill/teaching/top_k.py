"""The top k of a teacher's logits over a vocabulary, and the probability mass of the others."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from distill.contracts import Outputs

TEMPERATURES = (0.5, 1.0, 2.0, 4.0, 8.0)  # The mass of the other tokens is stored at each of them.
_NO_MASS = -1e4  # The logarithm of a probability of 0.


@dataclass(frozen=True)
class TopK:
    """The `k` largest logits of each item."""

    k: int

    def key(self) -> int:
        """Returns the part of a cache's key."""
        return self.k

    def pack(self, log_probs: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """Returns the columns of `take_top_k`, for which nothing is drawn."""
        return take_top_k(log_probs, self.k)

    def restore(
        self, columns: Mapping[str, Tensor], profile: Tensor, hidden_states: Sequence[Tensor] | None = None
    ) -> Outputs:
        """Returns the outputs of `restore_outputs`."""
        return restore_outputs(columns, profile, hidden_states)


def take_top_k(log_probs: Tensor, k: int) -> dict[str, Tensor]:
    """Returns the `k` largest of `log_probs [n, V]` as `top [n, k]`, their `ids [n, k]`, and the mass of the others.

    `rest [n, 5]` is, at each of `TEMPERATURES`, the logarithm of the sum over all other tokens of their probabilities
    to the power of `1 / T`.
    """
    top, ids = log_probs.topk(min(k, log_probs.shape[-1]), dim=-1)
    others = log_probs.scatter(-1, ids, -torch.inf)
    rest = torch.stack([(others / temperature).logsumexp(dim=-1) for temperature in TEMPERATURES], dim=-1)
    return {"top": top.half().cpu(), "ids": ids.int().cpu(), "rest": rest.clamp(min=_NO_MASS).cpu()}


def bytes_per_item(k: int) -> int:
    """Returns the size of the columns of `take_top_k` for one item, in bytes."""
    return k * (2 + 4) + 4 * len(TEMPERATURES)


def top_k_mass(rest: Tensor) -> float:
    """Returns the mean share of the probability mass that the top k have, from `rest [n, 5]`."""
    return float(1 - rest[:, TEMPERATURES.index(1.0)].exp().mean())


def restore_outputs(
    columns: Mapping[str, Tensor], profile: Tensor, hidden_states: Sequence[Tensor] | None = None
) -> Outputs:
    """Returns outputs whose logits `restore_logits` computes for the items and the temperature that a term reads."""

    def soften(span: slice, temperature: float) -> Tensor:
        return restore_logits({name: column[span] for name, column in columns.items()}, profile, temperature)

    return Outputs(hidden_states=hidden_states, soften=soften)


def restore_logits(columns: Mapping[str, Tensor], profile: Tensor, temperature: float) -> Tensor:
    """Returns logits `[n, V]` whose softmax at a temperature is the teacher's softened distribution.

    The mass of the tokens outside the top k is distributed as on average over all items. It is exact at `TEMPERATURES`
    and interpolated between them. The teacher's predictions for one context beyond the top k are lost (docs/results.md
    has the cost).

    Args:
        columns: `top [n, k]`, `ids [n, k]` and `rest [n, 5]`, as `take_top_k` returns them.
        profile: `[V]`, the mean of the teacher's log-probabilities over many items.
    """
    top, ids, profile = columns["top"].float(), columns["ids"].long(), profile.float()
    weights = (profile / temperature).softmax(dim=-1)
    # The profile's share of the tokens outside the top k.
    others = (1 - weights[ids].sum(dim=-1)).clamp(min=torch.finfo(weights.dtype).eps).log()
    rest = _interpolate_rest(columns["rest"], top, temperature, tokens=len(profile))
    share = rest - others - (profile / temperature).logsumexp(dim=-1)
    logits = profile + temperature * share.unsqueeze(-1)
    return logits.scatter(-1, ids, top)


def _interpolate_rest(rest: Tensor, top: Tensor, temperature: float, *, tokens: int) -> Tensor:
    """Returns the logarithm of the sum of the others' probabilities to the power of 1 / T, `[n]`."""
    power, powers = 1 / temperature, [1 / known for known in TEMPERATURES]
    if power > powers[0]:  # The largest of the others dominates, and it is at most the smallest of the top k.
        return rest[:, 0] + (power - powers[0]) * top[:, -1]
    # The function of 1 / T is smooth, and at 0 the sum is the number of the others.
    powers.append(0.0)
    log_count = math.log(max(1, tokens - top.shape[-1]))
    values = torch.cat([rest, torch.full_like(rest[:, :1], log_count)], dim=-1)
    # Lagrange's polynomial through all known values.
    weights = [math.prod((power - other) / (known - other) for other in powers if other != known) for known in powers]
    # A matrix product would be in bf16 under autocast.
    return (values * values.new_tensor(weights)).sum(dim=-1)
