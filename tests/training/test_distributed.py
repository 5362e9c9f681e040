"""Tests of training in several processes: the results of one process, and a common end."""

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from distill.core.errors import UserError
from distill.data import splits as tables
from distill.kinds import Classification
from distill.losses import HardLabels
from distill.teachers.output_cache import Cached, HiddenLayers
from distill.training import fitting
from distill.training import processes as distributed
from distill.training import processes as launchers
from distill.training import processes as workers
from distill.training.hyperparameters import TrainerSettings, check_processes
from distill.training.processes import WorkerError, dumps
from tests.conftest import BAD, GOOD, SETTINGS, MakeToy, Toy, build_toy, equal, last_state, run_here, sentences, weights
from tests.jobs.sweeps import find_files

CPU = torch.device("cpu")
ROOT = Path(fitting.__file__).resolve().parents[1]


# Equal to one process


def assert_equal_weights(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    for name, tensor in left.items():
        # Softmax cancels this bias, so its gradient is a rounding error, which AdamW enlarges.
        if not name.endswith("k_lin.bias"):
            torch.testing.assert_close(tensor, right[name], rtol=0, atol=1e-5, msg=name)


def read_rows(toy: Toy) -> list[dict[str, float]]:
    """Returns the rows of the logger's file."""
    lines = (toy.directory / "metrics.csv").read_text().splitlines()
    names = lines[0].split(",")
    return [
        {name: float(value) for name, value in zip(names, line.split(","), strict=True) if value} for line in lines[1:]
    ]


@pytest.mark.parametrize(("strategy", "class_weights"), [("ddp", [0.02, 0.3]), ("fsdp", None)])
def test_two_ranks_equal_one_with_twice_the_batch(
    task: Classification,
    tokenizer: PreTrainedTokenizerBase,
    tmp_path: Path,
    strategy: str,
    class_weights: list[float] | None,
):
    for name, number in (("train", 53), ("dev", 24)):  # The last batch of an epoch is smaller.
        lines = ["sentence\tlabel", *(f"{text}\t{label}" for text, label in sentences(number))]
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    ragged = Classification(name="toy", text=["sentence"], data_dir=str(tmp_path), class_weights=class_weights)
    splits = ragged.read(tmp_path / "cache")
    toys = {
        devices: build_toy(
            ragged, splits, tokenizer, tmp_path / str(devices), dropout=0.0, accumulate=2, devices=devices,
            batch_size=8 // devices, teacher_width=48, learning_rate=3e-4, strategy=strategy,
        )
        for devices in (1, 2)
    }  # fmt: skip
    for toy in toys.values():  # Like a run, whose estimate leaves hooks in the student.
        fitting.estimate_seconds(toy.module, toy.loaders["train"], toy.loaders["dev"], toy.settings)
    fits = {
        devices: toy.fit(logger=CSVLogger(str(toy.directory), name="", version="")) for devices, toy in toys.items()
    }
    assert_equal_weights(last_state(toys[1]), last_state(toys[2]))
    assert_equal_weights(weights(toys[1].module), weights(toys[2].module))
    for one, two in zip(read_rows(toys[1]), read_rows(toys[2]), strict=True):
        assert one == pytest.approx(two, abs=1e-5, rel=1e-6)
    for name in ("steps", "epochs", "best"):
        assert getattr(fits[1], name) == getattr(fits[2], name)
    assert toys[1].module.tokens_seen == toys[2].module.tokens_seen
    assert fits[2].epochs == 2


# Calls


def gather_ranks(kind: str, failing_rank: int) -> list[int]:
    """Returns all ranks, or fails in one of them between two collectives."""
    ranks = distributed.all_gather(distributed.get_rank())
    if distributed.get_rank() == failing_rank:
        if kind == "raise":
            raise ZeroDivisionError("division by zero\nin a second line")
        if kind == "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "exit":
            os._exit(3)
    return ranks if distributed.all_reduce(torch.ones(1)).item() == distributed.world_size() else []


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        # The other worker reports a lost connection, which is not the cause.
        ("SIGKILL", "^rank 2 of 3 was killed by SIGKILL$"),
        ("exit", "^rank 2 of 3 ended with exit code 3$"),
        ("raise", "^rank 2 of 3: ZeroDivisionError: division by zero"),
    ],
)
def test_a_failed_call_names_the_rank_and_leaves_no_worker(kind: str, message: str):
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(WorkerError, match=message):
        distributed.run_in_ranks(gather_ranks, kind, 2, world_size=3, device=CPU)
    assert running_workers() == []
    assert (distributed.get_rank(), distributed.world_size()) == (0, 1)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def run_two_calls() -> None:
    """The main function of a launched process: a call that fails in rank 1, and one that does not."""
    store = launchers.connect_ranks()
    assert store is not None
    if launchers.launched_rank() > 0:
        workers.serve_calls(store)
        return
    for kind in ("raise", ""):
        try:
            print(distributed.run_in_ranks(gather_ranks, kind, 1, world_size=2, device=CPU), launchers.local_rank())
        except WorkerError as error:
            print(error)
    launchers.release_ranks(store)


