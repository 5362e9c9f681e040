"""The columns of cached outputs: items by example, and logits of items by the classes that are valid."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from distill.losses.term import scatter_logits


def locate_items(tensors: Mapping[str, Tensor], examples: int) -> dict[str, Sequence[int]]:
    """Returns for each column of a shard where its examples end: 0, and the rows of all examples up to each."""
    names = [name for name in ("logits", "widths", "top", "ids", "rest", "drawn") if name in tensors]
    ends = _ends(tensors["counts"]) if "counts" in tensors else range(examples + 1)
    located: dict[str, Sequence[int]] = dict.fromkeys(names, ends)
    if "widths" in tensors:
        logit_ends = _ends(tensors["widths"])
        located["logits"] = [logit_ends[end] for end in ends]
    return located


def _ends(counts: Tensor) -> list[int]:
    """Returns 0 and the sum of all counts up to each."""
    return [0, *counts.cumsum(dim=0).tolist()]


def pack_logits(logits: Tensor, valid: Tensor | None) -> dict[str, Tensor]:
    """Returns the columns that are stored of logits `[n, C]`.

    Where only some classes are valid, C is that of a batch and differs from batch to batch. `logits [sum of widths]`
    are then those of the valid classes of each item in turn, and `widths [n]` the numbers of them.
    """
    if valid is None:
        return {"logits": logits}
    valid = valid.to(logits.device)
    return {"logits": logits[valid], "widths": valid.sum(dim=-1)}


def unpack_logits(logits: Tensor, widths: Tensor, valid: Tensor | None) -> Tensor:
    """Returns the logits `[n, C]` of `pack_logits`, as `scatter_logits` does.

    Raises:
        ValueError: if the items have other numbers of valid classes than those that were stored.
    """
    if valid is None or not torch.equal(valid.sum(dim=-1), widths):
        raise ValueError(f"the cached logits are of {len(widths)} items with other valid classes than the batch has")
    return scatter_logits(logits, valid)


def split_items(columns: Mapping[str, Tensor], counts: Tensor) -> dict[str, tuple[Tensor, ...]]:
    """Returns the columns of each example, which has `counts [examples]` items."""
    split = {name: values.split(counts.tolist()) for name, values in columns.items() if name != "logits"}
    if "widths" in columns:
        counts = torch.stack([widths.sum() for widths in split["widths"]])
    if "logits" in columns:
        split["logits"] = columns["logits"].split(counts.tolist())
    return split
