"""Tests of the paths of the service: jobs, their limits, and what is refused."""

import json
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


def test_a_job_is_submitted_watched_and_removed(start: Start) -> None:
    running = start()
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
    running.end(id)
    assert running.ask("DELETE", f"/jobs/{id}").status == 204
    assert running.ask("GET", f"/jobs/{id}").status == 404
    assert not (running.service.directory / "jobs" / id).exists()


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
    refused = running.ask("DELETE", "/data/films")
    assert (refused.status, refused.body) == (
        409, {"error": "a job reads the data set films: wait for its end or cancel it"},
    )  # fmt: skip
    assert running.job(job.id).state == State.QUEUED
    running.end(running.service.queue.jobs()[0].id)
    running.wait(job.id, State.RUNNING)
    assert running.ask("DELETE", "/data/films").status == 409
    running.end(job.id)
    assert running.ask("DELETE", "/data/films").status == 204


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


@pytest.mark.parametrize(
    ("more", "is_sweep"),
    [
        ("-m", True),
        ("+experiment=depth", True),
        ("+experiment=spanbert_recipe", False),
    ],
)
def test_an_experiment_may_be_a_sweep(start: Start, more: str, is_sweep: bool) -> None:
    running = start()
    job = running.submit(*TRAINING, more)
    assert (job.overrides[0] == "-m") == is_sweep
    assert job.overrides.count("-m") == is_sweep


def test_a_form_stands_for_overrides(start: Start) -> None:
    running = start()
    running.ask("PUT", "/data/films?format=csv", FILMS)
    form = {
        "teacher": "minilm", "student": "bilstm", "task": "classification", "data": "films",
        "columns": {"text": ["text"], "label": "label"}, "options": {"trainer.max_epochs": "2", "objective": "hinton"},
    }  # fmt: skip
    answer = running.ask("POST", "/jobs", {"form": form})
    assert answer.status == 201
    assert answer.body["overrides"] == [
        "+teacher=minilm", "+student=bilstm", "task=classification", "task.data_dir='data:films'", "task.text=['text']",
        "task.label='label'", "trainer.max_epochs=2", "objective=hinton",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "the body is no JSON"),
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
        ({"overrides": ["cache_dir=/tmp"]}, 422, "the option cache_dir is for the administrator of the service"),
        ({"form": []}, 422, "got the form"),
        ({"form": {"teacher": "minilm", "depth": 3}}, 422, "got the form"),
        ({"form": {"teacher": "../x", "task": "mrpc"}}, 422, "got teacher='../x' in the form, expected the name of"),
        ({"form": {"teacher": "minilm", "task": "mrpc", "columns": []}}, 201, ""),
        ({"form": {"teacher": "minilm", "task": "mrpc", "columns": [1]}}, 422, "got columns or options of the form"),
    ],
)  # fmt: skip
def test_a_job_that_cannot_be_is_refused(start: Start, body: object, status: int, message: str) -> None:
    running = start()
    answer = running.ask("POST", "/jobs", body)
    assert answer.status == status
    assert message in str(answer.body.get("error"))
    assert len(running.service.queue.jobs()) == (status == 201)


def test_what_the_dry_run_refuses_is_not_submitted(start: Start) -> None:
    running = start()
    running.planner.result = RefusedError(422, "there is no student lstm")
    for path in ("/jobs", "/plan"):
        answer = running.ask("POST", path, {"overrides": TRAINING})
        assert (answer.status, answer.body) == (422, {"error": "there is no student lstm"})
    assert running.service.queue.jobs() == []


def test_an_administrator_names_paths(start: Start) -> None:
    running = start(administrators=("local",))
    assert running.submit(*TRAINING, "teacher.id=owner/name").overrides[-1] == "teacher.id='owner/name'"


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


def test_a_full_queue_is_refused_with_a_time_to_try_again(start: Start) -> None:
    running = start(waiting=1)
    running.wait(running.submit().id, State.RUNNING)
    running.submit()
    answer = running.ask("POST", "/jobs", {"overrides": TRAINING})
    assert (answer.status, answer.headers["retry-after"]) == (503, "60")
    assert answer.body == {"error": "1 jobs are queued, which is the limit: submit it again later"}


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


