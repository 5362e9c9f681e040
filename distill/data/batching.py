"""From tokenized examples to batches of about one length."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from distill.contracts import IGNORED, BatchOptions, EncodedSplits, Examples, Loader
from distill.data import token_cache
from distill.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Batch = dict[str, Tensor]
Step = list[list[int]]
POOL = 50  # Micro-batches sorted by length together; more of them mean less padding, and less mixing.
SCORED_TOKENS = 2048  # In a forward pass without gradients: on a CPU more of them leave its caches.


class TokenizedExamples(Dataset[Batch]):
    """One tokenized split. An index is a list of examples: a whole micro-batch is padded at once (`padded_length`).

    `lengths [N]` are in tokens, `longest` is the most of them; `truncated` counts the examples that were longer than
    the limit; `digest` stands for all token ids.

    Args:
        encoded: the tokens of all examples.
        tokenizer: gives the padding.
        per_example: further columns `[N]` of the batches, such as `labels`.
        per_token: further columns `[tokens]`, one example after the other; they are padded with -100.
        items_per_example: mean number of items.
    """

    visits: int | None = 1

    def __init__(
        self,
        encoded: token_cache.Tokens,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        per_example: Mapping[str, np.ndarray] | None = None,
        per_token: Mapping[str, np.ndarray] | None = None,
        items_per_example: float = 1.0,
    ) -> None:
        self.digest, self.truncated, self.lengths = encoded.digest, encoded.truncated, np.diff(encoded.offsets)
        self.longest = int(self.lengths.max())
        self.items_per_example = items_per_example
        self._per_example = dict(per_example or {})
        self._columns: Mapping[str, np.ndarray] = (
            {**encoded.columns, **(per_token or {})} if per_token else encoded.columns
        )
        self._starts = encoded.offsets[:-1]
        self._padding = padding_of(tokenizer) | dict.fromkeys(per_token or {}, IGNORED)
        self._pads_left = tokenizer.padding_side == "left"

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, indices: Sequence[int]) -> Batch:
        chosen = np.asarray(indices)
        lengths = self.lengths[chosen]
        places = places_of(self._starts[chosen], lengths)
        rows = {name: values[places] for name, values in self._columns.items()}
        batch = padded(rows, lengths, longest=self.longest, padding=self._padding, left=self._pads_left)
        batch["example_id"] = chosen
        batch |= {name: values[chosen] for name, values in self._per_example.items()}
        return {name: torch.from_numpy(array) for name, array in batch.items()}

    def training_loader(self, *, steps: int | None, **batches: Unpack[BatchOptions]) -> Loader:
        """A loader of shuffled optimizer steps; `batches` are arguments of `LengthBuckets`."""
        return bucket_loader(self, **batches)


def padding_of(tokenizer: "PreTrainedTokenizerBase") -> dict[str, int]:
    """The value of each column at the padding."""
    return {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}


def places_of(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Where the tokens of examples lie that start there and are so long, one example after the other."""
    places: np.ndarray = np.arange(lengths.sum()) + np.repeat(starts - (lengths.cumsum() - lengths), lengths)
    return places


def padded(
    rows: Mapping[str, np.ndarray], lengths: np.ndarray, *, longest: int, padding: Mapping[str, int], left: bool
) -> dict[str, np.ndarray]:
    """Columns `[B, L]` and their `attention_mask`, out of columns of all tokens, one example after the other.

    Args:
        longest: the length of the longest example of all, beyond which nothing is padded.
        padding: for each column what stands at the padding.
        left: pad before the examples instead of behind them.
    """
    mask = np.arange(padded_length(lengths.max(), longest)) < lengths[:, None]
    if left:
        mask = mask[:, ::-1]
    batch = {name: np.full(mask.shape, padding[name], dtype=np.int64) for name in rows}
    for name, values in rows.items():
        batch[name][mask] = values
    return {**batch, "attention_mask": mask.astype(np.int64)}


