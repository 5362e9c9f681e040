"""Checks that the tokens of a tokenizer stand for the characters that it tells, and corrects those that it trims."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from distill.console import print_notice
from distill.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEXTS = 200  # Texts that are checked.
MOST = 0.01  # Share of wrong tokens: what a tokenizer rewrites may look like one.
NEAR = 3  # Characters around a token in which its letters are looked for.
_BEGINNINGS = ("##", "\u0120", "\u2581")  # Of tokens: those of WordPiece, of bytes (Ġ), and of SentencePiece (▁).


def check_offsets(tokenizer: "PreTrainedTokenizerBase", texts: Iterable[str]) -> None:
    """Checks the offsets of a tokenizer on the beginning of the training texts.

    A tokenizer may trim a space from the offsets of a token to which it has added the space itself, so that they begin
    one character late. Such a tokenizer no longer trims.

    Raises:
        UserError: if the offsets are wrong for another reason.
    """
    sample = list(islice(texts, TEXTS))
    found = _find_wrong(tokenizer.backend_tokenizer, sample)
    if found is None:
        return
    backend = _without_trimming(tokenizer.backend_tokenizer)
    if backend is not None and _find_wrong(backend, sample) is None:
        tokenizer.backend_tokenizer.post_processor = backend.post_processor  # type: ignore[assignment]
        print_notice(f"the tokenizer trims the wrong characters, such as {found}: it no longer trims offsets")
        return
    raise UserError(
        f"the tokenizer {tokenizer.name_or_path or type(tokenizer).__name__} tells wrong characters for its tokens, "
        f"such as {found}, so that words and answers have no place in the text: choose a teacher with another tokenizer"
    )


def _find_wrong(backend: Tokenizer, texts: Sequence[str]) -> str | None:
    """Returns the first token with wrong characters in words, None if there are few or none."""
    checked, wrong = 0, list[str]()
    for text in texts:
        encoding = backend.encode(text)
        for place, is_right in _check_tokens(encoding, text):
            checked += 1
            if not is_right:
                start, end = encoding.offsets[place]
                wrong.append(f"{text[start:end]!r} for {encoding.tokens[place]!r}")
    return wrong[0] if len(wrong) > MOST * checked else None


def _check_tokens(encoding: Any, text: str) -> Iterator[tuple[int, bool]]:
    """Yields the tokens of ASCII letters, and whether each has its letters and is not before the previous token.

    A token whose letters are not in the text around was rewritten, and tells nothing.
    """
    folded, last = text.lower(), (0, 0)
    if len(folded) != len(text):
        return
    for place, (token, (start, end)) in enumerate(zip(encoding.tokens, encoding.offsets, strict=True)):
        if encoding.special_tokens_mask[place]:
            continue
        ascends = start >= last[0] and end >= last[1]
        last = (start, end)
        letters = _read_letters(token)
        if letters and letters in folded[max(0, start - NEAR) : end + NEAR]:
            yield place, ascends and letters in folded[start:end]
        elif not ascends:
            yield place, False


def _read_letters(token: str) -> str:
    """Returns the letters of a token, empty unless it is made of ASCII letters alone."""
    for beginning in _BEGINNINGS:
        token = token.removeprefix(beginning)
    token = token.removesuffix("</w>")
    return token.lower() if token.isascii() and token.isalpha() else ""


def _without_trimming(backend: Tokenizer) -> Tokenizer | None:
    """Returns a copy of a tokenizer that trims no offsets; None if this one does not."""
    content = json.loads(backend.to_str())
    if not _stop_trimming(content["post_processor"]):
        return None
    return Tokenizer.from_str(json.dumps(content))


def _stop_trimming(value: object) -> bool:
    """Turns off the trimming of all processors in the JSON of a tokenizer; returns whether one trimmed."""
    if not isinstance(value, dict | list):
        return False
    trims = isinstance(value, dict) and value.get("trim_offsets") is True
    if trims:
        value["trim_offsets"] = False  # type: ignore[call-overload]
    inside = list(map(_stop_trimming, value.values() if isinstance(value, dict) else value))
    return trims or any(inside)
