"""A queue of work and one thread that does it, in an event loop."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


class Worker(ABC):
    """Does the work of a queue in one thread, one part after the other."""

    def __init__(self) -> None:
        self._arrived, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._worker: asyncio.Task[None] | None = None
        self._since: float | None = None

    def start(self) -> None:
        """Starts to work; needs a running event loop."""
        self._worker = asyncio.create_task(self._work())

    async def stop(self, seconds: float) -> None:
        """Does all that waits, for at most some seconds, and ends the thread."""
        if self._worker is not None:
            idle = asyncio.ensure_future(self._idle.wait())
            await asyncio.wait({idle, self._worker}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            idle.cancel()
            self._worker.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def is_working(self, seconds: float) -> bool:
        """Returns whether work is done, and the part that runs has not taken longer than some seconds."""
        return self.is_alive() and (
            self._since is None or asyncio.get_running_loop().time() - self._since <= seconds
        )  # fmt: skip

    def is_alive(self) -> bool:
        """Returns whether the task that works has not ended."""
        return self._worker is not None and not self._worker.done()

    async def _work(self) -> None:
        while True:
            await self._arrived.wait()
            if not await self._work_on():
                self._arrived.clear()
                self._idle.set()

    @abstractmethod
    async def _work_on(self) -> bool:
        """Does the next part of the work, and returns whether some is left."""

    def _wake(self) -> None:
        """Says that there is work."""
        self._arrived.set()
        self._idle.clear()

    async def _run_in_thread(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Calls a function in the thread, and notes for how long it has run."""
        loop = asyncio.get_running_loop()
        self._since = loop.time()
        try:
            return await loop.run_in_executor(self._thread, work, *arguments)
        finally:
            self._since = None
