"""Logits that are known beforehand, found by the tokens of a text."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from distill.console import print_notice
from distill.errors import UserError

EQUAL = 1e-6  # Difference of equal probabilities.
SMALLEST = 1e-6  # Probabilities that are smaller count as this one.


class KnownLogits(nn.Module):
    """Gives the logits of texts whose class probabilities are known.

    Texts of the same tokens, which a model cannot tell apart, have the mean of their probabilities.

    Args:
        tokens: ids of each text.
        probabilities: of its classes, `[N, C]`.
        independent: whether each class has a probability of its own, so that logits are log-odds; otherwise they are
            the logarithms of the probabilities.
    """

    def __init__(
        self, tokens: Sequence[Sequence[int] | np.ndarray], probabilities: np.ndarray, *, independent: bool
    ) -> None:
        super().__init__()
        self.rows: dict[bytes, int] = {}
        numbers = np.array([self.rows.setdefault(_key(ids), len(self.rows)) for ids in tokens])
        first = np.unique(numbers, return_index=True)[1]
        self.alike = int((np.abs(probabilities - probabilities[first[numbers]]).max(axis=1) > EQUAL).sum())
        counts = np.bincount(numbers, minlength=len(self.rows))[:, None]
        sums = np.zeros((len(self.rows), probabilities.shape[1]))
        np.add.at(sums, numbers, probabilities)
        means = np.clip(sums / counts, SMALLEST, 1 - SMALLEST if independent else 1)
        self.logits = torch.from_numpy(np.log(means) - np.log1p(-means) if independent else np.log(means)).float()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Returns the logits `[B, C]` in float32, for tokens and mask `[B, L]`.

        Raises:
            UserError: for a text without probabilities.
        """
        numbers = [self.rows.get(key) for key in _keys(input_ids, attention_mask)]
        if None in numbers:
            raise UserError("a text has no probabilities in teacher.path: leave out augment and task.bank")
        return self.logits[torch.tensor(numbers)].to(input_ids.device)

    def report_alike(self, source: str) -> None:
        """Prints how many texts have other probabilities than an earlier one of the same tokens."""
        if self.alike:
            print_notice(
                f"{source}: texts that the encoder cannot tell from an earlier one, because it reads the same tokens "
                f"of both, have other probabilities: {self.alike:,}; the mean is taken"
            )

    def find_missing(self, tokens: Iterable[Sequence[int]]) -> list[int]:
        """Returns the numbers of those texts that have no probabilities."""
        return [number for number, ids in enumerate(tokens) if _key(ids) not in self.rows]


def _keys(input_ids: Tensor, attention_mask: Tensor) -> Iterator[bytes]:
    ids, mask = input_ids.cpu().numpy(), attention_mask.cpu().numpy().astype(bool)
    return (_key(row[of_row]) for row, of_row in zip(ids, mask, strict=True))


def _key(ids: Sequence[int] | np.ndarray) -> bytes:
    return np.asarray(ids, dtype=np.int32).tobytes()
