"""A service without jobs: the paths of the real one, answered from memory, with events that a test sends."""

import itertools
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from distill.serve.jobs.paths import load_page

Json = dict[str, Any]
ENDS = ("cancelled", "failed", "finished")
OPTIONS: Json = {
    "teachers": [
        {"name": "minilm", "title": "MiniLM of six layers"},
        {"name": "teacher:reviews", "title": "of this machine"},
    ],
    "students": [{"name": "distilbert", "title": "half of the layers"}, {"name": "bilstm", "title": "one BiLSTM"}],
    "objectives": [{"name": "hinton", "title": "soft targets"}, {"name": "dkd", "title": "decoupled"}],
    "tasks": [
        {
            "name": "classification",
            "title": "texts or pairs with labels",
            "columns": [
                {"name": "text", "title": "column of the text", "default": "text", "many": True, "optional": False},
                {"name": "label", "title": "column of the label", "default": "label", "many": False, "optional": False},
            ],
        },
        {"name": "question_answering", "title": "spans of contexts", "columns": []},
    ],
    "options": [{"name": "trainer.max_epochs", "title": "passes over the data", "default": "auto"}],
    "formats": ["csv", "tsv", "jsonl", "parquet", "conll", "squad", "zip"],
    "upload": 2_000_000_000,
}


def make_data_set(name: str, columns: list[str], first: list[list[str]], **changes: Any) -> Json:
    """Returns the preview of a data set."""
    return {
        "name": name, "format": "csv", "bytes": 12_345, "rows": 5_000, "columns": columns,
        "first_rows": [dict(zip(columns, row, strict=True)) for row in first], "label_counts": {}, "lengths": {},
        "problems": [], "task": "classification", "text": [], "label": [],
    } | changes  # fmt: skip


def make_job(id: str, state: str = "queued", **changes: Any) -> Json:
    """Returns a job."""
    return {
        "id": id, "owner": "local", "name": None, "overrides": ["+teacher=minilm"], "data": [], "state": state,
        "attempt": 1, "created": 1_800_000_000.0, "started": None, "ended": None, "stage": None, "progress": None,
        "seconds_left": None, "metrics": {}, "error": None, "pinned": False, "plan": "", "runs": [], "results": None,
    } | changes  # fmt: skip


class FakeService:
    """Holds jobs and data sets, and what it was asked.

    Args:
        token: that requests must bear; None for none.
    """

    def __init__(self, token: str | None = None) -> None:
        self.token = token
        self.jobs: dict[str, Json] = {}
        self.data: dict[str, Json] = {}
        self.uploads: dict[str, bytes] = {}
        self.requests: list[tuple[str, str, Any]] = []  # Method, path and content of each that was not a GET.
        self.streams: list[str | None] = []  # The header Last-Event-ID of each stream that was opened.
        self.logs: dict[str, str] = {}
        self.refusals: dict[tuple[str, str], tuple[int, str]] = {}  # By method and path: the status and the reason.
        self.port = 0
        self._events: dict[str, list[tuple[str, Json]]] = {}
        self._changed = threading.Condition()
        self._cuts = 0

    def add(self, job: Json) -> Json:
        self.jobs[job["id"]] = job
        self._events[job["id"]] = []
        return job

    def emit(self, id: str, kind: str, **data: Any) -> None:
        """Adds an event to a job, which its watchers get."""
        with self._changed:
            if kind == "state":
                self.jobs[id].update(state=data["state"], error=data.get("error"))
            progress = ("stage", "progress", "seconds_left")
            self.jobs[id].update({name: data[name] for name in progress if name in data})
            self._events[id].append((kind, data))
            self._changed.notify_all()

    def cut(self) -> None:
        """Closes the streams that are open."""
        with self._changed:
            self._cuts += 1
            self._changed.notify_all()

    def follow(self, id: str, after: int) -> Iterator[bytes]:
        """Yields the server-sent events of a job after one of them, until the state of an end, or a cut."""
        cuts, events = self._cuts, self._events[id]
        for number in itertools.count(after + 1):
            with self._changed:
                while len(events) < number and self._cuts == cuts:
                    self._changed.wait()
            if self._cuts != cuts:
                return
            kind, data = events[number - 1]
            yield f"id: {number}\nevent: {kind}\ndata: {json.dumps(data)}\n\n".encode()
            if kind == "state" and data["state"] in ENDS and number == len(events):
                return


