"""Server-sent events of a job for any number of watchers, read from the queue once for all of them."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path

from distill.service.locations import list_names, rename_json
from distill.service.queue import Event, Queue, State

EVERY_SECONDS = 0.2  # Between two looks for new events, of a job that somebody watches.
RECENT = 256  # Events that are kept for watchers who are not far behind; others read from the queue.
AT_ONCE = 100  # Events that a watcher who is behind reads at once.
WAIT_SECONDS = 1.0  # For a new event, before a watcher looks whether the service stops.
QUIET_SECONDS = 15.0  # After which a comment is sent, so that a proxy does not close the connection.


def render_event(event: Event, names: Mapping[str, str]) -> bytes:
    """Returns an event in the form of server-sent events, with its number as the id.

    Args:
        names: what stands in its texts in place of paths, by the path.
    """
    data = rename_json(json.dumps({**event.data, "time": event.time, "attempt": event.attempt}), names)
    return f"id: {event.number}\nevent: {event.kind}\ndata: {data}\n\n".encode()


def is_end(event: Event) -> bool:
    """Returns whether the event is the state of a job that has ended."""
    return event.kind == "state" and State(event.data["state"]).is_end


class Feed:
    """The newest events of one job, for as long as somebody watches it."""

    def __init__(self, queue: Queue, job: str, names: Mapping[str, str]) -> None:
        self.watchers, self.last = 0, 0
        self._queue, self._job, self._names = queue, job, names
        self._recent: deque[tuple[Event, bytes]] = deque(maxlen=RECENT)
        self._changed = asyncio.Condition()
        self._reader: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Adds a watcher."""
        if self._reader is None:
            self._reader = asyncio.create_task(self._read())
        self.watchers += 1

    def end(self) -> None:
        """Removes a watcher."""
        self.watchers -= 1
        if not self.watchers and self._reader is not None:
            self._reader.cancel()

    async def next(self, after: int, seconds: float) -> list[tuple[Event, bytes]]:
        """Returns the next events after a number, as soon as there are some; none after so many seconds."""
        if self.last <= after:
            try:
                async with asyncio.timeout(seconds), self._changed:
                    await self._changed.wait_for(lambda: self.last > after)
            except TimeoutError:
                return []
        if self._recent and self._recent[0][0].number <= after + 1:
            return [each for each in self._recent if each[0].number > after]
        events = await asyncio.to_thread(self._queue.events, self._job, after, AT_ONCE)
        if not events:  # The job was removed meanwhile.
            await asyncio.sleep(seconds)
        return [(event, render_event(event, self._names)) for event in events]

    async def _read(self) -> None:
        while True:
            events = await asyncio.to_thread(self._queue.events, self._job, self.last, AT_ONCE)
            if events:
                async with self._changed:
                    self._recent.extend((event, render_event(event, self._names)) for event in events)
                    self.last = events[-1].number
                    self._changed.notify_all()
            if len(events) < AT_ONCE:
                await asyncio.sleep(EVERY_SECONDS)


class Feeds:
    """The feeds of the jobs that are watched.

    Args:
        directory: of the service.
    """

    def __init__(self, queue: Queue, directory: Path) -> None:
        self._queue, self._directory = queue, directory
        self._feeds: dict[str, Feed] = {}

    @property
    def watched(self) -> int:
        """The number of jobs that somebody watches."""
        return len(self._feeds)

    async def watch(self, job: str, after: int, is_open: Callable[[], bool]) -> AsyncGenerator[bytes]:
        """Yields the events of a job after a number, up to the state of its end, or until `is_open` is false.

        Those of a job that was tried again go on after such a state.
        """
        found = await asyncio.to_thread(self._queue.get, job)
        names = {} if found is None else list_names(found, self._directory)
        feed = self._feeds.setdefault(job, Feed(self._queue, job, names))
        feed.begin()
        quiet = 0.0
        try:
            while is_open():
                events = await feed.next(after, WAIT_SECONDS)
                quiet = 0.0 if events else quiet + WAIT_SECONDS
                if events:
                    yield b"".join(content for _, content in events)
                    after = events[-1][0].number
                    if is_end(events[-1][0]) and not await asyncio.to_thread(self._queue.events, job, after, 1):
                        return
                elif await asyncio.to_thread(self._queue.get, job) is None:  # It was removed.
                    return
                elif quiet >= QUIET_SECONDS:
                    quiet = 0.0
                    yield b": \n\n"
        finally:
            feed.end()
            if not feed.watchers and self._feeds.get(job) is feed:
                del self._feeds[job]
