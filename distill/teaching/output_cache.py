"""Teacher outputs for the examples of a split, cached on disk for every epoch, run and process.

The files are safetensors, which are mapped into memory and have room for a checksum in their header. Each holds some
thousand tokens of consecutive examples and is written whole or not at all. An interrupted pass goes on with the files
that are missing. Two processes that fill the same directory at once may write a file twice, with the same content.
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
SHARD_TOKENS = 65_536  # The most that an interruption costs; also bounds the memory of a pass.


class OutputCache:
    """The rules for caching a teacher's outputs.

    Args:
        enabled: `auto` caches them where the inputs are the same in every epoch and everything that the objective
            reads can be cached; True makes anything else an error; False runs the teacher in every step.
        hidden: caches the last hidden states of every token too, as float16.
        max_gb: the most that the outputs of one split may take, in GB.
        top_k: over a vocabulary, the largest logits that are cached of every item, with the mass of all others.
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
        """The reason why the teacher runs in every step; None where its outputs are cached.

        Args:
            needs: an output besides the logits -> the terms of the objective that read it.
            fixed_inputs: whether every epoch shows the same inputs.
            hidden_gb: the size of the last hidden states; 0 where that is not known yet.
            needing_all: terms of the objective for which the largest logits over a vocabulary are not enough.

        Raises:
            UserError: with `enabled=true`, for outputs that cannot be cached.
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
                + (f", {_size(hidden_gb)} of disk" if hidden_gb else "")
            )
        if reason is not None and self.enabled is True:
            raise UserError(f"cannot cache teacher outputs (teacher.cache.enabled=true): {reason}; use auto or false")
        return reason

    def layout(self) -> list[int]:
        """The numbers that decide how outputs are spread over files."""
        return [FORMAT, SHARD_TOKENS]

    def open(
        self, directory: Path, lengths: np.ndarray, *, hidden_size: int | None, top_k: bool = False
    ) -> "CachedOutputs":
        """The outputs for examples of these lengths in tokens `[N]`, as far as `directory` holds them.

        Args:
            hidden_size: the width of the hidden states among them; None for none.
            top_k: whether only the largest logits are stored.
        """
        return CachedOutputs(directory, lengths, hidden_size=hidden_size, top_k=top_k)

    def item_bytes(self, classes: int, *, over_vocabulary: bool) -> int:
        """The size of one item's logits."""
        return bytes_per_item(self.top_k) if over_vocabulary else 4 * classes

    def size_gb(self, lengths: np.ndarray, *, logit_bytes: float, hidden_size: int | None) -> float:
        """The size of logits, and of float16 hidden states of examples of these lengths `[N]`, in GB."""
        return (logit_bytes + int(lengths.sum()) * (hidden_size or 0) * 2) / 1e9

    def check_size(self, lengths: np.ndarray, *, logit_bytes: float, hidden_size: int | None) -> float:
        """The size of the outputs of examples of these lengths in tokens `[N]`, in GB.

        Raises:
            UserError: for more than `max_gb`.
        """
        needed = self.size_gb(lengths, logit_bytes=logit_bytes, hidden_size=hidden_size)
        if needed > self.max_gb:
            raise UserError(
                f"the teacher's outputs would take {_size(needed)}, more than teacher.cache.max_gb={self.max_gb:g}: "
                f"raise it, or set teacher.cache.{'hidden' if hidden_size else 'enabled'}=false"
            )
        return needed

    def make_room(self, outputs: "CachedOutputs", examples: int, logit_bytes: float) -> str:
        """Creates the directory for the outputs of the first examples, and returns their size in words.

        Raises:
            UserError: for more than `max_gb`, or than the disk has left.
        """
        needed = self.check_size(outputs.lengths[:examples], logit_bytes=logit_bytes, hidden_size=outputs.hidden_size)
        make_directory(outputs.directory)
        free = shutil.disk_usage(outputs.directory).free / 1e9
        if needed > free:
            raise UserError(
                f"the teacher's outputs would take {_size(needed)} and {outputs.directory} has {_size(free)} left: "
                "give another cache_dir, or set teacher.cache.enabled=false"
            )
        return _size(needed)


