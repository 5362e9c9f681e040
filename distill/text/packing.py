"""From documents to sequences of tokens, packed so that hardly one of them is padding."""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from distill.errors import UserError
from distill.sentences import split_sentences
from distill.text.corpus import Document
from distill.text.masking import IGNORED

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_AT_ONCE = 2**17  # Characters in one call of the tokenizer, which spreads their texts over the cores.
_ELSEWHERE = 1000  # Runs of sentences that are remembered, to take one of them for what does not follow.
_NEAR = 10  # So many runs back is elsewhere, in the same document too.
_FEWEST = 8  # Ordinary tokens at the end of a document that are worth a sequence of their own.
# Of a packer's state what is replaced and never changed in place.
_KEPT = ("tokens", "left_out", "_characters", "_last", "_document", "_held", "_began")


@dataclass(frozen=True)
class Sequence:
    """Token ids with the special ones, of a pair the token types and whether the second is true to its place (0)."""

    ids: np.ndarray
    types: np.ndarray | None = None
    pair_label: int = IGNORED


class Frame:
    """Where a tokenizer puts its special tokens around one text or two, and which of its tokens go on with a word.

    Raises:
        UserError: for a tokenizer that puts none there.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self.tokenizer = tokenizer
        self.separator = tokenizer.sep_token_id
        self._single, self._pair = self._around("a"), self._around("a", "b")
        if self.separator is None or not all((*self._single, *self._pair)):
            raise UserError(
                f"the tokenizer ({type(tokenizer).__name__}) marks no beginning or end of a text, which packing needs"
            )
        answer = tokenizer("a", "b")
        places = answer.encodings[0].sequence_ids
        # The types of that answer, and which of its tokens stand for a whole text, or for nothing else.
        self._types = np.array(answer["token_type_ids"], dtype=np.int8) if "token_type_ids" in answer else None
        self._special = np.array([place is None for place in places], dtype=np.int64)
        self._texts = [places.index(0), places.index(1)]

    def _around(self, *texts: str) -> list[list[int]]:
        """The special tokens before, between and behind these texts."""
        answer = self.tokenizer(*texts)
        found: list[list[int]] = [[] for _ in range(len(texts) + 1)]
        behind = 0
        for token, place in zip(answer["input_ids"], answer.encodings[0].sequence_ids, strict=True):
            if place is None:
                found[behind].append(token)
            else:
                behind = place + 1
        return found

    def single(self, ids: list[int]) -> np.ndarray:
        """One text with its special tokens."""
        before, behind = self._single
        return np.array([*before, *ids, *behind], dtype=np.int32)

    def pair(self, first: list[int], second: list[int]) -> tuple[np.ndarray, np.ndarray | None]:
        """Two texts with theirs, and the token types; None of a tokenizer that gives none."""
        before, between, behind = self._pair
        ids = np.array([*before, *first, *between, *second, *behind], dtype=np.int32)
        if self._types is None:
            return ids, None
        times = self._special.copy()
        times[self._texts] = len(first), len(second)
        return ids, np.repeat(self._types, times)

    def room(self, max_length: int, *, pair: bool = False) -> int:
        """Ordinary tokens of a sequence of this length."""
        return max_length - sum(map(len, self._pair if pair else self._single))

    @cached_property
    def continues(self) -> np.ndarray:
        """Of every token id whether it goes on with the word of the token before it, `[V]`.

        Raises:
            UserError: for a tokenizer whose tokens do not say so.
        """
        # Some vocabularies have numbers that no token has.
        names = [name or "" for name in self.tokenizer.convert_ids_to_tokens(list(range(len(self.tokenizer))))]
        inside = getattr(self.tokenizer.backend_tokenizer.model, "continuing_subword_prefix", None)
        if inside:
            return np.array([name.startswith(inside) for name in names])
        # Byte-pair vocabularies hold "##" too, so it is asked how a second word begins.
        second = self.tokenizer.backend_tokenizer.encode("a b", add_special_tokens=False).tokens[1:]
        for mark in ("Ġ", "▁"):
            if any(name.startswith(mark) for name in second):
                special = set(self.tokenizer.all_special_tokens)
                return np.array([not name.startswith(mark) and name not in special for name in names])
        raise UserError(
            f"the tokenizer ({type(self.tokenizer).__name__}) does not mark where words begin: take "
            "task.mask.unit=token"
        )


class Packer:
    """Cuts the tokens of documents into sequences of at most `max_length`.

    - `full_sentences`: texts one after the other, over the ends of documents too, with a separator there; each
      sequence is full to the last token, so a sentence may go on in the next one (arXiv 1907.11692, section 4.2, where
      sequences end with a sentence and are padded instead).
    - `doc_sentences`: the same, and no sequence reaches over the end of a document: its last is shorter.
    - `segment_pair`: two runs of sentences, of a random share of the room each, for the task `pair`: of `nsp` the
      second is in half of the cases from elsewhere (arXiv 1810.04805, section 3.1), of `sop` the two are in half of the
      cases in each other's place (arXiv 1909.11942, section 3.1); without it the second always follows.
    - `sentence`: each sentence alone, cut where it is longer.

    What looks like a special token in a text is text. `tokens` counts those that were read, `left_out` those of them
    that are in no sequence: cut from a pair or a sentence, and what is left at the end of a document or of them all.

    Raises:
        UserError: for a tokenizer without the special tokens that this needs.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        packing: str,
        max_length: int,
        pair: str | None,
        seed: int | tuple[int, ...],
    ) -> None:
        self.frame, self.packing, self.pair = Frame(tokenizer), packing, pair
        self.room = self.frame.room(max_length, pair=packing == "segment_pair")
        self.tokens = self.left_out = 0
        self._random = np.random.default_rng(seed)
        # A byte-pair tokenizer takes a word without a space before it for the rest of one.
        self._spaced = packing != "sentence" and self._marks_spaces()
        self._texts: list[tuple[str, str]] = []
        self._characters, self._last = 0, ""  # The document of the last text.
        self._document = ""  # That of the last tokens.
        self._held: list[int] = []
        self._began = False  # Whether a sequence ends within this document.
        self._waiting: list[list[int]] = []
        self._elsewhere: deque[tuple[str, int, list[list[int]]]] = deque(maxlen=_ELSEWHERE)

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on from here, in plain values; for between two documents."""
        kept: dict[str, Any] = {name: getattr(self, name) for name in _KEPT}
        lists = {"_texts": list(self._texts), "_waiting": list(self._waiting), "_elsewhere": list(self._elsewhere)}
        return {**kept, **lists, "_random": self._random.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another packer of this kind was."""
        for name in _KEPT:
            setattr(self, name, state[name])
        self._texts, self._waiting = list(state["_texts"]), list(state["_waiting"])
        self._elsewhere.clear()
        self._elsewhere.extend(state["_elsewhere"])
        self._random.bit_generator.state = state["_random"]

    def sequences(self, documents: Iterable[Document]) -> Iterator[Sequence]:
        """The sequences of these documents, in their order."""
        for document in documents:
            yield from self.add(document)
        yield from self.finish()

    def add(self, document: Document) -> Iterator[Sequence]:
        """The sequences that are full with one more document; its tokens may come with a later one."""
        by_sentence = self.packing in ("segment_pair", "sentence")
        for paragraph in _paragraphs(document.text):
            for text in filter(None, split_sentences(paragraph)) if by_sentence else (paragraph,):
                goes_on = self._spaced and document.key == self._last
                self._last = document.key
                self._texts.append((document.key, f" {text}" if goes_on else text))
                self._characters += len(text)
                if self._characters >= _AT_ONCE:
                    yield from self._packed()

    def finish(self) -> Iterator[Sequence]:
        """The sequences that are left; what does not fill one is left out."""
        yield from self._packed()
        if self.packing == "full_sentences":
            self.left_out += len(self._held)
            self._held = []
        else:
            yield from self._end()

    def _packed(self) -> Iterator[Sequence]:
        """The sequences of the texts that were gathered."""
        texts, self._texts, self._characters = self._texts, [], 0
        for (key, _), ids in zip(texts, self._encoded([text for _, text in texts]), strict=True):
            if not ids:
                continue
            if self._document not in ("", key):
                yield from self._end()
            self._document = key
            self.tokens += len(ids)
            if self.packing == "sentence":
                self.left_out += max(0, len(ids) - self.room)
                yield Sequence(self.frame.single(ids[: self.room]))
            elif self.packing == "segment_pair":
                # One that is far longer than the rest comes in pieces that fill a pair.
                size = len(ids) if len(ids) <= self.room // 2 else -(-self.room // 4)
                for first in range(0, len(ids), size):
                    self._waiting.append(ids[first : first + size])
                    yield from self._pairs(to_the_end=False)
            else:
                yield from self._runs(ids)

    def _end(self) -> Iterator[Sequence]:
        """What is to be done where a document ends."""
        if self.packing == "full_sentences":
            yield from self._runs([self.frame.separator])
        elif self.packing == "segment_pair":
            yield from self._pairs(to_the_end=True)
            self.left_out += sum(map(len, self._waiting))
            self._waiting.clear()
        elif self._held:
            if len(self._held) >= _FEWEST or not self._began:
                yield Sequence(self.frame.single(self._held))
            else:
                self.left_out += len(self._held)
            self._held = []
        self._began = False

    def _runs(self, ids: list[int]) -> Iterator[Sequence]:
        held = self._held + ids
        full = len(held) - len(held) % self.room
        self._held = held[full:]
        self._began |= full > 0
        for first in range(0, full, self.room):
            yield Sequence(self.frame.single(held[first : first + self.room]))

    def _pairs(self, *, to_the_end: bool) -> Iterator[Sequence]:
        """Pairs out of the sentences that wait, which it takes from there."""
        waiting = self._waiting
        while len(waiting) >= 2 and (to_the_end or sum(map(len, waiting)) >= self.room):
            used = max(2, _reaching(waiting, self.room))
            cut = int(self._random.integers(1, used))
            first, second, label = waiting[:cut], waiting[cut:used], 0
            if self.pair == "nsp":
                if self._random.random() < 0.5 and (elsewhere := self._from_elsewhere(first, second)):
                    label, second = 1, elsewhere
                self._elsewhere.append((self._document, sum(map(len, waiting[:used])), waiting[:used]))
            elif self.pair == "sop" and self._random.random() < 0.5:
                label, first, second = 1, second, first
            borrowed = self.pair == "nsp" and label == 1
            del waiting[: cut if borrowed else used]  # What should have followed comes next.
            one, two = list(itertools.chain(*first)), list(itertools.chain(*second))
            # Both cut to the room there is, the longer one first.
            size = min(len(one), max(self.room - len(two), self.room - self.room // 2))
            self.left_out += len(one) - size + (0 if borrowed else max(0, len(two) - (self.room - size)))
            ids, types = self.frame.pair(one[:size], two[: self.room - size])
            yield Sequence(ids, types, label if self.pair else -100)

    def _from_elsewhere(self, first: list[list[int]], second: list[list[int]]) -> list[list[int]] | None:
        """Sentences out of another document, or from far back in this one; None where there are none yet.

        They fill the pair as much as those that follow would, or their number would give them away.
        """
        taken = sum(map(len, first))
        missing = min(sum(map(len, second)), max(1, self.room - taken))
        far = len(self._elsewhere) - _NEAR
        for index in self._random.permutation(len(self._elsewhere)).tolist():
            document, size, run = self._elsewhere[index]
            if (document != self._document or index < far) and size >= missing:
                return run[: _reaching(run, missing)]
        return None

    def _encoded(self, texts: list[str]) -> list[list[int]]:
        backend = self.frame.tokenizer.backend_tokenizer
        # Whoever called it last may have left these behind; they would cut and pad.
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True
        found = backend.encode_batch_fast(texts, add_special_tokens=False)
        backend.encode_special_tokens = False
        return [encoding.ids for encoding in found]

    def _marks_spaces(self) -> bool:
        """Whether a text goes on with the tokens of the next one only if that begins with a space."""
        both, first, bare, spaced = self._encoded(["a b", "a", "b", " b"])
        return both == first + spaced != first + bare


def _reaching(sentences: list[list[int]], size: int) -> int:
    """How many of the sentences it takes to have so many tokens, or all."""
    sizes = itertools.accumulate(map(len, sentences))
    return next((number for number, reached in enumerate(sizes, 1) if reached >= size), len(sentences))


def _paragraphs(text: str) -> Iterator[str]:
    """What blank lines separate, each on one line."""
    lines: list[str] = []
    for line in text.splitlines():
        if words := line.split():
            lines.append(" ".join(words))
        elif lines:
            yield " ".join(lines)
            lines = []
    if lines:
        yield " ".join(lines)
