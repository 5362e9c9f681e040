"""Tests of the queue: transactions of several processes, states, fences of attempts, order, and a full disk."""

import multiprocessing
import time
from collections import Counter
from pathlib import Path

import pytest

from distill.core.files import is_full_disk
from distill.serve.jobs.queue import LOSSES, LiveJobError, Queue, QueuedJob, StaleAttemptError, State, UnknownJobError


def claim(queue: Queue) -> QueuedJob:
    job = queue.claim()
    assert job is not None
    return job


def states(queue: Queue, id: str) -> list[str]:
    return [event.data["state"] for event in queue.events(id) if event.kind == "state"]


def test_jobs_are_claimed_in_their_order_also_where_the_clock_jumps(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = []
    for moment in (2000.0, 1000.0, 3000.0):
        monkeypatch.setattr(time, "time", lambda moment=moment: moment)
        added.append(queue.add("ada", []).id)
    assert [job.id for job in queue.jobs()] == added
    assert [claim(queue).id for _ in added] == added
    assert queue.claim() is None
    monkeypatch.setattr(time, "time", lambda: 10.0)
    queue.record(added[0], 1, {"kind": "notice", "text": "after the jump"})
    assert [event.number for event in queue.events(added[0])] == [1, 2, 3]
    assert [event.time for event in queue.events(added[0])] == [2000.0, 3000.0, 10.0]


def test_jobs_are_listed_by_owner_and_state(queue: Queue) -> None:
    added = queue.add("ada", ["task=sst2", "seed=1"], name="films", data=["films"], plan="3 epochs")
    assert queue.get(added.id) == added
    first, second, third = added.id, queue.add("bob", []).id, queue.add("ada", []).id
    claim(queue)
    assert [job.id for job in queue.jobs("ada")] == [first, third]
    assert [job.id for job in queue.jobs(states=[State.QUEUED])] == [second, third]
    assert [job.id for job in queue.jobs("ada", [State.RUNNING, State.CANCELLING])] == [first]


@pytest.mark.parametrize(("end", "error"), [(State.FINISHED, None), (State.FAILED, "error of the run")])
def test_cancelled_failed_and_finished_are_three_states(queue: Queue, end: State, error: str | None) -> None:
    ended, cancelled, queued = (queue.add("ada", []) for _ in range(3))
    claim(queue)
    queue.finish(ended.id, 1, end, error)
    claim(queue)
    assert queue.cancel(cancelled.id).state == State.CANCELLING
    queue.finish(cancelled.id, 1, end, "interrupted")
    assert queue.cancel(queued.id).state == State.CANCELLED
    for job in (ended, cancelled, queued):
        queue.cancel(job.id)  # It changes no end.
    found = queue.get(ended.id), queue.get(cancelled.id)
    assert [job and (job.state, job.error) for job in found] == [(end, error), (State.CANCELLED, None)]
    assert states(queue, ended.id) == ["queued", "running", end]
    assert states(queue, cancelled.id) == ["queued", "running", "cancelling", "cancelled"]
    assert states(queue, queued.id) == ["queued", "cancelled"]
    with pytest.raises(UnknownJobError, match="there is no job nobody"):
        queue.cancel("nobody")


def test_writes_of_a_stale_attempt_are_refused(queue: Queue) -> None:
    job = queue.add("ada", [])
    claim(queue)
    queue.requeue(job.id, 1, begun=True)
    claim(queue)
    before = queue.events(job.id)
    for write in (
        lambda: queue.record(job.id, 1, {"kind": "step", "step": 1}),
        lambda: queue.finish(job.id, 1, State.FINISHED),
        lambda: queue.requeue(job.id, 1, begun=True),
    ):
        with pytest.raises(StaleAttemptError, match=f"attempt 1 of job {job.id} is over: the job is running with"):
            write()
    assert queue.events(job.id) == before
    queue.finish(job.id, 2, State.FINISHED)
    with pytest.raises(StaleAttemptError, match="the job is finished with attempt 2"):
        queue.finish(job.id, 2, State.FAILED)


def test_a_retry_keeps_the_id_and_counts_on(queue: Queue) -> None:
    job, other = queue.add("ada", ["seed=1"]), queue.add("ada", [])
    claim(queue)
    with pytest.raises(LiveJobError, match="is running: only one that failed or was cancelled is tried again"):
        queue.retry(job.id)
    queue.record(job.id, 1, {"kind": "metrics", "metrics": {"dev/accuracy": 0.5}})
    queue.record(job.id, 1, {"kind": "stage", "stage": "training", "progress": 0.5, "seconds_left": 9.0})
    failed = queue.finish(job.id, 1, State.FAILED, "no memory")
    assert (failed.stage, failed.progress, failed.seconds_left) == ("training", 0.5, None)
    again = queue.retry(job.id)
    assert (again.id, again.state, again.error, again.metrics) == (job.id, State.QUEUED, None, {})
    assert (again.stage, again.progress, again.started, again.ended) == (None, None, None, None)
    assert claim(queue).id == other.id, "a retry is at the end of the queue"
    assert (claim(queue).id, queue.get(job.id).attempt) == (job.id, 2)  # type: ignore[union-attr]
    queue.finish(job.id, 2, State.FINISHED)
    with pytest.raises(LiveJobError, match="is finished"):
        queue.retry(job.id)


def test_a_lost_attempt_returns_to_its_place_a_few_times_and_anew_after_a_retry(queue: Queue) -> None:
    job = queue.add("ada", [])
    queue.add("ada", [])
    for begun in (False, False, *[True] * LOSSES):
        lost = claim(queue)
        assert lost.id == job.id
        assert queue.requeue(job.id, lost.attempt, begun=begun).state == State.QUEUED
    failed = queue.requeue(job.id, claim(queue).attempt, begun=True)
    assert (failed.state, failed.error) == (State.FAILED, f"its processes were lost {LOSSES + 1} times")
    queue.retry(job.id)
    claim(queue)  # The other one.
    assert queue.requeue(job.id, claim(queue).attempt, begun=True).state == State.QUEUED
    attempt = claim(queue).attempt
    queue.cancel(job.id)
    assert queue.requeue(job.id, attempt, begun=True).state == State.CANCELLED
    assert queue.claim() is None


def test_events_update_the_job_and_are_read_from_a_number_on(queue: Queue) -> None:
    job = queue.add("ada", [])
    claim(queue)
    queue.record(
        job.id, 1, {"kind": "stage", "stage": "training", "progress": 0.25, "seconds_left": 60.0, "time": 5.0},
        {"kind": "step", "step": 1, "loss": 0.5}, {"kind": "metrics", "step": 1, "metrics": {"dev/accuracy": 0.5}},
        {"kind": "metrics", "step": 2, "metrics": {"dev/accuracy": 0.75, "dev/f1": 0.25}}, offset=321,
    )  # fmt: skip
    found = queue.get(job.id)
    assert found is not None
    assert (found.stage, found.progress, found.seconds_left) == ("training", 0.25, 60.0)
    assert found.metrics == {"dev/accuracy": 0.75, "dev/f1": 0.25}
    assert queue.offset(job.id) == 321
    events = queue.events(job.id, after=3)
    assert [(event.number, event.kind) for event in events] == [(4, "step"), (5, "metrics"), (6, "metrics")]
    assert events[0].data == {"step": 1, "loss": 0.5}
    assert [event.number for event in queue.events(job.id, limit=2)] == [1, 2]
    assert queue.events(job.id)[2].time == 5.0
    queue.record(job.id, 1, {"kind": "step", "stage": "no stage", "progress": 0.5, "seconds_left": 40.0})
    found = queue.get(job.id)
    assert found is not None
    assert (found.stage, found.progress, found.seconds_left) == ("training", 0.5, 40.0)


def test_a_job_is_removed_with_its_events_when_it_has_ended(queue: Queue) -> None:
    job = queue.add("ada", [])
    with pytest.raises(LiveJobError, match=f"job {job.id} is queued: cancel it before it is removed"):
        queue.remove(job.id)
    assert queue.pin(job.id, True).pinned
    queue.cancel(job.id)
    queue.remove(job.id)
    assert queue.get(job.id) is None
    assert queue.events(job.id) == []


def _write(path: Path, jobs: int) -> list[tuple[str, int]]:
    """Adds, claims, records and finishes jobs from a process, and returns what it has claimed."""
    queue = Queue(path, limit=10_000)
    claimed = []
    for _ in range(jobs):
        queue.add("ada", [])
        job = claim(queue)
        queue.record(job.id, job.attempt, {"kind": "step", "step": 1})
        queue.finish(job.id, job.attempt, State.FINISHED)
        claimed.append((job.id, job.attempt))
    queue.close()
    return claimed


def test_processes_that_write_never_meet_a_locked_file_and_claim_each_job_once(tmp_path: Path) -> None:
    path, jobs, writers = tmp_path / "jobs.sqlite", 25, 2
    with multiprocessing.get_context("spawn").Pool(writers) as pool:  # They create the file at once too.
        claimed = [job for part in pool.starmap(_write, [(path, jobs)] * writers) for job in part]
    assert len(claimed) == len(set(claimed)) == jobs * writers
    queue = Queue(path)
    assert Counter(job.state for job in queue.jobs()) == {State.FINISHED: jobs * writers}
    for id, _ in claimed:
        assert [event.number for event in queue.events(id)] == [1, 2, 3, 4]
    queue.close()


def test_a_full_disk_is_reported_as_one_and_nothing_is_half_written(queue: Queue) -> None:
    job = queue.add("ada", [])
    claim(queue)
    pages = queue._connection.execute("pragma page_count").fetchone()[0]
    queue._connection.execute(f"pragma max_page_count = {pages}")
    before = queue.events(job.id)
    with pytest.raises(OSError, match="No space left on device") as caught:
        queue.record(job.id, 1, {"kind": "notice", "text": "first"}, {"kind": "notice", "text": "x" * 100_000})
    assert is_full_disk(caught.value)
    assert queue.events(job.id) == before
    queue._connection.execute(f"pragma max_page_count = {pages + 100}")
    queue.record(job.id, 1, {"kind": "notice", "text": "x" * 100_000})
    assert len(queue.events(job.id)) == len(before) + 1
