"""Batches of tokenized examples of similar length, and steps that mix them with texts without labels."""

import copy
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from distill.core.contracts import IGNORED, TARGET_MASK, TAUGHT, BatchOptions, EncodedSplits, Examples, Loader
from distill.core.errors import UserError
from distill.data import tokenization

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from distill.data.streams import ShardedPool


CollatedBatch = dict[str, Tensor]
Step = list[list[int]]
Pass = Sequence[np.ndarray]  # The examples of a forward pass of all ranks, in parts of which each rank has its share.
POOL = 50  # Micro-batches that are sorted by length together; more reduce padding and randomness.
SCORED_TOKENS = 2048  # In a forward pass without gradients; more do not fit into the caches of a CPU.
ACCELERATOR_TOKENS = 16_384  # The same on a GPU.
COUNTED = 1 << 20  # Tokens whose ids are looked at together, those of a corpus need much memory.


class Batches(BatchOptions, total=False):
    """The options of `Buckets`."""

    rank: int


@dataclass(frozen=True)
class TokenRows:
    """Examples of one or several sequences of tokens, which are not padded.

    Args:
        columns: `[tokens]`, those of all sequences.
        starts: the first token of each sequence, `[S]`.
        lengths: of the sequences in tokens, `[S]`.
        counts: number of sequences of each example, `[B]`; they follow one another.
        per_example: further columns, `[B, ...]`.
        targets: the tokens that a decoder writes, `[tokens]`, and their number for each example, `[B]`; None without.
    """

    columns: Mapping[str, np.ndarray]
    starts: np.ndarray
    lengths: np.ndarray
    counts: np.ndarray
    per_example: dict[str, np.ndarray]
    targets: tuple[np.ndarray, np.ndarray] | None = None

    @cached_property
    def firsts(self) -> np.ndarray:
        """The first sequence of each example, `[B]`."""
        firsts: np.ndarray = self.counts.cumsum() - self.counts
        return firsts

    def select(self, chosen: np.ndarray) -> "TokenRows":
        """Returns these examples, whose sequences follow one another, without their targets."""
        counts = self.counts[chosen]
        sequences = token_positions(self.firsts[chosen], counts)
        lengths = self.lengths[sequences]
        positions = token_positions(self.starts[sequences], lengths)
        columns = {name: values[positions] for name, values in self.columns.items()}
        per_example = {name: values[chosen] for name, values in self.per_example.items()}
        return TokenRows(columns, lengths.cumsum() - lengths, lengths, counts, per_example)

    def __add__(self, other: "TokenRows") -> "TokenRows":
        """Returns these examples, all of whose tokens are their own, and then the others."""
        return TokenRows(
            {name: np.concatenate([values, other.columns[name]]) for name, values in self.columns.items()},
            np.concatenate([self.starts, other.starts + self.lengths.sum()]),
            np.concatenate([self.lengths, other.lengths]),
            np.concatenate([self.counts, other.counts]),
            {name: np.concatenate([values, other.per_example[name]]) for name, values in self.per_example.items()},
        )


