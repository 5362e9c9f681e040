"""The contract of decoders, and what they share: cuts to the tokens of a model, masks, choices, and probabilities.

Cuts texts to the tokens that a model reads, as `tokenizers` does, without building what is cut off. `tokenizers`
returns the parts that it cuts off too, for two texts in every combination, and it tokenizes a text to its end. Here a
long text is tokenized only as far as needed, and the tokens that do not fit are left out.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from distill.core.errors import UserError, check_text, shorten
from distill.edge.values import Rule, check_values
from distill.edge.words import CutEncoding, Span

MASKED = float(np.finfo(np.float32).min)  # The logit of a class that an item cannot have.


def pad_classes(values: NDArray[np.generic], width: int, filler: float = MASKED) -> NDArray[np.generic]:
    """Returns `[n, C]` as `[n, width]`, filled up with `filler`."""
    return np.pad(values, ((0, 0), (0, width - values.shape[-1])), constant_values=filler)


def softmax(logits: NDArray[np.floating]) -> NDArray[np.floating]:
    """Returns the probabilities along the last axis of `logits [..., C]`."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    exponentials = np.exp(shifted)
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))


def sigmoid(logits: NDArray[np.floating]) -> NDArray[np.floating]:
    """Returns the probability of each of `logits [...]`, the log-odds of a label."""
    return np.asarray(np.exp(-np.logaddexp(0.0, -logits)))


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Answer(NamedTuple):
    """The answer of an example as the data has it, its choices, and their names, such as A to D, if they have names."""

    value: object
    choices: Sequence[str]
    names: Sequence[str] | None = None


def split_choices(value: object) -> tuple[list[object], list[object] | None]:
    """Returns the texts and the names of choices, whatever their types are.

    The value is a list of texts, one of `{"text", "label"}`, or `{"text": [...], "label": [...]}` as the Hub has it.
    """
    if isinstance(value, Mapping) and isinstance(value.get("text"), list):
        names = value.get("label")
        return value["text"], names if isinstance(names, list) else None
    if not isinstance(value, list | tuple):
        return [], None
    entries = list(value)
    if entries and all(isinstance(entry, Mapping) for entry in entries):
        return [entry.get("text") for entry in entries], [entry.get("label") for entry in entries]
    return entries, None


def join_choices(entries: Iterable[object]) -> list[object]:
    """Returns the choices out of one column for each; empty columns at the end of a row are no choices."""
    choices = list(entries)
    while choices and (choices[-1] is None or (isinstance(choices[-1], str) and not choices[-1].strip())):
        choices.pop()
    return choices


def choose_reading(answers: Iterable[Answer], usual: str | None = None) -> str:
    """Returns the name of the first reading that finds the most answers.

    Args:
        usual: the reading to take if it finds every answer.
    """
    answers = list(answers)
    has_names = any(answer.names is not None for answer in answers)
    names = [name for name in READINGS if has_names or name != "name"]
    names.sort(key=lambda name: name != usual)
    return max(names, key=lambda name: sum(READINGS[name](answer) is not None for answer in answers))


def other_reading(answers: Iterable[Answer], reading: str) -> str | None:
    """Returns the name of another reading that finds every answer too, and another choice for some; None without."""
    answers = list(answers)
    taken = [READINGS[reading](answer) for answer in answers]
    for name, read in READINGS.items():
        found = [read(answer) for answer in answers]
        if None not in found and found != taken:
            return name
    return None


def describe_expected(answer: Answer, reading: str) -> str:
    """Returns which answers of an example a reading understands."""
    choices = answer.choices
    return {
        "name": f"one of the names {', '.join(answer.names or ())}",
        "index": f"an index from 0 to {len(choices) - 1}",
        "number": f"a number from 1 to {len(choices)}",
        "letter": f"a letter from A to {LETTERS[min(len(choices), len(LETTERS)) - 1]}",
        "text": f"the text of one of {shorten(list(choices))}",
    }[reading]


def _as_name(answer: Answer) -> int | None:
    names = answer.names
    return names.index(str(answer.value)) if names is not None and str(answer.value) in names else None


def _as_index(answer: Answer) -> int | None:
    number = _to_integer(answer.value)
    return number if number is not None and 0 <= number < len(answer.choices) else None


def _as_number(answer: Answer) -> int | None:
    number = _to_integer(answer.value)
    return number - 1 if number is not None and 1 <= number <= len(answer.choices) else None


