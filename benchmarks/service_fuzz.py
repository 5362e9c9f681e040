"""Does any request make the service fail, or read or write anything outside its directory?

    python benchmarks/service_fuzz.py [--requests 10000] [--seed 0] [--json]

The service has two accounts, true uploads and a queue; its dry runs and jobs are stand-ins, because the overrides that
it takes are what is looked at. Requests are drawn by hypothesis: methods, paths, headers, tokens, overrides, forms,
uploads, hostile zips, and bytes that are no HTTP. An audit hook (PEP 578) in the service and in its children notes
every file that is opened, renamed or removed, and every process that is started. The exit code is 1 if a request is
answered with 500 or a traceback, shows what another account owns, or leads outside the directory.
"""

import argparse
import contextlib
import gzip
import io
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # Imports this checkout, not an installed distill.

SECRET = "the content of a file of the machine"
OWNED = "owned by ada"
PATIENCE = 120.0  # Seconds for an answer.
MOST = 200_000  # Bytes of an answer that are looked at.
TEXTS = ("task.text=", "task.label=", "task.labels=", "task.prefix=", "task.separator=", "teacher.labels=")
# In every process of the service: notes what leads outside the directory.
HOOK = """
import os, sys

_inside = os.environ["FUZZ_INSIDE"]
_log = os.open(os.environ["FUZZ_LOG"], os.O_WRONLY | os.O_APPEND)
_readable = (*os.environ["FUZZ_READABLE"].split(os.pathsep), "/proc/", "/sys/", "/usr/", "/lib/", "/etc/localtime")
_devices = ("/dev/null", "/dev/urandom")
_changes = {
    "os.rename": 2, "os.remove": 1, "os.mkdir": 1, "os.rmdir": 1, "os.link": 2, "os.symlink": 2, "os.truncate": 1,
    "os.chmod": 1, "os.chown": 1, "os.utime": 1, "shutil.rmtree": 1, "shutil.move": 2, "shutil.copyfile": 2,
}

def _is_inside(path):
    return path == _inside or path.startswith(_inside + "/") or path in _devices

def _find(path, directory=-1):
    path = os.fsdecode(path)
    if path.startswith("/") or not isinstance(directory, int) or directory < 0:
        return os.path.normpath(path)
    return os.path.normpath(os.path.join(os.readlink(f"/proc/self/fd/{directory}"), path))

def _check(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        path, _, flags = arguments
        place = _find(path)
        if "/" not in place and ".." not in place:
            return None  # Of a directory that is open; its name was checked.
        writes = (flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        return None if _is_inside(place) or (not writes and place.startswith(_readable)) else place
    if event in _changes:
        number = _changes[event]
        for path in arguments[:number]:
            if isinstance(path, (str, bytes)):
                place = _find(path, arguments[-1] if event != "shutil.rmtree" else -1)
                if not _is_inside(place):
                    return place
    if event == "subprocess.Popen" and list(arguments[1][1:3]) != ["-m", "distill.serve.jobs.uploads"]:
        return str(arguments[1])
    return str(arguments) if event in ("os.system", "os.exec", "os.posix_spawn", "os.putenv_", "exec_") else None

def _hook(event, arguments):
    try:
        found = _check(event, arguments)
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    if found is not None:
        os.write(_log, f"{event} {found}\\n".encode("utf-8", "backslashreplace"))

sys.addaudithook(_hook)
"""


@dataclass(frozen=True)
class Machine:
    """The files of one experiment.

    Attributes:
        service: the directory of the service.
        outside: a directory beside it, with a secret, that nothing may touch.
        log: of what led outside.
        accepted: the overrides that were taken, one JSON list a line.
    """

    root: Path

    @property
    def service(self) -> Path:
        return self.root / "service"

    @property
    def outside(self) -> Path:
        return self.root / "outside"

    @property
    def log(self) -> Path:
        return self.root / "audit" / "outside.log"

    @property
    def accepted(self) -> Path:
        return self.service / "accepted.jsonl"

    @property
    def errors(self) -> Path:
        return self.root / "audit" / "stderr"


@dataclass
class Outcome:
    """Counts of one experiment, and what went wrong."""

    requests: int = 0
    accepted: int = 0
    uploads: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


# The service