class PaddedExamples(Dataset[CollatedBatch]):
    """Examples as a training reads them. An index is a list of examples, which are padded together to a micro-batch.

    The attributes are those of `contracts.Examples`, and the following ones.

    Attributes:
        longest: length of the longest sequence of tokens.
        longest_target: the same of the targets.
        padding: the padding value of each column.
        pads_left: whether to pad before the sequences instead of behind them.
    """

    visits: int | None = 1
    classes_per_item: float | None = None
    lengths: np.ndarray
    longest: int
    longest_target = 0
    padding: dict[str, int]
    pads_left: bool

    def take(self, chosen: np.ndarray) -> TokenRows:
        """Returns these examples."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, indices: Sequence[int]) -> CollatedBatch:
        chosen = np.asarray(indices)
        rows = self.take(chosen)
        batch = pad_columns(rows.columns, rows.lengths, longest=self.longest, padding=self.padding, left=self.pads_left)
        if rows.targets is not None:
            # They are padded behind their tokens, because a decoder reads from left to right.
            ids, lengths = rows.targets
            written = pad_columns(
                {"labels": ids}, lengths, longest=self.longest_target, padding={"labels": IGNORED}, left=False
            )
            batch |= {"labels": written["labels"], TARGET_MASK: written["attention_mask"]}
        batch["example_id"] = chosen
        return {name: torch.from_numpy(array) for name, array in (batch | rows.per_example).items()}


class TokenizedExamples(PaddedExamples):
    """One tokenized split.

    `lengths [N]` are in tokens. `truncated` is the number of truncated sequences. `digest` is a digest of all token
    ids. `rows [N]` is the row of the split that each shows, None where an example is a whole row.

    Args:
        encoded: the tokens of all examples.
        tokenizer: determines the padding.
        rows: the sequences of `encoded` to use; None uses all.
        per_example: further columns `[N]` of the batches, such as `labels`.
        per_token: further columns `[tokens]`. Columns that a model does not read are padded with -100.
        items_per_example: mean number of items.
        classes_per_item: mean number of classes that an item can have; None for all outputs of the model's head.
        valid: `[N, K]` (bool), which of K sequences of tokens each example has, and a column of the batches. `encoded`
            has them one after another. The length of an example is then that of its longest sequence, times the largest
            number of sequences, so that examples with sequences of similar length share a batch. None for examples of
            one sequence.
        targets: the tokens that a decoder writes for each example, which are columns `labels` and
            `decoder_attention_mask`, `[B, T]`, of the batches. They count among the tokens of an example. None for
            examples without a target.

    Attributes:
        streamed: texts in shards, with which a training mixes the examples; None without.
    """

    streamed: "ShardedPool | None" = None

    def __init__(
        self,
        encoded: tokenization.Tokens,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        rows: np.ndarray | None = None,
        per_example: Mapping[str, np.ndarray] | None = None,
        per_token: Mapping[str, np.ndarray] | None = None,
        items_per_example: float = 1.0,
        classes_per_item: float | None = None,
        valid: np.ndarray | None = None,
        targets: tokenization.Tokens | None = None,
    ) -> None:
        self.digest, self.truncated = encoded.digest, encoded.truncated
        self.items_per_example, self.classes_per_item = items_per_example, classes_per_item
        chosen = slice(None) if rows is None else rows
        lengths = np.diff(encoded.offsets)[chosen]  # Of the sequences.
        self.lengths = self.tokens = lengths
        self.sequences, self.longest = np.ones_like(lengths), int(lengths.max())
        # Columns that are memory-mapped are pickled as their path.
        columns = {**encoded.columns, **per_token} if per_token else encoded.columns
        self._rows = TokenRows(columns, encoded.offsets[:-1][chosen], lengths, self.sequences, dict(per_example or {}))
        if valid is not None:
            self._group(valid)
        self._targets = targets
        if targets is not None:
            self._add_targets(np.diff(targets.offsets))
            self.digest = hashlib.sha256(f"{self.digest} {targets.digest}".encode()).hexdigest()
        self.padding = dict.fromkeys(columns, IGNORED) | padding_values(tokenizer)
        self.rows = None if encoded.rows is None else encoded.rows[chosen]
        self.pads_left = tokenizer.padding_side == "left"

    def _group(self, valid: np.ndarray) -> None:
        """Makes every example of its sequences."""
        counts = valid.sum(axis=1)
        self._rows = rows = replace(self._rows, counts=counts, per_example={**self._rows.per_example, "valid": valid})
        self.sequences = np.full(len(valid), counts.max())
        self.tokens = np.add.reduceat(rows.lengths, rows.firsts)
        self.lengths = self.sequences * np.maximum.reduceat(rows.lengths, rows.firsts)
        self.digest = hashlib.sha256(f"{self.digest} {counts.tolist()}".encode()).hexdigest()

    def _add_targets(self, lengths: np.ndarray) -> None:
        """Makes every example of its tokens and those of its target, whose lengths are `[N]`."""
        self.lengths, self.tokens = self.lengths + lengths, self.tokens + lengths
        self.items_per_example, self.longest_target = float(lengths.mean()), int(lengths.max())

    def take(self, chosen: np.ndarray) -> TokenRows:
        rows = self._rows.select(chosen)
        if self._targets is None:
            return rows
        offsets = self._targets.offsets
        lengths = np.diff(offsets)[chosen]
        ids = self._targets.columns["input_ids"][token_positions(offsets[:-1][chosen], lengths)]
        return replace(rows, targets=(ids, lengths))

    def column(self, name: str) -> np.ndarray:
        """Returns a column of the tokens of all examples, `[tokens]`."""
        return self._rows.columns[name]

    @property
    def is_taught_in_part(self) -> bool:
        """Returns whether the teacher has no outputs for some of the items."""
        return TAUGHT in self._rows.columns or TAUGHT in self._rows.per_example

    def example_of_tokens(self) -> np.ndarray:
        """Returns the example of each token, where an example is one sequence, `[tokens]`."""
        return np.repeat(np.arange(len(self)), self._rows.lengths)

    def with_column(self, name: str, values: np.ndarray, *, of_tokens: bool) -> Self:
        """Returns the examples with a further column of their batches, `[tokens]` or `[N]`."""
        other, rows = copy.copy(self), self._rows
        if of_tokens:
            other._rows = replace(rows, columns={**rows.columns, name: values})
        else:
            other._rows = replace(rows, per_example={**rows.per_example, name: values})
        other.padding = {name: IGNORED, **self.padding}
        return other

    def select(self, chosen: np.ndarray) -> Self:
        """Returns these examples, which have no targets."""
        other = copy.copy(self)
        other._rows = self._rows.select(chosen)
        other.lengths, other.tokens, other.sequences = (
            values[chosen] for values in (self.lengths, self.tokens, self.sequences)
        )
        return other

    def mixed_with(self, streamed: "ShardedPool | None") -> Self:
        """Returns the examples, with which a training mixes the texts of a pool."""
        other = copy.copy(self)
        other.streamed = streamed
        return other

    def pieces(self) -> np.ndarray | None:
        """Returns the ids of all tokens of the batches, ascending, `[n]`; None with targets, which a decoder reads."""
        if self._targets is not None:
            return None
        ids, padding = self._rows.columns["input_ids"], self.padding["input_ids"]
        has_piece = np.zeros(1 + max(int(ids.max()), padding), dtype=bool)
        has_piece[padding] = True
        for start in range(0, len(ids), COUNTED):
            has_piece[ids[start : start + COUNTED]] = True
        return np.flatnonzero(has_piece)

    def training_loader(self, *, steps: int | None, **batches: Unpack[BatchOptions]) -> Loader:
        """Returns a loader of shuffled optimizer steps; `batches` are arguments of `LengthBuckets`."""
        if self.streamed is not None:
            return self.streamed.training_loader(self, steps=steps, **batches)
        return bucket_loader(self, **batches)


def join_pieces(parts: Iterable[Examples]) -> np.ndarray | None:
    """Returns the ids of all tokens of the batches of several examples, as in `Examples.pieces`."""
    pieces = [part.pieces() for part in parts]
    known = [ids for ids in pieces if ids is not None]
    return np.unique(np.concatenate(known)) if len(known) == len(pieces) else None


def padding_values(tokenizer: "PreTrainedTokenizerBase") -> dict[str, int]:
    """Returns the padding value of each column."""
    return {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}


def token_positions(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns the positions of all tokens of sequences with these starts and lengths `[S]`, `[tokens]`."""
    positions: np.ndarray = np.arange(lengths.sum()) + np.repeat(starts - (lengths.cumsum() - lengths), lengths)
    return positions


