"""Tests that a stopped or killed training resumes to the weights of an uninterrupted one."""

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import timer
from transformers import PreTrainedTokenizerBase

from distill.core.errors import UserError
from distill.data import splits as tables
from distill.kinds import Classification
from distill.training import fitting
from distill.training.module import DistillationModule
from distill.training.processes import start_method
from tests.conftest import MakeToy, Toy, build_toy, equal, fake_scores, last_state, record_steps, weights


def equal_trainings(resumed: Toy, whole: Toy) -> bool:
    """Returns whether last weights, best weights and counts of examples and tokens are equal."""
    seen = ("examples_seen", "tokens_seen", "tokens_computed")
    return (
        equal(last_state(resumed), last_state(whole))
        and equal(weights(resumed.module), weights(whole.module))
        and all(getattr(resumed.module, name) == getattr(whole.module, name) for name in seen)
    )


def stop_at(toy: Toy, step: int, monkeypatch: pytest.MonkeyPatch, error: type[BaseException] = RuntimeError) -> None:
    """Fits until this optimizer step begins, and raises the error there; Lightning exits at a Ctrl-C."""
    original = toy.module.training_step

    def training_step(*args: Any) -> Any:
        if toy.module.global_step == step:
            raise error("stopped")
        return original(*args)

    monkeypatch.setattr(toy.module, "training_step", training_step)
    at_ctrl_c = signal.getsignal(signal.SIGINT)
    with pytest.raises((error, SystemExit)):
        toy.fit()
    signal.signal(signal.SIGINT, at_ctrl_c)  # Lightning does not restore it.


def test_a_run_resumed_within_an_epoch_trains_on_the_rest_of_that_epoch(
    make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch
):
    whole, stopped = make_toy(evaluations=2), make_toy(evaluations=2)
    whole.fit()
    stop_at(stopped, 7, monkeypatch)  # The last checkpoint is that of step 6.
    resumed = make_toy(directory=stopped.directory, evaluations=2)
    steps = record_steps(resumed)
    assert resumed.fit(resume=True).steps == 8
    assert len(steps) == 2
    assert equal(last_state(resumed), last_state(whole))


