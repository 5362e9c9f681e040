"""Tests of callbacks that a user gives: they are called, saved, resumed, copied, and named when they fail."""

import threading
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, LambdaCallback

from distill.core.errors import OptionError, UserError
from distill.training import fitting
from distill.training.lightning_callbacks import copy_callbacks, describe_callback, read_callbacks
from tests.conftest import MakeToy, Toy, equal, last_state, weights


class Recorder(Callback):
    """Counts steps, and keeps the count in checkpoints."""

    def __init__(self, *, fails_at: int | None = None) -> None:
        self.steps = 0
        self.fails_at = fails_at

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        if trainer.global_step == self.fails_at:
            raise ZeroDivisionError("division by zero\nmore")
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.steps = state_dict["steps"]


def fit(toy: Toy, *callbacks: Callback, resume: bool = False) -> fitting.Fit:
    return fitting.fit(
        toy.module, toy.loaders["train"], toy.loaders["dev"], settings=toy.settings,
        checkpoints=toy.directory / "checkpoints", logger=None, title="toy", resume=resume, callbacks=callbacks,
    )  # fmt: skip


def test_a_training_after_a_callback_that_failed_resumes_to_the_same_weights(
    make_toy: MakeToy, uninterrupted: Toy
) -> None:
    stopped, failing = make_toy(), Recorder(fails_at=6)
    expected = (
        r"^the callback Recorder failed in on_train_batch_end \(ZeroDivisionError: division by zero\): correct it and "
        "run again; a run with resume=True goes on from its last checkpoint$"
    )
    with pytest.raises(UserError, match=expected) as error:
        fit(stopped, failing)
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    resumed, recorder = make_toy(directory=stopped.directory), Recorder()
    fit(resumed, recorder, resume=True)
    assert recorder.steps == 8  # Its four of the first epoch are in the checkpoint.
    assert equal(last_state(resumed), last_state(uninterrupted))
    assert equal(weights(resumed.module), weights(uninterrupted.module))


def test_an_error_of_the_training_itself_is_not_that_of_a_callback(
    make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = make_toy()

    def training_step(*args: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(toy.module, "training_step", training_step)
    with pytest.raises(ZeroDivisionError):
        fit(toy, Recorder())


def test_a_function_in_place_of_a_method_is_named_too(make_toy: MakeToy) -> None:
    def fail(*args: object) -> None:
        raise KeyError("x")

    with pytest.raises(UserError, match=r"the callback LambdaCallback failed in on_train_start \(KeyError: 'x'\)"):
        fit(make_toy(), LambdaCallback(on_train_start=fail))


def test_a_callback_of_lightning_ends_the_training_early(make_toy: MakeToy) -> None:
    toy = make_toy(max_epochs=3)
    stopping = EarlyStopping("dev/accuracy", mode="max", patience=1, min_delta=2.0)  # Nothing improves that much.
    assert fit(toy, stopping).steps == 8
    assert stopping.stopped_epoch > 0


def test_a_state_that_no_checkpoint_gives_back_is_refused_at_the_first_step(make_toy: MakeToy) -> None:
    class Odd(Callback):
        def __init__(self, value: object) -> None:
            self.value = value

        def state_dict(self) -> dict[str, Any]:
            return {"value": self.value}

    message = "the state_dict of the callback Odd has a value that no checkpoint gives back .*: return numbers, texts"
    for value in (Odd, threading.Lock()):
        toy = make_toy()
        with pytest.raises(UserError, match=message):
            fit(toy, Odd(value))
        assert not (toy.directory / "checkpoints" / "last.ckpt").exists()


def test_other_students_have_copies_of_the_callbacks() -> None:
    recorder = Recorder()
    [copied] = copy_callbacks([recorder])
    assert copied is not recorder
    assert isinstance(copied, Recorder)
    recorder.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="the callback Recorder cannot be copied for the training of another student"):
        copy_callbacks([recorder])


def test_a_callback_is_known_by_its_class_and_its_plain_attributes() -> None:
    first = describe_callback(EarlyStopping("dev/accuracy", patience=1))
    assert first == describe_callback(EarlyStopping("dev/accuracy", patience=1))
    assert first != describe_callback(EarlyStopping("dev/accuracy", patience=2))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "got callbacks=3, expected a callback of lightning.pytorch, or a list of them"),
        ([torch.nn.ReLU()], r"got callbacks=\[torch.nn.modules.activation.ReLU\], expected a callback of lightning.py"),
        ([Recorder], r"got callbacks=\[Recorder\], expected its object: Recorder\(...\)"),
        ("EarlyStopping", "got callbacks=EarlyStopping, expected a callback of lightning.pytorch"),
    ],
)
def test_anything_else_is_refused(given: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read_callbacks(given)


def test_two_states_of_one_name_are_refused() -> None:
    with pytest.raises(UserError, match="two callbacks Recorder have the state_key Recorder, under which a checkpoint"):
        read_callbacks([Recorder(), Recorder()])
    several = [EarlyStopping("dev/accuracy"), EarlyStopping("train/loss")]
    assert read_callbacks(several) == tuple(several)


def test_one_callback_needs_no_list() -> None:
    recorder = Recorder()
    assert read_callbacks(recorder) == read_callbacks([recorder]) == (recorder,)
