"""Packing of documents into token sequences with hardly any padding."""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from distill.core.contracts import IGNORED
from distill.core.errors import UserError
from distill.data.prose import split_sentences
from distill.text.corpus import Document

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_NO_SIZES = np.zeros((0, 2), dtype=np.int32)
SIZE_COLUMNS = ("text_bytes", "text_words")  # Of the tokens of dev, where none is masked.
_BATCH_CHARACTERS = 2**17  # Per call of the tokenizer, which processes the texts of a call in parallel.
_MAX_NEGATIVES = 1000  # Runs of sentences in memory, from which the second segment of a negative is drawn.
_MIN_DISTANCE = 10  # Runs between the segments of an nsp negative from one document.
_MIN_LAST_TOKENS = 8  # Ordinary tokens at the end of a document that make a separate sequence.
# Tasks of segment pairs: the shares of pairs whose second segment is from elsewhere, and of those that are swapped.
PAIRS: dict[str | None, tuple[float, float]] = {
    None: (0.0, 0.0), "nsp": (0.5, 0.0), "sop": (0.0, 0.5), "three_way": (1 / 3, 1 / 3),
}  # fmt: skip
# Keys in checkpoints and the attributes that hold their values. These values are replaced, never changed in place.
_STATE_ATTRIBUTES = {
    "tokens": "token_count",
    "left_out": "dropped_token_count",
    "_characters": "_text_characters",
    "_last": "_last_text_key",
    "_document": "_document_key",
    "_held": "_pending_ids",
    "_began": "_document_has_sequence",
}


@dataclass(frozen=True)
class TokenSequence:
    """Token ids of a sequence with special tokens.

    Args:
        ids: token ids, `[L]`.
        type_ids: token types of a segment pair, `[L]`.
        pair_label: 0 if the second segment of the pair follows the first one in the text, 1 if not. With `three_way`
            1 is for a second segment that precedes the first one, and 2 for one of another document.
        sizes: UTF-8 bytes of the text that end with each token and words that begin in them, `[L, 2]`, of a packer that
            measures.
    """

    ids: np.ndarray
    type_ids: np.ndarray | None = None
    pair_label: int = IGNORED
    sizes: np.ndarray | None = None

    def columns(self) -> dict[str, np.ndarray]:
        """Returns the columns `[L]` of its tokens."""
        columns = {"input_ids": self.ids}
        if self.type_ids is not None:
            columns["token_type_ids"] = self.type_ids
        if self.sizes is not None:
            columns |= dict(zip(SIZE_COLUMNS, self.sizes.T, strict=True))
        return columns


class SpecialTokens:
    """The special tokens that a tokenizer adds to one text or a pair of texts.

    Args:
        wraps: whether every sequence needs special tokens around it. Those of a causal language model need none, and
            its documents may be separated by the end-of-text token alone.

    Raises:
        UserError: if the tokenizer adds none at the beginning or the end, or has none between documents.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", *, wraps: bool = True) -> None:
        separator = find_separator(tokenizer)
        self._single, self._pair = _find_special_tokens(tokenizer, "a"), _find_special_tokens(tokenizer, "a", "b")
        if wraps and (tokenizer.sep_token_id is None or not all((*self._single, *self._pair))):
            raise UserError(
                f"the tokenizer ({type(tokenizer).__name__}) adds no special tokens around a text, which packing "
                "needs: use a tokenizer whose post-processor adds them"
            )
        if separator is None:
            raise UserError(
                f"the tokenizer ({type(tokenizer).__name__}) has no token for the end of a text (eos_token), which "
                "packing puts between documents: use a tokenizer that has one"
            )
        self.separator = separator
        encoded = tokenizer("a", "b")
        text_indices = encoded.encodings[0].sequence_ids
        # Token types of this pair, and how often each is repeated for other texts.
        self._type_ids = np.array(encoded["token_type_ids"], dtype=np.int8) if "token_type_ids" in encoded else None
        self._repeats = np.array([index is None for index in text_indices], dtype=np.int64)
        self._text_positions = [text_indices.index(0), text_indices.index(1)]

    def wrap_text(self, ids: list[int]) -> np.ndarray:
        """Returns the ids of a text with special tokens."""
        before, after = self._single
        return np.array([*before, *ids, *after], dtype=np.int32)

    def wrap_sizes(self, sizes: np.ndarray) -> np.ndarray:
        """Returns the sizes `[n, 2]` of the tokens of a text with those of special tokens, which are 0."""
        before, after = self._single
        return np.pad(sizes, ((len(before), len(after)), (0, 0)))

    def wrap_pair(self, first: list[int], second: list[int]) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns the ids of two texts with special tokens, and their token types if the tokenizer has them."""
        before, between, after = self._pair
        ids = np.array([*before, *first, *between, *second, *after], dtype=np.int32)
        if self._type_ids is None:
            return ids, None
        repeats = self._repeats.copy()
        repeats[self._text_positions] = len(first), len(second)
        return ids, np.repeat(self._type_ids, repeats)

    def compute_capacity(self, max_length: int, *, pair: bool = False) -> int:
        """Returns the number of ordinary tokens in a sequence of `max_length` tokens."""
        return max_length - sum(map(len, self._pair if pair else self._single))


