"""From logits to answers, in numpy alone."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


def softmax(logits: Floats) -> Floats:
    """Probabilities along the last axis, of the shape of `logits [..., C]`."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    exponentials = np.exp(shifted)
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))


def classify(logits: Floats, labels: Sequence[str]) -> list[dict[str, object]]:
    """For every row of `logits [B, C]`: the label, its probability, and the probabilities of all labels."""
    answers: list[dict[str, object]] = []
    for row in softmax(logits.astype(np.float64)):
        best = int(row.argmax())
        probabilities = {label: float(value) for label, value in zip(labels, row, strict=True)}
        answers.append({"label": labels[best], "probability": float(row[best]), "probabilities": probabilities})
    return answers


def read_off(logits: Floats) -> list[dict[str, object]]:
    """For every row of a regression's `logits [B, 1]`: the number."""
    return [{"value": float(row[0])} for row in logits]
