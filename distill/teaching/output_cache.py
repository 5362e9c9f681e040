"""Teacher outputs for the examples of a split, cached on disk for every epoch, run and process.

The files are memory-mapped safetensors with a checksum in their header. Each contains the outputs for some thousand
tokens of consecutive examples and is written atomically. An interrupted pass continues with the missing files. Two
processes that fill the same directory at once may write a file twice, with the same content.
"""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import transformers
from pydantic import PositiveFloat, PositiveInt
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from distill.contracts import Batch, Items, Outputs
from distill.errors import UserError
from distill.files import atomic_file, make_directory
from distill.options import check_arguments
from distill.teaching.top_k import TopKOutputs, bytes_per_item, top_k_mass

FORMAT = 3
_LIBRARIES = {"torch": torch, "transformers": transformers}
SHARD_TOKENS = 65_536  # An interruption loses at most one shard, and the memory of a pass is limited by it.


def library_versions() -> dict[str, str]:
    """Returns the major and minor versions of the libraries whose forward passes may change with them."""
    return {name: ".".join(module.__version__.split(".")[:2]) for name, module in _LIBRARIES.items()}


class OutputCache:
    """The rules for caching a teacher's outputs.

    Args:
        enabled: `auto` caches the outputs if every epoch has the same inputs and all outputs that the objective reads
            can be cached. True raises an error otherwise. False runs the teacher in every step.
        hidden: whether to cache the last hidden states of all tokens too, as float16.
        max_gb: largest size of the outputs of one split, in GB.
        top_k: over a vocabulary, number of the largest logits that are cached for each item, with the mass of the
            others.
    """

    @check_arguments
    def __init__(
        self,
        *,
        enabled: Literal["auto"] | bool = "auto",
        hidden: bool = False,
        max_gb: PositiveFloat = 8.0,
        top_k: PositiveInt = 64,
    ) -> None:
        self.enabled, self.hidden, self.max_gb, self.top_k = enabled, hidden, max_gb, top_k

    def obstacle(
        self, needs: Mapping[str, list[str]], *, fixed_inputs: bool, hidden_gb: float, needing_all: Sequence[str] = ()
    ) -> str | None:
        """Returns the reason why the teacher runs in every step, None if its outputs are cached.

        Args:
            needs: outputs besides the logits, with the terms of the objective that read them.
            fixed_inputs: whether every epoch has the same inputs.
            hidden_gb: size of the last hidden states in GB, 0 if unknown.
            needing_all: terms of the objective that need more than the top k of the logits over a vocabulary.

        Raises:
            UserError: if the outputs cannot be cached and `enabled` is True.
        """
        if self.enabled is False:
            return "teacher.cache.enabled=false"
        reason = None
        if not fixed_inputs:
            reason = "the inputs change every epoch"
        elif needing_all:
            reason = f"{', '.join(needing_all)} reads all logits, and only the largest at the masked tokens are cached"
        elif others := sorted(set(needs) - {"hidden_states"}):
            reason = f"{', '.join(needs[others[0]])} reads {others[0]}, which cannot be cached"
        elif "hidden_states" in needs and not self.hidden:
            reason = (
                f"{', '.join(needs['hidden_states'])} reads hidden states: teacher.cache.hidden=true caches those too"
                + (f", {_format_size(hidden_gb)} of disk" if hidden_gb else "")
            )
        if reason is not None and self.enabled is True:
            raise UserError(f"cannot cache teacher outputs (teacher.cache.enabled=true): {reason}; use auto or false")
        return reason

    def layout(self) -> list[int]:
        """Returns the numbers that determine the format of the files."""
        return [FORMAT, SHARD_TOKENS]

    def open(
        self, directory: Path, lengths: np.ndarray, *, hidden_size: int | None, top_k: bool = False
    ) -> "CachedOutputs":
        """Opens the cached outputs in `directory` for examples of these lengths in tokens `[N]`.

        Args:
            hidden_size: width of the hidden states, None without them.
            top_k: whether only the largest logits are stored.
        """
        return CachedOutputs(directory, lengths, hidden_size=hidden_size, top_k=top_k)

    def item_bytes(self, classes: int, *, over_vocabulary: bool) -> int:
        """Returns the size of the logits of one item, in bytes."""
        return bytes_per_item(self.top_k) if over_vocabulary else 4 * classes

    def size_gb(self, lengths: np.ndarray, *, logit_bytes: float, hidden_size: int | None) -> float:
        """Returns the size of `logit_bytes` and of float16 hidden states for these lengths `[N]`, in GB."""
        return (logit_bytes + int(lengths.sum()) * (hidden_size or 0) * 2) / 1e9

    def check_size(self, lengths: np.ndarray, *, logit_bytes: float, hidden_size: int | None) -> float:
        """Returns the size of the outputs for examples of these lengths in tokens `[N]`, in GB.

        Raises:
            UserError: if it exceeds `max_gb`.
        """
        size = self.size_gb(lengths, logit_bytes=logit_bytes, hidden_size=hidden_size)
        if size > self.max_gb:
            raise UserError(
                f"the teacher's outputs would take {_format_size(size)}, more than "
                f"teacher.cache.max_gb={self.max_gb:g}: raise it, or set "
                f"teacher.cache.{'hidden' if hidden_size else 'enabled'}=false"
            )
        return size

    def make_room(self, outputs: "CachedOutputs", examples: int, logit_bytes: float) -> str:
        """Creates the directory for the outputs of the first `examples`, and returns their size in words.

        Raises:
            UserError: if the size exceeds `max_gb` or the free space of the disk.
        """
        size = self.check_size(outputs.lengths[:examples], logit_bytes=logit_bytes, hidden_size=outputs.hidden_size)
        make_directory(outputs.directory)
        free = shutil.disk_usage(outputs.directory).free / 1e9
        if size > free:
            raise UserError(
                f"the teacher's outputs would take {_format_size(size)} and {outputs.directory} has "
                f"{_format_size(free)} left: "
                "give another cache_dir, or set teacher.cache.enabled=false"
            )
        return _format_size(size)


