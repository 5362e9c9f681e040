"""Cuts texts to the tokens that a model reads, as `tokenizers` does, without building what is cut off.

`tokenizers` returns the parts that it cuts off too, for two texts in every combination, and it tokenizes a text to its
end. Here a long text is tokenized only as far as needed, and the tokens that do not fit are left out.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from tokenizers import Tokenizer

from distill.edge.words import CutEncoding

Texts = str | tuple[str, str]
T = TypeVar("T")

CHARACTERS_PER_CALL = 1_000_000  # Whole encodings of them are in memory at once, some 100 bytes a token.
TEXTS_PER_CALL = 10_000
# The first try reads this many characters of a long text for each token that fits, and each further try more.
_FIRST, _GROWTH = 16, 4
# Tokens this near to the place where a text was cut are not used: they could be others in the whole text.
_MARGIN_CHARACTERS, _MARGIN_WORDS = 64, 8
# Steps of a tokenizer that look at the characters around a place and no further.
_LOCAL = {
    "Sequence", "BertNormalizer", "ByteLevel", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled",
    "Prepend", "Replace", "Strip", "StripAccents", "BertPreTokenizer", "CharDelimiterSplit", "Digits", "Metaspace",
    "Punctuation", "Split", "UnicodeScripts", "Whitespace", "WhitespaceSplit",
}  # fmt: skip
_LOOKS_FAR = re.compile(r"\(\?<?=|\(\?<!|(?<!\\)\.[*+{]|\\z|\\Z|(?<![\\\[])[$^]")  # In a pattern.
_BEFORE_SPACE = re.compile(r"(?<=\S)\s")


@dataclass(frozen=True)
class Part:
    """The beginning of a text, or its end if texts are cut on the left, of `size` characters."""

    text: str
    size: int

    @property
    def is_whole(self) -> bool:
        return self.size >= len(self.text)

    def show(self, side: str) -> str:
        return self.text[max(0, len(self.text) - self.size) :] if side == "left" else self.text[: self.size]


class Truncation:
    """Tokenizes texts and pairs of texts, and cuts them to `max_length` tokens, the special ones among them.

    The tokens are those of `tokenizers` with the strategy `longest_first`.

    Args:
        tokenizer: without truncation and padding.
        side: the end of a text that is cut, `right` or `left`.
        offsets: whether tokens have their characters, which take a third of the time to find.
    """

    def __init__(self, tokenizer: Tokenizer, *, max_length: int, side: str, offsets: bool = True) -> None:
        self.tokenizer, self.max_length, self.side, self.offsets = tokenizer, max_length, side, offsets

    def encode(self, texts: Sequence[Texts]) -> Iterator[tuple[Any, bool]]:
        """Yields the tokens of each text or pair, with the attributes of `CutEncoding`, and whether it was cut."""
        for chunk in chunk_texts([self._start(each) for each in texts], lambda parts: sum(part.size for part in parts)):
            yield from self._encode_chunk(chunk)

    @cached_property
    def _can_shorten(self) -> bool:
        """Whether tokens depend on the characters around them alone, so that the rest of a text can be left out."""
        steps = [self.tokenizer.normalizer, self.tokenizer.pre_tokenizer]
        if steps[1] is None:  # The whole text is one word.
            return False
        return all(_is_local(json.loads(step.__getstate__())) for step in steps if step is not None)

    def _start(self, texts: Texts) -> list[Part]:
        size = _FIRST * self.max_length + 2 * _MARGIN_CHARACTERS
        each = [texts] if isinstance(texts, str) else texts
        return [Part(text, size if len(text) > size and self._can_shorten else len(text)) for text in each]

    def _encode_chunk(self, inputs: list[list[Part]]) -> Iterator[tuple[Any, bool]]:
        results: list[tuple[Any, bool] | None] = [None] * len(inputs)
        missing = list(range(len(inputs)))
        while missing:
            shown = [[part.show(self.side) for part in inputs[i]] for i in missing]
            needs_offsets = self.offsets or not all(part.is_whole for i in missing for part in inputs[i])
            encode = self.tokenizer.encode_batch if needs_offsets else self.tokenizer.encode_batch_fast
            encodings = encode([each[0] if len(each) == 1 else tuple(each) for each in shown])
            for i, encoding in zip(missing, encodings, strict=True):
                results[i] = self._cut(encoding, inputs[i])
            missing = [i for i in missing if results[i] is None]
            for i in missing:
                inputs[i] = [replace(part, size=min(part.size * _GROWTH, len(part.text))) for part in inputs[i]]
        yield from (result for result in results if result is not None)

    def _cut(self, encoding: Any, parts: Sequence[Part]) -> tuple[Any, bool] | None:
        """Returns the tokens that fit and whether others do not; None if more of a text must be tokenized."""
        is_whole = all(part.is_whole for part in parts)
        if is_whole and len(encoding) <= self.max_length:
            return encoding, False
        owners = encoding.sequence_ids
        room = max(0, self.max_length - owners.count(None))
        known = []
        for number, part in enumerate(parts):
            own = [token for token, owner in enumerate(owners) if owner == number]
            known.append(own if part.is_whole else self._known(encoding, own, part))
        if any(len(tokens) <= room for tokens, part in zip(known, parts, strict=True) if not part.is_whole):
            return None
        counts = list(map(len, known))
        if len(parts) == 2 and room % 2 and min(counts) > room and not _is_order_known(counts, parts):
            return None
        kept = [_keep(tokens, n, self.side) for tokens, n in zip(known, cut_lengths(counts, room), strict=True)]
        chosen = {token for tokens in kept for token in tokens}
        tokens = [token for token, owner in enumerate(owners) if owner is None or token in chosen]
        return self._select(encoding, tokens, parts), len(tokens) < len(owners)

    def _known(self, encoding: Any, tokens: list[int], part: Part) -> list[int]:
        """Returns those of the tokens of a part of a text that the whole text has too."""
        words, offsets = encoding.word_ids, encoding.offsets
        if not tokens:
            return []
        if self.side == "right":
            last, end = words[tokens[-1]] - _MARGIN_WORDS, part.size - _MARGIN_CHARACTERS
            number = len(tokens)
            while number and (words[tokens[number - 1]] >= last or offsets[tokens[number - 1]][1] > end):
                number -= 1
            return tokens[:number]
        # Patterns that match from left to right match as in the whole text after a space at the latest.
        space = _BEFORE_SPACE.search(part.show(self.side), _MARGIN_CHARACTERS)
        if space is None:
            return []
        first = words[tokens[0]] + _MARGIN_WORDS
        for number in range(1, len(tokens)):
            token = tokens[number]
            if words[token] > first and words[token] != words[token - 1] and offsets[token][0] > space.start():
                return tokens[number:]
        return []

    def _select(self, encoding: Any, tokens: Sequence[int], parts: Sequence[Part]) -> CutEncoding:
        """Returns the chosen tokens, with their characters in the whole texts."""
        cut = CutEncoding.select(encoding, tokens)
        if self.side == "right" or all(part.is_whole for part in parts):
            return cut
        owners = encoding.sequence_ids
        starts = [max(0, len(part.text) - part.size) for part in parts]
        moved = [0 if owners[token] is None else starts[owners[token]] for token in tokens]
        return replace(cut, offsets=[(a + by, b + by) for (a, b), by in zip(cut.offsets, moved, strict=True)])


def cut_lengths(lengths: Sequence[int], room: int) -> list[int]:
    """Returns the numbers of tokens that are left of a text or of a pair: the longer one of a pair loses first."""
    if len(lengths) == 1:
        return [min(lengths[0], room)]
    short, long = sorted(lengths)
    long = short if short > room else max(short, room - short)
    if short + long > room:
        short, long = room // 2, room // 2 + room % 2
    limits = (long, short) if lengths[0] > lengths[1] else (short, long)
    return [min(length, limit) for length, limit in zip(lengths, limits, strict=True)]


def _is_order_known(counts: Sequence[int], parts: Sequence[Part]) -> bool:
    """Returns whether it is known which text has more tokens, where `counts` of a part are the least that it has."""
    first, second = parts
    if first.is_whole:
        return second.is_whole or counts[1] >= counts[0]
    return second.is_whole and counts[0] > counts[1]


def _keep(tokens: list[int], number: int, side: str) -> list[int]:
    return tokens[len(tokens) - number :] if side == "left" else tokens[:number]


def _is_local(step: Any) -> bool:
    """Returns whether a step, as tokenizer.json has it, looks only at the characters around a place."""
    if isinstance(step, list):
        return all(map(_is_local, step))
    if not isinstance(step, dict):
        return True
    if "type" in step and step["type"] not in _LOCAL:
        return False
    if isinstance(step.get("Regex"), str) and _LOOKS_FAR.search(step["Regex"]):
        return False
    return all(map(_is_local, step.values()))


def chunk_texts(inputs: Sequence[T], count_characters: Callable[[T], int]) -> Iterator[list[T]]:
    """Yields the inputs in their order, as many together as may be tokenized at once, or one.

    Args:
        count_characters: returns the number of characters of an input.
    """
    chunk: list[T] = []
    characters = 0
    for each in inputs:
        size = count_characters(each)
        if chunk and (characters + size > CHARACTERS_PER_CALL or len(chunk) == TEXTS_PER_CALL):
            yield chunk
            chunk, characters = [], 0
        chunk.append(each)
        characters += size
    if chunk:
        yield chunk
