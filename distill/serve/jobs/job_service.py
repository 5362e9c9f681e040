"""The service behind its paths: jobs, data sets, choices of a form, and counters."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from distill.core.errors import UserError, config_directory, shorten
from distill.jobs.command_line import list_bases, read_yaml
from distill.serve.http import HttpService, RefusedError
from distill.serve.jobs.accounts import Account, Accounts, Cleanup, Keeping, Usage, count_bytes
from distill.serve.jobs.allowed_options import (
    MULTIRUN,
    TABLE,
    check_overrides,
    is_name,
    is_sweep,
    list_choices,
    write_override,
)
from distill.serve.jobs.attempts import AttemptEngine, Dispatcher, job_directory
from distill.serve.jobs.data_sets import FORMATS, LIMIT, DataSets
from distill.serve.jobs.deployment import Children, Target
from distill.serve.jobs.queue import LIVE, Queue, QueuedJob, State
from distill.serve.jobs.results import DryRun, Feeds, Planner, find_names, list_names, list_runs, read_results, rename
from distill.serve.limits import Limits

AnyMetric = TypeVar("AnyMetric", CounterMetricFamily, GaugeMetricFamily)
SIZES_SECONDS = 300.0  # After which directories are measured again.
FOLDERS = ("data", "jobs", "cache")


class ServiceMetrics:
    """The numbers of a service, in a registry of their own.

    Args:
        directory: of the service.
    """

    def __init__(self, directory: Path, queue: Queue, children: Children) -> None:
        self.registry = CollectorRegistry()
        self.requests: Counter[str] = Counter()  # By status.
        self._directory, self._queue, self._children = directory, queue, children
        self._sizes: dict[str, int] = {}
        self._sized = 0.0
        self.registry.register(self)  # type: ignore[arg-type]  # It has the method of a collector.

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics."""
        jobs, now = self._queue.jobs(), time.time()
        by_state = {state: [job for job in jobs if job.state == state] for state in State}
        queued = [job.created for job in by_state[State.QUEUED]]
        seconds = {
            state: sum((job.ended or now) - job.started for job in found if job.started is not None)
            for state, found in by_state.items()
        }
        oldest, free = now - min(queued, default=now), shutil.disk_usage(self._directory).free
        if not self._sizes or time.monotonic() - self._sized > SIZES_SECONDS:
            self._sizes = {name: count_bytes(self._directory / name) for name in FOLDERS}
            self._sized = time.monotonic()
        counts = {state: len(found) for state, found in by_state.items()}
        yield _fill(GaugeMetricFamily("distill_service_jobs", "Jobs by state", labels=["state"]), counts)
        yield GaugeMetricFamily("distill_service_queue_length", "Jobs that wait", value=len(queued))
        yield GaugeMetricFamily("distill_service_queue_seconds", "Time that the oldest job waits in s", value=oldest)
        spans = GaugeMetricFamily("distill_service_job_seconds", "Time of the last attempts in s", labels=["state"])
        yield _fill(spans, seconds)
        used = GaugeMetricFamily("distill_service_disk_bytes", "Bytes of a folder", labels=["folder"])
        yield _fill(used, self._sizes)
        yield GaugeMetricFamily("distill_service_disk_free_bytes", "Bytes that are free", value=free)
        children = len(self._children.running)
        yield GaugeMetricFamily("distill_service_children", "Processes that predict", value=children)
        requests = CounterMetricFamily("distill_service_requests", "Requests by status", labels=["status"])
        yield _fill(requests, self.requests)


def _fill(metric: AnyMetric, values: Mapping[Any, float]) -> AnyMetric:
    """Adds a value for each label to a metric, and returns it."""
    for label, value in values.items():
        metric.add_metric([label], value)
    return metric


