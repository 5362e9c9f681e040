"""Teacher outputs for the examples of a split, cached on disk: whole logits, their top k, or draws from them.

Draws from a teacher's distribution over a vocabulary, which stand for all of its logits (arXiv 2503.16870). The share
of a token among the draws is an unbiased estimate of its probability, so that the mean gradient of soft targets is that
of the whole distribution. Unlike there, the draws of an item are not independent: they are evenly spaced in the
cumulative distribution, from a random first one on, so that a token with probability p is drawn `number * p` times,
rounded up or down. The estimate has the same mean and less variance.

Teacher outputs for the examples of a split, cached on disk for every epoch, run and process. The files are
memory-mapped safetensors with a checksum in their header. Each contains the outputs for some thousand tokens of
consecutive examples and is written atomically. An interrupted pass continues with the missing files. Two processes that
fill the same directory at once may write a file twice, with the same content.
"""

import hashlib
import math
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

from distill.core import storage
from distill.core.contracts import Batch, Items, Outputs, Signal
from distill.core.errors import UserError
from distill.core.files import atomic_file, free_bytes, make_directory, show_size
from distill.core.options import check_arguments
from distill.core.storage import entry_key, lease
from distill.losses.term import scatter_logits


def locate_items(tensors: Mapping[str, Tensor], examples: int) -> dict[str, Sequence[int]]:
    """Returns for each column of a shard where its examples end: 0, and the rows of all examples up to each."""
    names = [name for name in ("logits", "widths", "top", "ids", "rest", "drawn") if name in tensors]
    ends = _ends(tensors["counts"]) if "counts" in tensors else range(examples + 1)
    located: dict[str, Sequence[int]] = dict.fromkeys(names, ends)
    if "widths" in tensors:
        logit_ends = _ends(tensors["widths"])
        located["logits"] = [logit_ends[end] for end in ends]
    return located


def _ends(counts: Tensor) -> list[int]:
    """Returns 0 and the sum of all counts up to each."""
    return [0, *counts.cumsum(dim=0).tolist()]


def pack_logits(logits: Tensor, valid: Tensor | None) -> dict[str, Tensor]:
    """Returns the columns that are stored of logits `[n, C]`.

    Where only some classes are valid, C is that of a batch and differs from batch to batch. `logits [sum of widths]`
    are then those of the valid classes of each item in turn, and `widths [n]` the numbers of them.
    """
    if valid is None:
        return {"logits": logits}
    valid = valid.to(logits.device)
    return {"logits": logits[valid], "widths": valid.sum(dim=-1)}


def unpack_logits(logits: Tensor, widths: Tensor, valid: Tensor | None) -> Tensor:
    """Returns the logits `[n, C]` of `pack_logits`, as `scatter_logits` does.

    Raises:
        ValueError: if the items have other numbers of valid classes than those that were stored.
    """
    if valid is None or not torch.equal(valid.sum(dim=-1), widths):
        raise ValueError(f"the cached logits are of {len(widths)} items with other valid classes than the batch has")
    return scatter_logits(logits, valid)


def split_items(columns: Mapping[str, Tensor], counts: Tensor) -> dict[str, tuple[Tensor, ...]]:
    """Returns the columns of each example, which has `counts [examples]` items."""
    split = {name: values.split(counts.tolist()) for name, values in columns.items() if name != "logits"}
    if "widths" in columns:
        counts = torch.stack([widths.sum() for widths in split["widths"]])
    if "logits" in columns:
        split["logits"] = columns["logits"].split(counts.tolist())
    return split


_NEVER = -1e4  # The logarithm of the share of a token that was not drawn.