def serve(directory: Path, accepted: Path) -> None:
    """Serves with stand-ins for the dry run and the jobs, and prints its port and the tokens of two accounts."""
    from distill.serve.http import Server
    from distill.serve.jobs.accounts import Account, Accounts
    from distill.serve.jobs.engines import LocalEngine
    from distill.serve.jobs.job_service import Service, Settings
    from distill.serve.jobs.paths import create_app
    from distill.serve.jobs.queue import Queue
    from distill.serve.jobs.results import DryRun
    from distill.serve.limits import Limits

    class StandIn:
        """Takes every job, and notes its overrides."""

        async def plan(self, overrides: Sequence[str], names: Mapping[str, str]) -> DryRun:
            os.write(noted, f"{json.dumps(list(overrides))}\n".encode())
            return DryRun("a plan", 1.0, ())

    noted = os.open(accepted, os.O_WRONLY | os.O_APPEND)
    accounts = Accounts(directory / "accounts.json")
    tokens = [accounts.add(Account("ada")), accounts.add(Account("bo", jobs=50, disk=10**8))]
    (directory / "teachers" / "small").mkdir(parents=True)
    service = Service(
        directory, Queue(directory / "jobs.sqlite"), LocalEngine(),
        settings=Settings(upload=10**6, teachers=directory / "teachers"), accounts=accounts, hosts=(),
        limits=Limits(body=100_000), log=lambda line: print(json.dumps([line, *tokens]), flush=True),
    )  # fmt: skip
    service.planner = StandIn()  # type: ignore[assignment]
    service.dispatcher.start = lambda: None  # type: ignore[method-assign]  # Jobs wait.
    service.dispatcher.is_alive = lambda: True  # type: ignore[method-assign]
    Server(service, create_app(service), host="127.0.0.1", port=0).run()


# The requests


def make_zip(entries: Sequence[tuple[str, bytes, int]]) -> bytes:
    """Returns a zip with the name, the content and the mode of each entry."""
    buffer = io.BytesIO()
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(buffer, "w") as archive:  # A name is there twice.
        for name, content, mode in entries:
            entry = zipfile.ZipInfo(name)
            entry.external_attr, entry.compress_type = mode << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return buffer.getvalue()


def create_texts(machine: Machine, jobs: Sequence[str]) -> Any:
    """Returns a strategy of texts, many of which lead elsewhere."""
    from hypothesis import strategies as st

    hostile = [
        f"{machine.outside}/secret.txt", "../../outside/secret.txt", "..", "../..", "/", "/etc/passwd", "a\0b", "",
        "a" * 10_000, "%2e%2e%2f", "..%2f..%2foutside%2fsecret.txt", "%00", "films", "data:films", "data:../outside",
        "teacher:small", "teacher:../outside", "${oc.env:HOME}", "<script>alert(1)</script>", "\ud800", "é", "\n", "🙂",
        "null", *jobs,
    ]  # fmt: skip
    return st.sampled_from(hostile) | st.text(max_size=20)


def create_values(text: Any) -> Any:
    """Returns a strategy of values of JSON."""
    from hypothesis import strategies as st

    return st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | text,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
        max_leaves=8,
    )


def create_jobs(text: Any) -> Any:
    """Returns a strategy of the bodies of jobs."""
    from hypothesis import strategies as st

    keys = [
        "task", "+teacher", "+student", "teacher.path", "task.data_dir", "task.text", "task._target_", "hydra.run.dir",
        "trust", "cache_dir", "task.splits", "task.transfer", "task.unlabelled", "teacher.paths", "seed", "+experiment",
        "teacher.trust_remote_code", "output_dir", "resume", "job", "logger", "teacher.id", "~task", "task@x",
        "hydra/launcher", "objective.terms.soft._target_", "++task.name", "export.vocabulary_texts", "task.tasks",
    ]  # fmt: skip
    taken = [
        "minilm", "bilstm", "classification", "data:films", "[a,b]", "{de:data:films}", "{a:[x]}", "1,2", "range(1,4)"
    ]  # fmt: skip
    value = st.sampled_from(taken) | text | st.builds("[{}]".format, text) | st.builds("'{}'".format, text)
    override = st.builds("{}={}".format, st.sampled_from(keys) | text, value)
    plain = ["-m", "+teacher=minilm", "+student=bilstm", "task=classification", "task.data_dir=data:films", "seed=1,2"]
    overrides = st.lists(override, max_size=4) | st.lists(st.sampled_from(plain) | override, max_size=4)
    names = ("teacher", "student", "task", "data", "columns", "options")
    form = st.fixed_dictionaries({}, optional={name: create_values(text) for name in names})
    body = (
        st.fixed_dictionaries({"overrides": st.lists(st.sampled_from(plain), min_size=1, max_size=5)})
        | st.fixed_dictionaries({"overrides": overrides}, optional={"name": text})
        | st.fixed_dictionaries({"form": form}, optional={"name": text})
        | st.fixed_dictionaries({}, optional={"overrides": create_values(text), "form": form, "name": text})
        | create_values(text)
    )
    return body.map(_dump)


