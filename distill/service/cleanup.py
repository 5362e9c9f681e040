"""Removes jobs and data sets that are old, or more than the disk is to hold. Pinned jobs and what they read stay."""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from distill.serve.refusals import RefusedError
from distill.service.data_sets import DataSets
from distill.service.engine import job_directory
from distill.service.queue import Job, LiveJobError, Queue, UnknownJobError
from distill.service.usage import Usage

DAY_SECONDS = 24 * 3600.0


@dataclass(frozen=True)
class Keeping:
    """How much is kept.

    Args:
        days: after its end that a job is kept, and after their last use data sets; None for ever.
        bytes: of jobs and data sets together, of which the oldest are removed; None for any number.
    """

    days: float | None = None
    bytes: int | None = None


class Cleanup:
    """Removes jobs and data sets.

    Args:
        directory: of the service.
    """

    def __init__(self, directory: Path, queue: Queue, data: DataSets, usage: Usage) -> None:
        self.directory, self._queue, self._data, self._usage = directory, queue, data, usage

    def remove(self, job: Job) -> None:
        """Removes a job that has ended with its files.

        Raises:
            LiveJobError: if it has not ended.
        """
        self._queue.remove(job.id)  # First, so that a removal that is interrupted leaves no job without files.
        self._usage.note(job)
        shutil.rmtree(job_directory(self.directory, job.id), ignore_errors=True)

    def run(self, keeping: Keeping) -> list[str]:
        """Removes what is too old or too much; returns what was removed, in words."""
        removed = self._remove_leftovers()
        oldest = time.time() - (keeping.days or 0.0) * DAY_SECONDS
        total = self._total() if keeping.bytes is not None else 0
        for moment, size, remove, title in sorted(self._candidates(), key=lambda candidate: candidate[0]):
            is_old = keeping.days is not None and moment < oldest
            if not is_old and not (keeping.bytes is not None and total > keeping.bytes):
                continue
            if remove():
                total -= size
                removed.append(title)
        return removed

    def _total(self) -> int:
        owners = self._owners()
        data = sum(self._data.used(owner) for owner in owners)
        return data + sum(map(self._usage.job_bytes, self._queue.jobs()))

    def _owners(self) -> list[str]:
        return sorted(path.name for path in self._data.directory.iterdir() if not path.name.startswith("."))

    def _candidates(self) -> list[tuple[float, int, Callable[[], bool], str]]:
        """Returns everything that may be removed: since when nobody needs it, its bytes, its removal, and its name."""
        jobs = self._queue.jobs()
        used: dict[tuple[str, str], float] = {}
        read: set[tuple[str, str]] = set()
        for job in jobs:
            for name in job.data:
                used[job.owner, name] = max(job.ended or job.created, used.get((job.owner, name), 0.0))
                if job.pinned or not job.state.is_end:
                    read.add((job.owner, name))
        candidates = [
            (job.ended or job.created, self._usage.job_bytes(job), self._removal(job), f"job {job.id}")
            for job in jobs
            if job.state.is_end and not job.pinned
        ]
        for owner in self._owners():
            for found in self._data.list(owner):
                key = (owner, found.name)
                if key not in read:
                    moment = max(found.created, used.get(key, 0.0))
                    candidates.append((moment, found.bytes, self._deletion(*key), f"data set {found.name} of {owner}"))
        return candidates

    def _removal(self, job: Job) -> Callable[[], bool]:
        def remove() -> bool:
            try:
                self.remove(job)
            except (LiveJobError, UnknownJobError):  # Tried again or removed meanwhile.
                return False
            return True

        return remove

    def _deletion(self, owner: str, name: str) -> Callable[[], bool]:
        def delete() -> bool:
            try:
                self._data.delete(owner, name)
            except RefusedError:  # A job reads it.
                return False
            return True

        return delete

    def _remove_leftovers(self) -> list[str]:
        """Removes directories of jobs whose removal was interrupted."""
        jobs = self.directory / "jobs"
        known = {job.id for job in self._queue.jobs()}
        left = [path for path in jobs.iterdir() if path.name not in known] if jobs.is_dir() else []
        known |= {job.id for job in self._queue.jobs()}  # One may have been added since.
        left = [path for path in left if path.name not in known]
        for path in left:
            shutil.rmtree(path, ignore_errors=True)
        return [f"what was left of job {path.name}" for path in left]
