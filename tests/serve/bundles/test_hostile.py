"""Tests of requests that would take a server's memory, its connections or its time, or that may not ask it at all."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message
from transformers import PreTrainedTokenizerBase

from distill.serve import http
from distill.serve.http import is_allowed
from distill.serve.limits import Limits, is_known_host
from tests.edge.conftest import write_choice_bundle, write_mask_bundle, write_tag_bundle, write_vector_bundle
from tests.serve.bundles.conftest import PATIENCE, Running, hold
from tests.serve.bundles.test_app import counted, wait_until

Start = Callable[..., Running]
HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def connect(running: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE)


def first_line(connection: socket.socket) -> bytes:
    return connection.recv(1000).partition(b"\r\n")[0]


def is_closed(connection: socket.socket) -> bool:
    """Returns true when the server has closed a connection, after all that it sends; fails after some time."""
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(100_000):
            pass
    return True


# Bodies


def test_a_body_in_chunks_may_have_as_many_bytes_as_one_with_a_length() -> None:
    chunks = iter({"type": "http.request", "body": b"123456", "more_body": more} for more in (True, False))

    async def receive() -> Message:
        return next(chunks)

    scope = {"type": "http", "headers": [(b"content-type", b"application/json")]}
    with pytest.raises(http.RefusedError, match="the body has more than 10 bytes, the limit"):
        asyncio.run(http.read_body(Request(scope, receive), Limits(body=10)))


def test_a_client_that_leaves_in_its_upload_is_no_failure(
    bundle: Path, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    running = start(bundle)
    with connect(running) as connection:
        connection.sendall(HEAD + b'Content-Length: 100\r\n\r\n{"texts')
    wait_until(lambda: counted(running, 499))
    assert caplog.text == ""


KINDS: list[tuple[Any, dict[str, Any], Any, str]] = [
    (write_tag_bundle, {}, {"tokens": ["a"] * 13}, "a text of record 1 has more than 24 characters, the limit"),
    (write_tag_bundle, {}, {"tokens": [["a"]]}, "record 1: tokens has lists or objects in it, expected texts"),
    (write_choice_bundle, {}, {"question": "a", "choices": ["b"] * 4}, "record 1 has 4 choices, the limit of a record"),
    (write_vector_bundle, {}, ["a"] * 4, "record 1 has 4 texts, the limit of a record is 3"),
    (write_mask_bundle, {}, "[MASK]" * 4, "record 1 has 4 masks, the limit of a record is 3"),
    (
        write_tag_bundle,
        {
            "decoder": "spans", "labels": ["start", "end"], "pair": True, "max_length": 6, "doc_stride": 0,
            "decoding": {"n_best": 2, "max_answer_length": 2, "null_threshold": 0.0},
        },
        {"question": "film", "context": "a a a a a a a a a a"},
        "record 1: it has 5 windows, expected 3 at most: cut it",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("write", "changes", "record", "message"), KINDS, ids=range(len(KINDS)))
def test_a_record_of_much_work_is_refused(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, start: Start, write: Any, changes: dict[str, Any],
    record: object, message: str,
) -> None:  # fmt: skip
    write(tmp_path, tokenizer, task="films", **changes)
    answer = start(tmp_path, characters=24, rows=3).ask({"inputs": [record]})
    assert answer.status in (413, 422)
    assert answer.body["error"].startswith(message)


def test_keys_that_no_decoder_reads_are_not_kept(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, start: Start
) -> None:
    write_choice_bundle(tmp_path, tokenizer, task="films")
    running = start(tmp_path)
    gate = hold(running)
    gate.is_open.set()
    record = {"question": "a", "choices": ["film", "b"]}
    assert running.ask({"inputs": [{**record, "\ud800": [[[]]]}]}).status == 200
    assert gate.batches == [[record]]


def test_large_requests_share_a_memory_that_small_ones_do_not_need(bundle: Path, start: Start) -> None:
    running = start(bundle, held=150_000, body=100_000)
    gate, large = hold(running), {"texts": ["a" * 9_000] * 10}
    first = running.later(large)
    gate.entered.get(timeout=PATIENCE)
    answer = running.ask(large)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    small = running.later({"texts": ["film"]})
    gate.is_open.set()
    assert [request.get(timeout=PATIENCE).status for request in (first, small)] == [200, 200]
    assert running.ask(large).status == 200  # The memory is free again.


# Connections


def test_heads_that_are_too_large_are_refused(bundle: Path, start: Start) -> None:
    running, large = start(bundle, head=1_000), b"a" * 2_000
    for content in (HEAD + b"X: " + large, HEAD + b"X: " + large + b"\r\n\r\n", b"GET /" + large):
        with connect(running) as connection:
            connection.sendall(content)
            assert first_line(connection) == b"HTTP/1.1 431 Request Header Fields Too Large"
    with connect(running) as connection:  # Behind a body.
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n")
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"0\r\nX: " + b"a" * 3_000)
        assert first_line(connection) == b"HTTP/1.1 431 Request Header Fields Too Large"
    with connect(running) as connection:  # A body that is announced.
        connection.sendall(HEAD + b"Content-Length: 90000000\r\n\r\n")
        assert first_line(connection).startswith(b"HTTP/1.1 413")
    assert running.ask({"texts": ["a" * 5_000]}).status == 200


def test_headers_that_are_too_slow_are_given_up(bundle: Path, start: Start) -> None:
    running = start(bundle, head_seconds=0.1)
    with connect(running) as silent, connect(running) as half:
        half.sendall(HEAD)
        assert first_line(half) == b"HTTP/1.1 408 Request Timeout"
        assert is_closed(silent)


def test_the_connection_that_waited_longest_makes_room(bundle: Path, start: Start) -> None:
    running = start(bundle, connections=2)
    connections = running.server.server_state.connections
    with connect(running) as first:
        wait_until(lambda: len(connections) == 1)
        [oldest] = list(connections)
        wait_until(lambda: oldest.loop.time() > oldest._waits_since)  # type: ignore[union-attr]  # In milliseconds.
        with connect(running) as second:
            wait_until(lambda: len(connections) == 2)
            second.sendall(HEAD)
            assert running.ask({"texts": ["film"]}).status == 200
            assert is_closed(first)


def test_few_requests_wait_on_one_connection(bundle: Path, start: Start) -> None:
    running = start(bundle)
    with connect(running) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
        assert is_closed(connection)
    assert running.get("/health").status == 200


def test_connections_leave_files_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 100))
    assert http.most_connections(512) == 36
    assert http.most_connections(20) == 20


# Who may ask


def test_a_token_may_have_letters_beyond_ascii() -> None:
    for token, given, is_right in (
        ("gehéim", "gehéim".encode(), True), ("gehéim", "gehéim".encode("latin-1"), True),
        ("ключ", "ключ".encode(), True), ("aключ", b"a", False), ("gehéim", b"geheim", False), ("gehéim", b"", False),
    ):  # fmt: skip
        assert is_allowed([(b"authorization", b"Bearer " + given)], token) is is_right


def test_only_a_known_host_is_answered(bundle: Path, start: Start) -> None:
    for host in ("localhost:8000", "LOCALHOST.", "127.0.0.1:8000", "127.9.9.9", "[::1]:8000", "box:8000", None):
        assert is_known_host(host, {"box"})
    for host in ("evil.example:8000", "127.0.0.1.evil.example", "192.168.0.7", "[::2]", ""):
        assert not is_known_host(host, {"box"})
        assert is_known_host(host, None)
    running = start(bundle, hosts=set())
    for path in ("/models", "/health", "/"):
        answer = running.get(path, Host="evil.example:8000")
        assert (answer.status, answer.body) == (
            403, {"error": "the host 'evil.example:8000' is not served: start the server with --allow-host NAME"},
        )  # fmt: skip
    assert running.get("/models").status == 200
    assert start(bundle, token="secret", hosts=None).get("/health", Host="evil.example").status == 200


# Failures of the model and the log


def test_a_server_whose_queue_has_ended_is_not_ready(bundle: Path, start: Start) -> None:
    running = start(bundle)
    [model] = running.service.models.values()
    worker = model.batcher._worker
    assert worker is not None
    worker.get_loop().call_soon_threadsafe(worker.cancel)
    wait_until(worker.done)
    answer = running.get("/ready")
    assert (answer.status, answer.body) == (503, {"error": "films does not answer"})
    assert running.ask({"texts": ["film"]}).body == {"error": "the model films does not answer: restart the server"}