def create_uploads(machine: Machine, text: Any) -> tuple[Any, Any, Any]:
    """Returns strategies of the bytes of uploads: of tables, of zips, and of anything."""
    from hypothesis import strategies as st

    secret, row = f"{machine.outside}/secret.txt", b"text,label\n" + b"a film,good\n" * 9
    names = st.sampled_from(["train.csv", "a/dev.csv", "../evil.csv", secret, "link.csv", "x.py", "a\\b.csv"]) | text
    content = st.sampled_from([row, secret.encode(), bytes(10**5)])
    mode = st.sampled_from([0o100644, 0o120777, 0o040755, 0o010644, 0])
    entries = st.lists(st.tuples(names.filter(_is_unicode), content, mode), max_size=4)
    known = [row, gzip.compress(row), b"PAR1", b"", b"[" * 50_000, row.replace(b",", b";"), b"\xff\xfea"]
    table = st.builds(lambda rows, rest: rows + rest, st.just(row), st.binary(max_size=20))
    zips = st.builds(make_zip, entries)
    others = st.sampled_from(known) | st.binary(max_size=200) | create_values(text).map(_dump)
    return table, zips, table | zips | others


def create_paths(text: Any, jobs: Sequence[str]) -> tuple[Any, Any, Any]:
    """Returns strategies of the paths of jobs, of those of data sets, and of all."""
    from hypothesis import strategies as st

    of_job = [
        "", "/events", "/log", "/log?offset=-1", "/bundle.zip?run=../..&force=1", "/student.zip", "/deploy", "/predict",
        "/report?run=%2e%2e/%2e%2e", "/retry", "/pin", "/x",
    ]  # fmt: skip
    of_data = ["", *(f"?format={name}" for name in ("csv", "zip", "squad", "conll", "parquet", "../x")), "?x[]=%ff"]
    others = [
        "/", "/jobs", "/plan", "/data", "/options", "/metrics", "/healthz", "/docs", "/openapi.json", "//", "/../x"
    ]  # fmt: skip
    job = st.builds("/jobs/{}{}".format, st.sampled_from(list(jobs)) | text, st.sampled_from(of_job))
    name = text | st.sampled_from([f"set{number}" for number in range(40)])
    data = st.builds("/data/{}{}".format, name, st.sampled_from(of_data))
    return job, data, job | data | st.sampled_from(others) | st.builds("/{}".format, text)


