"""Layers of LSTMs that read texts from their first or their last token, whatever padding a batch has.

It is saved with the models that are made of them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


def gather(states: Tensor, positions: Tensor) -> Tensor:
    """Selects `states [N, W, D]` at `positions [N, K]` -> `[N, K, D]`."""
    return states.gather(1, positions[..., None].expand(-1, -1, states.shape[-1]))


def locate_text(is_token: Tensor) -> tuple[Tensor, Tensor]:
    """Returns first position and length of the text in each row, both `[B, 1]`, for padding on either side.

    Args:
        is_token: `[B, L]` (bool).
    """
    return is_token.int().argmax(dim=1, keepdim=True), is_token.sum(dim=1, keepdim=True)


class BilstmLayer(nn.Module):
    """A bidirectional LSTM layer whose backward direction starts at the last token of each text.

    The backward direction of a bidirectional `nn.LSTM` would start in the padding. Packed sequences would avoid that,
    but cannot be exported.
    """

    def __init__(self, input_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.forwards = nn.LSTM(input_dim, hidden_dim, batch_first=True)
        self.backwards = nn.LSTM(input_dim, hidden_dim, batch_first=True)

    def forward(self, states: Tensor, lengths: Tensor, backward_states: Tensor | None = None) -> Tensor:
        """Encodes `states [N, W, D]` of texts of `lengths [N]` -> `[N, W, 2 * hidden_dim]`.

        Args:
            backward_states: those that the backward direction reads; None for the same.
        """
        position = torch.arange(states.shape[1], device=states.device)
        reversed_position = (lengths[:, None] - 1 - position).clamp(min=0)  # [N, W], its own inverse within a text.
        forward_states, _ = self.forwards(states)
        sources = states if backward_states is None else backward_states
        reversed_states, _ = self.backwards(gather(sources, reversed_position))
        return torch.cat([forward_states, gather(reversed_states, reversed_position)], dim=-1)


@dataclass
class EncodedTexts:
    """The states of texts, which begin at the position 0 whatever padding the batch has.

    Attributes:
        states: of the embeddings and each layer, `[B * T, W, D]`, for T texts in a row of the batch.
        starts: first position of each text in the batch, `[B, T]`.
        lengths: tokens of each text, `[B, T]`.
        mask: `[B, L]`.
        width: W, which an export cannot read from the states.
    """

    states: list[Tensor]
    starts: Tensor
    lengths: Tensor
    mask: Tensor
    width: int

    def last_hidden_state(self) -> Tensor:
        """Returns the states of the last layer at the positions of the tokens, `[B, L, D]`."""
        return self._restore_positions(self.states[-1])

    def hidden_states(self, requested: bool) -> tuple[Tensor, ...] | None:
        """Returns the states of the embeddings and each layer at the positions of the tokens, if they are requested."""
        if not requested:
            return None
        return tuple(map(self._restore_positions, self.states))

    def _restore_positions(self, states: Tensor) -> Tensor:
        """Moves states of texts `[B * T, W, D]` to the positions of their tokens, `[B, L, D]`, 0 for padding."""
        batch, texts = self.starts.shape
        position = torch.arange(self.mask.shape[1], device=self.mask.device).expand(batch, -1)
        if texts == 1:
            within = (position - self.starts).clamp(min=0, max=self.width - 1)
            return gather(states, within) * self.mask[..., None]
        # An empty second text starts at 0 and has no tokens.
        text = ((position >= self.starts[:, 1:]) & (self.starts[:, 1:] > self.starts[:, :1])).long()
        within = (position - self.starts.gather(1, text)).clamp(min=0, max=self.width - 1)
        by_row = states.unflatten(0, (batch, texts)).flatten(1, 2)
        return gather(by_row, text * self.width + within) * self.mask[..., None]
