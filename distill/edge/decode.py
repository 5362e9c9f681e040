"""Decoders, which turn the logits of a model into predictions with numpy.

A decoder selects the tokens of a text that are the items of its task, and makes a prediction from their logits.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from distill.errors import UserError

Floats = NDArray[np.floating]
Span = tuple[int, int]  # First and last (exclusive) character, in code points.
# A text, the two texts of a pair, or `{"tokens": [...]}` for the words of a text.
Record = str | Sequence[str] | Mapping[str, Sequence[str]]
# A JSON object: `label`, `probability` and `probabilities`; or `value`; or `entities`.
Prediction = dict[str, Any]


# The characters at which `str.splitlines` splits, and the tab, with their escapes.
ESCAPES = {ord(character): ascii(character)[1:-1] for character in "\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"}
WITHHELD = "(no label)"  # In the plain form, of a bundle that abstains.
SHOWN = 80  # Characters of a record in a message.


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
    """

    axes: int
    fields: tuple[str, ...]

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

    def decode(self, example: Example, items: Sequence[int | None] | None, logits: Floats) -> Prediction:
        """Returns the prediction from logits `[n, C]` of the items that were not truncated."""
        ...

    def format(self, prediction: Prediction) -> str:
        """Returns the prediction as one line, in which line breaks and tabs of its texts are escaped."""
        ...


class _WholeText:
    """Base of the decoders for one row of logits for each text."""

    axes = 2

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

    Each has `text`, `type`, `score` (the mean probability of its tags), and `start` and `end` in code points.
    """

    axes = 3
    fields: tuple[str, ...] = ("entities",)

    @staticmethod
    def accepts(labels: int) -> bool:
        return labels > 1

    def __init__(self, labels: Sequence[str], pair: bool) -> None:
        self.labels = list(labels)

    def read(self, record: Record) -> Example:
        if isinstance(record, str):
            return Example(_check_text(record), words=split_words(record))
        words = record.get("tokens") if isinstance(record, Mapping) else None
        if isinstance(words, list) and all(isinstance(word, str) for word in words):
            return Example(_check_text(" ".join(words)), words=locate_words(words))
        raise UserError(f'got {shorten(record)}, expected a text or {{"tokens": [...]}}')

    def items(self, example: Example, offsets: Sequence[Span], special: Sequence[int]) -> list[int | None] | None:
        return find_first_pieces(example.words, offsets, special)

    def decode(self, example: Example, items: Sequence[int | None] | None, logits: Floats) -> Prediction:
        words = [word for word, item in zip(example.words, items or [], strict=True) if item is not None]
        probabilities = softmax(logits.astype(np.float64))
        best = probabilities.argmax(axis=-1)
        entities = []
        for kind, first, last in find_entities([self.labels[tag] for tag in best]):
            start, end = words[first][0], words[last - 1][1]
            score = float(probabilities[range(first, last), best[first:last]].mean())
            text = example.text[start:end]
            entities.append({"text": text, "type": kind, "score": score, "start": start, "end": end})
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


def split_words(text: str) -> tuple[Span, ...]:
    """Returns the words and punctuation marks of a text."""
    return tuple(match.span() for match in re.finditer(r"\w+|[^\w\s]", text))


def locate_words(words: Sequence[str]) -> tuple[Span, ...]:
    """Returns the characters of each word in a text that joins the words with spaces."""
    spans, start = [], 0
    for word in words:
        spans.append((start, start + len(word)))
        start += len(word) + 1
    return tuple(spans)


def find_first_pieces(words: Sequence[Span], offsets: Sequence[Span], special: Sequence[int]) -> list[int | None]:
    """Returns the first token of each word, None for a word without tokens."""
    pieces: list[int | None] = []
    token = 0
    for start, end in words:
        while token < len(offsets) and (special[token] or offsets[token][1] <= start):
            token += 1
        inside = token < len(offsets) and offsets[token][0] < end
        pieces.append(token if inside else None)
    return pieces


def find_entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Returns the type and the first and last (exclusive) word of each entity in BIO, IOB1 or BIOES tags.

    An `I-X` or `E-X` after another type starts a new entity, as in conlleval.
    """
    entities: list[tuple[str, int, int]] = []
    kind, first, previous = "", 0, "O"
    for word, tag in enumerate([*tags, "O"]):
        prefix, _, name = tag.partition("-")
        continues = prefix in ("I", "E") and name == kind and previous not in ("E", "S")
        if kind and not continues:
            entities.append((kind, first, word))
            kind = ""
        if prefix in ("B", "I", "E", "S") and not continues:
            kind, first = name, word
        previous = prefix
    return entities