@dataclass(frozen=True)
class Draws:
    """Draws from the distribution at one temperature.

    Args:
        number: draws for each item.
        temperature: of the distribution.
    """

    number: int
    temperature: float

    def key(self) -> list[Any]:
        """Returns the part of a cache's key."""
        return ["draws", self.number, self.temperature]

    @property
    def bytes_per_item(self) -> int:
        """Returns the size of the columns of `pack` for one item."""
        return 4 * self.number

    def pack(self, log_probs: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """Returns the `drawn [n, number]` tokens of distributions `log_probs [n, V]`, each as often as it was drawn.

        Args:
            generator: on the CPU; draws are the same for the same state of it.
        """
        cumulative = (log_probs / self.temperature).softmax(dim=-1).cumsum(dim=-1)
        first = torch.rand(len(log_probs), 1, generator=generator).to(log_probs.device)
        places = (first + torch.arange(self.number, device=log_probs.device)) / self.number  # [n, number]
        # The sum of all may differ from 1 by a rounding error.
        drawn = torch.searchsorted(cumulative, places * cumulative[:, -1:], right=True)
        return {"drawn": drawn.clamp(max=log_probs.shape[-1] - 1).int().cpu()}

    def restore(
        self, columns: Mapping[str, Tensor], profile: Tensor, hidden_states: Sequence[Tensor] | None = None
    ) -> Outputs:
        """Returns outputs whose softened distribution is the share of each token among those drawn.

        Args:
            columns: those of `pack`.
            profile: `[V]`, of which the size alone is read.
        """

        def soften(span: slice, temperature: float) -> Tensor:
            if temperature != self.temperature:
                raise ValueError(
                    f"got temperature {temperature:g}, expected {self.temperature:g}, at which the teacher's tokens "
                    "were drawn"
                )
            drawn = columns["drawn"][span].long()
            counts = torch.zeros(len(drawn), len(profile), device=drawn.device)
            counts.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float32))
            return temperature * (counts / self.number).log().clamp(min=_NEVER)

        return Outputs(hidden_states=hidden_states, soften=soften)


TEMPERATURES = (0.5, 1.0, 2.0, 4.0, 8.0)  # The mass of the other tokens is stored at each of them.
_NO_MASS = -1e4  # The logarithm of a probability of 0.


