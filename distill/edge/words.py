"""Words of a text, the tokens that stand for them, and the entities that their tags describe.

Plain text is split into words as the data of a bundle has them, and words are written as plain text.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distill.core.errors import UserError

Span = tuple[int, int]  # First and last (exclusive) character, in code points.
OUTSIDE = "O"
PREFIXES = ("B", "I", "E", "S")
BIO, IOB1 = "BIO", "IOB1"
SCHEMES = (BIO, IOB1, "BIOES")


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
    return _is_mark(character) or all(each.isalnum() or each == "_" for each in (character, first))


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
    scheme: "TagScheme", predictions: Sequence[Mapping[str, Any]], expected: Sequence[set[tuple[str, int, int]]]
) -> dict[str, float]:
    """Returns F1, precision and recall of predicted entities, which are right in type and in all characters.

    Entities of other types than those of the tags, which patterns find, are left out.
    """
    found = [
        {(of["type"], of["start"], of["end"]) for of in each["entities"] if of["type"] in scheme.types}
        for each in predictions
    ]
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
    """Decodes valid sequences of BIO, IOB1 or BIOES tags, and reads entities out of any by the rule of conlleval.

    An `I-X` or `E-X` continues the entity of the word before, if that is of type X and did not end with `E-X` or `S-X`.
    Every other tag than `O` begins an entity, so that an `I-X` after `O` or after another type is the beginning of one.
    A tag without a type, such as `B`, has the type "".

    In a valid sequence an `I-X` or `E-X` follows `B-X` or `I-X`, and where there is `E-X`, these do not end an entity.
    In IOB1 an `I-X` begins one too, and a `B-X` only right behind another of its type. A type that lacks `B-X`, or in
    IOB1 `I-X`, begins with what it has. Without `O` every sequence is valid.

    Attributes:
        types: names of the types in alphabetical order.
        name: `BIO`, `IOB1` or `BIOES`.

    Args:
        labels: the tags.
        name: as in `name_scheme`; None takes BIOES for tags with `E` or `S` and BIO for others.

    Raises:
        UserError: for another name.
    """

    def __init__(self, labels: Sequence[str], name: str | None = None) -> None:
        if name not in (None, *SCHEMES):
            raise UserError(f"decoding has the scheme {name!r}, expected one of {', '.join(SCHEMES)}")
        parts = [label.partition("-") for label in labels]
        self.types = sorted({name for prefix, _, name in parts if prefix in PREFIXES})
        number = {name: index for index, name in enumerate(self.types)}
        self._kind = np.array([number[name] if prefix in PREFIXES else -1 for prefix, _, name in parts], dtype=int)
        self._continues = np.array([prefix in ("I", "E") for prefix, _, _ in parts], dtype=bool)
        self._ends = np.array([prefix in ("E", "S") for prefix, _, _ in parts], dtype=bool)
        self.name = name or ("BIOES" if self._ends.any() else BIO)
        self._begins = np.array([prefix == "B" for prefix, _, _ in parts], dtype=bool)
        self._is_first, self._is_last, self._may_follow = self._list_valid(set(labels), parts)

    def _list_valid(
        self, labels: set[str], parts: Sequence[tuple[str, str, str]]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
        """Returns the tags that may begin a sentence and end one, `[C]`, and whether tag j may follow i, `[C, C]`."""

        def lacks(prefix: str) -> NDArray[np.bool_]:
            """Returns for each tag whether its type has no tag of this prefix."""
            return np.array([f"{prefix}{hyphen}{name}" not in labels for _, hyphen, name in parts], dtype=bool)

        inside = (self._kind >= 0) & ~self._ends  # B and I, which a tag of the same type may follow.
        if (self._kind >= 0).all():  # Without O there may be no other valid sequence.
            return np.ones_like(inside), np.ones_like(inside), np.ones((len(parts), len(parts)), dtype=bool)
        is_apart = self.name == IOB1
        first = np.where(self._begins, lacks("I") | (not is_apart), ~self._continues | lacks("B") | is_apart)
        last = ~inside | lacks("E")
        joins = (self._kind[:, None] == self._kind) & inside[:, None] & (self._continues | (self._begins & is_apart))
        return first, last, joins | (last[:, None] & first)

    def decode(self, logits: NDArray[np.floating], starts: NDArray[np.bool_] | None = None) -> NDArray[np.intp]:
        """Returns the likeliest valid tags `[n]` of words with `logits [n, C]`, by the algorithm of Viterbi.

        Transitions have no weights: a valid sequence has the sum of the log-probabilities of its tags, of which the
        logits differ by a constant of each word. Only sentences whose most probable tags are invalid are searched.

        Args:
            starts: `[n]`, as in `find`.
        """
        tags: NDArray[np.intp] = logits.argmax(axis=-1)
        if not len(tags):
            return tags
        begins = np.zeros(len(tags), dtype=bool) if starts is None else starts.copy()
        begins[0] = True
        is_valid = np.where(begins, self._is_first[tags], self._may_follow[np.roll(tags, 1), tags])
        is_valid &= self._is_last[tags] | ~np.roll(begins, -1)
        bounds = np.append(np.flatnonzero(begins), len(tags))
        for number in np.unique(np.cumsum(begins)[~is_valid]):
            sentence = slice(bounds[number - 1], bounds[number])
            tags[sentence] = self._search(logits[sentence].astype(np.float64))
        return tags

    def _search(self, logits: NDArray[np.float64]) -> NDArray[np.intp]:
        """Returns the likeliest valid tags `[n]` of one sentence, of equal ones the first."""
        first, last, costs = (
            np.where(of, 0.0, -np.inf) for of in (self._is_first, self._is_last, self._may_follow)
        )  # fmt: skip
        before, scores = np.zeros(logits.shape, dtype=np.intp), logits[0] + first
        for word in range(1, len(logits)):
            paths = scores[:, None] + costs
            before[word] = paths.argmax(axis=0)
            scores = paths.max(axis=0) + logits[word]
        tags = np.zeros(len(logits), dtype=np.intp)
        tags[-1] = (scores + last).argmax()
        for word in range(len(logits) - 1, 0, -1):
            tags[word - 1] = before[word, tags[word]]
        return tags

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


def name_scheme(labels: Sequence[str], sentences: Sequence[NDArray[np.integer]]) -> str:
    """Returns the scheme of tags: IOB1 where most entities of sentences begin with `I` and none has `E` or `S`.

    Args:
        sentences: the tags of each as numbers of `labels`.
    """
    scheme, starts = TagScheme(labels), [np.arange(len(tags)) == 0 for tags in sentences]
    tags = np.concatenate(sentences)
    first = tags[scheme.find(tags, np.concatenate(starts)).first]
    inside = sum(labels[tag].startswith("I") for tag in first)
    return IOB1 if scheme.name == BIO and 2 * inside > len(first) else scheme.name


NAME = "splitter"  # Its key in the `decoding` of bundle.json.
# Letters of languages without spaces: Thai, Lao, Tibetan, Burmese, Khmer, Chinese and Japanese.
_UNSPACED = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3040-\u30ff\u3100-\u312f"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af"
)
UNSPACED = re.compile(f"[{_UNSPACED}]")
_SOLID = re.compile(f"[{_UNSPACED}\u3000-\u303f\uff00-\uff65]")  # With their punctuation, which has no space beside it.
_CLOSING, _OPENING = frozenset(".,;:!?%)]}…”»"), frozenset("([{“«")
_APOSTROPHES = "'\u2019"
_ENDING = re.compile(rf"[{_APOSTROPHES}]\w+|n[{_APOSTROPHES}]t")  # Such as 's and n't.
_BEGINNING = re.compile(rf"\w+[{_APOSTROPHES}]")  # Such as l'.
MOST = 10_000  # Words that are kept whole.
RUN = 64  # Marks alike that can be one word.
IsWhole = Callable[[int, int], bool]


@dataclass(frozen=True)
class Splitter:
    """A way to split a text into words, one of `SPLITTERS`.

    - `punctuation`: words and punctuation marks, each by itself.
    - `edges`: what is between spaces, without the punctuation marks at its edges.
    - `characters`: as `punctuation`, and each letter of a language without spaces by itself.
    - `spaces`: what is between spaces.

    Args:
        whole: for `edges`, the words that are never cut, also if another word follows or precedes without a space, as
            of `it's` and `l'eau`.
        leading, trailing: for `edges`, the marks that belong to the word behind or before them, such as `@`.
    """

    name: str = "punctuation"
    whole: frozenset[str] = field(default=frozenset(), repr=False)
    leading: frozenset[str] = frozenset()
    trailing: frozenset[str] = frozenset()

    @cached_property
    def longest(self) -> int:
        """The length of the longest word that is never cut."""
        return max(map(len, self.whole), default=0)

    def split(self, text: str) -> tuple[Span, ...]:
        """Returns the characters of each word."""
        return tuple(SPLITTERS[self.name](self, text))

    def describe(self) -> dict[str, Any]:
        """Returns the values in the form of bundle.json."""
        lists = ("whole", "leading", "trailing") if self.name == "edges" else ()
        return {"name": self.name, **{name: sorted(getattr(self, name)) for name in lists}}

    @classmethod
    def parse(cls, decoding: Mapping[str, Any]) -> "Splitter":
        """Returns the splitter of a bundle; raises UserError for one that is not known."""
        value = decoding.get(NAME)
        if not isinstance(value, Mapping) or value.get("name") not in SPLITTERS:
            raise UserError(f"decoding has the splitter {value}, expected one of {', '.join(SPLITTERS)}")
        lists = {name: value.get(name, []) for name in ("whole", "leading", "trailing")}
        for name, words in lists.items():
            if not isinstance(words, list) or not all(isinstance(word, str) and word for word in words):
                raise UserError(f"decoding has a splitter with {name} {words}, expected a list of texts")
        return cls(value["name"], **{name: frozenset(words) for name, words in lists.items()})

    @classmethod
    def fit_edges(cls, sentences: Iterable[Sequence[str]]) -> "Splitter":
        """Returns `edges` with the words and marks of sentences that are given as words."""
        counts = Counter(word for words in sentences for word in words)
        alone, leading, trailing = Counter[str](), Counter[str](), Counter[str]()
        for word, number in counts.items():
            if len(set(word)) == 1:
                alone[word[0]] += number
            else:
                leading[word[0]] += number
                trailing[word[-1]] += number
        attached = [
            frozenset(mark for mark in of if _is_punctuation(mark) and of[mark] > alone[mark])
            for of in (leading, trailing)
        ]
        parts = [word for word in counts if _ENDING.fullmatch(word) or _BEGINNING.fullmatch(word)]
        first = cls("edges", frozenset(parts), *attached)
        single = (word for word in counts if word not in first.whole and len(word.split()) == 1)
        cut = [word for word in single if len(first.split(word)) > 1]
        chosen = sorted(parts + cut, key=lambda word: (-counts[word], word))[:MOST]
        return cls("edges", frozenset(chosen), *attached)


def _split_spaces(text: str) -> list[Span]:
    return [match.span() for match in re.finditer(r"\S+", text)]


def split_characters(text: str) -> list[Span]:
    spans: list[Span] = []
    for first, last in split_words(text):
        start = first
        for place in range(first + 1, last):
            apart = UNSPACED.match(text[start]) or UNSPACED.match(text[place])
            if apart and not _is_mark(text[place]):
                spans.append((start, place))
                start = place
        spans.append((start, last))
    return spans


def _split_edges(splitter: Splitter, text: str) -> Iterable[Span]:
    def is_whole(first: int, last: int) -> bool:
        return last - first <= splitter.longest and text[first:last] in splitter.whole

    spans: list[Span] = []
    for first, last in _split_spaces(text):
        behind: list[Span] = []
        while first < last and not is_whole(first, last):
            if end := _leading_mark(text, first, last, splitter.leading, is_whole):
                spans.append((first, end))
                first = end
            elif start := _trailing_mark(text, first, last, splitter.trailing, is_whole):
                behind.append((start - 1, last))
                last = start - 1
            else:
                break
        spans += _split_apostrophe(text, first, last, is_whole)
        spans += reversed(behind)
    return spans


def _leading_mark(text: str, first: int, last: int, attached: frozenset[str], is_whole: IsWhole) -> int:
    """Returns where a mark at `first` that is no part of its word ends, 0 without one; several alike may be a word."""
    mark = text[first]
    if not _is_punctuation(mark) or mark in attached:
        return 0
    end = first + 1
    while end < last and end - first < RUN and text[end] == mark:
        end += 1
    if (end == last or text[end] != mark) and is_whole(first, end):
        return end
    end = first + 1
    while end < last and _is_mark(text[end]):
        end += 1
    return end


def _trailing_mark(text: str, first: int, last: int, attached: frozenset[str], is_whole: IsWhole) -> int:
    """Returns 1 more than where such a mark at the end begins, with its combining marks, 0 without one."""
    start = last - 1
    while start > first and _is_mark(text[start]):
        start -= 1
    mark = text[start]
    if not _is_punctuation(mark) or mark in attached:
        return 0
    run = last
    while run > first and last - run < RUN and text[run - 1] == mark:
        run -= 1
    if run < last and (run == first or text[run - 1] != mark) and is_whole(run, last):
        return run + 1
    return start + 1


def _split_apostrophe(text: str, first: int, last: int, is_whole: IsWhole) -> Iterable[Span]:
    """Yields the words of what is between `first` and `last`, where some may be `'s`, `n't` or `l'`."""
    place = first + 1
    while place < last - 1 and not is_whole(first, last):
        cuts = (place - 1, place, place + 1) if text[place] in _APOSTROPHES else ()
        known = (cut for cut in cuts if first < cut and is_whole(*((first, cut) if cut > place else (cut, last))))
        cut = next(known, None)
        if cut is not None:
            yield first, cut
            first, place = cut, max(place, cut)
        place += 1
    if first < last:
        yield first, last


SPLITTERS: Mapping[str, Callable[[Splitter, str], Iterable[Span]]] = {
    "punctuation": lambda _, text: split_words(text),
    "edges": _split_edges,
    "characters": lambda _, text: split_characters(text),
    "spaces": lambda _, text: _split_spaces(text),
}


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


def _is_punctuation(character: str) -> bool:
    return not (character.isalnum() or character == "_" or character.isspace() or _is_mark(character))


def split_letters(word: str) -> list[str]:
    """Returns the letters of a word of a language without spaces, and what is between them."""
    if not UNSPACED.search(word):
        return [word]
    return [word[start:end] for start, end in split_characters(word)]


def write_text(words: Sequence[str], *, attach: bool = False) -> tuple[str, tuple[Span, ...]]:
    """Returns words as a text, and the characters of each: with spaces between, except in languages without spaces.

    Args:
        attach: whether punctuation marks, `'s` and the like have no space on the side of the word they belong to.
    """
    parts: list[str] = []
    spans: list[Span] = []
    length = 0
    for number, word in enumerate(words):
        if number and not _touch(words[number - 1], word, attach=attach):
            parts.append(" ")
            length += 1
        spans.append((length, length + len(word)))
        parts.append(word)
        length += len(word)
    return "".join(parts), tuple(spans)


def _touch(before: str, word: str, *, attach: bool) -> bool:
    if _SOLID.match(before[-1]) or _SOLID.match(word[0]):
        return True
    if not attach:
        return False
    ends = word[0] in _CLOSING or _ENDING.fullmatch(word)
    return bool(ends or (before[-1] in _OPENING and len(before) == 1) or _BEGINNING.fullmatch(before))


def choose_splitter(
    sentences: Sequence[Sequence[str]], texts: Sequence[str | None], known: Sequence[Sequence[str]] | None = None
) -> Splitter:
    """Returns the splitter that finds most of the words of sentences in their texts.

    A sentence without a text has two: its words with spaces between, and as they are usually written. Of equal
    splitters the first one in `SPLITTERS` is taken.

    Args:
        known: the sentences whose words `edges` knows; None for the same.
    """
    edges = Splitter.fit_edges(sentences if known is None else known)
    candidates = [edges if name == edges.name else Splitter(name) for name in SPLITTERS]
    written = [
        form
        for words, text in zip(sentences, texts, strict=True)
        for form in (
            [(text, locate_in_text(words, text) or ())]
            if text is not None
            else [write_text(words), write_text(words, attach=True)]
        )
    ]
    return max(candidates, key=lambda splitter: _measure(splitter, written))


def _measure(splitter: Splitter, written: Sequence[tuple[str, Sequence[Span]]]) -> tuple[float, float]:
    """Returns the share of the words of texts that a splitter finds, and the share of the places where one starts."""
    right = starts = expected = 0
    for text, spans in written:
        found = splitter.split(text)
        right += len(set(found) & set(spans))
        starts += len({start for start, _ in found} & {start for start, _ in spans})
        expected += len(spans)
    return round(right / max(1, expected), 4), starts / max(1, expected)


def locate_in_text(words: Sequence[str], text: str) -> tuple[Span, ...] | None:
    """Returns the characters of each word in a text that has them in this order; None if it lacks one.

    What is between the words must be white space, so that the text is that of the words.
    """
    spans: list[Span] = []
    end = 0
    for word in words:
        start = text.find(word, end)
        if start < 0 or text[end:start].strip():
            return None
        end = start + len(word)
        spans.append((start, end))
    return None if text[end:].strip() else tuple(spans)


def place_words(words: Sequence[str], text: object) -> tuple[str, tuple[Span, ...]]:
    """Returns the text if it has these words, or else the text of the words, and the characters of each word."""
    spans = locate_in_text(words, text) if isinstance(text, str) else None
    return (str(text), spans) if spans is not None else write_text(words)
