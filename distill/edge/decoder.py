"""The contract of decoders: records, examples, the items of a model, and predictions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from distill.edge.masks import MaskedTokens
from distill.edge.words import Span

Floats = NDArray[np.floating]


@dataclass(frozen=True)
class SourceTokens:
    """The row of a model with an encoder: the tokens of a source `[L]`, and those of its target or decoder `[T]`.

    In a record `target` are the tokens of the target, in a row those that the decoder reads to predict them.
    """

    ids: Sequence[int]
    type_ids: Sequence[int]
    attention_mask: Sequence[int]
    target: Sequence[int]

    def __len__(self) -> int:
        return len(self.ids)


# A text, the two texts of a pair, `{"tokens": [...]}` for the words of a text, `{"question", "context"}`, or a question
# with its choices, `{"question", "choices"}`, which may have a `context` too, or a query with the documents to rank,
# `{"query", "documents"}`. For vectors also a list of texts. For masks also `{"text", "top_k"}`, or the tokens of a
# text.
Record = str | Sequence[str] | Mapping[str, str | int | Sequence[str]] | MaskedTokens | SourceTokens
# A JSON object: `label` or `choice` with `probability` and `probabilities`; or `labels` with `probabilities`; or
# `value`; or `entities`; or `answer` with its place; or `vector`; or `masks` with the filled `text`; or `order` with
# `scores`.
Prediction = dict[str, Any]
# The items of a row of the model in the form of the decoder, and their logits `[n, C]`.
Items = tuple[Any, Floats]


class TooLongError(ValueError):
    """An example with no row of the model, because what must not be cut of it is too long."""


@dataclass(frozen=True)
class Example:
    """A record in the form that a tokenizer reads: a text, the second text of a pair, and the words to tag.

    With `choices`, the text is a question, and `context` the text that it is about, or the text is a query and they are
    its documents. With `more`, all texts are encoded by themselves. With `tokens`, there is no text, and nothing is
    left to be tokenized. `target` is the text that a model with an encoder writes for it. `top_k` is the number of
    pieces that are wanted for each mask; None for that of the decoder. `task` names the one of a bundle's tasks whose
    words are scored.
    """

    text: str
    pair: str | None = None
    words: tuple[Span, ...] = ()
    choices: tuple[str, ...] = ()
    context: str | None = None
    more: tuple[str, ...] = ()
    tokens: MaskedTokens | SourceTokens | None = None
    target: str | None = None
    top_k: int | None = None
    task: str | None = None

    def sequences(self) -> list[str | tuple[str, str]]:
        """Returns the texts of each sequence of tokens that a model reads."""
        if self.tokens is not None:
            return []
        if self.choices:
            return list(pair_choices(self.text, self.context, self.choices))
        if self.more:
            return [self.text, *self.more]
        return [self.text if self.pair is None else (self.text, self.pair)]


class ModelInput(Protocol):
    """One sequence of tokens that the model reads."""

    @property
    def ids(self) -> Any: ...

    @property
    def type_ids(self) -> Any: ...

    @property
    def attention_mask(self) -> Any: ...

    def __len__(self) -> int:
        """Returns the number of tokens."""
        ...


Row = Sequence[Any]  # The `ModelInput`s of one row of logits: one of them, or one for each choice or text.


class Decoder(Protocol):
    """Reads the records of one kind of task and decodes the logits of a model."""

    input_axes: int  # Number of axes of the model's inputs.
    axes: int  # Number of axes of the model's logits.
    encodes: bool  # Whether the logits are the vector of a text, whose width has nothing to do with labels.
    # Whether the model has a further input `positions [n]`, of tokens counted over the batch `[B * L]`, and `logits [n,
    # V]` at these alone. The sequences of a row have `positions` then.
    at_positions: bool
    ranks: bool  # Whether the rows of a record are its documents, whose scores together are the logits of one item.
    fields: tuple[str, ...]  # The keys of a prediction; the first one is null where the model abstains.
    cuts: bool  # Whether `cut` makes the rows of an example, because it may not be cut anywhere as by the tokenizer.
    # Whether the classes are the tokens of a text, so that logits of another tokenizer cannot be compared.
    classes_are_tokens: bool
    generates: bool  # Whether the model writes text: its classes are the tokens of the vocabulary, at every token.
    targets: bool  # Whether the logits are those of a `target`, which the sequences of a row have then.

    def __init__(self, labels: Sequence[str], pair: bool, decoding: Mapping[str, Any], tokenizer: Tokenizer) -> None:
        """Takes the fields of bundle.json; raises UserError if `decoding` lacks a value or has an invalid one."""
        ...

    @staticmethod
    def accepts(labels: int) -> bool:
        """Returns whether a task can have this number of labels."""
        ...

    def parse(self, line: str) -> Record:
        """Returns the record of a line of plain text; raises UserError if it has another form."""
        ...

    def read(self, record: Record) -> Example:
        """Returns the record as an example; raises UserError if it has another form."""
        ...

    def cut(self, example: Example, row: Row, *, max_length: int, doc_stride: int | None, side: str) -> list[Row]:
        """Returns the rows of an example, with sequences of at most `max_length` tokens.

        Args:
            row: the sequences of the whole example, with the attributes of `tokenizers.Encoding`.
            doc_stride: tokens that neighbouring windows share.
            side: the end of a text that is cut, `right` or `left`.

        Raises:
            TooLongError: with the reason in words, if what must not be cut is too long.
            ValueError: with the reason in words, if there can be no row otherwise.
        """
        ...

    def select(self, example: Example, row: Row, logits: Floats) -> Items:
        """Returns the items of a row, from logits `[K, C]` of its sequences or `[K, tokens, C]` without padding."""
        ...

    def truncated_item(self) -> Floats | None:
        """Returns logits `[C]` with the prediction of an item that was truncated; None if no item can be."""
        ...

    def decode(self, example: Example, rows: Sequence[Items]) -> Prediction:
        """Returns the prediction from the items of all rows of a record."""
        ...

    def format(self, prediction: Prediction) -> str:
        """Returns the prediction as one line, in which line breaks and tabs of its texts are escaped."""
        ...


def pair_choices(question: str, context: str | None, choices: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields the two texts of each choice: the question and the choice, or the context and both of them.

    An empty context is none.
    """
    for choice in choices:
        yield (context, f"{question} {choice}") if context else (question, choice)
