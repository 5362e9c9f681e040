"""Tests of the paths of the service: jobs, their limits, and what is refused."""

import errno
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from distill.core.errors import UserError
from distill.serve.http import RefusedError
from distill.serve.jobs.accounts import Account
from distill.serve.jobs.job_service import Service, Settings
from distill.serve.jobs.queue import State
from distill.serve.jobs.results import DryRun
from tests.serve.bundles.conftest import PATIENCE
from tests.serve.jobs.conftest import Running
from tests.serve.jobs.programs import wait_for

Start = Callable[..., Running]
FILMS = b"text,label\na lovely film,good\na dull mess,bad\n"
TRAINING = ["+teacher=minilm", "+student=bilstm"]


def test_a_job_is_submitted_watched_pinned_and_removed(start: Start) -> None:
    running = start(waiting=1)
    answer = running.ask("POST", "/jobs", {"overrides": TRAINING, "name": "first"})
    assert (answer.status, answer.headers["location"]) == (201, f"/jobs/{answer.body['id']}")
    assert (answer.body["name"], answer.body["plan"], answer.body["owner"]) == ("first", "10 steps", "local")
    id = answer.body["id"]
    running.write_events(
        id, {"kind": "stage", "stage": "training", "progress": 0.5, "seconds_left": 9.0},
        {"kind": "metrics", "step": 3, "metrics": {"dev/accuracy": 0.75}},
    )  # fmt: skip
    wait_for(lambda: running.job(id).metrics)
    shown = running.ask("GET", f"/jobs/{id}").body
    assert (shown["state"], shown["stage"], shown["progress"]) == ("running", "training", 0.5)
    assert (shown["metrics"], shown["runs"], shown["results"]) == ({"dev/accuracy": 0.75}, [], [])
    assert [job["id"] for job in running.ask("GET", "/jobs").body["jobs"]] == [id]
    assert running.ask("PUT", f"/jobs/{id}/pin", {"pinned": True}).body["pinned"] is True
    assert running.ask("PUT", f"/jobs/{id}/pin", {"pinned": "yes"}).body == {
        "error": """got {'pinned': 'yes'}, expected {"pinned": true} or {"pinned": false}"""
    }
    (running.service.directory / "jobs" / id / "attempts" / "1" / "log").write_text("<b>one</b>\ntwo\n")
    log = running.ask("GET", f"/jobs/{id}/log?offset=11")
    assert (log.body, log.headers["content-type"]) == ("two\n", "text/plain; charset=utf-8")
    assert running.ask("GET", f"/jobs/{id}/log?offset=-1").body == {
        "error": "got offset='-1', expected a number of bytes of at least 0"
    }
    running.submit()
    full = running.ask("POST", "/jobs", {"overrides": TRAINING})
    assert (full.status, full.headers["retry-after"]) == (503, "60")
    assert full.body == {"error": "1 jobs are queued, which is the limit: submit it again later"}
    lines = running.ask("GET", "/metrics").body.splitlines()
    for line in (
        'distill_service_jobs{state="running"} 1.0', 'distill_service_jobs{state="finished"} 0.0',
        "distill_service_queue_length 1.0", 'distill_service_requests_total{status="201"} 2.0',
        "distill_service_children 0.0",
    ):  # fmt: skip
        assert line in lines
    assert any(line.startswith('distill_service_disk_bytes{folder="jobs"}') for line in lines)
    running.end(id)
    before = running.service.usage.hours("local")
    assert running.ask("DELETE", f"/jobs/{id}").status == 204
    assert running.ask("GET", f"/jobs/{id}").status == 404
    assert not (running.service.directory / "jobs" / id).exists()
    assert running.service.usage.hours("local") >= before > 0  # They count after a job is removed.


