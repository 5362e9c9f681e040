"""The people who may use a service: tokens, limits, what they use, and the removal of what is old.

The people who may use a service beyond its own machine, each with a bearer token and limits. `accounts.json` has a
salted hash of each token and never the token itself, which is random and 256 bits long, so that nothing is gained by a
slow hash: the SHA-256 of each request costs microseconds.
"""

import contextlib
import hashlib
import hmac
import json
import math
import os
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from distill.core import files
from distill.core.errors import UserError
from distill.core.files import atomic_file
from distill.serve.http import RefusedError, read_bearer, refuse
from distill.serve.jobs.allowed_options import check_name, show_escaped
from distill.serve.jobs.attempts import job_directory
from distill.serve.jobs.data_sets import DataSets
from distill.serve.jobs.queue import LIVE, LiveJobError, Queue, QueuedJob, State, UnknownJobError
from distill.serve.limits import is_known_host

LOCAL = "local"  # The owner of everything on a service of this machine alone, without accounts.


@dataclass(frozen=True)
class Account:
    """A person with their limits.

    Args:
        jobs: that run or wait at once; None for any number.
        disk: bytes of data sets and jobs; None for any number.
        hours: that their jobs have run in the last 30 days; None for any number.
    """

    name: str
    jobs: int | None = None
    disk: int | None = None
    hours: float | None = None

    def find_excess(self, *, jobs: int = 0, disk: int = 0, hours: float = 0.0) -> str | None:
        """Returns which limit is reached, in words; None if none is.

        Args:
            jobs: that run or wait now.
            disk: bytes that are in use, with those of a request.
            hours: that jobs have run in the last 30 days.
        """
        if self.jobs is not None and jobs >= self.jobs:
            return f"{self.name} has {jobs} jobs that run or wait, the limit: wait for one or cancel it"
        if self.disk is not None and disk > self.disk:
            return f"{self.name} would have {disk:,} bytes of data and jobs, the limit is {self.disk:,}: delete some"
        if self.hours is not None and hours >= self.hours:
            return f"{self.name} has used {hours:.1f} of {self.hours:g} hours in 30 days: wait, or ask for more"
        return None


class Accounts:
    """The accounts of a file, which is read again when it has changed.

    Args:
        path: of `accounts.json`, which need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None
        self._entries: dict[str, dict[str, Any]] = {}

    def __len__(self) -> int:
        self._refresh()
        return len(self._entries)

    def add(self, account: Account) -> str:
        """Adds an account, or replaces that of the same name, and returns its new token, which nothing else can show.

        Raises:
            UserError: for a wrong name or limit.
        """
        _check(account)
        token, salt = secrets.token_urlsafe(32), secrets.token_bytes(16)
        entry = {**asdict(account), "salt": salt.hex(), "hash": _hash(salt, token.encode()).hex()}
        del entry["name"]
        self._change(account.name, entry)
        return token

    def remove(self, name: str) -> None:
        """Ends an account and its token; its data and jobs stay.

        Raises:
            UserError: if there is none of that name.
        """
        self._refresh()
        if name not in self._entries:
            raise UserError(f"there is no account {check_name(name, 'account')}")
        self._change(name, None)

    def find(self, token: bytes | None) -> Account | None:
        """Returns the account of a token, None if it is nobody's, in a time that does not depend on whose it is."""
        self._refresh()
        found = None
        for name, entry in self._entries.items():
            given = _hash(bytes.fromhex(entry["salt"]), token or b"")
            if hmac.compare_digest(given, bytes.fromhex(entry["hash"])):
                found = Account(name, entry["jobs"], entry["disk"], entry["hours"])
        return found if token else None

    def _change(self, name: str, entry: dict[str, Any] | None) -> None:
        lock = files.acquire_lock(self.path.with_name(f"{self.path.name}.lock"), wait=True)
        try:
            self._refresh()
            entries = {other: of for other, of in self._entries.items() if other != name}
            entries |= {} if entry is None else {name: entry}
            with atomic_file(self.path) as temporary:
                temporary.touch(mode=0o600)  # Others on this machine cannot read it.
                temporary.write_text(json.dumps({"accounts": entries}, indent=2) + "\n", encoding="utf-8")
        finally:
            files.release_lock(lock)

    def _refresh(self) -> None:
        """Reads the file if it has changed.

        Raises:
            UserError: for a damaged file.
        """
        try:
            status = self.path.stat()
        except FileNotFoundError:
            self._seen, self._entries = None, {}
            return
        seen = (status.st_mtime_ns, status.st_size, status.st_ino)
        if seen == self._seen:
            return
        try:
            self._entries = _read(json.loads(self.path.read_text(encoding="utf-8")))
        except (UserError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{self.path} is damaged: restore it, or remove it and add every account again") from error
        self._seen = seen


def _read(content: Any) -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = content["accounts"]
    for name, entry in entries.items():
        _check(Account(name, entry["jobs"], entry["disk"], entry["hours"]))
        bytes.fromhex(entry["salt"]), bytes.fromhex(entry["hash"])
    return entries


def _hash(salt: bytes, token: bytes) -> bytes:
    return hmac.digest(salt, token, hashlib.sha256)


def _check(account: Account) -> None:
    """Raises UserError for a wrong name or limit."""
    check_name(account.name, "account")
    for name in ("jobs", "disk", "hours"):
        value = getattr(account, name)
        kinds = int | float if name == "hours" else int
        is_wrong = isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value) or value < 0
        if value is not None and is_wrong:
            raise UserError(f"got {name}={value!r} for account {account.name}, expected a number of at least 0")


