"""Is each job of a service finished exactly once although the service is killed, and does a cancel leave a process?

    python benchmarks/service_jobs.py [--jobs 200 --kills 20 --workers 1 --cancel 0] [--seed 0] [--directory DIR]
        [--true 5 --teacher DIR --data DIR] [--json]

The service's dispatcher runs in a process of its own, which gets SIGKILL at random moments and is started again. A
stand-in job sleeps for a second and leaves a process in a session of its own. A true one is a small distillation on
SST-2. `--cancel` is the share of jobs that are cancelled at random moments.
"""

import argparse
import json
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # Imports this checkout, not an installed distill.

from distill.serve.jobs.attempts import MARKER, Attempt, Dispatcher, build_command
from distill.serve.jobs.engines import LocalEngine
from distill.serve.jobs.queue import LIVE, Queue, QueuedJob, State

STAND_IN = "stand-in"
LIMIT = 3600.0  # Seconds for the whole.


@dataclass(frozen=True)
class Outcome:
    """Counts of one experiment.

    Args:
        finished_once: finished jobs whose command began and ended exactly once, with one event of the end.
        lost: jobs that are neither finished nor cancelled.
        twice: jobs whose command began more than once or that have more than one end.
        not_cancelled: jobs whose cancel was accepted, and that are not cancelled.
        processes_left: living processes of any job.
    """

    jobs: int
    kills: int
    cancelled: int
    finished_once: int
    lost: int
    twice: int
    not_cancelled: int
    processes_left: int
    seconds: float


def build_stand_in(job: QueuedJob, attempt: Attempt, *, seconds: float) -> tuple[str, ...]:
    """Returns the command of a stand-in, or that of a true job."""
    if job.overrides[:1] != (STAND_IN,):
        return build_command(job, attempt)
    record = shlex.quote(str((attempt.directory / "ran").absolute()))
    script = f'echo "begin {job.id}" >> {record}; setsid sleep 1000 & sleep {seconds}; echo "end {job.id}" >> {record}'
    return ("sh", "-c", script)


def serve(directory: Path, *, workers: int, seconds: float) -> None:
    """Runs the jobs of a directory until SIGTERM."""
    dispatcher = Dispatcher(
        Queue(directory / "jobs.sqlite"), LocalEngine(), directory, workers,
        build_command=lambda job, attempt: build_stand_in(job, attempt, seconds=seconds),
    )  # fmt: skip
    dispatcher.start()
    signal.sigwait([signal.SIGTERM])
    dispatcher.stop()


def run_experiment(
    directory: Path, jobs: Sequence[Sequence[str]], *, kills: int, workers: int, cancel: float = 0.0,
    seconds: float = 1.0, gap: float = 5.0, seed: int = 0,
) -> Outcome:  # fmt: skip
    """Runs jobs in a directory and counts how they end.

    Args:
        jobs: the overrides of each.
        cancel: share of the jobs that are cancelled at a random moment.
        seconds: that a stand-in sleeps.
        gap: largest number of seconds between two kills.
    """
    chance, start = random.Random(seed), time.monotonic()
    queue = Queue(directory / "jobs.sqlite", limit=len(jobs))
    ids = [queue.add("benchmark", overrides, plan="").id for overrides in jobs]
    duration = len(jobs) * (seconds + 0.5) / workers
    cancels = sorted((chance.uniform(0, duration), id) for id in ids if chance.random() < cancel)
    accepted, killed, service = [], 0, _start(directory, workers, seconds)
    next_kill = time.monotonic() + chance.uniform(0, gap)
    while queue.jobs(states=[State.QUEUED, *LIVE]):
        if time.monotonic() - start > LIMIT:
            raise TimeoutError(f"jobs have not ended within {LIMIT:.0f} s")
        while cancels and cancels[0][0] < time.monotonic() - start:
            job = queue.get(cancels.pop(0)[1])
            if job is not None and not job.state.is_end and queue.cancel(job.id).state != State.FINISHED:
                accepted.append(job.id)
        if killed < kills and time.monotonic() > next_kill:
            service.kill()
            service.wait()
            service, killed = _start(directory, workers, seconds), killed + 1
            next_kill = time.monotonic() + chance.uniform(0, gap)
        time.sleep(0.02)
    service.terminate()
    service.wait()
    outcome = _count(directory, queue, ids, accepted, killed, time.monotonic() - start)
    queue.close()
    return outcome


