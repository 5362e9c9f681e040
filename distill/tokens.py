"""From texts to token ids, once: kept as Arrow, found again by texts, tokenizer and length, and mapped into memory."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from distill.data import Split
from distill.files import is_intact, whole_directory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KEPT_FORMAT = 1
_COLUMNS = {"input_ids": np.int32, "token_type_ids": np.int8}
_AT_ONCE = 10_000  # Texts in one call of the tokenizer, which holds them as Python lists.


class Mapped(dict[str, np.ndarray]):
    """Columns of a file, mapped into memory; to another process goes its path and no copy."""

    def __init__(self, path: Path) -> None:
        self.path, self.table = path, pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        super().__init__(_columns(self.table))

    def __reduce__(self) -> tuple[type["Mapped"], tuple[Path]]:
        return Mapped, (self.path,)


@dataclass(frozen=True)
class Tokens:
    """Token ids of a whole split: those of example `i` are `column[offsets[i] : offsets[i + 1]]`.

    `columns` are `input_ids [tokens]` and, of a tokenizer that tells the two texts of a pair apart, `token_type_ids`.
    `truncated` counts the examples that were longer than the length they were cut to, special tokens included; `digest`
    stands for everything that the tokens depend on.
    """

    columns: dict[str, np.ndarray]
    offsets: np.ndarray
    truncated: int
    digest: str


def encode(
    split: Split, tokenizer: "PreTrainedTokenizerBase", max_length: int, cache_dir: Path | None = None
) -> Tokens:
    """The split's tokens, from the cache where they have been made before; without `cache_dir` they stay in memory."""
    name = digest(split, tokenizer, max_length)
    if cache_dir is None:
        return _tokens(_table(split, tokenizer, max_length), name)
    directory = cache_dir / "tokens" / name[:20]
    path = directory / "tokens.arrow"
    if not is_intact(directory):
        table = _table(split, tokenizer, max_length)
        with (
            whole_directory(directory, keep_intact=True) as temporary,
            pa.OSFile(str(temporary / path.name), "wb") as sink,
            pa.ipc.new_file(sink, table.schema) as writer,
        ):
            writer.write_table(table)
    columns = Mapped(path)
    return _tokens(columns.table, name, columns)


def digest(split: Split, tokenizer: "PreTrainedTokenizerBase", max_length: int) -> str:
    """SHA-256 of everything that the tokens depend on; the labels have no part in it."""
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    for state in ("truncation", "padding"):  # What the last call left behind.
        rules.pop(state, None)
    settings = [KEPT_FORMAT, max_length, tokenizer.truncation_side, list(tokenizer.model_input_names)]
    found = hashlib.sha256(json.dumps([settings, rules], sort_keys=True).encode())
    for texts in (split.texts, split.pairs):
        found.update(json.dumps(texts).encode())
    return found.hexdigest()


def _table(split: Split, tokenizer: "PreTrainedTokenizerBase", max_length: int) -> pa.Table:
    parts: dict[str, list[np.ndarray]] = {}
    lengths: list[np.ndarray] = []
    truncated = 0
    for encoded in _encoded(split, tokenizer, max_length):
        lengths.append(np.array([len(ids) for ids in encoded["input_ids"]], dtype=np.int64))
        truncated += sum(bool(encoding.overflowing) for encoding in encoded.encodings)
        for name, kind in _COLUMNS.items():
            if name in encoded:
                parts.setdefault(name, []).append(np.concatenate([np.array(row, dtype=kind) for row in encoded[name]]))
    offsets = pa.array(np.concatenate([[0], np.concatenate(lengths).cumsum()]))
    columns = {
        name: pa.LargeListArray.from_arrays(offsets, pa.array(np.concatenate(values))) for name, values in parts.items()
    }
    return pa.table(columns).replace_schema_metadata({"truncated": str(truncated)})


def _encoded(split: Split, tokenizer: "PreTrainedTokenizerBase", max_length: int) -> Iterator[Any]:
    for start in range(0, len(split), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        pairs = None if split.pairs is None else split.pairs[part]
        yield tokenizer(split.texts[part], pairs, truncation=True, max_length=max_length, return_attention_mask=False)


def _tokens(table: pa.Table, name: str, columns: dict[str, np.ndarray] | None = None) -> Tokens:
    """Arrow's own memory as arrays, without a copy."""
    return Tokens(
        columns=_columns(table) if columns is None else columns,
        offsets=table.column("input_ids").chunk(0).offsets.to_numpy(),
        truncated=int(table.schema.metadata[b"truncated"]),
        digest=name,
    )


def _columns(table: pa.Table) -> dict[str, np.ndarray]:
    return {name: table.column(name).chunk(0).values.to_numpy() for name in table.column_names}
