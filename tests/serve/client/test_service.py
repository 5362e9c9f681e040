"""Tests of the client with a service that runs."""

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from distill.client import Client, ServiceError
from distill.serve.jobs.queue import Queue

pytest.importorskip("fastapi", reason="the extra service is not installed")


# It prints which heavy packages the service has imported, after it has answered for all that follows.
PROGRAM = """
import sys, distill.service as command
code = command.main(sys.argv[1:])
heavy = {'torch', 'onnxruntime', 'transformers', 'lightning', 'hydra', 'numpy', 'pandas', 'datasets'}
print(sorted((heavy | {'ray', 'submitit', 'kubeflow'}) & set(sys.modules)), flush=True)
sys.exit(code)
"""


def test_the_client_and_a_service_understand_each_other_and_it_imports_nothing_heavy(tmp_path: Path) -> None:
    directory = tmp_path / "service"
    command = [sys.executable, "-c", PROGRAM, str(directory), "--port", "0", "--upload", "1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            address = re.search(r"http://[\w.]+:\d+", process.stdout.readline())
            assert address is not None
            use(address.group(), directory, tmp_path)
            process.send_signal(signal.SIGUSR1)
            output, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    drained = "draining: no job is started any more, and the service ends with those that run\n"
    assert (process.returncode, output, errors) == (0, f"{drained}[]\n", "")


def use(address: str, directory: Path, tmp_path: Path) -> None:
    client = Client(address)
    for path in ("/", "/options", "/metrics", "/docs", "/healthz"):
        with urllib.request.urlopen(f"{address}{path}") as response:
            assert response.status == 200
    path = tmp_path / "films.csv"
    path.write_text("text,label\na lovely film,good\na dull mess,bad\n")
    assert client.upload(path)["rows"] == 2
    assert client.data("films")["columns"]
    with pytest.raises(ServiceError, match="^there is no data set books$"):
        client.data("books")
    with pytest.raises(ServiceError, match="expected one of") as caught:
        client.submit(["+teacher=minilm", "+student=nothing"])
    assert caught.value.status == 422
    path.write_text("x" * 1001)
    with pytest.raises(ServiceError, match="more than 1,000 bytes"):
        client.upload(path, name="long")
    assert client.jobs() == []

    # A job that no service has checked, and that fails at once.
    job = Queue(directory / "jobs.sqlite").add("local", ["task=nope"]).id
    events = client.watch(job)
    assert next(events).data["state"] == "queued"
    assert client.cancel(job)["state"] == "cancelled"
    assert [event.data["state"] for event in events] == ["cancelled"]
    with pytest.raises(ServiceError, match=f"^job {job} is cancelled already: there is nothing to cancel$"):
        client.cancel(job)
    client.retry(job)
    numbers = [event.number for event in client.watch(job)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert client.job(job)["state"] == "failed"
    assert "there is no task nope" in client.job(job)["error"]
    assert "there is no task nope" in client.log(job)
    with pytest.raises(ServiceError, match="the job has no run yet") as caught:
        client.fetch(job, to=tmp_path / "bundle")
    assert caught.value.status == 409
    client.remove(job)
    assert client.jobs() == []
