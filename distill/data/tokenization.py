"""Token ids of texts and of words, cached in Arrow files, and the characters that tokens stand for."""

import copy
import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import tokenizers
from tokenizers import Tokenizer

from distill.core.console import print_notice
from distill.core.errors import UserError
from distill.core.storage import entry_key, has_entry, new_entry
from distill.data.splits import Split
from distill.edge.decoder import Truncation, chunk_texts
from distill.edge.words import cut_between_words, find_first_pieces, locate_words

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


FORMAT = 1
CHUNK = 1000  # Texts that are tokenized at a time.
# `words` has the number of the word that begins with a token, -1 for other tokens.
# `start_characters` and `end_characters` are those of a token in its text. `text_bytes` and `text_words` have the bytes
# of the text that end with a token, and the number of words that begin in them.
DTYPES = {
    "input_ids": np.int32, "token_type_ids": np.int8, "words": np.int32, "start_characters": np.int32,
    "end_characters": np.int32, "text_bytes": np.int32, "text_words": np.int32,
}  # fmt: skip


class MappedColumns(dict[str, np.ndarray]):
    """Memory-mapped columns of an Arrow file. Pickling stores only the path."""

    def __init__(self, path: Path) -> None:
        self.path, self.table = path, pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        super().__init__(_get_columns(self.table))

    def __reduce__(self) -> tuple[type["MappedColumns"], tuple[Path]]:
        return MappedColumns, (self.path,)


@dataclass(frozen=True)
class Tokens:
    """Token ids of a split. Example `i` is `column[offsets[i] : offsets[i + 1]]`.

    Args:
        columns: `input_ids [tokens]`, `token_type_ids [tokens]` if the tokenizer returns them, for words to tag
            `words [tokens]`, and for windows `start_characters` and `end_characters`.
        offsets: first token of each example, and the number of tokens, `[examples + 1]`.
        truncated: number of examples that were truncated to the maximum length, special tokens included.
        digest: SHA-256 of everything that the tokens depend on.
        pair_labels: labels of segment pairs, `[examples]`.
        wordless: number of words to tag that have no token of their own.
        rows: the row of the split that each window shows, `[examples]`; None if an example is a whole row.
    """

    columns: dict[str, np.ndarray]
    offsets: np.ndarray
    truncated: int
    digest: str
    pair_labels: np.ndarray | None = None
    wordless: int = 0
    rows: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1


def tokenize_split(
    split: Split, tokenizer: "PreTrainedTokenizerBase", max_length: int, cache_dir: Path | None = None
) -> Tokens:
    """Returns the tokens of a split, cached or computed. Without `cache_dir`, they are not cached."""
    digest = compute_digest(split, tokenizer, max_length)
    return cached_tokens(digest, lambda: _tokenize(split, tokenizer, max_length), cache_dir)


def cached_tokens(digest: str, tokenize: Callable[[], pa.Table], cache_dir: Path | None) -> Tokens:
    """Returns the tokens with this digest, cached or computed. Without `cache_dir`, they are not cached.

    Args:
        tokenize: computes the tokens, as `create_table` returns them.
    """
    if cache_dir is None:
        return _to_tokens(tokenize(), digest)
    directory = cache_dir / "tokens" / digest[:20]
    path = directory / "tokens.arrow"
    if not has_entry(directory):
        table = tokenize()
        with new_entry(directory) as temporary:
            write_table(table, temporary / path.name)
    return read_tokens(path, digest)


def read_tokens(path: Path, digest: str) -> Tokens:
    """Returns the memory-mapped tokens of a file, with the given digest."""
    columns = MappedColumns(path)
    return _to_tokens(columns.table, digest, columns)


