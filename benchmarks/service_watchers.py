"""Watchers of one job of a service: whether events are lost or out of order, how late they are, and what they cost.

    python benchmarks/service_watchers.py --watchers 64 --events 4500 --seconds 60

An hour of a job has about 3,600 events of steps, a second apart, and some hundred others. They are written here within
`--seconds`, as a job writes them, to a service in a process of its own. Some watchers come late, some lose their
connection and go on by Last-Event-ID, and some read slowly.
"""

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from distill.core import files
from distill.core.files import write_json
from distill.serve.jobs.attempts import Attempt
from distill.serve.jobs.queue import Queue


@dataclass
class Watcher:
    """A client that reads the events of a job until it ends.

    Args:
        late: seconds before it connects.
        breaks: events after which it closes its connection and opens another one; 0: never.
        pause: seconds between two reads of its socket.
    """

    port: int
    job: str
    late: float = 0.0
    breaks: int = 0
    pause: float = 0.0
    numbers: list[int] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    has_ended: bool = False

    def run(self) -> None:
        """Reads all events."""
        time.sleep(self.late)
        while not self.has_ended:
            self._read()

    def _read(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        last = str(self.numbers[-1] if self.numbers else 0)
        connection.request("GET", f"/jobs/{self.job}/events", headers={"Last-Event-ID": last})
        response, count = connection.getresponse(), 0
        while line := response.readline():
            if line.startswith(b"id: "):
                self.numbers.append(int(line[4:]))
                count += 1
            elif line.startswith(b"data: "):
                event = json.loads(line[6:])
                self.delays.append(time.time() - event["time"])
                self.has_ended |= event.get("state") in ("finished", "failed", "cancelled")
                time.sleep(self.pause)
                if self.breaks and count >= self.breaks:
                    break
        connection.close()


def start_service(directory: Path) -> tuple["subprocess.Popen[str]", int]:
    """Returns a service that runs no job, and its port."""
    command = [sys.executable, "-m", "distill.service", str(directory), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline().rpartition(":")[2])


def begin_job(directory: Path) -> tuple[Attempt, int | None]:
    """Returns an attempt that seems to run for as long as this process holds its lock, and the lock."""
    queue = Queue(directory / "jobs.sqlite")
    queue.add("local", ["task=mrpc"])
    job = queue.claim()
    queue.close()
    assert job is not None
    attempt = Attempt(directory, job.id, job.attempt)
    attempt.path.mkdir(parents=True)
    return attempt, files.acquire_lock(attempt.process)


def write_events(attempt: Attempt, number: int, seconds: float) -> None:
    """Writes the events of an hour within some seconds, as a job does, and the end of the job."""
    start = time.monotonic()
    with open(attempt.events, "a", encoding="utf-8", buffering=1) as file:
        for step in range(number):
            is_metrics = step % 100 == 99
            more = {"metrics": {"dev/accuracy": 0.5}} if is_metrics else {"loss": 0.25, "steps": number, "epoch": 1}
            event = {"kind": "metrics" if is_metrics else "step", "step": step, "time": time.time(), **more}
            file.write(f"{json.dumps(event)}\n")
            time.sleep(max(0.0, start + (step + 1) * seconds / number - time.monotonic()))
    write_json(attempt.exit, {"code": 0, "error": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--watchers", type=int, default=64)
    parser.add_argument("--events", type=int, default=4500)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        attempt, lock = begin_job(Path(directory))
        process, port = start_service(Path(directory))
        try:
            measure(attempt, process.pid, port, options)
        finally:
            process.terminate()
            process.wait()
            files.release_lock(lock)


def measure(attempt: Attempt, pid: int, port: int, options: argparse.Namespace) -> None:
    """Prints what the watchers got and what the service used."""
    service = psutil.Process(pid)
    watchers = [
        Watcher(
            port,
            attempt.job,
            late=options.seconds / 2 * (n % 4 == 1),
            breaks=300 * (n % 4 == 2),
            pause=0.005 * (n % 4 == 3),
        )
        for n in range(options.watchers)
    ]
    threads = [threading.Thread(target=watcher.run) for watcher in watchers]
    for thread in threads:
        thread.start()
    sizes, cpu = [], sum(service.cpu_times()[:2])
    writer = threading.Thread(target=write_events, args=(attempt, options.events, options.seconds))
    begin = time.monotonic()
    writer.start()
    while writer.is_alive() or any(thread.is_alive() for thread in threads):
        sizes.append(service.memory_info().rss / 1e6)
        time.sleep(0.5)
    seconds = time.monotonic() - begin
    wanted = list(range(1, options.events + 4))
    whole = sum(watcher.numbers == wanted for watcher in watchers)
    prompt = sorted(delay for watcher in watchers if not watcher.late and not watcher.pause for delay in watcher.delays)
    half = len(sizes) // 2
    print(f"watchers with every event, once and in order: {whole} of {len(watchers)} ({len(wanted):,} events)")
    last = prompt[len(prompt) * 99 // 100]
    print(f"delay of the prompt ones: median {statistics.median(prompt):.2f} s, 99% {last:.2f} s")
    first, second = max(sizes[:half]), max(sizes[half:])
    print(f"memory: {sizes[0]:.1f} MB before, {first:.1f} at most in the first half, {second:.1f} in the second one")
    print(f"cores of the service: {(sum(service.cpu_times()[:2]) - cpu) / seconds:.2f} over {seconds:.0f} s")


if __name__ == "__main__":
    main()
