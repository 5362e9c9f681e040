"""Tests of the commands that ask a service."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from distill import client as commands
from distill.serve import client
from distill.serve.client import hash_data
from tests.conftest import run_here
from tests.serve.client.conftest import Answer, FakeService, stream
from tests.serve.client.test_client import JOB, STEP, pack
from tests.test_layout import HEAVY, ROOT

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command that asks the service; returns its exit code, stdout and stderr."""
    monkeypatch.setenv(commands.ADDRESS, service.url)
    monkeypatch.delenv(commands.TOKEN, raising=False)
    monkeypatch.setattr(client, "PAUSE", 0.0)

    def run(*arguments: str) -> tuple[int, str, str]:
        done = run_here(*arguments, cwd=tmp_path)
        return done.returncode, done.stdout, done.stderr

    return run


def end_job(service: FakeService, state: str, error: str | None = None) -> None:
    service.answer("GET /jobs/j1/events", stream((1, "step", STEP), (2, "state", {"state": state, "error": error})))
    service.answer("GET /jobs/j1", Answer({"id": "j1", "state": state}))


def test_a_local_file_is_uploaded_once_and_named_in_the_override(
    run: Run, service: FakeService, tmp_path: Path
) -> None:
    path = tmp_path / "my films.csv"
    path.write_text("text,label\na,b\n")
    name = f"my-films-{hash_data(path)[:12]}"
    service.answer("POST /jobs", Answer(JOB, 201))
    service.answer(f"PUT /data/{name}", Answer({"name": name}, 201))
    command = ("submit", "+teacher=minilm", "task.data_dir=my films.csv", "task.unlabelled=auto", "--name", "a job")
    assert run(*command) == (
        0, f"Uploaded my films.csv as data:{name}\nJob j1 is queued\ndistill watch j1 follows it\n", "",
    )  # fmt: skip
    (asked,) = service.asked("POST /jobs")
    overrides = ["+teacher=minilm", f"task.data_dir=data:{name}", "task.unlabelled=auto"]
    assert asked.body == {"overrides": overrides, "name": "a job"}
    service.answer(f"GET /data/{name}", Answer({"name": name}))
    assert run(*command)[1].startswith(f"The service has my films.csv as data:{name}\n")
    assert len(service.asked(f"PUT /data/{name}")) == 1


@pytest.mark.parametrize("key", ["task.bank", "+task.transfer.sst2", "adapt.data_dir", "task.tasks.sst2.data_dir"])
def test_a_directory_of_each_key_of_data_is_uploaded(key: str, run: Run, service: FakeService, tmp_path: Path) -> None:
    (tmp_path / "sst2").mkdir()
    (tmp_path / "sst2" / "train.tsv").write_text("a")
    name = f"sst2-{hash_data(tmp_path / 'sst2')[:12]}"
    service.answer(f"PUT /data/{name}", Answer({"name": name}, 201))
    service.answer("POST /jobs", Answer(JOB, 201))
    assert run("submit", "task=sst2", f"{key}=sst2")[0] == 0
    (tmp_path / "sst2" / "train.tsv").rename(tmp_path / "sst2" / "dev.tsv")
    assert hash_data(tmp_path / "sst2")[:12] not in name  # The names of files are content too.
    assert service.asked("POST /jobs")[0].body == {"overrides": ["task=sst2", f"{key}=data:{name}"]}


@pytest.mark.parametrize(
    ("state", "code", "last"),
    [
        ("finished", 0, "finished\ndistill fetch j1 downloads its bundle\n"),
        ("failed", 1, "failed: no room\n"),
        ("cancelled", 3, "cancelled\n"),
    ],
)
def test_the_exit_code_of_watch_is_that_of_the_job(
    state: str, code: int, last: str, run: Run, service: FakeService
) -> None:
    end_job(service, state, "no room" if state == "failed" else None)
    assert run("watch", "j1") == (code, last, "")
    service.answer("POST /jobs", Answer(JOB, 201))
    assert run("submit", "task=sst2", "--watch") == (code, f"Job j1 is queued\n{last}", "")


def test_an_interrupt_of_watch_leaves_the_job(run: Run, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "show_progress", interrupt)
    code, _, error = run("watch", "j1")
    assert code == 130
    assert error == ("error: job j1 goes on: distill watch j1 follows it again, and distill cancel j1 ends it\n")
    assert service.requests == []


def test_a_bundle_is_fetched_and_a_refusal_has_the_words_of_the_shell(
    run: Run, service: FakeService, tmp_path: Path
) -> None:
    service.answer("GET /jobs/j1/bundle.zip", Answer(pack(**{"bundle.json": "{}"})))
    assert run("fetch", "j1", "--to", "films") == (0, "films\n", "")
    assert (tmp_path / "films" / "bundle.json").read_text() == "{}"
    for line, shown in {
        "job j1 is running": "job j1 is running",
        "the job has 2 runs: add run=NAME, one of a, b": "the job has 2 runs: add --run NAME, one of a, b",
        "no file passed; force=1 gives the bundle all the same": "no file passed; --force fetches the bundle all the "
                                                                 "same",
        "the bearer token is missing or wrong": "the token is missing or wrong: give --token, or set "
                                                "DISTILL_SERVICE_TOKEN",
    }.items():  # fmt: skip
        service.answer("GET /jobs/j1/report", Answer({"error": line}, 409))
        assert run("fetch", "j1", "report") == (2, "", f"error: {shown}\n")


