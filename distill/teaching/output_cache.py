"""What a teacher said about the examples of a split, kept on disk: asked once, read by every epoch, run and process.

The files are safetensors: mapped into memory as they are, in a format that anything reads, with room in the header
for a checksum. Each holds some thousand tokens of consecutive examples and is written whole or not at all. So an
interrupted pass goes on with the files that are missing, and two processes that fill the same directory at once may
write a file twice, with the same content, and never half of one.
"""

import hashlib
import math
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import PositiveFloat, PositiveInt
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers.modeling_outputs import SequenceClassifierOutput

from distill.errors import UserError
from distill.files import make_directory, replaced
from distill.options import check_arguments

FORMAT = 3
TEMPERATURES = (0.5, 1.0, 2.0, 4.0, 8.0)  # At which it is known what the smaller logits of a vocabulary have together.
_NOTHING = -1e4  # The logarithm of no probability at all.
SHARD_TOKENS = 65_536  # What an interruption costs at most; also bounds the memory of a pass.


class OutputCache:
    """What to keep of a teacher's outputs, and how much.

    Args:
        enabled: `auto` keeps them where the inputs are the same in every epoch, and hidden states, if the objective
            reads them, are kept too; True insists on that; False asks the teacher again for every batch.
        hidden: keep the last hidden states of every token too, as float16.
        max_gb: the most that the outputs of one split may take, in GB.
        top_k: over a vocabulary, the largest logits that are kept of every item, with what all others share.
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
        self, needs: Mapping[str, list[str]], *, fixed_inputs: bool, hidden_gb: float, wanting_all: Sequence[str] = ()
    ) -> str | None:
        """Why the teacher is asked again for every batch; None where its outputs are kept.

        Args:
            needs: an output beside the logits -> the terms of the objective that read it.
            fixed_inputs: whether every epoch shows the same inputs.
            hidden_gb: what the last hidden states would take; 0 where that is not known yet.
            wanting_all: terms of the objective for which the largest logits at the predicted tokens will not do.

        Raises:
            UserError: when `enabled=true` cannot be.
        """
        if self.enabled is False:
            return "teacher.cache.enabled=false"
        reason = None
        if not fixed_inputs:
            reason = "the inputs change every epoch"
        elif wanting_all:
            reason = f"{', '.join(wanting_all)} wants all logits, and the largest at the masked tokens are kept"
        elif others := sorted(set(needs) - {"hidden_states"}):
            reason = f"{', '.join(needs[others[0]])} reads {others[0]}, which are never kept"
        elif "hidden_states" in needs and not self.hidden:
            reason = (
                f"{', '.join(needs['hidden_states'])} reads hidden states: teacher.cache.hidden=true keeps those too"
                + (f", {_size(hidden_gb)} of disk" if hidden_gb else "")
            )
        if reason is not None and self.enabled is True:
            raise UserError(f"teacher.cache.enabled=true cannot be: {reason}")
        return reason

    def layout(self) -> list[int]:
        """What decides how outputs are spread over files."""
        return [FORMAT, SHARD_TOKENS]

    def open(
        self, directory: Path, lengths: np.ndarray, *, hidden_size: int | None, vocabulary: int | None = None
    ) -> "KeptOutputs":
        """The outputs for examples of these lengths in tokens `[N]`, as far as `directory` holds them.

        With `hidden_size` the hidden states are among them; with `vocabulary` the logits are of so many tokens.
        """
        return KeptOutputs(directory, lengths, hidden_size=hidden_size, vocabulary=vocabulary)

    def shortened(self, log_probs: Tensor) -> dict[str, Tensor]:
        """What is kept of `log_probs [n, V]`: the `top_k` largest, their tokens, and the others' mass.

        `rest [n, 5]` is the logarithm of what all other tokens have together at each of `TEMPERATURES`: the sum of
        their probabilities to the power of `1 / T`.
        """
        top, ids = log_probs.topk(min(self.top_k, log_probs.shape[-1]), dim=-1)
        others = log_probs.scatter(-1, ids, -torch.inf)
        rest = torch.stack([(others / temperature).logsumexp(dim=-1) for temperature in TEMPERATURES], dim=-1)
        return {"top": top.half().cpu(), "ids": ids.int().cpu(), "rest": rest.clamp(min=_NOTHING).cpu()}

    def item_bytes(self) -> int:
        """What `shortened` takes of one item."""
        return self.top_k * (2 + 4) + 4 * len(TEMPERATURES)

    def size_gb(self, lengths: np.ndarray, *, logit_bytes: float, hidden_size: int | None) -> float:
        """What so many bytes of logits and float16 hidden states of examples of these lengths in tokens `[N]` take."""
        return (logit_bytes + int(lengths.sum()) * (hidden_size or 0) * 2) / 1e9

    def check_size(self, lengths: np.ndarray, *, logit_bytes: float, hidden_size: int | None) -> float:
        """What the outputs of examples of these lengths in tokens `[N]` take, in GB.

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

    def make_room(self, kept: "KeptOutputs", asked: int, logit_bytes: float) -> str:
        """The directory for the outputs of the first examples that are asked for, and what they take, in words.

        Raises:
            UserError: for more than `max_gb`, or than the disk has left.
        """
        needed = self.check_size(kept.lengths[:asked], logit_bytes=logit_bytes, hidden_size=kept.hidden_size)
        make_directory(kept.directory)
        free = shutil.disk_usage(kept.directory).free / 1e9
        if needed > free:
            raise UserError(
                f"the teacher's outputs would take {_size(needed)} and {kept.directory} has {_size(free)} left: "
                "give another cache_dir, or set teacher.cache.enabled=false"
            )
        return _size(needed)


