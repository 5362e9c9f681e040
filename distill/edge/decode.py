"""Decoders, which turn the logits of a model into predictions with numpy.

A decoder selects the tokens of a text that are the items of its task, and makes a prediction from their logits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from distill.edge.words import (
    OUTSIDE,
    Span,
    TagScheme,
    cut_between_words,
    find_first_pieces,
    locate_words,
    split_words,
)
from distill.errors import UserError

Floats = NDArray[np.floating]
# A text, the two texts of a pair, or `{"tokens": [...]}` for the words of a text.
Record = str | Sequence[str] | Mapping[str, Sequence[str]]
# A JSON object: `label`, `probability` and `probabilities`; or `value`; or `entities`.
Prediction = dict[str, Any]


# The characters at which `str.splitlines` splits, and the tab, with their escapes.
ESCAPES = {ord(character): ascii(character)[1:-1] for character in "\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"}
WITHHELD = "(no label)"  # In the plain form, of a bundle that abstains.
SHOWN = 80  # Characters of a record in a message.
IMPOSSIBLE = -30.0  # The logit of a class whose probability is 0, with 0 for the others.


@dataclass(frozen=True)
class Example:
    """A record in the form that a tokenizer reads: a text, the second text of a pair, and the words to tag."""

    text: str
    pair: str | None = None
    words: tuple[Span, ...] = ()


class Decoder(Protocol):
    """Reads the records of one kind of task and decodes the logits of a model.

    Attributes:
        axes: number of axes of the model's logits.
        fields: the keys of a prediction.
        truncates: whether `keep` truncates examples, because they may not be cut anywhere as by the tokenizer.
    """

    axes: int
    fields: tuple[str, ...]
    truncates: bool

    @staticmethod
    def accepts(labels: int) -> bool:
        """Returns whether a task can have this number of labels."""
        ...

    def read(self, record: Record) -> Example:
        """Returns the record as an example; raises UserError if it has another form."""
        ...

    def items(self, example: Example, offsets: Sequence[Span], special: Sequence[int]) -> list[int | None] | None:
        """Returns the token of each item, None for an item that was truncated.

        Returns None instead of a list if the model has one row of logits for a whole text.

        Args:
            offsets: the characters of each token in the text.
            special: 1 for each special token, 0 for the others.
        """
        ...

    def keep(
        self, example: Example, offsets: Sequence[Span], special: Sequence[int], *, length: int, side: str
    ) -> list[int]:
        """Returns the tokens of a whole example that the model reads, at most `length`.

        Args:
            side: the end of the text that is cut, `right` or `left`.
        """
        ...

    def truncated_item(self) -> Floats | None:
        """Returns logits `[C]` with the prediction of an item that was truncated; None if no item can be."""
        ...

    def decode(self, example: Example, items: Sequence[int | None] | None, logits: Floats) -> Prediction:
        """Returns the prediction from logits `[n, C]` of the items that were not truncated."""
        ...

    def format(self, prediction: Prediction) -> str:
        """Returns the prediction as one line, in which line breaks and tabs of its texts are escaped."""
        ...


class _WholeText:
    """Base of the decoders for one row of logits for each text."""

    axes = 2
    truncates = False

    def __init__(self, labels: Sequence[str], pair: bool) -> None:
        self.labels, self.pair = list(labels), pair

    def read(self, record: Record) -> Example:
        if self.pair and isinstance(record, list | tuple) and len(record) == 2:
            first, second = record
            if isinstance(first, str) and isinstance(second, str):
                return Example(_check_text(first), _check_text(second))
        if not self.pair and isinstance(record, str):
            return Example(_check_text(record))
        raise UserError(f"got {shorten(record)}, expected {'two texts' if self.pair else 'a text'}")

    def items(self, example: Example, offsets: Sequence[Span], special: Sequence[int]) -> list[int | None] | None:
        return None

    def keep(
        self, example: Example, offsets: Sequence[Span], special: Sequence[int], *, length: int, side: str
    ) -> list[int]:
        return list(range(len(special)))

    def truncated_item(self) -> Floats | None:
        return None


class Classes(_WholeText):
    """Decodes the class of a text: `label`, its `probability`, and the `probabilities` of all labels."""

    fields: tuple[str, ...] = ("label", "probability", "probabilities")

    @staticmethod
    def accepts(labels: int) -> bool:
        return labels > 1

    def decode(self, example: Example, items: Sequence[int | None] | None, logits: Floats) -> Prediction:
        row = softmax(logits[0].astype(np.float64))
        best = int(row.argmax())
        probabilities = {label: float(value) for label, value in zip(self.labels, row, strict=True)}
        return {"label": self.labels[best], "probability": float(row[best]), "probabilities": probabilities}

    def format(self, prediction: Prediction) -> str:
        label = WITHHELD if prediction["label"] is None else escape(prediction["label"])
        return f"{label}\t{prediction['probability']:.4f}"


class Number(_WholeText):
    """Decodes the number of a regression: `value`."""

    fields: tuple[str, ...] = ("value",)

    @staticmethod
    def accepts(labels: int) -> bool:
        return labels == 1

    def decode(self, example: Example, items: Sequence[int | None] | None, logits: Floats) -> Prediction:
        return {"value": float(logits[0, 0])}

    def format(self, prediction: Prediction) -> str:
        return f"{prediction['value']:.4f}"


class Tags:
    """Decodes the entities of a text, or of the words of a record `{"tokens": [...]}`.

    Each has `text`, `type`, `score` (the mean probability of its tags), and `start` and `end` in code points. A text is
    cut between words, and the words that are left out are in no entity. `TagScheme` has the rule by which tags are
    read.
    """

    axes = 3
    fields: tuple[str, ...] = ("entities",)
    truncates = True

    @staticmethod
    def accepts(labels: int) -> bool:
        return labels > 1

    def __init__(self, labels: Sequence[str], pair: bool) -> None:
        self.labels, self.scheme = list(labels), TagScheme(labels)

    def read(self, record: Record) -> Example:
        if isinstance(record, str):
            return Example(_check_text(record), words=split_words(record))
        words = record.get("tokens") if isinstance(record, Mapping) else None
        if isinstance(words, list | tuple) and all(isinstance(word, str) for word in words):
            return Example(_check_text(" ".join(words)), words=locate_words(words))
        raise UserError(f'got {shorten(record)}, expected a text or {{"tokens": [...]}}')

    def items(self, example: Example, offsets: Sequence[Span], special: Sequence[int]) -> list[int | None] | None:
        return find_first_pieces(example.words, offsets, special)

    def keep(
        self, example: Example, offsets: Sequence[Span], special: Sequence[int], *, length: int, side: str
    ) -> list[int]:
        return cut_between_words(example.words, offsets, special, length=length, side=side)

    def truncated_item(self) -> Floats | None:
        return np.array([0.0 if label == OUTSIDE else IMPOSSIBLE for label in self.labels], dtype=np.float32)

    def decode(self, example: Example, items: Sequence[int | None] | None, logits: Floats) -> Prediction:
        words = [word for word, item in zip(example.words, items or [], strict=True) if item is not None]
        probabilities = softmax(logits.astype(np.float64))
        best = probabilities.argmax(axis=-1)
        entities = []
        for first, last, kind in zip(*self.scheme.find(best), strict=True):
            start, end = words[first][0], words[last - 1][1]
            score = float(probabilities[range(first, last), best[first:last]].mean())
            text = example.text[start:end]
            name = self.scheme.types[kind]
            entities.append({"text": text, "type": name, "score": score, "start": start, "end": end})
        return {"entities": entities}

    def format(self, prediction: Prediction) -> str:
        entities = prediction["entities"]
        return "; ".join(f"{escape(entity['type'])}: {escape(entity['text'])}" for entity in entities) or "-"


DECODERS: Mapping[str, type[Classes] | type[Number] | type[Tags]] = {"classes": Classes, "number": Number, "tags": Tags}


def escape(text: str, *, tab: bool = True) -> str:
    """Returns a text in which line breaks, and by default tabs, are escaped as in Python."""
    return text.translate(ESCAPES if tab else {code: words for code, words in ESCAPES.items() if code != ord("\t")})


def shorten(record: object) -> str:
    """Returns a record as one line of a message."""
    text = ascii(record) if find_surrogate(repr(record)) is not None else repr(record)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def find_surrogate(text: str) -> int | None:
    """Returns the position of the first half of a character, which UTF-8 cannot encode; None if there is none."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return error.start
    return None


def _check_text(text: str) -> str:
    """Returns the text; raises UserError if it is not Unicode."""
    position = find_surrogate(text)
    if position is not None:
        raise UserError(f"got {shorten(text)}, expected Unicode: character {position + 1} is a lone surrogate")
    return text


def softmax(logits: Floats) -> Floats:
    """Returns the probabilities along the last axis of `logits [..., C]`."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    exponentials = np.exp(shifted)
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))