class Handler(BaseHTTPRequestHandler):
    """Answers requests for the service of its server."""

    protocol_version = "HTTP/1.1"
    service: FakeService

    def log_message(self, *_: Any) -> None:
        pass

    def answer(
        self, status: int, content: Any = None, kind: str = "application/json", headers: dict[str, str] | None = None
    ) -> None:
        body = content if isinstance(content, bytes) else b"" if content is None else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status: int, reason: str) -> None:
        self.answer(status, {"error": reason})

    def respond(self) -> None:
        service, url = self.service, urlsplit(self.path)
        path = unquote(url.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if path == "/":
            page = load_page()
            self.answer(200, page.html.encode(), "text/html", {"Content-Security-Policy": page.policy})
        elif service.token and self.headers.get("Authorization") != f"Bearer {service.token}":
            self.refuse(401, "the bearer token is missing or wrong")
        elif (self.command, path) in service.refusals:
            self.refuse(*service.refusals[self.command, path])
        else:
            content = body if path.startswith("/data/") else json.loads(body) if body else None
            if self.command != "GET":
                service.requests.append((self.command, self.path, content))
            self.dispatch(path, content, parse_qs(url.query))

    do_GET = do_POST = do_PUT = do_DELETE = respond

    def dispatch(self, path: str, content: Any, query: dict[str, list[str]]) -> None:
        service = self.service
        if path == "/options":
            self.answer(200, OPTIONS)
        elif path == "/plan":
            self.answer(200, {"plan": "1,000 steps <b>", "seconds": 720, "notices": ["<i>one epoch</i>"]})
        elif path == "/jobs" and self.command == "GET":
            self.answer(200, {"jobs": list(service.jobs.values())})
        elif path == "/jobs":
            self.answer(201, service.add(make_job("new", name=content.get("name"))))
        elif path == "/data":
            self.answer(200, {"data": list(service.data.values())})
        elif found := re.fullmatch("/data/(.*)", path):
            self.answer_data(found[1], content)
        elif (found := re.fullmatch("/jobs/([^/]*)(.*)", path)) and found[1] in service.jobs:
            self.answer_job(service.jobs[found[1]], found[2], content, query)
        else:
            self.refuse(404, f"there is no {path}")

    def answer_data(self, name: str, content: Any) -> None:
        data = self.service.data
        if self.command == "PUT":
            self.service.uploads[name] = content
            data[name] = make_data_set(name, ["text", "label"], [["a film", "good"]])
            self.answer(201, data[name])
        elif self.command == "DELETE":
            del data[name]
            self.answer(204)
        else:
            self.answer(200, data[name])

    def answer_job(self, job: Json, action: str, content: Any, query: dict[str, list[str]]) -> None:
        service = self.service
        if action == "/events":
            self.stream(job["id"])
        elif action == "/log":
            log = service.logs.get(job["id"], "").encode()
            self.answer(200, log[int(query["offset"][0]) :], "text/plain")
        elif action == "/predict":
            predictions = [
                {"label": "good", "probability": 0.75, "probabilities": {"good": 0.75, "<u>bad</u>": 0.25}}
                for _ in content["inputs"]
            ]
            self.answer(200, {"predictions": predictions})
        elif action == "/generate":
            self.answer(200, {"text": f"after {content['prompt']}", "tokens": [1], "finish": "length"})
        elif action == "/bundle.zip" and "force" not in query and job["results"][0]["gate"] == "failed":
            self.refuse(409, job["results"][0]["reason"])
        elif action in ("/bundle.zip", "/student.zip", "/report"):
            self.answer(200, f"{job['id']}{action}".encode(), "application/octet-stream")
        elif action == "/pin":
            job["pinned"] = content["pinned"]
            self.answer(200, job)
        elif action == "/retry":
            job.update(state="queued", error=None)
            service.emit(job["id"], "state", state="queued", attempt=job["attempt"])
            self.answer(200, job)
        elif self.command == "DELETE" and job["state"] in ENDS:
            del service.jobs[job["id"]]
            self.answer(204)
        elif self.command == "DELETE":
            service.emit(job["id"], "state", state="cancelling", attempt=job["attempt"])
            self.answer(202, job)
        else:
            self.answer(200, job)

    def stream(self, id: str) -> None:
        last = self.headers.get("Last-Event-ID")
        self.service.streams.append(last)
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            self.wfile.write(b": connected\n\n")
            for event in self.service.follow(id, int(last or 0)):
                self.wfile.write(event)
        except ConnectionError:
            pass  # The page was left.


@contextmanager
def serve(service: FakeService) -> Iterator[FakeService]:
    """Answers requests at `service.port` meanwhile."""
    handler = type("BoundHandler", (Handler,), {"service": service})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        service.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield service
        finally:
            service.cut()
            server.shutdown()
            thread.join()