def create_requests(machine: Machine, tokens: Sequence[str], jobs: Sequence[str]) -> Any:
    """Returns a strategy of requests."""
    from hypothesis import strategies as st

    text = create_texts(machine, jobs)
    body, (table, zips, upload) = create_jobs(text), create_uploads(machine, text)
    of_job, of_data, path = create_paths(text, jobs)
    names = [
        "Host", "Origin", "Content-Type", "Last-Event-ID", "Range", "Expect", "Sec-Fetch-Site", "Content-Encoding",
        "Transfer-Encoding", "Content-Length", "X-Forwarded-For", "Cookie",
    ]  # fmt: skip
    values = [
        "evil.example", "http://evil.example", "null", "text/html", "bytes=0-", "-1", "99999999999999", "gzip", "\xff",
        "chunked", "cross-site", "100-continue", "http://[",
    ]  # fmt: skip
    headers = st.dictionaries(st.sampled_from(names), st.sampled_from(values), max_size=2)
    token = st.sampled_from([*tokens, tokens[0], "", "wrong", "\xe9"])
    method = st.sampled_from(["GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "x"])
    plain, data_sets = st.just(dict[str, str]()), st.builds("/data/set{}?format=".format, st.integers(0, 60))
    jobs_body = st.builds(
        build_request, st.just("POST"), st.sampled_from(["/jobs", "/plan"]), body, plain, st.sampled_from(tokens)
    )
    of_jobs = st.builds(
        build_request, st.sampled_from(["GET", "DELETE", "PUT", "POST"]), of_job, body, plain, st.sampled_from(tokens)
    )
    anything = st.builds(build_request, method, path, body | upload, headers, token)
    any_upload = st.builds(build_request, st.just("PUT"), of_data, upload, headers | plain, token)
    true_table, true_zip = (
        st.builds(
            build_request, st.just("PUT"), data_sets.map(f"{{}}{name}".format), content, plain, st.sampled_from(tokens)
        )
        for name, content in (("csv", table), ("zip", zips))
    )
    # An upload that is whole takes a process, a second of the machine.
    often = jobs_body | of_jobs | anything
    built = st.integers(0, 49).flatmap(lambda number: (any_upload | true_table | true_zip) if number == 0 else often)
    cut = st.builds(lambda whole, share: whole.cut(share), built, st.floats(0, 1))
    raw = st.builds(Request, st.binary(max_size=300) | st.just(b"GET / HTTP/9\r\n\r\n"), st.just(""), st.just(False))
    return st.integers(0, 9).flatmap(lambda number: {0: cut, 1: raw}.get(number, built))


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


@dataclass(frozen=True)
class Request:
    """The bytes of a request, the token in it, and whether its end is where its headers say."""

    content: bytes
    token: str
    is_whole: bool

    def cut(self, share: float) -> "Request":
        """Returns the beginning of the request."""
        return Request(self.content[: int(len(self.content) * share)], self.token, is_whole=False)


def _dump(value: object) -> bytes:
    return json.dumps(value).encode()


def build_request(method: str, path: str, body: bytes, headers: Mapping[str, str], token: str) -> Request:
    """Returns a request; what its path may not have is escaped."""
    line = quote(path, safe="/?&=%.:$<>[]{}", errors="replace")
    given = {
        "Host": "127.0.0.1", "Content-Type": "application/json", "Content-Length": str(len(body)),
        "Connection": "close", **({"Authorization": f"Bearer {token}"} if token else {}), **headers,
    }  # fmt: skip
    head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    content = f"{method} {line} HTTP/1.1\r\n{head}\r\n".encode("utf-8", "replace") + body
    return Request(content, token, is_whole=not {"Content-Length", "Transfer-Encoding", "Expect"} & set(headers))


def send(port: int, request: Request) -> bytes:
    """Returns the answer to a request, or its beginning."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        answer = bytearray()
        with contextlib.suppress(OSError):  # It was refused before it was sent.
            connection.sendall(request.content)
            if not request.is_whole:
                connection.shutdown(socket.SHUT_WR)
        try:
            while len(answer) < MOST and (part := connection.recv(65_536)):
                answer += part
                if b"text/event-stream" in answer:
                    break
        except ConnectionResetError:
            pass
        return bytes(answer)


def check_answer(answer: bytes, token: str, ada: str) -> tuple[int, str | None]:
    """Returns the status of an answer, 0 for none, and what is wrong with it."""
    if not answer:
        return 0, None
    status = int(answer[9:12]) if answer[9:12].isdigit() else -1
    head, _, body = answer.partition(b"\r\n\r\n")
    if status in (-1, 500) or b"Traceback" in answer:
        return status, "failed"
    if SECRET.encode() in answer:
        return status, "shows a file of the machine"
    if OWNED.encode() in answer and token != ada:
        return status, "shows what another account owns"
    if status >= 400 and b"application/json" in head and head[:4] == b"HTTP":
        found = re.search(rb"\{.*\}", body, re.DOTALL)
        reason = json.loads(found[0])["error"] if found else ""
        if found and (not reason or len(reason.splitlines()) != 1 or len(reason) > 3_000):
            return status, "has no reason of one line"
    return status, None


# The experiment


def run(count: int, seed: int) -> Outcome:
    """Sends the requests and looks at the answers and at what was opened."""
    with tempfile.TemporaryDirectory() as directory:
        machine = Machine(Path(directory).resolve())
        hook, empty = machine.root / "hook", machine.root / "empty"
        for path in (machine.service, machine.outside, machine.log.parent, hook, empty):
            path.mkdir()
        (machine.outside / "secret.txt").write_text(SECRET)
        (hook / "sitecustomize.py").write_text(HOOK)
        machine.log.touch()
        machine.accepted.touch()
        readable = os.pathsep.join(map(str, (ROOT, sys.prefix, sys.base_prefix, hook, empty, *filter(None, sys.path))))
        environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join([str(hook), str(ROOT)]),
            "PYTHONDONTWRITEBYTECODE": "1", "FUZZ_INSIDE": str(machine.service), "FUZZ_LOG": str(machine.log),
            "FUZZ_READABLE": readable,
        }  # fmt: skip
        with open(machine.errors, "wb") as errors:
            service = subprocess.Popen(
                [sys.executable, str(Path(__file__).resolve()), "--serve", str(machine.service), str(machine.accepted)],
                stdout=subprocess.PIPE, stderr=errors, env=environment, cwd=empty,
            )  # fmt: skip
        assert service.stdout is not None
        try:
            line, *tokens = json.loads(service.stdout.readline())
            outcome = send_all(machine, int(line.rpartition(":")[2]), tokens, count=count, seed=seed)
            if service.poll() is not None:
                outcome.faults.append(f"the service ended with {service.returncode}")
        finally:
            service.terminate()
            service.wait()
            service.stdout.close()
        check_machine(machine, outcome)
        return outcome


def send_all(machine: Machine, port: int, tokens: Sequence[str], *, count: int, seed: int) -> Outcome:
    """Sends drawn requests to a service that has a data set and two jobs of an account."""
    import hypothesis

    outcome = Outcome()
    rows = b"text,label\n" + b"".join(b"%s %d,good\n" % (OWNED.encode(), number) for number in range(9))
    first = send(port, build_request("PUT", "/data/films?format=csv", rows, {}, tokens[0]))
    job = _dump({"overrides": ["+teacher=minilm", "task.data_dir=data:films"], "name": OWNED})
    made = [send(port, build_request("POST", "/jobs", job, {}, tokens[0])) for _ in range(2)]
    assert first[9:12] == b"201", first
    jobs = [json.loads(answer.partition(b"\r\n\r\n")[2])["id"] for answer in made]

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count, database=None, deadline=None, suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )  # fmt: skip
    @hypothesis.given(create_requests(machine, tokens, jobs))
    def ask(request: Request) -> None:
        answer = send(port, request)
        status, fault = check_answer(answer, request.token, tokens[0])
        if not answer and request.is_whole:
            fault = "has no answer"
        outcome.requests += 1
        outcome.statuses[status] += 1
        outcome.uploads += request.content.startswith(b"PUT /data/") and status == 201
        if fault is not None:
            outcome.faults.append(f"{request.content[:300]!r} {fault}: {answer[:300]!r}")

    ask()
    return outcome


def check_machine(machine: Machine, outcome: Outcome) -> None:
    """Adds what led outside, tracebacks, and overrides that name a path that is not the service's."""
    from distill.serve.jobs.allowed_options import is_name

    outside = list(dict.fromkeys(machine.log.read_text(errors="replace").splitlines()))
    outcome.faults += [f"led outside: {line}" for line in outside]
    if "Traceback" in machine.errors.read_text(errors="replace"):
        outcome.faults.append(f"a traceback: {machine.errors.read_text(errors='replace')[-1_000:]}")
    if [path.name for path in machine.outside.iterdir()] != ["secret.txt"]:
        outcome.faults.append("a file was written outside")
    links = [str(path) for path in machine.service.rglob("*") if path.is_symlink()]
    outcome.faults += [f"a link was written: {path}" for path in links]
    for owner in (machine.service / "data").iterdir():
        if owner.name != ".uploads" and not all(is_name(path.name) for path in [owner, *owner.iterdir()]):
            outcome.faults.append(f"a wrong name was written below {owner}")
    for line in machine.accepted.read_text().splitlines():
        outcome.accepted += 1
        for override in json.loads(line):
            plain = re.sub(rf"'{re.escape(str(machine.service))}/(data|teachers)/[\w./-]+'", "", override)
            key = override.partition("=")[0]
            named = "${" in override or "_target_" in key or "trust" in key
            if named or ("/" in plain and not plain.lstrip("+").startswith(TEXTS)):
                outcome.faults.append(f"the override {override!r} was taken")


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the counts; returns 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve is not None:
        serve(*options.serve)
        return 0
    outcome = run(options.requests, options.seed)
    statuses = dict(sorted(outcome.statuses.items()))
    if options.json:
        print(json.dumps({**vars(outcome), "statuses": statuses}))
    else:
        print(
            f"{outcome.requests:,} requests: {outcome.accepted:,} jobs or plans and {outcome.uploads:,} uploads taken"
        )
        print("answers by status, 0 for a closed connection:", ", ".join(f"{k}: {v:,}" for k, v in statuses.items()))
        print(f"{len(outcome.faults):,} faults")
        print("\n".join(outcome.faults[:20]))
    return int(bool(outcome.faults))


if __name__ == "__main__":
    sys.exit(main())
