"""Tests that no request makes the service fail or leads it outside its directory, with fewer than the benchmark has."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import service_fuzz


def test_no_drawn_request_fails_or_leads_outside() -> None:
    count = os.environ.get("DISTILL_FUZZ", "60")
    command = [sys.executable, service_fuzz.__file__, "--requests", count, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    outcome = json.loads(done.stdout)
    assert outcome["faults"] == []
    assert done.returncode == 0
    assert outcome["requests"] >= int(count)
    assert outcome["accepted"] >= 2  # Two are taken before the first drawn request.
    assert len(outcome["statuses"]) > 3


@pytest.mark.parametrize(
    ("line", "event"),
    [
        ("open('/etc/passwd')", "open /etc/passwd"),
        ("open('secret.txt/../../outside/x', 'w')", "open ../outside/x"),
        ("os.remove('/etc/nothing')", "os.remove /etc/nothing"),
        ("os.rename('INSIDE/a', '/etc/nothing')", "os.rename /etc/nothing"),
        ("os.mkdir('/etc/nothing/x')", "os.mkdir /etc/nothing/x"),
        ("os.remove('nothing', dir_fd=os.open('/etc', os.O_RDONLY))", "os.remove /etc/nothing"),
        ("subprocess.Popen(['true'])", "subprocess.Popen ['true']"),
        ("open('INSIDE/a')", None),
        ("os.remove('INSIDE/a')", None),
    ],
)
def test_the_audit_notices_what_leads_outside(tmp_path: Path, line: str, event: str | None) -> None:
    (tmp_path / "service").mkdir()
    (tmp_path / "log").touch()
    environment = {
        **os.environ, "FUZZ_INSIDE": str(tmp_path / "service"), "FUZZ_LOG": str(tmp_path / "log"),
        "FUZZ_READABLE": sys.prefix,
    }  # fmt: skip
    program = (
        f"import contextlib, os, subprocess\n{service_fuzz.HOOK}\nwith contextlib.suppress(OSError):\n    {line}\n"
    )
    program = program.replace("INSIDE/", f"{tmp_path}/service/")
    subprocess.run([sys.executable, "-I", "-c", program], env=environment, check=True)
    noticed = (tmp_path / "log").read_text().splitlines()
    assert (event in noticed) if event else noticed == []


def test_wrong_answers_are_noticed() -> None:
    head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\n\r\n"
    check = service_fuzz.check_answer
    assert check(head % 200 + b"{}", "bo", "ada") == (200, None)
    assert check(head % 500 + b"{}", "bo", "ada") == (500, "failed")
    assert check(head % 200 + service_fuzz.SECRET.encode(), "ada", "ada")[1] == "shows a file of the machine"
    assert check(head % 200 + service_fuzz.OWNED.encode(), "bo", "ada")[1] == "shows what another account owns"
    assert check(head % 200 + service_fuzz.OWNED.encode(), "ada", "ada")[1] is None
    assert check(head % 422 + b'{"error": "a\\nb"}', "ada", "ada")[1] == "has no reason of one line"