FORM = ("teacher", "student", "task", "data", "columns", "options")
# Options that a form shows beside those that a user adds, with the files that describe them.
OPTIONS: Mapping[str, str] = {
    "trainer.max_epochs": "trainer/auto.yaml", "trainer.max_steps": "trainer/auto.yaml",
    "trainer.learning_rate": "trainer/auto.yaml", "seed": "config.yaml", "seeds": "config.yaml",
    "baseline": "config.yaml", "task.max_length": "task/classification.yaml", "export.max_drop": "export/default.yaml",
}  # fmt: skip
SEVERAL_TASKS = "multi"  # Its tasks have their own columns, for which a form has no place.
USUAL_TASK = "classification"
BUILT_IN = "embedded"
_KEY = re.compile(r"(\w+):\s*([^#]*?)\s+#\s*(.*)")
_VALUES = re.compile(r"^\[.*?\] ")  # That an option takes, at the start of its comment.
_COLUMN = re.compile(r"(the )?columns?\b")


def offer(teachers: Path | None, upload: int) -> dict[str, Any]:
    """Returns what a form offers: teachers, students, tasks with their columns, objectives, options and formats.

    Args:
        teachers: the administrator's directory of models.
        upload: bytes of the largest upload.
    """
    own = [{"name": f"teacher:{name}", "title": "a model of this service"} for name in list_teachers(teachers)]
    return {**_offer_conf(), "teachers": [*_offer_conf()["teachers"], *own], "formats": list(FORMATS), "upload": upload}


def list_teachers(directory: Path | None) -> list[str]:
    """Returns the names of the models of the administrator's directory."""
    if directory is None or not directory.is_dir():
        return []
    return sorted(path.name for path in directory.iterdir() if path.is_dir() and is_name(path.name))


@cache
def _offer_conf() -> dict[str, Any]:
    named = [name for name in _names("task") if name != SEVERAL_TASKS]
    tasks = sorted(named, key=lambda name: name != USUAL_TASK)  # A form begins with the first one.
    teachers = [name for name in _names("teacher") if name == BUILT_IN or _read("teacher", name).get("id")]
    students = [name for name in _names("student") if name != "pretrained"]
    return {
        "teachers": [{"name": name, "title": _title("teacher", name)} for name in teachers],
        "students": [{"name": name, "title": _title("student", name)} for name in students],
        "objectives": [{"name": name, "title": _title("objective", name)} for name in _names("objective")],
        "tasks": [{"name": name, "title": _title("task", name), "columns": _list_columns(name)} for name in tasks],
        "options": [_describe_option(name, file) for name, file in OPTIONS.items()],
    }


def _names(group: str) -> list[str]:
    return [name for name in list_choices(group) if name not in TABLE[group].excluded]


def _lines(file: str | Path) -> list[str]:
    return (config_directory() / file).read_text(encoding="utf-8").splitlines()


def _list_options(file: str | Path) -> list[Any]:
    """Returns the name, the value and the comment of each option of a file that has a comment."""
    return [match.groups() for match in map(_KEY.fullmatch, _lines(file)) if match]


def _read(group: str, name: str) -> Mapping[str, Any]:
    return read_yaml(config_directory() / group / f"{name}.yaml")


def _title(group: str, name: str) -> str:
    """Returns the description of a file: its comment after the command on top."""
    words = []
    for line in _lines(f"{group}/{name}.yaml"):
        if not line.startswith("#"):
            break
        words.append(line.lstrip("# "))
    return " ".join(word for word in words if not word.startswith(("python -m", "@package")))


def _list_columns(task: str) -> list[dict[str, Any]]:
    """Returns the options of a kind of task that name columns of the data; a data set has columns of its own."""
    path = config_directory() / "task" / f"{task}.yaml"
    found: list[dict[str, Any]] = []
    if "_target_" not in read_yaml(path):
        return found
    files = [*list_bases(path), path]
    values = {name: value for file in files for name, value in read_yaml(file).items()}
    comments = {name: comment for file in files for name, _, comment in _list_options(file)}
    for name, comment in comments.items():
        value = values.get(name)
        if _COLUMN.match(comment) and "CoNLL" not in comment and not isinstance(value, int):
            default, several = (value[0], True) if isinstance(value, list) else (value, "columns" in comment)
            is_optional = value is None or "null:" in comment
            found.append({"name": name, "title": comment, "default": default, "many": several, "optional": is_optional})
    return found


