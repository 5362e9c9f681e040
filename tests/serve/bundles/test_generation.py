"""Tests of the texts that the server writes: pieces and whole texts, clients that leave, and bad input."""

import http.client
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from distill.edge import Bundle
from tests.edge.test_text_bundles import write_text_bundle
from tests.serve.bundles.conftest import PATIENCE, Running
from tests.serve.bundles.test_app import wait_until

Start = Callable[..., Running]
PROMPT, PATHS = "w5 w6 w7", ("/generate", "/v1/completions")


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that writes text, which has no end token."""
    directory = tmp_path_factory.mktemp("writer")
    write_text_bundle(directory, "gpt2", eos=[], start=None)
    return directory


@dataclass
class Held:
    """A generator whose steps wait until they are allowed, and which notes the texts that are dropped."""

    generator: Any
    allowed: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    has_dropped: threading.Event = field(default_factory=threading.Event)
    sizes: list[int] = field(default_factory=list)
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.prompts, self.start = self.generator.prompts, self.generator.start

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def step(self) -> None:
        assert self.allowed.acquire(timeout=PATIENCE)
        if self.error is not None:
            raise self.error
        self.sizes.append(len(self.generator.running))
        self.generator.step()

    def drop(self, writing: Any) -> None:
        self.generator.drop(writing)
        self.has_dropped.set()


def hold(running: Running, name: str = "text") -> Held:
    """Holds the steps of a model."""
    model = running.service.models[name]
    held = Held(model.generator)
    model.generator = held  # type: ignore[assignment]
    return held


@dataclass
class Stream:
    """A connection over which events come."""

    connection: http.client.HTTPConnection
    response: http.client.HTTPResponse

    def __iter__(self) -> Iterator[Any]:
        """Yields the data of events as they come, those in JSON as values."""
        for line in self.response:
            if line.startswith(b"data: "):
                data = line.removeprefix(b"data: ").decode().strip()
                yield data if data == "[DONE]" else json.loads(data)

    def close(self) -> None:
        self.response.close()
        self.connection.close()


def has_gone(running: Running) -> bool:
    return 'distill_requests_total{model="text",status="499"} 1.0' in running.get("/metrics").body


def open_stream(running: Running, body: dict[str, Any], path: str = "/generate") -> Stream:
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=PATIENCE)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    assert response.getheader("content-type") == "text/event-stream; charset=utf-8"
    return Stream(connection, response)


def write(bundle: Path, prompt: str = PROMPT, **options: Any) -> dict[str, Any]:
    [prediction] = Bundle(bundle, threads=1).generate_all([prompt], **options)
    return prediction


def test_pieces_come_in_order_and_the_whole_text_last(writer: Path, start: Start) -> None:
    running = start(f"text={writer}")
    for options in ({}, {"max_new_tokens": 30, "temperature": 0.9, "top_k": 9, "seed": 3}, {"beams": 3}):
        expected = write(writer, **options)
        *pieces, last = open_stream(running, {"prompt": PROMPT, **options})
        assert last == expected
        assert "".join(each["piece"] for each in pieces) == expected["text"]
        assert len(pieces) > 10 or "beams" in options
        whole = running.ask({"prompt": PROMPT, "stream": False, **options}, "/text/generate")
        assert (whole.status, whole.body) == (200, expected)
    assert 'distill_requests_total{model="text",status="200"} 6.0' in running.get("/metrics").body


def test_sixteen_clients_at_once_get_the_texts_of_each_alone(writer: Path, start: Start) -> None:
    running, prompts = start(f"text={writer}"), [f"w{number} w7" for number in range(10, 26)]
    expected = Bundle(writer, threads=1).generate_all(prompts, max_new_tokens=40, batch_size=1)
    held, scheduler = hold(running), running.service.models["text"].scheduler
    with ThreadPoolExecutor(16) as clients:
        bodies = [{"prompt": prompt, "max_new_tokens": 40} for prompt in prompts]
        streams = [clients.submit(lambda body: list(open_stream(running, body)), body) for body in bodies]
        wait_until(lambda: scheduler.running() + scheduler.waiting() == 16)
        held.allowed.release(10_000)
    for stream, own in zip(streams, expected, strict=True):
        *pieces, last = stream.result()
        assert (last["text"], len(last["tokens"])) == (own["text"], 40)
        assert "".join(each["piece"] for each in pieces) == own["text"]
    # All others joined after the step that waited.
    assert held.sizes[1] == 16
    body = running.get("/metrics").body
    assert 'distill_tokens_total{model="text"} 640.0' in body
    assert 'distill_running_texts{model="text"} 0.0' in body


@pytest.mark.parametrize(("path", "is_stream"), [*((path, True) for path in PATHS), ("/generate", False)])
def test_the_text_of_a_client_that_leaves_is_dropped(writer: Path, start: Start, path: str, is_stream: bool) -> None:
    running = start(f"text={writer}")
    held = hold(running)
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=PATIENCE)
    body = json.dumps({"prompt": PROMPT, "stream": is_stream})
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    held.allowed.release(3)
    if is_stream:
        connection.getresponse().readline()
    wait_until(lambda: bool(held.sizes))
    connection.close()
    wait_until(lambda: has_gone(running))
    held.allowed.release()  # The step that has begun.
    assert held.has_dropped.wait(PATIENCE)
    assert len(held.sizes) <= 4  # Of 19: none after it has left.
    held.allowed.release(10_000)
    *_, last = open_stream(running, {"prompt": PROMPT, "max_new_tokens": 5})
    assert last == write(writer, max_new_tokens=5)


def test_a_server_that_stops_ends_its_streams_first_or_cuts_them_off_without_an_end(writer: Path, start: Start) -> None:
    running = start(f"text={writer}")
    held = hold(running)
    events = iter(open_stream(running, {"prompt": PROMPT}))
    held.allowed.release(3)
    first = next(events)
    running.server.should_exit = True
    wait_until(lambda: not running.service.is_ready)
    held.allowed.release(10_000)
    *pieces, last = events
    assert last == write(writer)
    assert first["piece"] + "".join(each["piece"] for each in pieces) == last["text"]
    running = start(f"text={writer}", seconds=0.05)
    held = hold(running)
    stream = open_stream(running, {"prompt": PROMPT, "stream": True}, "/v1/completions")
    running.server.should_exit = True
    with pytest.raises(http.client.IncompleteRead):
        stream.response.read()
    held.allowed.release(10_000)


def test_a_model_that_fails_ends_its_streams_with_the_reason(writer: Path, start: Start) -> None:
    running = start(f"text={writer}")
    held = hold(running)
    held.error = ValueError("out of memory")
    held.allowed.release(10)
    plain = open_stream(running, {"prompt": PROMPT})
    assert list(plain)[-1] == {"error": "the model failed: out of memory"}
    other = open_stream(running, {"prompt": PROMPT, "stream": True}, "/v1/completions")
    assert list(other)[-1]["error"]["message"] == "the model failed: out of memory"
    assert running.said.get(timeout=PATIENCE) == "text failed: out of memory"
    whole = running.ask({"prompt": PROMPT, "stream": False}, "/generate")
    assert (whole.status, whole.body) == (500, {"error": "the model failed: out of memory"})


def test_completions_have_the_shape_of_openai(writer: Path, start: Start) -> None:
    running = start(f"text={writer}")
    body: dict[str, Any] = {"model": "text", "prompt": [PROMPT, "w9"], "max_tokens": 6, "temperature": 0}
    expected = [write(writer, prompt, max_new_tokens=6)["text"] for prompt in body["prompt"]]
    answer = running.ask(body, "/v1/completions")
    assert answer.status == 200
    assert answer.body["object"] == "text_completion"
    assert answer.body["model"] == "text"
    assert answer.body["id"].startswith("cmpl-")
    assert answer.body["choices"] == [
        {"text": text, "index": index, "logprobs": None, "finish_reason": "length"}
        for index, text in enumerate(expected)
    ]
    usage = {"prompt_tokens": 4, "completion_tokens": 12, "total_tokens": 16}
    assert answer.body["usage"] == usage
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    *chunks, last, done = open_stream(running, streamed, "/v1/completions")
    assert done == "[DONE]"
    assert (last["choices"], last["usage"]) == ([], usage)
    assert {chunk["id"] for chunk in chunks} == {last["id"]}
    for index, text in enumerate(expected):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in own) == text
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + ["length"]
    stop = expected[0].split()[2]
    stopped = running.ask({**body, "prompt": PROMPT, "stop": stop}, "/v1/completions").body["choices"][0]
    assert (stopped["text"], stopped["finish_reason"]) == (expected[0].partition(stop)[0], "stop")
    sampled = {"prompt": PROMPT, "seed": 1, "top_p": 1, "n": 1, "stop": None}
    text = write(writer, max_new_tokens=16, temperature=1, top_p=1, seed=1)["text"]
    assert running.ask(sampled, "/v1/completions").body["choices"][0]["text"] == text


BAD: Sequence[tuple[Any, int, str]] = [
    ([], 422, "got no object, expected one with prompt"),
    ({}, 422, "got no prompt, expected an object with prompt"),
    ({"prompt": PROMPT, "top_l": 3}, 422, "got the key top_l, expected prompt, stream, max_new_tokens,"),
    ({"prompt": 3}, 422, "got 3, expected a text"),
    ({"prompt": "\ud800"}, 422, "got '\\ud800', expected Unicode"),
    ({"prompt": ""}, 422, "got '' as a prompt, and the model has no token that begins a text: give it a text"),
    ({"prompt": "w5 " * 49}, 422, "and the model has 48 positions: shorten it, or give truncate=left"),
    ({"prompt": PROMPT, "temperature": 10**400}, 422, "expected a number above 0"),
    ({"prompt": PROMPT, "stop": [""]}, 422, "got stop=[''], expected texts that are not empty"),
    ({"prompt": PROMPT, "stream": "yes"}, 422, "got stream='yes', expected true or false"),
    ({"prompt": PROMPT, "truncate": "up"}, 422, "got truncate='up', expected left or right"),
    ({"prompt": "x" * 201}, 413, "a prompt has more than 200 characters, the limit"),
    ({"prompt": PROMPT, "max_new_tokens": 41}, 413, "got 41 new tokens, the limit of a text is 40"),
    ({"prompt": PROMPT, "beams": 4}, 413, "got 1 prompts of 4 beams, the limit of a request is 3"),
    ({"prompt": "x" * 4000}, 413, "the body has more than 4,000 bytes, the limit"),
]
BAD_COMPLETIONS: Sequence[tuple[Any, int, str]] = [
    (b"{", 400, "the body is no JSON: "),
    ({"prompt": PROMPT, "model": "songs"}, 404, "there is no model 'songs', expected one of text"),
    ({"prompt": PROMPT, "n": 2}, 400, "got n=2, expected 1"),
    ({"prompt": PROMPT, "logprobs": 3}, 400, "got logprobs=3, expected null"),
    ({"prompt": []}, 400, "got prompt=[], expected a text or a list of texts"),
    ({"prompt": [1, 2]}, 400, "got 1, expected a text"),
    ({"prompt": ["w5"] * 4}, 413, "got 4 prompts, the limit of a request is 3"),
    ({"prompt": PROMPT, "temperature": -1}, 400, "got temperature=-1, expected a number above 0"),
    ({"prompt": PROMPT, "stream_options": 1}, 400, "got stream_options=1, expected an object with include_usage"),
    ({"prompt": PROMPT, "beams": 2}, 400, "got the key beams, expected model, prompt,"),
    ({"prompt": "x" * 4000}, 413, "the body has more than 4,000 bytes, the limit"),
]


def test_bad_requests_are_refused_by_name_and_bad_completions_in_their_shape(writer: Path, start: Start) -> None:
    running = start(f"text={writer}", body=4000, characters=200, rows=3, new_tokens=40)
    for body, status, message in BAD:
        answer = running.ask(body, "/generate")
        assert answer.status == status, body
        assert message in answer.body["error"]
    cut = running.ask({"prompt": "w5 " * 49, "truncate": "left", "stream": False}, "/generate")
    assert (cut.status, cut.body["truncated"]) == (200, True)
    for body, status, message in BAD_COMPLETIONS:
        answer = running.ask(body, "/v1/completions")
        assert answer.status == status, body
        error = answer.body["error"]
        assert error["message"].startswith(message)
        code = "model_not_found" if status == 404 else None
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, code)


def test_an_encoder_writes_no_text_and_a_writer_predicts_none(bundle: Path, writer: Path, start: Start) -> None:
    running = start(bundle, f"text={writer}")
    message = "the model films is of a classification and writes no text: post to /predict"
    answer = running.ask({"prompt": PROMPT}, "/films/generate")
    assert (answer.status, answer.body) == (422, {"error": message})
    completion = running.ask({"prompt": PROMPT, "model": "films"}, "/v1/completions")
    assert (completion.status, completion.body["error"]["message"]) == (400, message)
    predicted = running.ask({"texts": [PROMPT]}, "/text/predict")
    assert (predicted.status, predicted.body) == (422, {"error": "the model text writes text: post to /generate"})
    assert running.ask({"prompt": PROMPT}, "/generate").status == 404
    unknown = running.ask({"prompt": PROMPT}, "/v1/completions")
    assert (unknown.status, unknown.body["error"]["code"]) == (404, "model_not_found")
    assert [model["generates"] for model in running.get("/models").body["models"]] == [False, True]


def test_two_models_write_beside_each_other(writer: Path, start: Start) -> None:
    running = start(f"text={writer}", f"other={writer}")
    held = hold(running)
    waits = open_stream(running, {"prompt": PROMPT}, "/text/generate")
    other = running.ask({"prompt": PROMPT, "stream": False}, "/other/generate")  # While the first one waits.
    held.allowed.release(10_000)
    *_, last = waits
    assert last == other.body == write(writer)


def test_a_full_queue_is_answered_with_503_and_a_turn_that_does_not_come_with_504(writer: Path, start: Start) -> None:
    running = start(f"text={writer}", waiting=1, batch_size=1, seconds=0.2)
    held = hold(running)
    first = open_stream(running, {"prompt": PROMPT})
    late = running.ask({"prompt": PROMPT}, "/generate")
    assert (late.status, late.body) == (504, {"error": "no turn within 0.2 s: try again later"})
    running.service.models["text"].scheduler.most = 0
    for path, error in zip(PATHS, (str, dict), strict=True):
        full = running.ask({"prompt": PROMPT}, path)
        assert (full.status, full.headers["retry-after"]) == (503, "1")
        assert isinstance(full.body["error"], error)
    held.allowed.release(10_000)
    *_, last = first
    assert last == write(writer)
