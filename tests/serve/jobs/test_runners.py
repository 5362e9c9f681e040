"""Tests of the processes of a job on this machine: signals, errors, killed runners and services, a full disk."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.service_jobs import STAND_IN, run_experiment
from distill.serve.jobs.attempts import Attempt, Dispatcher, read_log
from distill.serve.jobs.engines import LocalEngine, Runner, find_marked
from distill.serve.jobs.queue import Queue, QueuedJob, State
from tests.serve.jobs.programs import ESCAPING, is_running, read_pids, run_override, wait_for

WAIT = "import time; print('begun', flush=True); time.sleep(1000)"


@pytest.fixture
def dispatcher(tmp_path: Path, queue: Queue) -> Iterator[Dispatcher]:
    """A dispatcher that has begun, and that ends with all jobs."""
    running = Dispatcher(queue, LocalEngine(), tmp_path, 4, build_command=run_override)
    running.start()
    yield running
    for job in queue.jobs():
        queue.cancel(job.id)
    assert running.drain(60)
    running.stop()


def add(queue: Queue, dispatcher: Dispatcher, program: str) -> QueuedJob:
    job = queue.add("ada", [program])
    dispatcher.wake()
    return job


def wait_for_end(queue: Queue, job: QueuedJob) -> QueuedJob:
    wait_for(lambda: queue.get(job.id).state.is_end)  # type: ignore[union-attr]
    found = queue.get(job.id)
    assert found is not None
    return found


def test_a_command_has_time_for_a_checkpoint_and_gets_one_signal(
    tmp_path: Path, queue: Queue, dispatcher: Dispatcher
) -> None:
    program = (
        "import signal, sys, time\ndef stop(*_):\n    print('stopping', flush=True)\n    time.sleep(0.5)\n"
        "    print('checkpoint', flush=True)\n    sys.exit(130)\nsignal.signal(15, stop)\n" + WAIT
    )
    job = add(queue, dispatcher, program)
    wait_for(lambda: b"begun" in read_log(tmp_path, job.id))
    queue.cancel(job.id)
    dispatcher.wake()
    assert wait_for_end(queue, job).state == State.CANCELLED
    assert read_log(tmp_path, job.id) == b"begun\nstopping\ncheckpoint\n"


def test_a_lost_attempt_leaves_no_process_and_is_tried_again(
    tmp_path: Path, queue: Queue, dispatcher: Dispatcher
) -> None:
    # The descendants outlive the runner, which the test kills, and the attempt that follows has to end them.
    program = ESCAPING.replace("env={}", "env=os.environ")
    job = add(queue, dispatcher, f"import os\nif os.path.exists('daemon'): print('again'), exit()\n{program}")
    pids = read_pids(tmp_path / "jobs" / job.id)
    runner = Attempt(tmp_path, job.id, 1).read_process()
    assert runner is not None
    os.kill(runner, signal.SIGKILL)
    end = wait_for_end(queue, job)
    assert (end.state, end.attempt) == (State.FINISHED, 2)
    assert not any(map(is_running, pids))


@pytest.fixture
def job() -> str:
    """An id that no other test has: who ends a job kills all processes of the machine that are marked by its id."""
    return uuid.uuid4().hex


def submit(engine: LocalEngine, attempt: Attempt, *command: str) -> Attempt:
    engine.submit(attempt, command, {}, 1.0)
    return attempt


def test_two_attempts_of_a_job_never_run_at_once_and_none_leaves_a_process(tmp_path: Path, job: str) -> None:
    engine = LocalEngine()
    # It ends when a file is there, and leaves the processes that it has started.
    program = ESCAPING.removesuffix("time.sleep(1000)\n") + "while not os.path.exists('go'): time.sleep(0.01)\n"
    first = submit(engine, Attempt(tmp_path, job, 1), sys.executable, "-c", program)
    pids = read_pids(tmp_path / "jobs" / job)
    second = submit(engine, Attempt(tmp_path, job, 2), sys.executable, "-c", program)
    wait_for(lambda: engine.state(second) == "waiting")
    assert engine.state(first) == "running"
    assert not Attempt(tmp_path, job, 2).close()
    (tmp_path / "jobs" / job / "go").touch()
    wait_for(lambda: engine.state(second) == "finished")
    assert engine.state(first) == "finished"
    assert not any(map(is_running, [*pids, *read_pids(tmp_path / "jobs" / job)]))


def test_a_command_that_cannot_be_run_is_an_error_in_words(tmp_path: Path, job: str) -> None:
    engine = LocalEngine()
    commands = {
        "no-such-program cannot be run: [Errno 2] No such file or directory: 'no-such-program'": ["no-such-program"],
        "ls cannot be run: [Errno 7] Argument list too long: 'ls'": ["ls", "x" * 200_000],
        "ls cannot be run: embedded null byte": ["ls", "a\0b"],
        "the command was ended by SIGKILL, as the kernel does when memory is full": ["sh", "-c", "kill -9 $$"],
    }
    attempts = [
        submit(engine, Attempt(tmp_path, f"{job}{number}", 1), *command)
        for number, command in enumerate(commands.values())
    ]
    wait_for(lambda: all(engine.state(attempt) == "failed" for attempt in attempts))
    exits = [attempt.read_exit() for attempt in attempts]
    assert [exit and exit["error"] for exit in exits] == list(commands)


@pytest.mark.parametrize(
    ("log", "code", "error"),
    [
        (b"error: there is no task x\nlater\n", 2, "there is no task x"),
        (b"Traceback\n  File x\n\x1b[31mValueError: of a library\x1b[0m\n", 1, "ValueError: of a library"),
        (b"", 3, "exit code 3"),
        (b"x" * 20_000, 1, "x" * 500),
        (b"", -signal.SIGSEGV, "the command was ended by SIGSEGV, see the log"),
        (b"error: a\n", 0, None),
    ],
)
def test_the_error_of_a_command_is_a_line_of_its_log(tmp_path: Path, log: bytes, code: int, error: str | None) -> None:
    attempt = Attempt(tmp_path, "a", 1)
    attempt.path.mkdir(parents=True)
    attempt.log.write_bytes(log)
    assert Runner(attempt)._find_error(code) == error


def test_a_runner_that_does_not_react_to_a_cancel_is_killed(tmp_path: Path, job: str) -> None:
    engine = LocalEngine(patience=0.0)
    attempt = submit(engine, Attempt(tmp_path, job, 1), sys.executable, "-c", WAIT)
    wait_for(lambda: read_log(tmp_path, job) == b"begun\n")
    pids = [process.pid for process in find_marked(job)]
    runner = attempt.read_process()
    assert runner is not None
    os.kill(runner, signal.SIGSTOP)
    for _ in range(2):
        engine.cancel(attempt)
    wait_for(lambda: not any(map(is_running, [runner, *pids])))
    assert len(pids) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 512 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    options = ["-t", "tmpfs", "-o", "size=512k", "none", str(place)]
    if subprocess.run(["mount", *options], capture_output=True, check=False).returncode:
        pytest.skip("a disk can be mounted by root alone")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_the_end_of_a_command_that_fills_the_disk_is_written(small_disk: Path, job: str) -> None:
    engine = LocalEngine()
    program = "f = open('rubbish', 'wb', 0)\nwhile True: f.write(b'x' * 4096)"
    attempt = submit(engine, Attempt(small_disk, job, 1), sys.executable, "-c", program)
    exit = wait_for(lambda: attempt.read_exit() or {})
    assert "No space left on device" in exit["error"] or exit["error"].endswith("is full")
    wait_for(lambda: engine.state(attempt) == "failed")


def test_cancelled_jobs_leave_no_process_although_the_service_is_killed(tmp_path: Path) -> None:
    outcome = run_experiment(tmp_path, [[STAND_IN]] * 8, kills=3, workers=4, cancel=0.6, seconds=0.2, gap=1.0, seed=1)
    assert outcome.cancelled > 0
    assert outcome.finished_once + outcome.cancelled == 8
    assert (outcome.not_cancelled, outcome.lost, outcome.twice, outcome.processes_left) == (0, 0, 0, 0)
