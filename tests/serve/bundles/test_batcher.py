"""Tests of the queue: turns, shares, failures, and its end."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from distill.edge.prediction import RecordError
from distill.serve.bundles.served_models import SHARE, Batcher
from tests.serve.bundles.conftest import PATIENCE


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), PATIENCE))


def numbers(end: int) -> list[Any]:
    return list(range(end))


def echo(records: list[Any]) -> list[Any]:
    return [{"value": record} for record in records]


def test_a_small_request_does_not_wait_for_the_end_of_a_large_one() -> None:
    batches: list[list[Any]] = []

    def predict(records: list[Any]) -> list[Any]:
        batches.append(records)
        return echo(records)

    async def work() -> None:
        batcher = Batcher(predict, waiting=9, records=100, characters=2 * SHARE)
        large = batcher.submit(numbers(6), [SHARE] * 6)
        other = batcher.submit([f"{number}" for number in range(6)], [SHARE] * 6)
        small = batcher.submit(["small"], [5])
        batcher.start()
        await asyncio.gather(large, other, small)
        assert large.result() == echo(numbers(6))
        await batcher.stop(PATIENCE)

    run(work)
    assert batches[0] == ["small", 0]  # Two shares and the small request are above the limit of a batch.
    assert batches[1] == ["0", 1]  # Large ones take turns.
    assert all(len(batch) <= 2 for batch in batches)


def test_a_batch_has_no_more_records_than_it_may() -> None:
    sizes: list[int] = []

    async def work() -> None:
        batcher = Batcher(echo, waiting=9, records=3)
        batcher.report_size = sizes.append
        answers = [batcher.submit(numbers(number)) for number in (2, 2, 7)]
        batcher.start()
        assert [len(answer) for answer in await asyncio.gather(*answers)] == [2, 2, 7]
        await batcher.stop(PATIENCE)

    run(work)
    assert sum(sizes) == 11
    assert max(sizes) <= 3


def test_an_error_of_a_record_has_its_number_in_the_request() -> None:
    def predict(records: list[Any]) -> list[Any]:
        if 4 in records:
            raise RecordError(records.index(4) + 1, "it is bad")
        return echo(records)

    async def work() -> None:
        batcher = Batcher(predict, waiting=9, records=2)
        answer = batcher.submit(numbers(6))
        batcher.start()
        with pytest.raises(RecordError, match="^record 5: it is bad$"):
            await answer
        await batcher.stop(PATIENCE)

    run(work)