@dataclass(frozen=True)
class TopK:
    """The `k` largest logits of each item."""

    k: int

    def key(self) -> int:
        """Returns the part of a cache's key."""
        return self.k

    @property
    def bytes_per_item(self) -> int:
        """Returns the size of the columns of `pack` for one item."""
        return self.k * (2 + 4) + 4 * len(TEMPERATURES)

    def pack(self, log_probs: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """Returns the `k` largest of `log_probs [n, V]` as `top [n, k]`, their `ids [n, k]`, and the others' mass.

        `rest [n, 5]` is, at each of `TEMPERATURES`, the logarithm of the sum over all other tokens of their
        probabilities to the power of `1 / T`. Nothing is drawn.
        """
        top, ids = log_probs.topk(min(self.k, log_probs.shape[-1]), dim=-1)
        others = log_probs.scatter(-1, ids, -torch.inf)
        rest = torch.stack([(others / temperature).logsumexp(dim=-1) for temperature in TEMPERATURES], dim=-1)
        return {"top": top.half().cpu(), "ids": ids.int().cpu(), "rest": rest.clamp(min=_NO_MASS).cpu()}

    def restore(
        self, columns: Mapping[str, Tensor], profile: Tensor, hidden_states: Sequence[Tensor] | None = None
    ) -> Outputs:
        """Returns outputs whose logits `restore_logits` computes for the items and the temperature of a term."""

        def soften(span: slice, temperature: float) -> Tensor:
            return restore_logits({name: column[span] for name, column in columns.items()}, profile, temperature)

        return Outputs(hidden_states=hidden_states, soften=soften)


def top_k_mass(rest: Tensor) -> float:
    """Returns the mean share of the probability mass that the top k have, from `rest [n, 5]`."""
    return float(1 - rest[:, TEMPERATURES.index(1.0)].exp().mean())


def restore_logits(columns: Mapping[str, Tensor], profile: Tensor, temperature: float) -> Tensor:
    """Returns logits `[n, V]` whose softmax at a temperature is the teacher's softened distribution.

    The mass of the tokens outside the top k is distributed as on average over all items. It is exact at `TEMPERATURES`
    and interpolated between them. The teacher's predictions for one context beyond the top k are lost (docs/results.md
    has the cost).

    Args:
        columns: `top [n, k]`, `ids [n, k]` and `rest [n, 5]`, as `TopK.pack` returns them.
        profile: `[V]`, the mean of the teacher's log-probabilities over many items.
    """
    top, ids, profile = columns["top"].float(), columns["ids"].long(), profile.float()
    weights = (profile / temperature).softmax(dim=-1)
    # The profile's share of the tokens outside the top k.
    others = (1 - weights[ids].sum(dim=-1)).clamp(min=torch.finfo(weights.dtype).eps).log()
    rest = _interpolate_rest(columns["rest"], top, temperature, tokens=len(profile))
    share = rest - others - (profile / temperature).logsumexp(dim=-1)
    logits = profile + temperature * share.unsqueeze(-1)
    return logits.scatter(-1, ids, top)


def _interpolate_rest(rest: Tensor, top: Tensor, temperature: float, *, tokens: int) -> Tensor:
    """Returns the logarithm of the sum of the others' probabilities to the power of 1 / T, `[n]`."""
    power, powers = 1 / temperature, [1 / known for known in TEMPERATURES]
    if power > powers[0]:  # The largest of the others dominates, and it is at most the smallest of the top k.
        return rest[:, 0] + (power - powers[0]) * top[:, -1]
    # The function of 1 / T is smooth, and at 0 the sum is the number of the others.
    powers.append(0.0)
    log_count = math.log(max(1, tokens - top.shape[-1]))
    values = torch.cat([rest, torch.full_like(rest[:, :1], log_count)], dim=-1)
    # Lagrange's polynomial through all known values.
    weights = [math.prod((power - other) / (known - other) for other in powers if other != known) for known in powers]
    # A matrix product would be in bf16 under autocast.
    return (values * values.new_tensor(weights)).sum(dim=-1)


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
        kept = TopK(self.top_k) if self.draws is None else Draws(self.draws, temperature=1.0)
        return kept.bytes_per_item

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
                + (f", {show_size(hidden_gb * 1e9)} of disk" if hidden_gb else "")
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
        storage.try_fetch(directory)
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
        missing, free = self._missing_gb(outputs, examples, logit_bytes), free_bytes(outputs.directory) / 1e9
        if missing == 0 or missing + MARGIN_GB <= free:
            return None
        return (
            f"the teacher's outputs would take {show_size(missing * 1e9)} of the {show_size(free * 1e9)} left in "
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
        missing, free = self._missing_gb(outputs, examples, logit_bytes), free_bytes(outputs.directory) / 1e9
        if missing > free:
            raise UserError(
                f"the teacher's outputs would take {show_size(missing * 1e9)} and {outputs.directory} has "
                f"{show_size(free * 1e9)} left: "
                "give another cache_dir, or set teacher.cache.enabled=false"
            )
        return show_size(size * 1e9)

    def _too_large(self, size: float) -> str:
        return (
            f"the teacher's outputs would take {show_size(size * 1e9)}, more than teacher.cache.max_gb={self.max_gb:g}"
        )

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
        columns = [self._items(example, number) for example, number in self._locate(batch)]
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
        hidden = self.hidden
        if hidden is None:
            raise ValueError(f"{self.directory} has no hidden states")
        device, mask = batch["attention_mask"].device, batch["attention_mask"].bool().cpu()
        # Padding may be on either side.
        sequences = iter(enumerate(zip(mask.int().argmax(dim=1).tolist(), mask.sum(dim=1).tolist(), strict=True)))
        # A GPU receives half of the bytes, and the copy for a CPU is in float32 at once.
        dtype = torch.float32 if device.type == "cpu" else torch.float16
        states = torch.zeros(len(hidden.layers), *mask.shape, hidden.width, dtype=dtype)
        for example, number in self._locate(batch):
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

    def _locate(self, batch: Batch) -> list[tuple[int, int]]:
        """Returns each example of a batch with the number of its shard."""
        ids = batch["example_id"].cpu().numpy()
        numbers = np.searchsorted(self._firsts, ids, side="right") - 1
        return list(zip(ids.tolist(), numbers.tolist(), strict=True))

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
