"""Classes of items: their probabilities, and those that an item cannot have, such as a choice that does not exist."""

import numpy as np
from numpy.typing import NDArray

MASKED = float(np.finfo(np.float32).min)  # The logit of a class that an item cannot have.


def pad_classes(values: NDArray[np.generic], width: int, filler: float = MASKED) -> NDArray[np.generic]:
    """Returns `[n, C]` as `[n, width]`, filled up with `filler`."""
    return np.pad(values, ((0, 0), (0, width - values.shape[-1])), constant_values=filler)


def softmax(logits: NDArray[np.floating]) -> NDArray[np.floating]:
    """Returns the probabilities along the last axis of `logits [..., C]`."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    exponentials = np.exp(shifted)
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))


def sigmoid(logits: NDArray[np.floating]) -> NDArray[np.floating]:
    """Returns the probability of each of `logits [...]`, the log-odds of a label."""
    return np.asarray(np.exp(-np.logaddexp(0.0, -logits)))
