"""Tests of what a finished job leaves: its runs and results, its bundle, its student, its report, and predictions."""

import io
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from distill.core.errors import UserError
from distill.edge import Bundle
from distill.records.headline import describe_verdict
from distill.records.run import Run, create_record
from distill.serve.jobs.deployment import Target
from distill.serve.jobs.queue import State
from distill.serve.jobs.results import name_runs
from tests.edge.conftest import write_toy_bundle
from tests.records.test_report import record
from tests.serve.bundles.conftest import Running as Server
from tests.serve.bundles.conftest import start as start_server  # noqa: F401  # A fixture.
from tests.serve.jobs.conftest import Running
from tests.serve.jobs.programs import is_running, wait_for

Start = Callable[..., Running]
PASSED = "toy/big-small/1"


def write_run(root: Path, name: str = PASSED, *, status: str = "finished", **changes: Any) -> Path:
    """Writes a run whose int8 file failed its gate."""
    directory = root / name
    directory.mkdir(parents=True)
    content = record(**changes)
    if "export" not in changes:
        content["export"]["int8"]["reason"] = "agreement 0.9, the limit is 0.97"
    Run(directory, create_record(job="distill", seed=0) | content | {"status": status}).save()
    return directory


def fail_gates() -> dict[str, Any]:
    export = record()["export"]
    return {
        name: {**file, "gate": "failed", "reason": "agreement 0.9, the limit is 0.97"} for name, file in export.items()
    }


def write_bundle(run: Path, tokenizer: PreTrainedTokenizerBase, **options: Any) -> Path:
    """Writes the bundle of a run."""
    (run / "bundle").mkdir()
    write_toy_bundle(run / "bundle", tokenizer, **options)
    return run / "bundle"


@pytest.fixture
def finished(start: Start) -> tuple[Running, str, Path]:
    """A service with a job that has finished, and the directory of its runs."""
    running = start(idle_seconds=600.0)
    job = running.wait(running.submit().id, State.RUNNING)
    root = running.service.runs_directory(job)
    root.mkdir(parents=True, exist_ok=True)
    return running, job.id, root


def test_a_finished_job_has_the_headline_of_each_run(finished: tuple[Running, str, Path]) -> None:
    running, id, root = finished
    write_run(root)
    write_run(root, "toy/big-small/2", export=fail_gates())
    write_run(root, "toy/big-small/3", status="failed", task=None, teacher=None, student=None, export={}, benchmark=[])
    running.end(id)
    shown = running.ask("GET", f"/jobs/{id}").body
    assert shown["runs"] == [PASSED, "toy/big-small/2", "toy/big-small/3"]
    first, second, third = shown["results"]
    verdict = first.pop("verdict")
    assert first == {
        "run": PASSED, "title": PASSED, "task": "toy", "metric": "accuracy", "split": "dev", "teacher": 0.9,
        "student": 0.9, "retained": 1.0, "file": "model.onnx", "exported": 0.9, "mb": 40.0, "ms": 8.0,
        "gate": "passed", "reason": None,
    }  # fmt: skip
    assert verdict[:-1] == describe_verdict(record())  # Without the reason of the file that failed.
    reason = "failed its gate: agreement 0.9, the limit is 0.97"
    assert (second["gate"], second["mb"]) == ("failed", None)
    assert second["reason"] == f"model.onnx {reason}; model.int8.onnx {reason}"
    assert third.pop("verdict") == []
    assert set(third.values()) == {"toy/big-small/3", None}


def test_several_runs_are_called_by_the_options_in_which_they_differ(tmp_path: Path) -> None:
    options = {"first": "student: {name: bilstm}\nseed: 1", "second": "student: {name: static}\nseed: 1", "third": ""}
    for name, content in options.items():
        (tmp_path / name).mkdir()
        if content:
            (tmp_path / name / "config.yaml").write_text(content)
    assert name_runs(tmp_path, ["first", "second"]) == {"first": "student=bilstm", "second": "student=static"}
    assert name_runs(tmp_path, ["first"]) == {"first": "first"}
    assert name_runs(tmp_path, ["third", "second"])["third"] == "third"
    (tmp_path / "third" / "config.yaml").write_text(options["first"])
    assert name_runs(tmp_path, ["first", "third"]) == {"first": "first", "third": "third"}  # Nothing tells them apart.