def pad_columns(
    columns: Mapping[str, np.ndarray], lengths: np.ndarray, *, longest: int, padding: Mapping[str, int], left: bool
) -> dict[str, np.ndarray]:
    """Returns columns `[S, L]` with their `attention_mask` from columns `[tokens]` of sequences of `lengths [S]`.

    Args:
        longest: length of the longest sequence of the split, the largest L unless one of these is longer.
        padding: padding value of each column.
        left: whether to pad before the sequences instead of behind them.
    """
    most = int(lengths.max())
    mask = np.arange(padded_length(most, max(most, longest))) < lengths[:, None]
    if left:
        mask = mask[:, ::-1]
    batch = {}
    for name, values in columns.items():
        dtype = values.dtype if values.dtype.kind == "f" else np.int64
        batch[name] = np.full(mask.shape, padding[name], dtype=dtype)
        batch[name][mask] = values
    return {**batch, "attention_mask": mask.astype(np.int64)}


def padded_length(longest: int, most: int) -> int:
    """Returns the length to which a batch is padded: at most 1/16 above its longest example, and at most `most`.

    This limits the number of lengths, because oneDNN caches kernels for each of them: 55 lengths instead of 44 take
    another 100 MB.
    """
    step = 1 << max(0, int(longest).bit_length() - 5)
    return min(-(-int(longest) // step) * step, int(most))


class Buckets(Sampler[Step]):
    """Samples the steps of an epoch. A step is a list of micro-batches, each a list of examples of similar length.

    With `world` ranks, micro-batches are `world` times as large, and each rank gets its part of every one. All ranks
    thus process texts of the same lengths, and together the batches of one process with a larger `batch_size`.

    Args:
        lengths: of all examples in tokens, `[N]`.
        batch_size: examples of a micro-batch.
        batch_tokens: tokens of a micro-batch including padding, at most.
        accumulate: micro-batches of a step.
        seed: of the order, with the epoch.

    Attributes:
        skip: steps of the next epoch that a resumed training has finished.

    Raises:
        UserError: for an example that is longer than a micro-batch.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        *,
        batch_size: float | None = None,
        batch_tokens: int | None = None,
        accumulate: int = 1,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.lengths, self.longest, self.accumulate = lengths, int(lengths.max()), accumulate
        if batch_tokens is not None and batch_tokens < self.longest:
            raise UserError(
                f"got batch_tokens={batch_tokens}, expected at least {self.longest}, the length of the longest example"
            )
        self.batch_size, self.batch_tokens, self.seed = batch_size, batch_tokens, seed
        self.rank, self.world, self.skip, self.epoch = rank, world, 0, 0
        self.sampler = self  # Lightning calls its `set_epoch`.
        self._micro_batches = 0  # Of an epoch.

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-self._micro_batches // self.accumulate)

    def __iter__(self) -> Iterator[Step]:
        micro_batches = self.sample_passes()
        first, self.skip = self.skip, 0
        for start in range(first * self.accumulate, len(micro_batches), self.accumulate):
            passes = itertools.chain(*micro_batches[start : start + self.accumulate])
            yield [np.concatenate([part[self.rank :: self.world] for part in one]).tolist() for one in passes]

    def sample_passes(self) -> list[list[Pass]]:
        """Returns the forward passes of each micro-batch of the epoch in order."""
        raise NotImplementedError

    def indices(self) -> np.ndarray:
        """Returns the examples of the epoch; one that is shown twice occurs twice."""
        return np.arange(len(self.lengths))

    def median_batch(self, size: int) -> list[int]:
        """Returns `size` examples of median length."""
        shown = self.indices()
        by_length = shown[np.argsort(self.lengths[shown], kind="stable")]
        middle = max(0, (len(by_length) - size) // 2)
        chosen: list[int] = by_length[middle : middle + size].tolist()
        return chosen

    def padding(self) -> float:
        """Returns the share of padding among the tokens of an epoch."""
        examples = [np.concatenate(one) % len(self.lengths) for passes in self.sample_passes() for one in passes]
        return 1 - sum(int(self.lengths[of].sum()) for of in examples) / sum(map(self._cost, examples))

    def _cost(self, examples: np.ndarray) -> int:
        """Returns the tokens of a forward pass, padding included."""
        return len(examples) * padded_length(self.lengths[examples].max(), self.longest)


class LengthBuckets(Buckets):
    """Micro-batches of examples that are shuffled and split into pools of `pool` micro-batches.

    Each pool is sorted by length and split into micro-batches, which are shuffled again. Every example occurs once in
    an epoch, in an order that depends only on the seed and the epoch. Without `shuffle`, all examples are sorted, the
    longest first, so that too little memory shows at once.

    A micro-batch has `batch_size` examples, of a fraction one of the whole numbers beside it, so that the mean is met.
    Or it has as many as fit into `batch_tokens` tokens including padding. With `batch_tokens` all examples are one
    pool, so that every epoch has the same number of steps.

    In epoch `e`, the index of example `i` of `n` is `i + n * (e % visits)`, or `i + n * e` without `visits`. A data
    set can thus mask the same example differently in each visit.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        *,
        shuffle: bool = True,
        pool: int = POOL,
        visits: int | None = 1,
        **batches: Unpack[Batches],
    ) -> None:
        super().__init__(lengths, **batches)
        batch_size = self.batch_size
        if (batch_size is None) == (self.batch_tokens is None):
            raise ValueError(f"got batch_size={batch_size} and batch_tokens={self.batch_tokens}, expected one of them")
        if (batch_size is not None and batch_size < 1) or self.accumulate < 1:
            raise UserError(
                f"got batch_size={batch_size} and accumulate={self.accumulate}, expected at least 1 of each"
            )
        self.shuffle, self.pool, self.visits = shuffle, pool, visits
        self._micro_batches = len(self._bounds(np.sort(lengths)))
        if batch_size:
            pools, remaining = divmod(len(lengths), self._size_of(pool))
            self._micro_batches = pools * pool + sum(self._size_of(number) < remaining for number in range(pool))

    def sample_passes(self) -> list[list[Pass]]:
        return [[[micro_batch]] for micro_batch in self.sample_epoch()]

    def sample_epoch(self) -> list[np.ndarray]:
        """Returns all micro-batches of the epoch in order."""
        if not self.shuffle:
            return self._split(np.argsort(self.lengths, kind="stable"))[::-1]
        random = np.random.default_rng([self.seed, self.epoch])
        order = random.permutation(len(self.lengths))
        size = self._size_of(self.pool) if self.batch_size else len(order)
        starts = list(range(0, len(order), size))
        if len(starts) > 1 and len(order) - starts[-1] < self.world:  # Too few for a separate pool.
            starts.pop()
        micro_batches = []
        for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
            pool = order[start:end]
            micro_batches += self._split(pool[np.argsort(self.lengths[pool], kind="stable")])
        visit = self.epoch if self.visits is None else self.epoch % self.visits
        return [micro_batches[i] + visit * len(self.lengths) for i in random.permutation(len(micro_batches))]

    def _split(self, order: np.ndarray) -> list[np.ndarray]:
        """Splits examples, sorted by length with the shortest first, into micro-batches."""
        return [order[first:last] for first, last in self._bounds(self.lengths[order])]

    def _size_of(self, number: int) -> int:
        """Returns the examples of this number of micro-batches of all ranks, 0 with `batch_tokens`."""
        return self.world * int(number * (self.batch_size or 0) + 1e-9)

    def _bounds(self, lengths: np.ndarray) -> list[tuple[int, int]]:
        """Returns the first and last (exclusive) example of each micro-batch; only the one of the shortest is smaller.

        Raises:
            UserError: if a rank would have no example in one of them.
        """
        bounds: list[tuple[int, int]] = []
        last = len(lengths)
        while last:
            length = padded_length(lengths[last - 1], self.longest)
            number = len(bounds)
            size = self._size_of(number + 1) - self._size_of(number)
            if not size:
                assert self.batch_tokens is not None
                size = self.world * (self.batch_tokens // length)
            bounds.append((max(0, last - size), last))
            last = bounds[-1][0]
        bounds.reverse()
        if bounds[0][1] < self.world:  # Takes the missing examples from the next one.
            if len(bounds) == 1 or bounds[1][1] < 2 * self.world:
                raise UserError(
                    f"got {len(lengths):,} examples to train on and {self.world} processes, too few for each to have "
                    "one in every batch: set fewer processes (trainer.devices) or larger batches"
                )
            bounds[:2] = [(0, self.world), (self.world, bounds[1][1])]
        return bounds


def loader(examples: Examples, steps: Sampler[Step] | Sequence[Step]) -> Loader:
    """Returns a loader of optimizer steps: lists of micro-batches, each padded to its own longest example."""
    # Pinned memory is copied to a GPU during its computation.
    pin = torch.cuda.is_available()
    return DataLoader(examples, batch_sampler=steps, collate_fn=list, pin_memory=pin)  # type: ignore[arg-type]


def examples_and_buckets(train: Loader) -> tuple[Examples, LengthBuckets]:
    """Returns the examples of a training and their steps, for a stream those of its first sequences."""
    if train.batch_sampler is None:
        stream: Any = train.dataset
        return stream.sample, stream.buckets(stream.sample)
    return cast(Examples, train.dataset), cast(LengthBuckets, train.batch_sampler)


def scored_tokens(device: torch.device) -> int:
    """Returns the number of tokens in a forward pass without gradients on this device."""
    return SCORED_TOKENS if device.type == "cpu" else ACCELERATOR_TOKENS


def scoring_steps(lengths: np.ndarray, batch_tokens: int = SCORED_TOKENS) -> Step:
    """Returns micro-batches of at most `batch_tokens` tokens for examples of these lengths, the longest first."""
    buckets = LengthBuckets(lengths, batch_tokens=max(batch_tokens, int(lengths.max())), shuffle=False)
    return [micro_batch for step in buckets for micro_batch in step]


def evaluation_loader(examples: Examples) -> Loader:
    """Returns a loader of a whole split, the longest examples first."""
    return loader(examples, [[micro_batch] for micro_batch in scoring_steps(examples.lengths)])


def bucket_loader(examples: Examples, **batches: Unpack[BatchOptions]) -> Loader:
    """Returns a loader of shuffled optimizer steps; `batches` are arguments of `LengthBuckets`."""
    return loader(examples, LengthBuckets(examples.lengths, visits=examples.visits, **batches))


def evaluation_loaders(examples: EncodedSplits) -> dict[str, Loader]:
    """Returns a loader for each split that is scored, dev first. None of them is a stream."""
    return {name: evaluation_loader(cast(Examples, split)) for name, split in examples.items() if name != "train"}


def all_loaders(
    examples: EncodedSplits, *, steps: int | None = None, **batches: Unpack[BatchOptions]
) -> dict[str, Loader]:
    """Returns the loader of `train`, whose steps are shuffled, and one for each split that is scored."""
    return {"train": examples["train"].training_loader(steps=steps, **batches), **evaluation_loaders(examples)}


TOLERATED_PADDING = 1.2  # Labelled and unlabelled texts share a forward pass up to this factor of tokens.


class MixedExamples(PaddedExamples):
    """The labelled examples of a training split, followed by the unlabelled ones of a pool.

    `unlabelled` is the `task.unlabelled` of run.json.

    Args:
        labelled: the examples that a teacher is fine-tuned on.
        pool: the other examples; their columns are the same.
        share: of the pool in every optimizer step.
        record: describes the pool in run.json.
    """

    def __init__(
        self, labelled: TokenizedExamples, pool: TokenizedExamples, *, share: float, record: Mapping[str, Any]
    ) -> None:
        self.labelled, self.pool, self.share = labelled, pool, share
        self.lengths = np.concatenate([labelled.lengths, pool.lengths])
        self.tokens = np.concatenate([labelled.tokens, pool.tokens])
        self.sequences = np.concatenate([labelled.sequences, pool.sequences])
        self.longest = max(labelled.longest, pool.longest)
        self.truncated = labelled.truncated + pool.truncated
        self.classes_per_item = labelled.classes_per_item
        self.padding, self.pads_left = labelled.padding, labelled.pads_left
        self.digest = hashlib.sha256(json.dumps([labelled.digest, pool.digest]).encode()).hexdigest()
        items = sum(part.items_per_example * len(part) for part in (labelled, pool))
        self.items_per_example = items / len(self.lengths)
        self.unlabelled = {**record, "truncated": pool.truncated}

    def take(self, chosen: np.ndarray) -> TokenRows:
        is_labelled = chosen < len(self.labelled)
        both = self.labelled.take(chosen[is_labelled]) + self.pool.take(chosen[~is_labelled] - len(self.labelled))
        return both.select(np.argsort(np.argsort(~is_labelled, kind="stable"), kind="stable"))

    def pieces(self) -> np.ndarray | None:
        """Returns the ids of all tokens of the batches, as `Examples`."""
        return join_pieces([self.labelled, self.pool])

    def training_loader(self, *, steps: int | None, **batches: Unpack[BatchOptions]) -> Loader:
        """Returns a loader of optimizer steps; `batches` are arguments of `MixedBuckets`."""
        return loader(self, MixedBuckets(self.lengths, len(self.labelled), share=self.share, **batches))

    def with_parts(self, labelled: TokenizedExamples, pool: TokenizedExamples) -> Self:
        """Returns the examples with further columns in their parts."""
        other = copy.copy(self)
        other.labelled, other.pool = labelled, pool
        return other

    def seen(self, epochs: int) -> int:
        """Returns the number of examples, counted from the first, that so many epochs can show."""
        return min(len(self), len(self.labelled) + epochs * self.draws)

    @property
    def draws(self) -> int:
        """Returns the number of unlabelled examples in an epoch, at most."""
        return int(len(self.labelled) * ratio(self.share) + 1e-9)


def ratio(share: float) -> float:
    """Returns the number of unlabelled examples for each labelled one."""
    return share / (1 - share)


def streamed_pool(examples: object) -> "ShardedPool | None":
    """Returns the texts in shards with which a training mixes examples, None without."""
    return examples.streamed if isinstance(examples, TokenizedExamples) else None


def labelled_only(examples: EncodedSplits) -> EncodedSplits:
    """Returns the splits without the pool, for trainings on labels alone."""
    train = examples["train"]
    if isinstance(train, MixedExamples):
        return {**examples, "train": train.labelled}
    if isinstance(train, TokenizedExamples) and train.streamed is not None:
        return {**examples, "train": train.mixed_with(None)}
    return examples


def epoch_size(train: Loader) -> int:
    """Returns the number of examples that an epoch of this loader shows."""
    return len(examples_and_buckets(train)[1].indices())


def shown_in_epoch(examples: Examples) -> int:
    """Returns the number of examples that an epoch shows, an example that is shown twice counted twice."""
    return len(examples.labelled) + examples.draws if isinstance(examples, MixedExamples) else len(examples)


def seen_examples(examples: Examples, epochs: int | None) -> int:
    """Returns the number of indices of `examples`, counted from the first, that so many epochs can show.

    Args:
        epochs: None for any number.
    """
    if isinstance(examples, MixedExamples):
        return len(examples) if epochs is None else examples.seen(epochs)
    visits = examples.visits or 1
    return (visits if epochs is None else min(epochs, visits)) * len(examples)


class MixedBuckets(Buckets):
    """Samples the steps of an epoch, which is one pass over the labelled examples.

    The labelled examples are in micro-batches of `LengthBuckets`, smaller by the share. Each of them gets unlabelled
    examples of similar rank in length, so that all together have `batch_size` examples. Where the share leaves no whole
    number of labelled examples in a micro-batch, the two numbers beside it take turns. With `batch_tokens` the
    labelled ones take their share of the tokens, and the unlabelled ones follow in further micro-batches of at most
    `batch_tokens` where they do not fit. Texts that are much longer than the labelled ones get micro-batches of their
    own, which saves padding and changes no step, because a step divides by the counts of all its micro-batches.

    Unlabelled examples are drawn without replacement, and an epoch goes on where the last one stopped. The first pass
    over them is in their own order, so that a short training shows, and a teacher labels, only the first ones. The
    order follows from the seed and the epoch alone.

    Args:
        lengths: of all examples in tokens, the labelled ones first, `[N]`.
        labelled: number of labelled examples.
        share: of unlabelled examples in a step.

    The other arguments are those of `LengthBuckets`.

    Raises:
        UserError: for batches that are too small for both kinds.
    """

    def __init__(self, lengths: np.ndarray, labelled: int, *, share: float, **batches: Unpack[Batches]) -> None:
        super().__init__(lengths, **batches)
        self.labelled, self.share = labelled, share
        batch_size, batch_tokens, world = self.batch_size, self.batch_tokens, self.world
        size = None if batch_size is None else round(batch_size * (1 - share), 9)
        if size is not None and size < 1:
            raise UserError(
                f"got trainer.batch_size={batch_size} and task.unlabelled_share={share:g}, which leaves no labelled "
                f"example in a batch: expected a batch_size of at least {int(np.ceil(1 / (1 - share) - 1e-9))}"
            )
        tokens = None if batch_tokens is None else max(int(lengths[:labelled].max()), int(batch_tokens * (1 - share)))
        fraction: Any = size  # A mean of whole numbers.
        self._buckets = LengthBuckets(
            lengths[:labelled], batch_size=fraction, batch_tokens=tokens, seed=self.seed, world=world
        )
        self._draws = world * int(labelled * ratio(share) / world + 1e-9)
        self._micro_batches = len(self._buckets)

    def indices(self) -> np.ndarray:
        return np.concatenate([np.arange(self.labelled), *self._draw()])

    def sample_passes(self) -> list[list[Pass]]:
        return [self._passes(labelled, unlabelled) for labelled, unlabelled in self._sample_epoch()]

    def _sample_epoch(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns the labelled and the unlabelled examples of each micro-batch of the epoch in order."""
        self._buckets.set_epoch(self.epoch)
        labelled = self._buckets.sample_epoch()
        drawn = self._draw()
        # Multiples of the ranks, which all get as many.
        shown = np.cumsum([len(rows) for rows in labelled])
        shares = shown * ratio(self.share) / self.world
        size = self._buckets.batch_size
        if self.batch_size is not None and size is not None and size % 1:
            # The rest of each micro-batch, as far as the share of the epoch goes.
            rest = self.world * self.batch_size * np.arange(1, len(shown) + 1) - shown
            shares = rest * (shares[-1] / rest[-1])
        ends = self.world * np.floor(shares + 1e-9).astype(int)
        starts = np.concatenate([[0], ends[:-1]])
        stream = np.concatenate([*drawn, np.empty(0, dtype=int)])
        boundaries = np.cumsum([len(part) for part in drawn])[:-1]
        unlabelled = [np.empty(0, dtype=int)] * len(labelled)
        for first, last in self._windows(ends, boundaries):
            window = stream[starts[first] : ends[last - 1]]
            if last - first > 1:  # The longest texts join the longest ones.
                window = window[np.argsort(self.lengths[window], kind="stable")]
            longest = [int(self.lengths[rows].max()) for rows in labelled[first:last]]
            begin = 0
            for number in first + np.argsort(longest, kind="stable"):
                count = int(ends[number] - starts[number])
                unlabelled[number] = window[begin : begin + count]
                begin += count
        return list(zip(labelled, unlabelled, strict=True))

    def _draw(self) -> list[np.ndarray]:
        """Returns the unlabelled examples of the epoch, in parts that are of one pass over the pool each."""
        pool, first = len(self.lengths) - self.labelled, self.epoch * self._draws
        parts, place = [], first
        while place < first + self._draws:
            number, begin = divmod(place, pool)
            end = min(pool, begin + first + self._draws - place)
            order = np.random.default_rng([self.seed, 1, number]).permutation(pool) if number else np.arange(pool)
            random = np.random.default_rng([self.seed, 2, self.epoch, number])
            parts.append(self.labelled + random.permutation(order[begin:end]))
            place += end - begin
        return parts

    @staticmethod
    def _windows(ends: np.ndarray, boundaries: np.ndarray) -> list[tuple[int, int]]:
        """Returns ranges of micro-batches whose unlabelled examples are sorted by length together.

        They have at most `POOL` micro-batches and no boundary inside, so that all texts are seen before one is seen
        twice.
        """
        cuts = {*range(0, len(ends), POOL), len(ends)}
        for boundary in boundaries:
            number = int(np.searchsorted(ends, boundary))
            cuts |= {number + 1} if ends[number] == boundary else {number, number + 1}
        ordered = sorted(cuts)
        return list(itertools.pairwise(ordered))

    def _passes(self, labelled: np.ndarray, unlabelled: np.ndarray) -> list[Pass]:
        """Returns the forward passes of a micro-batch, each one or both kinds of examples."""
        if not len(unlabelled):
            return [[labelled]]
        together = self._cost(np.concatenate([labelled, unlabelled]))
        apart = self._cost(labelled) + self._cost(unlabelled)
        budget = np.inf if self.batch_tokens is None else self.batch_tokens * self.world
        if together <= min(budget, TOLERATED_PADDING * apart):
            return [[labelled, unlabelled]]
        if self._cost(unlabelled) <= budget:
            return [[labelled], [unlabelled]]
        assert self.batch_tokens is not None
        longest = padded_length(self.lengths[unlabelled].max(), self.longest)
        size = self.world * (self.batch_tokens // longest)
        return [[labelled], *([unlabelled[first : first + size]] for first in range(0, len(unlabelled), size))]

    def _cost(self, examples: np.ndarray) -> int:
        """Returns the tokens of a forward pass of all ranks, padding included."""
        in_rank = -(-len(examples) // self.world)
        return int(self.world * in_rank * padded_length(self.lengths[examples].max(), self.longest))
