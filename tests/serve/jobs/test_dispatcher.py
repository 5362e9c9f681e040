"""Tests of the dispatcher with processes of this machine: cancels, restarts, lost attempts, draining, a full disk."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from distill.serve.jobs.attempts import Attempt, AttemptWork, BuildCommand, Dispatcher, build_command, read_log
from distill.serve.jobs.engines import LocalEngine, find_marked
from distill.serve.jobs.queue import Queue, QueuedJob, State
from tests.serve.jobs.programs import ESCAPING, is_running, list_running, read_pids, run_override, wait_for

WAIT = "import time; print('begun', flush=True); time.sleep(1000)"
# It goes on until a file `go` is there.
WAIT_FOR_GO = "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)"
Start = Callable[..., Dispatcher]


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    queue = Queue(tmp_path / "jobs.sqlite")
    yield queue
    queue.close()


@pytest.fixture
def start(tmp_path: Path, queue: Queue) -> Iterator[Start]:
    """Starts dispatchers, and ends them and all jobs."""
    started: list[Dispatcher] = []

    def start(
        workers: int = 1, *, engine: LocalEngine | None = None, command: BuildCommand = run_override, grace: float = 20
    ) -> Dispatcher:
        dispatcher = Dispatcher(
            queue, engine or LocalEngine(tmp_path), tmp_path, workers, grace_seconds=grace, build_command=command
        )
        dispatcher.start()
        started.append(dispatcher)
        return dispatcher

    yield start
    for dispatcher in started:
        dispatcher.stop()
    for job in queue.jobs():
        queue.cancel(job.id)
    last = Dispatcher(queue, LocalEngine(tmp_path), tmp_path, build_command=run_override)
    last.start()
    assert last.drain(60)
    last.stop()


def state_of(queue: Queue, job: QueuedJob) -> State:
    found = queue.get(job.id)
    assert found is not None
    return found.state


def wait_for_end(queue: Queue, job: QueuedJob) -> QueuedJob:
    wait_for(lambda: state_of(queue, job).is_end)
    found = queue.get(job.id)
    assert found is not None
    return found


def wait_for_begin(directory: Path, job: QueuedJob) -> None:
    wait_for(lambda: b"begun" in read_log(directory, job.id))


def directory_of(directory: Path, job: QueuedJob) -> Path:
    return directory / "jobs" / job.id


def test_jobs_end_in_three_states_with_the_line_of_the_error(tmp_path: Path, queue: Queue, start: Start) -> None:
    finished = queue.add("ada", ["print('well done')"])
    failed = queue.add("ada", ["import sys; print('error: there is no task x'); print('later'); sys.exit(2)"])
    crashed = queue.add("ada", ["raise ValueError('of a library')"])
    killed = queue.add("ada", ["import os; os.kill(os.getpid(), 9)"])
    cancelled = queue.add("ada", [WAIT])
    dispatcher = start(5)
    wait_for_begin(tmp_path, cancelled)
    queue.cancel(cancelled.id)
    dispatcher.wake()
    ends = [wait_for_end(queue, job) for job in (finished, failed, crashed, killed, cancelled)]
    assert [(job.state, job.error) for job in ends] == [
        (State.FINISHED, None), (State.FAILED, "there is no task x"), (State.FAILED, "ValueError: of a library"),
        (State.FAILED, "the command was ended by SIGKILL, as the kernel does when memory is full"),
        (State.CANCELLED, None),
    ]  # fmt: skip
    assert read_log(tmp_path, finished.id) == b"well done\n"


def test_a_cancel_ends_processes_that_left_their_group_session_parent_and_environment(
    tmp_path: Path, queue: Queue, start: Start
) -> None:
    job = queue.add("ada", [ESCAPING])
    dispatcher = start(grace=0.1)
    pids = read_pids(directory_of(tmp_path, job))
    assert all(map(is_running, pids))
    queue.cancel(job.id)
    dispatcher.wake()
    assert wait_for_end(queue, job).state == State.CANCELLED
    assert not any(map(is_running, pids))


def test_a_finished_job_leaves_no_process(tmp_path: Path, queue: Queue, start: Start) -> None:
    program = ESCAPING.removesuffix("time.sleep(1000)\n") + (
        "while not all(os.path.exists(name) and os.path.getsize(name) for name in "
        "('child', 'session', 'bare', 'daemon')): time.sleep(0.01)\n"
    )
    job = queue.add("ada", [program])
    start()
    assert wait_for_end(queue, job).state == State.FINISHED
    assert not any(map(is_running, read_pids(directory_of(tmp_path, job))))


class SlowEngine(LocalEngine):
    """Submits a job only after the test has let it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.submitting, self.go_on = threading.Event(), threading.Event()

    def submit(self, work: AttemptWork) -> str:
        self.submitting.set()
        assert self.go_on.wait(60)
        return super().submit(work)