def test_a_bundle_is_streamed_as_a_zip_and_one_without_a_passed_file_with_force_alone(
    finished: tuple[Running, str, Path], tokenizer: PreTrainedTokenizerBase
) -> None:
    running, id, root = finished
    path = f"/jobs/{id}/bundle.zip"
    assert running.ask("GET", path).body == {"error": "the job has no run yet: wait until it has finished"}
    run = write_run(root, export=fail_gates())
    assert running.ask("GET", path).body == {"error": "the run has no bundle: its student was not exported"}
    write_bundle(run, tokenizer)
    (run / "bundle" / "large").write_bytes(bytes(range(256)) * 3000)
    (run / "bundle" / "link").symlink_to("/etc/passwd")
    refused = running.ask("GET", path)
    reason = "failed its gate: agreement 0.9, the limit is 0.97"
    assert (refused.status, refused.body) == (
        409, {"error": f"no file passed its gate: model.onnx {reason}; model.int8.onnx {reason}; force=1 gives the "
                       "bundle all the same"},
    )  # fmt: skip
    answer = running.ask("GET", f"{path}?force=1")
    assert (answer.status, answer.headers["content-disposition"]) == (200, f'attachment; filename="{id}.bundle.zip"')
    with zipfile.ZipFile(io.BytesIO(answer.body)) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["bundle.json", "large", "model.onnx", "tokenizer.json"]
        assert archive.read("large") == bytes(range(256)) * 3000
    (run / "student").mkdir()
    (run / "student" / "config.json").write_text("{}")
    with zipfile.ZipFile(io.BytesIO(running.ask("GET", f"/jobs/{id}/student.zip").body)) as archive:
        assert archive.namelist() == ["config.json"]
    undeployed = running.ask("POST", f"/jobs/{id}/deploy?force=1")
    message = "there is no server to deploy to: start the service with --serve URL=DIRECTORY"
    assert (undeployed.status, undeployed.body) == (409, {"error": message})


def test_one_of_several_runs_is_named(finished: tuple[Running, str, Path]) -> None:
    running, id, root = finished
    for number in (1, 2):
        run = write_run(root, f"sweep/{number}")
        (run / "report.html").write_text(f"<p>{number}")
    answer = running.ask("GET", f"/jobs/{id}/student.zip")
    message = "the job has 2 runs: add run=NAME, one of sweep/1, sweep/2"
    assert (answer.status, answer.body) == (409, {"error": message})
    assert running.ask("GET", f"/jobs/{id}/report?run=sweep/2").body == "<p>2"
    for name in ("../../..", "sweep/3"):
        missing = running.ask("GET", f"/jobs/{id}/report?run={name}")
        assert (missing.status, missing.body) == (
            404, {"error": f"the job has no run '{name}', expected one of sweep/1, sweep/2"},
        )  # fmt: skip
    assert running.ask("GET", f"/jobs/{id}/report?run=2").body == "<p>2"  # The part that one run alone has.
    several = running.ask("GET", f"/jobs/{id}/report?run=sweep")
    assert (several.status, several.body) == (409, {"error": "2 runs of the job have 'sweep': sweep/1, sweep/2"})
    (write_run(root, "toy/big-1/2") / "report.html").write_text("<p>static")
    assert running.ask("GET", f"/jobs/{id}/report?run=big").body == "<p>static"
    assert running.ask("GET", f"/jobs/{id}/report?run=1").body == "<p>1"  # A whole directory comes first.
    assert running.ask("GET", f"/jobs/{id}/report?run=").status == 404
    (root / "sweep" / "report.html").write_text("<p>both")
    answer = running.ask("GET", f"/jobs/{id}/report")
    assert answer.body == "<p>both"
    assert answer.headers["content-security-policy"].startswith("sandbox allow-scripts")


