"""Tests of the dispatcher, step by step with an engine of the tests: ends, lost attempts, restarts, events, errors."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distill.core.errors import UserError
from distill.serve.jobs.attempts import Attempt, Dispatcher, build_command, read_log
from distill.serve.jobs.queue import Queue, QueuedJob, State
from tests.serve.jobs.conftest import FakeEngine
from tests.serve.jobs.programs import run_override

Create = Callable[..., Dispatcher]


@pytest.fixture
def engine(tmp_path: Path) -> FakeEngine:
    return FakeEngine(tmp_path)


@pytest.fixture
def create(tmp_path: Path, queue: Queue, engine: FakeEngine) -> Create:
    """Creates a dispatcher of the queue, as after a restart, whose steps a test takes."""
    return lambda workers=1: Dispatcher(queue, engine, tmp_path, workers, build_command=run_override)


def find(queue: Queue, job: QueuedJob) -> QueuedJob:
    found = queue.get(job.id)
    assert found is not None
    return found


def write_events(attempt: Attempt, *events: object) -> None:
    with open(attempt.events, "a") as file:
        file.write("".join(f"{event if isinstance(event, str) else json.dumps(event)}\n" for event in events))


@pytest.mark.parametrize(
    ("code", "error", "is_cancelled", "state"),
    [
        (0, None, False, State.FINISHED),
        (2, "there is no task x", False, State.FAILED),
        (130, None, False, State.RUNNING),  # The machine has stopped it, and its second attempt has begun.
        (-15, None, False, State.RUNNING),
        (-15, None, True, State.CANCELLED),
        (0, None, True, State.CANCELLED),  # It was exporting, and had no more steps at which it would stop.
    ],
)
def test_a_job_ends_in_one_of_three_states_or_goes_on(
    queue: Queue, engine: FakeEngine, create: Create, code: int, error: str | None, is_cancelled: bool, state: State
) -> None:
    job, dispatcher = queue.add("ada", ["program"]), create()
    dispatcher._step()
    engine.end(f"{job.id}/1", code, error)
    if is_cancelled:
        queue.cancel(job.id)
    dispatcher._step()
    found = find(queue, job)
    assert (found.state, found.error, found.attempt) == (state, error, 2 if state == State.RUNNING else 1)


def test_as_many_jobs_run_as_there_are_workers_and_a_drained_dispatcher_starts_none(
    queue: Queue, engine: FakeEngine, create: Create
) -> None:
    jobs, dispatcher = [queue.add("ada", [f"program {number}"]) for number in range(5)], create(2)
    assert dispatcher._step() == engine.seconds_between_checks
    assert [json.loads(attempt.work.read_text())["command"][-1] for attempt in engine.works] == [
        "program 0",
        "program 1",
    ]
    assert not dispatcher.drain(0.0)
    for job in jobs[:2]:
        engine.end(f"{job.id}/1", 0)
        dispatcher._step()
    assert dispatcher.drain(0.0) is False  # Before the next step.
    assert dispatcher._step() is None
    assert dispatcher._idle.is_set()
    assert [find(queue, job).state for job in jobs] == [State.FINISHED] * 2 + [State.QUEUED] * 3
    with pytest.raises(UserError, match="got 0 workers, expected at least 1"):
        create(0)


def test_a_restart_follows_what_runs_and_records_what_has_ended(
    queue: Queue, engine: FakeEngine, create: Create
) -> None:
    running, ended = queue.add("ada", ["a"]), queue.add("ada", ["b"])
    create(2)._step()
    engine.end(f"{ended.id}/1", 0)
    dispatcher = create(2)
    dispatcher._step()
    assert [find(queue, job).state for job in (running, ended)] == [State.RUNNING, State.FINISHED]
    engine.end(f"{running.id}/1", 0)
    dispatcher._step()
    assert (find(queue, running).state, find(queue, running).attempt) == (State.FINISHED, 1)
    assert len(engine.works) == 2


def test_a_lost_attempt_is_over_for_good_and_tried_again(queue: Queue, engine: FakeEngine, create: Create) -> None:
    job, dispatcher = queue.add("ada", ["program"]), create()
    dispatcher._step()
    engine.lost.add(f"{job.id}/1")
    dispatcher._step()
    assert engine.cancelled == [f"{job.id}/1"]  # It may have left processes.
    assert Attempt(engine.directory, job.id, 1).state() == "lost"
    dispatcher._step()
    engine.end(f"{job.id}/2", 0)
    dispatcher._step()
    assert [event.data["state"] for event in queue.events(job.id)] == [
        "queued", "running", "queued", "running", "finished"
    ]  # fmt: skip


def test_a_job_is_cancelled_while_it_is_submitted(
    queue: Queue, engine: FakeEngine, create: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, dispatcher, submit = queue.add("ada", ["program"]), create(), engine.submit

    def submit_late(attempt: Attempt, *work: Any) -> None:
        assert queue.cancel(job.id).state == State.CANCELLING
        submit(attempt, *work)

    monkeypatch.setattr(engine, "submit", submit_late)
    for _ in range(3):
        dispatcher._step()
    assert find(queue, job).state == State.CANCELLED
    assert engine.cancelled == [f"{job.id}/1"]


def test_the_logs_of_all_attempts_are_read_one_after_the_other(tmp_path: Path) -> None:
    for number, content in enumerate((b"begun\n", b"", b"again\n"), start=1):
        attempt = Attempt(tmp_path, "a", number)
        attempt.path.mkdir(parents=True)
        attempt.log.write_bytes(content)
    assert read_log(tmp_path, "a") == b"begun\nagain\n"
    assert read_log(tmp_path, "a", offset=3, limit=5) == b"un\nag"
    assert read_log(tmp_path, "a", offset=12) == b""


def test_events_of_the_command_reach_the_queue_once_each(
    queue: Queue, engine: FakeEngine, create: Create, tmp_path: Path
) -> None:
    steps = [{"kind": "step", "step": step, "loss": 1 / step, "time": float(step)} for step in range(1, 6)]
    job, dispatcher = queue.add("ada", ["program"]), create()
    dispatcher._step()
    attempt = Attempt(tmp_path, job.id, 1)
    write_events(attempt, *steps[:3])
    with open(attempt.events, "a") as file:
        file.write('{"kind": "step", "step"')  # It is still being written.
    dispatcher._step()
    assert len(queue.events(job.id)) == 5
    with open(attempt.events, "a") as file:
        file.write(": 4}\n")
    write_events(attempt, steps[4], {"kind": "metrics", "step": 5, "metrics": {"dev/accuracy": 0.75}})
    engine.end(f"{job.id}/1", 0)
    create()._step()
    assert find(queue, job).metrics == {"dev/accuracy": 0.75}
    found = [event for event in queue.events(job.id) if event.kind != "state"]
    assert [event.data.get("step") for event in found] == [1, 2, 3, 4, 5, 5]
    assert [event.time for event in found[:3]] == [1, 2, 3]
    assert queue.events(job.id)[-1].data["state"] == "finished"


def test_lines_that_are_no_events_are_left_out(queue: Queue, create: Create, tmp_path: Path) -> None:
    job, dispatcher = queue.add("ada", ["program"]), create()
    dispatcher._step()
    write_events(
        Attempt(tmp_path, job.id, 1),
        "no json", "[1]", {"step": 1}, {"kind": 5}, {"kind": "state", "state": "finished"}, "\x00", "x" * 2_000_000,
        {"kind": "stage", "stage": "training", "progress": "all"}, {"kind": "stage", "stage": ["a"]},
        {"kind": "metrics", "metrics": [1]}, {"kind": "metrics", "metrics": {"a": {}}},
        '{"kind": "step", "loss": NaN, "time": NaN}', {"kind": "notice", "text": "last"},
    )  # fmt: skip
    dispatcher._step()
    found = [event for event in queue.events(job.id) if event.kind != "state"]
    assert [(event.kind, event.data) for event in found] == [("step", {"loss": None}), ("notice", {"text": "last"})]
    assert time.time() - found[0].time < 60


def test_others_are_followed_while_the_disk_refuses_the_news_of_a_job(
    queue: Queue, engine: FakeEngine, create: Create, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    job, other, dispatcher, record = queue.add("ada", ["a"]), queue.add("ada", ["b"]), create(2), queue.record
    dispatcher._step()

    def refuse(id: str, *arguments: object, **options: object) -> None:
        if id == job.id:
            raise OSError(28, "No space left on device")
        record(id, *arguments, **options)  # type: ignore[arg-type]

    for ending in (job, other):
        write_events(Attempt(engine.directory, ending.id, 1), {"kind": "notice", "text": "room"})
        engine.end(f"{ending.id}/1", 0)
    with monkeypatch.context() as patch:
        patch.setattr(queue, "record", refuse)
        for _ in range(3):
            dispatcher._step()
    assert [find(queue, one).state for one in (job, other)] == [State.RUNNING, State.FINISHED]
    warning = f"warning: job {job.id} cannot be followed: [Errno 28] No space left on device"
    assert capfd.readouterr().err.count(warning) == 1
    dispatcher._step()
    assert find(queue, job).state == State.FINISHED


@pytest.mark.parametrize(
    ("error", "state", "shown"),
    [
        (UserError("Ray refuses the job"), State.FAILED, "Ray refuses the job"),
        (ConnectionError("Ray does not reply"), State.RUNNING, None),
    ],
)
def test_a_job_that_is_never_taken_fails_and_one_whose_cluster_is_away_is_submitted_again(
    queue: Queue, engine: FakeEngine, create: Create, monkeypatch: pytest.MonkeyPatch, error: Exception, state: State,
    shown: str | None,
) -> None:  # fmt: skip
    job, dispatcher = queue.add("ada", ["program"]), create()

    def refuse(attempt: Attempt, *work: object) -> None:
        engine.lost.add(attempt.name)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(engine, "submit", refuse)
        dispatcher._step()
    for _ in range(2):  # It is closed, and begins anew.
        dispatcher._step()
    assert (find(queue, job).state, find(queue, job).error) == (state, shown)


def test_the_command_has_the_directories_of_the_job_and_resumes_its_run(tmp_path: Path, queue: Queue) -> None:
    job = queue.add("ada", ["task=sst2", "seed=1", "trust=[me]"])
    attempt = Attempt(tmp_path, job.id, 1)
    runs = attempt.job_directory / "runs"
    program, places = (sys.executable, "-m", "distill"), (f"output_dir={runs}", f"cache_dir={tmp_path / 'cache'}")
    assert build_command(job, attempt) == (*program, *job.overrides, *places)
    run = runs / "sst2" / "a-b" / "1"
    run.mkdir(parents=True)
    (run / "run.json").touch()
    assert build_command(job, attempt) == (*program, *job.overrides, *places), "the run has no configuration yet"
    (run / "config.yaml").touch()
    assert build_command(job, attempt) == (*program, f"resume={run}", "trust=[me]")
    own = queue.add("root", ["cache_dir=/cache"])
    assert build_command(own, Attempt(tmp_path, own.id, 1))[3:] == (
        "cache_dir=/cache", f"output_dir={tmp_path / 'jobs' / own.id / 'runs'}"
    )  # fmt: skip


def test_a_sweep_goes_on_in_its_directory(tmp_path: Path, queue: Queue) -> None:
    job = queue.add("ada", ["-m", "seed=1,2"])
    attempt = Attempt(tmp_path, job.id, 1)
    runs = attempt.job_directory / "runs"
    command = build_command(job, attempt)
    assert command[3:] == (
        "-m", "seed=1,2", f"output_dir={runs}", f"cache_dir={tmp_path / 'cache'}", f"hydra.sweep.dir={runs / 'sweep'}"
    )  # fmt: skip
    run = runs / "sst2" / "a-b" / "1"
    run.mkdir(parents=True)
    for name in ("run.json", "config.yaml"):
        (run / name).touch()
    assert build_command(job, attempt) == (*command, "resume=true")