def test_a_job_is_pinned(start: Start) -> None:
    running = start()
    job = running.submit()
    assert running.ask("PUT", f"/jobs/{job.id}/pin", {"pinned": True}).body["pinned"] is True
    assert running.ask("PUT", f"/jobs/{job.id}/pin", {"pinned": "yes"}).body == {
        "error": """got {'pinned': 'yes'}, expected {"pinned": true} or {"pinned": false}"""
    }
    assert running.job(job.id).pinned


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


def test_hours_count_after_a_job_is_removed(start: Start) -> None:
    running = start()
    job = running.end(running.submit().id)
    before = running.service.usage.hours("local")
    running.ask("DELETE", f"/jobs/{job.id}")
    assert running.service.usage.hours("local") == pytest.approx(before)
    excess = running.service.usage.find_excess(Account("local", hours=0.0))
    assert excess is not None
    assert excess.startswith("local has used 0.0 of 0 hours in 30 days")


def test_a_log_is_read_from_a_byte_on(start: Start) -> None:
    running = start()
    job = running.wait(running.submit().id, State.RUNNING)
    directory = running.service.directory / "jobs" / job.id / "attempts" / "1"
    wait_for(directory.is_dir)
    (directory / "log").write_text("<b>one</b>\ntwo\n")
    answer = running.ask("GET", f"/jobs/{job.id}/log?offset=11")
    assert (answer.body, answer.headers["content-type"]) == ("two\n", "text/plain; charset=utf-8")
    assert running.ask("GET", f"/jobs/{job.id}/log?offset=-1").body == {
        "error": "got offset='-1', expected a number of bytes of at least 0"
    }


def test_a_form_is_offered_what_there_is(start: Start, tmp_path: Path) -> None:
    (tmp_path / "teachers" / "small").mkdir(parents=True)
    offered = start(teachers=tmp_path / "teachers", upload=1000).ask("GET", "/options").body
    names = {group: [one["name"] for one in offered[group]] for group in ("teachers", "students", "tasks", "options")}
    assert "teacher:small" in names["teachers"]
    assert not {"pretrained", "ensemble"} & {*names["teachers"]}
    assert "bilstm" in names["students"]
    assert "trainer.max_epochs" in names["options"]
    assert offered["upload"] == 1000
    assert names["tasks"][0] == "classification"
    tasks = {task["name"]: task for task in offered["tasks"]}
    assert [column["name"] for column in tasks["classification"]["columns"]] == ["text", "label"]
    assert [column["name"] for column in tasks["mlm"]["columns"]] == ["text"]  # Of all tasks on raw text.
    assert not tasks["sst2"]["columns"]  # A data set has its own.
    text, label = tasks["classification"]["columns"]
    assert (text["many"], text["optional"], text["default"]) == (True, False, "text")
    assert (label["many"], label["optional"], label["default"]) == (False, True, "label")


def test_prometheus_reads_the_state_of_jobs(start: Start) -> None:
    running = start()
    running.wait(running.submit().id, State.RUNNING)
    running.submit()
    lines = running.ask("GET", "/metrics").body.splitlines()
    for line in (
        'distill_service_jobs{state="running"} 1.0', 'distill_service_jobs{state="finished"} 0.0',
        "distill_service_queue_length 1.0", 'distill_service_requests_total{status="201"} 2.0',
        "distill_service_children 0.0",
    ):  # fmt: skip
        assert line in lines
    assert any(line.startswith('distill_service_disk_bytes{folder="jobs"}') for line in lines)


def test_a_page_a_description_and_the_health_are_there(start: Start) -> None:
    running = start()
    page = running.ask("GET", "/")
    assert page.body.startswith("<!doctype html>")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert running.ask("GET", "/healthz").body == {"status": "ok"}
    assert "/jobs/{id}/bundle.zip" in running.ask("GET", "/docs").body
    missing = running.ask("GET", "/nothing")
    assert (missing.status, missing.body) == (404, {"error": "GET /nothing: Not Found"})
    assert running.ask("GET", "/jobs", headers={"Host": "evil.example"}).status == 403


def test_a_second_service_on_a_directory_is_refused(start: Start) -> None:
    running = start()
    upload = running.service.data.directory / ".uploads" / "half"
    upload.mkdir()
    service = running.service
    with pytest.raises(UserError, match="is in use by another service: stop it, or give another directory"):
        Service(
            service.directory, service.queue, running.engine, settings=Settings(), accounts=service.accounts
        )  # fmt: skip
    assert upload.is_dir()  # Of the first one, which has not lost it.
