"""Training rows mixed with texts without labels: one data set of both, and steps that hold a share of each."""

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

from distill.contracts import BatchOptions, EncodedSplits, Examples, Loader
from distill.data import batching
from distill.data.batching import (
    POOL,
    Batch,
    LengthBuckets,
    Step,
    TokenizedExamples,
    pad_columns,
    padded_length,
    token_positions,
)
from distill.errors import UserError

TOLERATED_PADDING = 1.2  # Labelled and unlabelled texts share a forward pass up to this factor of tokens.
MicroBatch = tuple[np.ndarray, np.ndarray]  # The labelled and the unlabelled examples of all ranks.


class MixedExamples(Dataset[Batch]):
    """The labelled examples of a training split, followed by the unlabelled ones of a pool.

    The attributes are those of `Examples`. `unlabelled` is the `task.unlabelled` of run.json.

    Args:
        labelled: the examples that a teacher is fine-tuned on.
        pool: the other examples; their columns are the same.
        share: of the pool in every optimizer step.
        record: describes the pool in run.json.
    """

    visits: int | None = 1

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
        self.digest = hashlib.sha256(json.dumps([labelled.digest, pool.digest]).encode()).hexdigest()
        items = sum(part.items_per_example * len(part) for part in (labelled, pool))
        self.items_per_example = items / len(self.lengths)
        self.unlabelled = {**record, "truncated": pool.truncated}

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, indices: Sequence[int]) -> Batch:
        chosen = np.asarray(indices)
        is_labelled = chosen < len(self.labelled)
        order = np.argsort(~is_labelled, kind="stable")  # The labelled ones first.
        parts = [
            (part, chosen[of_part] - first)
            for part, of_part, first in (
                (self.labelled, is_labelled, 0),
                (self.pool, ~is_labelled, len(self.labelled)),
            )
            if of_part.any()
        ]
        rows = [part.take(rows) for part, rows in parts]
        columns = {name: np.concatenate([of.columns[name] for of in rows]) for name in rows[0].columns}
        lengths, counts = (np.concatenate([getattr(of, name) for of in rows]) for name in ("lengths", "counts"))
        batch = pad_columns(
            columns, lengths, longest=self.longest, padding=self.labelled.padding, left=self.labelled.pads_left
        )
        per_example = {name: np.concatenate([of.per_example[name] for of in rows]) for name in rows[0].per_example}
        back = np.argsort(order, kind="stable")
        sequences_back = token_positions((counts.cumsum() - counts)[back], counts[back])
        batch = {name: array[sequences_back] for name, array in batch.items()}
        batch |= {name: array[back] for name, array in per_example.items()} | {"example_id": chosen}
        return {name: torch.from_numpy(array) for name, array in batch.items()}

    def pieces(self) -> np.ndarray | None:
        """Returns the ids of all tokens of the batches, as `Examples`."""
        return batching.join_pieces([self.labelled, self.pool])

    def training_loader(self, *, steps: int | None, **batches: Unpack[BatchOptions]) -> Loader:
        """Returns a loader of optimizer steps; `batches` are arguments of `MixedBuckets`."""
        return batching.loader(self, MixedBuckets(self.lengths, len(self.labelled), share=self.share, **batches))

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


def labelled_only(examples: EncodedSplits) -> EncodedSplits:
    """Returns the splits without the pool, for trainings on labels alone."""
    train = examples["train"]
    return {**examples, "train": train.labelled} if isinstance(train, MixedExamples) else examples


def epoch_size(train: Loader) -> int:
    """Returns the number of examples that an epoch of this loader shows."""
    return len(batching.examples_and_buckets(train)[1].indices())


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


class MixedBuckets(Sampler[Step]):
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

    def __init__(
        self,
        lengths: np.ndarray,
        labelled: int,
        *,
        share: float,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        accumulate: int = 1,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.lengths, self.labelled, self.share, self.longest = lengths, labelled, share, int(lengths.max())
        if batch_tokens is not None and batch_tokens < self.longest:
            raise UserError(
                f"got batch_tokens={batch_tokens}, expected at least {self.longest}, the length of the longest example"
            )
        size = None if batch_size is None else round(batch_size * (1 - share), 9)
        if size is not None and size < 1:
            raise UserError(
                f"got trainer.batch_size={batch_size} and task.unlabelled_share={share:g}, which leaves no labelled "
                f"example in a batch: expected a batch_size of at least {int(np.ceil(1 / (1 - share) - 1e-9))}"
            )
        tokens = None if batch_tokens is None else max(int(lengths[:labelled].max()), int(batch_tokens * (1 - share)))
        self._buckets = LengthBuckets(
            lengths[:labelled], batch_size=size, batch_tokens=tokens, seed=seed, world=world
        )  # fmt: skip
        self.batch_size, self.batch_tokens, self.accumulate, self.seed = batch_size, batch_tokens, accumulate, seed
        self.rank, self.world, self.skip, self.epoch = rank, world, 0, 0
        self.sampler = self  # Lightning calls its `set_epoch`.
        self._draws = world * int(labelled * ratio(share) / world + 1e-9)
        self._micro_batches = len(self._buckets)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-self._micro_batches // self.accumulate)

    def __iter__(self) -> Iterator[Step]:
        micro_batches = self._sample_epoch()
        first, self.skip = self.skip, 0
        for start in range(first * self.accumulate, len(micro_batches), self.accumulate):
            passes = [one for both in micro_batches[start : start + self.accumulate] for one in self._passes(*both)]
            yield [np.concatenate([part[self.rank :: self.world] for part in one]).tolist() for one in passes]

    def indices(self) -> np.ndarray:
        """Returns the examples of the epoch; one that is drawn twice occurs twice."""
        return np.concatenate([np.arange(self.labelled), *self._draw()])

    def median_batch(self, size: int) -> list[int]:
        """Returns `size` examples of median length."""
        return batching.median_examples(self.lengths, self.indices(), size)

    def padding(self) -> float:
        """Returns the share of padding among the tokens of an epoch."""
        passes = [np.concatenate(one) for both in self._sample_epoch() for one in self._passes(*both)]
        tokens = sum(int(self.lengths[one].sum()) for one in passes)
        return 1 - tokens / sum(map(self._cost, passes))

    def _sample_epoch(self) -> list[MicroBatch]:
        """Returns all micro-batches of the epoch in order."""
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

    def _passes(self, labelled: np.ndarray, unlabelled: np.ndarray) -> list[list[np.ndarray]]:
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
