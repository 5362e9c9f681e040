"""F1 and Matthews' correlation of classes, from counts, by numpy alone: those of a training and of a bundle."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SHOWN = 8  # Classes in a message.


def count_pairs(labels: NDArray[np.integer], predicted: NDArray[np.integer], classes: int) -> NDArray[np.integer]:
    """Returns how often each class is predicted for each label, `[C, C]` by label and prediction.

    >>> count_pairs(np.array([0, 0, 1]), np.array([0, 1, 1]), classes=2).tolist()
    [[1, 1], [0, 1]]
    """
    pairs: NDArray[np.integer] = np.bincount(labels * classes + predicted, minlength=classes**2)
    return pairs.reshape(classes, classes)


def compute_f1(counts: NDArray[np.integer], positive: int | None) -> float:
    """Returns the F1 of a class or, if that is None, the mean of those of all classes with a row, from `count_pairs`.

    The classes of the mean depend on the labels alone, so that the metrics of two models are means of the same classes.
    """
    values = 2 * np.diagonal(counts) / np.maximum(counts.sum(axis=0) + counts.sum(axis=1), 1)
    return average_present(values, counts.sum(axis=1)) if positive is None else float(values[positive])


def average_present(values: NDArray[np.floating], numbers: NDArray[np.integer]) -> float:
    """Returns the mean of values `[C]` over the classes with a row, 0 if there is none.

    Args:
        numbers: rows of each class, `[C]`.
    """
    present = numbers > 0
    return float(values[present].mean()) if present.any() else 0.0


def compute_matthews(counts: NDArray[np.integer]) -> float:
    """Returns Matthews' correlation (Gorodkin 2004) from `count_pairs`, 0 with a constant."""
    counts = counts.astype(np.float64)
    total, labels, predictions = counts.sum(), counts.sum(axis=1), counts.sum(axis=0)
    covariance = np.trace(counts) * total - labels @ predictions
    scale = np.sqrt((total**2 - predictions @ predictions) * (total**2 - labels @ labels))
    return float(covariance / scale) if scale else 0.0


def describe_absent(source: str, classes: Sequence[str], numbers: NDArray[np.integer]) -> str | None:
    """Returns a sentence that names the classes without a row, which a mean over classes leaves out; None without any.

    Args:
        source: of the rows, in words.
        numbers: rows of each class, `[C]`.
    """
    absent = [name for name, number in zip(classes, numbers, strict=True) if not number]
    if len(absent) in (0, len(classes)):
        return None
    shown = ", ".join(absent[:SHOWN]) + (", ..." if len(absent) > SHOWN else "")
    return f"{source} has no row of {shown}: the mean F1 is that of the other {len(classes) - len(absent)} classes"
