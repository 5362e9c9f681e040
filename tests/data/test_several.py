"""Tests of batches of several tasks: each of one task, with every task's share of the steps."""

from collections import Counter

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from distill.core.contracts import TASK_ID, EncodedSplits
from distill.data.splits import text_split
from distill.kinds import Classification, multitask
from distill.kinds.multitask import SeveralExamples, share_steps
from tests.data.conftest import Printed

Shown = list[tuple[int, list[int]]]


def encode(tokenizer: PreTrainedTokenizerBase, sizes: list[int], **options: float) -> EncodedSplits:
    """Returns the splits of tasks with so many training examples; only the first task has a split `test`."""
    parts = []
    for number, size in enumerate(sizes):
        rows = ([f"{'film ' * (i % 5)}{number}" for i in range(size)], [i % 2 for i in range(size)])
        scored = {"dev": (rows[0][:6], rows[1][:6]), **({} if number else {"test": (rows[0][:4], rows[1][:4])})}
        task = Classification(text="text", train=rows, **scored)
        parts.append(task.encode(task.read(None), tokenizer, None))  # type: ignore[arg-type]
    return multitask.join_splits(parts, sampling=options.get("sampling", 1.0))


def show(examples: EncodedSplits, epoch: int = 0, *, skip: int = 0, split: str = "train") -> Shown:
    """Returns the task and the examples of every step of an epoch."""
    loader = multitask.all_task_loaders(examples, batch_size=4, accumulate=2, seed=5)[split]
    if split == "train":
        loader.batch_sampler.skip = skip  # type: ignore[union-attr]
        loader.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]
    steps: Shown = []
    for step in loader:
        tasks = torch.cat([batch[TASK_ID] for batch in step]).unique().tolist()
        assert len(tasks) == 1
        steps.append((tasks[0], torch.cat([batch["example_id"] for batch in step]).tolist()))
    return steps


def test_texts_that_another_task_trains_on_are_counted(printed: Printed) -> None:
    """Each task is divided by itself, and the encoder learns from the texts of all."""
    texts = [f"text {number}" for number in range(8)]
    parts = {"one": (texts[:6], texts[6:]), "two": ([texts[7].upper(), "more"], ["other", "more"])}
    splits = {name: {"train": text_split(train), "dev": text_split(dev)} for name, (train, dev) in parts.items()}
    multitask.report_shared_texts(splits)
    notices = printed()
    assert "1 of 2 rows of dev of task one have the text of a row that task two trains on" in notices
    assert "of task two have" not in notices


@pytest.mark.parametrize(("sampling", "expected"), [(1.0, [96, 3, 1]), (0.5, [78, 14, 8]), (0.0, [34, 33, 33])])
def test_tasks_share_the_steps_of_an_epoch(sampling: float, expected: list[int]) -> None:
    """Of the square roots 9.798, 1.732 and 1 the shares of 100 are 78.2, 13.8 and 8.0."""
    assert share_steps([96, 3, 1], sampling) == expected


def test_by_size_an_epoch_shows_every_example_once(tokenizer: PreTrainedTokenizerBase) -> None:
    examples = encode(tokenizer, [40, 16])
    for epoch in (0, 1):
        steps = show(examples, epoch)
        assert Counter(task for task, _ in steps) == {0: 5, 1: 2}
        for task, size in ((0, 40), (1, 16)):
            assert sorted(i for number, ids in steps for i in ids if number == task) == list(range(size))
    assert show(examples, 0) != show(examples, 1)
    assert show(examples, 1, skip=3) == show(examples, 1)[3:]


def test_the_pieces_are_those_of_all_tasks(tokenizer: PreTrainedTokenizerBase) -> None:
    train = encode(tokenizer, [40, 16])["train"]
    assert isinstance(train, SeveralExamples)
    batches = [train[[0, 1, 2, 3, 4]], train[[40, 41, 42, 43, 44]]]
    shown = torch.cat([batch["input_ids"].flatten() for batch in batches]).unique()
    pieces = train.pieces()
    assert pieces is not None
    assert pieces.tolist() == shown.tolist()
    first, second = (part.pieces().tolist() for part in train.parts.values())  # type: ignore[union-attr]
    assert first != second


def test_evenly_a_task_goes_on_where_it_stopped(tokenizer: PreTrainedTokenizerBase) -> None:
    """Seven steps an epoch: four of the large task, whose pass takes five, and three of the small one's two."""
    examples = encode(tokenizer, [40, 16], sampling=0.0)
    epochs = [show(examples, epoch) for epoch in range(5)]
    assert [Counter(task for task, _ in steps) for steps in epochs] == [{0: 4, 1: 3}] * 5
    large = [ids for steps in epochs for task, ids in steps if task == 0]
    small = [ids for steps in epochs for task, ids in steps if task == 1]
    for steps, length, size in ((large, 5, 40), (small, 2, 16)):
        for first in range(0, len(steps) - length + 1, length):
            assert sorted(i for ids in steps[first : first + length] for i in ids) == list(range(size))
    passes = [large[first : first + 5] for first in (0, 5, 10, 15)]
    assert len({str(one) for one in passes}) == 4
    assert len({str([task for task, _ in steps]) for steps in epochs}) > 3  # The tasks take turns in other orders.


def test_a_split_is_scored_task_by_task_with_those_that_have_it(tokenizer: PreTrainedTokenizerBase) -> None:
    examples = encode(tokenizer, [40, 16])
    seen = {split: show(examples, split=split) for split in ("dev", "test")}
    assert [(task, sorted(ids)) for task, ids in seen["dev"]] == [(0, list(range(6))), (1, list(range(6)))]
    assert [(task, sorted(ids)) for task, ids in seen["test"]] == [(0, list(range(4)))]


def test_a_batch_is_that_of_its_task(tokenizer: PreTrainedTokenizerBase) -> None:
    examples = encode(tokenizer, [8, 6])["train"]
    assert isinstance(examples, SeveralExamples)
    batch, own = examples[[9, 12]], examples.parts[1][[1, 4]]
    assert batch.pop(TASK_ID).tolist() == [1, 1]
    assert batch.keys() == own.keys()
    assert all(torch.equal(batch[name], own[name]) for name in own)
    sampler = multitask.all_task_loaders({"train": examples}, batch_size=2, seed=0)["train"].batch_sampler
    assert isinstance(sampler, multitask.SeveralBuckets)
    assert set(sampler.median_batch(4)) < set(range(8))
    assert np.array_equal(np.sort(sampler.indices()), np.arange(14))
    assert sampler.epochs(14) == pytest.approx([2, 2])
    assert 0 <= sampler.padding() < 0.5
