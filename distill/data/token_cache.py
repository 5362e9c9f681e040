"""From texts to token ids, once: kept as Arrow, found again by texts, tokenizer and length, and mapped into memory."""

import hashlib
import json
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from distill.data.tables import Split
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
    stands for everything that the tokens depend on. `pair_labels [examples]` are those of segment pairs.
    """

    columns: dict[str, np.ndarray]
    offsets: np.ndarray
    truncated: int
    digest: str
    pair_labels: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1


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
        with whole_directory(directory, keep_intact=True) as temporary:
            _write(table, temporary / path.name)
    return read(path, name)


def read(path: Path, name: str) -> Tokens:
    """The tokens of a file, mapped into memory; `name` becomes their digest."""
    columns = Mapped(path)
    return _tokens(columns.table, name, columns)


class Writer:
    """Writes examples to `path` as they come: what is held of one is its length and, of a pair, its label."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lengths, self._pair_labels = array("q"), array("b")
        self._files: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, columns: Mapping[str, np.ndarray], pair_label: int | None = None) -> None:
        """One example: each column's values `[tokens]`."""
        for name, values in columns.items():
            if name not in self._files:
                self._files[name] = open(self._part(name), "wb")  # noqa: SIM115
            values.astype(_COLUMNS[name], copy=False).tofile(self._files[name])
        self._lengths.append(len(next(iter(columns.values()))))
        if pair_label is not None:
            self._pair_labels.append(pair_label)

    def close(self) -> None:
        """Put the columns into one file."""
        for file in self._files.values():
            file.close()
        offsets = pa.array(np.concatenate([[0], np.array(self._lengths, dtype=np.int64).cumsum()]))
        columns: dict[str, Any] = {
            name: pa.LargeListArray.from_arrays(offsets, pa.array(np.memmap(self._part(name), dtype=_COLUMNS[name])))
            for name in self._files
        }
        if self._pair_labels:
            columns["pair_labels"] = pa.array(np.array(self._pair_labels, dtype=np.int8))
        _write(pa.table(columns).replace_schema_metadata({"truncated": "0"}), self.path)
        for name in self._files:
            self._part(name).unlink()

    def _part(self, name: str) -> Path:
        return self.path.with_suffix(f".{name}")


def rules(tokenizer: "PreTrainedTokenizerBase") -> list[Any]:
    """Everything about a tokenizer that the tokens of a text depend on."""
    found = json.loads(tokenizer.backend_tokenizer.to_str())
    for state in ("truncation", "padding"):  # What the last call left behind.
        found.pop(state, None)
    return [found, tokenizer.truncation_side, list(tokenizer.model_input_names)]


def digest(split: Split, tokenizer: "PreTrainedTokenizerBase", max_length: int) -> str:
    """SHA-256 of everything that the tokens depend on; the labels have no part in it."""
    settings = [KEPT_FORMAT, max_length, rules(tokenizer)]
    found = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
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


def _write(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def _tokens(table: pa.Table, name: str, columns: dict[str, np.ndarray] | None = None) -> Tokens:
    """Arrow's own memory as arrays, without a copy."""
    labels = table.column("pair_labels").chunk(0).to_numpy() if "pair_labels" in table.column_names else None
    return Tokens(
        columns=_columns(table) if columns is None else columns,
        offsets=table.column("input_ids").chunk(0).offsets.to_numpy(),
        truncated=int(table.schema.metadata[b"truncated"]),
        digest=name,
        pair_labels=labels,
    )


def _columns(table: pa.Table) -> dict[str, np.ndarray]:
    names = [name for name in table.column_names if name in _COLUMNS]
    return {name: table.column(name).chunk(0).values.to_numpy() for name in names}
