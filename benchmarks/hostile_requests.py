"""Hostile requests to a server with a token: does each leave it ready, and how much memory does it take?

    python benchmarks/hostile_requests.py

The server runs a toy bundle of each kind. After each request, and while connections are held, it must be ready and
answer a small request of the same model within SECONDS. It must never take more than a gigabyte. The exit code is the
number of requests after which it was not so.
"""

import gzip
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from distill.text.vocabulary import train_word_pieces
from tests.edge.conftest import (
    write_choice_bundle,
    write_mask_bundle,
    write_tag_bundle,
    write_toy_bundle,
    write_vector_bundle,
)

TOKEN, SECONDS, GIGABYTE = "sécret", 5.0, 1_000.0
JSON: dict[str, Any] = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}".encode()}
SPANS = {"n_best": 20, "max_answer_length": 30, "null_threshold": 0.0}
SMALL: dict[str, object] = {
    "films": "a film", "pairs": ["a film", "dull"], "tags": "a film",
    "choices": {"question": "a", "choices": ["b", "c"]}, "masks": "a [MASK]", "vectors": "a film",
    "spans": {"question": "a film", "context": "a dull film"},
}  # fmt: skip


def write_bundles(directory: Path) -> None:
    tokenizer = train_word_pieces(["a dull film and a moving film, which i liked as a whole"] * 8, 120)
    shape = {"max_length": 512}
    for name, write, changes in (
        ("films", write_toy_bundle, shape),
        ("pairs", write_toy_bundle, {**shape, "pair": True}),
        ("tags", write_tag_bundle, shape),
        ("choices", write_choice_bundle, shape),
        ("masks", write_mask_bundle, shape),
        ("vectors", write_vector_bundle, {}),
        (
            "spans",
            write_tag_bundle,
            {
                "kind": "question_answering", "decoder": "spans", "labels": ["start", "end"],
                "pair": True, "max_length": 384, "doc_stride": 128, "decoding": SPANS,
            },
        ),
    ):  # fmt: skip
        (directory / name).mkdir()
        write(directory / name, tokenizer, task=name, **changes)


