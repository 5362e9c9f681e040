"""The texts that a row of tokens holds: one, or the two of a pair. It is saved with the models that read it."""

import torch
from torch import Tensor


def mark_texts(input_ids: Tensor, attention_mask: Tensor | None = None, *, separator: int | None = None) -> Tensor:
    """Marks the tokens of each text in `input_ids [B, L]`, `[B, T, L]` (bool), for padding on either side.

    Args:
        attention_mask: `[B, L]`; None if nothing is padding.
        separator: id of the token that ends the first text of a pair, which gives T = 2; None reads a row as one text.
            Separators belong to one of the texts, so that every token does.
    """
    is_token = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
    if separator is None:
        return is_token[:, None]
    separators = ((input_ids == separator) & is_token).long()
    in_second = is_token & (separators.cumsum(dim=1) - separators > 0)
    return torch.stack([is_token & ~in_second, in_second], dim=1)
