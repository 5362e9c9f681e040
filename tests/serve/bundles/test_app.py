"""Tests of the answers of the server: predictions, limits, errors, batches and reloading."""

import asyncio
import json
import re
import shutil
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from distill.edge import Bundle
from distill.edge.bundle_files import fingerprint, read_manifest
from distill.serve.bundles.served_models import load_models
from distill.serve.limits import Limits
from tests.edge.conftest import write_ranking_bundle, write_toy_bundle
from tests.serve.bundles.conftest import PATIENCE, Running, hold

Start = Callable[..., Running]
TEXTS = ["a dull film and a moving film", "film", "", "\U0001f600 \x00", "a film"]


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def counted(running: Running, status: int) -> bool:
    return f'distill_requests_total{{model="films",status="{status}"}} 1.0' in running.get("/metrics").body


def test_predictions_are_those_of_the_bundle_in_the_order_of_the_texts(bundle: Path, start: Start) -> None:
    running = start(bundle)
    expected = Bundle(bundle).predict(TEXTS)
    for path in ("/predict", "/films/predict"):
        for body in ({"texts": TEXTS}, {"inputs": TEXTS}):
            answer = running.ask(body, path)
            assert (answer.status, answer.body) == (200, {"predictions": expected})
    assert running.ask({"texts": []}).body == {"predictions": []}


def test_documents_are_ranked(bundle: Path, tmp_path: Path, tokenizer: PreTrainedTokenizerBase, start: Start) -> None:
    ranker = tmp_path / "ranker"
    ranker.mkdir()
    write_ranking_bundle(ranker, tokenizer, task="ranker")
    alone, body = start(ranker, rows=3), {"query": "film", "documents": ["film", "a dull film", "a film"]}
    expected = Bundle(ranker).rank(**body)
    assert expected["order"] == [1, 2, 0]
    for path in ("/rank", "/ranker/rank"):
        answer = alone.ask(body, path)
        assert (answer.status, answer.body) == (200, expected)
    assert alone.ask({"inputs": [body]}).body == {"predictions": [expected]}
    refused = {
        "got the documents [], expected a list of at least one text": {**body, "documents": []},
        "got query, expected an object with query and documents": {"query": "film"},
        "got texts, expected an object with query and documents": {"texts": ["film"]},
        "got no object, expected an object with query and documents": [],
    }
    for message, wrong in refused.items():
        answer = alone.ask(wrong, "/rank")
        assert answer.status == 422
        assert message in answer.body["error"]
    many = alone.ask({**body, "documents": ["film"] * 4}, "/rank")
    assert (many.status, many.body) == (413, {"error": "record 1 has 4 documents, the limit of a record is 3"})
    both = start(ranker, bundle)
    several = both.ask(body, "/rank")
    message = "there are several models: post to /NAME/rank, NAME one of ranker, films"
    assert (several.status, several.body) == (404, {"error": message})
    assert both.ask(body, "/ranker/rank").body == expected
    other = both.ask(body, "/films/rank")
    assert (other.status, other.body) == (422, {"error": "the model films ranks no documents: post to /predict"})


