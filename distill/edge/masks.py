"""Masks of a text: the row of a model that predicts them, and the text with the best piece in place of each."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from distill.edge.words import Span


@dataclass(frozen=True)
class MaskedTokens:
    """A row of a model that predicts tokens: those of a text with masks, or a sequence with tokens to predict.

    Attributes:
        ids, type_ids, attention_mask: `[tokens]`.
        positions: of the tokens that are predicted, `[m]`, in ascending order.
        spans: the characters of each mask in the text, `[m]`; empty without a text.
    """

    ids: Sequence[int]
    type_ids: Sequence[int]
    attention_mask: Sequence[int]
    positions: Sequence[int]
    spans: Sequence[Span] = ()

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def find(cls, encoding: Any, text: str, mask_id: int) -> "MaskedTokens":
        """Returns the tokens of a text with the positions of its masks.

        Args:
            encoding: of the text, with the attributes of `tokenizers.Encoding`.
        """
        positions = [position for position, token in enumerate(encoding.ids) if token == mask_id]
        spans = [_strip(text, encoding.offsets[position]) for position in positions]
        return cls(encoding.ids, encoding.type_ids, encoding.attention_mask, positions, spans)


def _strip(text: str, span: Span) -> Span:
    """Returns the span without the spaces around a mask, which a tokenizer may count among its characters."""
    inside = text[slice(*span)]
    return span[0] + len(inside) - len(inside.lstrip()), span[1] - len(inside) + len(inside.rstrip())


def show_piece(tokenizer: Tokenizer, token: int) -> str:
    """Returns a token as text; one that stands for a part of a character, or for nothing, by its name."""
    text: str = tokenizer.decode([token], skip_special_tokens=False)
    return text if text and "\ufffd" not in text else str(tokenizer.id_to_token(token))


def fill_masks(tokenizer: Tokenizer, text: str, tokens: MaskedTokens, best: Iterable[int]) -> str:
    """Returns the text with a token in place of each mask.

    A token that continues a word is joined to the text before it. All else of the text stays as it is.

    Args:
        best: the ids of the tokens, `[m]`.
    """
    filled, end, ids = "", 0, list(tokens.ids)
    for position, (start, stop), token in zip(tokens.positions, tokens.spans, best, strict=True):
        filled += text[end:start]
        piece, continues = _read_piece(tokenizer, ids[position - 1] if position else None, token)
        filled = (filled.rstrip() if continues else filled) + piece
        end, ids[position] = stop, token
    return filled + text[end:]


def _read_piece(tokenizer: Tokenizer, before: int | None, token: int) -> tuple[str, bool]:
    """Returns a token as text after the token `before`, and whether it continues a word.

    A token continues a word if its name begins with the prefix of such tokens, or if it is decoded without a space
    before it.
    """
    prefix, name = getattr(tokenizer.model, "continuing_subword_prefix", None), str(tokenizer.id_to_token(token))
    if prefix and name.startswith(prefix):  # Some tokenizers have no decoder, which would remove it.
        return name.removeprefix(prefix), True
    left = "" if before is None else tokenizer.decode([before])
    both = tokenizer.decode([token] if before is None else [before, token])
    if not left or not both.startswith(left) or both == left:
        return show_piece(tokenizer, token).strip(), False
    piece = both[len(left) :]
    return piece.strip(), not piece[0].isspace()
