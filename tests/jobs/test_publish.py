"""Tests of job=publish against a server that speaks the Hub's protocol, and of the runs that it refuses."""

import base64
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import ModelCard, constants

from distill.core.errors import WHEEL
from distill.core.files import atomic_directory
from distill.records.report import render_model_card
from distill.records.run import Run, create_record
from tests.jobs.conftest import Command
from tests.records.test_report import record


class Hub(http.server.BaseHTTPRequestHandler):
    """Creates repositories and accepts commits of small files."""

    requests: list[tuple[str, Any]]
    status = 200

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        lines = [json.loads(line) for line in body.splitlines()]
        self.requests.append((self.path, lines))
        answers: dict[str, Any] = {"create": {"url": f"{constants.ENDPOINT}/me/toy"}, "validate-yaml": {}}
        if "/preupload/" in self.path:
            names = [file["path"] for file in lines[0]["files"]]
            answer = {"files": [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]}
        elif "/commit/" in self.path:
            answer = {"commitUrl": f"{constants.ENDPOINT}/me/toy/commit/1", "commitOid": "1", "success": True}
        else:
            answer = answers[self.path.rpartition("/")[2]]
        content = json.dumps(answer if self.status == 200 else {"error": "no right to write"}).encode()
        self.send_response(self.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Prints nothing."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    """A server in place of the Hub, and a token for it."""
    handler = type("Handler", (Hub,), {"requests": [], "status": 200})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_toy")
    yield handler
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Path]:
    """Writes the directory of a finished run of the toy record, with changes of the record."""

    def create(**changes: Any) -> Path:
        directory = tmp_path / "run"
        teacher = {**record()["teacher"], "resolved": "google-bert/bert-base-uncased"}
        content = create_record(job="distill", seed=0, command=[]) | record(teacher=teacher)
        content |= {"status": "finished"} | changes
        with atomic_directory(directory / "student") as student:
            card = render_model_card(content, ["no", "yes"], auto_class="AutoModelForSequenceClassification")
            (student / "README.md").write_text(card)
            (student / "model.safetensors").write_bytes(b"weights")
        with atomic_directory(directory / "bundle") as bundle:
            (bundle / "README.md").write_text(render_model_card(content, ["no", "yes"]))
            (bundle / "model.onnx").write_bytes(b"graph")
        (directory / WHEEL).write_bytes(b"wheel")
        Run(directory, content).save()
        return directory

    return create


def test_a_run_is_published_in_one_commit(run: Callable[..., Path], hub: type[Hub], command: Command) -> None:
    code, output, error = command("job=publish", f"run={run()}", "repo=me/toy")
    assert code == 0, error
    assert f"Published  {constants.ENDPOINT}/me/toy" in output
    by_path = dict(hub.requests)
    assert (
        by_path["/api/repos/create"][0] | {"name": "toy", "organization": "me", "visibility": "private"}
        == (by_path["/api/repos/create"][0])
    )
    [header, *files] = by_path["/api/models/me/toy/commit/main"]
    assert header["value"]["summary"] == "Upload the student and its bundle"
    sent = {file["value"]["path"]: base64.b64decode(file["value"]["content"]) for file in files}
    assert sent.keys() == {
        "README.md", "model.safetensors", "bundle/README.md", "bundle/model.onnx", "bundle/SHA256SUMS", WHEEL
    }  # fmt: skip
    assert sent["model.safetensors"] == b"weights"
    card = ModelCard(sent["README.md"].decode())
    assert (card.data.license, card.data.base_model) == ("apache-2.0", ["google-bert/bert-base-uncased"])
    assert card.data.library_name == "transformers"
    values = {result.metric_name: result.metric_value for result in card.data.eval_results}
    assert values == {
        "accuracy (small, torch)": 0.9, "accuracy (model.onnx)": 0.9, "accuracy (model.int8.onnx)": 0.81
    }  # fmt: skip
    assert "AutoModelForSequenceClassification.from_pretrained" in card.text
    assert "Data of toy: its licence is not known here" in card.text
    assert ModelCard(sent["bundle/README.md"].decode()).data.library_name == "onnx"


def test_a_dry_run_lists_the_files_and_sends_nothing(
    run: Callable[..., Path], hub: type[Hub], command: Command
) -> None:
    options = ("repo=me/toy", "private=false", "job.license=mit", "dry_run=true")
    code, output, error = command("job=publish", f"run={run()}", *options)
    assert code == 0, error
    assert "bundle/model.onnx" in output
    assert "6 files" in output
    assert f"{constants.ENDPOINT}/me/toy (public if it is new)" in output
    assert "Nothing was sent" in output
    assert not hub.requests


def failed() -> dict[str, Any]:
    files = record()["export"]
    return {name: {**file, "gate": "failed"} for name, file in files.items()}


@pytest.mark.parametrize(
    ("changes", "options", "expected"),
    [
        ({"status": "running"}, ["repo=me/toy"], "is not finished, its status is running: python -m distill resume="),
        ({"export": failed()}, ["repo=me/toy"], "passed its gate (model.onnx failed, model.int8.onnx failed)"),
        ({}, [], "job=publish has no repository to upload to: add repo=OWNER/NAME"),
        ({}, ["repo=toy"], "got repo=toy, expected owner/name, with your name or that of an organization"),
        ({}, ["repo='a b/c'"], "expected owner/name in letters, digits"),
        ({}, ["repo=me/toy", "private=maybe"], "got private=maybe, expected true or false"),
        ({}, ["repo=me/toy", "seed=3"], "job=publish reads only"),
    ],
)  # fmt: skip
def test_what_cannot_be_published_is_one_line(
    changes: dict[str, Any], options: list[str], expected: str, run: Callable[..., Path], command: Command
) -> None:
    code, _, error = command("job=publish", f"run={run(**changes)}", *options)
    assert (code, len(error.splitlines())) == (2, 1), error
    assert expected in error


def test_a_missing_run_and_a_changed_file_are_one_line(run: Callable[..., Path], command: Command) -> None:
    assert "job=publish has no run: add run=DIR" in command("job=publish", "repo=me/toy")[2]
    assert "is no run: it has no run.json" in command("job=publish", "run=nowhere", "repo=me/toy")[2]
    directory = run()
    (directory / "bundle" / "model.onnx").write_bytes(b"another graph")
    code, _, error = command("job=publish", f"run={directory}", "repo=me/toy")
    assert (code, len(error.splitlines())) == (2, 1)
    assert "bundle is damaged or was changed" in error


def test_a_missing_token_and_a_refusal_are_one_line(
    run: Callable[..., Path], hub: type[Hub], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = run()
    hub.status = 403
    code, _, error = command("job=publish", f"run={directory}", "repo=me/toy")
    assert (code, len(error.splitlines())) == (2, 1), error
    assert "the Hub refuses the upload to me/toy" in error
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    code, _, error = command("job=publish", f"run={directory}", "repo=me/toy")
    assert (code, len(error.splitlines())) == (2, 1), error
    assert "there is no token of the Hub: run `hf auth login`" in error
