"""The decoder of models that write text, whose items are texts that have been written."""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from distill.edge.decoder import Example, Floats, Items, Prediction, Record, Row
from distill.edge.generation import Writing
from distill.edge.strings import check_text, escape, shorten
from distill.errors import UserError


class Texts:
    """Makes predictions of texts that a model has written: `text`, its `tokens` and its `finish`.

    `tokens` are the ids, `finish` is `stop` at a stop string, `eos` at an end token and `length` at the last token that
    a text may have. A beam search adds its `score`.
    """

    input_axes = 2
    axes = 3
    fields: tuple[str, ...] = ("text", "tokens", "finish")
    cuts = False
    classes_are_tokens = True
    encodes = False
    at_positions = False
    ranks = False

    @staticmethod
    def accepts(labels: int) -> bool:
        return labels == 0

    def __init__(self, labels: Sequence[str], pair: bool, decoding: Mapping[str, Any], tokenizer: Tokenizer) -> None:
        pass

    def parse(self, line: str) -> Record:
        return line

    def read(self, record: Record) -> Example:
        if not isinstance(record, str):
            raise UserError(f"got {shorten(record)}, expected a text")
        return Example(check_text(record))

    def cut(self, example: Example, row: Row, *, max_length: int, doc_stride: int | None, side: str) -> list[Row]:
        return [row]

    def select(self, example: Example, row: Row, logits: Floats) -> Items:
        return row, logits

    def truncated_item(self) -> Floats | None:
        return None

    def decode(self, example: Example, rows: Sequence[Items]) -> Prediction:
        [(writing, _)] = rows
        return describe(writing)

    def format(self, prediction: Prediction) -> str:
        return escape(prediction["text"])


def describe(writing: Writing) -> Prediction:
    """Returns a text that has ended as a prediction."""
    prediction: Prediction = {"text": writing.text, "tokens": writing.tokens, "finish": writing.finish}
    if writing.score is not None:
        prediction["score"] = writing.score
    return prediction | ({"truncated": True} if writing.is_truncated else {})


CONTINUATION, SEQ2SEQ = "continuation", "seq2seq"  # The decoders of models without and with an encoder.
WRITERS: Mapping[str, type[Texts]] = {CONTINUATION: Texts, SEQ2SEQ: Texts}
