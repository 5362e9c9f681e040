"""Tests of the client with a service that runs."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from distill.client import Client, ServiceError
from distill.serve.jobs.queue import Queue

pytest.importorskip("fastapi", reason="the extra service is not installed")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Client, Path]]:
    """A service on a new directory, with a client."""
    directory = tmp_path / "service"
    command = [sys.executable, "-m", "distill.service", str(directory), "--port", "0", "--upload", "1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            address = re.search(r"http://[\w.]+:\d+", line)
            assert address is not None, line
            yield Client(address.group()), directory
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def test_the_client_and_a_service_understand_each_other(served: tuple[Client, Path], tmp_path: Path) -> None:
    client, directory = served
    path = tmp_path / "films.csv"
    path.write_text("text,label\na lovely film,good\na dull mess,bad\n")
    assert client.upload(path)["rows"] == 2
    assert client.data("films")["columns"]
    with pytest.raises(ServiceError, match="^there is no data set books$"):
        client.data("books")
    with pytest.raises(ServiceError, match="hydra") as caught:
        client.submit(["task=classification", "hydra.run.dir=/tmp"])
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