class CachedOutputs:
    """The outputs of one teacher for one split, in place of the teacher.

    Every byte is compared with its checksum once, when the files are opened. `damaged` names the files that did not
    match; they are computed again.
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
        """Sends the directory to another process, and no copy of the outputs."""
        made = partial(CachedOutputs, hidden_size=self.hidden_size, top_k=self.top_k)
        return made, (self.directory, self.lengths)

    def missing(self, wanted: int | None = None) -> list[tuple[int, int]]:
        """First and last (excluded) example of every shard that is still to be computed.

        Of the `wanted` first examples, or of all.
        """
        ranges = [self._range(number) for number, shard in enumerate(self._shards) if shard is None]
        return [part for part in ranges if wanted is None or part[0] < wanted]

    def bytes(self) -> int:
        """Size of all files."""
        return sum(path.stat().st_size for path in self.directory.glob("*.safetensors"))

    def add(self, first: int, columns: Mapping[str, Tensor], hidden: Tensor | None) -> None:
        """Stores a shard.

        Args:
            first: its first example.
            columns: over its items, one example after the other: `logits [n, C]`, or those of `take_top_k` with
                `profile [V]`, the mean of the items' log-probabilities. `counts [examples]` are the items of each
                example; without them each has one.
            hidden: `[tokens, H]`, all tokens of these examples one after the other.
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
        """The outputs for a batch, float32: columns of its items, and hidden states `[B, L, H]`, 0 at the padding."""
        ids = batch["example_id"].cpu().numpy()
        numbers = np.searchsorted(self._firsts, ids, side="right") - 1
        columns: list[dict[str, Tensor]] = []
        hidden = []
        for example, number in zip(ids, numbers, strict=True):
            first, shard = self._firsts[number], self._shard(number)
            columns.append(shard.items_of(int(example - first)))
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
        """The share of the probability that the largest logits hold, over all items of a vocabulary."""
        return top_k_mass(torch.cat([shard.tensors["rest"] for shard in self._shards if shard is not None]))

    def logits(self) -> np.ndarray:
        """The logits `[n, C]` of all items, example by example."""
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
        """The shard as it lies on the disk, mapped into memory; None where it is missing or damaged."""
        path = self._path(number)
        if not path.is_file():
            return None
        first, last = self._range(number)
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            whole = metadata == {"sha256": _digest(tensors), "examples": _examples(first, last)}
        except (SafetensorError, OSError, KeyError):
            whole = False
        if not whole:
            self.damaged.append(path)
            return None
        return _Shard(tensors)


class _Shard:
    """The tensors of one file: columns over items, ragged by example."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors
        self._columns = [name for name in ("logits", "top", "ids", "rest") if name in tensors]
        self._ends = tensors["counts"].cumsum(dim=0).tolist() if "counts" in tensors else None

    def items_of(self, example: int) -> dict[str, Tensor]:
        """The columns of one example's items."""
        first, last = example, example + 1
        if self._ends is not None:
            first, last = self._ends[example - 1] if example else 0, self._ends[example]
        return {name: self.tensors[name][first:last] for name in self._columns}


@dataclass(frozen=True)
class CachedPass:
    """Cached outputs for one batch: columns over its items, and the last hidden states."""

    columns: Mapping[str, Tensor]
    hidden_states: tuple[Tensor, ...] | None
    profile: Tensor | None = None
    chunk_size: int | None = None

    def whole(self) -> Outputs:
        """The hidden states."""
        return Outputs(hidden_states=self.hidden_states)

    def at(self, items: Items) -> Outputs | TopKOutputs:
        """The logits `[n, C]` of these items."""
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


def _size(gigabytes: float) -> str:
    return f"{gigabytes:.2f} GB" if gigabytes >= 0.1 else f"{gigabytes * 1e3:.1f} MB"