class KeptOutputs:
    """The outputs of one teacher for one split: `outputs(batch)` in place of the teacher's own answer.

    Every byte is compared with its checksum once, when the files are opened. `damaged` names those that did not hold
    what they should; they are made again.
    """

    def __init__(
        self, directory: Path, lengths: np.ndarray, *, hidden_size: int | None, vocabulary: int | None = None
    ) -> None:
        self.directory, self.lengths, self.hidden_size = directory, lengths, hidden_size
        self.vocabulary = vocabulary
        self._ends = lengths.cumsum()
        shard_of = (self._ends - lengths) // SHARD_TOKENS
        self._firsts = np.concatenate([[0], np.flatnonzero(np.diff(shard_of)) + 1])
        self._shards: list[dict[str, Tensor] | None] = []
        self.damaged: list[Path] = []
        for number in range(len(self._firsts)):
            self._shards.append(self._read(number))

    def __reduce__(self) -> Any:
        """To another process goes the place, and no copy."""
        made = partial(KeptOutputs, hidden_size=self.hidden_size, vocabulary=self.vocabulary)
        return made, (self.directory, self.lengths)

    def missing(self, wanted: int | None = None) -> list[tuple[int, int]]:
        """First and last (excluded) example of every part that is still to be asked of the teacher.

        Of the `wanted` first examples, or of all.
        """
        found = [self._range(number) for number, shard in enumerate(self._shards) if shard is None]
        return [part for part in found if wanted is None or part[0] < wanted]

    def bytes(self) -> int:
        """Size of all files."""
        return sum(path.stat().st_size for path in self.directory.glob("*.safetensors"))

    def add(self, first: int, said: Mapping[str, Tensor], hidden: Tensor | None) -> None:
        """Keep a part: `hidden [tokens, H]`, all tokens of these examples one after the other, and what was `said`.

        That is `logits [n, C]`, or of a vocabulary what `OutputCache.shortened` makes of all items, with `counts [n]`,
        how many of them each example has, and `profile [V]`, the mean of their log-probabilities.
        """
        number = int(np.searchsorted(self._firsts, first))
        last = self._range(number)[1]
        # One profile is enough for all parts.
        kept = {name: values for name, values in said.items() if name != "profile" or number == 0}
        tensors = {name: values.cpu().contiguous() for name, values in kept.items()}
        if hidden is not None:
            tensors["hidden"] = hidden.to(device="cpu", dtype=torch.float16).contiguous()
        path = self._path(number)
        with replaced(path) as temporary:
            save_file(tensors, temporary, metadata={"sha256": _digest(tensors), "examples": _examples(first, last)})
        self._shards[number] = self._read(number)

    def outputs(self, batch: Mapping[str, Tensor]) -> "SequenceClassifierOutput | ShortenedLogits":
        """Logits `[B, C]` and, where they are kept, the last hidden states `[B, L, H]`, 0 at the padding, float32.

        Of a vocabulary the logits are shortened ones, of all items one after the other.
        """
        ids = batch["example_id"].cpu().numpy()
        numbers = np.searchsorted(self._firsts, ids, side="right") - 1
        logits, hidden = [], []
        for example, number in zip(ids, numbers, strict=True):
            first, shard = self._firsts[number], self._part(number)
            logits.append(self._said(shard, int(example - first)))
            if "hidden" in shard:
                begin = self._ends[example] - self.lengths[example] - (self._ends[first] - self.lengths[first])
                hidden.append(shard["hidden"][begin : begin + self.lengths[example]])
        device = batch["attention_mask"].device
        states = None
        if hidden:
            mask = batch["attention_mask"].bool()
            states = torch.zeros(*mask.shape, hidden[0].shape[-1], device=device)
            states[mask] = torch.cat(hidden).to(device).float()
        hidden_states = None if states is None else (states,)
        if self.vocabulary is None:
            said = torch.stack([values["logits"] for values in logits]).to(device)
            return SequenceClassifierOutput(logits=said, hidden_states=hidden_states)
        columns = {name: torch.cat([values[name] for values in logits]).to(device) for name in ("top", "ids", "rest")}
        profile = self._part(0)["profile"].to(device)
        return ShortenedLogits(**columns, profile=profile, hidden_states=hidden_states)

    def _said(self, shard: Mapping[str, Tensor], index: int) -> dict[str, Tensor]:
        """What is kept of one example of a part: `logits [C]`, or of a vocabulary's items what `shortened` makes."""
        if self.vocabulary is None:
            return {"logits": shard["logits"][index]}
        ends = shard["counts"].cumsum(dim=0)
        items = slice(int(ends[index] - shard["counts"][index]), int(ends[index]))
        return {name: shard[name][items] for name in ("top", "ids", "rest")}

    def mass(self) -> float:
        """The share of the probability that the largest logits hold, over all items of a vocabulary."""
        rest = torch.cat([shard["rest"][:, TEMPERATURES.index(1.0)] for shard in self._shards if shard is not None])
        return float(1 - rest.exp().mean())

    def logits(self) -> np.ndarray:
        """Those of all examples `[N, C]`."""
        return np.concatenate([self._part(number)["logits"].numpy() for number in range(len(self._shards))])

    def _part(self, number: int) -> dict[str, Tensor]:
        part = self._shards[number]
        if part is None:
            raise ValueError(f"{self._path(number)} is missing: fill all that missing() names first")
        return part

    def _range(self, number: int) -> tuple[int, int]:
        ends = [*self._firsts[1:], len(self.lengths)]
        return int(self._firsts[number]), int(ends[number])

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:05}.safetensors"

    def _read(self, number: int) -> dict[str, Tensor] | None:
        """The part as it lies on the disk, mapped into memory; None where it is not there or not what it should be."""
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
        return tensors if whole else None


