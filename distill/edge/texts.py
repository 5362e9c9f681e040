"""The decoder of models that write text, whose items are texts that have been written."""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from distill.edge.decoder import Example, Floats, Items, Prediction, Record, Row, SourceTokens
from distill.edge.generation import Writing
from distill.edge.masks import MaskedTokens
from distill.edge.strings import check_text, escape, shorten
from distill.edge.truncation import Truncation
from distill.errors import UserError


class Continuations:
    """Makes predictions of texts that a model has written: `text`, its `tokens` and its `finish`.

    `tokens` are the ids, `finish` is `stop` at a stop string, `eos` at an end token and `length` at the last token that
    a text may have. A beam search adds its `score`.

    Where a whole text is scored in place of being continued, its items are all tokens but the first one.
    """

    input_axes = 2
    axes = 3
    fields: tuple[str, ...] = ("text", "tokens", "finish")
    cuts = False
    classes_are_tokens = True
    encodes = False
    at_positions = False
    ranks = False
    generates = True
    targets = False

    @staticmethod
    def accepts(labels: int) -> bool:
        return labels == 0

    def __init__(self, labels: Sequence[str], pair: bool, decoding: Mapping[str, Any], tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def parse(self, line: str) -> Record:
        return line

    def complete(self, text: str) -> str:
        """Returns a text with what the model reads before every one."""
        return text

    def read(self, record: Record) -> Example:
        if isinstance(record, MaskedTokens):
            return Example("", tokens=record)
        if not isinstance(record, str):
            raise UserError(f"got {shorten(record)}, expected a text")
        return Example(self.complete(check_text(record)))

    def cut(self, example: Example, row: Row, *, max_length: int, doc_stride: int | None, side: str) -> list[Row]:
        return [row if example.tokens is None else [example.tokens]]

    def select(self, example: Example, row: Row, logits: Floats) -> Items:
        return row, logits[0, :-1]

    def truncated_item(self) -> Floats | None:
        return None

    def decode(self, example: Example, rows: Sequence[Items]) -> Prediction:
        [(writing, _)] = rows
        return describe(writing)

    def format(self, prediction: Prediction) -> str:
        return escape(prediction["text"])


class Targets(Continuations):
    """The decoder of a model with an encoder, whose predictions are those of `Continuations`.

    Where it is scored, a record is `{"source": ..., "target": ...}` or has the tokens of both, and the items are the
    tokens of the target.

    Args:
        decoding: `start`, the token that a target begins after, `end`, the one that ends it, which is put behind it if
            the tokenizer does not, `max_target`, the tokens that it is cut to, and `prefix`, which is put before every
            source; none if it is missing.
    """

    targets = True

    def __init__(self, labels: Sequence[str], pair: bool, decoding: Mapping[str, Any], tokenizer: Tokenizer) -> None:
        super().__init__(labels, pair, decoding, tokenizer)
        self.start: int | None = decoding.get("start")
        self.end: int | None = decoding.get("end")
        self.max_target: int | None = decoding.get("max_target")
        self.prefix: str = decoding.get("prefix", "")
        if not isinstance(self.prefix, str):
            raise UserError(f"decoding has prefix {shorten(self.prefix)}, expected a text")

    def complete(self, text: str) -> str:
        return self.prefix + text

    def read(self, record: Record) -> Example:
        if isinstance(record, SourceTokens):
            return Example("", tokens=record)
        if not isinstance(record, Mapping):
            return super().read(record)
        source, target = record.get("source"), record.get("target")
        if not isinstance(source, str) or not isinstance(target, str):
            raise UserError(f'got {shorten(record)}, expected {{"source": ..., "target": ...}}')
        return Example(self.complete(check_text(source)), target=check_text(target))

    def cut(self, example: Example, row: Row, *, max_length: int, doc_stride: int | None, side: str) -> list[Row]:
        [source] = row or [example.tokens]
        if example.target is None and not isinstance(source, SourceTokens):
            return [row]
        if self.start is None or self.end is None or self.max_target is None:
            raise ValueError("a target cannot be scored, because decoding lacks start, end or max_target")
        if example.target is None:
            ids = source.target
        else:
            ids = self._tokenize(example.target, self.max_target, self.end, side)
        # The decoder reads each token to predict the next one.
        target = [self.start, *ids[:-1]]
        return [[SourceTokens(source.ids, source.type_ids, source.attention_mask, target)]]

    def _tokenize(self, target: str, most: int, end: int, side: str) -> list[int]:
        ends = self.tokenizer.encode("a").ids[-1:] == [end]
        truncation = Truncation(self.tokenizer, max_length=most - (not ends), side=side, offsets=False)
        [(encoding, _)] = truncation.encode([target])
        return [*encoding.ids, *([] if ends else [end])]

    def select(self, example: Example, row: Row, logits: Floats) -> Items:
        return row, logits[0]


def describe(writing: Writing) -> Prediction:
    """Returns a text that has ended as a prediction."""
    prediction: Prediction = {"text": writing.text, "tokens": writing.tokens, "finish": writing.finish}
    if writing.score is not None:
        prediction["score"] = writing.score
    return prediction | ({"truncated": True} if writing.is_truncated else {})
