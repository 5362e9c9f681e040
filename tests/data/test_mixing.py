"""Tests of steps that mix labelled and unlabelled examples."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distill.core.errors import UserError
from distill.data.batches import (
    MixedBuckets,
    MixedExamples,
    TokenizedExamples,
    labelled_only,
    padded_length,
    seen_examples,
    shown_in_epoch,
)
from distill.kinds import Classification
from tests.conftest import sentences

Step = list[list[int]]


def random_lengths(count: int, *, seed: int = 0, longest: int = 40) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, longest, count)


def mixed(labelled: int, pool: int, **options: Any) -> MixedBuckets:
    lengths = random_lengths(labelled + pool)
    return MixedBuckets(lengths, labelled, **{"share": 0.5, "seed": 1, **options})


def of_epoch(buckets: MixedBuckets, epoch: int) -> list[Step]:
    buckets.set_epoch(epoch)
    return list(buckets)


def flatten(steps: list[Step]) -> list[int]:
    return [example for step in steps for micro_batch in step for example in micro_batch]


@pytest.mark.parametrize(("share", "size"), [(0.3, 16), (0.95, 32), (0.6, 7)])
@pytest.mark.parametrize("world", [1, 2])
def test_a_share_that_no_batch_has_exactly_is_met_on_average(share: float, size: int, world: int) -> None:
    """Before, 0.95 of 32 left one labelled example in a step, and steps of 20."""
    every = []
    for rank in range(world):
        buckets = mixed(600, 5000, share=share, batch_size=size, world=world)
        buckets.rank = rank
        every.append(of_epoch(buckets, 0))
        assert len(every[-1]) == len(buckets)
        assert abs(len(buckets) - 600 / (world * size * (1 - share))) <= 1.5
    steps = [[micro for step in of_ranks for micro in step] for of_ranks in zip(*every, strict=True)]
    sizes = [sum(map(len, step)) for step in steps]
    numbers = [sum(example >= 600 for micro in step for example in micro) for step in steps]
    assert sum(numbers) == world * int(600 * share / (1 - share) / world + 1e-9)
    assert max(sizes) <= size * world
    assert np.mean(sizes) > size * world - 2 * world
    assert len({total - number for total, number in zip(sizes, numbers, strict=True)}) <= 3  # One of them is short.
    assert sorted({example for step in steps for micro in step for example in micro if example < 600}) == [*range(600)]


@pytest.mark.parametrize("sizes", [{"batch_size": 6}, {"batch_tokens": 200}, {"batch_size": 4, "accumulate": 3}])
def test_an_epoch_has_every_labelled_example_once_and_all_unlabelled_ones_come_before_one_comes_twice(
    sizes: dict[str, int],
) -> None:
    labelled, pool = 120, 50
    buckets = mixed(labelled, pool, **sizes)
    drawn: list[int] = []
    for epoch in range(5):
        steps = of_epoch(buckets, epoch)
        assert len(steps) == len(buckets)
        examples = flatten(steps)
        assert sorted(example for example in examples if example < labelled) == list(range(labelled))
        assert sorted(buckets.indices()) == sorted(examples)
        drawn += [example - labelled for example in examples if example >= labelled]
    assert len(drawn) == 5 * labelled
    passes = [drawn[first : first + pool] for first in range(0, len(drawn), pool)]
    assert all(sorted(one) == list(range(pool)) for one in passes)
    assert passes[0] != passes[1] != passes[2]


def test_the_first_epochs_show_the_first_texts_whatever_the_seed() -> None:
    for seed in (1, 2):
        buckets = mixed(40, 1000, share=0.75, batch_size=8, seed=seed)
        for epoch in range(3):
            drawn = {example - 40 for example in flatten(of_epoch(buckets, epoch)) if example >= 40}
            assert drawn == set(range(120 * epoch, 120 * (epoch + 1)))
    first, second = (flatten(of_epoch(mixed(40, 1000, batch_size=8, seed=seed), 0)) for seed in (1, 2))
    assert first != second


def test_each_epoch_shows_the_same_part_in_an_order_of_its_own() -> None:
    """An epoch is one pass over the pool, whose texts are all as long as the labelled ones."""
    orders: dict[bool, set[tuple[int, ...]]] = {False: set(), True: set()}
    for seed, epoch in itertools.product((1, 2), range(4)):
        buckets = MixedBuckets(np.full(80, 9), 40, share=0.5, batch_size=8, seed=seed)
        examples = flatten(of_epoch(buckets, epoch))
        for is_labelled, of_kind in orders.items():
            of_kind.add(tuple(example for example in examples if (example < 40) == is_labelled))
    for of_kind, expected in zip(orders.values(), ([*range(40, 80)], [*range(40)]), strict=True):
        assert all(sorted(order) == expected for order in of_kind)
        assert len(of_kind) == 8  # Of another seed too, and none is that of the rows.
        assert tuple(expected) not in of_kind


def test_the_order_follows_from_seed_and_epoch_alone_and_steps_can_be_skipped() -> None:
    whole = of_epoch(mixed(60, 90, batch_size=6), 2)
    resumed = mixed(60, 90, batch_size=6)
    resumed.set_epoch(2)
    resumed.skip = 7
    assert list(resumed) == whole[7:]
    assert list(resumed) == whole  # Only the next epoch is shorter.


@pytest.mark.parametrize("sizes", [{"batch_size": 6}, {"batch_tokens": 120}])
def test_ranks_get_equal_parts_of_both_kinds(sizes: dict[str, int]) -> None:
    labelled = 96
    ranks = []
    for rank in range(2):
        buckets = mixed(labelled, 300, world=2, share=0.4, **sizes)
        buckets.rank = rank
        ranks.append(of_epoch(buckets, 1))
    for steps in zip(*ranks, strict=True):
        assert len(steps[0]) == len(steps[1])
        kinds = [[sum(example >= labelled for example in micro) for micro in step] for step in steps]
        assert kinds[0] == kinds[1]
    assert sorted(flatten(ranks[0] + ranks[1])) == sorted(set(flatten(ranks[0] + ranks[1])))


def test_no_forward_pass_exceeds_its_tokens() -> None:
    lengths = np.concatenate([random_lengths(100, longest=10), random_lengths(400, longest=64)])
    buckets = MixedBuckets(lengths, 100, share=0.8, batch_tokens=128)
    steps = of_epoch(buckets, 0)
    computed = 0
    for micro_batch in itertools.chain(*steps):
        tokens = len(micro_batch) * padded_length(lengths[micro_batch].max(), int(lengths.max()))
        assert tokens <= 128
        computed += tokens
    assert sum(example >= 100 for example in flatten(steps)) == 400
    assert buckets.padding() == pytest.approx(1 - lengths[buckets.indices()].sum() / computed)


def test_long_unlabelled_texts_have_forward_passes_of_their_own() -> None:
    alike = MixedBuckets(np.full(80, 8), 40, share=0.5, batch_size=8)
    assert all(len(step) == 1 for step in alike)
    longer = MixedBuckets(np.concatenate([np.full(40, 8), np.full(40, 64)]), 40, share=0.5, batch_size=8)
    assert all([len(micro) for micro in step] == [4, 4] for step in longer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 4, "share": 0.8}, "no labelled example in a batch: expected a batch_size of at least 5"),
        ({"batch_tokens": 30}, "got batch_tokens=30, expected at least"),
    ],
)
def test_batches_too_small_for_both_kinds_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        mixed(20, 20, **options)


@pytest.fixture(params=["right", "left"])
def examples(request: pytest.FixtureRequest, tokenizer: Any) -> Any:
    rows = sentences(30)
    task = Classification(
        text="text", train=([text for text, _ in rows[:10]], [label for _, label in rows[:10]]),
        dev=(["dev one", "dev two"], [0, 1]), unlabelled=[f"{text} once more and more" for text, _ in rows],
    )  # fmt: skip
    side = tokenizer.padding_side
    tokenizer.padding_side = request.param
    yield task.encode(task.read(Path("unused")), tokenizer, None)
    tokenizer.padding_side = side


def test_a_batch_holds_the_examples_in_the_given_order(examples: Any) -> None:
    train = examples["train"]
    assert isinstance(train, MixedExamples)
    assert len(train) == 40
    assert train.pieces().tolist() == train[list(range(40))]["input_ids"].unique().tolist()  # type: ignore[union-attr]
    assert set(train.labelled.pieces()) < set(train.pieces())  # type: ignore[arg-type]
    labelled = labelled_only(examples)["train"]
    assert isinstance(labelled, TokenizedExamples)
    assert len(labelled) == 10
    assert [seen_examples(train, epochs) for epochs in (1, 2, 3, 4, None)] == [20, 30, 40, 40, 40]
    assert (seen_examples(labelled, 3), shown_in_epoch(train), shown_in_epoch(labelled)) == (10, 20, 10)
    batch = train[[12, 3, 39, 0]]
    assert batch["example_id"].tolist() == [12, 3, 39, 0]
    assert (batch["labels"] >= 0).tolist() == [False, True, False, True]
    for row, (part, index) in enumerate([(train.pool, 2), (train.labelled, 3), (train.pool, 29), (train.labelled, 0)]):
        alone = part[[index]]
        tokens = batch["input_ids"][row][batch["attention_mask"][row].bool()]
        assert torch.equal(tokens, alone["input_ids"][0][alone["attention_mask"][0].bool()])
        assert batch["labels"][row] == alone["labels"][0]
        assert len(tokens) == train.lengths[batch["example_id"][row]]
