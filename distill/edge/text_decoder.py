"""The decoder of a causal language model, which tells how well a text continues itself."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from distill.edge.decoder import Example, Floats, Items, Prediction, Record, Row
from distill.edge.masks import MaskedTokens
from distill.edge.strings import check_text, shorten
from distill.errors import UserError


class Continuation:
    """Decodes the logits of a text's tokens, each of them for the token behind it.

    A prediction has the `loss`, the mean cross-entropy of all `tokens` but the first one, and its exponential, the
    `perplexity`. A record is a text.
    """

    input_axes = 2
    axes = 3
    fields: tuple[str, ...] = ("perplexity", "loss", "tokens")
    cuts = False
    classes_are_tokens = True
    encodes = False
    at_positions = False
    ranks = False
    generates = True

    @staticmethod
    def accepts(labels: int) -> bool:
        return labels == 0

    def __init__(self, labels: Sequence[str], pair: bool, decoding: Mapping[str, Any], tokenizer: Tokenizer) -> None:
        self.size = tokenizer.get_vocab_size()

    def parse(self, line: str) -> Record:
        return line

    def read(self, record: Record) -> Example:
        if isinstance(record, MaskedTokens):
            return Example("", tokens=record)
        if not isinstance(record, str):
            raise UserError(f"got {shorten(record)}, expected a text")
        return Example(check_text(record))

    def cut(self, example: Example, row: Row, *, max_length: int, doc_stride: int | None, side: str) -> list[Row]:
        if example.tokens is not None:
            return [[example.tokens]]
        if len(row[0]) < 2:
            raise ValueError(f"got {shorten(example.text)}, expected a text of at least two tokens")
        return [row]

    def select(self, example: Example, row: Row, logits: Floats) -> Items:
        return np.asarray(row[0].ids)[1:], logits[0, :-1]

    def truncated_item(self) -> Floats | None:
        return None

    def decode(self, example: Example, rows: Sequence[Items]) -> Prediction:
        [(ids, logits)] = rows
        # A model may have more rows than there are tokens, such as a multiple of 64. They take no share.
        shifted = logits[:, : self.size] - logits[:, : self.size].max(axis=-1, keepdims=True)
        losses = np.log(np.exp(shifted).sum(axis=-1, dtype=np.float64)) - shifted[np.arange(len(ids)), ids]
        loss = float(losses.mean())
        return {"perplexity": float(np.exp(loss)), "loss": loss, "tokens": len(ids)}

    def format(self, prediction: Prediction) -> str:
        return f"{prediction['perplexity']:.4f}\t{prediction['tokens']}"
