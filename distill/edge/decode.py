"""Decoders: from the logits of a model to predictions, in numpy alone.

A decoder says which tokens of a text are the items of its task, and turns their logits into a prediction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from distill.errors import UserError

Floats = NDArray[np.floating]
Span = tuple[int, int]  # First and last (excluded) character, in code points.


@dataclass(frozen=True)
class Example:
    """A record as a tokenizer reads it: a text, for pairs the second one, and the words of a text with tags."""

    text: str
    pair: str | None = None
    words: tuple[Span, ...] = ()


class Decoder(Protocol):
    """Reads the records of one kind of task and makes predictions of its logits."""

    def read(self, record: Any) -> Example:
        """The record as an example; raises UserError for one of another form."""
        ...

    def items(self, example: Example, offsets: Sequence[Span], special: Sequence[int]) -> list[int | None] | None:
        """The token of each item; None for one that was cut off.

        None in place of the list is for a model that returns one row of logits for a whole text.

        Args:
            offsets: of each token, the characters of the text that it stands for.
            special: of each token, 1 for one that stands for no text.
        """
        ...

    def decode(self, example: Example, items: Sequence[int | None] | None, logits: Floats) -> dict[str, Any]:
        """The prediction for the logits `[n, C]` of the example's items that were not cut off."""
        ...

    def format(self, prediction: Mapping[str, Any]) -> str:
        """The prediction on one line."""
        ...


class _WholeText:
    """The part that decoders of one row of logits a text have in common."""

    def __init__(self, labels: Sequence[str], pair: bool) -> None:
        self.labels, self.pair = list(labels), pair

    def read(self, record: Any) -> Example:
        is_pair = isinstance(record, list | tuple) and len(record) == 2
        if self.pair and is_pair and all(isinstance(text, str) for text in record):
            return Example(record[0], record[1])
        if not self.pair and isinstance(record, str):
            return Example(record)
        raise UserError(f"got {record!r}, expected {'two texts' if self.pair else 'a text'}")

    def items(self, example: Example, offsets: Sequence[Span], special: Sequence[int]) -> list[int | None] | None:
        return None


class Classes(_WholeText):
    """The class of a text: `label`, its `probability`, and the `probabilities` of all labels."""

    def decode(self, example: Example, items: Sequence[int | None] | None, logits: Floats) -> dict[str, Any]:
        row = softmax(logits[0].astype(np.float64))
        best = int(row.argmax())
        probabilities = {label: float(value) for label, value in zip(self.labels, row, strict=True)}
        return {"label": self.labels[best], "probability": float(row[best]), "probabilities": probabilities}

    def format(self, prediction: Mapping[str, Any]) -> str:
        return f"{prediction['label']}\t{prediction['probability']:.4f}"


class Number(_WholeText):
    """The number of a regression: `value`."""

    def decode(self, example: Example, items: Sequence[int | None] | None, logits: Floats) -> dict[str, Any]:
        return {"value": float(logits[0, 0])}

    def format(self, prediction: Mapping[str, Any]) -> str:
        return f"{prediction['value']:.4f}"


DECODERS: Mapping[str, type[Any]] = {"classes": Classes, "number": Number}


def softmax(logits: Floats) -> Floats:
    """Probabilities along the last axis, of the shape of `logits [..., C]`."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    exponentials = np.exp(shifted)
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))
