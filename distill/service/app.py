"""The service behind its paths: jobs, data sets, and what the administrator has allowed."""

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from distill.edge.strings import shorten
from distill.errors import UserError
from distill.serve.refusals import RefusedError
from distill.serve.settings import Limits
from distill.service.accounts import Account, Accounts
from distill.service.allowed import MULTIRUN, check_overrides
from distill.service.children import Children
from distill.service.choices import list_teachers, names_sweep, read_form
from distill.service.cleanup import Cleanup, Keeping
from distill.service.data_sets import LIMIT, DataSets
from distill.service.deployment import Target
from distill.service.dispatcher import Dispatcher
from distill.service.engine import Engine, job_directory
from distill.service.feed import Feeds
from distill.service.grammar import is_sweep
from distill.service.locations import find_paths, list_names, rename, sort_names
from distill.service.measurements import Measurements
from distill.service.planning import Plan, Planner
from distill.service.queue import LIVE, Job, Queue, State
from distill.service.results import list_runs, read_results
from distill.service.usage import Usage

CLEANUP_SECONDS = 3600.0
LONGEST_NAME = 200  # Characters of the name of a job.


@dataclass(frozen=True)
class Settings:
    """What the administrator has allowed.

    Args:
        workers: jobs that run at once.
        upload: bytes of an upload.
        target: the server that bundles are deployed to; None for none.
        teachers: directory with models that requests may name.
        administrators: accounts whose requests may name paths and models of the Hub.
        keeping: how long jobs and data sets are kept.
        idle_seconds: without a request after which a process that predicts ends.
    """

    workers: int = 1
    upload: int = LIMIT
    target: Target | None = None
    teachers: Path | None = None
    administrators: Collection[str] = ()
    keeping: Keeping = field(default_factory=Keeping)
    idle_seconds: float = 120.0


@dataclass(frozen=True)
class Request:
    """A job that is asked for, with names in place of paths.

    Args:
        overrides: as they were given.
        resolved: with the paths of data sets and teachers.
        data: names of the data sets that it reads.
        names: what stands in a message in the place of a path, by the path.
    """

    name: str | None
    overrides: tuple[str, ...]
    resolved: tuple[str, ...]
    data: tuple[str, ...]
    names: Mapping[str, str]


