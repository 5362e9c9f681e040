"""A client of the job service by the standard library alone: its jobs, its data sets, files and progress."""

import contextlib
import hashlib
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TextIO
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from distill.core.errors import UserError, first_line

LONGEST_ERROR = 1 << 16  # Bytes of a refusal that are read.

Json = dict[str, Any]


class ServiceError(UserError):
    """A refusal of the service, in its own words; `status` is that of HTTP."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class UnreachableServiceError(UserError):
    """A service that does not answer, or whose answer was cut off."""


@dataclass(frozen=True)
class Event:
    """An event of a job. Numbers increase by 1; kinds are state, stage, step, metrics, run and notice."""

    number: int
    kind: str
    data: Json


class Connection:
    """Requests to one service, each by a connection of its own, without proxies and redirects.

    Args:
        token: of the person; None sends none.
        timeout: seconds without a byte after which a request has failed.
    """

    def __init__(self, url: str, token: str | None, *, timeout: float) -> None:
        if token is not None and not re.fullmatch(r"[!-~]+", token):
            raise UserError("the token of the service has a space or a character that no header can have")
        self.url, self.timeout = url.rstrip("/"), timeout
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._parts = _split_url(url)

    def ask(
        self, method: str, path: str, content: Mapping[str, Any] | None = None, *, file: IO[bytes] | None = None
    ) -> Json:
        """Returns the JSON of an answer, an empty object for one without a body; sends JSON or a file."""
        body = file if content is None else json.dumps(content).encode()
        headers = {} if content is None else {"Content-Type": "application/json"}
        if file is not None:  # Without its length it would be sent in chunks.
            headers = {"Content-Type": "application/octet-stream", "Content-Length": str(_measure(file))}
        with self.open(method, path, body=body, headers=headers) as answer:
            try:
                value: Json = json.loads(answer.read() or b"{}")
            except ValueError as error:
                raise UserError(f"{self.url} is no service of distill: it did not answer with JSON") from error
        return value

    @contextmanager
    def open(
        self, method: str, path: str, *, body: bytes | IO[bytes] | None = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """Sends a request and yields the answer.

        Raises:
            ServiceError: for a refusal.
            UnreachableServiceError: for a connection that cannot be opened, or that ends within the answer.
        """
        secure = self._parts.scheme == "https"
        connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = connect(str(self._parts.hostname), self._parts.port, timeout=self.timeout, blocksize=1 << 16)
        try:
            with closing(connection):
                # A service that refuses an upload answers, and closes before it has read all of it.
                connection.connect()
                with suppress(BrokenPipeError, ConnectionResetError):
                    place = self._parts.path.rstrip("/") + path
                    connection.request(method, place, body, {**self._headers, **(headers or {})})
                with connection.getresponse() as answer:
                    if answer.status >= 300:
                        raise _read_refusal(answer, self.url)
                    yield answer
        except (http.client.HTTPException, socket.gaierror, ssl.SSLError, ConnectionError, TimeoutError) as error:
            raise UnreachableServiceError(
                f"no answer from the service at {self.url} ({first_line(error)}): is it running, and is this its "
                "address?"
            ) from error

    def events(self, path: str, after: int) -> Iterator[Event]:
        """Yields the server-sent events of one connection, those after a number."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        with self.open("GET", path, headers=headers) as answer:
            fields: dict[str, str] = {}
            for line in answer:
                name, _, value = line.decode("utf-8", "replace").rstrip("\r\n").partition(":")
                if name:
                    fields[name] = value.removeprefix(" ")
                elif line.strip():  # A comment, which keeps the connection open.
                    continue
                elif {"id", "data"} <= fields.keys():  # A blank line ends an event.
                    yield Event(int(fields["id"]), fields.get("event", "message"), json.loads(fields["data"]))
                    fields = {}