def test_a_job_is_cancelled_while_it_is_submitted(tmp_path: Path, queue: Queue, start: Start) -> None:
    before = list_running()
    job, engine = queue.add("ada", [WAIT]), SlowEngine(tmp_path)
    dispatcher = start(engine=engine)
    assert engine.submitting.wait(60)
    assert queue.cancel(job.id).state == State.CANCELLING
    engine.go_on.set()
    dispatcher.wake()
    assert wait_for_end(queue, job).state == State.CANCELLED
    wait_for(lambda: list_running() <= before)


def test_a_job_is_cancelled_while_its_runner_starts(tmp_path: Path, queue: Queue, start: Start) -> None:
    before = list_running()
    job, engine = queue.add("ada", [WAIT]), LocalEngine(tmp_path)
    dispatcher = start(engine=engine)
    wait_for(lambda: engine.state(f"{job.id}/1") in ("waiting", "running"))
    queue.cancel(job.id)
    dispatcher.wake()
    assert wait_for_end(queue, job).state == State.CANCELLED
    wait_for(lambda: list_running() <= before)


def test_a_job_that_ends_well_after_its_cancel_is_cancelled(tmp_path: Path, queue: Queue, start: Start) -> None:
    """As one that was exporting, and has no more steps at which it would stop."""
    program = "import signal; signal.signal(15, lambda *_: print('exported', flush=True))\n" + WAIT_FOR_GO
    job = queue.add("ada", [program])
    dispatcher = start()
    wait_for_begin(tmp_path, job)
    queue.cancel(job.id)
    dispatcher.wake()
    wait_for(lambda: b"exported" in read_log(tmp_path, job.id))
    assert state_of(queue, job) == State.CANCELLING
    (directory_of(tmp_path, job) / "go").touch()
    assert wait_for_end(queue, job).state == State.CANCELLED


def test_a_command_has_time_for_a_checkpoint_and_gets_one_signal(tmp_path: Path, queue: Queue, start: Start) -> None:
    program = (
        "import signal, sys, time\ndef stop(*_):\n    print('stopping', flush=True)\n    time.sleep(0.5)\n"
        "    print('checkpoint', flush=True)\n    sys.exit(130)\nsignal.signal(15, stop)\n" + WAIT
    )
    job = queue.add("ada", [program])
    dispatcher = start()
    wait_for_begin(tmp_path, job)
    queue.cancel(job.id)
    dispatcher.wake()
    assert wait_for_end(queue, job).state == State.CANCELLED
    assert read_log(tmp_path, job.id) == b"begun\nstopping\ncheckpoint\n"


def test_a_restart_follows_what_runs_and_records_what_has_ended(tmp_path: Path, queue: Queue, start: Start) -> None:
    running, ended = queue.add("ada", [WAIT_FOR_GO]), queue.add("ada", [WAIT_FOR_GO])
    first = start(2)
    for job in (running, ended):
        wait_for_begin(tmp_path, job)
    first.stop()
    (directory_of(tmp_path, ended) / "go").touch()
    wait_for(lambda: Attempt(tmp_path, ended.id, 1).read_exit())
    assert state_of(queue, ended) == State.RUNNING
    start(2)
    assert wait_for_end(queue, ended).state == State.FINISHED
    assert state_of(queue, running) == State.RUNNING
    (directory_of(tmp_path, running) / "go").touch()
    assert wait_for_end(queue, running).state == State.FINISHED
    assert [queue.get(job.id).attempt for job in (running, ended)] == [1, 1]  # type: ignore[union-attr]