def _describe_option(name: str, file: str) -> dict[str, Any]:
    last = name.rpartition(".")[2]
    _, value, comment = next(option for option in _list_options(file) if option[0] == last)
    title = _VALUES.sub("", comment).partition(";")[0]
    return {"name": name, "title": title, "default": None if value == "null" else value}


def names_sweep(overrides: Sequence[str]) -> bool:
    """Returns whether an override chooses an experiment that is a sweep, as its file tells."""
    chosen = [override.partition("=") for override in overrides]
    names = [name for key, _, name in chosen if key.lstrip("+") == "experiment" and name in list_choices("experiment")]
    return any((_read("experiment", name).get("hydra") or {}).get("mode") == "MULTIRUN" for name in names)


def read_form(form: object) -> list[str]:
    """Returns the overrides that a form stands for.

    >>> read_form({"teacher": "minilm", "student": "bilstm", "task": "mrpc", "data": "pairs"})
    ['+teacher=minilm', '+student=bilstm', 'task=mrpc', "task.data_dir='data:pairs'"]

    Raises:
        UserError: for a form of another shape. The values themselves are checked with the overrides.
    """
    if not isinstance(form, Mapping) or not set(form) <= set(FORM):
        got = ", ".join(map(str, form)) if isinstance(form, Mapping) else shorten(form)
        raise UserError(f"got the form {shorten(got)}, expected an object with some of {', '.join(FORM)}")
    columns, options = form.get("columns") or {}, form.get("options") or {}
    if not isinstance(columns, Mapping) or not isinstance(options, Mapping):
        raise UserError("got columns or options of the form that are no object, expected one with names and values")
    overrides = []
    for group, sign in (("teacher", "+"), ("student", "+"), ("task", "")):
        name = form.get(group)
        if group == "teacher" and isinstance(name, str) and name.startswith("teacher:"):
            overrides += ["+teacher=pretrained", write_override("teacher.path", name)]
        elif is_name(name):
            overrides.append(f"{sign}{group}={name}")
        elif name or group != "student":  # Some jobs train none.
            raise UserError(f"got {group}={shorten(name)} in the form, expected the name of one: see /options")
    if form.get("data"):
        overrides.append(write_override("task.data_dir", f"data:{form['data']}"))
    overrides += [write_override(f"task.{name}", value) for name, value in columns.items()]
    return overrides + [
        f"{name}={value}" if isinstance(value, str) else write_override(str(name), value)
        for name, value in options.items()
    ]  # fmt: skip


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
class JobRequest:
    """A job that is asked for.

    Args:
        overrides: with the paths of data sets and teachers.
        data: names of the data sets that it reads.
    """

    owner: str
    name: str | None
    overrides: tuple[str, ...]
    data: tuple[str, ...]


