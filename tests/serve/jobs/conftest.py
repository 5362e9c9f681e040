"""A service in a thread, whose jobs run when a test lets them and whose dry runs are the test's own."""

import http.client
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from distill.core.files import write_json
from distill.serve.http import Server
from distill.serve.jobs import uploads
from distill.serve.jobs.accounts import Accounts
from distill.serve.jobs.attempts import Attempt, AttemptEngine, EngineState
from distill.serve.jobs.job_service import Service, Settings
from distill.serve.jobs.paths import create_app
from distill.serve.jobs.queue import Queue, QueuedJob, State
from distill.serve.jobs.results import DryRun
from distill.serve.limits import Limits
from tests.serve.bundles.conftest import PATIENCE, Answer, send
from tests.serve.jobs.programs import wait_for


class FakeEngine(AttemptEngine):
    """Attempts that run until a test ends them, or they are cancelled; those in `lost` are unknown to it."""

    seconds_between_checks = 0.01

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.works: list[Attempt] = []
        self.lost: set[str] = set()
        self.cancelled: list[str] = []

    def start(self, attempt: Attempt, runner: tuple[str, ...]) -> None:
        self.works.append(attempt)

    def ask(self, attempt: Attempt) -> EngineState | None:
        return None if attempt.name in self.lost else "running"

    def take_back(self, attempt: Attempt) -> None:
        if attempt.read_exit() is None:
            self.end(attempt.name, -15)

    def cancel(self, attempt: Attempt) -> None:
        self.cancelled.append(attempt.name)
        super().cancel(attempt)

    def end(self, name: str, code: int, error: str | None = None) -> None:
        """Lets an attempt end."""
        job, _, number = name.partition("/")
        write_json(Attempt(self.directory, job, int(number)).exit, {"code": code, "error": error})


@dataclass
class FakePlanner:
    """Dry runs that end at once, with what a test wants."""

    result: DryRun | Exception = field(default_factory=lambda: DryRun("10 steps", 12.5, ("one epoch",)))
    asked: list[tuple[Sequence[str], Mapping[str, str]]] = field(default_factory=list)

    async def plan(self, overrides: Sequence[str], names: Mapping[str, str]) -> DryRun:
        self.asked.append((overrides, names))
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@dataclass
class Running:
    """A service with its address."""

    service: Service
    engine: FakeEngine
    planner: FakePlanner
    server: Server
    thread: threading.Thread
    said: SimpleQueue[str]
    port: int

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def ask(
        self, method: str, path: str, body: object = None, *, token: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:  # fmt: skip
        """Sends a request over a connection of its own."""
        bearer = {} if token is None else {"Authorization": f"Bearer {token}"}
        return send(self.port, method, path, body, {**bearer, **(headers or {})})

    def submit(self, *overrides: str, **more: Any) -> QueuedJob:
        """Adds a job."""
        answer = self.ask(
            "POST", "/jobs", {"overrides": list(overrides) or ["+teacher=minilm", "+student=bilstm"]}, **more
        )
        assert answer.status == 201, answer.body
        return self.job(answer.body["id"])

    def job(self, id: str) -> QueuedJob:
        job = self.service.queue.get(id)
        assert job is not None
        return job

    def wait(self, id: str, state: State) -> QueuedJob:
        """Returns a job once it is in a state; the engine has begun one that runs."""
        wait_for(lambda: self.job(id).state == state)
        job = self.job(id)
        if state == State.RUNNING:  # The queue says so before the engine is asked.
            wait_for(lambda: f"{id}/{job.attempt}" in [work.name for work in self.engine.works])
        return job

    def end(self, id: str, *, code: int = 0, error: str | None = None) -> QueuedJob:
        """Lets the attempt of a job end."""
        job = self.wait(id, State.RUNNING)
        self.engine.end(f"{id}/{job.attempt}", code, error)
        return self.wait(id, State.FAILED if code else State.FINISHED)

    def write_events(self, id: str, *events: Mapping[str, Any]) -> None:
        """Appends events to the file of a job that runs."""
        job = self.wait(id, State.RUNNING)
        with open(Attempt(self.service.directory, id, job.attempt).events, "a", encoding="utf-8") as file:
            file.write("".join(f"{json.dumps(event)}\n" for event in events))

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        self.service.queue.close()


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """An empty queue."""
    queue = Queue(tmp_path / "jobs.sqlite")
    yield queue
    queue.close()


async def look(path: Path, format: str, limit: int) -> dict[str, Any]:
    """Looks through an upload in this process, which is quicker than one with limits."""
    return uploads.answer(path, format, limit)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """A function that starts a service; all are stopped after the test."""
    running: list[Running] = []

    def run(*, directory: Path | None = None, waiting: int = 100, **settings: Any) -> Running:
        directory = directory or tmp_path / "service"
        jobs, engine, planner = Queue(directory / "jobs.sqlite", limit=waiting), FakeEngine(directory), FakePlanner()
        said: SimpleQueue[str] = SimpleQueue()
        service = Service(
            directory, jobs, engine, settings=Settings(**settings), accounts=Accounts(directory / "accounts.json"),
            hosts=(), limits=Limits(body=20_000), log=said.put,
        )  # fmt: skip
        service.planner = planner  # type: ignore[assignment]
        service.data._look = look  # type: ignore[method-assign]
        server = Server(service, create_app(service), host="127.0.0.1", port=0)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        port = int(said.get(timeout=PATIENCE).rpartition(":")[2])
        running.append(Running(service, engine, planner, server, thread, said, port))
        return running[-1]

    yield run
    for one in running:
        if one.thread.is_alive():
            one.stop()
