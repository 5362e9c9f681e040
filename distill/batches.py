"""From the splits of a task to tokenized batches of about one length."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from distill.data import Split, TaskData
from distill.errors import UserError
from distill.tasks import SequenceTask

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Examples(Dataset[list[dict[str, Any]]]):
    """One tokenized split. An index is a list of examples: a whole micro-batch is fetched at once.

    `truncated` counts the examples that were longer than `max_length`, special tokens included.
    """

    def __init__(self, split: Split, tokenizer: "PreTrainedTokenizerBase", max_length: int) -> None:
        encoded = tokenizer(
            split.texts, split.pairs, truncation=True, max_length=max_length, return_attention_mask=True
        )
        self.columns: dict[str, list[list[int]]] = dict(encoded)
        self.labels = split.labels.tolist()
        self.lengths = np.array([len(tokens) for tokens in self.columns["input_ids"]])
        self.truncated = sum(bool(encoding.overflowing) for encoding in encoded.encodings)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        return [
            {name: column[i] for name, column in self.columns.items()} | {"label": self.labels[i], "example_id": i}
            for i in indices
        ]


class LengthBuckets(Sampler[list[list[int]]]):
    """The steps of an epoch: each a list of micro-batches, each a list of examples of about one length.

    The examples are shuffled, cut into pools of `pool` micro-batches, sorted by length within a pool, cut into
    micro-batches, and these are shuffled again. So every example comes exactly once an epoch, in an order that
    depends on the seed and the epoch alone. Without `shuffle` all are sorted, longest first, which shows at once
    whether the memory is enough.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        *,
        batch_size: int,
        accumulate: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        pool: int = 50,
    ) -> None:
        if batch_size < 1 or accumulate < 1:
            raise UserError(f"got batch_size={batch_size} and accumulate={accumulate}, expected at least 1 of each")
        self.lengths, self.batch_size, self.accumulate = lengths, batch_size, accumulate
        self.shuffle, self.seed, self.pool, self.epoch = shuffle, seed, pool, 0
        self.skip = 0  # Steps of the next epoch that a resumed training has done already.
        self.sampler = self  # Where Lightning looks for `set_epoch`.

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        micro_batches = -(-len(self.lengths) // self.batch_size)
        return -(-micro_batches // self.accumulate)

    def __iter__(self) -> Iterator[list[list[int]]]:
        micro_batches = self._shuffled() if self.shuffle else self._cut(np.argsort(-self.lengths, kind="stable"))
        first, self.skip = self.skip * self.accumulate, 0
        for start in range(first, len(micro_batches), self.accumulate):
            yield micro_batches[start : start + self.accumulate]

    def _shuffled(self) -> list[list[int]]:
        random = np.random.default_rng([self.seed, self.epoch])
        order = random.permutation(len(self.lengths))
        micro_batches = []
        size = self.pool * self.batch_size
        for start in range(0, len(order), size):
            members = order[start : start + size]
            micro_batches += self._cut(members[np.argsort(self.lengths[members], kind="stable")])
        return [micro_batches[i] for i in random.permutation(len(micro_batches))]

    def _cut(self, order: np.ndarray) -> list[list[int]]:
        return [order[i : i + self.batch_size].tolist() for i in range(0, len(order), self.batch_size)]


def loader(
    examples: Examples, task: SequenceTask, tokenizer: "PreTrainedTokenizerBase", buckets: LengthBuckets
) -> DataLoader[list[dict[str, Tensor]]]:
    """Yields one optimizer step at a time: its micro-batches, each padded to its own longest example."""

    def collate(step: list[list[dict[str, Any]]]) -> list[dict[str, Tensor]]:
        return [_pad(micro_batch, task, tokenizer) for micro_batch in step]

    return DataLoader(examples, batch_sampler=buckets, collate_fn=collate)  # type: ignore[arg-type]


def evaluation_loader(
    examples: Examples, task: SequenceTask, tokenizer: "PreTrainedTokenizerBase", batch_size: int = 64
) -> DataLoader[list[dict[str, Tensor]]]:
    """A whole split, longest examples first."""
    return loader(examples, task, tokenizer, LengthBuckets(examples.lengths, batch_size=batch_size, shuffle=False))


def loaders(
    data: TaskData,
    task: SequenceTask,
    tokenizer: "PreTrainedTokenizerBase",
    *,
    batch_size: int,
    accumulate: int,
    seed: int,
) -> dict[str, DataLoader[list[dict[str, Tensor]]]]:
    """`train` in shuffled steps of `batch_size * accumulate` examples, and the splits that are scored."""
    train = Examples(data.splits["train"], tokenizer, task.max_length)
    buckets = LengthBuckets(train.lengths, batch_size=batch_size, accumulate=accumulate, seed=seed)
    return {"train": loader(train, task, tokenizer, buckets), **evaluation_loaders(data, task, tokenizer)}


def evaluation_loaders(
    data: TaskData, task: SequenceTask, tokenizer: "PreTrainedTokenizerBase"
) -> dict[str, DataLoader[list[dict[str, Tensor]]]]:
    """One for every split that is scored, dev first."""
    return {
        name: evaluation_loader(Examples(split, tokenizer, task.max_length), task, tokenizer)
        for name, split in data.scored().items()
    }


def _pad(examples: list[dict[str, Any]], task: SequenceTask, tokenizer: "PreTrainedTokenizerBase") -> dict[str, Tensor]:
    inputs = [{k: v for k, v in example.items() if k not in ("label", "example_id")} for example in examples]
    # The tokenizer would warn that encoding and padding in one call is faster; here they are apart on purpose.
    tokenizer.deprecation_warnings["Asking-to-pad-a-fast-tokenizer"] = True
    batch = dict(tokenizer.pad(inputs, padding="longest", return_tensors="pt"))
    added = task.collate(examples) | {"example_id": [example["example_id"] for example in examples]}
    return batch | {name: torch.tensor(values) for name, values in added.items()}
