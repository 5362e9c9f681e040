"""The durable queue of jobs and their events, in one SQLite file.

Several threads and processes may use a file at once: each write is one transaction that waits for the others. The file
must be on a disk of this machine, because SQLite's write-ahead log needs shared memory.
"""

import errno
import json
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from distill.core import files
from distill.core.errors import UserError

WAIT_SECONDS = 60.0  # For the write of another process.
LIMIT = 100  # Queued jobs.
LOSSES = 3  # Attempts of a job that may be lost in a row; it fails with the next one.
EventData = Mapping[str, Any]
_SCHEMA = """
create table if not exists jobs (
    number integer primary key autoincrement, id text not null unique, owner text not null, name text,
    overrides text not null, data text not null, state text not null, attempt integer not null, losses integer not null,
    place integer not null, offset integer not null, created real not null, started real, ended real, stage text,
    progress real, seconds_left real, metrics text not null, error text, pinned integer not null, plan text not null
);
create index if not exists jobs_by_state on jobs (state, place);
create table if not exists events (
    job integer not null references jobs (number) on delete cascade, number integer not null, time real not null,
    attempt integer not null, kind text not null, data text not null, primary key (job, number)
) without rowid;
"""


class State(StrEnum):
    """The state of a job. The last three are ends."""

    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    FAILED = "failed"
    FINISHED = "finished"

    @property
    def is_end(self) -> bool:
        """Whether a job of this state has ended."""
        return self in ENDS


ENDS = frozenset({State.CANCELLED, State.FAILED, State.FINISHED})
LIVE = (State.RUNNING, State.CANCELLING)


@dataclass(frozen=True)
class QueuedJob:
    """A job as it stands in the queue.

    Args:
        data: names of the data sets that it reads.
        attempt: number of the attempt that runs or ran last; 0 before the first.
        created: when it was submitted, in seconds since 1970. `started` and `ended` are those of the last attempt.
        progress: share of the work that is done, 0 to 1.
        error: one line.
        pinned: whether clean-ups leave it.
        plan: the summary of its dry run.
    """

    id: str
    owner: str
    name: str | None
    overrides: tuple[str, ...]
    data: tuple[str, ...]
    state: State
    attempt: int
    created: float
    started: float | None
    ended: float | None
    stage: str | None
    progress: float | None
    seconds_left: float | None
    metrics: Mapping[str, float]
    error: str | None
    pinned: bool
    plan: str


@dataclass(frozen=True)
class JobEvent:
    """An event of a job. Numbers begin at 1 and increase by 1, so that they give the order, which times do not."""

    number: int
    time: float
    attempt: int
    kind: str
    data: Mapping[str, Any]


class FullQueueError(UserError):
    """A queue that takes no more jobs for now."""


class UnknownJobError(UserError):
    """An id that no job has."""


class LiveJobError(UserError):
    """A job that has not ended, where only one that has ended will do, or the reverse."""


class StaleAttemptError(UserError):
    """A write of an attempt that is not the current one of its job, or has ended."""


