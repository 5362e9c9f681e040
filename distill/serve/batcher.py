"""Runs the requests that wait together: while one batch is computed, the next one gathers."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from distill.edge.decoder import Prediction, Record

Predict = Callable[[list[Record]], list[Prediction]]


class FullError(Exception):
    """As many requests wait as may."""


@dataclass(frozen=True)
class Request:
    """Records, and the future of their predictions. A cancelled future is not computed any more."""

    records: Sequence[Record]
    answer: "asyncio.Future[list[Prediction]]"


class Batcher:
    """A queue of requests and one thread that answers them.

    No request waits for others to come: a batch is what gathered while the one before was computed.

    Args:
        predict: returns the predictions of records in their order; it is called in the thread.
        waiting: number of requests that may wait.
        records: of all requests of a batch, at most; a single request may have more.
    """

    def __init__(self, predict: Predict, *, waiting: int, records: int) -> None:
        self.predict, self.records = predict, records
        self.sizes: list[Callable[[int], object]] = []  # Called with the number of records of each batch.
        self._queue: asyncio.Queue[Request] = asyncio.Queue(waiting)
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._worker: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts to answer; needs a running event loop."""
        self._worker = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """Answers all that waits, and ends the thread."""
        await self._queue.join()
        if self._worker is not None:
            self._worker.cancel()
        self._thread.shutdown()

    def waiting(self) -> int:
        """Returns the number of requests that wait."""
        return self._queue.qsize()

    def submit(self, records: Sequence[Record]) -> "asyncio.Future[list[Prediction]]":
        """Returns the future of the predictions.

        Raises:
            FullError: if as many requests wait as may.
        """
        request = Request(records, asyncio.get_running_loop().create_future())
        try:
            self._queue.put_nowait(request)
        except asyncio.QueueFull:
            raise FullError from None
        return request.answer

    async def _work(self) -> None:
        while True:
            batch = [await self._queue.get()]
            number = len(batch[0].records)
            while not self._queue.empty() and number < self.records:
                batch.append(self._queue.get_nowait())
                number += len(batch[-1].records)
            await self._answer([request for request in batch if not request.answer.done()])
            for _ in batch:
                self._queue.task_done()

    async def _answer(self, batch: list[Request]) -> None:
        """Computes a batch; where that fails, each of its requests alone, so that only the cause of it fails."""
        if not batch:
            return
        records = [record for request in batch for record in request.records]
        for report in self.sizes:
            report(len(records))
        try:
            predictions = await asyncio.get_running_loop().run_in_executor(self._thread, self.predict, records)
        except Exception as error:
            if len(batch) > 1:
                for request in batch:
                    await self._answer([request])
            elif not batch[0].answer.done():
                batch[0].answer.set_exception(error)
            return
        first = 0
        for request in batch:
            last = first + len(request.records)
            if not request.answer.done():  # It was cancelled while it was computed.
                request.answer.set_result(predictions[first:last])
            first = last