@pytest.mark.slow  # One call that fails, of processes that this one starts, has a quick test.
def test_processes_of_srun_serve_calls_after_a_failed_one():
    code = "from tests.training.test_distributed import run_two_calls; run_two_calls()"
    variables = {
        "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": "7",
        "MASTER_PORT": str(free_port()),
    }  # fmt: skip
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
            env={**ENVIRONMENT, **variables, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert outputs == ["rank 1 of 2: ZeroDivisionError: division by zero\n[0, 1] 0\n", ""]
    assert [process.returncode for process in processes] == [0, 0]


# Stopped, killed, failed


class FailingLabels(HardLabels):
    """A loss that fails in one rank at the beginning of a step."""

    rank, step, kind = 0, 0, ""

    def forward(self, student: Any, teacher: Any, batch: Any) -> tuple[Tensor, Tensor]:
        self.step -= 1
        if self.step == -1 and distributed.get_rank() == self.rank:
            if self.kind == "user":
                raise UserError("an option is wrong")
            if self.kind == "bug":
                raise ZeroDivisionError("division by zero\nin a second line")
            os.kill(os.getpid(), signal.Signals[self.kind])
        return super().forward(student, teacher, batch)


def add_failure(toy: Toy, *, rank: int, step: int, kind: str) -> Toy:
    term = toy.module.objective.terms["hard"]
    term.__class__ = FailingLabels
    term.rank, term.step, term.kind = rank, step, kind  # type: ignore[assignment]
    return toy


TWO_RANKS: dict[str, Any] = {"devices": 2, "batch_size": 8, "checkpoint_steps": 3}


@pytest.fixture(scope="module")
def two_rank_training(make_toy: MakeToy) -> Toy:
    """An uninterrupted training of two ranks: eight steps, with dropout."""
    toy = make_toy(**TWO_RANKS)
    toy.fit()
    return toy


def running_workers() -> list[int]:
    """Returns the running workers that this process started."""
    return [worker.pid for worker in find_workers(psutil.Process()) if worker.status() != psutil.STATUS_ZOMBIE]


def find_workers(process: psutil.Process) -> list[psutil.Process]:
    """Returns the workers of a process: what its fork server has forked, which lives as long as the process itself."""
    servers = [child for child in process.children() if "forkserver" in " ".join(child.cmdline())]
    return [worker for server in servers for worker in server.children()]


def test_a_training_with_a_killed_rank_resumes_to_equal_weights(make_toy: MakeToy, two_rank_training: Toy):
    stopped = add_failure(make_toy(**TWO_RANKS), rank=1, step=5, kind="SIGKILL")
    with pytest.raises(WorkerError, match="^rank 1 of 2 was killed by SIGKILL$"):
        stopped.fit()
    state = torch.load(stopped.directory / "checkpoints" / "last.ckpt", weights_only=True)
    assert state["global_step"] == 4
    resumed = make_toy(directory=stopped.directory, **TWO_RANKS)
    resumed.fit(resume=True)
    assert equal(last_state(resumed), last_state(two_rank_training))
    assert equal(weights(resumed.module), weights(two_rank_training.module))
    assert resumed.module.tokens_seen == two_rank_training.module.tokens_seen


def test_a_sharded_training_resumes_to_equal_weights(make_toy: MakeToy):
    options = {**TWO_RANKS, "strategy": "fsdp"}
    whole, stopped = make_toy(**options), add_failure(make_toy(**options), rank=1, step=5, kind="SIGTERM")
    whole.fit()
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        stopped.fit()
    resumed = make_toy(directory=stopped.directory, **options)
    resumed.fit(resume=True)
    assert equal(last_state(resumed), last_state(whole))
    assert equal(weights(resumed.module), weights(whole.module))


@pytest.mark.parametrize(
    ("rank", "kind", "error", "message"),
    [(1, "user", UserError, "^an option is wrong$"), (0, "bug", ZeroDivisionError, "division by zero")],
)
def test_all_ranks_end_when_one_fails(make_toy: MakeToy, rank: int, kind: str, error: type[Exception], message: str):
    toy = add_failure(make_toy(**TWO_RANKS), rank=rank, step=2, kind=kind)
    began = time.monotonic()
    with pytest.raises(error, match=message):
        toy.fit()
    assert time.monotonic() - began < 60
    assert running_workers() == []


def test_a_checkpoint_of_two_ranks_is_not_resumed_by_one(make_toy: MakeToy, two_rank_training: Toy):
    toy = make_toy(directory=two_rank_training.directory, **{**TWO_RANKS, "devices": 1, "batch_size": 16})
    with pytest.raises(UserError, match=r"last\.ckpt belongs to another training with different processes: run the"):
        toy.fit(resume=True)


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch):
    settings = replace(SETTINGS, devices=4)
    check_processes(settings, "trainer")  # A CPU serves any number.
    monkeypatch.setattr(TrainerSettings, "device", lambda _: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(
        UserError, match=r"got trainer\.devices=4, expected at most 2, the GPUs that torch finds: lower it or set"
    ):
        check_processes(settings, "trainer")
    monkeypatch.setattr(TrainerSettings, "device", lambda _: torch.device("mps"))
    with pytest.raises(UserError, match="expected 1 because an Apple GPU serves one process"):
        check_processes(settings, "trainer")


# Pickling


def test_memory_mapped_files_are_pickled_as_their_path(
    task: Classification, splits: tables.LabelledData, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
):
    examples = task.encode(splits, tokenizer, tmp_path)["train"]
    pickled = pickle.dumps(examples)
    assert tmp_path.name.encode() in pickled
    assert examples[[3, 60]]["input_ids"].equal(pickle.loads(pickled)[[3, 60]]["input_ids"])
    cached = Cached(tmp_path / "outputs", examples.lengths, hidden=HiddenLayers(2, 1, (1,)))
    (tmp_path / "outputs").mkdir()
    cached.add(0, {"logits": torch.rand(64, 2)}, torch.rand(int(examples.lengths.sum()), 2))
    pickled = pickle.dumps(cached)
    assert len(pickled) < 2000
    batch = examples[[3, 60]]
    items = task.select(batch)
    result, expected = pickle.loads(pickled)(batch, items), cached(batch, items)
    assert result.whole().hidden_states[-1].equal(expected.whole().hidden_states[-1])
    assert result.at(items).logits.equal(expected.at(items).logits)


def test_a_model_that_was_run_can_be_pickled(make_toy: MakeToy):
    toy = make_toy()
    fitting.estimate_seconds(toy.module, toy.loaders["train"], toy.loaders["dev"], toy.settings)
    module = pickle.loads(dumps(toy.module))
    batch = next(iter(toy.loaders["train"]))[0]
    with torch.no_grad():
        for mode in (toy.module, module):
            mode.eval()
        assert module.losses(batch)[0].equal(toy.module.losses(batch)[0])
    assert not module.signal.model.train().training


def test_a_module_that_cannot_be_pickled_is_refused(make_toy: MakeToy):
    toy = make_toy(**TWO_RANKS)
    toy.module.objective.terms["hard"].strange = lambda: None
    with pytest.raises(UserError, match=r"cannot be sent to other processes \(.*lambda.*\): set trainer\.devices=1"):
        toy.fit()


# The command


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory, data_dir: Path, encoder_dir: Path) -> tuple[Path, tuple[str, ...]]:
    """A sweep of two runs in `root / "sweep"`, the first of which fine-tunes the teacher, and its command."""
    root = tmp_path_factory.mktemp("root")
    arguments = (
        "+teacher=pretrained", f"teacher.path={encoder_dir}", "+student=distilbert", "task=sst2",
        f"task.data_dir={data_dir}", "task.max_length=32", f"cache_dir={root / 'cache'}", "benchmark.enabled=false",
        "teacher.finetune.max_steps=3", "teacher.accept_weak=true", "teacher.finetune.batch_size=8",
        "teacher.finetune.devices=2", "trainer=ddp", "trainer.batch_size=8", "trainer.learning_rate=1e-3",
        "trainer.max_epochs=2", "trainer.evaluations=1", "augment=none",
    )  # fmt: skip
    sweep = ("-m", *arguments, "seed=1,2", "export.enabled=false", f"output_dir={root / 'sweep'}")
    done = run_here(*sweep, cwd=root)
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 steps of 16 examples" in done.stdout  # The teacher,
    assert "16 examples in a step" in done.stdout  # and the students.
    return root, arguments


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def run_command(*arguments: str, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, *launcher, "-m", "distill", *arguments]
    return subprocess.run(call, env=ENVIRONMENT, capture_output=True, text=True, timeout=240, check=False)