class TokenWriter:
    """Writes examples to the file `path` one at a time. Only their lengths and pair labels stay in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lengths, self._pair_labels = array("q"), array("b")
        self._files: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self._lengths)

    def write_example(self, columns: Mapping[str, np.ndarray], pair_label: int | None = None) -> None:
        """Writes one example: the values of each column, `[tokens]`."""
        for name, values in columns.items():
            if name not in self._files:
                self._files[name] = open(self._column_path(name), "wb")  # noqa: SIM115
            values.astype(DTYPES[name], copy=False).tofile(self._files[name])
        self._lengths.append(len(next(iter(columns.values()))))
        if pair_label is not None:
            self._pair_labels.append(pair_label)

    def close(self) -> None:
        """Joins the columns in one file."""
        for file in self._files.values():
            file.close()
        offsets = pa.array(np.concatenate([[0], np.array(self._lengths, dtype=np.int64).cumsum()]))
        columns: dict[str, Any] = {
            name: pa.LargeListArray.from_arrays(
                offsets, pa.array(np.memmap(self._column_path(name), dtype=DTYPES[name]))
            )
            for name in self._files
        }
        if self._pair_labels:
            columns["pair_labels"] = pa.array(np.array(self._pair_labels, dtype=np.int8))
        write_table(pa.table(columns).replace_schema_metadata({"truncated": "0"}), self.path)
        for name in self._files:
            self._column_path(name).unlink()

    def _column_path(self, name: str) -> Path:
        return self.path.with_suffix(f".{name}")


def describe_tokenizer(tokenizer: "PreTrainedTokenizerBase") -> list[Any]:
    """Returns everything of a tokenizer that the tokens of a text depend on, as JSON values."""
    settings = json.loads(tokenizer.backend_tokenizer.to_str())
    for state in ("truncation", "padding"):  # Set by the last call.
        settings.pop(state, None)
    return [tokenizers.__version__, settings, tokenizer.truncation_side, list(tokenizer.model_input_names)]


def compute_digest(
    split: Split, tokenizer: "PreTrainedTokenizerBase", max_length: int, *, doc_stride: int | None = None
) -> str:
    """Returns the SHA-256 of everything that the tokens depend on, which excludes the labels.

    Args:
        doc_stride: tokens that neighbouring windows share, None for whole examples.
    """
    settings = (max_length, doc_stride, describe_tokenizer(tokenizer))
    return entry_key("tokens", FORMAT, *settings, split.texts, split.pairs)


def _tokenize(split: Split, tokenizer: "PreTrainedTokenizerBase", max_length: int) -> pa.Table:
    names = {"input_ids": "ids", "token_type_ids": "type_ids"}
    if "token_type_ids" not in tokenizer.model_input_names:
        del names["token_type_ids"]
    values: dict[str, list[np.ndarray]] = {name: [] for name in names}
    truncated = 0
    texts = split.texts if split.pairs is None else list(zip(split.texts, split.pairs, strict=True))
    cut = Truncation(_prepare_backend(tokenizer), max_length=max_length, side=tokenizer.truncation_side)
    for tokens, is_cut in cut.encode(texts):
        truncated += is_cut
        for name, attribute in names.items():
            values[name].append(np.array(getattr(tokens, attribute), dtype=DTYPES[name]))
    return create_table(values, truncated=truncated)


def create_table(
    columns: Mapping[str, Sequence[np.ndarray]],
    *,
    truncated: int = 0,
    wordless: int = 0,
    rows: np.ndarray | None = None,
) -> pa.Table:
    """Returns the table of the tokens of a split.

    Args:
        columns: the columns in `DTYPES`, of each example.
        truncated: number of examples that were truncated.
        wordless: number of words without a token of their own.
        rows: the row of the split that each example shows, where an example is a window.
    """
    offsets = pa.array(np.concatenate([[0], np.cumsum(list(map(len, columns["input_ids"])))]))
    lists: dict[str, Any] = {
        name: pa.LargeListArray.from_arrays(offsets, pa.array(np.concatenate(arrays).astype(DTYPES[name], copy=False)))
        for name, arrays in columns.items()
    }
    if rows is not None:
        lists["rows"] = pa.array(rows)
    metadata = {"truncated": truncated, "wordless": wordless}
    return pa.table(lists).replace_schema_metadata({name: str(number) for name, number in metadata.items()})


def count_tokens(texts: Sequence[str], tokenizer: "PreTrainedTokenizerBase") -> np.ndarray:
    """Returns the number of tokens of each whole text, without special tokens, `[texts]`."""
    backend, counts = _prepare_backend(tokenizer), list[int]()
    for chunk in chunk_texts(texts, len):
        counts += map(len, backend.encode_batch_fast(chunk, add_special_tokens=False))
    return np.array(counts, dtype=np.int64)


def encode_whole(
    texts: Iterable[str], tokenizer: "PreTrainedTokenizerBase", *, add_special_tokens: bool
) -> Iterator[list[int]]:
    """Yields the ids of the tokens of each whole text. The tokenizer keeps its truncation and padding."""
    backend = copy_backend(tokenizer)
    remaining = iter(texts)
    while chunk := list(islice(remaining, CHUNK)):
        for encoding in backend.encode_batch_fast(chunk, add_special_tokens=add_special_tokens):
            yield encoding.ids


def copy_backend(tokenizer: "PreTrainedTokenizerBase") -> tokenizers.Tokenizer:
    """Returns a copy of the tokenizer without truncation and padding."""
    backend: tokenizers.Tokenizer = copy.deepcopy(tokenizer.backend_tokenizer)
    backend.no_truncation()
    backend.no_padding()
    return backend


def _prepare_backend(tokenizer: "PreTrainedTokenizerBase") -> tokenizers.Tokenizer:
    """Returns the tokenizer without truncation and padding, which its last call may have set."""
    backend: tokenizers.Tokenizer = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = tokenizer.split_special_tokens
    return backend


def write_table(table: pa.Table, path: Path) -> None:
    """Writes an Arrow file."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def _to_tokens(table: pa.Table, digest: str, columns: dict[str, np.ndarray] | None = None) -> Tokens:
    """Returns the table's memory as arrays, without a copy."""
    labels = table.column("pair_labels").chunk(0).to_numpy() if "pair_labels" in table.column_names else None
    return Tokens(
        columns=_get_columns(table) if columns is None else columns,
        offsets=table.column("input_ids").chunk(0).offsets.to_numpy(),
        truncated=int(table.schema.metadata[b"truncated"]),
        digest=digest,
        pair_labels=labels,
        wordless=int(table.schema.metadata.get(b"wordless", b"0")),
        rows=table.column("rows").chunk(0).to_numpy() if "rows" in table.column_names else None,
    )


