"""Tests of the client of a service: its requests, its errors, watching over lost connections, and files."""

import io
import socket
import zipfile
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from distill.client import Client, ServiceError, UnreachableServiceError
from distill.core.errors import UserError
from distill.serve import client
from tests.serve.client.conftest import Answer, FakeService, stream

JOB = {"id": "j1", "state": "queued"}
STEP = {"title": "student", "step": 3, "steps": 8, "loss": 0.5}
FINISHED = ("state", {"state": "finished", "attempt": 1})


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAUSE", 0.0)


def pack(**files: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as packed:
        for name, text in files.items():
            packed.writestr(name.replace("__", "/"), text)
    return content.getvalue()


# Requests


REQUESTS: list[tuple[Any, str, Any, Any, Any]] = [
    (lambda c: c.submit(["task=sst2"], name="films"), "POST /jobs", {"overrides": ["task=sst2"], "name": "films"},
     JOB, JOB),
    (lambda c: c.submit(form={"teacher": "minilm"}), "POST /jobs", {"form": {"teacher": "minilm"}}, JOB, JOB),
    (lambda c: c.plan(["task=sst2"]), "POST /plan", {"overrides": ["task=sst2"]}, {"plan": "a"}, {"plan": "a"}),
    (lambda c: c.jobs(), "GET /jobs", b"", {"jobs": [JOB]}, [JOB]),
    (lambda c: c.job("a/b"), "GET /jobs/a%2Fb", b"", JOB, JOB),
    (lambda c: c.retry("j1"), "POST /jobs/j1/retry", {}, JOB, JOB),
    (lambda c: c.cancel("j1"), "DELETE /jobs/j1?cancel=1", b"", JOB, JOB),  # It removes none that has ended meanwhile.
    (lambda c: c.remove("j1"), "DELETE /jobs/j1", b"", b"", None),
    (lambda c: c.predict("j1", ["a"]), "POST /jobs/j1/predict", {"inputs": ["a"]}, {"predictions": []},
     {"predictions": []}),
    (lambda c: c.deploy("j1"), "POST /jobs/j1/deploy", {}, {"model": "films"}, {"model": "films"}),
    (lambda c: c.data("films"), "GET /data/films", b"", {"rows": 3}, {"rows": 3}),
]  # fmt: skip


def test_a_method_is_a_request(service: FakeService) -> None:
    for call, request_line, body, answer, expected in REQUESTS:
        service.answer(request_line.partition("?")[0], Answer(answer))
        assert call(Client(service.url, "secret")) == expected
        asked = service.requests[-1]
        assert (f"{asked.method} {asked.path}", asked.body) == (request_line, body)
        assert asked.headers["Authorization"] == "Bearer secret"


def test_without_a_token_none_is_sent_and_a_path_of_the_address_is_kept(service: FakeService) -> None:
    service.answer("GET /distill/jobs", Answer({"jobs": []}))
    assert Client(f"{service.url}/distill/").jobs() == []
    assert "Authorization" not in service.requests[0].headers


def test_a_long_log_is_read_in_parts(service: FakeService) -> None:
    content = "schön".encode()
    service.answer("GET /jobs/j1/log", Answer(content[:4]), Answer(content[4:]), Answer(b""))
    assert Client(service.url).log("j1", 5) == "schön"
    assert [request.path.partition("=")[2] for request in service.requests] == ["5", "9", "11"]


# Errors


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Answer({"error": "there is no task sst3"}, 422), "^there is no task sst3$"),
        (Answer({"error": "it is full"}, 503, {"Retry-After": "9"}), r"^it is full \(try again in 9 s\)$"),
        (Answer(b"<html>", 500), "answered with the status 500: is it a service of distill"),
        (Answer({"detail": "no"}, 404), "answered with the status 404"),
        (Answer(b"", 302, {"Location": "http://other.example/"}), "answered with the status 302"),
        (Answer(b"<html>"), "is no service of distill: it did not answer with JSON"),
    ],
)
def test_a_refusal_is_the_line_of_the_service(answer: Answer, message: str, service: FakeService) -> None:
    service.answer("POST /jobs", answer)
    with pytest.raises(UserError, match=message) as caught:
        Client(service.url).submit(["task=sst3"])
    assert getattr(caught.value, "status", 200) == answer.status
    assert caught.value.exit_code == 2
    assert len(service.requests) == 1