class Queue:
    """The jobs of a service, oldest first.

    Args:
        path: the SQLite file, which is created if it is missing.
        limit: largest number of queued jobs.
    """

    def __init__(self, path: Path, *, limit: int = LIMIT) -> None:
        self.limit = limit
        self._mutex = threading.RLock()
        path.parent.mkdir(parents=True, exist_ok=True)
        # SQLite does not wait for another process while it changes the kind of log.
        setup = files.acquire_lock(path.with_name(f"{path.name}.setup"), wait=True)
        try:
            self._connection = sqlite3.connect(
                path, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._connection.row_factory = sqlite3.Row
            self._connection.execute("pragma journal_mode = wal")
            self._connection.execute("pragma synchronous = full")
            self._connection.execute("pragma foreign_keys = on")
            self._connection.executescript(_SCHEMA)
        finally:
            files.release_lock(setup)

    def close(self) -> None:
        """Closes the file."""
        with self._mutex:
            self._connection.close()

    def add(
        self, owner: str, overrides: Collection[str], *, name: str | None = None, data: Collection[str] = (),
        plan: str = "",
    ) -> QueuedJob:  # fmt: skip
        """Adds a job to the end of the queue.

        Raises:
            FullQueueError: if as many jobs as `limit` are queued.
            OSError: with ENOSPC if the disk is full, as all other writes do.
        """
        identity = secrets.token_hex(6)
        with self._writing():
            [(queued,)] = self._query("select count(*) from jobs where state = ?", State.QUEUED)
            if queued >= self.limit:
                raise FullQueueError(f"{queued} jobs are queued, which is the limit: submit it again later")
            self._connection.execute(
                "insert into jobs (id, owner, name, overrides, data, state, attempt, losses, place, offset, created, "
                "metrics, pinned, plan) values (?, ?, ?, ?, ?, ?, 0, 0, ?, 0, ?, '{}', 0, ?)",
                (
                    identity, owner, name, json.dumps(list(overrides)), json.dumps(list(data)), State.QUEUED,
                    self._next_place(), time.time(), plan,
                ),
            )  # fmt: skip
            return self._note_state(identity)

    def get(self, id: str) -> QueuedJob | None:
        """Returns the job with an id, None if there is none."""
        rows = self._query("select * from jobs where id = ?", id)
        return _read_job(rows[0]) if rows else None

    def jobs(self, owner: str | None = None, states: Collection[State] | None = None) -> list[QueuedJob]:
        """Returns the jobs of an owner, None for all, that are in one of the states, None for any, oldest first."""
        wanted = list(State) if states is None else list(states)
        query = f"select * from jobs where state in ({', '.join('?' * len(wanted))})"
        values: list[str] = [*wanted]
        if owner is not None:
            query += " and owner = ?"
            values.append(owner)
        return [_read_job(row) for row in self._query(f"{query} order by number", *values)]

    def cancel(self, id: str) -> QueuedJob:
        """Cancels a job: a queued one at once, while one that runs is `cancelling` until its processes have ended.

        A job that has ended stays as it is.
        """
        with self._writing():
            job = self._find(id)
            if job.state == State.QUEUED:
                self._set(id, state=State.CANCELLED, ended=time.time())
            elif job.state == State.RUNNING:
                self._set(id, state=State.CANCELLING)
            else:
                return job
            return self._note_state(id)

    def retry(self, id: str) -> QueuedJob:
        """Queues a job again that failed or was cancelled, under the same id.

        Raises:
            LiveJobError: if it is queued, runs, or has finished.
        """
        with self._writing():
            job = self._find(id)
            if job.state not in (State.FAILED, State.CANCELLED):
                raise LiveJobError(f"job {id} is {job.state}: only one that failed or was cancelled is tried again")
            self._set(
                id, state=State.QUEUED, losses=0, place=self._next_place(), started=None, ended=None,
                error=None, **_NO_PROGRESS,
            )  # fmt: skip
            return self._note_state(id)

    def pin(self, id: str, pinned: bool) -> QueuedJob:
        """Sets whether clean-ups leave a job."""
        with self._writing():
            self._find(id)
            self._set(id, pinned=int(pinned))
            return self._find(id)

    def remove(self, id: str) -> None:
        """Removes a job that has ended, with its events.

        Raises:
            LiveJobError: if it has not ended.
        """
        with self._writing():
            job = self._find(id)
            if not job.state.is_end:
                raise LiveJobError(f"job {id} is {job.state}: cancel it before it is removed")
            self._connection.execute("delete from jobs where id = ?", (id,))

    def claim(self) -> QueuedJob | None:
        """Takes the first job of the queue, which begins its next attempt; None if no job is queued."""
        with self._writing():
            rows = self._query("select id, attempt from jobs where state = ? order by place limit 1", State.QUEUED)
            if not rows:
                return None
            id, attempt = rows[0]
            self._set(
                id, state=State.RUNNING, attempt=attempt + 1, offset=0, started=time.time(),
                **_NO_PROGRESS,
            )  # fmt: skip
            return self._note_state(id)

    def record(self, id: str, attempt: int, *events: EventData, offset: int | None = None) -> None:
        """Adds events of the current attempt, which have a `kind`, and where it is known a `time`.

        Args:
            offset: number of bytes of the attempt's file of events that are read with these ones.

        Raises:
            StaleAttemptError: if the attempt is not the current one or has ended. Nothing is written then.
        """
        with self._writing():
            self._check_attempt(id, attempt)
            for event in events:
                self._append(id, attempt, event)
            if offset is not None:
                self._set(id, offset=offset)

    def offset(self, id: str) -> int:
        """Returns the number of bytes of the current attempt's file of events that are recorded."""
        rows = self._query("select offset from jobs where id = ?", id)
        return int(rows[0]["offset"]) if rows else 0

    def finish(self, id: str, attempt: int, state: State, error: str | None = None) -> QueuedJob:
        """Ends the current attempt, and with it the job. One that is being cancelled ends as cancelled.

        Raises:
            StaleAttemptError: if the attempt is not the current one or has ended.
        """
        with self._writing():
            if self._check_attempt(id, attempt).state == State.CANCELLING:
                state, error = State.CANCELLED, None
            self._set(id, state=state, ended=time.time(), error=error, seconds_left=None)
            return self._note_state(id)

    def requeue(self, id: str, attempt: int, *, begun: bool) -> QueuedJob:
        """Returns a job whose attempt was lost to its place in the queue. One that is being cancelled is cancelled.

        Args:
            begun: whether the attempt had begun. The job fails when it has lost more than `LOSSES` of such attempts.

        Raises:
            StaleAttemptError: if the attempt is not the current one or has ended.
        """
        with self._writing():
            if self._check_attempt(id, attempt).state == State.CANCELLING:
                return self.finish(id, attempt, State.CANCELLED)
            [(lost,)] = self._query("select losses from jobs where id = ?", id)
            lost += begun
            if lost > LOSSES:
                return self.finish(id, attempt, State.FAILED, f"its processes were lost {lost} times")
            self._set(id, state=State.QUEUED, losses=lost, started=None, **_NO_PROGRESS)
            return self._note_state(id)

    def events(self, id: str, after: int = 0, limit: int = 1000) -> list[JobEvent]:
        """Returns the events of a job whose numbers are above `after`, the first `limit` of them."""
        rows = self._query(
            "select events.* from events join jobs on jobs.number = events.job where jobs.id = ? "
            "and events.number > ? order by events.number limit ?", id, after, limit,
        )  # fmt: skip
        return [
            JobEvent(row["number"], row["time"], row["attempt"], row["kind"], json.loads(row["data"])) for row in rows
        ]

    def _query(self, query: str, *values: object) -> list[sqlite3.Row]:
        with self._mutex:
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Begins a transaction, which a nested call joins, and commits it at the end."""
        with self._mutex:
            if self._connection.in_transaction:
                yield
                return
            try:
                self._connection.execute("begin immediate")
                yield
                self._connection.execute("commit")
            except BaseException as error:
                if self._connection.in_transaction:
                    self._connection.execute("rollback")
                if isinstance(error, sqlite3.OperationalError) and "disk is full" in str(error):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
                raise

    def _find(self, id: str) -> QueuedJob:
        job = self.get(id)
        if job is None:
            raise UnknownJobError(f"there is no job {id}")
        return job

    def _check_attempt(self, id: str, attempt: int) -> QueuedJob:
        job = self._find(id)
        if job.attempt != attempt or job.state not in LIVE:
            raise StaleAttemptError(
                f"attempt {attempt} of job {id} is over: the job is {job.state} with attempt {job.attempt}"
            )
        return job

    def _next_place(self) -> int:
        return int(self._query("select coalesce(max(place), 0) + 1 from jobs")[0][0])

    def _set(self, id: str, **values: object) -> None:
        names = ", ".join(f"{name} = ?" for name in values)
        self._connection.execute(f"update jobs set {names} where id = ?", (*values.values(), id))

    def _note_state(self, id: str) -> QueuedJob:
        """Adds the event of a new state and returns the job."""
        job = self._find(id)
        self._append(id, job.attempt, {"kind": "state", "state": job.state, "attempt": job.attempt, "error": job.error})
        return job

    def _append(self, id: str, attempt: int, event: EventData) -> None:
        data = {key: value for key, value in event.items() if key not in ("kind", "time")}
        kind, moment = str(event["kind"]), float(event.get("time") or time.time())
        self._connection.execute(
            "insert into events select jobs.number, 1 + coalesce((select max(number) from events "
            "where job = jobs.number), 0), ?, ?, ?, ? from jobs where id = ?",
            (moment, attempt, kind, json.dumps(data), id),
        )  # fmt: skip
        news: dict[str, Any] = {
            key: data[key]
            for key in ("stage", "progress", "seconds_left")
            if key in data and (kind == "stage" or (kind == "step" and key != "stage"))
        }
        if kind == "metrics":
            news["metrics"] = json.dumps({**self._find(id).metrics, **data.get("metrics", {})})
        if news:
            self._set(id, **news)


_NO_PROGRESS: Mapping[str, Any] = {"stage": None, "progress": None, "seconds_left": None, "metrics": "{}"}


def _read_job(row: sqlite3.Row) -> QueuedJob:
    values = {field.name: row[field.name] for field in fields(QueuedJob)}
    for name in ("overrides", "data"):
        values[name] = tuple(json.loads(values[name]))
    values |= {"state": State(row["state"]), "metrics": json.loads(row["metrics"]), "pinned": bool(row["pinned"])}
    return QueuedJob(**values)