def _find_special_tokens(tokenizer: "PreTrainedTokenizerBase", *texts: str) -> list[list[int]]:
    """Returns the special tokens before, between and after the texts."""
    encoded = tokenizer(*texts)
    special_ids: list[list[int]] = [[] for _ in range(len(texts) + 1)]
    texts_before = 0
    for token, text_index in zip(encoded["input_ids"], encoded.encodings[0].sequence_ids, strict=True):
        if text_index is None:
            special_ids[texts_before].append(token)
        else:
            texts_before = text_index + 1
    return special_ids


def find_separator(tokenizer: "PreTrainedTokenizerBase") -> int | None:
    """Returns the id of the token between documents: the separator, or of a tokenizer without one the end of a text."""
    separator: int | None = tokenizer.sep_token_id
    return tokenizer.eos_token_id if separator is None else separator


def find_continuations(tokenizer: "PreTrainedTokenizerBase") -> np.ndarray:
    """Returns for each token id whether it continues the word of the token before it, `[V]`.

    Raises:
        UserError: if the vocabulary does not distinguish such tokens.
    """
    # Some vocabularies have ids without a token.
    names = [name or "" for name in tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))]
    prefix = getattr(tokenizer.backend_tokenizer.model, "continuing_subword_prefix", None)
    if prefix:
        return np.array([name.startswith(prefix) for name in names])
    # Byte-pair vocabularies contain "##" as well, so the marker is read from the second word of a text.
    second_word = tokenizer.backend_tokenizer.encode("a b", add_special_tokens=False).tokens[1:]
    for marker in ("Ġ", "▁"):
        if any(name.startswith(marker) for name in second_word):
            special = set(tokenizer.all_special_tokens)
            return np.array([not name.startswith(marker) and name not in special for name in names])
    raise UserError(
        f"the tokenizer ({type(tokenizer).__name__}) does not mark where words begin: set task.mask.unit=token"
    )