def test_no_service_is_an_error_with_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(UnreachableServiceError, match="timed out"):
            Client(url, timeout=0.05).jobs()
    with pytest.raises(UnreachableServiceError, match=rf"^no answer from the service at {url} \(.*refused\)"):
        Client(url).jobs()
    with pytest.raises(UnreachableServiceError, match="refused"):
        next(Client(url).watch("j1"))


@pytest.mark.parametrize(
    "url", ["", "localhost:8080", "file:///etc/passwd", "http://", "http://a:b@host", "http://host:port"]
)
def test_an_address_of_another_form_is_refused(url: str) -> None:
    with pytest.raises(UserError, match=r"^the address of the service is http://HOST:PORT or"):
        Client(url)


def test_arguments_that_no_request_can_have_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="^the token of the service has a space"):
        Client(token="a\nb")
    with pytest.raises(UserError, match="expected a list of overrides"):
        Client().submit("task=sst2")
    with pytest.raises(UserError, match=r"films\.csv cannot be read: No such file"):
        Client().upload(tmp_path / "films.csv")


# Watching


def test_watching_goes_on_after_the_last_event_of_a_lost_connection(
    service: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    service.answer(
        "GET /jobs/j1/events",
        stream((1, "state", {"state": "running"}), (2, "step", STEP), (3, "step", STEP), cut=True),
        Answer({"error": "the service starts"}, 503),
        stream((3, "step", STEP)),  # It ended early.
        stream((4, "state", {"state": "failed"})),  # The job was tried again.
        stream((5, *FINISHED)),
    )
    states = ("running", "running", "running", "finished", "finished")
    service.answer("GET /jobs/j1", *(Answer({"id": "j1", "state": state}) for state in states))
    events = list(Client(service.url).watch("j1"))
    assert [(event.number, event.kind) for event in events] == [
        (1, "state"), (2, "step"), (3, "step"), (4, "state"), (5, "state"),
    ]  # fmt: skip
    assert events[1].data == STEP
    asked = [request.headers["Last-Event-ID"] for request in service.asked("GET /jobs/j1/events")]
    assert asked == ["0", "2", "2", "3", "4"]
    service.answer("GET /jobs/j1/events", stream((1, "notice", {"text": "slow"}), (2, *FINISHED)))
    assert Client(service.url).wait("j1") == {"id": "j1", "state": "finished"}
    assert capsys.readouterr().out == "Notice: slow\nfinished\n"
    service.answer("GET /jobs/j1/events", stream())
    assert list(Client(service.url).watch("j1", after=7)) == []
    service.answer("GET /jobs/j1/events", Answer({"error": "there is no job j1"}, 404))
    with pytest.raises(ServiceError, match="^there is no job j1$"):
        next(Client(service.url).watch("j1"))


def test_watching_ends_where_the_service_does_not_come_back(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PATIENCE", 0.0)
    service.answer("GET /jobs/j1/events", stream((1, "step", STEP)), Answer({"error": "down"}, 502))
    service.answer("GET /jobs/j1", Answer({"state": "running"}))
    with pytest.raises(ServiceError, match="^down$"):
        list(Client(service.url).watch("j1"))


# Files


def test_a_file_is_uploaded_with_its_length_and_format(service: FakeService, tmp_path: Path) -> None:
    path = tmp_path / "films.CSV"
    path.write_bytes(b"text,label\n" * 50_000)
    (tmp_path / "notes.txt").write_text("a")
    for name in ("films", "other%20name", "notes"):
        service.answer(f"PUT /data/{name}", Answer({"name": name}, 201))
    asking = Client(service.url)
    assert asking.upload(path) == {"name": "films"}
    assert service.requests[0].body == path.read_bytes()
    asking.upload(path, name="other name", format="tsv")
    asking.upload(tmp_path / "notes.txt")
    assert [request.path for request in service.requests] == [
        "/data/films?format=csv", "/data/other%20name?format=tsv", "/data/notes?format=text",
    ]  # fmt: skip


def test_a_directory_is_uploaded_as_a_zip_without_hidden_files(service: FakeService, tmp_path: Path) -> None:
    (tmp_path / "sst2" / ".git").mkdir(parents=True)
    for name in ("train.tsv", "dev.tsv", ".git/config", ".hidden"):
        (tmp_path / "sst2" / name).write_text(name)
    service.answer("PUT /data/sst2", Answer({"name": "sst2"}, 201))
    Client(service.url).upload(tmp_path / "sst2")
    assert service.requests[0].path == "/data/sst2?format=zip"
    with zipfile.ZipFile(io.BytesIO(service.requests[0].body)) as packed:
        assert packed.namelist() == ["dev.tsv", "train.tsv"]
        assert packed.read("dev.tsv") == b"dev.tsv"


def test_an_upload_that_the_service_refuses_in_its_middle_has_the_line_of_the_service(
    service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = HTTPConnection.request

    def send_head(connection: HTTPConnection, method: str, path: str, body: object, headers: dict[str, str]) -> None:
        request(connection, method, path, headers={**headers, "Content-Length": "0"})
        raise BrokenPipeError

    (tmp_path / "films.csv").write_text("text")
    service.answer("PUT /data/films", Answer({"error": "more than 1,000 bytes"}, 413))
    monkeypatch.setattr(HTTPConnection, "request", send_head)
    with pytest.raises(ServiceError, match="^more than 1,000 bytes$"):
        Client(service.url).upload(tmp_path / "films.csv")


def test_a_bundle_is_fetched_as_a_directory_and_the_report_as_a_file(
    service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    service.answer("GET /jobs/j1/bundle.zip", Answer(pack(**{"bundle.json": "{}", "onnx__int8.onnx": "x"})))
    service.answer("GET /jobs/j1/report", Answer(b"<html>"))
    asking = Client(service.url)
    assert asking.fetch("j1") == Path("j1-bundle")
    assert (tmp_path / "j1-bundle" / "onnx" / "int8.onnx").read_text() == "x"
    assert asking.fetch("j1", "report", to="new/report.html") == Path("new/report.html")
    assert (tmp_path / "new" / "report.html").read_text() == "<html>"
    asking.fetch("j1", to="forced", run="a/b", force=True)
    assert service.requests[-1].path == "/jobs/j1/bundle.zip?run=a%2Fb&force=1"
    with pytest.raises(UserError, match="^j1-bundle exists: give another path, or remove it$"):
        asking.fetch("j1")
    with pytest.raises(UserError, match="^got weights, expected one of bundle, student, report$"):
        asking.fetch("j1", "weights")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Answer({"error": "no file of the bundle passed its gate"}, 409), "^no file of the bundle passed its gate$"),
        (Answer(pack(a="x"), announced=10_000), r"the service sent 1\d\d of 10,000 bytes: try again"),
        (Answer(b"<html>"), "the service did not send a zip"),
    ],
)
def test_a_fetch_that_fails_leaves_nothing(answer: Answer, message: str, service: FakeService, tmp_path: Path) -> None:
    service.answer("GET /jobs/j1/bundle.zip", answer)
    with pytest.raises(UserError, match=message):
        Client(service.url).fetch("j1", to=tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    service.answer("GET /jobs/j1/report", Answer(b"<html>"))
    with pytest.raises(UserError, match=r"report\.html cannot be written: "):
        Client(service.url).fetch("j1", "report", to=tmp_path / "file" / "report.html")