class Service:
    """Runs the jobs of some people, and answers what is asked of them.

    Args:
        directory: of the service.
        queue: the jobs.
        engine: where they run.
        accounts: of the people.
        is_local: whether only this machine reaches the service.
        hosts: names by which it may be addressed beside those of loopback; None for any.
        limits: of requests and connections.
        log: is called with what happened, in words.

    Raises:
        UserError: if another service uses the directory.
    """

    title = "distillations"

    def __init__(
        self,
        directory: Path,
        queue: Queue,
        engine: Engine,
        *,
        settings: Settings,
        accounts: Accounts,
        is_local: bool = True,
        hosts: Collection[str] | None = None,
        limits: Limits | None = None,
        log: Any = print,
    ) -> None:
        self.directory, self.queue, self.settings = directory.absolute(), queue, settings
        self.accounts, self.is_local, self.hosts = accounts, is_local, hosts
        self.limits, self.log = limits or Limits(), log
        self.dispatcher = Dispatcher(queue, engine, self.directory, settings.workers)
        self.dispatcher.lock()
        self.data = DataSets(self.directory / "data", settings.upload, is_read=self._is_read)
        self.usage = Usage(self.directory, queue, self.data)
        self.children = Children(settings.idle_seconds)
        self.planner = Planner(self.directory / "cache")
        self.feeds = Feeds(queue, self.directory)
        self.measurements = Measurements(self.directory, queue, self.children)
        self.cleanup = Cleanup(self.directory, queue, self.data, self.usage)
        self.deploying, self.adding = asyncio.Lock(), asyncio.Lock()
        self.is_ready = False
        self._results: dict[tuple[str, int], tuple[list[str], list[dict[str, Any]]]] = {}

    @contextlib.asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Starts to run jobs; at the end leaves those that run to the next service."""
        self.dispatcher.start()
        cleaning = asyncio.create_task(self._clean())
        self.is_ready = True
        if threading.current_thread() is threading.main_thread():  # Others get no signals.
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._drain)
        try:
            yield
        finally:
            self.is_ready = False
            cleaning.cancel()
            await self.children.stop()
            await asyncio.to_thread(self.dispatcher.stop)

    def _drain(self) -> None:
        """Lets running jobs end, begins no others, and then stops the service."""
        self.log("draining: no job is started any more, and the service ends with those that run")

        def wait() -> None:
            self.dispatcher.drain()
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=wait, daemon=True).start()

    async def _clean(self) -> None:
        while True:
            try:
                for removed in await asyncio.to_thread(self.cleanup.run, self.settings.keeping):
                    self.log(f"removed {removed}")
            except OSError as error:
                self.log(f"the clean-up failed: {error}")
            await asyncio.sleep(CLEANUP_SECONDS)

    def _is_read(self, owner: str, name: str) -> bool:
        return any(name in job.data for job in self.queue.jobs(owner, (State.QUEUED, *LIVE)))

    # Jobs

    def read_request(self, account: Account, content: object) -> Request:
        """Returns the job that the body of a request asks for.

        Raises:
            UserError: for one of another form, and for overrides that the service does not take.
            RefusedError: for a data set that there is not.
        """
        if not isinstance(content, Mapping) or not set(content) <= {"overrides", "form", "name"}:
            raise UserError(f"got {shorten(content)}, expected an object with overrides or form, and perhaps name")
        name, given = content.get("name"), content.get("overrides")
        if name is not None and not (isinstance(name, str) and name.isprintable() and len(name) <= LONGEST_NAME):
            raise UserError(f"got name={shorten(name)}, expected a text of one line, of at most {LONGEST_NAME} letters")
        if ("form" in content) == (given is not None):
            raise UserError("expected one of overrides and form")
        overrides = read_form(content["form"]) if given is None else given
        if not isinstance(overrides, list) or not all(isinstance(one, str) for one in overrides):
            raise UserError(f"got overrides={shorten(overrides)}, expected a list of texts")
        if not overrides:
            raise UserError("got no overrides, expected those of the command line, such as +teacher=NAME")
        return self._resolve(account, name or None, overrides)

    def _resolve(self, account: Account, name: str | None, overrides: list[str]) -> Request:
        names: dict[str, str] = {}
        data: list[str] = []

        def resolve_data(given: str) -> Path:
            path = self.data.path(account.name, given)
            data.append(given)
            names[str(path)] = f"data:{given}"
            return path

        def resolve_teacher(given: str) -> Path:
            known = list_teachers(self.settings.teachers)
            if self.settings.teachers is None or given not in known:
                raise UserError(f"there is no teacher:{given}, expected one of {', '.join(known) or 'none'}")
            path = (self.settings.teachers / given).absolute()
            names[str(path)] = f"teacher:{given}"
            return path

        options = [override for override in overrides if override not in MULTIRUN]
        resolved = check_overrides(
            options, resolve_data=resolve_data, resolve_teacher=resolve_teacher,
            administrator=account.name in self.settings.administrators,
        )  # fmt: skip
        has_many = len(options) < len(overrides) or is_sweep(resolved) or names_sweep(resolved)
        sweep = ("-m",) if has_many else ()
        return Request(
            name, tuple(overrides), (*sweep, *resolved), tuple(dict.fromkeys(data)),
            sort_names(names),
        )  # fmt: skip

    async def plan(self, request: Request) -> Plan:
        """Returns the plan of a job, which is not submitted."""
        return await self.planner.plan(request.resolved, request.names)

    async def submit(self, account: Account, request: Request) -> Job:
        """Checks a job by its dry run and puts it into the queue.

        Raises:
            RefusedError: 409 for a limit of the account, 422 for what the dry run refuses.
            FullQueueError: if too many jobs wait.
        """
        with self.data.hold(account.name, request.data):
            await asyncio.to_thread(self.check_quotas, account)
            plan = await self.plan(request)
            async with self.adding:  # Others of the account may have been submitted meanwhile.
                await asyncio.to_thread(self.check_quotas, account)
                job = await asyncio.to_thread(
                    self.queue.add, account.name, request.resolved, name=request.name, data=request.data,
                    plan=plan.text,
                )  # fmt: skip
        self.dispatcher.wake()
        return job

    def check_quotas(self, account: Account) -> None:
        """Raises RefusedError if a limit keeps an account from another job."""
        excess = self.usage.find_excess(account)
        if excess is not None:
            raise RefusedError(409, excess)

    def find_job(self, account: Account, id: str) -> Job:
        """Returns a job of an account.

        Raises:
            RefusedError: if it has none of this id.
        """
        job = self.queue.get(id)
        if job is None or job.owner != account.name:
            raise RefusedError(404, f"there is no job {shorten(id)}")
        return job

    def runs_directory(self, job: Job) -> Path:
        """Returns the directory with the runs of a job."""
        return job_directory(self.directory, job.id) / "runs"

    def describe(self, job: Job) -> dict[str, Any]:
        """Returns a job as JSON, with its runs and, once it has ended, their results, without paths of this machine."""
        runs, results = self._read_results(job)
        names = list_names(job, self.directory)
        return {
            **asdict(job), "overrides": [rename(override, names) for override in job.overrides],
            "error": job.error and rename(job.error, names), "runs": runs, "results": results,
        }  # fmt: skip

    def _read_results(self, job: Job) -> tuple[list[str], list[dict[str, Any]]]:
        """Returns the runs of a job and their results, which are read once after its end."""
        key = (job.id, job.attempt)
        if not job.state.is_end:
            return list_runs(self.runs_directory(job)), []
        if key not in self._results:
            root = self.runs_directory(job)
            typed = {text.lstrip("+").partition("=")[0] for text in job.overrides}
            self._results[key] = list_runs(root), read_results(root, typed)
        return self._results[key]

    def retry(self, job: Job) -> Job:
        """Queues a job again that failed or was cancelled.

        Raises:
            RefusedError: 409 if a data set or a teacher of it is gone.
            LiveJobError: if it is queued, runs, or has finished.
        """
        with self.data.hold(job.owner, job.data):
            if job.state in (State.FAILED, State.CANCELLED):
                self._check_sources(job)
            retried = self.queue.retry(job.id)
        self.usage.note(job)
        self.dispatcher.wake()
        return retried

    def _check_sources(self, job: Job) -> None:
        """Raises RefusedError unless the data sets and teachers of a job are those that it was submitted with."""
        for name, path in find_paths(job).items():
            if not path.exists():
                raise RefusedError(409, f"{name} is gone, which job {job.id} reads: submit the job anew with another")
        for name in job.data:
            if self.data.get(job.owner, name).created > job.created:
                raise RefusedError(
                    409, f"data:{name} was uploaded after job {job.id} was submitted: submit the job anew to read it"
                )

    def cancel(self, job: Job) -> Job:
        """Cancels a job."""
        cancelled = self.queue.cancel(job.id)
        self.dispatcher.wake()
        return cancelled

    async def remove(self, job: Job) -> None:
        """Removes a job that has ended, with its files."""
        await self.children.forget(job_directory(self.directory, job.id))
        self._results.pop((job.id, job.attempt), None)
        await asyncio.to_thread(self.cleanup.remove, job)

    async def deploy(self, bundle: Path) -> dict[str, object]:
        """Puts a bundle into the place of the one that the server of this machine serves.

        Raises:
            RefusedError: if there is no such server, another bundle is being deployed, or it is not loaded.
        """
        if self.settings.target is None:
            raise RefusedError(409, "there is no server to deploy to: start the service with --serve URL=DIRECTORY")
        if self.deploying.locked():
            raise RefusedError(409, "another bundle is being deployed: try again in a minute")
        async with self.deploying:
            started = time.time()
            model = await asyncio.to_thread(self.settings.target.deploy, bundle)
            return {"url": self.settings.target.url, "model": model, "seconds": round(time.time() - started, 2)}