class CachedOutputs:
    """The cached outputs of one teacher for one split. Calling it with a batch replaces running the teacher.

    Checksums are compared once, when the files are opened. `damaged` contains the files that do not match, which are
    computed again.
    """

    def __init__(self, directory: Path, lengths: np.ndarray, *, hidden_size: int | None, top_k: bool = False) -> None:
        self.directory, self.lengths, self.hidden_size, self.top_k = directory, lengths, hidden_size, top_k
        self._ends = lengths.cumsum()
        shard_of = (self._ends - lengths) // SHARD_TOKENS
        self._firsts = np.concatenate([[0], np.flatnonzero(np.diff(shard_of)) + 1])
        self._shards: list[_Shard | None] = []
        self.damaged: list[Path] = []
        for number in range(len(self._firsts)):
            self._shards.append(self._read(number))

    def __reduce__(self) -> Any:
        """Pickles only the directory, not the outputs."""
        create = partial(CachedOutputs, hidden_size=self.hidden_size, top_k=self.top_k)
        return create, (self.directory, self.lengths)

    def missing(self, examples: int | None = None) -> list[tuple[int, int]]:
        """Returns the first and last (exclusive) example of each missing shard, for the first `examples` or all."""
        ranges = [self._range(number) for number, shard in enumerate(self._shards) if shard is None]
        return [(first, last) for first, last in ranges if examples is None or first < examples]

    def bytes(self) -> int:
        """Returns the size of all files."""
        return sum(path.stat().st_size for path in self.directory.glob("*.safetensors"))

    def add(self, first: int, columns: Mapping[str, Tensor], hidden: Tensor | None) -> None:
        """Stores a shard.

        Args:
            first: first example of the shard.
            columns: outputs of its items in the order of the examples: `logits [n, C]`, or those of `take_top_k` with
                `profile [V]`, the mean of the items' log-probabilities. `counts [examples]` are the numbers of items,
                without which each example has one.
            hidden: hidden states of all tokens of these examples, `[tokens, H]`.
        """
        number = int(np.searchsorted(self._firsts, first))
        last = self._range(number)[1]
        # One profile is enough for all shards.
        stored = {name: values for name, values in columns.items() if name != "profile" or number == 0}
        tensors = {name: values.cpu().contiguous() for name, values in stored.items()}
        if hidden is not None:
            tensors["hidden"] = hidden.to(device="cpu", dtype=torch.float16).contiguous()
        path = self._path(number)
        with atomic_file(path) as temporary:
            save_file(tensors, temporary, metadata={"sha256": _digest(tensors), "examples": _examples(first, last)})
        self._shards[number] = self._read(number)

    def __call__(self, batch: Batch, items: Items) -> "CachedPass":
        """Returns the outputs for a batch in float32: columns of its items, and hidden states `[B, L, H]`."""
        ids = batch["example_id"].cpu().numpy()
        numbers = np.searchsorted(self._firsts, ids, side="right") - 1
        columns: list[dict[str, Tensor]] = []
        hidden = []
        for example, number in zip(ids, numbers, strict=True):
            first, shard = self._firsts[number], self._shard(number)
            columns.append(shard.get_items(int(example - first)))
            if "hidden" in shard.tensors:
                begin = self._ends[example] - self.lengths[example] - (self._ends[first] - self.lengths[first])
                hidden.append(shard.tensors["hidden"][begin : begin + self.lengths[example]])
        device = batch["attention_mask"].device
        states = None
        if hidden:
            mask = batch["attention_mask"].bool()
            states = torch.zeros(*mask.shape, hidden[0].shape[-1], device=device)
            states[mask] = torch.cat(hidden).to(device).float()
        joined = {name: torch.cat([column[name] for column in columns]).to(device) for name in columns[0]}
        profile = self._shard(0).tensors["profile"].to(device) if self.top_k else None
        return CachedPass(joined, None if states is None else (states,), profile)

    def mass(self) -> float:
        """Returns the share of the probability mass that the top k have, over all items."""
        return top_k_mass(torch.cat([shard.tensors["rest"] for shard in self._shards if shard is not None]))

    def logits(self) -> np.ndarray:
        """Returns the logits `[n, C]` of all items, in the order of the examples."""
        return np.concatenate([self._shard(number).tensors["logits"].numpy() for number in range(len(self._shards))])

    def _shard(self, number: int) -> "_Shard":
        shard = self._shards[number]
        if shard is None:
            raise ValueError(f"{self._path(number)} is missing: add all shards that missing() names first")
        return shard

    def _range(self, number: int) -> tuple[int, int]:
        ends = [*self._firsts[1:], len(self.lengths)]
        return int(self._firsts[number]), int(ends[number])

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:05}.safetensors"

    def _read(self, number: int) -> "_Shard | None":
        """Returns the memory-mapped shard, None if it is missing or damaged."""
        path = self._path(number)
        if not path.is_file():
            return None
        first, last = self._range(number)
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            is_intact = metadata == {"sha256": _digest(tensors), "examples": _examples(first, last)}
        except (SafetensorError, OSError, KeyError):
            is_intact = False
        if not is_intact:
            self.damaged.append(path)
            return None
        return _Shard(tensors)


