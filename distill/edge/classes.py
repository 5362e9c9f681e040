"""Logits of items that cannot have every class, such as the tokens of a context or the choices of a question."""

import numpy as np
from numpy.typing import NDArray

MASKED = float(np.finfo(np.float32).min)  # The logit of a class that an item cannot have.


def pad_classes(values: NDArray[np.generic], width: int, filler: float = MASKED) -> NDArray[np.generic]:
    """Returns `[n, C]` as `[n, width]`, filled up with `filler`."""
    return np.pad(values, ((0, 0), (0, width - values.shape[-1])), constant_values=filler)