class Packer:
    """Packs the tokens of documents into sequences of at most `max_length` tokens.

    Args:
        packing: the kind of sequences:

            - `full_sentences`: consecutive texts, with a separator between documents. Every sequence has the maximum
              length, so a sentence may continue in the next one (arXiv 1907.11692, section 4.2, where sequences end
              with a sentence and are padded instead).
            - `doc_sentences`: the same within one document. The last sequence of a document is shorter.
            - `segment_pair`: two runs of sentences, which share the sequence in random proportions.
            - `sentence`: one sentence, truncated to the maximum length.
        pair: the task of segment pairs, `nsp`, `sop` or `three_way` (`_pack_pairs`), or None.
        measures: whether sequences have the `sizes` of their tokens, but for segment pairs.

    Special tokens that occur in a text are tokenized as text. With `wraps` every sequence needs special tokens around
    it.

    Raises:
        UserError: if the tokenizer does not have the special tokens.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        packing: str,
        max_length: int,
        pair: str | None,
        seed: int | tuple[int, ...],
        wraps: bool = True,
        measures: bool = False,
    ) -> None:
        self.packing, self.pair, self.measures = packing, pair, measures
        # Tokens read, and those of them in no sequence: truncated from a pair or a sentence, or too few for a sequence
        # at the end of a document or of the corpus.
        self.token_count = self.dropped_token_count = 0
        self._tokenizer, self._special = tokenizer, SpecialTokens(tokenizer, wraps=wraps)
        self._capacity = self._special.compute_capacity(max_length, pair=packing == "segment_pair")
        self._random = np.random.default_rng(seed)
        # A byte-pair tokenizer would join a text without a space before it to the last word.
        self._add_spaces = packing != "sentence" and self._needs_spaces()
        self._texts: list[tuple[str, str]] = []  # Keys of documents and texts that are not tokenized yet.
        self._text_characters = 0
        self._last_text_key = ""
        self._document_key = ""  # The document of the last tokens.
        self._pending_ids: list[int] = []
        self._pending_sizes = _NO_SIZES  # Of the pending tokens, in a packer that measures.
        self._document_has_sequence = False
        self._sentences: list[list[int]] = []  # Sentences that are not part of a pair yet.
        self._negatives: deque[tuple[str, int, list[list[int]]]] = deque(maxlen=_MAX_NEGATIVES)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state between two documents in plain values, for `load_state_dict`."""
        state: dict[str, Any] = {key: getattr(self, name) for key, name in _STATE_ATTRIBUTES.items()}
        lists = {"_texts": list(self._texts), "_waiting": list(self._sentences), "_elsewhere": list(self._negatives)}
        return {**state, **lists, "_random": self._random.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state of another packer with the same arguments."""
        for key, name in _STATE_ATTRIBUTES.items():
            setattr(self, name, state[key])
        self._texts, self._sentences = list(state["_texts"]), list(state["_waiting"])
        self._negatives.clear()
        self._negatives.extend(state["_elsewhere"])
        self._random.bit_generator.state = state["_random"]

    def pack_documents(self, documents: Iterable[Document]) -> Iterator[TokenSequence]:
        """Yields the sequences of all documents in order."""
        for document in documents:
            yield from self.add_document(document)
        yield from self.finish()

    def add_document(self, document: Document) -> Iterator[TokenSequence]:
        """Adds a document and yields the completed sequences. Its own tokens may come with a later document."""
        by_sentence = self.packing in ("segment_pair", "sentence")
        for paragraph in _split_paragraphs(document.text):
            for text in filter(None, split_sentences(paragraph)) if by_sentence else (paragraph,):
                needs_space = self._add_spaces and document.key == self._last_text_key
                self._last_text_key = document.key
                self._texts.append((document.key, f" {text}" if needs_space else text))
                self._text_characters += len(text)
                if self._text_characters >= _BATCH_CHARACTERS:
                    yield from self._pack_texts()

    def finish(self) -> Iterator[TokenSequence]:
        """Yields the remaining sequences and drops the tokens of an incomplete one."""
        yield from self._pack_texts()
        if self.packing == "full_sentences":
            self.dropped_token_count += len(self._pending_ids)
            self._pending_ids, self._pending_sizes = [], _NO_SIZES
        else:
            yield from self._end_document()

    def _pack_texts(self) -> Iterator[TokenSequence]:
        """Tokenizes the collected texts and yields their sequences."""
        texts, self._texts, self._text_characters = self._texts, [], 0
        for (key, text), encoding in zip(texts, self._encode([text for _, text in texts]), strict=True):
            ids, sizes = encoding.ids, _NO_SIZES
            if not ids:
                continue
            if self.measures:
                sizes = measure_tokens(text, encoding.offsets, joined=self._document_key == key)
            if self._document_key not in ("", key):
                yield from self._end_document()
            self._document_key = key
            self.token_count += len(ids)
            if self.packing == "sentence":
                self.dropped_token_count += max(0, len(ids) - self._capacity)
                yield self._wrap(ids[: self._capacity], sizes[: self._capacity])
            elif self.packing == "segment_pair":
                # A sentence of more than half a sequence is split into pieces that fill a pair.
                size = len(ids) if len(ids) <= self._capacity // 2 else -(-self._capacity // 4)
                for start in range(0, len(ids), size):
                    self._sentences.append(ids[start : start + size])
                    yield from self._pack_pairs(use_all=False)
            else:
                yield from self._pack_full(ids, sizes)

    def _end_document(self) -> Iterator[TokenSequence]:
        """Yields the sequences that end with the document, and drops its remaining tokens."""
        if self.packing == "full_sentences":
            yield from self._pack_full([self._special.separator], np.zeros((1, 2), dtype=np.int32))
        elif self.packing == "segment_pair":
            yield from self._pack_pairs(use_all=True)
            self.dropped_token_count += sum(map(len, self._sentences))
            self._sentences.clear()
        elif self._pending_ids:
            if len(self._pending_ids) >= _MIN_LAST_TOKENS or not self._document_has_sequence:
                yield self._wrap(self._pending_ids, self._pending_sizes)
            else:
                self.dropped_token_count += len(self._pending_ids)
            self._pending_ids, self._pending_sizes = [], _NO_SIZES
        self._document_has_sequence = False

    def _pack_full(self, ids: list[int], sizes: np.ndarray) -> Iterator[TokenSequence]:
        """Adds ids and their sizes to the pending ones and yields the full sequences."""
        pending = self._pending_ids + ids
        sizes = np.concatenate([self._pending_sizes, sizes]) if self.measures else _NO_SIZES
        full = len(pending) - len(pending) % self._capacity
        self._pending_ids, self._pending_sizes = pending[full:], sizes[full:]
        self._document_has_sequence |= full > 0
        for start in range(0, full, self._capacity):
            last = start + self._capacity
            yield self._wrap(pending[start:last], sizes[start:last])

    def _wrap(self, ids: list[int], sizes: np.ndarray) -> TokenSequence:
        """Returns the sequence of the tokens of one text, with special tokens."""
        wrapped = self._special.wrap_sizes(sizes) if self.measures else None
        return TokenSequence(self._special.wrap_text(ids), sizes=wrapped)

    def _pack_pairs(self, *, use_all: bool) -> Iterator[TokenSequence]:
        """Yields pairs that fill a sequence, or with `use_all` also shorter ones.

        `nsp`: the second segment of half of the pairs does not follow the first (arXiv 1810.04805, section 3.1).
        `sop`: the segments of half of the pairs are swapped (arXiv 1909.11942, section 3.1).
        `three_way`: the segments of a third are swapped, and the second one of a third is of another document
        (arXiv 1908.04577, section 2.2).
        None: the second segment always follows the first.
        """
        sentences = self._sentences
        replaced, swapped = PAIRS[self.pair]
        while len(sentences) >= 2 and (use_all or sum(map(len, sentences)) >= self._capacity):
            used = max(2, _count_sentences(sentences, self._capacity))
            cut = int(self._random.integers(1, used))
            first, second, label = sentences[:cut], sentences[cut:used], 0
            draw = 1.0 if self.pair is None else self._random.random()
            negative = self._draw_negative(first, second) if draw < replaced else None
            if negative:
                label, second = 2 if swapped else 1, negative
            elif replaced <= draw < replaced + swapped:
                label, first, second = 1, second, first
            if replaced:
                self._negatives.append((self._document_key, sum(map(len, sentences[:used])), sentences[:used]))
            del sentences[: cut if negative else used]  # A replaced second segment begins the next pair.
            first_ids, second_ids = list(itertools.chain(*first)), list(itertools.chain(*second))
            # Truncates the longer segment first.
            size = min(len(first_ids), max(self._capacity - len(second_ids), self._capacity - self._capacity // 2))
            self.dropped_token_count += len(first_ids) - size
            if not negative:
                self.dropped_token_count += max(0, len(second_ids) - (self._capacity - size))
            ids, type_ids = self._special.wrap_pair(first_ids[:size], second_ids[: self._capacity - size])
            yield TokenSequence(ids, type_ids, label if self.pair else IGNORED)

    def _draw_negative(self, first: list[list[int]], second: list[list[int]]) -> list[list[int]] | None:
        """Draws sentences from another document or, for `nsp`, far back in this one; None if there are none yet.

        They fill the pair as much as `second` would, because their length would reveal the label otherwise.
        """
        missing = min(sum(map(len, second)), max(1, self._capacity - sum(map(len, first))))
        far = len(self._negatives) - _MIN_DISTANCE if self.pair == "nsp" else 0
        for index in self._random.permutation(len(self._negatives)).tolist():
            key, size, sentences = self._negatives[index]
            if (key != self._document_key or index < far) and size >= missing:
                return sentences[: _count_sentences(sentences, missing)]
        return None

    def _encode(self, texts: list[str]) -> list[Any]:
        """Returns the encodings of the texts, with offsets in a packer that measures."""
        backend = self._tokenizer.backend_tokenizer
        # The last call of the tokenizer may have set truncation and padding.
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True
        encode = backend.encode_batch if self.measures else backend.encode_batch_fast
        encodings: list[Any] = encode(texts, add_special_tokens=False)
        backend.encode_special_tokens = False
        return encodings

    def _needs_spaces(self) -> bool:
        """Returns whether joined texts have the tokens of separate ones only with a space between them."""
        ids: list[list[int]] = [encoding.ids for encoding in self._encode(["a b", "a", "b", " b"])]
        both, first, without_space, with_space = ids
        return both == first + with_space != first + without_space


def measure_tokens(text: str, offsets: Sequence[tuple[int, int]], *, joined: bool) -> np.ndarray:
    """Returns for each token the UTF-8 bytes of the text that end with it, and the words that begin in them, `[n, 2]`.

    A token has the text from the end of the one before it to its own end, and the last one all that is left. Their sums
    are thus those of the text, whatever the tokenizer changes or leaves out.

    Args:
        text: whose words are separated by single spaces.
        offsets: first character and end of each token.
        joined: whether a line break is between the text before and this one, which then has its byte.
    """
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    is_space = codes == ord(" ")
    begins = ~is_space & np.concatenate([[True], is_space[:-1]])
    sizes = 1 + (codes >= 0x80).astype(np.int64) + (codes >= 0x800) + (codes >= 0x10000)
    totals = np.zeros((len(codes) + 1, 2), dtype=np.int64)  # Of the text before each character.
    totals[1:, 0], totals[1:, 1] = sizes.cumsum(), begins.cumsum()
    ends = np.maximum.accumulate([end for _, end in offsets])
    ends[-1] = len(codes)
    measured = np.diff(totals[ends], axis=0, prepend=0).astype(np.int32)
    measured[0, 0] += joined and not text.startswith(" ")
    return measured


def _count_sentences(sentences: list[list[int]], size: int) -> int:
    """Returns how many of the first sentences have at least `size` tokens together, or the number of all."""
    sizes = itertools.accumulate(map(len, sentences))
    return next((number for number, total in enumerate(sizes, 1) if total >= size), len(sentences))


def _split_paragraphs(text: str) -> Iterator[str]:
    """Yields the paragraphs, which blank lines separate, each on one line."""
    lines: list[str] = []
    for line in text.splitlines():
        if words := line.split():
            lines.append(" ".join(words))
        elif lines:
            yield " ".join(lines)
            lines = []
    if lines:
        yield " ".join(lines)
