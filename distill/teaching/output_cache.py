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
from typing import Any, Literal, cast

import numpy as np
import torch
import transformers
from pydantic import PositiveFloat, PositiveInt
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from distill.contracts import Batch, Items, Outputs, Signal
from distill.errors import UserError
from distill.options import check_arguments
from distill.storage import mirror
from distill.storage.cache import entry_key, lease
from distill.storage.files import atomic_file, make_directory
from distill.teaching.columns import locate_items, unpack_logits
from distill.teaching.draws import Draws
from distill.teaching.draws import bytes_per_item as bytes_of_draws
from distill.teaching.top_k import TopK, bytes_per_item, top_k_mass

FORMAT = 1
_LIBRARIES = {"torch": torch, "transformers": transformers}
MARGIN_GB = 2.0  # Stays free on the disk if `hidden` is `auto`: checkpoints and exported files follow.
SHARD_TOKENS = 65_536  # An interruption loses at most one shard, and the memory of a pass is limited by it.


def library_versions() -> dict[str, str]:
    """Returns the major and minor versions of the libraries whose forward passes may change with them."""
    return {name: ".".join(module.__version__.split(".")[:2]) for name, module in _LIBRARIES.items()}


@dataclass(frozen=True)
class HiddenLayers:
    """The hidden states of a teacher that are cached.

    Args:
        width: size of a hidden state.
        depth: number of layers of the teacher.
        layers: indices of the cached hidden states in ascending order; 0 is the output of the embeddings, `depth` the
            output of the last layer.
    """

    width: int
    depth: int
    layers: tuple[int, ...]

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.width * len(self.layers)

    def key(self) -> int | dict[str, Any]:
        """Returns the part of a cache's key: the width if only the output of the last layer is cached."""
        only_last = self.layers == (self.depth,)
        return self.width if only_last else {"width": self.width, "depth": self.depth, "layers": list(self.layers)}