def kill_run(*arguments: str, output: Path, step: int = 1) -> tuple[dict[str, Any], list[psutil.Process]]:
    """Kills a run after this step; returns its last checkpoint and the workers that it had started."""

    def reached() -> int:
        return max((int(state["global_step"]) for state in load_checkpoints(output)), default=0)

    call = [sys.executable, "-m", "distill", *arguments, f"output_dir={output}"]
    process = psutil.Popen(call, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: reached() >= step)
        started = find_workers(process)
    finally:
        process.kill()
        process.wait()
    [state] = load_checkpoints(output)
    return state, started


def load_checkpoints(output: Path) -> list[dict[str, Any]]:
    return [torch.load(path, weights_only=True) for path in find_files(output, "last.ckpt")]


def read_records(output: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(output.rglob("run.json"))]


def test_a_sweep_of_two_processes_writes_a_record_for_every_run(sweep: tuple[Path, tuple[str, ...]]):
    run_records = read_records(sweep[0] / "sweep")
    assert [record["status"] for record in run_records] == ["finished"] * 2
    assert sorted(record["seed"] for record in run_records) == [1, 2]
    assert all(record["training"]["epochs"] == 2 for record in run_records)


@pytest.mark.slow
def test_torchrun_gives_one_run_with_the_same_metrics(sweep: tuple[Path, tuple[str, ...]]):
    root, arguments = sweep
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()))
    done = run_command(*arguments, "seed=1", f"output_dir={root / 'torchrun'}", launcher=launcher)
    assert done.returncode == 0, done.stderr
    [record] = read_records(root / "torchrun")
    earlier = next(record for record in read_records(root / "sweep") if record["seed"] == 1)
    assert record["status"] == "finished"
    assert record["student"]["metrics"] == earlier["student"]["metrics"]
    assert done.stdout.count("Bundle") == 1