OPEN_PATHS = ("/healthz", "/")  # Without a token: they tell nothing of anybody, and the page asks for it.
# An answer is never taken for a page, and no other page reads or frames it.
SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class AccountMiddleware:
    """Asks for the host, the origin and the token, and notes the account of a request as `scope["account"]`.

    A request of a page of another address is refused, because a browser sends it without its user's knowledge: its
    `Origin`, or `Sec-Fetch-Site`, tells so. A client that is no browser sends neither.

    Args:
        accounts: whose tokens are asked for.
        is_local: whether only this machine reaches the service: without any account, everybody is the owner `local`.
        hosts: names by which the service may be addressed beside those of loopback; None for any.
    """

    def __init__(self, app: ASGIApp, *, accounts: Accounts, is_local: bool, hosts: Collection[str] | None) -> None:
        self.app, self.accounts, self.is_local, self.hosts = app, accounts, is_local, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # No path takes a WebSocket.
            await self.app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SAFE_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._choose(scope)(scope, receive, send_safely)

    def _choose(self, scope: Scope) -> ASGIApp:
        """Returns the application, or the refusal of a request."""
        headers, host = Headers(scope=scope), Headers(scope=scope).get("host")
        if not is_known_host(host, self.hosts):
            return refuse(403, f"the host {show_escaped(host)} is not served: start the service with --allow-host NAME")
        if is_foreign(headers, scope["method"]):
            return refuse(
                403, f"a page of {show_escaped(headers.get('origin') or 'another site')} may not use the service"
            )
        try:
            is_open = self.is_local and not len(self.accounts)
            account = Account(LOCAL) if is_open else self.accounts.find(read_bearer(scope["headers"]))
        except UserError as error:
            return refuse(503, str(error))
        if account is None and scope["path"] not in OPEN_PATHS:
            return refuse(401, "the bearer token is missing or wrong", {"WWW-Authenticate": "Bearer"})
        scope["account"] = account
        return self.app


