"""Tests of the events of a job as its watchers get them: all, in order, and from where they left off."""

import asyncio
import http.client
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from distill.serve.jobs import results
from distill.serve.jobs.queue import Queue, State
from distill.serve.jobs.results import Feeds
from tests.serve.jobs.conftest import Running
from tests.serve.jobs.programs import wait_for

Start = Callable[..., Running]
WATCHERS, EVENTS = 4, 600


def parse(content: bytes) -> list[tuple[int, str, dict[str, Any]]]:
    found = []
    for part in content.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in part.splitlines() if not line.startswith(":"))
        if fields:
            found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return found


def open_stream(running: Running, id: str) -> http.client.HTTPResponse:
    connection = running.connect()
    connection.request("GET", f"/jobs/{id}/events")
    return connection.getresponse()


def test_watchers_get_every_event_in_order_and_go_on_after_the_last_one(start: Start) -> None:
    running = start()
    job = running.wait(running.submit().id, State.RUNNING)
    with ThreadPoolExecutor(WATCHERS) as pool:
        watchers = [pool.submit(lambda: parse(open_stream(running, job.id).read())) for _ in range(WATCHERS)]
        directory = str(running.service.runs_directory(job) / "toy" / "1")
        running.write_events(job.id, {"kind": "run", "directory": directory, "run": directory})
        for first in range(0, EVENTS, 100):
            running.write_events(job.id, *({"kind": "step", "step": first + i, "loss": 0.5} for i in range(100)))
        running.end(job.id)
    for watcher in watchers:
        events = watcher.result()
        assert [number for number, _, _ in events] == list(range(1, EVENTS + 5))
        assert [data["step"] for _, kind, data in events if kind == "step"] == list(range(EVENTS))
        assert [data["state"] for _, kind, data in events if kind == "state"] == ["queued", "running", "finished"]
        [named] = [data for _, kind, data in events if kind == "run"]
        assert (named["directory"], named["run"]) == ("toy/1", "toy/1")
    wait_for(lambda: not running.service.feeds.watched)
    # A watcher whose connection broke goes on; one that has seen the end gets nothing more.
    path = f"/jobs/{job.id}/events"
    after = parse(running.ask("GET", path, headers={"Last-Event-ID": str(EVENTS + 1)}).body.encode())
    assert [number for number, _, _ in after] == [EVENTS + 2, EVENTS + 3, EVENTS + 4]
    assert running.ask("GET", path, headers={"Last-Event-ID": str(EVENTS + 4)}).status == 204
    for unknown in ("99999", "x", "-1", "9" * 40):
        assert running.ask("GET", path, headers={"Last-Event-ID": unknown}).body.startswith("id: 1\n")


def test_watchers_go_on_with_a_retry_and_are_let_go_when_the_service_stops(start: Start) -> None:
    running = start()
    job = running.end(running.submit().id, code=2, error="there is no teacher")
    running.ask("POST", f"/jobs/{job.id}/retry")
    response = open_stream(running, job.id)
    running.end(job.id)
    states = [(data["state"], data["error"]) for _, _, data in parse(response.read())]
    assert states == [
        ("queued", None), ("running", None), ("failed", "there is no teacher"), ("queued", None), ("running", None),
        ("finished", None),
    ]  # fmt: skip
    live = open_stream(running, running.wait(running.submit().id, State.RUNNING).id)
    assert live.readline() == b"id: 1\n"
    running.stop()
    live.read()
    assert running.service.feeds.watched == {}


def test_a_watcher_who_is_far_behind_reads_from_the_queue_and_one_of_a_removed_job_is_let_go(
    queue: Queue, tmp_path: Path
) -> None:
    """The events that are kept in memory are few, and a watcher that takes its time still gets all of them."""
    job, removed = queue.add("local", ["task=mrpc"]), queue.add("local", [])
    queue.claim()

    async def watch() -> list[int]:
        feeds, numbers = Feeds(queue, tmp_path), list[int]()
        stream = feeds.watch(job.id, 0, lambda: True)
        numbers += [number for number, _, _ in parse(await anext(stream))]
        queue.record(job.id, 1, *({"kind": "step", "step": step} for step in range(3 * results.RECENT)))
        quick = feeds.watch(job.id, 2, lambda: True)  # It drives the feed on.
        last = 2
        while last < 3 * results.RECENT + 2:
            last = parse(await anext(quick))[-1][0]
        await quick.aclose()
        queue.finish(job.id, 1, State.FINISHED)
        async for content in stream:
            numbers += [number for number, _, _ in parse(content)]
        assert feeds.watched == {}
        other = Feeds(queue, tmp_path).watch(removed.id, 0, lambda: True)
        await anext(other)
        queue.cancel(removed.id)
        queue.remove(removed.id)
        assert [content async for content in other] == []
        return numbers

    assert asyncio.run(watch()) == list(range(1, 3 * results.RECENT + 4))
