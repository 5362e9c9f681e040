"""The jobs and data sets of a service."""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from distill.client.connection import Connection, Event, Json, ServiceError, UnreachableServiceError
from distill.client.files import download, open_data
from distill.client.progress import show_progress
from distill.errors import UserError

URL = "http://127.0.0.1:8080"
ENDED = ("finished", "failed", "cancelled")  # The states that a job does not leave by itself.
# Paths of what a finished job leaves, and the endings of their names here; a zip is unpacked.
FILES = {"bundle": ("bundle.zip", ""), "student": ("student.zip", ""), "report": ("report", ".html")}
# Formats of data whose files have other endings.
FORMATS = {"json": "squad", "txt": "text", "conllu": "conll", "bio": "conll", "iob": "conll"}
PATIENCE = 600.0  # Seconds without an answer after which `watch` gives up.
PAUSE = 1.0  # Seconds before another connection.


class Client:
    """Jobs and data sets of a service.

    Every method raises ServiceError with the line of the service for what it refuses, and UnreachableServiceError where
    none answers.

    Args:
        token: of this person; a service on the same machine may need none.
        timeout: seconds without a byte after which a request has failed.
    """

    def __init__(self, url: str = URL, token: str | None = None, *, timeout: float = 300.0) -> None:
        self._service = Connection(url, token, timeout=timeout)

    def submit(
        self, overrides: Sequence[str] = (), *, form: Mapping[str, Any] | None = None, name: str | None = None
    ) -> Json:
        """Submits a job by overrides as the command line has them, or by a form, and returns it."""
        return self._service.ask("POST", "/jobs", _describe_job(overrides, form, name))

    def plan(self, overrides: Sequence[str] = (), *, form: Mapping[str, Any] | None = None) -> Json:
        """Returns the `plan` of such a job, its `seconds` and its `notices`, and submits nothing."""
        return self._service.ask("POST", "/plan", _describe_job(overrides, form, None))

    def jobs(self) -> list[Json]:
        """Returns the jobs of this person."""
        return list(self._service.ask("GET", "/jobs")["jobs"])

    def job(self, job: str) -> Json:
        """Returns a job: its state, stage, progress, metrics, and the results of a finished one."""
        return self._service.ask("GET", _path(job))

    def cancel(self, job: str) -> Json:
        """Cancels a job that is queued or runs, and returns it; one that has ended is refused."""
        return self._service.ask("DELETE", f"{_path(job)}?cancel=1")

    def remove(self, job: str) -> None:
        """Removes a job that has ended, with its files; one that is queued or runs is cancelled."""
        self._service.ask("DELETE", _path(job))

    def retry(self, job: str) -> Json:
        """Queues a job again that failed or was cancelled, under the same id, and returns it."""
        return self._service.ask("POST", _path(job, "retry"), {})

    def log(self, job: str, offset: int = 0) -> str:
        """Returns the output of a job until now, from a byte on."""
        parts: list[bytes] = []
        while not parts or parts[-1]:  # The service gives a part of a long one.
            place = f"{_path(job, 'log')}?offset={offset + sum(map(len, parts))}"
            with self._service.open("GET", place) as answer:
                parts.append(answer.read())
        return b"".join(parts).decode("utf-8", "replace")

    def predict(self, job: str, inputs: Sequence[Any], *, run: str | None = None) -> Json:
        """Returns the predictions of the student of a finished job for texts or records, as `distill.serve` does.

        Args:
            run: one of the `runs` of a job that has several.
        """
        return self._service.ask("POST", _path(job, "predict") + _query(run=run), {"inputs": list(inputs)})

    def deploy(self, job: str, *, run: str | None = None) -> Json:
        """Puts the bundle of a finished job into the place of the one that a server of predictions serves."""
        return self._service.ask("POST", _path(job, "deploy") + _query(run=run), {})

    def upload(self, path: str | Path, *, name: str | None = None, format: str | None = None) -> Json:
        """Uploads a file, or a directory as a zip, and returns the data set, which overrides name as `data:NAME`.

        Args:
            name: of the data set; by default that of the file without its ending.
            format: csv, tsv, jsonl, parquet, conll, squad, text or zip; by default by the ending of the file.
        """
        path = Path(path).expanduser()
        with open_data(path) as (file, ending):
            place = f"/data/{quote(name or path.stem, safe='')}{_query(format=format or FORMATS.get(ending, ending))}"
            return self._service.ask("PUT", place, file=file)

    def data(self, name: str) -> Json:
        """Returns the columns, the first rows and the problems of a data set."""
        return self._service.ask("GET", f"/data/{quote(name, safe='')}")

    def fetch(
        self,
        job: str,
        what: str = "bundle",
        *,
        to: str | Path | None = None,
        run: str | None = None,
        force: bool = False,
    ) -> Path:
        """Downloads what a finished job left, and returns its path here: a directory, or the file of the report.

        Args:
            what: bundle, student or report.
            to: a path that does not exist; by default `JOB-bundle` and so on, in the working directory.
            run: one of the `runs` of a job that has several.
            force: also a bundle without a file that passed the gate of its export.
        """
        if what not in FILES:
            raise UserError(f"got {what}, expected one of {', '.join(FILES)}")
        source, ending = FILES[what]
        target = Path(to).expanduser() if to is not None else Path(f"{job}-{what}{ending}")
        if target.exists():
            raise UserError(f"{target} exists: give another path, or remove it")
        query = _query(run=run, force="1" if force else None)
        with self._service.open("GET", _path(job, source) + query) as answer:
            download(answer, target, unpack=not ending)
        return target

    def watch(self, job: str, after: int = 0) -> Iterator[Event]:
        """Yields the events of a job from number `after` + 1 until it has ended.

        A connection that is lost is opened again after the last event, for PATIENCE s. The job goes on meanwhile.
        """
        last: Event | None = None
        answered: float | None = None
        while True:
            before = after
            try:
                for event in self._service.events(_path(job, "events"), after):
                    after, last, answered = event.number, event, time.monotonic()
                    yield event
                # An end is the last event, unless the job was tried again after it.
                if self.job(job)["state"] in ENDED and (after == before or _is_end(last)):
                    return
                answered = time.monotonic()
            except (UnreachableServiceError, ServiceError) as error:
                lost = isinstance(error, UnreachableServiceError) or error.status in (502, 503, 504)
                if not lost or answered is None or time.monotonic() - answered > PATIENCE:
                    raise
            if after == before:
                time.sleep(PAUSE)

    def wait(self, job: str) -> Json:
        """Shows the progress of a job in one line until it has ended, and returns it."""
        show_progress(self.watch(job))
        return self.job(job)


def _describe_job(overrides: Sequence[str], form: Mapping[str, Any] | None, name: str | None) -> Json:
    if isinstance(overrides, str):
        raise UserError(f"got the text {overrides!r}, expected a list of overrides")
    content: Json = {"overrides": list(overrides)} if form is None else {"form": dict(form)}
    return content if name is None else {**content, "name": name}


def _path(job: str, *rest: str) -> str:
    return "/".join(["/jobs", quote(job, safe=""), *rest])


def _query(**values: str | None) -> str:
    given = {name: value for name, value in values.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def _is_end(event: Event | None) -> bool:
    return event is not None and event.kind == "state" and event.data.get("state") in ENDED