class Service(HttpService):
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
        engine: AttemptEngine,
        *,
        settings: Settings,
        accounts: Accounts,
        is_local: bool = True,
        hosts: Collection[str] | None = None,
        limits: Limits | None = None,
        log: Any = print,
    ) -> None:
        super().__init__(limits or Limits(), hosts, log)
        self.directory, self.queue, self.settings = directory.absolute(), queue, settings
        self.accounts, self.is_local = accounts, is_local
        self.dispatcher = Dispatcher(queue, engine, self.directory, settings.workers)
        self.dispatcher.lock()
        self.data = DataSets(self.directory / "data", settings.upload, is_read=self._is_read)
        self.usage = Usage(self.directory, queue, self.data)
        self.children = Children(settings.idle_seconds)
        self.planner = Planner(self.directory / "cache")
        self.feeds = Feeds(queue, self.directory)
        self.measurements = ServiceMetrics(self.directory, queue, self.children)
        self.cleanup = Cleanup(self.directory, queue, self.data, self.usage)
        self.deploying, self.adding = asyncio.Lock(), asyncio.Lock()
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

    def read_request(self, account: Account, content: object) -> JobRequest:
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

    def _resolve(self, account: Account, name: str | None, overrides: list[str]) -> JobRequest:
        data: list[str] = []

        def resolve_data(given: str) -> Path:
            path = self.data.path(account.name, given)
            data.append(given)
            return path

        def resolve_teacher(given: str) -> Path:
            known = list_teachers(self.settings.teachers)
            if self.settings.teachers is None or given not in known:
                raise UserError(f"there is no teacher:{given}, expected one of {', '.join(known) or 'none'}")
            return (self.settings.teachers / given).absolute()

        options = [override for override in overrides if override not in MULTIRUN]
        resolved = check_overrides(
            options, resolve_data=resolve_data, resolve_teacher=resolve_teacher,
            administrator=account.name in self.settings.administrators,
        )  # fmt: skip
        has_many = len(options) < len(overrides) or is_sweep(resolved) or names_sweep(resolved)
        sweep = ("-m",) if has_many else ()
        return JobRequest(account.name, name, (*sweep, *resolved), tuple(dict.fromkeys(data)))

    async def plan(self, request: JobRequest) -> DryRun:
        """Returns the plan of a job, which is not submitted."""
        names = find_names(request.owner, request.overrides, request.data)
        return await self.planner.plan(request.overrides, names)

    async def submit(self, account: Account, request: JobRequest) -> QueuedJob:
        """Checks a job by its dry run and puts it into the queue.

        Raises:
            RefusedError: 409 for a limit of the account, 422 for what the dry run refuses.
            FullQueueError: if too many jobs wait.
        """
        with self.data.hold(account.name, request.data):
            await asyncio.to_thread(self.usage.check_quotas, account)
            plan = await self.plan(request)
            async with self.adding:  # Others of the account may have been submitted meanwhile.
                await asyncio.to_thread(self.usage.check_quotas, account)
                job = await asyncio.to_thread(
                    self.queue.add, account.name, request.overrides, name=request.name, data=request.data,
                    plan=plan.plan,
                )  # fmt: skip
        self.dispatcher.wake()
        return job

    def find_job(self, account: Account, id: str) -> QueuedJob:
        """Returns a job of an account.

        Raises:
            RefusedError: if it has none of this id.
        """
        job = self.queue.get(id)
        if job is None or job.owner != account.name:
            raise RefusedError(404, f"there is no job {shorten(id)}")
        return job

    def runs_directory(self, job: QueuedJob) -> Path:
        """Returns the directory with the runs of a job."""
        return job_directory(self.directory, job.id) / "runs"

    def describe(self, job: QueuedJob) -> dict[str, Any]:
        """Returns a job as JSON, with its runs and, once it has ended, their results, without paths of this machine."""
        runs, results = self._read_results(job)
        names = list_names(job, self.directory)
        return {
            **asdict(job), "overrides": [rename(override, names) for override in job.overrides],
            "error": job.error and rename(job.error, names), "runs": runs, "results": results,
        }  # fmt: skip

    def _read_results(self, job: QueuedJob) -> tuple[list[str], list[dict[str, Any]]]:
        """Returns the runs of a job and their results, which are read once after its end."""
        key = (job.id, job.attempt)
        if not job.state.is_end:
            return list_runs(self.runs_directory(job)), []
        if key not in self._results:
            root = self.runs_directory(job)
            typed = {text.lstrip("+").partition("=")[0] for text in job.overrides}
            self._results[key] = list_runs(root), read_results(root, typed)
        return self._results[key]

    def retry(self, job: QueuedJob) -> QueuedJob:
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

    def _check_sources(self, job: QueuedJob) -> None:
        """Raises RefusedError unless the data sets and teachers of a job are those that it was submitted with."""
        for path, name in find_names(job.owner, job.overrides, job.data).items():
            if not Path(path).exists():
                raise RefusedError(409, f"{name} is gone, which job {job.id} reads: submit the job anew with another")
        for name in job.data:
            if self.data.get(job.owner, name).created > job.created:
                raise RefusedError(
                    409, f"data:{name} was uploaded after job {job.id} was submitted: submit the job anew to read it"
                )

    def cancel(self, job: QueuedJob) -> QueuedJob:
        """Cancels a job."""
        cancelled = self.queue.cancel(job.id)
        self.dispatcher.wake()
        return cancelled

    async def remove(self, job: QueuedJob) -> None:
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
