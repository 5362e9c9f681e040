"""Does a training that was stopped or killed end as if nothing had been?"""

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

from distill.data import tables
from distill.errors import UserError
from distill.tasks import Classification
from distill.training import fitting
from distill.training.module import DistillationModule
from tests.conftest import Make, Toy, equal, last_state, scores, steps_of, toy_training, weights


def same_end(resumed: Toy, whole: Toy) -> bool:
    """Whether both have the same last weights, the same best ones, and the same account of what they saw."""
    seen = ("examples_seen", "tokens_seen", "tokens_computed")
    return (
        equal(last_state(resumed), last_state(whole))
        and equal(weights(resumed.module), weights(whole.module))
        and all(getattr(resumed.module, name) == getattr(whole.module, name) for name in seen)
    )


def stop_at(toy: Toy, step: int, monkeypatch: pytest.MonkeyPatch, error: type[BaseException] = RuntimeError) -> None:
    """Fit until the optimizer step of this number is about to begin, and fail there; Lightning exits at a Ctrl-C."""
    original = toy.module.training_step

    def training_step(*args: Any) -> Any:
        if toy.module.global_step == step:
            raise error("stopped")
        return original(*args)

    monkeypatch.setattr(toy.module, "training_step", training_step)
    at_ctrl_c = signal.getsignal(signal.SIGINT)
    with pytest.raises((error, SystemExit)):
        toy.fit()
    signal.signal(signal.SIGINT, at_ctrl_c)  # Lightning takes it away for good.


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_resumed_run_ends_with_the_weights_of_a_whole_one(
    make: Make, uninterrupted: Toy, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
):
    stopped = make()
    stop_at(stopped, 5, monkeypatch, error)
    resumed = make(directory=stopped.directory)
    steps = steps_of(resumed)
    fit = resumed.fit(resume=True)
    assert (len(steps), fit.steps, fit.epochs) == (4, 8, 2)
    assert same_end(resumed, uninterrupted)


def test_a_run_resumed_within_an_epoch_sees_the_rest_of_that_epoch(make: Make, monkeypatch: pytest.MonkeyPatch):
    whole, stopped = make(evaluations=2), make(evaluations=2)
    whole.fit()
    stop_at(stopped, 7, monkeypatch)  # The last checkpoint is that of step 6.
    resumed = make(directory=stopped.directory, evaluations=2)
    steps = steps_of(resumed)
    assert resumed.fit(resume=True).steps == 8
    assert len(steps) == 2
    assert equal(last_state(resumed), last_state(whole))


def test_a_resumed_run_keeps_the_best_of_both_parts(make: Make, monkeypatch: pytest.MonkeyPatch):
    stopped = make()
    first = scores(stopped, [0.9], monkeypatch)
    stop_at(stopped, 5, monkeypatch)
    resumed = make(directory=stopped.directory)
    scores(resumed, [0.5], monkeypatch)
    assert resumed.fit(resume=True).best == pytest.approx(0.9)
    assert equal(weights(resumed.module), first[0][1])


def test_moved_training_keeps_its_best_score(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    stopped = make()
    first = scores(stopped, [0.9], monkeypatch)
    stop_at(stopped, 5, monkeypatch)
    moved = shutil.move(stopped.directory, tmp_path / "moved")
    resumed = make(directory=moved)
    scores(resumed, [0.5], monkeypatch)
    assert resumed.fit(resume=True).best == pytest.approx(0.9)
    assert equal(weights(resumed.module), first[0][1])


def test_resumed_training_without_its_best_checkpoint_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch):
    stopped = make()
    stop_at(stopped, 5, monkeypatch)
    (stopped.directory / "checkpoints" / "best.ckpt").unlink()
    with pytest.raises(UserError, match=r"best\.ckpt is missing: remove .*checkpoints to restart this training"):
        make(directory=stopped.directory).fit(resume=True)


class StepClock:
    """Tells the time as one second an optimizer step."""

    def __init__(self, module: DistillationModule) -> None:
        self.module = module

    def monotonic(self) -> float:
        return float(self.module.global_step)


def test_a_resumed_run_counts_the_time_of_both_parts(make: Make, monkeypatch: pytest.MonkeyPatch):
    stopped = make()
    stopped.module.teacher_seconds = 1000.0
    monkeypatch.setattr(timer, "time", StepClock(stopped.module))
    stop_at(stopped, 5, monkeypatch)
    resumed = make(directory=stopped.directory)
    monkeypatch.setattr(timer, "time", StepClock(resumed.module))
    fit = resumed.fit(resume=True)
    assert (fit.steps, fit.seconds) == (8, 8)
    assert fit.examples_per_second == pytest.approx(16)  # a step's batch
    assert resumed.module.teacher_seconds > 1000


def test_a_finished_training_is_resumed_as_it_was(make: Make):
    done = make(max_epochs=1)
    first = done.fit()
    resumed = make(directory=done.directory, max_epochs=1)
    second = resumed.fit(resume=True)
    assert equal(weights(resumed.module), weights(done.module))
    assert (second.steps, second.epochs, second.best) == (first.steps, first.epochs, first.best)
    assert second.examples_per_second < 10 * first.examples_per_second


