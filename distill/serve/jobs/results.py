"""What is shown of a job, without the paths of this machine: its dry run, its events, its results and its files."""

import asyncio
import contextlib
import io
import json
import os
import re
import signal
import sys
import tempfile
import zipfile
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distill.core.console import VARIABLE
from distill.core.errors import UserError, hide_secrets, shorten
from distill.core.files import JsonObject
from distill.edge.bundle_files import NAME
from distill.records import verdict as verdicts
from distill.records.headline import describe_verdict
from distill.records.run import CONFIG, RECORD, read_plain
from distill.records.schema import fill_record, read_record
from distill.serve.http import RefusedError
from distill.serve.jobs.allowed_options import MULTIRUN, Scalar, Value, ValueKind, find_verdict, parse_override
from distill.serve.jobs.attempts import add_places, job_directory
from distill.serve.jobs.queue import JobEvent, Queue, QueuedJob, State

# A job resumes by itself, so that its owner has no command to which `resume` could be added.
_WORDS = (
    (re.compile(r"run the command without resume"), "submit the job anew"),
    (re.compile(r"python -m distill resume=[^\s\"]+"), "a retry of the job"),
    (re.compile(r"the same command with resume=true"), "a retry of the job"),
    (re.compile(r"run the command again( with resume=true)?"), "retry the job"),
)


def list_names(job: QueuedJob, directory: Path) -> dict[str, str]:
    """Returns what stands in the texts of a job in place of paths, by the path.

    The data sets and teachers are those of the job's overrides, whether or not they are still there.

    Args:
        directory: of the service.
    """
    own = job_directory(directory, job.id)
    return {
        **find_names(job.owner, job.overrides, job.data), f"{own / 'runs'}/": "",
        **name_directory(own, f"job {job.id}"), **name_directory(directory, "the service"),
    }  # fmt: skip


def name_directory(directory: Path, name: str) -> dict[str, str]:
    """Returns the name of a directory by its path; paths in it become relative to it."""
    return {f"{directory}/": "", str(directory): name}


def find_names(owner: str, overrides: Iterable[str], data: Collection[str]) -> dict[str, str]:
    """Returns `data:NAME` or `teacher:NAME` by each path that the service has put into the overrides of a job.

    Args:
        data: names of the data sets that the job reads.
    """
    names: dict[str, str] = {}
    for override in map(parse_override, (text for text in overrides if text not in MULTIRUN)):
        verdict = find_verdict(override.key)
        for path in filter(lambda text: text.startswith("/"), _list_texts(override.values)):
            found = re.search(rf"/data/{re.escape(owner)}/([^/]+)/content/", path)
            if found is not None and found[1] in data:
                names[path] = f"data:{found[1]}"
            elif verdict is not None and verdict.kind == ValueKind.TEACHER:
                names[path] = f"teacher:{Path(path).name}"
    return names


def rename(text: str, names: Mapping[str, str]) -> str:
    """Returns a text with names in place of paths, and with the words of somebody who has a job and no command."""
    for path in sorted(names, key=len, reverse=True):  # A path before those that are its start.
        text = text.replace(path, names[path])
    for pattern, words in _WORDS:
        text = pattern.sub(words, text)
    return text


def rename_json(text: str, names: Mapping[str, str]) -> str:
    """Returns a text of JSON with names in place of paths, as `rename` does."""
    return rename(text, {json.dumps(path)[1:-1]: name for path, name in names.items()})


def _list_texts(values: Iterable[Value]) -> Iterator[str]:
    """Yields the texts of values, also of those in lists and mappings."""
    for value in values:
        if isinstance(value, Scalar):
            yield value.text
        else:
            yield from _list_texts(value.values() if isinstance(value, dict) else value)


DRY_RUNS_AT_ONCE = 2  # Dry runs, each of which loads a teacher.
WAITING = 16  # Dry runs that wait for their turn.
SECONDS = 600.0  # After which a dry run is ended.


@dataclass(frozen=True)
class DryRun:
    """The result of a dry run.

    Args:
        plan: the summary before training.
        seconds: that all runs of the job will take; None where that is not known.
        notices: of the dry run.
    """

    plan: str
    seconds: float | None
    notices: tuple[str, ...]


