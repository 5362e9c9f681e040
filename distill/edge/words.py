"""Words of a text, the tokens that stand for them, and the entities that their tags describe."""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Span = tuple[int, int]  # First and last (exclusive) character, in code points.
OUTSIDE = "O"
PREFIXES = ("B", "I", "E", "S")


@dataclass(frozen=True)
class CutEncoding:
    """Those tokens of a `tokenizers.Encoding` that are left of a truncated example, with its attributes."""

    ids: list[int]
    attention_mask: list[int]
    type_ids: list[int]
    offsets: list[Span]
    special_tokens_mask: list[int]

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def select(cls, encoding: Any, kept: Sequence[int]) -> "CutEncoding":
        """Returns the tokens `kept` of an encoding."""
        columns = {field.name: getattr(encoding, field.name) for field in fields(cls)}
        return cls(**{name: [values[token] for token in kept] for name, values in columns.items()})


def split_words(text: str) -> tuple[Span, ...]:
    """Returns the words and punctuation marks of a text, each with the combining marks in it or behind it."""
    spans: list[Span] = []
    for match in re.finditer(r"\w+|[^\w\s]", text):
        start, end = match.span()
        if spans and spans[-1][1] == start and _continues(text[start], text[spans[-1][0]]):
            start, _ = spans.pop()
        spans.append((start, end))
    return tuple(spans)


def _continues(character: str, first: str) -> bool:
    """Returns whether a character right behind a word that begins with `first` belongs to it: a mark, or a letter."""
    if unicodedata.category(character).startswith("M"):
        return True
    return all(each.isalnum() or each == "_" for each in (character, first))


def locate_words(words: Sequence[str]) -> tuple[Span, ...]:
    """Returns the characters of each word in a text that joins the words with spaces."""
    spans, start = [], 0
    for word in words:
        spans.append((start, start + len(word)))
        start += len(word) + 1
    return tuple(spans)


def find_first_pieces(words: Sequence[Span], offsets: Sequence[Span], special: Sequence[int]) -> list[int | None]:
    """Returns the first token of each word, None for a word without a token of its own.

    Args:
        words: the characters of each word, in order.
        offsets: the characters of each token.
        special: 1 for each special token, 0 for the others.
    """
    return [None if is_shared else token for token, is_shared in _find_tokens(words, offsets, special)]


def join_words(words: Sequence[Span], offsets: Sequence[Span], special: Sequence[int]) -> tuple[list[Span], list[int]]:
    """Returns the words with a token of their own, and the first token of each.

    A word is joined to the one before if both share a token, as subwords of any characters may be.

    Args:
        words, offsets, special: as in `find_first_pieces`.
    """
    joined, firsts = list[Span](), list[int]()
    for (start, end), (token, is_shared) in zip(words, _find_tokens(words, offsets, special), strict=True):
        if is_shared:
            joined[-1] = joined[-1][0], end
        elif token is not None:
            joined.append((start, end))
            firsts.append(token)
    return joined, firsts


def _find_tokens(
    words: Sequence[Span], offsets: Sequence[Span], special: Sequence[int]
) -> Iterator[tuple[int | None, bool]]:
    """Yields the first token in each word, None without one, and whether an earlier word has taken it."""
    token, taken = 0, -1
    for start, end in words:
        while token < len(offsets) and (special[token] or offsets[token][1] <= start):
            token += 1
        if token < len(offsets) and offsets[token][0] < end:
            yield token, token == taken
            taken = token
        else:
            yield None, False


def locate_entities(scheme: "TagScheme", tags: NDArray[np.integer], words: Sequence[Span]) -> set[tuple[str, int, int]]:
    """Returns the type, the first and the last (exclusive) character of each entity of tags `[n]` of words."""
    found = zip(*scheme.find(tags), strict=True)
    return {(scheme.types[kind], words[first][0], words[last - 1][1]) for first, last, kind in found}