def test_the_overrides_of_a_job_name_its_data_and_its_plan_is_not_submitted(start: Start, tmp_path: Path) -> None:
    (tmp_path / "teachers" / "small").mkdir(parents=True)
    running = start(teachers=tmp_path / "teachers")
    assert running.ask("PUT", "/data/films?format=csv", FILMS).status == 201
    overrides = ["+teacher=pretrained", "teacher.path=teacher:small", "+student=bilstm", "task=classification",
                 "task.data_dir=data:films", "seed=1,2"]  # fmt: skip
    plan = running.ask("POST", "/plan", {"overrides": overrides})
    assert plan.body == {"plan": "10 steps", "seconds": 12.5, "notices": ["one epoch"]}
    assert running.ask("GET", "/jobs").body == {"jobs": []}
    resolved, names = running.planner.asked[0]
    path = running.service.data.path("local", "films")
    assert resolved[0] == "-m"  # Two values are a sweep.
    assert f"task.data_dir='{path}'" in resolved
    assert names == {str(path): "data:films", str(tmp_path / "teachers" / "small"): "teacher:small"}
    running.wait(running.submit().id, State.RUNNING)  # It is the only worker, so that the next job waits.
    job = running.submit(*overrides)
    assert job.data == ("films",)
    shown = running.ask("GET", f"/jobs/{job.id}").body
    assert str(tmp_path) not in json.dumps(shown["overrides"])
    assert "task.data_dir='data:films'" in shown["overrides"]
    in_use = {"error": "a job reads the data set films: wait for its end or cancel it"}
    refused = running.ask("DELETE", "/data/films")
    assert (refused.status, refused.body, running.job(job.id).state) == (409, in_use, State.QUEUED)
    running.end(running.service.queue.jobs()[0].id)
    running.wait(job.id, State.RUNNING)
    assert running.ask("DELETE", "/data/films").status == 409
    running.end(job.id)
    form = {
        "teacher": "minilm", "student": "bilstm", "task": "classification", "data": "films",
        "columns": {"text": ["text"], "label": "label"}, "options": {"trainer.max_epochs": "2", "objective": "hinton"},
    }  # fmt: skip
    answer = running.ask("POST", "/jobs", {"form": form})
    assert answer.body["overrides"] == [
        "+teacher=minilm", "+student=bilstm", "task=classification", "task.data_dir='data:films'", "task.text=['text']",
        "task.label='label'", "trainer.max_epochs=2", "objective=hinton",
    ]  # fmt: skip
    own = running.ask("POST", "/plan", {"form": form | {"teacher": "teacher:small"}})
    assert own.status == 200, own.body
    assert running.planner.asked[-1][0][:2] == ("+teacher=pretrained", f"teacher.path='{tmp_path}/teachers/small'")
    running.end(answer.body["id"])
    assert running.ask("DELETE", "/data/films").status == 204
    for more, is_sweep in (("-m", 1), ("+experiment=depth", 1), ("+experiment=spanbert_recipe", 0)):
        swept = running.submit(*TRAINING, more)
        assert (swept.overrides[0] == "-m", swept.overrides.count("-m")) == (is_sweep, is_sweep)


def test_a_job_whose_data_is_gone_shows_no_path_and_is_not_tried_again(start: Start, tmp_path: Path) -> None:
    (tmp_path / "teachers" / "small").mkdir(parents=True)
    running = start(teachers=tmp_path / "teachers")
    assert running.ask("PUT", "/data/films?format=csv", FILMS).status == 201
    job = running.submit("+teacher=pretrained", "teacher.path=teacher:small", "+student=bilstm",
                         "task.data_dir=data:films", "seed=1,2")  # fmt: skip
    path, runs = running.service.data.path("local", "films"), running.service.runs_directory(job)
    notice = f"{path} has 2 rows, see {runs}/toy/1/report.md and {running.service.directory}/cache/x"
    running.write_events(job.id, {"kind": "notice", "text": notice})
    running.end(job.id, code=2, error=f"{path}, line 2: {tmp_path}/teachers/small reads no '': {runs}/toy/1/last.ckpt "
                                      "belongs to another training: run the command without resume")  # fmt: skip
    expected = "data:films, line 2: teacher:small reads no '': toy/1/last.ckpt belongs to another training: submit"
    for _ in range(2):  # With the sources, and without.
        shown = running.ask("GET", f"/jobs/{job.id}").body
        assert shown["error"] == f"{expected} the job anew"
        assert shown["overrides"][2:5:2] == ["teacher.path='teacher:small'", "task.data_dir='data:films'"]
        events = running.ask("GET", f"/jobs/{job.id}/events").body
        assert "data:films has 2 rows, see toy/1/report.md and cache/x" in events
        assert str(tmp_path) not in json.dumps(shown) + events
        running.ask("DELETE", "/data/films")
        shutil.rmtree(tmp_path / "teachers" / "small", ignore_errors=True)
    retry = f"/jobs/{job.id}/retry"
    gone = f"{{}} is gone, which job {job.id} reads: submit the job anew with another"
    assert running.ask("POST", retry).body == {"error": gone.format("teacher:small")}
    (tmp_path / "teachers" / "small").mkdir()
    assert running.ask("POST", retry).body == {"error": gone.format("data:films")}
    assert running.ask("PUT", "/data/films?format=csv", FILMS.replace(b"dull", b"slow")).status == 201
    refused = running.ask("POST", retry)
    assert refused.status == 409
    assert refused.body["error"].startswith(f"data:films was uploaded after job {job.id} was submitted: submit the job")
    assert running.job(job.id).state == State.FAILED


