"""The two texts of a pair within a row of tokens. It is saved with the models that read them apart."""

import torch
from torch import Tensor


def mark_texts(input_ids: Tensor, mask: Tensor, separator: int) -> Tensor:
    """Returns the tokens of either text of a pair, `[B, 2, L]` (bool). The first separator ends the first text.

    Args:
        input_ids: `[B, L]`, padded on either side.
        mask: `[B, L]`, 0 for padding.
        separator: id of the token between two texts.
    """
    is_token = mask.bool()
    separators = ((input_ids == separator) & is_token).long()
    in_second = is_token & (separators.cumsum(dim=1) - separators > 0)
    return torch.stack([is_token & ~in_second, in_second], dim=1)