def test_logs_survive_a_cancel_and_a_restart(tmp_path: Path, queue: Queue, start: Start) -> None:
    job = queue.add("ada", [WAIT])
    first = start()
    wait_for_begin(tmp_path, job)
    queue.cancel(job.id)
    first.wake()
    wait_for_end(queue, job)
    first.stop()
    queue.retry(job.id)
    second = start()
    wait_for(lambda: read_log(tmp_path, job.id) == b"begun\nbegun\n")
    assert read_log(tmp_path, job.id, offset=3, limit=5) == b"un\nbe"
    assert read_log(tmp_path, job.id, offset=12) == b""
    assert second.engine.log(f"{job.id}/1", 2) == b"gun\n"


def kill_runner(directory: Path, job: QueuedJob, attempt: int = 1) -> None:
    pid = Attempt(directory, job.id, attempt).read_process()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def test_a_lost_attempt_leaves_no_process_and_is_tried_again(tmp_path: Path, queue: Queue, start: Start) -> None:
    # The descendants outlive the runner, which the test kills, and the attempt that follows has to end them.
    program = ESCAPING.replace("env={}", "env=os.environ")
    job = queue.add("ada", [f"import os\nif os.path.exists('daemon'): print('again'), exit()\n{program}"])
    start()
    pids = read_pids(directory_of(tmp_path, job))
    kill_runner(tmp_path, job)
    end = wait_for_end(queue, job)
    assert (end.state, end.attempt) == (State.FINISHED, 2)
    assert not any(map(is_running, pids))
    assert [event.data["state"] for event in queue.events(job.id)] == [
        "queued", "running", "queued", "running", "finished"
    ]  # fmt: skip


def test_a_command_that_the_machine_has_stopped_goes_on(tmp_path: Path, queue: Queue, start: Start) -> None:
    job = queue.add("ada", ["import os, sys\nif not os.path.exists('a'): open('a', 'w').close(), sys.exit(130)"])
    start()
    end = wait_for_end(queue, job)
    assert (end.state, end.attempt) == (State.FINISHED, 2)


def test_two_attempts_of_a_job_never_run_at_once(tmp_path: Path, queue: Queue) -> None:
    job = queue.add("ada", [WAIT_FOR_GO])
    engine = LocalEngine(tmp_path)
    for number in (1, 2):
        attempt = Attempt(tmp_path, job.id, number)
        engine.submit(AttemptWork(job.id, number, run_override(job, attempt), tmp_path, {}, 1.0))
        wait_for(lambda: b"begun" in read_log(tmp_path, job.id))
    assert engine.state(f"{job.id}/1") == "running"
    assert engine.state(f"{job.id}/2") == "waiting"
    assert not Attempt(tmp_path, job.id, 2).close()
    (directory_of(tmp_path, job) / "go").touch()
    wait_for(lambda: engine.state(f"{job.id}/2") == "finished")
    assert engine.state(f"{job.id}/1") == "finished"


def test_draining_lets_running_jobs_end_and_starts_none(tmp_path: Path, queue: Queue, start: Start) -> None:
    running, queued = queue.add("ada", [WAIT_FOR_GO]), queue.add("ada", ["print(1)"])
    dispatcher = start()
    wait_for_begin(tmp_path, running)
    assert not dispatcher.drain(0.01)
    (directory_of(tmp_path, running) / "go").touch()
    assert dispatcher.drain(60)
    assert (state_of(queue, running), state_of(queue, queued)) == (State.FINISHED, State.QUEUED)


def test_queued_jobs_cost_no_process(tmp_path: Path, queue: Queue, start: Start) -> None:
    first = queue.add("ada", [WAIT])
    for _ in range(20):
        queue.add("ada", [WAIT])
    before = list_running()
    start()
    wait_for_begin(tmp_path, first)
    assert len(list_running() - before) == 2, "the runner and the command of the first"
    for job in queue.jobs(states=[State.QUEUED]):
        queue.cancel(job.id)


def to_lines(*events: object) -> str:
    return "".join(f"{event if isinstance(event, str) else json.dumps(event)}\n" for event in events)


