"""Tests of the command: what it refuses, and how it stops."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from distill.core.errors import UserError, install_command
from distill.serve.__main__ import TOKEN, main, read_token, write_log
from tests.serve.bundles.conftest import PATIENCE

CLIENTS = 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", "0.0.0.0"], "0.0.0.0 can be reached from other machines: set DISTILL_SERVE_TOKEN to a secret that"),
        (["--host", "example.org"], "example.org can be reached from other machines: set"),
        (["--port", "70000"], "got --port 70000, expected 0 to 65535"),
        (["--waiting", "0"], "got --waiting 0, expected at least 1"),
        (["--batch-size", "-1"], "got --batch-size -1, expected at least 1"),
        (["--seconds", "nan"], "got --seconds nan, expected more than 0"),
        (["--reload", "-1"], "got --reload -1, expected 0 or more"),
        (["--model", "int4"], "{bundle} has no model int4, expected one of fp32"),
        (["{bundle}"], "{bundle} and {bundle} have one name, films: give NAME=DIR"),
        (["nowhere"], "nowhere is no bundle: it has no bundle.json"),
        (["--characters", "9", "--total", "8"], "got --characters 9 and --total 8, expected --total to be no less"),
        (["a/b={bundle}"], "got the name 'a/b' of {bundle}, expected letters and digits: give NAME=DIR"),
    ],
)
def test_what_cannot_be_served_is_refused(
    bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    assert main([str(bundle), *(option.format(bundle=bundle) for option in options)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message.format(bundle=bundle)}")


def test_a_missing_extra_is_named(
    bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(sys.modules):
        if name.startswith("distill.serve.") and name != "distill.serve.__main__":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert main([str(bundle)]) == 2
    assert capsys.readouterr().err == f"error: distill.serve needs fastapi: {install_command('serve')}\n"


def test_a_port_in_use_is_named(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main([str(bundle), "--port", str(port)]) == 2
    errors = capsys.readouterr().err
    assert errors.endswith(f"error: cannot listen on 127.0.0.1, port {port}: choose another --host or --port\n")


def send_until_told_to_stop(port: int, answered: threading.Semaphore, lost: list[str]) -> None:
    """Sends one request after the other over one connection, until an answer says that it ends."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    while True:
        try:
            body = json.dumps({"texts": ["a film"]})
            connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.read()
        except (OSError, http.client.HTTPException) as error:
            lost.append(repr(error))
            return
        if response.status != 200:
            lost.append(str(response.status))
        answered.release()
        if response.getheader("connection") == "close":
            return


def test_every_request_is_answered_without_torch_when_a_signal_stops_the_server(bundle: Path) -> None:
    program = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'lightning', 'hydra', 'datasets'):\n"
        "    sys.modules[name] = None\n"
        "from distill.serve.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", program, str(bundle), "--port", "0"]
    environment = {name: value for name, value in os.environ.items() if name != TOKEN}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    address = re.fullmatch(r"serving films at http://127\.0\.0\.1:(\d+)\n", process.stdout.readline())
    assert address is not None
    answered, lost = threading.Semaphore(0), list[str]()
    arguments = (int(address[1]), answered, lost)
    clients = [threading.Thread(target=send_until_told_to_stop, args=arguments) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    for _ in range(10 * CLIENTS):
        assert answered.acquire(timeout=PATIENCE)
    process.send_signal(signal.SIGTERM)
    for client in clients:
        client.join(PATIENCE)
    _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, lost, errors) == (0, [], "")


def test_a_token_that_no_request_could_bear_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for token, message in (("  ", "has nothing but spaces"), ("a\x01b", "has a control character")):
        monkeypatch.setenv(TOKEN, token)
        with pytest.raises(UserError, match=message):
            read_token()
    monkeypatch.setenv(TOKEN, "secret\n")  # As a file ends.
    assert read_token() == "secret"


def test_the_server_goes_on_when_nobody_reads_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        write_log("films changed and was loaded again")
        write_log("and again")
        monkeypatch.undo()