def score_entities(
    predictions: Sequence[Mapping[str, Any]], expected: Sequence[set[tuple[str, int, int]]]
) -> dict[str, float]:
    """Returns F1, precision and recall of predicted entities, which are right in type and in all characters."""
    found = [{(entity["type"], entity["start"], entity["end"]) for entity in each["entities"]} for each in predictions]
    correct = sum(len(given & entities) for given, entities in zip(found, expected, strict=True))
    predicted, existing = sum(map(len, found)), sum(map(len, expected))
    return {
        "f1": 2 * correct / max(1, predicted + existing), "precision": correct / max(1, predicted),
        "recall": correct / max(1, existing),
    }  # fmt: skip


def cut_between_words(
    words: Sequence[Span], offsets: Sequence[Span], special: Sequence[int], *, length: int, side: str
) -> list[int]:
    """Returns the tokens of a text that are kept, at most `length` with the special ones, all of which are kept.

    No word is cut in its middle: the last word that does not fit whole is left out with all of its tokens.

    Args:
        words, offsets, special: as in `find_first_pieces`, of the whole text.
        side: the end of the text that is cut, `right` or `left`.
    """
    content = [token for token, is_special in enumerate(special) if not is_special]
    room = length - (len(special) - len(content))
    if len(content) <= room:
        return list(range(len(special)))
    first_pieces = {piece for piece in find_first_pieces(words, offsets, special) if piece is not None}
    cuts = [number for number, token in enumerate(content) if token in first_pieces]
    if side == "left":
        kept = content[min((cut for cut in cuts if len(content) - cut <= room), default=len(content)) :]
    else:
        kept = content[: max((cut for cut in cuts if cut <= room), default=0)]
    chosen = set(kept)
    return [token for token, is_special in enumerate(special) if is_special or token in chosen]


class Entities(NamedTuple):
    """Entities in the order of their words: `first [m]`, `last [m]` (exclusive), and `kind [m]`, a number of a type."""

    first: NDArray[np.integer]
    last: NDArray[np.integer]
    kind: NDArray[np.integer]


class TagScheme:
    """Reads entities out of BIO, IOB1 or BIOES tags by the rule of conlleval.

    An `I-X` or `E-X` continues the entity of the word before, if that is of type X and did not end with `E-X` or `S-X`.
    Every other tag than `O` begins an entity, so that an `I-X` after `O` or after another type is the beginning of one.
    A tag without a type, such as `B`, has the type "".

    Attributes:
        types: names of the types in alphabetical order.

    Args:
        labels: the tags.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        parts = [label.partition("-") for label in labels]
        self.types = sorted({name for prefix, _, name in parts if prefix in PREFIXES})
        number = {name: index for index, name in enumerate(self.types)}
        self._kind = np.array([number[name] if prefix in PREFIXES else -1 for prefix, _, name in parts], dtype=int)
        self._continues = np.array([prefix in ("I", "E") for prefix, _, _ in parts], dtype=bool)
        self._ends = np.array([prefix in ("E", "S") for prefix, _, _ in parts], dtype=bool)

    def find(self, tags: NDArray[np.integer], starts: NDArray[np.bool_] | None = None) -> Entities:
        """Returns the entities of tags `[n]`, which are numbers of `labels`.

        Args:
            starts: `[n]`, whether a sentence begins at a word; None for one sentence.
        """
        kind = self._kind[tags]
        inside, joined = kind >= 0, np.zeros(len(tags), dtype=bool)
        joined[1:] = self._continues[tags[1:]] & (kind[1:] == kind[:-1]) & ~self._ends[tags[:-1]]
        joined &= inside if starts is None else inside & ~starts
        first = np.flatnonzero(inside & ~joined)
        ends = np.append(np.flatnonzero(~joined), len(tags))
        return Entities(first, ends[np.searchsorted(ends, first, side="right")], kind[first])