def test_events_of_the_command_reach_the_queue_once_each(tmp_path: Path, queue: Queue, start: Start) -> None:
    steps = [{"kind": "step", "step": step, "loss": 1 / step, "time": float(step)} for step in range(1, 6)]
    metrics = {"kind": "metrics", "step": 5, "metrics": {"dev/accuracy": 0.75}}
    write = "import os; open(os.environ['DISTILL_EVENTS'], 'a').write({!r})"
    first, second = write.format(to_lines(*steps[:3])), write.format(to_lines(*steps[3:], metrics))
    job = queue.add("ada", [f"{first}\n{WAIT_FOR_GO}\n{second}"])
    dispatcher = start()
    wait_for(lambda: len(queue.events(job.id)) == 5)
    dispatcher.stop()
    (directory_of(tmp_path, job) / "go").touch()
    start()
    end = wait_for_end(queue, job)
    assert end.metrics == {"dev/accuracy": 0.75}
    found = [event for event in queue.events(job.id) if event.kind != "state"]
    assert [event.data.get("step") for event in found] == [1, 2, 3, 4, 5, 5]
    assert [event.time for event in found[:5]] == [1, 2, 3, 4, 5]
    assert queue.events(job.id)[-1].data["state"] == "finished"


def test_lines_that_are_no_events_are_left_out(tmp_path: Path, queue: Queue, start: Start) -> None:
    lines = (
        "no json", "[1]", {"step": 1}, {"kind": 5}, {"kind": "state", "state": "finished"}, "\x00", "x" * 2_000_000,
        {"kind": "stage", "stage": "training", "progress": "all"}, {"kind": "stage", "stage": ["a"]},
        {"kind": "metrics", "metrics": [1]}, {"kind": "metrics", "metrics": {"a": {}}},
        '{"kind": "step", "loss": NaN, "time": NaN}', {"kind": "notice", "text": "last"},
    )  # fmt: skip
    (tmp_path / "lines").write_text(to_lines(*lines))
    job = queue.add("ada", ["import os, shutil; shutil.copy('../../lines', os.environ['DISTILL_EVENTS'])"])
    start()
    assert wait_for_end(queue, job).state == State.FINISHED
    found = [event for event in queue.events(job.id) if event.kind != "state"]
    assert [(event.kind, event.data) for event in found] == [("step", {"loss": None}), ("notice", {"text": "last"})]
    assert time.time() - found[0].time < 60


def test_a_step_goes_on_after_an_error_of_the_disk(
    tmp_path: Path, queue: Queue, start: Start, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("distill.serve.jobs.attempts._RETRY_SECONDS", 0.05)
    other, job = queue.add("ada", [WAIT_FOR_GO]), queue.add("ada", [WAIT_FOR_GO])
    start(2)
    for begun in (other, job):
        wait_for_begin(tmp_path, begun)
    original = Queue.record

    def record(self: Queue, id: str, *arguments: object, **options: object) -> None:
        if id == job.id and full.is_set():
            refused.set()
            raise OSError(28, "No space left on device")
        original(self, id, *arguments, **options)  # type: ignore[arg-type]

    full, refused = threading.Event(), threading.Event()
    full.set()
    monkeypatch.setattr(Queue, "record", record)
    for ending in (job, other):
        (Attempt(tmp_path, ending.id, 1).events).write_text('{"kind": "notice", "text": "room"}\n')
        (directory_of(tmp_path, ending) / "go").touch()
    assert refused.wait(60)
    assert wait_for_end(queue, other).state == State.FINISHED, "it is followed while the other one is not"
    assert state_of(queue, job) == State.RUNNING
    full.clear()
    assert wait_for_end(queue, job).state == State.FINISHED
    warning = f"warning: job {job.id} cannot be followed: [Errno 28] No space left on device"
    assert capfd.readouterr().err.count(warning) == 1


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


def test_a_job_that_fills_the_disk_fails_and_the_next_runs_when_there_is_room(small_disk: Path) -> None:
    queue = Queue(small_disk / "jobs.sqlite")
    full = queue.add("ada", ["f = open('rubbish', 'wb', 0)\nwhile True: f.write(b'x' * 4096)"])
    dispatcher = Dispatcher(queue, LocalEngine(small_disk), small_disk, build_command=run_override)
    dispatcher.start()
    wait_for(lambda: Attempt(small_disk, full.id, 1).read_exit())
    error = Attempt(small_disk, full.id, 1).read_exit()
    (directory_of(small_disk, full) / "rubbish").unlink()
    assert wait_for_end(queue, full).state == State.FAILED
    assert error is not None
    assert "No space left on device" in error["error"] or error["error"].endswith("is full")
    job = queue.add("ada", ["print('well done')"])
    dispatcher.wake()
    assert wait_for_end(queue, job).state == State.FINISHED
    dispatcher.stop()
    queue.close()


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (("no-such-program",), "[Errno 2] No such file or directory: 'no-such-program'"),
        (("ls", "x" * 200_000), "[Errno 7] Argument list too long: 'ls'"), (("ls", "a\0b"), "embedded null byte"),
    ],
)  # fmt: skip
def test_a_command_that_cannot_be_run_fails(
    tmp_path: Path, queue: Queue, start: Start, command: tuple[str, ...], error: str
) -> None:
    job = queue.add("ada", [])
    start(command=lambda job, attempt: command)
    end = wait_for_end(queue, job)
    assert (end.state, end.error) == (State.FAILED, f"{command[0]} cannot be run: {error}")