def test_resume_without_a_checkpoint_starts_anew(make: Make, uninterrupted: Toy):
    toy = make()
    toy.fit(resume=True)
    assert equal(last_state(toy), last_state(uninterrupted))


# Killed


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_a_step(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the seventh step, after its gradients."""
    monkeypatch.setattr(toy.module, "_log_losses", lambda step, *_: die() if step == 6 else None)


def in_the_optimizer(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the fourth step, half of the weights moved."""
    step = torch.optim.AdamW.step

    def half(optimizer: torch.optim.AdamW, **options: Any) -> Any:
        if toy.module.global_step == 3:
            with torch.no_grad():
                optimizer.param_groups[0]["params"][0] += 1
            die()
        return step(optimizer, **options)

    monkeypatch.setattr(torch.optim.AdamW, "step", half)


def in_a_checkpoint(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the checkpoint of the sixth step is written."""
    save = torch.save

    def half(checkpoint: dict[str, Any], file: Any) -> None:
        if checkpoint["global_step"] == 6:
            file.write(b"half of it")
            file.flush()
            die()
        save(checkpoint, file)

    monkeypatch.setattr(torch, "save", half)


def in_an_evaluation(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """While dev is scored after the first epoch."""
    monkeypatch.setattr(toy.module, "validation_step", lambda *_: die())


def between_best_and_last(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the best weights were written, and before what goes on from there."""
    save = torch.save

    def only_best(checkpoint: dict[str, Any], file: Any) -> None:
        if checkpoint["global_step"] == 8 and "optimizer_states" in checkpoint:
            die()
        save(checkpoint, file)

    monkeypatch.setattr(torch, "save", only_best)


Fatal = Callable[[Toy, pytest.MonkeyPatch], None]
# Where a training is killed, and the steps that the one after it has left; without a checkpoint it has all of them.
KILLED: list[tuple[Fatal, int]] = [
    (in_a_step, 2),
    (in_the_optimizer, 5),
    (in_a_checkpoint, 4),
    (in_an_evaluation, 5),
    (between_best_and_last, 2),
]


def train_and_die(
    fatal: Fatal, task: Classification, splits: tables.LabelledData, tokenizer: PreTrainedTokenizerBase, directory: Path
) -> None:
    toy = toy_training(task, splits, tokenizer, directory, checkpoint_steps=3)
    fatal(toy, pytest.MonkeyPatch())
    toy.fit(resume=True)


@pytest.fixture(scope="module")
def killed(
    task: Classification,
    splits: tables.LabelledData,
    tokenizer: PreTrainedTokenizerBase,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[Fatal, Path]:
    """Where trainings lie that were killed, each at its place, by a signal that no process can catch."""
    context = multiprocessing.get_context("spawn")
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
def test_a_killed_training_ends_as_if_nothing_had_been(
    make: Make, uninterrupted: Toy, killed: dict[Fatal, Path], fatal: Fatal, left: int
):
    resumed = make(directory=killed[fatal], checkpoint_steps=3)
    steps = steps_of(resumed)
    assert resumed.fit(resume=True).steps == 8
    assert len(steps) == left
    assert same_end(resumed, uninterrupted)


# Stopped


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("step", "kept"), [(1, 2), (3, 4), (7, 8)])
def test_a_training_that_is_asked_to_stop_keeps_the_step(
    make: Make,
    uninterrupted: Toy,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    number: signal.Signals,
    step: int,
    kept: int,
):
    stopped = make()
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
    resumed = make(directory=stopped.directory)
    steps = steps_of(resumed)
    resumed.fit(resume=True)
    assert len(steps) == 8 - kept
    assert same_end(resumed, uninterrupted)


def test_asking_twice_stops_at_once(make: Make, monkeypatch: pytest.MonkeyPatch):
    stopped = make(checkpoint_steps=1)
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


# Checkpoints of others


@pytest.mark.parametrize(
    ("options", "other"),
    [({"seed": 2}, "seed"), ({"teacher_width": 48}, "model"), ({"max_epochs": 3, "seed": 3}, "seed and steps")],
)
def test_a_checkpoint_of_another_training_is_refused(
    make: Make, uninterrupted: Toy, options: dict[str, Any], other: str
):
    toy = make(directory=uninterrupted.directory, **options)
    with pytest.raises(
        UserError, match=rf"last\.ckpt belongs to another training with different {other}: run the command"
    ):
        toy.fit(resume=True)


def test_a_checkpoint_over_other_data_is_refused(make: Make):
    toy = make(max_epochs=None, max_steps=1)

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
def test_a_damaged_checkpoint_is_told(make: Make, damage: Callable[[bytes], bytes]):
    toy = make(max_epochs=None, max_steps=1)
    toy.fit()
    path = toy.directory / "checkpoints" / "last.ckpt"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=r"last\.ckpt is damaged: remove .* to restart this training"):
        toy.fit(resume=True)