def padded_length(longest: int, most: int) -> int:
    """The length to which a batch is padded: up to 1/16 more than its longest example, never more than `most`.

    So there are 16 lengths between a number and its double. Each length costs memory, for the kernels that oneDNN
    makes and keeps for it: 55 lengths in place of 44 cost 100 MB.
    """
    step = 1 << max(0, int(longest).bit_length() - 5)
    return min(-(-int(longest) // step) * step, int(most))


class LengthBuckets(Sampler[Step]):
    """The steps of an epoch: each a list of micro-batches, each a list of examples of about one length.

    The examples are shuffled, cut into pools of `pool` micro-batches, sorted by length within a pool, cut into
    micro-batches, and these are shuffled again. So every example comes exactly once an epoch, in an order that
    depends on the seed and the epoch alone. Without `shuffle` all are sorted, longest first, which shows at once
    whether the memory is enough.

    A micro-batch holds `batch_size` examples or, with `batch_tokens`, as many as stay within that number of tokens,
    padding included; then all examples are one pool, so that every epoch has the same number of steps.

    In epoch `e` example `i` of `n` is called `i + n * (e % visits)`, without `visits` `i + n * e`: a data set that
    shows the same example in other ways has a way for every visit.

    Of several processes, `rank` of `world` gets its part of every micro-batch, which are `world` times as large. So
    together they see what one process with so large a `batch_size` sees, and all work on texts of the same lengths.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        *,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        accumulate: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        pool: int = POOL,
        visits: int | None = 1,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if (batch_size is None) == (batch_tokens is None):
            raise ValueError(f"got batch_size={batch_size} and batch_tokens={batch_tokens}, expected one of them")
        if (batch_size is not None and batch_size < 1) or accumulate < 1:
            raise UserError(f"got batch_size={batch_size} and accumulate={accumulate}, expected at least 1 of each")
        self.lengths, self.longest, self.accumulate = lengths, int(lengths.max()), accumulate
        if batch_tokens is not None and batch_tokens < self.longest:
            raise UserError(
                f"got batch_tokens={batch_tokens}, expected at least {self.longest}: so long is the longest example"
            )
        self.batch_size, self.batch_tokens = batch_size, batch_tokens
        self.shuffle, self.seed, self.pool, self.epoch = shuffle, seed, pool, 0
        self.visits, self.rank, self.world = visits, rank, world
        self.skip = 0  # Steps of the next epoch that a resumed training has done already.
        self.sampler = self  # Where Lightning looks for `set_epoch`.
        by_length = np.sort(lengths)
        bounds = self._bounds(by_length)
        self._micro_batches = -(-len(lengths) // (batch_size * world)) if batch_size else len(bounds)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-self._micro_batches // self.accumulate)

    def __iter__(self) -> Iterator[Step]:
        micro_batches = self._epoch()
        first, self.skip = self.skip, 0
        for start in range(first * self.accumulate, len(micro_batches), self.accumulate):
            step = micro_batches[start : start + self.accumulate]
            yield [micro_batch[self.rank :: self.world].tolist() for micro_batch in step]

    def padding(self) -> float:
        """Share of an epoch's tokens that are padding."""
        parts = (self.lengths[part % len(self.lengths)] for part in self._epoch())
        computed = sum(len(lengths) * padded_length(lengths.max(), self.longest) for lengths in parts)
        return 1 - int(self.lengths.sum()) / computed

    def _epoch(self) -> list[np.ndarray]:
        """All micro-batches of the epoch, in their order."""
        if not self.shuffle:
            return self._cut(np.argsort(self.lengths, kind="stable"))[::-1]
        random = np.random.default_rng([self.seed, self.epoch])
        order = random.permutation(len(self.lengths))
        size = self.pool * self.batch_size * self.world if self.batch_size else len(order)
        starts = list(range(0, len(order), size))
        if len(starts) > 1 and len(order) - starts[-1] < self.world:  # Too few to be a pool of their own.
            starts.pop()
        micro_batches = []
        for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
            members = order[start:end]
            micro_batches += self._cut(members[np.argsort(self.lengths[members], kind="stable")])
        visit = self.epoch if self.visits is None else self.epoch % self.visits
        return [micro_batches[i] + visit * len(self.lengths) for i in random.permutation(len(micro_batches))]

    def _cut(self, order: np.ndarray) -> list[np.ndarray]:
        """Micro-batches out of examples that are sorted by length, shortest first."""
        return [order[first:last] for first, last in self._bounds(self.lengths[order])]

    def _bounds(self, lengths: np.ndarray) -> list[tuple[int, int]]:
        """First and last of every micro-batch, from the longest down, so that an odd one is of the shortest.

        Raises:
            UserError: where a process would have no example in one of them.
        """
        bounds = []
        last = len(lengths)
        while last:
            length = padded_length(lengths[last - 1], self.longest)
            size = self.world * (self.batch_size or self.batch_tokens // length)  # type: ignore[operator]
            bounds.append((max(0, last - size), last))
            last = bounds[-1][0]
        bounds.reverse()
        if bounds[0][1] < self.world:  # The next one lends what it lacks.
            if len(bounds) == 1 or bounds[1][1] < 2 * self.world:
                raise UserError(
                    f"got {len(lengths):,} examples to train on and {self.world} processes, too few for each to have "
                    "one in every batch: take fewer processes (trainer.devices), or larger batches"
                )
            bounds[:2] = [(0, self.world), (self.world, bounds[1][1])]
        return bounds


def loader(examples: Examples, steps: Sampler[Step] | Sequence[Step]) -> Loader:
    """Yields one optimizer step at a time: its micro-batches, each padded to its own longest example."""
    # Pinned memory is copied to a GPU while that computes.
    pin = torch.cuda.is_available()
    return DataLoader(examples, batch_sampler=steps, collate_fn=list, pin_memory=pin)  # type: ignore[arg-type]


def shown(train: Loader) -> tuple[Examples, LengthBuckets]:
    """The examples that a training sees and the steps that it makes of them; of a stream, its first ones."""
    if train.batch_sampler is None:
        stream: Any = train.dataset
        return stream.sample, stream.buckets(stream.sample)
    return cast(Examples, train.dataset), cast(LengthBuckets, train.batch_sampler)


def scoring_steps(lengths: np.ndarray, batch_tokens: int = SCORED_TOKENS) -> Step:
    """Micro-batches of so many tokens out of examples of these lengths, longest first."""
    buckets = LengthBuckets(lengths, batch_tokens=max(batch_tokens, int(lengths.max())), shuffle=False)
    return [micro_batch for step in buckets for micro_batch in step]


def evaluation_loader(examples: Examples) -> Loader:
    """A whole split, longest examples first."""
    return loader(examples, [[micro_batch] for micro_batch in scoring_steps(examples.lengths)])


def bucket_loader(examples: Examples, **batches: Unpack[BatchOptions]) -> Loader:
    """Yields shuffled optimizer steps; `batches` are arguments of `LengthBuckets`."""
    return loader(examples, LengthBuckets(examples.lengths, visits=examples.visits, **batches))


def evaluation_loaders(examples: EncodedSplits) -> dict[str, Loader]:
    """A loader for every split that is scored, dev first; none of them is a stream."""
    return {name: evaluation_loader(cast(Examples, split)) for name, split in examples.items() if name != "train"}


def all_loaders(
    examples: EncodedSplits, *, steps: int | None = None, **batches: Unpack[BatchOptions]
) -> dict[str, Loader]:
    """The loader of `train`, whose steps are shuffled, and one for every split that is scored."""
    return {"train": examples["train"].training_loader(steps=steps, **batches), **evaluation_loaders(examples)}
