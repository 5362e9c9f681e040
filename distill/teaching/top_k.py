"""The top k of a teacher's logits over a vocabulary, and the probability mass of the others."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from distill.contracts import Items, Outputs

TEMPERATURES = (0.5, 1.0, 2.0, 4.0, 8.0)  # The mass of the other tokens is stored at each of them.
_NO_MASS = -1e4  # The logarithm of a probability of 0.


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


class TopKOutputs:
    """Logits `[n, V]` restored from the top k and the mass of the others.

    The mass of the others is distributed as on average over all items. It is exact at `TEMPERATURES` and interpolated
    between them. The teacher's predictions for one context beyond the top k are lost (docs/results.md has the cost).

    Args:
        columns: `top [n, k]`, `ids [n, k]` and `rest [n, 5]`, as `take_top_k` returns them.
        profile: `[V]`, the mean of the teacher's log-probabilities over many items.
        hidden_states: as those of `Outputs`.
    """

    attentions = None
    segment_logits = None
    attention_vectors = None
    chunk_size = None

    def __init__(
        self, columns: Mapping[str, Tensor], profile: Tensor, hidden_states: Sequence[Tensor] | None = None
    ) -> None:
        self.top, self.ids, self.rest = columns["top"], columns["ids"], columns["rest"]
        self.profile, self.hidden_states = profile, hidden_states

    def whole(self) -> Outputs:
        """Returns everything but the logits."""
        return Outputs(hidden_states=self.hidden_states)

    def at(self, items: Items) -> "TopKOutputs":
        """Returns everything with the logits of these items."""
        columns = {"top": self.top[items.span], "ids": self.ids[items.span], "rest": self.rest[items.span]}
        return TopKOutputs(columns, self.profile, self.hidden_states)

    @property
    def logits(self) -> Tensor:
        """Returns the logits `[n, V]` at temperature 1."""
        return self.logits_at(1.0)

    def logits_at(self, temperature: float) -> Tensor:
        """Returns logits `[n, V]` whose softmax at this temperature is the teacher's softened distribution."""
        ids, profile = self.ids.long(), self.profile.float()
        weights = (profile / temperature).softmax(dim=-1)
        # The profile's share of the tokens outside the top k.
        others = (1 - weights[ids].sum(dim=-1)).clamp(min=torch.finfo(weights.dtype).eps).log()
        share = self._rest_at(temperature) - others - (profile / temperature).logsumexp(dim=-1)
        logits = profile + temperature * share.unsqueeze(-1)
        return logits.scatter(-1, ids, self.top.float())

    def _rest_at(self, temperature: float) -> Tensor:
        """Returns the logarithm of the sum of the others' probabilities to the power of 1 / T, `[n]`."""
        power, powers = 1 / temperature, [1 / known for known in TEMPERATURES]
        if power > powers[0]:  # The largest of the others dominates, and it is at most the smallest of the top k.
            return self.rest[:, 0] + (power - powers[0]) * self.top[:, -1].float()
        # The function of 1 / T is smooth, and at 0 the sum is the number of the others.
        powers.append(0.0)
        log_count = math.log(max(1, len(self.profile) - self.top.shape[-1]))
        values = torch.cat([self.rest, torch.full_like(self.rest[:, :1], log_count)], dim=-1)
        # Lagrange's polynomial through all known values.
        weights = [
            math.prod((power - other) / (known - other) for other in powers if other != known) for known in powers
        ]
        # A matrix product would be in bf16 under autocast.
        return (values * values.new_tensor(weights)).sum(dim=-1)
