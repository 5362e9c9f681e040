"""What people use of the service: bytes on the disk and hours of their jobs."""

import json
import os
import time
from pathlib import Path

from distill.service.accounts import Account
from distill.service.data_sets import DataSets
from distill.service.engine import job_directory
from distill.service.queue import LIVE, Job, Queue, State

WINDOW_SECONDS = 30 * 24 * 3600.0  # Of the hours of an account.
LEDGER = "spent.jsonl"  # In the directory of the service: the time of attempts whose job has no record of it any more.


def count_bytes(directory: Path) -> int:
    """Returns the bytes of all files below a directory; what vanishes meanwhile counts as nothing."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue
    return total


class Usage:
    """Measures what owners use.

    Args:
        directory: of the service.
    """

    def __init__(self, directory: Path, queue: Queue, data: DataSets) -> None:
        self.directory, self._queue, self._data = directory, queue, data
        self._sizes: dict[tuple[str, int], int] = {}  # Of ended jobs, which do not change, by id and attempt.

    def job_bytes(self, job: Job) -> int:
        """Returns the bytes of a job's directory."""
        key = (job.id, job.attempt)
        if job.state.is_end and key in self._sizes:
            return self._sizes[key]
        size = count_bytes(job_directory(self.directory, job.id))
        if job.state.is_end:
            self._sizes[key] = size
        return size

    def disk(self, owner: str) -> int:
        """Returns the bytes of an owner's data sets and jobs."""
        return self._data.used(owner) + sum(map(self.job_bytes, self._queue.jobs(owner)))

    def hours(self, owner: str) -> float:
        """Returns the hours that the jobs of an owner have run in the last 30 days."""
        now = time.time()
        spans = [(job.started, job.ended or now) for job in self._queue.jobs(owner) if job.started is not None]
        seconds = sum(max(0.0, end - max(start, now - WINDOW_SECONDS)) for start, end in [*spans, *self._read(owner)])
        return seconds / 3600.0

    def find_excess(self, account: Account) -> str | None:
        """Returns which limit keeps an account from another job, None if none does."""
        jobs = len(self._queue.jobs(account.name, (State.QUEUED, *LIVE)))
        disk = 0 if account.disk is None else self.disk(account.name)
        hours = 0.0 if account.hours is None else self.hours(account.name)
        return account.find_excess(jobs=jobs, disk=disk, hours=hours)

    def note(self, job: Job) -> None:
        """Keeps the time of a job's last attempt, before the job is removed or tried again."""
        self._sizes.pop((job.id, job.attempt), None)
        if job.started is None or job.ended is None:
            return
        line = json.dumps({"owner": job.owner, "started": job.started, "ended": job.ended})
        with open(self.directory / LEDGER, "a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def _read(self, owner: str) -> list[tuple[float, float]]:
        path = self.directory / LEDGER
        if not path.is_file():
            return []
        spans = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:  # It was cut off by a full disk.
                continue
            if entry["owner"] == owner:
                spans.append((entry["started"], entry["ended"]))
        return spans
