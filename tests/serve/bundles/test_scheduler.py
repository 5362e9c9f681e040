"""Tests of the scheduler: texts join and leave between steps, and failures, with a stepper that waits for the test."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from distill.edge.generation import Generator, Prompt
from distill.edge.sampling import GenerationOptions
from distill.serve.bundles.served_models import GenerationJob, ModelError, Scheduler
from tests.serve.bundles.conftest import PATIENCE


class Panic(BaseException):
    """As the panics of a tokenizer, which are no `Exception`."""


@dataclass(eq=False)
class Text:
    """A text of as many tokens as its prompt says: the number of the token, as a piece of its own."""

    length: int
    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    unread: str = ""

    def advance(self) -> None:
        self.unread += f"{len(self.tokens)} "
        self.tokens.append(len(self.tokens))
        self.finish = "length" if len(self.tokens) == self.length else None

    def read(self) -> str:
        piece, self.unread = self.unread, ""
        return piece


class Counter:
    """A stepper whose steps wait until they are allowed, and which notes what it is asked for."""

    def __init__(self, *, steps: int | None = None) -> None:
        self.allowed = threading.Semaphore(10**6 if steps is None else steps)
        self.running: list[Text] = []
        self.notes: list[Any] = []
        self.error: BaseException | None = None

    def start(self, prompts: Sequence[Any], options: Any, *, numbers: Any = None) -> list[Any]:
        self.notes.append(("start", list(numbers)))
        if any(prompt.tokens[0] < 0 for prompt in prompts):
            raise Panic("no such token")
        texts = [Text(prompt.tokens[0]) for prompt in prompts]
        for text in texts:
            text.advance()
        self.running += [text for text in texts if text.finish is None]
        return texts

    def step(self) -> None:
        assert self.allowed.acquire(timeout=PATIENCE)
        self.notes.append(("step", len(self.running)))
        if self.error is not None:
            raise self.error
        for text in self.running:
            text.advance()
        self.running = [text for text in self.running if text.finish is None]

    def drop(self, text: Any) -> None:
        self.notes.append(("drop", text.length))
        self.running = [other for other in self.running if other is not text]


def job(stepper: Counter, *lengths: int, beams: int = 1) -> GenerationJob:
    return GenerationJob(
        cast(Generator, stepper), [Prompt([length]) for length in lengths], GenerationOptions(beams=beams)
    )


async def collect(of: GenerationJob) -> list[str]:
    """Returns the pieces of each text of a job, one after the other."""
    texts = [""] * len(of.texts)
    async for piece in of.pieces():
        texts[piece.number] += piece.text
    return texts


def count(length: int) -> str:
    return "".join(f"{number} " for number in range(length))


def run(work: Callable[[Scheduler], Coroutine[Any, Any, None]], *, waiting: int = 99, rows: int = 99) -> None:
    async def start() -> None:
        scheduler = Scheduler(waiting=waiting, rows=rows)
        scheduler.start()
        await work(scheduler)
        await scheduler.stop(PATIENCE)
        assert not scheduler.running()
        assert not scheduler.waiting()

    asyncio.run(asyncio.wait_for(start(), PATIENCE))


def test_a_job_joins_between_two_steps_and_a_cancelled_one_is_dropped_before_the_next() -> None:
    stepper = Counter(steps=1)

    async def work(scheduler: Scheduler) -> None:
        gone, stays = job(stepper, 50, 60), job(stepper, 4)
        scheduler.submit(gone)
        pieces = gone.pieces()
        for _ in range(4):  # Two of each text, so that the only step that may run is over.
            await anext(pieces)
        scheduler.submit(stays)
        gone.cancel()
        assert [piece async for piece in pieces] == []
        stepper.allowed.release(9)
        assert await collect(stays) == [count(4)]

    run(work)
    # At most one step, which had begun already, ran with the texts that are dropped.
    steps = [note for note in stepper.notes if note[0] != "start"]
    assert steps.index(("drop", 50)) <= 2
    assert [note for note in steps if note[0] == "drop"] == [("drop", 50), ("drop", 60)]
    assert all(size == 1 for name, size in steps[steps.index(("drop", 60)) + 1 :] if name == "step")


def test_texts_beyond_the_rows_wait_in_order_and_cancelled_ones_never_start() -> None:
    stepper = Counter(steps=0)

    async def work(scheduler: Scheduler) -> None:
        jobs = [job(stepper, 2, beams=2), job(stepper, 3), job(stepper, 4), job(stepper, 5, beams=8)]
        for each in jobs:
            scheduler.submit(each)
        await jobs[1].joined
        assert [each.joined.done() for each in jobs] == [True, True, False, False]
        assert scheduler.waiting() == 2
        jobs[2].cancel()
        assert scheduler.waiting() == 1
        stepper.allowed.release(99)
        assert await collect(jobs[3]) == [count(5)]

    run(work, rows=3)
    assert [note for note in stepper.notes if note[0] == "start"] == [("start", [0])] * 3


def test_a_failure_ends_its_job_or_the_texts_of_its_stepper_and_others_go_on() -> None:
    broken, whole = Counter(), Counter()
    broken.error = ValueError("logits are not finite")

    async def work(scheduler: Scheduler) -> None:
        jobs = [job(broken, 9), job(whole, 5), job(whole, -1, beams=2)]
        for each in jobs:
            scheduler.submit(each)
        assert await collect(jobs[1]) == [count(5)]
        with pytest.raises(ValueError, match="not finite"):
            await collect(jobs[0])
        with pytest.raises(ModelError, match="no such token"):
            await collect(jobs[2])
        broken.error = None
        again = job(broken, 3)
        scheduler.submit(again)
        assert await collect(again) == [count(3)]

    run(work)
    assert ("drop", 9) in broken.notes


def test_a_step_that_does_not_end_is_noticed() -> None:
    stepper = Counter(steps=0)

    async def work(scheduler: Scheduler) -> None:
        stuck = job(stepper, 2)
        scheduler.submit(stuck)
        await anext(stuck.pieces())
        while scheduler.is_working(0):
            await asyncio.sleep(0)
        assert scheduler.is_working(PATIENCE)
        stepper.allowed.release(9)

    run(work)