def _as_letter(answer: Answer) -> int | None:
    value = answer.value
    index = LETTERS.find(value.strip().upper()) if isinstance(value, str) and len(value.strip()) == 1 else -1
    return index if 0 <= index < len(answer.choices) else None


def _as_text(answer: Answer) -> int | None:
    value, choices = answer.value, list(answer.choices)
    return choices.index(value) if isinstance(value, str) and choices.count(value) == 1 else None


def _to_integer(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return int(number) if number.is_integer() else None


# Each returns the index of a choice, or None. The first one that has an index for every answer is taken: a text that is
# one of the choices is hardly there by chance, while every small number is an index.
READINGS: Mapping[str, Callable[[Answer], int | None]] = {
    "name": _as_name, "text": _as_text, "index": _as_index, "number": _as_number, "letter": _as_letter,
}  # fmt: skip


@dataclass(frozen=True)
class SequenceTokens:
    """The tokens of a sequence that a model reads: `ids`, `type_ids` and `attention_mask`, `[tokens]` each."""

    ids: Sequence[int]
    type_ids: Sequence[int]
    attention_mask: Sequence[int]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class MaskedTokens(SequenceTokens):
    """A row of a model that predicts tokens: those of a text with masks, or a sequence with tokens to predict.

    Attributes:
        positions: of the tokens that are predicted, `[m]`, in ascending order.
        spans: the characters of each mask in the text, `[m]`; empty without a text.
    """

    positions: Sequence[int]
    spans: Sequence[Span] = ()

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
        chosen = set[int]()
        for own, number in zip(known, cut_lengths(counts, room), strict=True):
            chosen.update(own[len(own) - number :] if self.side == "left" else own[:number])
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
    return split_inputs(inputs, count_characters, most=CHARACTERS_PER_CALL, number=TEXTS_PER_CALL)


def split_inputs(
    inputs: Iterable[T], count: Callable[[T], int], *, most: int, number: int = sys.maxsize
) -> Iterator[list[T]]:
    """Yields the inputs in their order, together at most `number` of them whose sizes sum to at most `most`, or one.

    Args:
        count: returns the size of an input.
    """
    chunk: list[T] = []
    total = 0
    for each in inputs:
        size = count(each)
        if chunk and (total + size > most or len(chunk) == number):
            yield chunk
            chunk, total = [], 0
        chunk.append(each)
        total += size
    if chunk:
        yield chunk


Floats = NDArray[np.floating]


@dataclass(frozen=True)
class SourceTokens(SequenceTokens):
    """The row of a model with an encoder: the tokens of a source `[L]`, and those of its target or decoder `[T]`.

    In a record `target` are the tokens of the target, in a row those that the decoder reads to predict them.
    """

    target: Sequence[int]

    @classmethod
    def add(cls, source: Any, target: Sequence[int], **values: Any) -> Self:
        """Returns the tokens of a source, with the attributes of `tokenizers.Encoding`, and of a target."""
        return cls(source.ids, source.type_ids, source.attention_mask, target, **values)


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


# The sequences of one row of logits: one, or one for each choice or text. Each has a length, and the `ids`, `type_ids`
# and `attention_mask` of its tokens.
Row = Sequence[Any]


class Limits(NamedTuple):
    """The tokens of a sequence.

    Attributes:
        max_length: of a sequence, at most.
        doc_stride: that neighbouring windows share.
        side: the end of a text that is cut, `right` or `left`.
    """

    max_length: int
    doc_stride: int | None
    side: str


# Inputs of a model besides those of its sequences.
POSITIONS = "positions"  # Of tokens that are predicted.
TARGET = "decoder_input_ids"  # The tokens that the decoder of an encoder-decoder reads.
TARGET_MASK = "decoder_attention_mask"  # Of one that fills targets, which reads them from both sides.
SEVERAL = range(2, sys.maxsize)  # The numbers of labels of a task with classes.


class Decoder:
    """Reads the records of one kind of task and decodes the logits of a model.

    The default bodies are those of a text or a pair of texts that is one row of the model, with one item.

    Attributes:
        label_counts: the numbers of labels that a task can have.
        fields: the keys of a prediction; the first one is null where the model abstains.
        input_axes: number of axes of the model's inputs.
        axes: number of axes of the model's logits.
        cuts: whether `cut` makes the rows of an example, because it may not be cut anywhere as by the tokenizer.
        classes_are_tokens: whether the classes are the tokens of a text, so that logits of another tokenizer cannot be
            compared.
        encodes: whether the logits are the vector of a text, whose width has nothing to do with labels.
        at_positions: whether the model has a further input `positions [n]`, of tokens counted over the batch `[B * L]`,
            and `logits [n, V]` at these alone. The sequences of a row have `positions` then.
        generates: whether the model writes text: its classes are the tokens of the vocabulary, at every token.
        targets: whether the logits are those of a `target`, which the sequences of a row have then.
        finds_entities: whether a prediction has entities, spans of a text with a type.
        ranks: whether the rows of a record are its documents, whose scores together are the logits of one item.

        rules: of the values of `decoding`, as `check_values` takes them.

    Args:
        labels, pair, decoding: the fields of bundle.json.

    Raises:
        UserError: if `decoding` lacks a value or has an invalid one.
    """

    label_counts = range(1)
    fields: tuple[str, ...]
    input_axes = 2
    axes = 2
    cuts = False
    classes_are_tokens = False
    encodes = False
    at_positions = False
    generates = False
    targets = False
    finds_entities = False
    ranks = False
    rules: Mapping[str, Rule] = {}

    def __init__(self, labels: Sequence[str], pair: bool, decoding: Mapping[str, Any], tokenizer: Tokenizer) -> None:
        self.labels, self.pair, self.tokenizer = list(labels), pair, tokenizer
        check_values("decoding", decoding, self.rules)
        self.configure(decoding)

    def configure(self, decoding: Mapping[str, Any]) -> None:
        """Takes the values that the decoder needs; raises UserError for one that `rules` cannot judge."""

    def list_inputs(self) -> list[str]:
        """Returns the names of the model's inputs besides those of its sequences."""
        own = {
            POSITIONS: self.at_positions, TARGET: self.targets, TARGET_MASK: self.at_positions and self.targets
        }  # fmt: skip
        return [name for name, is_input in own.items() if is_input]

    def parse(self, line: str) -> Record:
        """Returns the record of a line of plain text; raises UserError if it has another form."""
        return split_pair(line) if self.pair else line

    def read(self, record: Record) -> Example:
        """Returns the record as an example; raises UserError if it has another form."""
        if self.pair and isinstance(record, list | tuple) and len(record) == 2:
            first, second = record
            if isinstance(first, str) and isinstance(second, str):
                return Example(check_text(first), check_text(second))
        if not self.pair and isinstance(record, str):
            return Example(check_text(record))
        raise UserError(f"got {shorten(record)}, expected {'two texts' if self.pair else 'a text'}")

    def cut(self, example: Example, row: Row, limits: Limits) -> list[Row]:
        """Returns the rows of an example, with sequences of at most `limits.max_length` tokens.

        Args:
            row: the sequences of the whole example, with the attributes of `tokenizers.Encoding`.

        Raises:
            TooLongError: with the reason in words, if what must not be cut is too long.
            ValueError: with the reason in words, if there can be no row otherwise.
        """
        return [row]

    def select(self, example: Example, row: Row, logits: Floats) -> Items:
        """Returns the items of a row, from logits `[K, C]` of its sequences or `[K, tokens, C]` without padding."""
        return None, logits

    def truncated_item(self) -> Floats | None:
        """Returns logits `[C]` with the prediction of an item that was truncated; None if no item can be."""
        return None

    def decode(self, example: Example, rows: Sequence[Items]) -> Prediction:
        """Returns the prediction from the items of all rows of a record."""
        raise TypeError(f"{type(self).__name__} has no decode(example, rows)")

    def format(self, prediction: Prediction) -> str:
        """Returns the prediction as one line, in which line breaks and tabs of its texts are escaped."""
        raise TypeError(f"{type(self).__name__} has no format(prediction)")


def split_pair(line: str) -> list[str]:
    """Returns the two texts of a line of plain text; raises UserError for another number of them."""
    parts = line.split("\t")
    if len(parts) != 2:
        raise UserError(f"got {shorten(line)}, expected two texts with a tab between them")
    return parts


def most_probable(labels: Sequence[str], logits: Floats) -> Prediction:
    """Returns the likeliest of the labels by `logits [1, C]`, with its probability and those of all labels."""
    row = softmax(logits[0].astype(np.float64))
    best = int(row.argmax())
    probabilities = dict(zip(labels, row.tolist(), strict=True))
    return {"label": labels[best], "probability": float(row[best]), "probabilities": probabilities}


def pair_choices(question: str, context: str | None, choices: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields the two texts of each choice: the question and the choice, or the context and both of them.

    An empty context is none.
    """
    for choice in choices:
        yield (context, f"{question} {choice}") if context else (question, choice)
