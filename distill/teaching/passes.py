"""A pass over texts that are no examples of a training: sentences of a bank, documents of a search."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from distill.console import ProgressMeter
from distill.data.batching import Batch, TokenizedExamples, scored_tokens, scoring_steps
from distill.models.forward import to_device


@torch.inference_mode()
def compute_rows(
    compute: Callable[[Batch], Tensor], examples: TokenizedExamples, device: torch.device, *, title: str, unit: str
) -> np.ndarray:
    """Returns a row for each text, `[N, ...]`, from batches of texts of like length.

    Args:
        compute: returns the rows `[B, ...]` of a batch on the device.
        title, unit: what the progress shows.
    """
    steps, parts = scoring_steps(examples.lengths, scored_tokens(device)), []
    with ProgressMeter(title, len(examples), unit=unit) as meter:
        for rows in steps:
            parts.append(compute(to_device(examples[rows], device)).cpu().numpy())
            meter.advance(len(rows))
    computed = np.concatenate(parts)
    ordered = np.empty_like(computed)
    ordered[np.concatenate(steps)] = computed
    return ordered
