"""Tests of the command: what it refuses, its accounts, and what its process has imported."""

import http.client
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from distill.core.errors import install_command
from distill.serve.jobs.accounts import Account, Accounts
from distill.service import main
from tests.serve.bundles.conftest import PATIENCE


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", "0.0.0.0"], "0.0.0.0 can be reached from other machines: add an account first, by python -m"),
        (["--port", "70000"], "got --port 70000, expected 0 to 65535"),
        (["--workers", "0"], "got --workers 0, expected at least 1"),
        (["--queue", "0"], "got --queue 0, expected at least 1"),
        (["--upload", "-5"], "got --upload -5, expected at least 1"),
        (["--keep-days", "-1"], "got --keep-days -1, expected a number of at least 0"),
        (["--idle", "nan"], "got --idle nan, expected a number of at least 0"),
        (["--teachers", "nowhere"], "--teachers nowhere is no directory: give one with a directory for each model"),
        (["--serve", "nowhere"], "got --serve nowhere, expected URL=DIRECTORY, such as http://127.0.0.1:8000=path"),
        (["--jobs", "3"], "--jobs is a limit of an account: add --add-token NAME"),
        (["--add-token", "../x"], "got the account '../x', expected a name of 1 to 100 letters"),
        (["--add-token", "ada", "--hours", "-1"], "got hours=-1.0 for account ada, expected a number of at least 0"),
        (["--remove-token", "ada"], "there is no account ada"),
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main([str(tmp_path / "service"), *options]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_a_missing_extra_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert main([str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"error: distill.service needs prometheus_client: {install_command('service')}\n"


def test_an_account_is_added_with_its_limits_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--add-token", "ada", "--jobs", "2", "--disk", "1000", "--hours", "1.5"]
    assert main([str(tmp_path), *options]) == 0
    token = capsys.readouterr().out.strip()
    accounts = Accounts(tmp_path / "accounts.json")
    assert accounts.find(token.encode()) == Account("ada", 2, 1000, 1.5)
    assert main([str(tmp_path), "--remove-token", "ada"]) == 0
    assert accounts.find(token.encode()) is None


@contextmanager
def serving(
    directory: Path, *options: str, program: str | None = None
) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """Runs a service in a process of its own, and yields it with its port."""
    start = ["-m", "distill.service"] if program is None else ["-c", program]
    command = [sys.executable, *start, str(directory), "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
            assert address is not None
            yield process, int(address[1])
        finally:
            process.kill()


def ask(port: int, method: str, path: str, body: object = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read().decode()
    connection.close()
    return response.status, content


def test_the_process_of_a_service_has_neither_torch_nor_onnxruntime(tmp_path: Path) -> None:
    """It has answered for data, options, metrics, a page and a check by then."""
    program = (
        "import sys, distill.service as command\n"
        "code = command.main(sys.argv[1:])\n"
        "heavy = {'torch', 'onnxruntime', 'transformers', 'hydra', 'numpy', 'ray', 'submitit', 'kubeflow'}\n"
        "print(sorted(heavy & set(sys.modules)), flush=True)\n"
        "sys.exit(code)\n"
    )
    with serving(tmp_path, program=program) as (process, port):
        for path in ("/", "/options", "/metrics", "/docs", "/healthz", "/jobs", "/data"):
            assert ask(port, "GET", path)[0] == 200
        assert ask(port, "PUT", "/data/films?format=csv", "text")[0] == 422
        status, content = ask(port, "POST", "/jobs", {"overrides": ["+teacher=minilm", "+student=nothing"]})
        assert (status, "expected one of" in content) == (422, True)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, output, errors) == (0, "[]\n", "")


def test_a_second_service_is_refused_and_a_drained_one_ends(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, _):
        command = [sys.executable, "-m", "distill.service", str(tmp_path), "--port", "0"]
        second = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert second.returncode == 2
        assert second.stderr.startswith(f"error: {tmp_path} is in use by another service")
        process.send_signal(signal.SIGUSR1)
        output, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, "")
    assert output == "draining: no job is started any more, and the service ends with those that run\n"
