"""Tests of the clean-up by age and size, which leaves what is pinned, read or not ended."""

import json
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from distill.serve.jobs.accounts import DAY_SECONDS, Keeping
from distill.serve.jobs.queue import QueuedJob, State
from tests.serve.jobs.conftest import Running

Start = Callable[..., Running]
FILMS = b"text,label\na lovely film,good\na dull mess,bad\n"


def end_job(running: Running, *overrides: str, size: int = 0) -> QueuedJob:
    """Returns a job that has ended and has left a file."""
    job = running.end(running.submit(*overrides).id)
    path = running.service.directory / "jobs" / job.id / "runs" / "file"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return job


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A function that moves the clock of the clean-up on by some days."""

    def move(days: float) -> None:
        now = time.time() + days * DAY_SECONDS
        monkeypatch.setattr("distill.serve.jobs.accounts.time.time", lambda: now)

    return move


def test_old_jobs_and_data_are_removed_and_others_stay(start: Start, later: Callable[[float], None]) -> None:
    running = start()
    for name in ("read", "pinned", "unused", "used"):
        assert running.ask("PUT", f"/data/{name}?format=csv", FILMS).status == 201
    about = running.service.data.directory / "local" / "used" / "about.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"created": time.time() - 31 * DAY_SECONDS}))
    training = ("+teacher=minilm", "+student=bilstm", "task=classification")
    old = end_job(running)
    pinned = end_job(running, *training, "task.data_dir=data:pinned")
    running.ask("PUT", f"/jobs/{pinned.id}/pin", {"pinned": True})
    used = end_job(running, *training, "task.data_dir=data:used")
    live = running.wait(running.submit(*training, "task.data_dir=data:read").id, State.RUNNING)
    keeping = Keeping(days=30)
    assert running.service.cleanup.run(keeping) == []  # A job has used the old data lately.
    later(31)
    assert set(running.service.cleanup.run(keeping)) == {
        "data set unused of local", "data set used of local", f"job {old.id}", f"job {used.id}",
    }  # fmt: skip
    assert [job.id for job in running.service.queue.jobs()] == [pinned.id, live.id]
    assert [found["name"] for found in running.ask("GET", "/data").body["data"]] == ["pinned", "read"]
    assert not (running.service.directory / "jobs" / old.id).exists()
    running.service.queue.remove(pinned.id)  # As if its removal had been interrupted.
    assert running.service.cleanup.run(Keeping()) == [f"what was left of job {pinned.id}"]
    assert running.service.cleanup.run(Keeping()) == []


def test_the_oldest_are_removed_where_there_is_too_much(start: Start) -> None:
    running = start()
    jobs = [end_job(running, size=10_000) for _ in range(3)]
    running.ask("PUT", f"/jobs/{jobs[0].id}/pin", {"pinned": True})
    usage = running.service.usage
    assert running.service.cleanup.run(Keeping(bytes=sum(map(usage.job_bytes, jobs)))) == []  # As many as are there.
    assert running.service.cleanup.run(Keeping(bytes=25_000)) == [f"job {jobs[1].id}"]
    assert running.service.cleanup.run(Keeping(bytes=25_000)) == []
    assert running.service.cleanup.run(Keeping(bytes=0)) == [f"job {jobs[2].id}"]


def test_hours_are_those_of_the_last_days_and_of_one_owner(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    service, now = start().service, 100 * DAY_SECONDS
    monkeypatch.setattr("distill.serve.jobs.accounts.time.time", lambda: now)
    for owner, first, last in (("ada", 60, 71), ("ada", 98, 99), ("ada", 50, 60), ("ben", 99, 100)):
        job = service.queue.cancel(service.queue.add(owner, []).id)
        service.usage.note(replace(job, started=first * DAY_SECONDS, ended=last * DAY_SECONDS))
    assert service.usage.hours("ada") == pytest.approx(48.0)
    assert service.usage.hours("ben") == pytest.approx(24.0)