class _Shard:
    """The tensors of one file. Examples may have different numbers of items."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors
        self._columns = [name for name in ("logits", "top", "ids", "rest") if name in tensors]
        self._ends = tensors["counts"].cumsum(dim=0).tolist() if "counts" in tensors else None

    def get_items(self, example: int) -> dict[str, Tensor]:
        """Returns the columns of one example's items."""
        first, last = example, example + 1
        if self._ends is not None:
            first, last = self._ends[example - 1] if example else 0, self._ends[example]
        return {name: self.tensors[name][first:last] for name in self._columns}


@dataclass(frozen=True)
class CachedPass:
    """Cached outputs for one batch: columns of its items, and the last hidden states."""

    columns: Mapping[str, Tensor]
    hidden_states: tuple[Tensor, ...] | None
    profile: Tensor | None = None
    chunk_size: int | None = None

    def whole(self) -> Outputs:
        """Returns the hidden states."""
        return Outputs(hidden_states=self.hidden_states)

    def at(self, items: Items) -> Outputs | TopKOutputs:
        """Returns the logits `[n, C]` of these items."""
        columns = {name: column[items.first : items.first + len(items)] for name, column in self.columns.items()}
        if self.profile is not None:
            return TopKOutputs(columns, self.profile)
        return Outputs(logits=columns["logits"], hidden_states=self.hidden_states)


def _examples(first: int, last: int) -> str:
    return f"{first} to {last}, that one excluded"


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {tuple(tensors[name].shape)} {tensors[name].dtype}".encode())
        digest.update(tensors[name].numpy().data)
    return digest.hexdigest()


def _format_size(gigabytes: float) -> str:
    return f"{gigabytes:.2f} GB" if gigabytes >= 0.1 else f"{gigabytes * 1e3:.1f} MB"
