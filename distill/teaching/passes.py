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
    result = np.empty(0)
    with ProgressMeter(title, len(examples), unit=unit) as meter:
        for rows in scoring_steps(examples.lengths, scored_tokens(device)):
            computed = compute(to_device(examples[rows], device)).cpu().numpy()
            if not len(result):
                result = np.empty((len(examples), *computed.shape[1:]), dtype=computed.dtype)
            result[rows] = computed
            meter.advance(len(rows))
    return result
