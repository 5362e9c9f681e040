"""Tokens of sentences that are given as words: cut between words, with the first token of each word."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from distill.edge.truncation import chunk_texts
from distill.edge.words import cut_between_words, find_first_pieces, locate_words

if TYPE_CHECKING:
    import pyarrow as pa
    from transformers import PreTrainedTokenizerBase

    from distill.data.token_cache import Tokens

FORMAT = 1  # Of the way in which sentences are cut and words found.
Words = Sequence[str]


def tokenize_sentences(
    sentences: Sequence[Words], tokenizer: "PreTrainedTokenizerBase", max_length: int, cache_dir: Path | None
) -> "Tokens":
    """Returns the tokens of sentences, cached or computed, with the column `words [tokens]`.

    A sentence that is longer than `max_length` tokens is cut between two words.
    """
    from distill.data.token_cache import cached_tokens, describe_tokenizer
    from distill.storage.cache import entry_key

    words = [list(words) for words in sentences]
    digest = entry_key("words", FORMAT, max_length, describe_tokenizer(tokenizer), words)
    return cached_tokens(digest, lambda: _tokenize(sentences, tokenizer, max_length), cache_dir)


class _Sentence(NamedTuple):
    """The tokens of a sentence, `[L]` each.

    Attributes:
        truncated: whether it was cut.
        wordless: number of words without a token of their own, of the whole sentence.
    """

    input_ids: np.ndarray
    token_type_ids: np.ndarray
    words: np.ndarray
    truncated: bool
    wordless: int


def _tokenize(sentences: Sequence[Words], tokenizer: "PreTrainedTokenizerBase", max_length: int) -> "pa.Table":
    from distill.data.token_cache import DTYPES, create_table

    rows = list(_tokenize_each(sentences, tokenizer, max_length))
    names = [name for name in DTYPES if name == "words" or name in tokenizer.model_input_names]
    columns = {name: [getattr(row, name).astype(DTYPES[name]) for row in rows] for name in names}
    lengths = np.array([len(row.input_ids) for row in rows], dtype=np.int64)
    wordless = sum(row.wordless for row in rows)
    return create_table(columns, lengths, truncated=sum(row.truncated for row in rows), wordless=wordless)


def _tokenize_each(
    sentences: Sequence[Words], tokenizer: "PreTrainedTokenizerBase", max_length: int
) -> Iterator[_Sentence]:
    for part in chunk_texts(sentences, lambda words: sum(map(len, words)) + len(words)):
        texts = [" ".join(words) for words in part]
        # The backend itself would truncate and pad as its file or its last call says.
        encodings = tokenizer(texts, truncation=False, padding=False, verbose=False).encodings
        for words, encoding in zip(part, encodings, strict=True):
            spans, offsets, special = locate_words(words), encoding.offsets, encoding.special_tokens_mask
            kept = np.array(
                cut_between_words(spans, offsets, special, length=max_length, side=tokenizer.truncation_side), dtype=int
            )
            word_of = np.full(len(offsets), -1)
            pieces = find_first_pieces(spans, offsets, special)
            for word, piece in enumerate(pieces):
                if piece is not None:
                    word_of[piece] = word
            yield _Sentence(
                np.array(encoding.ids)[kept], np.array(encoding.type_ids)[kept], word_of[kept],
                truncated=len(kept) < len(offsets), wordless=pieces.count(None),
            )  # fmt: skip