BAD: list[tuple[object, int, str]] = [
    (b"{", 400, "the body is no JSON"),
    (b"[" * 19_000, 400, "the body has lists or objects in too many others"),
    (b"x" * 20_001, 413, "the body has more than 20,000 bytes, the limit"),
    ([], 422, "got [], expected an object with overrides or form, and perhaps name"),
    ({"overrides": TRAINING, "form": {}}, 422, "expected one of overrides and form"),
    ({"overrides": []}, 422, "got no overrides, expected those of the command line, such as +teacher=NAME"),
    ({"overrides": "+teacher=minilm"}, 422, "got overrides='+teacher=minilm', expected a list of texts"),
    ({"overrides": TRAINING, "name": "a\nb"}, 422, "got name='a\\nb', expected a text of one line"),
    ({"overrides": TRAINING, "more": 1}, 422, "got {'overrides'"),
    ({"overrides": ["hydra.run.dir=/tmp"]}, 422, "the option hydra.run.dir cannot be set here"),
    ({"overrides": ["task.data_dir=data:nothing"]}, 404, "there is no data set nothing"),
    ({"overrides": ["teacher.path=teacher:nothing"]}, 422, "there is no teacher:nothing, expected one of none"),
    ({"overrides": ["teacher.id=owner/name"]}, 422, "the option teacher.id is for the administrator of the service"),
    ({"form": []}, 422, "got the form"),
    ({"form": {"teacher": "minilm", "depth": 3}}, 422, "got the form"),
    ({"form": {"teacher": "../x", "task": "mrpc"}}, 422, "got teacher='../x' in the form, expected the name of"),
    ({"form": {"teacher": "minilm", "task": "mrpc", "columns": [1]}}, 422, "got columns or options of the form"),
]


def test_a_job_that_cannot_be_is_refused(start: Start) -> None:
    running = start()
    for body, status, message in BAD:
        answer = running.ask("POST", "/jobs", body)
        assert answer.status == status, body
        assert message in answer.body["error"]
    running.planner.result = RefusedError(422, "there is no student lstm")
    for path in ("/jobs", "/plan"):
        answer = running.ask("POST", path, {"overrides": TRAINING})
        assert (answer.status, answer.body) == (422, {"error": "there is no student lstm"})
    missing = running.ask("GET", "/nothing")
    assert (missing.status, missing.body) == (404, {"error": "GET /nothing: Not Found"})
    assert running.ask("GET", "/jobs", headers={"Host": "evil.example"}).status == 403
    assert "/jobs/{id}/bundle.zip" in running.ask("GET", "/docs").body
    assert running.service.queue.jobs() == []
    administered = start(directory=running.service.directory.with_name("own"), administrators=("local",))
    assert administered.submit(*TRAINING, "teacher.id=owner/name").overrides[-1] == "teacher.id='owner/name'"