def test_texts_of_the_service_name_files_as_they_were_given(run: Run, service: FakeService, tmp_path: Path) -> None:
    (tmp_path / "my films.csv").write_text("text,label\na,b\n")
    name = f"my-films-{hash_data(tmp_path / 'my films.csv')[:12]}"
    command = ("submit", "task.data_dir=my films.csv")
    service.answer(f"PUT /data/{name}", Answer({"error": f"{name}.csv, line 2 has no label"}, 422))
    assert run(*command) == (2, "", "error: my films.csv, line 2 has no label\n")
    service.answer(f"GET /data/{name}", Answer({"name": name}))
    service.answer("POST /jobs", Answer({"error": f"data:{name} has one class"}, 422))
    assert run(*command)[2] == "error: my films.csv has one class\n"
    service.answer("POST /plan", Answer({"plan": f"data  data:{name}"}))
    assert run(*command, "--plan")[1].splitlines()[-1] == "data  my films.csv"
    service.answer("POST /jobs", Answer(JOB, 201))
    notice = {"kind": "notice", "text": f"data:{name} has 2 rows"}
    end_job(service, "failed")
    events = stream((1, "notice", notice), (2, "state", {"state": "failed", "error": f"data:{name}, line 2"}))
    service.answer("GET /jobs/j1/events", events)
    assert run(*command, "--watch")[1].splitlines()[-2:] == [
        "Notice: my films.csv has 2 rows", "failed: my films.csv, line 2"
    ]  # fmt: skip


def test_jobs_are_a_table_and_a_plan_and_a_cancel_are_printed(run: Run, service: FakeService, tmp_path: Path) -> None:
    running = {"id": "j2", "state": "running", "stage": "training", "progress": 0.5, "overrides": ["task=" + "x" * 60]}
    failed = {"id": "j1", "state": "failed", "stage": "data", "progress": 0.1, "error": "no column", "name": "films"}
    service.answer("GET /jobs", Answer({"jobs": [running, failed]}))
    assert run("jobs")[1].splitlines() == [
        "id  state    stage     done  job",
        f"j2  running  training  50%   task={'x' * 42}...",
        "j1  failed   data            no column",
    ]
    service.answer("DELETE /jobs/j1", Answer({"id": "j1", "state": "cancelling"}, 202))
    assert run("cancel", "j1") == (0, "Job j1 is cancelling\n", "")
    service.answer("POST /plan", Answer({"plan": "Teacher  minilm\nStudent  \x1b[2Jcnn", "seconds": 60}))
    (tmp_path / "model").mkdir()  # A model of this machine is not uploaded.
    printed = run("submit", "+teacher=pretrained", "teacher.path=model", "--plan")
    assert printed == (0, "Teacher  minilm\nStudent  \\x1b[2Jcnn\n", "")
    assert [request.path.partition("?")[0] for request in service.requests] == ["/jobs", "/jobs/j1", "/plan"]


def test_the_address_and_the_token_are_options_too(
    run: Run, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.answer("GET /jobs", Answer({"jobs": []}))
    monkeypatch.setenv(commands.ADDRESS, "http://127.0.0.1:1")
    monkeypatch.setenv(commands.TOKEN, "mine")
    assert run("jobs")[0] == 2
    assert run("jobs", "--url", service.url)[0] == 0
    assert run("jobs", "--url", service.url, "--token", "other")[0] == 0
    assert [request.headers["Authorization"] for request in service.requests] == ["Bearer mine", "Bearer other"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["jobs", "--all"], "error: distill jobs has no option --all: see distill jobs --help"),
        (["submit", "task=sst2", "-m"], "error: distill submit has no option -m: see distill submit --help"),
        (["cancel", "j1", "j2"], "error: distill cancel has no option j2: see distill cancel --help"),
        (["submit"], "error: nothing to submit: give key=value as in distill submit +teacher=NAME +student=NAME"),
    ],
)
def test_an_unknown_option_is_refused_in_one_line(
    arguments: list[str], message: str, run: Run, service: FakeService
) -> None:
    assert run(*arguments) == (2, "", f"{message}\n")
    assert service.requests == []


def test_the_commands_need_neither_torch_nor_hydra(service: FakeService) -> None:
    service.answer("GET /jobs", Answer({"jobs": []}))
    program = (
        "import runpy, sys\n"
        f"for name in {(*HEAVY, 'rich', 'numpy', 'onnxruntime', 'tokenizers', 'requests', 'httpx')}:\n"
        "    sys.modules[name] = None\n"
        f"sys.argv = ['distill', 'jobs', '--url', '{service.url}']\n"
        "runpy.run_module('distill', run_name='__main__', alter_sys=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "id  state  stage  done  job\n", "")