def test_moved_training_keeps_its_best_score(make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    stopped = make_toy()
    first = fake_scores(stopped, [0.9], monkeypatch)
    stop_at(stopped, 5, monkeypatch)
    moved = shutil.move(stopped.directory, tmp_path / "moved")
    resumed = make_toy(directory=moved)
    fake_scores(resumed, [0.5], monkeypatch)
    assert resumed.fit(resume=True).best == pytest.approx(0.9)
    assert equal(weights(resumed.module), first[0][1])


def test_resumed_training_without_its_best_checkpoint_is_refused(make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch):
    stopped = make_toy()
    stop_at(stopped, 5, monkeypatch)
    (stopped.directory / "checkpoints" / "best.ckpt").unlink()
    with pytest.raises(UserError, match=r"best\.ckpt is missing: remove .*checkpoints to restart this training"):
        make_toy(directory=stopped.directory).fit(resume=True)


class StepClock:
    """A clock that advances one second per optimizer step."""

    def __init__(self, module: DistillationModule) -> None:
        self.module = module

    def monotonic(self) -> float:
        return float(self.module.global_step)


def test_a_resumed_run_counts_the_time_of_both_parts(make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch):
    stopped = make_toy()
    stopped.module.teacher_seconds = 1000.0
    monkeypatch.setattr(timer, "time", StepClock(stopped.module))
    stop_at(stopped, 5, monkeypatch)
    resumed = make_toy(directory=stopped.directory)
    monkeypatch.setattr(timer, "time", StepClock(resumed.module))
    fit = resumed.fit(resume=True)
    assert (fit.steps, fit.seconds) == (8, 8)
    assert fit.examples_per_second == pytest.approx(16)  # a step's batch
    assert resumed.module.teacher_seconds > 1000


def test_resuming_a_finished_training_changes_nothing(make_toy: MakeToy):
    done = make_toy(max_epochs=1)
    first = done.fit()
    resumed = make_toy(directory=done.directory, max_epochs=1)
    second = resumed.fit(resume=True)
    assert equal(weights(resumed.module), weights(done.module))
    assert (second.steps, second.epochs, second.best) == (first.steps, first.epochs, first.best)
    assert second.examples_per_second < 10 * first.examples_per_second


# Killed


def kill_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_the_optimizer(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills the process in the fourth step, after a part of the weights changed."""
    step = torch.optim.AdamW.step

    def half(optimizer: torch.optim.AdamW, **options: Any) -> Any:
        if toy.module.global_step == 3:
            with torch.no_grad():
                optimizer.param_groups[0]["params"][0] += 1
            kill_process()
        return step(optimizer, **options)

    monkeypatch.setattr(torch.optim.AdamW, "step", half)


def in_a_checkpoint(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills the process while the checkpoint of the sixth step is written."""
    save = torch.save

    def half(checkpoint: dict[str, Any], file: Any) -> None:
        if checkpoint["global_step"] == 6:
            file.write(b"half of it")
            file.flush()
            kill_process()
        save(checkpoint, file)

    monkeypatch.setattr(torch, "save", half)


def between_best_and_last(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills the process after the best weights were written and before the last checkpoint."""
    save = torch.save

    def only_best(checkpoint: dict[str, Any], file: Any) -> None:
        if checkpoint["global_step"] == 8 and "optimizer_states" in checkpoint:
            kill_process()
        save(checkpoint, file)

    monkeypatch.setattr(torch, "save", only_best)


Fatal = Callable[[Toy, pytest.MonkeyPatch], None]
# Where a training is killed, and the number of steps that the resumed training runs.
KILLED: list[tuple[Fatal, int]] = [(in_the_optimizer, 5), (in_a_checkpoint, 4), (between_best_and_last, 2)]


def train_and_die(
    fatal: Fatal, task: Classification, splits: tables.LabelledData, tokenizer: PreTrainedTokenizerBase, directory: Path
) -> None:
    toy = build_toy(task, splits, tokenizer, directory, checkpoint_steps=3)
    fatal(toy, pytest.MonkeyPatch())
    toy.fit(resume=True)


@pytest.fixture(scope="module")
def killed(
    task: Classification,
    splits: tables.LabelledData,
    tokenizer: PreTrainedTokenizerBase,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[Fatal, Path]:
    """Directories of trainings that were killed with SIGKILL, one for each point."""
    context = multiprocessing.get_context(start_method("cpu"))
    directories = {fatal: tmp_path_factory.mktemp(fatal.__name__) for fatal, _ in KILLED}
    processes = [
        context.Process(target=train_and_die, args=(fatal, task, splits, tokenizer, directory))
        for fatal, directory in directories.items()
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [-signal.SIGKILL] * len(KILLED)
    return directories


@pytest.mark.parametrize(("fatal", "left"), KILLED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_killed_training_resumes_to_the_weights_of_an_uninterrupted_one(
    make_toy: MakeToy, uninterrupted: Toy, killed: dict[Fatal, Path], fatal: Fatal, left: int
):
    resumed = make_toy(directory=killed[fatal], checkpoint_steps=3)
    steps = record_steps(resumed)
    assert resumed.fit(resume=True).steps == 8
    assert len(steps) == left
    assert equal_trainings(resumed, uninterrupted)


# Stopped


@pytest.mark.parametrize(("number", "step", "saved"), [(signal.SIGINT, 1, 2), (signal.SIGTERM, 7, 8)])
def test_a_signal_saves_the_current_step_and_stops_the_training(
    make_toy: MakeToy,
    uninterrupted: Toy,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    number: signal.Signals,
    step: int,
    saved: int,
):
    stopped = make_toy()
    original = stopped.module.training_step

    def training_step(*arguments: Any) -> None:
        if stopped.module.global_step == step:
            signal.raise_signal(number)
        original(*arguments)

    monkeypatch.setattr(stopped.module, "training_step", training_step)
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        stopped.fit()
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
    assert "Stopping after this step and saving a checkpoint." in capfd.readouterr().err
    resumed = make_toy(directory=stopped.directory)
    steps = record_steps(resumed)
    resumed.fit(resume=True)
    assert len(steps) == 8 - saved
    assert equal_trainings(resumed, uninterrupted)


def test_a_second_signal_stops_the_training_at_once(make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch):
    stopped = make_toy(checkpoint_steps=1)
    original = stopped.module.training_step

    def training_step(*arguments: Any) -> None:
        if stopped.module.global_step == 2:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        original(*arguments)

    monkeypatch.setattr(stopped.module, "training_step", training_step)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        stopped.fit()
    state = torch.load(stopped.directory / "checkpoints" / "last.ckpt", weights_only=True)
    assert state["global_step"] == 2


# Refused checkpoints


@pytest.mark.parametrize(
    ("options", "other"), [({"teacher_width": 48}, "model"), ({"max_epochs": 3, "seed": 3}, "seed and steps")]
)
def test_a_checkpoint_of_another_training_is_refused(
    make_toy: MakeToy, uninterrupted: Toy, options: dict[str, Any], other: str
):
    toy = make_toy(directory=uninterrupted.directory, **options)
    with pytest.raises(
        UserError, match=rf"last\.ckpt belongs to another training with different {other}: run the command"
    ):
        toy.fit(resume=True)


def test_a_checkpoint_of_other_data_is_refused(make_toy: MakeToy):
    toy = make_toy(max_epochs=None, max_steps=1)

    def fit(**options: Any) -> fitting.Fit:
        return fitting.fit(
            toy.module, toy.loaders["train"], toy.loaders["dev"], settings=toy.settings, logger=None, title="toy",
            checkpoints=toy.directory / "checkpoints", **options,
        )  # fmt: skip

    fit(identity={"data": "these"})
    with pytest.raises(UserError, match="with different data: run the command without resume"):
        fit(identity={"data": "those"}, resume=True)


def flip_byte(content: bytes) -> bytes:
    """Changes a byte in the middle, which lies in a tensor."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    "damage", [lambda _: b"", lambda _: b"no checkpoint", lambda content: content[:-5000], flip_byte]
)
def test_a_damaged_checkpoint_is_refused(make_toy: MakeToy, damage: Callable[[bytes], bytes]):
    toy = make_toy(max_epochs=None, max_steps=1)
    toy.fit()
    path = toy.directory / "checkpoints" / "last.ckpt"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=r"last\.ckpt is damaged: remove .* to restart this training"):
        toy.fit(resume=True)