def test_data_is_not_deleted_while_the_job_that_reads_it_is_checked(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start()
    assert running.ask("PUT", "/data/films?format=csv", FILMS).status == 201
    refused = []

    async def plan(overrides: object, names: object) -> DryRun:
        with pytest.raises(RefusedError, match="a job reads the data set films") as caught:
            running.service.data.delete("local", "films")
        refused.append(caught.value.status)
        return DryRun("10 steps", None, ())

    monkeypatch.setattr(running.service.planner, "plan", plan)
    body = {"overrides": [*TRAINING, "task.data_dir=data:films"]}
    assert running.ask("POST", "/plan", body).status == 200
    assert running.ask("POST", "/jobs", body).status == 201
    assert refused == [409, 409]


def test_a_job_is_cancelled_and_tried_again_under_its_id(start: Start) -> None:
    running = start()
    job = running.wait(running.submit().id, State.RUNNING)
    answer = running.ask("DELETE", f"/jobs/{job.id}")
    assert (answer.status, answer.body["state"]) == (202, "cancelling")
    running.wait(job.id, State.CANCELLED)
    answer = running.ask("POST", f"/jobs/{job.id}/retry")
    assert (answer.status, answer.body["id"]) == (202, job.id)
    refused = running.ask("POST", f"/jobs/{running.end(job.id).id}/retry")
    assert refused.status == 409
    assert running.job(job.id).attempt == 2
    # The time of both attempts counts.
    assert len((running.service.directory / "spent.jsonl").read_text().splitlines()) == 1


def test_accounts_have_their_own_jobs_and_data_and_limits(start: Start) -> None:
    running = start()
    tokens = {name: running.service.accounts.add(Account(name, jobs=1, disk=1_000)) for name in ("ada", "ben")}
    assert running.ask("GET", "/jobs").status == 401
    assert running.ask("GET", "/jobs", token="wrong").status == 401
    ada, ben = tokens["ada"], tokens["ben"]
    assert running.ask("PUT", "/data/films?format=csv", FILMS, token=ada).status == 201
    job = running.submit(*TRAINING, "task.data_dir=data:films", token=ada)
    for method, path in (
        ("GET", ""), ("DELETE", ""), ("POST", "/retry"), ("PUT", "/pin"), ("GET", "/events"), ("GET", "/log"),
        ("GET", "/bundle.zip"), ("GET", "/student.zip"), ("GET", "/report"), ("POST", "/predict"), ("POST", "/deploy"),
    ):  # fmt: skip
        answer = running.ask(method, f"/jobs/{job.id}{path}", {"pinned": True}, token=ben)
        assert (answer.status, answer.body) == (404, {"error": f"there is no job '{job.id}'"})
    assert running.ask("GET", "/jobs", token=ben).body == {"jobs": []}
    assert running.ask("GET", "/data", token=ben).body == {"data": []}
    assert running.ask("GET", "/data/films", token=ben).status == 404
    reading = ["task.data_dir=data:films"]
    assert running.ask("POST", "/jobs", {"overrides": [*TRAINING, *reading]}, token=ben).status == 404
    assert running.ask("PUT", "/data/films?format=csv", FILMS, token=ben).status == 201
    assert running.ask("DELETE", "/data/films", token=ben).status == 204  # It has the name of that of ada alone.
    refused = running.ask("POST", "/jobs", {"overrides": TRAINING}, token=ada)
    assert (refused.status, refused.body) == (
        409, {"error": "ada has 1 jobs that run or wait, the limit: wait for one or cancel it"},
    )  # fmt: skip
    large = running.ask("PUT", "/data/more?format=csv", FILMS * 30, token=ada)
    assert large.status == 409
    assert "bytes that are left to you: delete some" in large.body["error"]
    running.end(job.id)
    assert running.service.usage.hours("ada") > 0
    assert running.service.usage.hours("ben") == 0
    token = running.service.accounts.add(Account("ada", hours=0.0))
    assert "of 0 hours in 30 days" in running.ask("POST", f"/jobs/{job.id}/retry", token=token).body["error"]


def test_jobs_that_are_submitted_together_stay_within_the_limit(start: Start) -> None:
    running = start()
    token = running.service.accounts.add(Account("ada", jobs=2))
    statuses: list[int] = []

    def submit() -> None:
        statuses.append(running.ask("POST", "/jobs", {"overrides": TRAINING}, token=token).status)

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(statuses) == [201] * 2 + [409] * 6


def test_a_form_is_offered_what_there_is(start: Start, tmp_path: Path) -> None:
    (tmp_path / "teachers" / "small").mkdir(parents=True)
    offered = start(teachers=tmp_path / "teachers", upload=1000).ask("GET", "/options").body
    names = {group: {one["name"] for one in offered[group]} for group in ("teachers", "students", "options")}
    assert "teacher:small" in names["teachers"]
    assert not {"pretrained", "ensemble"} & names["teachers"]
    assert "bilstm" in names["students"]
    assert "trainer.max_epochs" in names["options"]
    assert offered["upload"] == 1000
    assert offered["tasks"][0]["name"] == "classification"
    columns = {task["name"]: task["columns"] for task in offered["tasks"]}
    text, label = columns["classification"]
    assert (text["name"], text["many"], text["optional"], text["default"]) == ("text", True, False, "text")
    assert (label["name"], label["many"], label["optional"], label["default"]) == ("label", False, True, "label")
    assert [column["name"] for column in columns["mlm"]] == ["text"]  # Of all tasks on raw text.
    assert not columns["sst2"]  # A data set has its own.


def test_a_second_service_on_a_directory_is_refused(start: Start) -> None:
    running = start()
    service = running.service
    upload = service.data.directory / ".uploads" / "half"
    upload.mkdir()
    with pytest.raises(UserError, match="is in use by another service: stop it, or give another directory"):
        Service(service.directory, service.queue, running.engine, settings=Settings(), accounts=service.accounts)
    assert upload.is_dir()  # Of the first one, which has not lost it.


def test_a_full_disk_is_answered_with_what_to_delete(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    running = start()
    monkeypatch.setattr(running.service.data, "put", refuse)
    answer = running.ask("PUT", "/data/films?format=csv", FILMS)
    assert (answer.status, answer.body) == (507, {"error": "the disk of the service is full: delete data sets or jobs"})