class Target:
    """The server, and ways to send it something."""

    def __init__(self, port: int, process: "subprocess.Popen[str]") -> None:
        self.port, self.process = port, process

    def connect(self, timeout: float = 40.0) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def ask(self, model: str, body: object, headers: dict[str, Any] | None = None, method: str = "POST") -> str:
        """Sends a whole request; returns the status and the beginning of the answer."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=40)
        try:
            connection.request(method, f"/{model}/predict", content, {**JSON, **(headers or {})})
            response = connection.getresponse()
            return f"{response.status} {response.read(80).decode(errors='replace')}"
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__
        finally:
            connection.close()

    def send(self, *parts: bytes, wait: bool = True) -> str:
        """Sends bytes; returns the first line of the answer."""
        with self.connect() as connection:
            try:
                for part in parts:
                    connection.sendall(part)
            except OSError:
                pass
            try:
                return connection.recv(200).partition(b"\r\n")[0].decode(errors="replace") if wait else "left"
            except OSError as error:
                return type(error).__name__

    def hold(self, number: int, content: bytes, seconds: float = 1.0) -> str:
        """Opens connections that send a beginning and stay for a while."""
        held = []
        for _ in range(number):
            try:
                connection = self.connect(timeout=2.0)
                held.append(connection)
                connection.sendall(content)
            except OSError:
                pass
        time.sleep(seconds)
        ready = self.check("films")
        for connection in held:
            connection.close()
        return f"{len(held)} held, meanwhile {ready}"

    def check(self, model: str) -> str:
        """Returns `ready`, or what is wrong with the server."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            connection.request("GET", "/ready")
            response = connection.getresponse()
            response.read()
            if response.status != 200:
                return f"/ready says {response.status}"
            connection.request("POST", f"/{model}/predict", json.dumps({"inputs": [SMALL[model]]}), JSON)
            status = connection.getresponse().status
            return "ready" if status == 200 else f"a small request gets {status}"
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__
        finally:
            connection.close()

    def memory(self, name: str = "VmHWM") -> float:
        """Returns the largest memory so far, in MB."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{name}:\s+(\d+)", text)[1]) / 1000  # type: ignore[index]


def head(model: str = "films", *lines: str, token: bool = True) -> bytes:
    bearer = [f"Authorization: Bearer {TOKEN}"] if token else []
    first = [f"POST /{model}/predict HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    return "\r\n".join([*first, *bearer, *lines, "", ""]).encode()


def nest(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


Attack = tuple[str, str, Callable[[Target], str]]


def bodies() -> list[Attack]:
    """Requests whose body is hostile: what each is, the model, and what is sent."""
    word, long, part = "a film ", "a film " * 2_850, "a film " * 1_428
    choice = b'{"inputs": [{"question": "a", "choices": ["b", "c"], %b}]}'
    every: list[tuple[str, str, object]] = [
        ("an empty body", "films", b""),
        ("no JSON", "films", b"{"),
        ("no UTF-8", "films", b'{"texts": ["\xff"]}'),
        ("UTF-16", "films", json.dumps({"texts": ["a"]}).encode("utf-16")),
        ("100,000 lists in each other", "films", nest(100_000)),
        ("990 lists in each other as records", "films", b'{"inputs": [%b]}' % nest(990)),
        ("990 lists in an ignored key", "choices", choice % (b'"x": ' + nest(990))),
        ("990 lists as tokens", "tags", b'{"inputs": [{"tokens": %b}]}' % nest(990)),
        ("990 objects as texts", "films", b'{"texts": ' + b'{"a":' * 990 + b"1" + b"}" * 991),
        ("half a character as a key", "films", b'{"\\ud800": ["a"]}'),
        ("half a character in a text", "films", b'{"texts": ["\\ud800"]}'),
        ("half a character in an ignored key", "choices", choice % b'"\\ud800": 1'),
        ("a key given twice", "films", b'{"texts": ["a"], "texts": ["b"]}'),
        ("a number of 5,000 digits", "films", b'{"texts": [%b]}' % (b"1" * 5_000)),
        ("1e999 as top_k", "masks", b'{"inputs": [{"text": "[MASK]", "top_k": 1e999}]}'),
        ("NaN as top_k", "masks", b'{"inputs": [{"text": "[MASK]", "top_k": NaN}]}'),
        ("top_k of 10^18", "masks", {"inputs": [{"text": "[MASK]", "top_k": 10**18}]}),
        ("500 masks with all pieces", "masks", {"inputs": [{"text": "[MASK] " * 500, "top_k": 60}]}),
        ("1,000 texts of 90 masks", "masks", {"texts": ["[MASK] " * 90] * 1_000}),
        ("two texts of 20,000 characters", "pairs", {"pairs": [[long, long]]}),
        ("40 pairs of 20,000 characters", "pairs", {"pairs": [[part, part]] * 40}),
        ("100 pairs of 40,000 characters", "pairs", {"pairs": [[long, long]] * 100}),
        ("17 choices of 10,000 characters", "choices", {"inputs": [{"question": long, "choices": [part] * 17}]}),
        ("100,000 choices", "choices", {"inputs": [{"question": "a", "choices": ["b"] * 100_000}]}),
        ("a long question with 100 choices", "choices", {"inputs": [{"question": long, "choices": ["b"] * 100}]}),
        ("700,000 tokens", "tags", {"inputs": [{"tokens": ["a"] * 700_000}]}),
        ("9,900 tokens", "tags", {"inputs": [{"tokens": ["a"] * 9_900}]}),
        ("1,000,000 empty tokens", "tags", {"inputs": [{"tokens": [""] * 1_000_000}]}),
        ("200 contexts of 20,000 characters", "spans", {"inputs": [{"question": "a", "context": long}] * 200}),
        ("45 contexts of 20,000 characters", "spans", {"inputs": [{"question": "a", "context": long}] * 45}),
        ("windows with one new token each", "spans", {"inputs": [{"question": word * 126, "context": long}]}),
        ("1,000 texts of 900 characters", "films", {"texts": [long[:900]] * 1_000}),
        ("1,000 empty texts", "films", {"texts": [""] * 1_000}),
        ("1,300,000 empty lists", "films", b'{"texts": [' + b"[]," * 1_300_000 + b"[]]}"),
        ("1,000,000 objects", "films", b'{"inputs": [' + b"{}," * 1_000_000 + b"{}]}"),
        ("500,000 objects with a key each", "films", b'{"inputs": [' + b'{"":0},' * 500_000 + b"{}]}"),
        ("1,000 texts in a list", "vectors", {"inputs": [["a film"] * 1_000]}),
        ("a word of 20,000 letters", "films", {"texts": ["x" * 20_000]}),
        ("20,000 combining marks", "films", {"texts": ["a" + "\u0301" * 19_999]}),
        ("20,000 spaces", "films", {"texts": [" " * 20_000]}),
        ("20,000 emoji", "films", {"texts": ["\U0001f600" * 20_000]}),
        ("NUL, noncharacters and bidi marks", "films", {"texts": ["\x00\uffff\u202e\ufeff" * 1_000]}),
    ]  # fmt: skip
    return [(name, model, lambda on, m=model, b=body: on.ask(m, b)) for name, model, body in every]  # type: ignore[misc]


def upload_and_leave(target: Target) -> str:
    return target.send(head("films", "Content-Length: 3000000"), b'{"texts": ["' + b"a" * 1_000_000, wait=False)


def never_read(target: Target) -> str:
    """Asks for large answers over 100 connections and reads none of them."""
    body = json.dumps({"texts": ["a " * 450] * 900}).encode()
    return target.hold(100, head("tags", f"Content-Length: {len(body)}") + body, seconds=3.0)


def wire() -> list[Attack]:
    """Requests that are hostile beside their body."""
    chunked = "Transfer-Encoding: chunked"
    half = b"GET /models HTTP/1.1\r\nHost: localhost\r\nX-A: "
    body = b'{"texts": ["a"]}'
    large = f"Content-Length: {90_000_000}"
    zipped = gzip.compress(b'{"texts": ["' + b"a" * 50_000_000 + b'"]}')
    flood = b"x" * 1_000_000
    denied_chunks, denied = (head("films", line, token=False) for line in (chunked, "Content-Length: 3000000"))
    other_token = {"Authorization": f"Bearer {TOKEN.upper()}".encode()}
    every: list[tuple[str, Callable[[Target], str]]] = [
        ("90 MB announced", lambda on: on.send(head("films", large))),
        ("90 MB announced, with Expect", lambda on: on.send(head("films", large, "Expect: 100-continue"))),
        ("90 MB sent", lambda on: on.send(head("films", large), *[flood] * 90)),
        ("90 MB in chunks", lambda on: on.send(head("films", chunked), *[b"f4240\r\n" + flood + b"\r\n"] * 90)),
        ("chunks of one byte", lambda on: on.send(head("films", chunked), b"1\r\na\r\n" * 1_000_000)),
        ("a chunk of negative size", lambda on: on.send(head("films", chunked), b"-1\r\n")),
        ("a chunk with an extension of 200 MB", lambda on: on.send(head("films", chunked), b"1;", *[flood] * 200)),
        ("200 MB behind the last chunk", lambda on: on.send(head("films", chunked), b"0\r\nX: ", *[flood] * 200)),
        ("the same without the token", lambda on: on.send(denied_chunks, b"0\r\nX: ", *[flood] * 200)),
        ("a header of 200 MB", lambda on: on.send(half, *[flood] * 200)),
        ("1,000,000 headers", lambda on: on.send(half, *[b"a\r\nX: " * 1_000] * 1_000)),
        ("a path of 200 MB", lambda on: on.send(b"GET /", *[flood] * 200)),
        ("a token of 30,000 letters", lambda on: on.ask("films", body, {"Authorization": "Bearer " + "x" * 30_000})),
        ("no token", lambda on: on.send(head("films", f"Content-Length: {len(body)}", token=False) + body)),
        ("a token of another case", lambda on: on.ask("films", body, other_token)),
        ("300 half headers", lambda on: on.hold(300, half)),
        ("3,000 connections without a word", lambda on: on.hold(3_000, b"")),
        ("300 half bodies of 1 MB", lambda on: on.hold(300, head("films", "Content-Length: 3000000") + flood)),
        ("300 half bodies without the token", lambda on: on.hold(300, denied + flood)),
        ("a client that leaves in its upload", upload_and_leave),
        ("100 clients that do not read their answers", never_read),
        ("14,000 requests at once", lambda on: on.send(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n" * 14_000)),
        ("a body as gzip", lambda on: on.ask("films", gzip.compress(body), {"Content-Encoding": "gzip"})),
        ("a gzip bomb", lambda on: on.ask("films", zipped, {"Content-Encoding": "gzip"})),
        ("HEAD", lambda on: on.send(b"HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n")),
        ("an upgrade to a websocket", lambda on: on.send(
            b"GET /films/predict HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n")),
        ("CONNECT", lambda on: on.send(b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n")),
        ("OPTIONS *", lambda on: on.send(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n")),
        ("TRACE", lambda on: on.send(b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n")),
        ("a path above the root", lambda on: on.send(b"GET /../../etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n")),
        ("a path that is no UTF-8", lambda on: on.send(b"GET /%ff%00%ed%a0%80 HTTP/1.1\r\nHost: a\r\n\r\n")),
        ("two lengths", lambda on: on.send(head("films", "Content-Length: 1", "Content-Length: 2"), b"{}")),
        ("a length and chunks", lambda on: on.send(head("films", "Content-Length: 2", chunked), b"0\r\n\r\n")),
        ("a negative length", lambda on: on.send(head("films", "Content-Length: -1"), b"{}")),
        ("a length of 40 digits", lambda on: on.send(head("films", "Content-Length: " + "9" * 40), b"{}")),
        ("HTTP/0.9", lambda on: on.send(b"GET /\r\n")),
        ("a TLS greeting", lambda on: on.send(bytes.fromhex("16030100a5010000a10303") + b"\x00" * 160)),
        ("200 MB of line breaks", lambda on: on.send(*[b"\r\n" * 500_000] * 200)),
    ]  # fmt: skip
    return [(name, "films", attack) for name, attack in every]


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        write_bundles(Path(directory))
        process = subprocess.Popen(
            [sys.executable, "-m", "distill.serve", *(f"{name}={directory}/{name}" for name in SMALL), "--port", "0",
             "--threads", "1"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "DISTILL_SERVE_TOKEN": TOKEN},
        )  # fmt: skip
        assert process.stdout is not None
        target = Target(int(process.stdout.readline().rpartition(":")[2]), process)
        print(f"memory after the start: {target.memory():.0f} MB\n")
        print("| request | answer | then | s | MB | MB at most |\n|---|---|---|---:|---:|---:|")
        failures = 0
        for name, model, attack in (*bodies(), *wire()):
            started = time.perf_counter()
            answer = attack(target)
            seconds = time.perf_counter() - started
            state = target.check(model) if process.poll() is None else f"ended with {process.returncode}"
            now, most = (target.memory("VmRSS"), target.memory()) if process.poll() is None else (0.0, 0.0)
            was_held = "meanwhile" in answer and not answer.endswith("meanwhile ready")
            failures += state != "ready" or was_held or most > GIGABYTE
            shown = " ".join(answer.replace("|", "/").split())[:60]
            print(f"| {name} | {shown} | {state} | {seconds:.1f} | {now:.0f} | {most:.0f} |", flush=True)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        tracebacks = errors.count("Traceback")
        print(f"\n{failures} failures; exit code {process.returncode} after SIGTERM; {tracebacks} tracebacks logged")
        if tracebacks:
            print(errors[:3000])
    return failures


if __name__ == "__main__":
    sys.exit(main())