@pytest.mark.slow
def test_a_killed_stream_of_two_processes_resumes_to_equal_weights(tmp_path: Path):
    """Each process resumes from its own position in the text."""
    (tmp_path / "text").mkdir()
    for number in range(6):
        lines = [f"{(GOOD + BAD)[(number * 3 + line) % 8].capitalize()} {line}." for line in range(60)]
        (tmp_path / "text" / f"{number}.txt").write_text("\n".join(lines))
    arguments = (
        "job=pretrain", "+teacher=bert_tiny", "teacher.vocabulary=300", "teacher.hidden_size=32", "task=mlm",
        f"task.data_dir={tmp_path / 'text'}", "task.max_length=32", "task.streaming=true", "task.dev_examples=20",
        "trainer=ddp", "trainer.batch_size=4", "trainer.max_steps=75", "trainer.max_epochs=null",
        "trainer.checkpoint_steps=3", "trainer.precision=32-true", f"cache_dir={tmp_path / 'cache'}",
    )  # fmt: skip
    done = run_here(*arguments, f"output_dir={tmp_path / 'whole'}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    state, started = kill_run(*arguments, output=tmp_path / "killed", step=12)
    assert len(started) == 1
    wait_for(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in started))
    assert 12 <= state["global_step"] < 75
    first, second = (position["buffer"] for position in state["places"])
    assert first["visit"] > 0  # Both have read the corpus once.
    assert first["packer"] != second["packer"]
    [record] = (tmp_path / "killed").rglob("run.json")
    done = run_here(f"resume={record.parent}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    files = [next((tmp_path / name).rglob("model.safetensors")) for name in ("whole", "killed")]
    assert equal(load_file(files[0]), load_file(files[1]))


def wait_for(condition: Callable[[], Any], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])