BAD: list[tuple[object, int, str]] = [
    (b"{", 400, "the body is no JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
    (b"\xff", 400, "the body is no JSON: 'utf-8' codec can't decode byte 0xff in position 0"),
    (b'{"texts": ["a"], "texts": ["b"]}', 400, "the body is no JSON: the key 'texts' is given twice in one object"),
    (b'{"texts": [%b]}' % (b"1" * 5000), 400, "the body is no JSON: Exceeds the limit"),
    (b"[" * 1999, 400, "the body has lists or objects in too many others"),
    ([], 422, "got no object, expected an object with one of texts, pairs, inputs"),
    ({"text": ["film"]}, 422, "got text, expected an object with one of texts, pairs, inputs"),
    (b'{"\\ud800": []}', 422, "got \\ud800, expected an object with one of texts, pairs, inputs"),
    ({"texts": ["a"], "pairs": [["a", "b"]]}, 422, "got texts, pairs, expected an object with one of"),
    ({"texts": "film"}, 422, "got texts='film', expected a list"),
    ({"texts": ["film", ["a", "b"]]}, 422, "record 2: got ['a', 'b'], expected a text"),
    (b'{"texts": ["\\ud800"]}', 422, "record 1: got '\\ud800', expected Unicode: character 1 is a lone surrogate"),
    ({"texts": ["film"] * 4}, 413, "got 4 records, the limit of a request is 3"),
    ({"texts": ["film", "x" * 51]}, 413, "a text of record 2 has more than 50 characters, the limit"),
    ({"texts": ["a" * 40] * 3}, 413, "the request counts as more than 100 characters, the limit: send several"),
    ({"texts": ["x" * 6000]}, 413, "the body has more than 6,000 bytes, the limit"),
]


def test_a_request_that_cannot_be_answered_is_refused(bundle: Path, start: Start) -> None:
    running = start(bundle, body=6000, records=3, characters=50, total=100)
    for body, status, message in BAD:
        answer = running.ask(body)
        assert answer.status == status, body
        assert answer.body["error"].startswith(message)
    deep = start(bundle)
    for body in (b'{"inputs": [%b]}', b'{"texts": {"a": %b}}', b'{"inputs": [{"tokens": %b}]}', b"%b"):
        for depth in (990, 100_000):  # As deep as Python reads, or deeper.
            assert deep.ask(body % (b"[" * depth + b"]" * depth)).status in (400, 422)
    assert [server.ask({"texts": ["film"]}).status for server in (running, deep)] == [200, 200]


def test_other_content_methods_and_paths_are_refused(bundle: Path, start: Start) -> None:
    running = start(bundle)
    for headers, reason in (
        ({"Content-Type": "text/plain"}, "got the content type text/plain, expected application/json"),
        ({"Content-Encoding": "gzip"}, "got the content encoding gzip, expected none: send the JSON as it is"),
    ):
        answer = running.ask({"texts": ["film"]}, headers=headers)
        assert (answer.status, answer.body) == (415, {"error": reason})
    assert running.get("/predict").body == {"error": "GET /predict: Method Not Allowed"}
    assert running.ask({"texts": ["film"]}, "/songs/predict").body == {
        "error": "there is no model 'songs', expected one of films"
    }
    answers = [running.ask(None, path, method="HEAD") for path in ("/health", "/ready", "/models")]
    assert [(answer.status, answer.body) for answer in answers] == [(200, "")] * 3
    assert running.ask(None, "/predict", method="HEAD").status == 405


def test_several_models_have_paths_of_their_own(
    bundle: Path, tmp_path: Path, tokenizer: PreTrainedTokenizerBase, start: Start
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_toy_bundle(other, tokenizer, labels=["much", "little"], task="films", batch_sizes={"fp32": 1},
                     gates={"fp32": "undecided: dev has 20 examples"})  # fmt: skip
    running = start(bundle, f"amounts={other}")
    labels = [
        running.ask({"texts": ["film"]}, f"/{name}/predict").body["predictions"][0]["label"]
        for name in ("films", "amounts")
    ]
    assert labels == ["short", "little"]
    answer = running.ask({"texts": ["film"]})
    assert (answer.status, answer.body) == (
        404, {"error": "there are several models: post to /NAME/predict, NAME one of films, amounts"},
    )  # fmt: skip
    paths = running.get("/openapi.json").body["paths"]
    assert "requestBody" in paths["/predict"]["post"]
    assert [each["name"] for each in paths["/{name}/predict"]["post"]["parameters"]] == ["name"]
    described = running.get("/models").body["models"]
    assert [(model["name"], model["labels"], model["batch_size"], model["gate"]) for model in described] == [
        ("films", ["long", "short"], 32, "passed"),
        ("amounts", ["much", "little"], 1, "undecided: dev has 20 examples"),
    ]  # fmt: skip


def test_a_token_is_asked_for(bundle: Path, start: Start) -> None:
    running, body = start(bundle, token="secret"), {"texts": ["film"]}
    for headers in ({}, *({"Authorization": f"{given}secret"} for given in ("", "Bearer wrong-", "Basic ", "Bearer,"))):
        answer = running.ask(body, headers=headers)
        assert (answer.status, answer.body) == (401, {"error": "the bearer token is missing or wrong"})
    assert running.ask(body, headers={"Authorization": "Bearer secret"}).status == 200
    assert [running.get(path).status for path in ("/health", "/ready", "/", "/models", "/metrics", "/docs")] == [
        200, 200, 200, 401, 401, 401,
    ]  # fmt: skip


# Batches


def test_requests_that_wait_together_run_together(bundle: Path, start: Start) -> None:
    running = start(bundle)
    gate, [model] = hold(running), running.service.models.values()
    first = running.later({"texts": ["first"]})
    assert gate.entered.get(timeout=PATIENCE) == 1
    others = [running.later({"texts": [text, "film"]}) for text in TEXTS]
    wait_until(lambda: model.batcher.waiting() == len(TEXTS))
    gate.is_open.set()
    assert gate.entered.get(timeout=PATIENCE) == 2 * len(TEXTS)
    assert first.get(timeout=PATIENCE).status == 200
    for text, answer in zip(TEXTS, others, strict=True):
        assert answer.get(timeout=PATIENCE).body["predictions"] == Bundle(bundle).predict([text, "film"])
    assert 'distill_batch_records_bucket{le="16.0",model="films"} 2.0' in running.get("/metrics").body


def test_a_full_queue_answers_503_and_loses_nothing(bundle: Path, start: Start) -> None:
    running = start(bundle, waiting=1)
    gate, [model] = hold(running), running.service.models.values()
    running_request = running.later({"texts": ["first"]})
    gate.entered.get(timeout=PATIENCE)
    waiting_request = running.later({"texts": ["second"]})
    wait_until(lambda: model.batcher.waiting() == 1)
    answer = running.ask({"texts": ["third"]})
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert answer.body == {"error": "1 requests wait already: try again in a second"}
    gate.is_open.set()
    assert [request.get(timeout=PATIENCE).status for request in (running_request, waiting_request)] == [200, 200]


class Panic(BaseException):
    """As the panics of a tokenizer, which are no `Exception`."""


def test_a_panic_fails_its_request_alone(bundle: Path, start: Start) -> None:
    running = start(bundle)
    gate, [model] = hold(running), running.service.models.values()
    predict = gate.predict

    def fail(records: list[Any]) -> Any:
        if "bad" in records:
            raise Panic("a bad record\nwith more lines")
        return predict(records)

    gate.predict = fail
    requests = [running.later({"texts": ["first"]})]
    gate.entered.get(timeout=PATIENCE)
    requests += [running.later({"texts": [text]}) for text in ("bad", "good")]
    wait_until(lambda: model.batcher.waiting() == 2)
    gate.is_open.set()
    answers = [request.get(timeout=PATIENCE) for request in requests]
    assert [answer.status for answer in answers] == [200, 500, 200]
    assert answers[1].body == {"error": "the model failed: a bad record"}
    assert running.said.get(timeout=PATIENCE) == "films failed: a bad record"


def test_a_request_that_takes_too_long_is_given_up(bundle: Path, start: Start) -> None:
    running = start(bundle, seconds=0.2)
    gate = hold(running)
    answers = [running.ask({"texts": [text]}) for text in ("running", "waiting")]
    assert [answer.status for answer in answers] == [504, 504]
    assert answers[0].body == {"error": "no answer within 0.2 s: send fewer or shorter texts"}
    wait_until(lambda: running.get("/ready").status == 503)
    gate.is_open.set()
    assert running.ask({"texts": ["next"]}).status == 200
    assert gate.batches == [["running"], ["next"]]  # The one that waited is not computed.


def test_a_slow_body_is_given_up(bundle: Path, start: Start) -> None:
    running = start(bundle, seconds=0.2)
    with socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE) as connection:
        connection.sendall(
            b"POST /predict HTTP/1.1\r\nHost: me\r\nContent-Type: application/json\r\nContent-Length: 30\r\n\r\n{"
        )
        assert connection.recv(1000).startswith(b"HTTP/1.1 408")


def test_a_client_that_goes_away_is_not_computed(bundle: Path, start: Start) -> None:
    running = start(bundle)
    gate = hold(running)
    first = running.later({"texts": ["first"]})
    gate.entered.get(timeout=PATIENCE)
    body = json.dumps({"texts": ["gone"]}).encode()
    with socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE) as connection:
        head = f"POST /predict HTTP/1.1\r\nHost: me\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        connection.sendall(f"{head}\r\n\r\n".encode() + body)
        [model] = running.service.models.values()
        wait_until(lambda: model.batcher.waiting() == 1)
    wait_until(lambda: counted(running, 499))
    gate.is_open.set()
    assert first.get(timeout=PATIENCE).status == 200
    assert running.ask({"texts": ["next"]}).status == 200
    assert gate.batches == [["first"], ["next"]]


