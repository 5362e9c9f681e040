"""What each head of attention looks at: statistics over the sentences of a split.

Weights of attention say where a head looks, not what its output is worth: `importance` measures that.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

POSITIONAL = 0.9  # Share of the largest weights on one relative position, from which a head is positional (1905.09418).


@dataclass(frozen=True)
class Head:
    """The statistics of one head, means over the tokens that look (queries), without special tokens.

    Attributes:
        layer: counted from 1.
        head: counted from 1.
        confidence: the largest weight on a token that is not special (arXiv 1905.09418, section 4.1).
        entropy: of the weights on all tokens, in nats.
        distance: the expected distance of the token that is looked at, in tokens.
        separator: the weight on special tokens.
        offset: the relative position that most often has the largest weight of those on tokens that are not special.
        positional: the share of the queries whose largest weight is there.
        rare: the share of the queries whose largest weight is on the rarest token of their sentence.
    """

    layer: int
    head: int
    confidence: float
    entropy: float
    distance: float
    separator: float
    offset: int
    positional: float
    rare: float

    @property
    def is_positional(self) -> bool:
        """Whether at least 90% of the largest weights are on one relative position (arXiv 1905.09418, section 5.2)."""
        return self.positional >= POSITIONAL


class HeadStatistics:
    """Sums of the statistics of all heads over batches.

    Args:
        frequencies: how often each token of the vocabulary occurs in the split, `[V]`; None without the share of rare
            tokens.
    """

    def __init__(self, frequencies: Tensor | None = None) -> None:
        self.frequencies = frequencies
        self._queries = 0
        self._means: Tensor | None = None  # [N, A, 5]: confidence, entropy, distance, separator, rare
        self._offsets: Tensor | None = None  # [N, A, 2 * W + 1]: how often each offset has the largest weight

    def add(self, attentions: Sequence[Tensor], input_ids: Tensor, words: Tensor) -> None:
        """Adds a batch.

        Args:
            attentions: the weights of each layer, `[B, A, L, L]`, zero at padding.
            input_ids: `[B, L]`.
            words: `[B, L]` (bool), the tokens that are neither special nor padding. A sentence needs one.
        """
        means, offsets = zip(*(self._measure(of.float(), input_ids, words) for of in attentions), strict=True)
        self._queries += int(words.sum())
        self._means = torch.stack(means) if self._means is None else self._means + torch.stack(means)
        self._offsets = _add_padded(self._offsets, torch.stack(offsets))

    def _measure(self, weights: Tensor, input_ids: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the sums over the queries `[A, 5]`, and the counts of offsets `[A, 2 * L - 1]`, of one layer."""
        length = weights.shape[-1]
        positions = torch.arange(length, device=weights.device)
        distances = (positions - positions[:, None]).abs()
        keys = words[:, None, None, :]
        largest, places = weights.masked_fill(~keys, -1.0).max(dim=-1)  # [B, A, L]
        values = torch.stack(
            [
                largest,
                torch.special.entr(weights).sum(dim=-1),
                (weights * distances).sum(dim=-1),
                1.0 - (weights * keys).sum(dim=-1),
                self._looks_at_rarest(places, input_ids, words),
            ],
            dim=-1,
        )
        queries = words[:, None, :]  # [B, 1, L]
        sums = (values * queries[..., None]).sum(dim=(0, 2))
        offsets = (places - positions + length - 1).masked_fill(~queries, -1)
        classes = torch.arange(2 * length - 1, device=weights.device)
        counts = (offsets.transpose(0, 1).flatten(1)[..., None] == classes).sum(dim=1)
        return sums.double().cpu(), counts.cpu()

    def _looks_at_rarest(self, places: Tensor, input_ids: Tensor, words: Tensor) -> Tensor:
        if self.frequencies is None:
            return torch.zeros(places.shape, device=places.device)
        frequencies = self.frequencies.to(places.device)[input_ids].masked_fill(~words, torch.iinfo(torch.long).max)
        is_rarest = frequencies == frequencies.amin(dim=1, keepdim=True)  # [B, L]
        return is_rarest[:, None, :].expand_as(places).gather(2, places).float()

    def heads(self) -> list[Head]:
        """Returns the heads, those of a layer one after another.

        Raises:
            ValueError: before any batch was added.
        """
        if self._means is None or self._offsets is None:
            raise ValueError("got no batch, expected at least one")
        means, middle = self._means / self._queries, self._offsets.shape[-1] // 2
        most, offsets = self._offsets.max(dim=-1)
        found = []
        for layer, of_layer in enumerate(means.tolist()):
            for head, (confidence, entropy, distance, separator, rare) in enumerate(of_layer):
                share = float(most[layer, head]) / self._queries
                found.append(
                    Head(
                        layer + 1, head + 1, confidence=confidence, entropy=entropy, distance=distance,
                        separator=separator, offset=int(offsets[layer, head]) - middle, positional=share, rare=rare,
                    )
                )  # fmt: skip
        return found


def _add_padded(sums: Tensor | None, counts: Tensor) -> Tensor:
    """Adds counts of offsets of different widths, whose middle is the offset 0."""
    if sums is None:
        return counts
    if sums.shape[-1] < counts.shape[-1]:
        sums, counts = counts, sums
    missing = (sums.shape[-1] - counts.shape[-1]) // 2
    return sums + torch.nn.functional.pad(counts, (missing, missing))
