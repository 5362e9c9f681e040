"""Draws from a teacher's distribution over a vocabulary, which stand for all of its logits (arXiv 2503.16870).

The share of a token among the draws is an unbiased estimate of its probability, so that the mean gradient of soft
targets is that of the whole distribution. Unlike there, the draws of an item are not independent: they are evenly
spaced in the cumulative distribution, from a random first one on, so that a token with probability p is drawn
`number * p` times, rounded up or down. The estimate has the same mean and less variance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from distill.contracts import Outputs

_NEVER = -1e4  # The logarithm of the share of a token that was not drawn.


@dataclass(frozen=True)
class Draws:
    """Draws from the distribution at one temperature.

    Args:
        number: draws for each item.
        temperature: of the distribution.
    """

    number: int
    temperature: float

    def key(self) -> list[Any]:
        """Returns the part of a cache's key."""
        return ["draws", self.number, self.temperature]

    def pack(self, log_probs: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """Returns the `drawn [n, number]` tokens of distributions `log_probs [n, V]`, each as often as it was drawn.

        Args:
            generator: on the CPU; draws are the same for the same state of it.
        """
        cumulative = (log_probs / self.temperature).softmax(dim=-1).cumsum(dim=-1)
        first = torch.rand(len(log_probs), 1, generator=generator).to(log_probs.device)
        places = (first + torch.arange(self.number, device=log_probs.device)) / self.number  # [n, number]
        # The sum of all may differ from 1 by a rounding error.
        drawn = torch.searchsorted(cumulative, places * cumulative[:, -1:], right=True)
        return {"drawn": drawn.clamp(max=log_probs.shape[-1] - 1).int().cpu()}

    def restore(
        self, columns: Mapping[str, Tensor], profile: Tensor, hidden_states: Sequence[Tensor] | None = None
    ) -> Outputs:
        """Returns outputs whose softened distribution is the share of each token among those drawn.

        Args:
            columns: those of `pack`.
            profile: `[V]`, of which the size alone is read.
        """

        def soften(span: slice, temperature: float) -> Tensor:
            if temperature != self.temperature:
                raise ValueError(
                    f"got temperature {temperature:g}, expected {self.temperature:g}, at which the teacher's tokens "
                    "were drawn"
                )
            drawn = columns["drawn"][span].long()
            counts = torch.zeros(len(drawn), len(profile), device=drawn.device)
            counts.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float32))
            return temperature * (counts / self.number).log().clamp(min=_NEVER)

        return Outputs(hidden_states=hidden_states, soften=soften)


def bytes_per_item(number: int) -> int:
    """Returns the size of the columns of `Draws.pack` for one item, in bytes."""
    return 4 * number
