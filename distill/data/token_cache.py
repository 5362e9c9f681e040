"""A cache of token ids in Arrow files, keyed by texts, tokenizer and length, and memory-mapped."""

import json
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import tokenizers

from distill.data.tables import Split
from distill.edge.truncation import Truncation, chunk_texts
from distill.storage.cache import entry_key, has_entry, new_entry

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FORMAT = 1
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
            _write_table(table, temporary / path.name)
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
        _write_table(pa.table(columns).replace_schema_metadata({"truncated": "0"}), self.path)
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
    for tokens, is_cut in _cut_texts(split, tokenizer, max_length):
        truncated += is_cut
        for name, attribute in names.items():
            values[name].append(np.array(getattr(tokens, attribute), dtype=DTYPES[name]))
    lengths = np.array(list(map(len, values["input_ids"])), dtype=np.int64)
    return create_table(values, lengths, truncated=truncated)


def create_table(
    columns: Mapping[str, Sequence[np.ndarray]],
    lengths: np.ndarray,
    *,
    truncated: int = 0,
    wordless: int = 0,
    rows: np.ndarray | None = None,
) -> pa.Table:
    """Returns the table of the tokens of a split.

    Args:
        columns: the columns in `DTYPES`, in parts that are joined.
        lengths: number of tokens of each example.
        truncated: number of examples that were truncated.
        wordless: number of words without a token of their own.
        rows: the row of the split that each example shows, where an example is a window.
    """
    offsets = pa.array(np.concatenate([[0], lengths.cumsum()]))
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


def _prepare_backend(tokenizer: "PreTrainedTokenizerBase") -> tokenizers.Tokenizer:
    """Returns the tokenizer without truncation and padding, which its last call may have set."""
    backend: tokenizers.Tokenizer = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = tokenizer.split_special_tokens
    return backend


def _cut_texts(split: Split, tokenizer: "PreTrainedTokenizerBase", max_length: int) -> Iterator[tuple[Any, bool]]:
    """Yields the tokens of each example, and whether some were cut off."""
    backend = _prepare_backend(tokenizer)
    texts = split.texts if split.pairs is None else list(zip(split.texts, split.pairs, strict=True))
    return Truncation(backend, max_length=max_length, side=tokenizer.truncation_side).encode(texts)


def _write_table(table: pa.Table, path: Path) -> None:
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