# Reloading


def replace(directory: Path, tokenizer: PreTrainedTokenizerBase, **changes: Any) -> None:
    """Replaces a bundle as a run does, by renaming."""
    draft = directory.with_name("draft")
    draft.mkdir()
    write_toy_bundle(draft, tokenizer, task="films", **changes)
    directory.rename(directory.with_name("old"))
    draft.rename(directory)
    shutil.rmtree(directory.with_name("old"))


def test_a_changed_bundle_is_loaded_while_requests_are_answered(
    bundle: Path, tokenizer: PreTrainedTokenizerBase, start: Start
) -> None:
    running = start(bundle, reload_seconds=0.01)
    gate, first = hold(running), served_fingerprint(running)
    assert first == fingerprint(read_manifest(bundle))
    before = running.later({"texts": ["film"]})
    gate.entered.get(timeout=PATIENCE)
    replace(bundle, tokenizer, labels=["much", "little"])
    assert running.said.get(timeout=PATIENCE) == "films changed and was loaded again"
    gate.is_open.set()
    assert before.get(timeout=PATIENCE).status == 200
    assert running.ask({"texts": ["film"]}).body["predictions"][0]["label"] == "little"
    assert served_fingerprint(running) == fingerprint(read_manifest(bundle)) != first


def served_fingerprint(running: Running) -> str:
    [model] = running.get("/models").body["models"]
    return str(model["fingerprint"])