def test_the_command_has_the_directories_of_the_job_and_resumes_its_run(tmp_path: Path, queue: Queue) -> None:
    job = queue.add("ada", ["task=sst2", "seed=1", "trust=[me]"])
    attempt = Attempt(tmp_path, job.id, 1)
    runs = directory_of(tmp_path, job) / "runs"
    program, places = (sys.executable, "-m", "distill"), (f"output_dir={runs}", f"cache_dir={tmp_path / 'cache'}")
    assert build_command(job, attempt) == (*program, *job.overrides, *places)
    run = runs / "sst2" / "a-b" / "1"
    run.mkdir(parents=True)
    (run / "run.json").touch()
    assert build_command(job, attempt) == (*program, *job.overrides, *places), "the run has no configuration yet"
    (run / "config.yaml").touch()
    assert build_command(job, attempt) == (*program, f"resume={run}", "trust=[me]")
    own = queue.add("root", ["cache_dir=/cache"])
    assert build_command(own, Attempt(tmp_path, own.id, 1))[3:] == (
        "cache_dir=/cache", f"output_dir={directory_of(tmp_path, own) / 'runs'}"
    )  # fmt: skip


def test_a_sweep_goes_on_in_its_directory(tmp_path: Path, queue: Queue) -> None:
    job = queue.add("ada", ["-m", "seed=1,2"])
    runs = directory_of(tmp_path, job) / "runs"
    command = build_command(job, Attempt(tmp_path, job.id, 1))
    assert command[3:] == (
        "-m", "seed=1,2", f"output_dir={runs}", f"cache_dir={tmp_path / 'cache'}", f"hydra.sweep.dir={runs / 'sweep'}"
    )  # fmt: skip
    run = runs / "sst2" / "a-b" / "1"
    run.mkdir(parents=True)
    for name in ("run.json", "config.yaml"):
        (run / name).touch()
    assert build_command(job, Attempt(tmp_path, job.id, 2)) == (*command, "resume=true")


@pytest.mark.alone
def test_a_cancel_ends_the_processes_of_ray(tmp_path: Path, queue: Queue, start: Start) -> None:
    pytest.importorskip("ray", reason="needs the extra ray")
    program = (
        "import ray, time; ray.init('local', num_cpus=1, include_dashboard=False, object_store_memory=80 * 2**20)\n"
        "print('begun', flush=True); time.sleep(1000)"
    )
    job = queue.add("ada", [program])
    dispatcher = start()
    wait_for_begin(tmp_path, job)
    found = find_marked(job.id)
    assert {"raylet", "gcs_server"} <= {process.name() for process in found}
    queue.cancel(job.id)
    dispatcher.wake()
    assert wait_for_end(queue, job).state == State.CANCELLED
    assert not any(is_running(process.pid) for process in found)


def test_a_runner_that_does_not_react_to_a_cancel_is_killed(
    tmp_path: Path, queue: Queue, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distill.serve.jobs.engines._PATIENCE", 0.3)
    job = queue.add("ada", [WAIT])
    dispatcher = start()
    wait_for_begin(tmp_path, job)
    processes = find_marked(job.id)
    assert len(processes) == 1
    pid = Attempt(tmp_path, job.id, 1).read_process()
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    queue.cancel(job.id)
    dispatcher.wake()
    assert wait_for_end(queue, job).state == State.CANCELLED
    assert not any(map(is_running, [pid, processes[0].pid]))
