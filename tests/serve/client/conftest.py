"""A service of the tests, in a thread, which answers as `distill.service` does and records what it was asked."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import pytest


@dataclass(frozen=True)
class Request:
    """A request; `body` is JSON or bytes."""

    method: str
    path: str
    body: Any
    headers: dict[str, str]


@dataclass
class Answer:
    """An answer: JSON, or bytes of a file; `announced` is a length that is not that of the bytes."""

    content: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    announced: int | None = None


class FakeService:
    """Answers by method and path; one of several answers to the same request is used up, the last one stays."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Answer]] = {}
        self.requests: list[Request] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self.server.daemon_threads = True
        cast(Any, self.server).service = self
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, request: str, *answers: Answer) -> None:
        """Sets the answers to a request such as `GET /jobs`; the query is not part of it."""
        self.answers[request] = list(answers)

    def find(self, request: str) -> Answer:
        answers = self.answers.get(request, [Answer({"error": f"there is no {request}"}, 404)])
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def asked(self, request: str) -> list[Request]:
        """Returns the requests of one kind."""
        return [one for one in self.requests if f"{one.method} {one.path.partition('?')[0]}" == request]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        service: FakeService = cast(Any, self.server).service
        answer = service.find(f"{self.command} {self.path.partition('?')[0]}")
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        is_json = self.headers.get("Content-Type") == "application/json"
        service.requests.append(
            Request(self.command, self.path, json.loads(content) if is_json else content, dict(self.headers))
        )
        body = answer.content if isinstance(answer.content, bytes) else json.dumps(answer.content).encode()
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if answer.announced is None else answer.announced))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    do_GET = do_POST = do_PUT = do_DELETE = handle_any

    def log_message(self, *_: object) -> None:
        """Prints nothing."""


@pytest.fixture
def service() -> Iterator[FakeService]:
    fake = FakeService()
    thread = threading.Thread(target=fake.server.serve_forever, args=(0.01,))
    thread.start()
    yield fake
    fake.server.shutdown()
    thread.join()
    fake.server.server_close()


def stream(*events: tuple[int, str, dict[str, Any]], cut: bool = False) -> Answer:
    """Returns server-sent events, with a comment before each; the last one is cut in its middle if asked for."""
    text = "".join(
        f": alive\n\nid: {number}\nevent: {kind}\ndata: {json.dumps(data)}\n\n" for number, kind, data in events
    )
    content = text.encode()
    kept = content[:-20] if cut else content
    return Answer(kept, headers={"Content-Type": "text/event-stream"}, announced=len(content))
