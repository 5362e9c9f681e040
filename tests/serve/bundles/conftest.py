"""A server in a thread, and a bundle whose predictions wait for the test."""

import http.client
import json
import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from distill.edge.decoder import Prediction, Record
from distill.serve.bundles.app import BundleService, create_app
from distill.serve.bundles.escalation import Escalation
from distill.serve.bundles.served_models import load_models
from distill.serve.http import Server
from distill.serve.limits import Limits
from tests.edge.conftest import write_toy_bundle

PATIENCE = 60  # Seconds after which a test fails, where it waits for an event.


@dataclass
class Answer:
    """What a server answered."""

    status: int
    body: Any
    headers: dict[str, str]


def send(port: int, method: str, path: str, body: object, headers: dict[str, str]) -> Answer:
    """Sends a request with bytes or a value as JSON, and returns what came: JSON, text, or the bytes of a zip."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection.request(method, path, content, {"Content-Type": "application/json", **headers})
    response = connection.getresponse()
    received: Any = response.read()
    connection.close()
    kind = response.getheader("content-type") or ""
    if "zip" not in kind:
        received = json.loads(received) if "json" in kind and received else received.decode()
    return Answer(response.status, received, dict(response.getheaders()))


@dataclass
class Running:
    """A server with its address and what it said."""

    service: BundleService
    server: Server
    thread: threading.Thread
    said: "queue.Queue[str]"
    port: int

    def ask(
        self, body: object, path: str = "/predict", *, method: str = "POST", headers: dict[str, str] | None = None
    ) -> Answer:
        """Sends a request over a connection of its own."""
        return send(self.port, method, path, body if method == "POST" else None, headers or {})

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask(None, path, method="GET", headers=headers)

    def later(self, body: object) -> "queue.Queue[Answer]":
        """Sends a request from another thread; its answer comes in the queue."""
        answers: queue.Queue[Answer] = queue.Queue()
        threading.Thread(target=lambda: answers.put(self.ask(body)), daemon=True).start()
        return answers

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


@dataclass
class Gate:
    """Holds the predictions of a model until it is opened, and notes the records of each batch."""

    predict: Any
    batches: list[list[Record]] = field(default_factory=list)
    entered: "queue.Queue[int]" = field(default_factory=queue.Queue)
    is_open: threading.Event = field(default_factory=threading.Event)

    def __call__(self, records: Sequence[Record]) -> list[Prediction]:
        self.batches.append(list(records))
        self.entered.put(len(records))
        assert self.is_open.wait(PATIENCE)
        predictions: list[Prediction] = self.predict(records)
        return predictions


@pytest.fixture
def bundle(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> Path:
    directory = tmp_path / "bundle"
    directory.mkdir()
    write_toy_bundle(directory, tokenizer, task="films")
    return directory


@pytest.fixture
def start() -> Iterator[Any]:
    """A function that starts a server for bundles; all are stopped after the test."""
    running: list[Running] = []

    def run(
        *bundles: object,
        token: str | None = None,
        hosts: set[str] | None = None,
        reload_seconds: float = 0.0,
        escalation: Escalation | None = None,
        **limits: Any,
    ) -> Running:
        chosen = Limits(**limits)
        names = [str(entry) for entry in bundles]
        models = load_models(names, model=None, threads=1, limits=chosen, escalation=escalation)
        said: queue.Queue[str] = queue.Queue()
        service = BundleService(
            models, limits=chosen, token=token, hosts=hosts, reload_seconds=reload_seconds, log=said.put
        )
        server = Server(service, create_app(service), host="127.0.0.1", port=0)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        port = int(said.get(timeout=PATIENCE).rpartition(":")[2])
        running.append(Running(service, server, thread, said, port))
        return running[-1]

    yield run
    for one in running:
        one.stop()


def hold(running: Running) -> Gate:
    """Holds the predictions of the only model."""
    [model] = running.service.models.values()
    gate = Gate(model.batcher.predict)
    model.batcher.predict = gate
    return gate
