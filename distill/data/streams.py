"""Optimizer steps that are read during a training, and those of shards with the outputs of a teacher."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from distill.core.contracts import TEACHER_LOGITS, BatchOptions, Loader
from distill.data.batches import CollatedBatch, MixedBuckets, MixedExamples, TokenizedExamples, ratio
from distill.data.shards import Shards

if TYPE_CHECKING:
    from distill.data.splits import Split

BUFFER = 32_768  # Least number of texts that are shuffled together, unless there are fewer.
Place = Any  # Plain values, for checkpoints.


class StepStream(IterableDataset[list[CollatedBatch]]):
    """Optimizer steps that are read during a training. The length is their number in the whole training.

    `place` is the position of the last step. To resume after it, set `place` and, in `skip`, the number of finished
    steps.
    """

    def __init__(self, *, steps: int, batches: BatchOptions, rank: int = 0, world: int = 1) -> None:
        self.steps, self.batches, self.rank, self.world = steps, batches.copy(), rank, world
        self.skip = 0
        self.place: Place | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Omits the cached properties."""
        cached = {name for name, value in vars(type(self)).items() if isinstance(value, cached_property)}
        return {name: value for name, value in vars(self).items() if name not in cached}

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[CollatedBatch]]:
        done, place = self.skip, self.place
        self.skip, self.place = 0, None
        steps = self.read_steps(place if done else None)
        for reached, step in itertools.islice(steps, self.steps - done):
            self.place = reached
            yield step

    def read_steps(self, place: Place | None) -> Iterator[tuple[Place, list[CollatedBatch]]]:
        """Yields, endlessly, each step behind a place with its own place; None is the beginning."""
        raise NotImplementedError

    def loader(self) -> Loader:
        """Returns the loader of the stream."""
        return DataLoader(self, batch_size=None, pin_memory=torch.cuda.is_available())


@dataclass(frozen=True)
class ShardedPool:
    """Texts that only the teacher labels, in shards with its outputs.

    Args:
        share: of them in the examples of every step.
        encode: tokenizes rows without labels.
        create: makes rows of the texts by column.
    """

    shards: Shards
    share: float
    encode: "Callable[[Split], TokenizedExamples]"
    create: "Callable[[list[list[str]]], Split]"

    def record(self) -> dict[str, Any]:
        """Returns the `unlabelled` of the task in run.json."""
        number, directory = sum(self.shards.rows), self.shards.directory.resolve()
        source = {"name": "texts of shards", "examples": number, "from": directory.name}
        return {
            "examples": number, "share": self.share, "removed": {}, "sources": [source], "sureness": None,
            "truncated": 0,
        }  # fmt: skip

    def training_loader(
        self, labelled: TokenizedExamples, *, steps: int | None, **batches: Unpack[BatchOptions]
    ) -> Loader:
        """Returns a loader of `steps` optimizer steps, mixed with labelled examples."""
        assert steps is not None  # As the chain has checked.
        world = batches.pop("world", 1)
        return ShardStream(self, labelled, steps=steps, batches=batches, world=world).loader()


class Buffer(MixedExamples):
    """Labelled examples and texts of some shards, which are shuffled together.

    In a batch, `example_id` is that of a labelled example, and -1 for the others, which have `TEACHER_LOGITS`.
    """

    def pieces(self) -> None:
        """Returns None, because other buffers have other pieces."""


class ShardStream(StepStream):
    """Optimizer steps of shards, in a new order in each pass over them.

    Whole shards are read in random order, as many at a time as make a `Buffer`, with labelled examples drawn at random.
    All ranks read the same ones, and each has its part of every micro-batch, so that their numbers of steps are equal.
    """

    def __init__(self, pool: ShardedPool, labelled: TokenizedExamples, **options: Any) -> None:
        super().__init__(**options)
        self.pool, self.seed = pool, self.batches.get("seed", 0)
        # Both parts have the column, and no value of it is read for a labelled example.
        none = np.broadcast_to(np.float32(0), (len(labelled), pool.shards.width))
        self.labelled = labelled.with_column(TEACHER_LOGITS, none, of_tokens=False).with_column(
            "example_id", np.arange(len(labelled)), of_tokens=False
        )

    @cached_property
    def sample(self) -> Buffer:
        """Returns the first buffer."""
        return self.read_buffer(0)

    def buckets(self, examples: MixedExamples, epoch: int = 0) -> MixedBuckets:
        """Returns the steps of a buffer."""
        options: Any = {**self.batches, "rank": self.rank, "world": self.world}
        buckets = MixedBuckets(examples.lengths, len(examples.labelled), share=examples.share, **options)
        buckets.set_epoch(epoch)
        return buckets

    def read_buffer(self, number: int) -> Buffer:
        """Returns a buffer of the training by its number."""
        rows = self.pool.shards.rows
        at_once = max(1, round(BUFFER * len(rows) / max(1, sum(rows))))
        visit, place = divmod(number, -(-len(rows) // at_once))
        order = np.random.default_rng([self.seed, 4, visit]).permutation(len(rows))
        parts = [self.pool.shards.read(shard) for shard in order[place * at_once : (place + 1) * at_once].tolist()]
        columns = [
            list(itertools.chain.from_iterable(texts)) for texts in zip(*(part[0] for part in parts), strict=True)
        ]
        outputs = np.concatenate([part[1] for part in parts])
        random = np.random.default_rng([self.seed, 5, number])
        chosen = random.permutation(len(outputs))
        texts = self.pool.encode(self.pool.create(columns).select(chosen))
        texts = texts.with_column(TEACHER_LOGITS, outputs[chosen], of_tokens=False).with_column(
            "example_id", np.full(len(outputs), -1), of_tokens=False
        )
        count = max(1, int(len(outputs) / ratio(self.pool.share)))
        passes = [random.permutation(len(self.labelled)) for _ in range(-(-count // len(self.labelled)))]
        labelled = self.labelled.select(np.concatenate(passes)[:count])
        return Buffer(labelled, texts, share=self.pool.share, record={})

    def read_steps(self, place: Place | None) -> Iterator[tuple[Place, list[CollatedBatch]]]:
        first, done = (0, 0) if place is None else (place["buffer"], place["step"] + 1)
        for number in itertools.count(first):
            examples = self.read_buffer(number)
            for step, micro_batches in itertools.islice(enumerate(self.buckets(examples, 0)), done, None):
                yield {"buffer": number, "step": step}, [examples[rows] for rows in micro_batches]
            done = 0