def _split_url(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # Of a port or an address of IPv6.
        known = False
    if not known or "@" in parts.netloc or parts.query or parts.fragment:
        raise UserError("the address of the service is http://HOST:PORT or https://HOST, without a user or a password")
    return parts


def _measure(file: IO[bytes]) -> int:
    """Returns the bytes of a file, and goes to its start."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    return size


def _read_refusal(answer: http.client.HTTPResponse, url: str) -> ServiceError:
    """Returns a refusal with the line of the service."""
    try:
        line = str(json.loads(answer.read(LONGEST_ERROR))["error"])
    except (ValueError, TypeError, KeyError):
        line = f"{url} answered with the status {answer.status}: is it a service of distill?"
    wait = answer.headers.get("Retry-After", "")
    return ServiceError(line + (f" (try again in {wait} s)" if wait.isdigit() else ""), answer.status)


CHUNK = 1 << 20  # Bytes.


@contextmanager
def open_data(path: Path) -> Iterator[tuple[IO[bytes], str]]:
    """Opens a file, or a directory as a temporary zip, and yields it with its format, the ending of its name.

    Raises:
        UserError: if it cannot be read.
    """
    with contextlib.ExitStack() as stack:
        with _detecting_unreadable(path):
            file: IO[bytes]
            if path.is_dir():
                file = stack.enter_context(tempfile.TemporaryFile())
                with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
                    for name, inner in _list_files(path):
                        packed.write(inner, name)
            else:
                file = stack.enter_context(path.open("rb"))
        yield file, "zip" if path.is_dir() else path.suffix[1:].lower()


@contextmanager
def _detecting_unreadable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def _list_files(directory: Path) -> list[tuple[str, Path]]:
    """Returns the files of a directory with their names in it, hidden ones left out."""
    named = [(path.relative_to(directory), path) for path in sorted(directory.rglob("*")) if path.is_file()]
    return [(name.as_posix(), path) for name, path in named if not any(part.startswith(".") for part in name.parts)]


def hash_data(path: Path) -> str:
    """Returns the SHA-256 of a file, or of the names and contents of a directory's files.

    Raises:
        UserError: if it cannot be read.
    """
    digest = hashlib.sha256()
    for name, file in _list_files(path) if path.is_dir() else [("", path)]:
        with _detecting_unreadable(path), file.open("rb") as content:
            digest.update(f"{name}\0{hashlib.file_digest(content, 'sha256').hexdigest()}\0".encode())
    return digest.hexdigest()


def download(answer: http.client.HTTPResponse, target: Path, *, unpack: bool) -> None:
    """Writes the body of an answer to a path that does not exist, unpacked into a directory if it is a zip.

    Raises:
        UserError: if the path cannot be written, or the service sent no zip.
        UnreachableServiceError: if the answer was cut off.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as draft:
            file, directory = Path(draft, "file"), Path(draft, "directory")
            _copy(answer, file)
            if unpack:
                with zipfile.ZipFile(file) as packed:
                    packed.extractall(directory)
            (directory if unpack else file).rename(target)
    except zipfile.BadZipFile as error:
        raise UserError(f"the service did not send a zip: {first_line(error)}") from error
    except (ConnectionError, TimeoutError):  # Of the connection, which names them.
        raise
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}") from error


def _copy(answer: http.client.HTTPResponse, file: Path) -> None:
    expected = answer.headers.get("Content-Length")
    with file.open("wb") as output:
        shutil.copyfileobj(answer, output, CHUNK)
        if expected is not None and output.tell() != int(expected):
            raise UnreachableServiceError(f"the service sent {output.tell():,} of {int(expected):,} bytes: try again")


WIDTH = 20  # Of the bar, in columns.
EVERY_SECONDS = 20.0  # Between two lines of the steps of a training, where a line cannot be redrawn.


class ProgressLine:
    """The state of a job after the events until now."""

    def __init__(self) -> None:
        self.state, self.stage, self.error = "", "", ""
        self._progress: float | None = None
        self._left: float | None = None
        self._step = ""
        self._metrics: dict[str, float] = {}

    def add(self, event: Event) -> str:
        """Adds an event; returns the line that it is worth where nothing is redrawn, empty for a step."""
        data = event.data
        if event.kind in ("stage", "step"):
            self._progress = data.get("progress", self._progress)
            self._left = data.get("seconds_left", self._left if event.kind == "step" else None)
        if event.kind == "state":
            self.state, self.error = str(data.get("state", "")), str(data.get("error") or "")
            self._progress, self._left = 1.0 if self.state == "finished" else self._progress, None
            return self.state + (f": {self.error}" if self.error else "")
        if event.kind == "stage":
            self.stage, self._step = str(data.get("stage", "")), ""
            return self.describe()
        if event.kind == "step":
            loss = data.get("loss")
            self._step = f"{data.get('unit', 'step')} {data.get('step')}/{data.get('steps')}"
            self._step += f"  loss {loss:.4f}" if isinstance(loss, int | float) else ""
        elif event.kind == "metrics":
            values = data.get("metrics") or {}
            self._metrics = {name: value for name, value in values.items() if isinstance(value, int | float)}
            return self.describe()
        elif event.kind in ("notice", "warning"):
            return f"{event.kind.capitalize()}: {data.get('text', '')}"
        return ""

    def describe(self) -> str:
        """Returns the line: a bar, the stage, the step, the first metrics on dev and the time left, as far as known."""
        metrics = [f"{name} {value:.4f}" for name, value in list(self._metrics.items())[:2]]
        left = [] if self._left is None else [f"{_format_seconds(self._left)} left"]
        state = f"{self.state}: {self.error}" if self.error else self.state if self.state != "running" else ""
        words = [state, self.stage, self._step, *metrics, *left]
        return "  ".join(escape(word) for word in [self._draw_bar(), *words] if word)

    def _draw_bar(self) -> str:
        if self._progress is None:
            return ""
        share = min(1.0, max(0.0, self._progress))
        full = round(share * WIDTH)
        return f"[{'#' * full}{'.' * (WIDTH - full)}] {share:4.0%}"