def test_a_student_is_tried_in_a_child_that_ends_when_idle_and_with_the_service(
    start: Start, tokenizer: PreTrainedTokenizerBase
) -> None:
    running = start(idle_seconds=0.5)
    job = running.wait(running.submit().id, State.RUNNING)
    bundle = write_bundle(write_run(running.service.runs_directory(job)), tokenizer)
    path, children = f"/jobs/{job.id}/predict", running.service.children
    answer = running.ask("POST", path, {"inputs": ["a film", "dull"]})
    assert (answer.status, answer.body) == (200, {"predictions": Bundle(bundle).predict(["a film", "dull"])})
    refused = running.ask("POST", path, {"inputs": [3]})
    assert (refused.status, refused.body) == (422, {"error": "record 1: got 3, expected a text"})
    assert running.ask("POST", f"/jobs/{job.id}/rank", {"query": "a", "documents": ["b"]}).status == 422
    wait_for(lambda: not children.running)
    children.idle = 600.0
    assert running.ask("POST", path, {"inputs": ["a"]}).status == 200
    [child] = children.running.values()
    running.stop()
    assert not is_running(child.process.pid)


def test_a_child_ends_when_its_service_is_killed(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    write_toy_bundle(tmp_path, tokenizer)
    command = [sys.executable, "-m", "distill.serve.jobs.deployment", f"bundle={tmp_path}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline().startswith("serving bundle at http://127.0.0.1:")
        child.stdin.close()  # As the system does with the pipes of a process that was killed.
        assert child.wait(60) == 0


def test_a_bundle_is_deployed_and_answered_for_once_it_is_served(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, start: Start,
    start_server: Callable[..., Server],  # noqa: F811
) -> None:  # fmt: skip
    served = write_bundle(tmp_path, tokenizer, task="films")
    server = start_server(served, reload_seconds=0.01)
    running = start(target=Target.parse(f"http://127.0.0.1:{server.port}={served}"))
    job = running.wait(running.submit().id, State.RUNNING)
    run = write_run(running.service.runs_directory(job))
    bundle = write_bundle(run, tokenizer, task="films", labels=["much", "little"])
    answer = running.ask("POST", f"/jobs/{job.id}/deploy")
    assert answer.status == 200, answer.body
    assert answer.body["model"]["labels"] == ["much", "little"]
    assert server.ask({"texts": ["film"]}).body["predictions"][0]["label"] == "little"
    assert sorted(path.name for path in served.parent.iterdir() if path.name.startswith(".")) == []
    assert bundle.is_dir()


def test_a_bundle_that_is_not_loaded_leaves_the_old_one(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    served, bundle = tmp_path / "served", tmp_path / "bundle"
    for directory in (served, bundle):
        directory.mkdir()
        write_toy_bundle(directory, tokenizer, task=directory.name)
    target = Target("http://127.0.0.1:1", served)
    with pytest.raises(Exception, match="did not load the bundle within 0 s: the old one is back") as caught:
        target.deploy(bundle, seconds=0.0)
    assert caught.value.status == 502  # type: ignore[attr-defined]
    assert Bundle(served).manifest["task"] == "served"
    (bundle / "bundle.json").write_text("{")
    with pytest.raises(Exception, match="the bundle cannot be copied: .*bundle.json is damaged"):
        target.deploy(bundle, seconds=0.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "served"]


@pytest.mark.parametrize("text", ["nothing", "http://127.0.0.1:8000", "ftp://host={0}", "={0}", "http://a=/nowhere"])
def test_a_server_that_cannot_be_one_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected URL=DIRECTORY|is no bundle that a server could serve"):
        Target.parse(text.format(tmp_path))
