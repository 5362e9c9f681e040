"""Continuation of prompts by a decoder of transformers, several together."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from distill.models.decoding import choose_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.no_grad()
def continue_prompts(
    model: "PreTrainedModel",
    prompts: Sequence[Sequence[int]],
    room: Sequence[int],
    *,
    beams: int = 1,
    temperature: float | None = None,
) -> list[list[list[int]]]:
    """Returns the tokens behind each prompt, the most likely of all beams first, with the token that ends a text.

    Args:
        room: the most tokens behind each prompt.
        beams: sequences of the search, each of which is returned; 1 for one text.
        temperature: of the sampling; None takes the most probable tokens.
    """
    width, lengths = max(map(len, prompts)), [len(prompt) for prompt in prompts]
    end, pad = model.generation_config.eos_token_id, model.generation_config.pad_token_id
    # The padding is on the left, so that all texts go on at the same place.
    ids = torch.full((len(prompts), width), 0 if pad is None else pad)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - lengths[row] :] = torch.tensor(prompt, dtype=torch.long)
        mask[row, width - lengths[row] :] = 1
    written = model.generate(
        input_ids=ids.to(model.device), attention_mask=mask.to(model.device), max_new_tokens=max(1, *room),
        num_beams=beams, num_return_sequences=beams, pad_token_id=0 if pad is None else pad,
        **choose_tokens(temperature),
    )[:, width:]  # fmt: skip
    texts = [row[kept].tolist() for row, kept in zip(written, up_to_end(written, end), strict=True)]
    return [[text[:most] for text in texts[number * beams : (number + 1) * beams]] for number, most in enumerate(room)]


def up_to_end(ids: Tensor, end: int | list[int] | None) -> Tensor:
    """Returns whether each token `[B, T]` is in its text: all to the first one that ends it, this one included."""
    is_end = _find_ends(ids, end)
    return is_end.cumsum(dim=1) - is_end.long() == 0


def before_end(ids: Tensor, end: int | list[int] | None) -> Tensor:
    """Returns whether each token `[B, T]` is before the first one that ends its text."""
    return _find_ends(ids, end).cumsum(dim=1) == 0


def _find_ends(ids: Tensor, end: int | list[int] | None) -> Tensor:
    ends = torch.tensor([] if end is None else end, device=ids.device, dtype=ids.dtype).flatten()
    return torch.isin(ids, ends)