def show_progress(events: Iterable[Event], output: TextIO | None = None) -> str:
    """Shows events until they end, and returns the last state of the job."""
    output = sys.stdout if output is None else output
    line, redraws, last, width = ProgressLine(), _can_redraw(output), time.monotonic(), 0
    try:
        for event in events:
            text = escape(line.add(event))
            if redraws:
                lasting = f"\r{text:<{width}}\n" if event.kind in ("notice", "warning") else ""
                shown = line.describe()[: shutil.get_terminal_size().columns - 1]
                output.write(f"{lasting}\r{shown:<{width}}")
                width = len(shown)
            elif text or (event.kind == "step" and time.monotonic() - last >= EVERY_SECONDS):
                last = time.monotonic()
                output.write(f"{text or line.describe()}\n")
            output.flush()
    finally:
        if redraws:
            output.write("\n")
            output.flush()
    return line.state


def _can_redraw(output: TextIO) -> bool:
    """Returns whether a line can be written again, as in a terminal and in the kernel of a notebook."""
    return output.isatty() or type(output).__module__.startswith("ipykernel")


def escape(text: str) -> str:
    """Returns a text on one line, with characters that would move the cursor spelled."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"


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
        return self._service.ask("GET", _path("jobs", job))

    def cancel(self, job: str) -> Json:
        """Cancels a job that is queued or runs, and returns it; one that has ended is refused."""
        return self._service.ask("DELETE", _path("jobs", job, cancel="1"))

    def remove(self, job: str) -> None:
        """Removes a job that has ended, with its files; one that is queued or runs is cancelled."""
        self._service.ask("DELETE", _path("jobs", job))

    def retry(self, job: str) -> Json:
        """Queues a job again that failed or was cancelled, under the same id, and returns it."""
        return self._service.ask("POST", _path("jobs", job, "retry"), {})

    def log(self, job: str, offset: int = 0) -> str:
        """Returns the output of a job until now, from a byte on."""
        parts: list[bytes] = []
        while not parts or parts[-1]:  # The service gives a part of a long one.
            place = _path("jobs", job, "log", offset=str(offset + sum(map(len, parts))))
            with self._service.open("GET", place) as answer:
                parts.append(answer.read())
        return b"".join(parts).decode("utf-8", "replace")

    def predict(self, job: str, inputs: Sequence[Any], *, run: str | None = None) -> Json:
        """Returns the predictions of the student of a finished job for texts or records, as `distill.serve` does.

        Args:
            run: one of the `runs` of a job that has several.
        """
        return self._service.ask("POST", _path("jobs", job, "predict", run=run), {"inputs": list(inputs)})

    def deploy(self, job: str, *, run: str | None = None) -> Json:
        """Puts the bundle of a finished job into the place of the one that a server of predictions serves."""
        return self._service.ask("POST", _path("jobs", job, "deploy", run=run), {})

    def upload(self, path: str | Path, *, name: str | None = None, format: str | None = None) -> Json:
        """Uploads a file, or a directory as a zip, and returns the data set, which overrides name as `data:NAME`.

        Args:
            name: of the data set; by default that of the file without its ending.
            format: csv, tsv, jsonl, parquet, conll, squad, text or zip; by default by the ending of the file.
        """
        path = Path(path).expanduser()
        with open_data(path) as (file, ending):
            place = _path("data", name or path.stem, format=format or FORMATS.get(ending, ending))
            return self._service.ask("PUT", place, file=file)

    def data(self, name: str) -> Json:
        """Returns the columns, the first rows and the problems of a data set."""
        return self._service.ask("GET", _path("data", name))

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
        place = _path("jobs", job, source, run=run, force="1" if force else None)
        with self._service.open("GET", place) as answer:
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
                for event in self._service.events(_path("jobs", job, "events"), after):
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


def _path(*parts: str, **query: str | None) -> str:
    """Returns a path with a query of the values that are given."""
    given = {name: value for name, value in query.items() if value is not None}
    return "".join(f"/{quote(part, safe='')}" for part in parts) + (f"?{urlencode(given)}" if given else "")


def _is_end(event: Event | None) -> bool:
    return event is not None and event.kind == "state" and event.data.get("state") in ENDED
