"""Runs the requests that wait together: while one batch is computed, the next one gathers."""

import asyncio
import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from distill.edge.bundle import RecordError
from distill.edge.decoder import Prediction, Record
from distill.errors import first_line
from distill.serve.worker import Worker

Predict = Callable[[list[Record]], list[Prediction]]
SHARE = 8_000  # Characters that a request gets computed before others have a turn, or one record.


class FullError(Exception):
    """As many requests wait as may."""


class ModelError(Exception):
    """A model ended with something that is no `Exception`, such as a panic of the tokenizer."""


@dataclass
class Request:
    """Records with their costs, and the future of their predictions. A cancelled future is not computed any more.

    Attributes:
        taken: number of records that are computed, or in the batch that is.
        turn: the time of the queue at which the next records have their turn, in characters.
    """

    records: Sequence[Record]
    costs: Sequence[int]
    answer: "asyncio.Future[list[Prediction]]"
    turn: int
    taken: int = 0
    predictions: list[Prediction] = field(default_factory=list)

    def next_share(self, most: int) -> "Share":
        """Returns the next records, one at least and `most` at most."""
        last, cost = self.taken + 1, self.costs[self.taken]
        end = min(len(self.records), self.taken + most)
        while last < end and cost + self.costs[last] <= SHARE:
            cost += self.costs[last]
            last += 1
        return Share(self, self.taken, last, cost)


@dataclass(frozen=True)
class Share:
    """Records of a request that run in one batch, from `first` to `last` (exclusive)."""

    request: Request
    first: int
    last: int
    cost: int

    @property
    def records(self) -> Sequence[Record]:
        return self.request.records[self.first : self.last]

    def fail(self, error: Exception) -> None:
        if isinstance(error, RecordError):  # It counts from the beginning of the share.
            error = type(error)(error.number + self.first, error.reason)
        self.request.answer.set_exception(error)


class Batcher(Worker):
    """A queue of requests and one thread that answers them.

    No request waits for others to come: a batch is what gathered while the one before was computed. A large request
    runs in shares, between which others have their turns: the next share is the one that would end first if all
    requests ran at once (start-time fair queueing), so that a small request does not wait for the end of large ones.

    Args:
        predict: returns the predictions of records in their order; it is called in the thread.
        waiting: number of requests that may wait.
        records: of all requests of a batch, at most.
        characters: likewise; a single share may have more.
    """

    def __init__(self, predict: Predict, *, waiting: int, records: int, characters: int = 32_000) -> None:
        super().__init__()
        self.predict, self.most, self.records, self.characters = predict, waiting, records, characters
        self.sizes: list[Callable[[int], object]] = []  # Called with the number of records of each batch.
        self._queue: list[tuple[int, int, Request]] = []
        self._numbers, self._clock = itertools.count(), 0

    def waiting(self) -> int:
        """Returns the number of requests that wait."""
        return len(self._queue)

    def submit(
        self, records: Sequence[Record], costs: Sequence[int] | None = None
    ) -> "asyncio.Future[list[Prediction]]":
        """Returns the future of the predictions.

        Args:
            costs: of each record, in characters; None for 1 each.

        Raises:
            FullError: if as many requests wait as may.
        """
        if len(self._queue) >= self.most:
            raise FullError
        answer = asyncio.get_running_loop().create_future()
        request = Request(records, [1] * len(records) if costs is None else costs, answer, self._clock)
        self._push(request)
        return request.answer

    def _push(self, request: Request) -> None:
        end = request.turn + request.next_share(self.records).cost
        heapq.heappush(self._queue, (end, next(self._numbers), request))
        self._wake()

    async def _work_on(self) -> bool:
        await self._answer(self._take())
        return bool(self._queue)

    def _take(self) -> list[Share]:
        """Returns the shares of the next batch, and takes them out of the queue."""
        shares: list[Share] = []
        records = cost = 0
        while self._queue:
            _, _, request = self._queue[0]
            if request.answer.done():  # It was cancelled.
                heapq.heappop(self._queue)
                continue
            share = request.next_share(self.records)
            records, cost = records + len(share.records), cost + share.cost
            if shares and (records > self.records or cost > self.characters):
                break
            heapq.heappop(self._queue)
            shares.append(share)
            self._clock = max(self._clock, request.turn)
            request.taken, request.turn = share.last, request.turn + share.cost
            if request.taken < len(request.records):
                self._push(request)
        return shares

    async def _answer(self, shares: Sequence[Share]) -> None:
        """Computes a batch; where that fails, each of its shares alone, so that only the cause of it fails."""
        shares = [share for share in shares if not share.request.answer.done()]
        if not shares:
            return
        records = [record for share in shares for record in share.records]
        for report in self.sizes:
            report(len(records))
        try:
            predictions = await self._run_in_thread(self._run, records)
        except Exception as error:
            if len(shares) > 1:
                for share in shares:
                    await self._answer([share])
            elif not shares[0].request.answer.done():
                shares[0].fail(error)
            return
        remaining = iter(predictions)
        for share in shares:
            request = share.request
            request.predictions += itertools.islice(remaining, len(share.records))
            # It may have been cancelled while it was computed.
            if len(request.predictions) == len(request.records) and not request.answer.done():
                request.answer.set_result(request.predictions)

    def _run(self, records: list[Record]) -> list[Prediction]:
        """Returns the predictions, or raises an `Exception`: another one would end the task that waits for it."""
        try:
            return self.predict(records)
        except Exception:
            raise
        except BaseException as error:
            raise ModelError(first_line(error)) from error
