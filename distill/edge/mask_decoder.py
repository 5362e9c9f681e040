"""The decoder of a language model, which fills the masks of a text."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from distill.edge.classes import softmax
from distill.edge.decoder import Example, Floats, Items, Prediction, Record, Row, TooLongError
from distill.edge.masks import MaskedTokens, fill_masks, show_piece
from distill.edge.strings import check_text, escape, shorten
from distill.errors import UserError


class Masks:
    """Decodes the masks of a text: the most probable pieces of each, and the `text` with the best ones in their place.

    An entry of `masks` has `start` and `end` of the mask in code points, and `pieces`, each a `piece` of text with its
    `probability`, the most probable one first. A record is a text, or `{"text": ..., "top_k": ...}` with the number of
    pieces. A mask that was cut off has no entry and stays in the text.

    Args:
        decoding: `mask_token`, and `top_k`, the number of pieces for a record that gives none.
    """

    input_axes = 2
    axes = 2
    fields: tuple[str, ...] = ("masks", "text")
    cuts = False
    classes_are_tokens = True
    encodes = False
    at_positions = True
    generates = False
    targets = False
    ranks = False

    @staticmethod
    def accepts(labels: int) -> bool:
        return labels == 0

    def __init__(self, labels: Sequence[str], pair: bool, decoding: Mapping[str, Any], tokenizer: Tokenizer) -> None:
        self.tokenizer, self.size = tokenizer, tokenizer.get_vocab_size()
        mask_token = decoding.get("mask_token")
        mask_id = tokenizer.token_to_id(mask_token) if isinstance(mask_token, str) else None
        if mask_id is None:
            raise UserError(f"decoding has mask_token {shorten(mask_token)}, expected a token of tokenizer.json")
        self.mask_token, self.mask_id = str(mask_token), int(mask_id)
        self.top_k = decoding.get("top_k")
        if not self._is_number(self.top_k):
            raise UserError(f"decoding has top_k {shorten(self.top_k)}, expected {self._numbers()}")

    def _is_number(self, value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= self.size

    def _numbers(self) -> str:
        return f"a whole number from 1 to {self.size}, the tokens of the vocabulary"

    def parse(self, line: str) -> Record:
        return line

    def read(self, record: Record) -> Example:
        if isinstance(record, MaskedTokens):
            return Example("", tokens=record)
        text = record.get("text") if isinstance(record, Mapping) else record
        top_k = record.get("top_k") if isinstance(record, Mapping) else None
        if not isinstance(text, str):
            raise UserError(f'got {shorten(record)}, expected a text or {{"text": ..., "top_k": ...}}')
        if top_k is not None and not self._is_number(top_k):
            raise UserError(f"got top_k={shorten(top_k)}, expected {self._numbers()}")
        if self.mask_token not in text:
            raise UserError(f"got {shorten(text)} without a mask, expected {self.mask_token} at each place to fill")
        return Example(check_text(text), top_k=top_k)  # type: ignore[arg-type]  # It is a number.

    def cut(self, example: Example, row: Row, *, max_length: int, doc_stride: int | None, side: str) -> list[Row]:
        if example.tokens is not None:
            return [[example.tokens]]
        [encoding] = row
        tokens = MaskedTokens.find(encoding, example.text, self.mask_id)
        if not tokens.positions:
            raise TooLongError(f"its masks are beyond the {max_length} tokens that the bundle reads: shorten the text")
        return [[tokens]]

    def select(self, example: Example, row: Row, logits: Floats) -> Items:
        return row[0], logits

    def truncated_item(self) -> Floats | None:
        return None

    def decode(self, example: Example, rows: Sequence[Items]) -> Prediction:
        [(tokens, logits)] = rows
        # A model may have more rows than there are tokens, such as a multiple of 64. They take no share.
        probabilities = softmax(logits[:, : self.size].astype(np.float64))
        best = np.argsort(-probabilities, axis=-1, kind="stable")[:, : example.top_k or self.top_k]
        spans = tokens.spans or [(None, None)] * len(best)  # Tokens that were made elsewhere have no text.
        masks = [
            {"start": start, "end": end, "pieces": [
                {"piece": show_piece(self.tokenizer, token), "probability": float(distribution[token])}
                for token in ids.tolist()
            ]}
            for (start, end), ids, distribution in zip(spans, best, probabilities, strict=True)
        ]  # fmt: skip
        is_text = example.tokens is None
        text = fill_masks(self.tokenizer, example.text, tokens, best[:, 0].tolist()) if is_text else None
        return {"masks": masks, "text": text}

    def format(self, prediction: Prediction) -> str:
        pieces = (
            ", ".join(f"{escape(of['piece'].strip())} {of['probability']:.4f}" for of in mask["pieces"])
            for mask in prediction["masks"]
        )
        return f"{escape(prediction['text'])}\t{'; '.join(pieces)}"