class ShortenedLogits:
    """A teacher's output over a vocabulary of which the largest logits are known, and what the others have together.

    The others share that as they do on average, wherever a token is masked; how much it is at the temperature that is
    asked for is exact at `TEMPERATURES` and interpolated between them. So what the teacher knows of a context beyond
    its largest logits is lost, and a student learns that loss too (benchmarks/README.md).

    Args:
        top, ids: log-probabilities `[n, k]` and their tokens.
        rest: `[n, 5]`, as `OutputCache.shortened` makes it.
        profile: `[V]`, the mean of the teacher's log-probabilities over many items.
    """

    def __init__(
        self, top: Tensor, ids: Tensor, rest: Tensor, *, profile: Tensor, hidden_states: tuple[Tensor] | None = None
    ) -> None:
        self.top, self.ids, self.rest = top, ids, rest
        self.profile, self.hidden_states = profile, hidden_states

    def part(self, first: int, last: int) -> "ShortenedLogits":
        """Of the items from first to last, that one excluded."""
        columns = (values[first:last] for values in (self.top, self.ids, self.rest))
        return ShortenedLogits(*columns, profile=self.profile)

    @property
    def logits(self) -> Tensor:
        """`[1, n, V]`, for what does not soften them."""
        return self.logits_at(1.0)

    def logits_at(self, temperature: float) -> Tensor:
        """`[1, n, V]` that have the teacher's softened probabilities once they are divided by this temperature."""
        ids, profile = self.ids.long(), self.profile.float()
        weights = (profile / temperature).softmax(dim=-1)
        # What the profile gives to the others: all of it, but for the tokens that are known.
        others = (1 - weights[ids].sum(dim=-1)).clamp(min=torch.finfo(weights.dtype).eps).log()
        share = self._rest_at(temperature) - others - (profile / temperature).logsumexp(dim=-1)
        logits = profile + temperature * share.unsqueeze(-1)
        return logits.scatter(-1, ids, self.top.float()).unsqueeze(0)

    def _rest_at(self, temperature: float) -> Tensor:
        """The logarithm of the sum of the others' probabilities to the power of 1 / T, `[n]`."""
        wanted, powers = 1 / temperature, [1 / known for known in TEMPERATURES]
        if wanted > powers[0]:  # There the largest of them decides, and it is smaller than the smallest that is known.
            return self.rest[:, 0] + (wanted - powers[0]) * self.top[:, -1].float()
        # As a function of 1 / T it is smooth, and at 0 it is known too: every token counts as one.
        powers.append(0.0)
        counted = math.log(max(1, len(self.profile) - self.top.shape[-1]))
        values = torch.cat([self.rest, torch.full_like(self.rest[:, :1], counted)], dim=-1)
        # Lagrange's polynomial through all that is known.
        shares = [
            math.prod((wanted - other) / (power - other) for other in powers if other != power) for power in powers
        ]
        # A product of matrices would be in bf16 under autocast.
        return (values * values.new_tensor(shares)).sum(dim=-1)


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
