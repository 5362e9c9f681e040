"""Tests that no request makes the service fail or leads it outside its directory, with fewer than the benchmark has."""

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks import service_fuzz


def test_no_drawn_request_fails_or_leads_outside() -> None:
    count = os.environ.get("DISTILL_FUZZ", "40")
    command = [sys.executable, service_fuzz.__file__, "--requests", count, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    outcome = json.loads(done.stdout)
    assert outcome["faults"] == []
    assert done.returncode == 0
    assert outcome["requests"] >= int(count)
    assert outcome["accepted"] >= 2  # Two are taken before the first drawn request.
    assert len(outcome["statuses"]) > 3


NOTICED = {
    "open('/etc/passwd')": "open /etc/passwd",
    "open('secret.txt/../../outside/x', 'w')": "open ../outside/x",
    "os.remove('/etc/nothing')": "os.remove /etc/nothing",
    "os.rename('INSIDE/a', '/etc/nothing')": "os.rename /etc/nothing",
    "os.mkdir('/etc/nothing/x')": "os.mkdir /etc/nothing/x",
    "os.remove('nothing', dir_fd=os.open('/etc', os.O_RDONLY))": "os.remove /etc/nothing",
    "subprocess.Popen(['true'])": "subprocess.Popen ['true']",
}


def test_the_audit_notices_what_leads_outside(tmp_path: Path) -> None:
    service, log = tmp_path / "service", tmp_path / "log"
    service.mkdir()
    log.touch()
    environment = {
        **os.environ, "FUZZ_INSIDE": str(service), "FUZZ_LOG": str(log), "FUZZ_READABLE": sys.prefix,
    }  # fmt: skip
    lines = ["open('INSIDE/a')", "os.remove('INSIDE/a')", f"assert not os.path.getsize({str(log)!r})", *NOTICED]
    program = f"import contextlib, os, subprocess\n{service_fuzz.HOOK}\n" + "".join(
        f"with contextlib.suppress(OSError):\n    {line}\n" for line in lines
    )
    program = program.replace("INSIDE/", f"{service}/")
    subprocess.run([sys.executable, "-I", "-c", program], env=environment, check=True)
    assert set(NOTICED.values()) <= set(log.read_text().splitlines())


def test_wrong_answers_are_noticed() -> None:
    head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\n\r\n"
    check = service_fuzz.check_answer
    assert check(head % 200 + b"{}", "bo", "ada") == (200, None)
    assert check(head % 500 + b"{}", "bo", "ada") == (500, "failed")
    assert check(head % 200 + service_fuzz.SECRET.encode(), "ada", "ada")[1] == "shows a file of the machine"
    assert check(head % 200 + service_fuzz.OWNED.encode(), "bo", "ada")[1] == "shows what another account owns"
    assert check(head % 200 + service_fuzz.OWNED.encode(), "ada", "ada")[1] is None
    assert check(head % 422 + b'{"error": "a\\nb"}', "ada", "ada")[1] == "has no reason of one line"