def _start(directory: Path, workers: int, seconds: float) -> subprocess.Popen[bytes]:
    options = ["--serve", str(directory), "--workers", str(workers), "--seconds", str(seconds)]
    return subprocess.Popen([sys.executable, __file__, *options])


def _count(
    directory: Path, queue: Queue, ids: Sequence[str], accepted: Sequence[str], kills: int, seconds: float
) -> Outcome:
    ran = directory / "ran"
    lines = Counter(ran.read_text(encoding="utf-8").splitlines() if ran.is_file() else [])
    once, twice = 0, 0
    states = {job.id: job.state for job in queue.jobs()}
    for job in queue.jobs():
        ends = sum(State(event.data["state"]).is_end for event in queue.events(job.id) if event.kind == "state")
        is_stand_in = job.overrides[:1] == (STAND_IN,)
        begins, finishes = (lines[f"begin {job.id}"], lines[f"end {job.id}"]) if is_stand_in else (1, 1)
        once += job.state == State.FINISHED and begins == finishes == ends == 1
        twice += begins > 1 or ends > 1
    return Outcome(
        jobs=len(ids), kills=kills, cancelled=sum(state == State.CANCELLED for state in states.values()),
        finished_once=once, twice=twice, processes_left=len(find_processes(ids)), seconds=seconds,
        lost=sum(states.get(id) not in (State.FINISHED, State.CANCELLED) for id in ids),
        not_cancelled=sum(states[id] != State.CANCELLED for id in accepted),
    )  # fmt: skip


def find_processes(ids: Sequence[str]) -> list[psutil.Process]:
    """Returns the living processes of jobs, and those of their runners that do not end within 5 s."""
    _, runners = psutil.wait_procs([process for process in _list(ids) if MARKER not in _environment(process)], 5)
    return [process for process in _list(ids) if MARKER in _environment(process) or process in runners]


def _list(ids: Sequence[str]) -> list[psutil.Process]:
    wanted = set(ids)
    return [
        process
        for process in psutil.process_iter()
        if _environment(process).get(MARKER) in wanted or wanted & set(_command(process))
    ]


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return dict(process.environ())
    except (psutil.Error, OSError):
        return {}


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def main() -> None:
    """Runs the experiment of the command line, or one service of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--cancel", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--gap", type=float, default=15.0, help="largest number of seconds between two kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--directory", type=Path, help="for the service; a temporary one by default")
    parser.add_argument("--true", type=int, default=0)
    parser.add_argument("--teacher", type=lambda path: Path(path).resolve())
    parser.add_argument("--data", type=lambda path: Path(path).resolve())
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, workers=options.workers, seconds=options.seconds)
        return
    true = [
        "+teacher=pretrained", f"teacher.path={options.teacher}", "+student=distilbert", "task=sst2",
        f"task.data_dir={options.data}", "task.max_length=32", "trainer.max_epochs=1", "trainer.batch_size=16",
        "teacher.finetune.batch_size=16", "teacher.finetune.max_epochs=1", "teacher.accept_weak=true",
        "baseline=false", "benchmark.enabled=false",
    ]  # fmt: skip
    jobs = [[STAND_IN]] * options.jobs + [[*true, f"seed={seed}"] for seed in range(options.true)]
    random.Random(options.seed).shuffle(jobs)
    directory = options.directory or Path(tempfile.mkdtemp())
    outcome = run_experiment(
        directory, jobs, kills=options.kills, workers=options.workers, cancel=options.cancel, seconds=options.seconds,
        gap=options.gap, seed=options.seed,
    )  # fmt: skip
    if options.json:
        print(json.dumps(asdict(outcome)))
    else:
        for name, value in asdict(outcome).items():
            print(f"{name.replace('_', ' '):16} {value:g}")


if __name__ == "__main__":
    main()