def is_foreign(headers: Headers, method: str) -> bool:
    """Returns whether a request comes from a page of another address than the one that is asked.

    A link from another page to one of ours is none, because it only reads.
    """
    origin, host = headers.get("origin"), headers.get("host")
    if origin is not None:
        return host is None or _find_host(origin) != host.lower()
    site = headers.get("sec-fetch-site", "none")
    is_link = method in SAFE_METHODS and headers.get("sec-fetch-mode") == "navigate"
    return site not in ("none", "same-origin") and not is_link


def _find_host(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


WINDOW_SECONDS = 30 * 24 * 3600.0  # Of the hours of an account.
LEDGER = "spent.jsonl"  # In the directory of the service: the time of attempts whose job has no record of it any more.


def count_bytes(directory: Path) -> int:
    """Returns the bytes of all files below a directory; what vanishes meanwhile counts as nothing."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


class Usage:
    """Measures what owners use.

    Args:
        directory: of the service.
    """

    def __init__(self, directory: Path, queue: Queue, data: DataSets) -> None:
        self.directory, self._queue, self._data = directory, queue, data
        self._sizes: dict[tuple[str, int], int] = {}  # Of ended jobs, which do not change, by id and attempt.

    def job_bytes(self, job: QueuedJob) -> int:
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

    def check_quotas(self, account: Account) -> None:
        """Raises RefusedError if a limit keeps an account from another job."""
        jobs = len(self._queue.jobs(account.name, (State.QUEUED, *LIVE)))
        disk = 0 if account.disk is None else self.disk(account.name)
        hours = 0.0 if account.hours is None else self.hours(account.name)
        excess = account.find_excess(jobs=jobs, disk=disk, hours=hours)
        if excess is not None:
            raise RefusedError(409, excess)

    def note(self, job: QueuedJob) -> None:
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


@dataclass(frozen=True)
class Candidate:
    """A job or a data set that may be removed.

    Args:
        moment: since which nobody needs it, in seconds since 1970.
        remove: removes it.
    """

    moment: float
    bytes: int
    title: str
    remove: Callable[[], None]


class Cleanup:
    """Removes jobs and data sets.

    Args:
        directory: of the service.
    """

    def __init__(self, directory: Path, queue: Queue, data: DataSets, usage: Usage) -> None:
        self.directory, self._queue, self._data, self._usage = directory, queue, data, usage

    def remove(self, job: QueuedJob) -> None:
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
        for found in sorted(self._candidates(), key=lambda candidate: candidate.moment):
            is_old = keeping.days is not None and found.moment < oldest
            if not is_old and not (keeping.bytes is not None and total > keeping.bytes):
                continue
            with contextlib.suppress(LiveJobError, UnknownJobError, RefusedError):  # Needed or gone meanwhile.
                found.remove()
                total -= found.bytes
                removed.append(found.title)
        return removed

    def _total(self) -> int:
        data = sum(map(self._data.used, self._owners()))
        return data + sum(map(self._usage.job_bytes, self._queue.jobs()))

    def _owners(self) -> list[str]:
        return sorted(path.name for path in self._data.directory.iterdir() if not path.name.startswith("."))

    def _candidates(self) -> Iterator[Candidate]:
        """Yields the jobs that have ended and the data sets that none reads which runs, waits or is pinned."""
        used: dict[tuple[str, str], float] = {}
        read: set[tuple[str, str]] = set()
        for job in self._queue.jobs():
            moment = job.ended or job.created
            keys = [(job.owner, name) for name in job.data]
            used |= {key: max(moment, used.get(key, 0.0)) for key in keys}
            if job.pinned or not job.state.is_end:
                read.update(keys)
            else:
                yield Candidate(moment, self._usage.job_bytes(job), f"job {job.id}", partial(self.remove, job))
        for owner in self._owners():
            for found in self._data.list(owner):
                key = (owner, found.name)
                if key not in read:
                    moment = max(found.created, used.get(key, 0.0))
                    title = f"data set {found.name} of {owner}"
                    yield Candidate(moment, found.bytes, title, partial(self._data.delete, *key))

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