def _get_columns(table: pa.Table) -> dict[str, np.ndarray]:
    names = [name for name in table.column_names if name in DTYPES]
    return {name: table.column(name).chunk(0).values.to_numpy() for name in names}


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


WORDS_FORMAT = 1  # Of the way in which sentences are cut and words found.
Words = Sequence[str]


def tokenize_sentences(
    sentences: Sequence[Words], tokenizer: "PreTrainedTokenizerBase", max_length: int, cache_dir: Path | None
) -> "Tokens":
    """Returns the tokens of sentences, cached or computed, with the column `words [tokens]`.

    A sentence that is longer than `max_length` tokens is cut between two words.
    """
    words = [list(words) for words in sentences]
    digest = entry_key("words", WORDS_FORMAT, max_length, describe_tokenizer(tokenizer), words)
    return cached_tokens(digest, lambda: _tokenize_words(sentences, tokenizer, max_length), cache_dir)


def _tokenize_words(sentences: Sequence[Words], tokenizer: "PreTrainedTokenizerBase", max_length: int) -> "pa.Table":
    names = [name for name in DTYPES if name == "words" or name in tokenizer.model_input_names]
    columns: dict[str, list[np.ndarray]] = {name: [] for name in names}
    truncated = wordless = 0
    for part in chunk_texts(sentences, lambda words: sum(map(len, words)) + len(words)):
        texts = [" ".join(words) for words in part]
        # The backend itself would truncate and pad as its file or its last call says.
        encodings = tokenizer(texts, truncation=False, padding=False, verbose=False).encodings
        for words, encoding in zip(part, encodings, strict=True):
            spans, offsets, special = locate_words(words), encoding.offsets, encoding.special_tokens_mask
            kept = cut_between_words(spans, offsets, special, length=max_length, side=tokenizer.truncation_side)
            word_of = np.full(len(offsets), -1)
            pieces = find_first_pieces(spans, offsets, special)
            for word, piece in enumerate(pieces):
                if piece is not None:
                    word_of[piece] = word
            values = {"input_ids": encoding.ids, "token_type_ids": encoding.type_ids, "words": word_of}
            for name, of_sentences in columns.items():
                of_sentences.append(np.array(values[name], dtype=DTYPES[name])[np.array(kept, dtype=int)])
            truncated += len(kept) < len(offsets)
            wordless += pieces.count(None)
    return create_table(columns, truncated=truncated, wordless=wordless)