def test_a_bundle_that_cannot_be_loaded_or_predict_leaves_the_old_one(
    bundle: Path, tokenizer: PreTrainedTokenizerBase, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(bundle, reload_seconds=0.01)
    (bundle / "bundle.json").write_text("{")
    words = running.said.get(timeout=PATIENCE)
    kept = "films changed and cannot be loaded, the old one is served:"
    assert words.startswith(f"{kept} {bundle / 'bundle.json'} is")
    assert running.ask({"texts": ["film"]}).body["predictions"][0]["label"] == "short"
    assert running.said.empty()  # It is said once.
    predict = Bundle.predict

    def fail(self: Any, *arguments: Any, **options: Any) -> Any:
        if self.labels == ["much", "little"]:
            raise Panic("index out of bounds")
        return predict(self, *arguments, **options)

    monkeypatch.setattr(Bundle, "predict", fail)
    replace(bundle, tokenizer, labels=["much", "little"])
    words = running.said.get(timeout=PATIENCE)
    assert words.startswith(kept)
    assert words.endswith("index out of bounds")
    assert running.ask({"texts": ["film"]}).body["predictions"][0]["label"] == "short"


def test_a_bundle_whose_copy_was_not_complete_is_loaded_later(bundle: Path) -> None:
    [model] = load_models([str(bundle)], model=None, threads=1, limits=Limits()).values()
    manifest = (bundle / "bundle.json").read_text()
    with ThreadPoolExecutor() as thread:
        (bundle / "bundle.json").write_text(manifest + " ")
        (bundle / "tokenizer.json").rename(bundle / "later")
        assert "cannot be loaded" in str(asyncio.run(model.reload_if_changed(thread)))
        (bundle / "later").rename(bundle / "tokenizer.json")
        assert asyncio.run(model.reload_if_changed(thread)) == "films changed and was loaded again"


def test_a_text_that_is_cut_is_marked_or_refused(bundle: Path, start: Start) -> None:
    long = "a dull film and a moving film " * 3
    running = start(bundle, characters=1_000_000, total=2_000_000)
    for text in (long, "film " * 200_000):
        predictions = running.ask({"texts": ["film", text]}).body["predictions"]
        assert [each.get("truncated") for each in predictions] == [None, True]
    answer = start(bundle, refuse_long=True).ask({"texts": ["film", long]})
    assert (answer.status, answer.body) == (
        413, {"error": "record 2: it has more tokens than the 8 that the bundle reads: cut it"},
    )  # fmt: skip


def test_a_record_that_gives_no_input_is_refused(bundle: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    running = start(bundle)
    [model] = running.service.models.values()

    def give_no_row(*_: object, **__: object) -> None:
        raise ValueError("the context has no tokens")

    monkeypatch.setattr(model.bundle.decoder, "cut", give_no_row)
    answer = running.ask({"texts": ["film"]})
    assert (answer.status, answer.body) == (422, {"error": "record 1: the context has no tokens"})


# Documentation


def test_the_description_of_the_interface_needs_no_other_host(bundle: Path, start: Start) -> None:
    running = start(bundle)
    page = running.get("/docs").body
    described = running.get("/openapi.json").body["paths"]
    assert len(described) > 4
    for path, methods in described.items():
        for method, operation in methods.items():
            assert f"<h2><code>{method.upper()} {path}</code></h2>\n<p>{operation['summary']}.</p>" in page
    assert "<script" not in page
    links = set(re.findall(r"(?:href|src)=[\"']([^\"']*)", page))
    assert links == {"data:,", "openapi.json", "./"}
    own = f"http://127.0.0.1:{running.port}/"
    assert set(re.findall(r"https?://[^/\s]+/", page)) == {own}
    assert f"curl {own}predict -H &#x27;Content-Type: application/json&#x27; -d &#x27;{{&quot;texts&quot;: [" in page
    assert "<li><code>pairs</code>: array of array of string, 2 of them</li>" in page