class Planner:
    """Checks jobs by their dry run.

    Args:
        cache: directory of what runs share.
    """

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self._turns = asyncio.Semaphore(DRY_RUNS_AT_ONCE)
        self._waiting = 0

    async def plan(self, overrides: Sequence[str], names: Mapping[str, str]) -> DryRun:
        """Returns the plan of a job.

        Args:
            overrides: with the paths of data sets and teachers.
            names: what stands in a message in the place of a path, by the path.

        Raises:
            RefusedError: 422 with the line of the check, and 503 if others wait already.
        """
        if self._waiting >= WAITING:
            raise RefusedError(503, f"{WAITING} jobs are checked before this one: try again in a minute")
        self._waiting += 1
        try:
            async with self._turns:
                return await self._run(overrides, names)
        finally:
            self._waiting -= 1

    async def _run(self, overrides: Sequence[str], names: Mapping[str, str]) -> DryRun:
        with tempfile.TemporaryDirectory() as directory:
            events = Path(directory, "events.jsonl")
            options = add_places(overrides, {"output_dir": Path(directory, "runs"), "cache_dir": self.cache})
            names = {**names, **name_directory(Path(directory), "the check")}
            names |= name_directory(self.cache.absolute().parent, "the service")
            command = (sys.executable, "-m", "distill", *options, "dry_run=true")
            code, output, errors = await _run_command(command, {**os.environ, VARIABLE: str(events)})
            if code != 0:
                raise RefusedError(422, rename(_find_error(errors), names))
            lines = events.read_text(encoding="utf-8").splitlines() if events.is_file() else []
        seconds, notices = read_events(lines)
        text = "\n".join(line.rstrip() for line in output.strip().splitlines())
        return DryRun(rename(text, names), seconds, tuple(rename(notice, names) for notice in notices))


async def _run_command(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str, str]:
    """Returns the exit code, the output and the errors of a command, whose processes end with this call."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env=environment, start_new_session=True,
    )  # fmt: skip
    try:
        output, errors = await asyncio.wait_for(process.communicate(), SECONDS)
    except TimeoutError:
        raise RefusedError(422, f"the check took more than {SECONDS:g} s: take less data") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    return process.returncode or 0, output.decode(errors="replace"), errors.decode(errors="replace")


def _find_error(errors: str) -> str:
    """Returns the message of a command that failed, in one line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    ours = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return hide_secrets((ours or lines or ["the check failed without a message"])[-1])


def read_events(lines: Sequence[str]) -> tuple[float | None, list[str]]:
    """Returns the seconds that all runs of a dry run will take, None if one is not known, and the notices."""
    runs: list[float | None] = []
    notices: list[str] = []
    for event in map(json.loads, lines):
        if event["kind"] == "stage" and event["stage"] == "imports":
            runs.append(None)
        elif event["kind"] == "stage" and runs and event.get("seconds_left") is not None:
            runs[-1] = event["seconds_left"]
        elif event["kind"] in ("notice", "warning"):
            notices.append(event["text"])
    known = [seconds for seconds in runs if seconds is not None]
    return (sum(known) if known and len(known) == len(runs) else None), notices


EVERY_SECONDS = 0.2  # Between two looks for new events, of a job that somebody watches.
RECENT = 256  # Events that are kept for watchers who are not far behind; others read from the queue.
EVENTS_AT_ONCE = 100  # Events that a watcher who is behind reads at once.
WAIT_SECONDS = 1.0  # For a new event, before a watcher looks whether the service stops.
QUIET_SECONDS = 15.0  # After which a comment is sent, so that a proxy does not close the connection.


def render_event(event: JobEvent, names: Mapping[str, str]) -> bytes:
    """Returns an event in the form of server-sent events, with its number as the id.

    Args:
        names: what stands in its texts in place of paths, by the path.
    """
    data = rename_json(json.dumps({**event.data, "time": event.time, "attempt": event.attempt}), names)
    return f"id: {event.number}\nevent: {event.kind}\ndata: {data}\n\n".encode()