class OutputCache:
    """The rules for caching a teacher's outputs.

    Args:
        enabled: `auto` caches the outputs if every epoch has the same inputs and all outputs that the objective reads
            can be cached, unless the task predicts every token. True raises an error if they cannot be cached. False
            runs the teacher in every step.
        hidden: whether to cache the hidden states of all tokens too, as float16. `auto` caches them if they fit in
            `max_gb` and on the disk, and if the training reads at least as many of them as caching computes. True
            raises an error if they do not fit, and so does `auto` if `enabled` is True.
        max_gb: largest size of the outputs of one split, in GB.
        draws: over a vocabulary, number of tokens that are drawn for each item from the teacher's distribution at the
            temperature of the terms, and cached in place of its logits; None caches the `top_k`.
        top_k: over a vocabulary, number of the largest logits that are cached for each item without `draws`, with the
            mass of the others.
    """

    @check_arguments
    def __init__(
        self,
        *,
        enabled: Literal["auto"] | bool = "auto",
        hidden: Literal["auto"] | bool = "auto",
        max_gb: PositiveFloat = 8.0,
        draws: PositiveInt | None = 50,
        top_k: PositiveInt = 64,
    ) -> None:
        self.enabled, self.hidden, self.max_gb, self.draws, self.top_k = enabled, hidden, max_gb, draws, top_k

    @property
    def is_optional(self) -> bool:
        """Returns whether hidden states that do not fit are computed in every step, without an error."""
        return self.hidden == "auto" and self.enabled == "auto"

    @property
    def bytes_per_item(self) -> int:
        """Returns the size of what is cached of the logits of an item over a vocabulary, in bytes."""
        return bytes_per_item(self.top_k) if self.draws is None else bytes_of_draws(self.draws)

    def over_vocabulary(self, drawn_at: Mapping[str, float | None]) -> Draws | TopK:
        """Returns what is cached of the logits of an item over a vocabulary.

        Args:
            drawn_at: the terms that read them, with the temperature at which draws are enough for each; None for a
                term for which they are not.

        Raises:
            UserError: for draws from which not all of these terms can learn.
        """
        if self.draws is None:
            return TopK(self.top_k)
        option = f"teacher.cache.draws={self.draws}"
        for name, temperature in drawn_at.items():
            if temperature is None:
                raise UserError(
                    f"the term {name} reads the teacher's largest logits, and {option} caches tokens that were drawn: "
                    "set teacher.cache.draws=null to cache the largest ones"
                )
        temperatures = dict.fromkeys(drawn_at.values())
        if len(temperatures) > 1:
            each = " and ".join(f"{name} {temperature:g}" for name, temperature in drawn_at.items())
            raise UserError(
                f"{option} draws at one temperature, and the terms have several ({each}): give them the same one, or "
                "set teacher.cache.draws=null"
            )
        return Draws(self.draws, next((known for known in temperatures if known is not None), 1.0))

    def is_wanted(self, *, by_default: bool) -> bool:
        """Returns whether outputs that can be cached are.

        Args:
            by_default: whether they are without an option that says so.
        """
        asked = self.enabled is True or self.hidden is True
        return self.enabled is not False and (by_default or asked)

    def obstacle(
        self,
        needs: Mapping[str, list[str]],
        *,
        fixed_inputs: bool,
        by_default: bool = True,
        hidden_gb: float,
        needing_all: Sequence[str] = (),
        unnamed_layers: Sequence[str] = (),
    ) -> str | None:
        """Returns the reason why the teacher runs in every step, None if its outputs are cached.

        Args:
            needs: outputs besides the logits, with the terms of the objective that read them.
            fixed_inputs: whether every epoch has the same inputs.
            by_default: as in `is_wanted`.
            hidden_gb: size of the hidden states in GB, 0 if unknown.
            needing_all: terms of the objective that need more than the top k of the logits over a vocabulary.
            unnamed_layers: terms of the objective that read hidden states and do not name their layers.

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
            reason = f"{', '.join(needs[others[0]])} reads {others[0].replace('_', ' ')}, which cannot be cached"
        elif unnamed_layers:
            reason = f"{', '.join(unnamed_layers)} reads hidden states and its teacher_layers() names none"
        elif "hidden_states" in needs and self.hidden is False:
            reason = (
                f"{', '.join(needs['hidden_states'])} reads hidden states: teacher.cache.hidden=true caches those too"
                + (f", {_format_size(hidden_gb)} of disk" if hidden_gb else "")
            )
        elif not self.is_wanted(by_default=by_default):
            reason = (
                f"what is cached of the logits of every token is {self.bytes_per_item} bytes a token: "
                "teacher.cache.enabled=true caches it"
            )
        if reason is not None and self.enabled is True:
            raise UserError(f"cannot cache teacher outputs (teacher.cache.enabled=true): {reason}; use auto or false")
        return reason

    def key(self, *parts: object) -> str:
        """Returns the name of the directory of outputs that depend on these parts."""
        return entry_key("outputs", FORMAT, SHARD_TOKENS, *parts)[:20]

    def open(
        self, directory: Path, lengths: np.ndarray, *, hidden: HiddenLayers | None, kept: Draws | TopK | None = None
    ) -> "Cached":
        """Opens the cached outputs in `directory` for examples of these lengths in tokens `[N]`.

        Args:
            hidden: the hidden states, None without them.
            kept: what is cached of logits over a vocabulary; None for all logits.
        """
        mirror.try_fetch(directory)
        lease(directory)
        return Cached(directory, lengths, hidden=hidden, kept=kept)

    def size_gb(self, lengths: np.ndarray, *, logit_bytes: float, hidden: HiddenLayers | None) -> float:
        """Returns the size of `logit_bytes` and of float16 hidden states for these lengths `[N]`, in GB."""
        return (logit_bytes + int(lengths.sum()) * (hidden.bytes_per_token if hidden else 0)) / 1e9

    def check_size(self, lengths: np.ndarray, *, logit_bytes: float, hidden: HiddenLayers | None) -> float:
        """Returns the size of the outputs for examples of these lengths in tokens `[N]`, in GB.

        Raises:
            UserError: if it exceeds `max_gb`.
        """
        size = self.size_gb(lengths, logit_bytes=logit_bytes, hidden=hidden)
        if size > self.max_gb:
            option = "hidden" if hidden and self.enabled is not True else "enabled"
            raise UserError(f"{self._too_large(size)}: raise it, or set teacher.cache.{option}=false")
        return size

    def shortage(self, outputs: "Cached", examples: int, logit_bytes: float) -> str | None:
        """Returns the reason why the outputs of the first `examples` do not fit, None if they do.

        They fit if they are within `max_gb` and the disk has `MARGIN_GB` left after the missing ones are written.
        """
        size = self.size_gb(outputs.lengths[:examples], logit_bytes=logit_bytes, hidden=outputs.hidden)
        if size > self.max_gb:
            return self._too_large(size)
        missing, free = self._missing_gb(outputs, examples, logit_bytes), _free_gb(outputs.directory)
        if missing == 0 or missing + MARGIN_GB <= free:
            return None
        return (
            f"the teacher's outputs would take {_format_size(missing)} of the {_format_size(free)} left in "
            f"{outputs.directory.parent}, where {MARGIN_GB:g} GB stay free"
        )

    def make_room(self, outputs: "Cached", examples: int, logit_bytes: float) -> str:
        """Creates the directory for the outputs of the first `examples`, and returns their size in words.

        Raises:
            UserError: if the size exceeds `max_gb`, or that of the missing ones the free space of the disk.
        """
        size = self.check_size(outputs.lengths[:examples], logit_bytes=logit_bytes, hidden=outputs.hidden)
        make_directory(outputs.directory)
        lease(outputs.directory)
        missing, free = self._missing_gb(outputs, examples, logit_bytes), _free_gb(outputs.directory)
        if missing > free:
            raise UserError(
                f"the teacher's outputs would take {_format_size(missing)} and {outputs.directory} has "
                f"{_format_size(free)} left: "
                "give another cache_dir, or set teacher.cache.enabled=false"
            )
        return _format_size(size)

    def _too_large(self, size: float) -> str:
        return f"the teacher's outputs would take {_format_size(size)}, more than teacher.cache.max_gb={self.max_gb:g}"

    def _missing_gb(self, outputs: "Cached", examples: int, logit_bytes: float) -> float:
        """Returns the size of the missing outputs; `logit_bytes` is the size of the logits of all `examples`."""
        ranges = outputs.missing(examples)
        if not ranges:
            return 0.0
        lengths = np.concatenate([outputs.lengths[first:last] for first, last in ranges])
        return self.size_gb(lengths, logit_bytes=logit_bytes * len(lengths) / examples, hidden=outputs.hidden)


class Cached(Signal):
    """The cached outputs of one teacher for one split. Calling it with a batch replaces running the teacher.

    Checksums are compared once, when the files are opened. `damaged` contains the files that do not match, which are
    computed again. `seconds` is the time that this process took to compute outputs.
    """

    seconds = 0.0

    def __init__(
        self, directory: Path, lengths: np.ndarray, *, hidden: HiddenLayers | None, kept: Draws | TopK | None = None
    ) -> None:
        self.directory, self.lengths, self.hidden, self.kept = directory, lengths, hidden, kept
        self._ends = lengths.cumsum()
        # With several layers a shard has fewer tokens, so that the memory of a pass stays the same.
        shard_of = (self._ends - lengths) // max(1, SHARD_TOKENS // (len(hidden.layers) if hidden else 1))
        self._firsts = np.concatenate([[0], np.flatnonzero(np.diff(shard_of)) + 1])
        self._shards: list[dict[str, Tensor] | None] = []  # The tensors of each file.
        self._item_ends: dict[int, dict[str, Sequence[int]]] = {}  # Of a shard, as `locate_items` returns them.
        self.damaged: list[Path] = []
        for number in range(len(self._firsts)):
            self._shards.append(self._read(number))

    def __reduce__(self) -> Any:
        """Pickles only the directory, not the outputs."""
        create = partial(Cached, hidden=self.hidden, kept=self.kept)
        return create, (self.directory, self.lengths)

    def missing(self, examples: int | None = None) -> list[tuple[int, int]]:
        """Returns the first and last (exclusive) example of each missing shard, for the first `examples` or all."""
        ranges = [self._range(number) for number, shard in enumerate(self._shards) if shard is None]
        return [(first, last) for first, last in ranges if examples is None or first < examples]

    def covering(self, examples: int) -> int:
        """Returns the number of examples in the shards that hold the first `examples`, because a shard is whole."""
        number = int(np.searchsorted(self._firsts, examples, side="left"))
        return int(self._range(number - 1)[1]) if examples > 0 else 0

    @property
    def bytes(self) -> int:
        """Returns the size of all files."""
        return sum(path.stat().st_size for path in self.directory.glob("*.safetensors"))

    def add(self, first: int, columns: Mapping[str, Tensor], hidden: Tensor | None) -> None:
        """Stores a shard.

        Args:
            first: first example of the shard.
            columns: outputs of its items in the order of the examples: those of `pack_logits`, or of `kept.pack` with
                `profile [V]`, the mean of the items' log-probabilities. `counts [examples]` are the numbers of items,
                without which each example has one.
            hidden: hidden states of all tokens of these examples, `[tokens, H]`, of several layers
                `[tokens, layers, H]`.
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
            metadata = {"sha256": digest_tensors(tensors), "examples": _examples(first, last)}
            save_file(tensors, temporary, metadata=metadata)
        self._shards[number] = self._read(number)

    def __call__(self, batch: Batch, items: Items) -> Outputs:
        """Returns the outputs for a batch in float32: the logits of its items, and hidden states `[B, L, H]`."""
        ids = batch["example_id"].cpu().numpy()
        numbers = np.searchsorted(self._firsts, ids, side="right") - 1
        columns = [self._items(example, number) for example, number in zip(ids.tolist(), numbers.tolist(), strict=True)]
        device = batch["attention_mask"].device
        joined = {name: torch.cat([column[name] for column in columns]).to(device) for name in columns[0]}
        if "widths" in joined:
            joined = {"logits": unpack_logits(joined["logits"], joined["widths"], items.valid)}
        hidden_states = self.hidden_states(batch) if self.hidden else None
        if self.kept is not None:
            return self.kept.restore(joined, self._shard(0)["profile"].to(device), hidden_states)
        return Outputs(logits=joined["logits"], hidden_states=hidden_states)

    def hidden_states(self, batch: Batch) -> tuple[Tensor, ...]:
        """Returns the hidden states for a batch in float32.

        The tuple has one entry for the embeddings and one for each layer: `[S, L, H]`, 0 for padding, and None for a
        layer that is not cached. S is B, or more if examples have several sequences.
        """
        if self.hidden is None:
            raise ValueError(f"{self.directory} has no hidden states")
        ids = batch["example_id"].cpu().numpy()
        numbers = np.searchsorted(self._firsts, ids, side="right") - 1
        return self._hidden_states(batch["attention_mask"], ids, numbers, self.hidden)

    def _hidden_states(
        self, attention_mask: Tensor, ids: np.ndarray, numbers: np.ndarray, hidden: HiddenLayers
    ) -> tuple[Tensor, ...]:
        """Returns `hidden_states` of the examples `ids` in the shards `numbers`, both `[B]`."""
        device, mask = attention_mask.device, attention_mask.bool().cpu()
        # Padding may be on either side.
        sequences = iter(enumerate(zip(mask.int().argmax(dim=1).tolist(), mask.sum(dim=1).tolist(), strict=True)))
        # A GPU receives half of the bytes, and the copy for a CPU is in float32 at once.
        dtype = torch.float32 if device.type == "cpu" else torch.float16
        states = torch.zeros(len(hidden.layers), *mask.shape, hidden.width, dtype=dtype)
        for example, number in zip(ids, numbers, strict=True):
            first = self._firsts[number]
            end = self._ends[example] - (self._ends[first] - self.lengths[first])
            begin = end - self.lengths[example]
            while begin < end:
                row, (start, length) = next(sequences)
                tokens = self._shard(number)["hidden"][begin : begin + length]
                target = states[:, row, start : start + length]
                target.copy_(tokens.view(length, len(hidden.layers), hidden.width).transpose(0, 1))
                begin += length
        by_layer = dict(zip(hidden.layers, states.to(device).float(), strict=True))
        # No term reads a layer that its `teacher_layers` does not name.
        return cast(tuple[Tensor, ...], tuple(by_layer.get(layer) for layer in range(hidden.depth + 1)))

    def describe(self) -> str:
        """Describes what is cached where."""
        size = f"{self.bytes / 1e6:.1f} MB"
        if isinstance(self.kept, TopK):
            size += f", {self.mass():.1%} of the probability mass"
        if isinstance(self.kept, Draws):
            size += f", {self.kept.number} tokens drawn at temperature {self.kept.temperature:g}"
        if self.hidden:
            size += ", hidden states in float16"
        return f"{self.directory} ({size})"

    def mass(self) -> float:
        """Returns the share of the probability mass that the top k have, over all items; 1 where there are others."""
        if not isinstance(self.kept, TopK):
            return 1.0
        return top_k_mass(torch.cat([shard["rest"] for shard in self._shards if shard is not None]))

    def _items(self, example: int, number: int) -> dict[str, Tensor]:
        """Returns the columns of the items of one example, which is in this shard."""
        tensors, row = self._shard(number), example - int(self._firsts[number])
        return {name: tensors[name][ends[row] : ends[row + 1]] for name, ends in self._item_ends[number].items()}

    def _shard(self, number: int) -> dict[str, Tensor]:
        shard = self._shards[number]
        if shard is None:
            raise ValueError(f"{self._path(number)} is missing: add all shards that missing() names first")
        return shard

    def _range(self, number: int) -> tuple[int, int]:
        ends = [*self._firsts[1:], len(self.lengths)]
        return int(self._firsts[number]), int(ends[number])

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:05}.safetensors"

    def _read(self, number: int) -> dict[str, Tensor] | None:
        """Returns the memory-mapped tensors of a shard, None if it is missing or damaged."""
        path = self._path(number)
        if not path.is_file():
            return None
        first, last = self._range(number)
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            is_intact = metadata == {"sha256": digest_tensors(tensors), "examples": _examples(first, last)}
        except (SafetensorError, OSError, KeyError):
            is_intact = False
        if not is_intact:
            self.damaged.append(path)
            return None
        self._item_ends[number] = locate_items(tensors, last - first)
        return tensors


def _examples(first: int, last: int) -> str:
    return f"{first} to {last}, that one excluded"


def digest_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Returns the SHA-256 of tensors on the CPU with their names, shapes and types."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {tuple(tensors[name].shape)} {tensors[name].dtype}".encode())
        digest.update(tensors[name].numpy().data)
    return digest.hexdigest()


def _free_gb(directory: Path) -> float:
    """Returns the free space of the disk that has or will have this directory, in GB."""
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free / 1e9


def _format_size(gigabytes: float) -> str:
    return f"{gigabytes:.2f} GB" if gigabytes >= 0.1 else f"{gigabytes * 1e3:.1f} MB"
