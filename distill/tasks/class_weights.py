"""The weights of the classes in the hard-label loss: given by the user, or balanced by the training split."""

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from distill.contracts import IGNORED
from distill.errors import OptionError
from distill.options import show_value

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
ClassWeights = Annotated[
    Literal["balanced"] | Sequence[Weight],
    Field(description="balanced, or a list of numbers of at least 0 in the order of the classes"),
]
SHOWN = 8  # Classes in a message.
WEIGHTS = "class_weights"  # The column of batches with the weights of the items.


def resolve_class_weights(
    option: Literal["balanced"] | Sequence[float], labels: Sequence[str], train_labels: np.ndarray
) -> tuple[float, ...]:
    """Returns the weight of each class.

    `balanced` gives class c the weight `n / (C * count_c)` over the n labelled items of train, as scikit-learn does.

    Args:
        labels: names of the classes.
        train_labels: classes of the items of the training split `[n]`; `IGNORED` ones are left out.

    Raises:
        OptionError: for a list of another length, one without a weight above 0, and a class without an example.
    """
    if option == "balanced":
        return _balance(labels, train_labels)
    weights = tuple(float(weight) for weight in option)
    if len(weights) != len(labels):
        raise OptionError(
            "task.class_weights", show_value(list(option)), f"{len(labels)} numbers, one for each of {_show(labels)}"
        )
    if not any(weights):
        raise OptionError("task.class_weights", show_value(list(option)), "at least one weight above 0")
    return weights


def _balance(labels: Sequence[str], train_labels: np.ndarray) -> tuple[float, ...]:
    counts = np.bincount(train_labels[train_labels != IGNORED], minlength=len(labels))
    missing = [label for label, count in zip(labels, counts, strict=True) if not count]
    if missing:
        raise OptionError(
            "task.class_weights",
            "balanced",
            f"an example of every class in train, which has none of {_show(missing)}: give a list of weights",
        )
    return tuple((counts.sum() / (len(labels) * counts)).tolist())


def weight_column(weights: Sequence[float] | None, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the column of batches with the weight of each item from its class, none without weights.

    Args:
        labels: classes `[n]`; an item without one, whose class is below 0, has the weight 0.
    """
    if weights is None:
        return {}
    chosen = np.asarray(weights, dtype=np.float32)[np.maximum(labels, 0)]
    return {WEIGHTS: np.where(labels < 0, np.float32(0), chosen)}


def describe_weights(weights: Sequence[float] | None, labels: Sequence[str]) -> str:
    """Returns the weights in words, to be appended to the names of the classes; nothing without weights."""
    if weights is None:
        return ""
    named = [f"{label} {weight:.3g}" for label, weight in zip(labels, weights, strict=True)]
    return f"; class weights {_show(named)}"


def _show(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