def is_end(event: JobEvent) -> bool:
    """Returns whether the event is the state of a job that has ended."""
    return event.kind == "state" and State(event.data["state"]).is_end


class Feed:
    """The newest events of one job, for as long as somebody watches it."""

    def __init__(self, queue: Queue, job: str, names: Mapping[str, str]) -> None:
        self.watchers, self.last = 0, 0
        self._queue, self._job, self._names = queue, job, names
        self._recent: deque[tuple[JobEvent, bytes]] = deque(maxlen=RECENT)
        self._changed = asyncio.Condition()
        self._reader: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Adds a watcher."""
        if self._reader is None:
            self._reader = asyncio.create_task(self._read())
        self.watchers += 1

    def end(self) -> None:
        """Removes a watcher."""
        self.watchers -= 1
        if not self.watchers and self._reader is not None:
            self._reader.cancel()

    async def next(self, after: int, seconds: float) -> list[tuple[JobEvent, bytes]]:
        """Returns the next events after a number, as soon as there are some; none after so many seconds."""
        if self.last <= after:
            try:
                async with asyncio.timeout(seconds), self._changed:
                    await self._changed.wait_for(lambda: self.last > after)
            except TimeoutError:
                return []
        if self._recent and self._recent[0][0].number <= after + 1:
            return [each for each in self._recent if each[0].number > after]
        events = await asyncio.to_thread(self._queue.events, self._job, after, EVENTS_AT_ONCE)
        if not events:  # The job was removed meanwhile.
            await asyncio.sleep(seconds)
        return [(event, render_event(event, self._names)) for event in events]

    async def _read(self) -> None:
        while True:
            events = await asyncio.to_thread(self._queue.events, self._job, self.last, EVENTS_AT_ONCE)
            if events:
                async with self._changed:
                    self._recent.extend((event, render_event(event, self._names)) for event in events)
                    self.last = events[-1].number
                    self._changed.notify_all()
            if len(events) < EVENTS_AT_ONCE:
                await asyncio.sleep(EVERY_SECONDS)


class Feeds:
    """The feeds of the jobs that are watched.

    Args:
        directory: of the service.

    Attributes:
        watched: those of the jobs that somebody watches, by the id of the job.
    """

    def __init__(self, queue: Queue, directory: Path) -> None:
        self._queue, self._directory = queue, directory
        self.watched: dict[str, Feed] = {}

    async def watch(self, job: str, after: int, is_open: Callable[[], bool]) -> AsyncGenerator[bytes]:
        """Yields the events of a job after a number, up to the state of its end, or until `is_open` is false.

        Those of a job that was tried again go on after such a state.
        """
        found = await asyncio.to_thread(self._queue.get, job)
        names = {} if found is None else list_names(found, self._directory)
        feed = self.watched.setdefault(job, Feed(self._queue, job, names))
        feed.begin()
        quiet = 0.0
        try:
            while is_open():
                events = await feed.next(after, WAIT_SECONDS)
                quiet = 0.0 if events else quiet + WAIT_SECONDS
                if events:
                    yield b"".join(content for _, content in events)
                    after = events[-1][0].number
                    if is_end(events[-1][0]) and not await asyncio.to_thread(self._queue.events, job, after, 1):
                        return
                elif await asyncio.to_thread(self._queue.get, job) is None:  # It was removed.
                    return
                elif quiet >= QUIET_SECONDS:
                    quiet = 0.0
                    yield b": \n\n"
        finally:
            feed.end()
            if not feed.watchers and self.watched.get(job) is feed:
                del self.watched[job]


Result = dict[str, Any]
NUMBERS = (
    "task", "metric", "split", "teacher", "student", "retained", "file", "exported", "mb", "ms", "gate", "reason",
)  # fmt: skip


def list_runs(root: Path) -> list[str]:
    """Returns the directories of the runs below `root`, relative to it, oldest first: several of a sweep."""
    found = [path.parent for path in root.rglob(RECORD)]
    return [path.relative_to(root).as_posix() for path in sorted(found, key=lambda path: (path.name, str(path)))]


def read_results(root: Path, typed: Collection[str] = ()) -> list[Result]:
    """Returns a result for each run below `root` whose record can be read, and for each task of a run on several.

    Args:
        typed: the names of the options of the job, for the `title` of each of several runs.
    """
    found: list[Result] = []
    runs = list_runs(root)
    titles = name_runs(root, runs, typed)
    for run in runs:
        try:
            record = read_record(root / run)
        except UserError:  # It is being written, or was begun by another version.
            continue
        found += [{"run": run, "title": titles[run], **read_result(section)} for section in sections(record)]
    return found


def name_runs(root: Path, runs: Sequence[str], typed: Collection[str] = ()) -> dict[str, str]:
    """Returns the options in which each of several runs differs from the others; where that is nothing, its directory.

    Args:
        typed: the names of the options of the job, which stand before others.
    """
    options = []
    for run in runs:
        try:
            options.append(verdicts.flatten_options(read_plain(root / run / CONFIG)))
        except UserError:  # It has none, or is being written.
            options.append({})
    chosen = verdicts.select_options(options, typed)
    names = verdicts.shorten_names(name for row in chosen for name in row)
    titles = [verdicts.describe_options(row, names) for row in chosen]
    is_unique = len(set(titles)) == len(runs)
    return {run: title if is_unique and title else run for run, title in zip(runs, titles, strict=True)}


def sections(record: JsonObject) -> list[JsonObject]:
    """Returns the record of each of several tasks, or the record itself."""
    return [fill_record(section) for section in verdicts.task_sections(record).values()] or [record]


def read_result(record: JsonObject) -> Result:
    """Returns the headline of a record: the metric of teacher and student, the share kept, size, time and gate.

    `student` is the metric in torch. `file` is the recommended file, whose metric, size and time (for one text of the
    smallest length that was timed) are `exported`, `mb` and `ms`. Values that are not known are None. `verdict` are
    sentences, a title first.
    """
    task = record["task"]
    if not task:
        return {**dict.fromkeys(NUMBERS), "verdict": []}
    results = verdicts.Results(record)
    decided, teacher = results.decide(), results.measure("teacher")
    file = record["export"].get(decided.file) if decided and decided.file else None
    exported = results.measure(decided.file) if decided and decided.file else None
    timing = results.timing("student", f"onnx-{decided.file}") if decided and file else None
    return {
        "task": task["name"], "metric": task["metric"], "split": results.split,
        "teacher": teacher and teacher["mean"], "student": decided and decided.student["mean"],
        "retained": decided and decided.share, "file": file and file["file"], "exported": exported and exported["mean"],
        "mb": file and file["bytes"] / 1e6, "ms": timing and timing["p50_ms"],
        "gate": find_gate(record["export"]), "reason": describe_gates(record["export"]),
        "verdict": describe_verdict(record),
    }  # fmt: skip


def find_gate(export: Mapping[str, Any]) -> str | None:
    """Returns the gate of the file to use: `passed`, `undecided`, or `failed` if no file passed; None without files."""
    if not export:
        return None
    chosen = verdicts.recommend(export)
    return "failed" if chosen is None else str(export[chosen]["gate"])


def describe_gates(export: Mapping[str, Any]) -> str | None:
    """Returns why no file passed its gate; None if one did."""
    if find_gate(export) != "failed":
        return None
    return "; ".join(f"{file['file']} {verdicts.describe_gate(file)}" for file in export.values() if file.get("reason"))


PART = 262_144  # Bytes of a file that are read at once.
REPORT = "report.html"


def choose_run(root: Path, name: str | None) -> Path:
    """Returns the directory of a run below `root`: the one of this name, or the only one.

    A part of a name is enough where one run alone has it: `bilstm` for `toy/minilm-bilstm/1`.

    Raises:
        RefusedError: if there is none, or several and no name.
    """
    runs = list_runs(root)
    if name is not None:
        return root / _find_run(runs, name)
    if not runs:
        raise RefusedError(409, "the job has no run yet: wait until it has finished")
    if len(runs) > 1:
        raise RefusedError(409, f"the job has {len(runs)} runs: add run=NAME, one of {', '.join(runs)}")
    return root / runs[0]


def _find_run(runs: Sequence[str], name: str) -> str:
    """Returns the run of a name, or else the only one that has it as a directory or, if none has, as a part."""
    by_directory = [run for run in runs if name in run.split("/")]
    found = [name] if name in runs else by_directory or [run for run in runs if name and name in run]
    if len(found) > 1:
        raise RefusedError(409, f"{len(found)} runs of the job have {shorten(name)}: {', '.join(found)}")
    if not found:
        raise RefusedError(404, f"the job has no run {shorten(name)}, expected one of {', '.join(runs) or 'none yet'}")
    return found[0]


def find_bundle(run: Path, *, force: bool = False) -> Path:
    """Returns the directory of a run's bundle, which is that of its baseline where that is the better student.

    Args:
        force: whether to return one of which no file passed its gate.

    Raises:
        RefusedError: if there is none, or no file passed its gate.
    """
    record = _read(run)
    decided = verdicts.Results(record).decide() if record["task"] else None
    directory = run / (decided.bundle if decided and decided.bundle else verdicts.BUNDLE)
    if not any(directory.rglob(NAME)):
        if record["status"] == "running":
            raise RefusedError(409, "the bundle is not written yet: wait until the job has finished")
        raise RefusedError(404, "the run has no bundle: its student was not exported")
    reasons = [f"no file passed its gate: {reason}" for reason in map(_find_reason, sections(record)) if reason]
    if reasons and not force:
        raise RefusedError(409, f"{'; '.join(reasons)}; force=1 gives the bundle all the same")
    return directory


def _find_reason(record: JsonObject) -> str | None:
    decided = verdicts.Results(record).decide() if record["task"] else None
    is_baseline = decided is not None and decided.bundle == verdicts.BASELINE_BUNDLE
    return describe_gates(record["baseline"]["export"] if is_baseline else record["export"])


def find_student(run: Path) -> Path:
    """Returns the directory of a run's student in torch.

    Raises:
        RefusedError: if there is none.
    """
    directory = run / "student"
    if not directory.is_dir():
        raise RefusedError(409, "the student is not written yet: wait until the job has finished")
    return directory


def find_report(root: Path, name: str | None) -> Path:
    """Returns the report of one run, or by default of the whole job, which for several runs is that of their sweep.

    Raises:
        RefusedError: if there is none.
    """
    of_sweep = root / "sweep" / REPORT
    path = of_sweep if name is None and of_sweep.is_file() else choose_run(root, name) / REPORT
    if not path.is_file():
        raise RefusedError(409, "the report is not written yet: wait until the job has finished")
    return path


def _read(run: Path) -> JsonObject:
    try:
        return read_record(run)
    except UserError as error:
        raise RefusedError(409, str(error)) from error


class _Parts(io.RawIOBase):
    """What a zip has written since it was last taken."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, part: object, /) -> int:
        content = bytes(part)  # type: ignore[call-overload]  # Any buffer.
        self._parts.append(content)
        return len(content)

    def take(self) -> bytes:
        content = b"".join(self._parts)
        self._parts.clear()
        return content


def stream_zip(directory: Path) -> Iterator[bytes]:
    """Yields a zip of a directory in parts of about `PART` bytes, while it is made.

    Files are stored as they are, because weights hardly shrink. Links are left out.
    """
    parts = _Parts()
    with zipfile.ZipFile(parts, "w", zipfile.ZIP_STORED) as archive:  # type: ignore[arg-type]  # It only writes.
        for path in sorted(directory.rglob("*")):
            if not path.is_file() or path.is_symlink() or path.name.startswith("."):
                continue
            entry = zipfile.ZipInfo.from_file(path, path.relative_to(directory).as_posix(), strict_timestamps=False)
            with open(path, "rb") as source, archive.open(entry, "w", force_zip64=True) as target:
                while part := source.read(PART):
                    target.write(part)
                    yield parts.take()
    yield parts.take()
