"""Callbacks of Lightning that a user gives: checks, copies for further trainings, and errors that name the callback."""

import copy
import io
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback

from distill.errors import DistillError, OptionError, UserError, first_line
from distill.options import show_value


def read_callbacks(given: Callback | Sequence[Callback]) -> tuple[Callback, ...]:
    """Returns the callbacks as a tuple.

    Raises:
        OptionError: for something else than callbacks of `lightning.pytorch`.
        UserError: for two whose states a checkpoint cannot tell apart.
    """
    listed = [given] if isinstance(given, Callback) else given
    expected = "a callback of lightning.pytorch, or a list of them"
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise OptionError("callbacks", show_value(given), expected)
    for callback in listed:
        if isinstance(callback, type):
            raise OptionError("callbacks", f"[{callback.__name__}]", f"its object: {callback.__name__}(...)")
        if not isinstance(callback, Callback):
            name = f"{type(callback).__module__}.{type(callback).__name__}"
            raise OptionError("callbacks", f"[{name}]", expected)
    stateful = [callback for callback in listed if type(callback).state_dict is not Callback.state_dict]
    keys = [callback.state_key for callback in stateful]
    if twice := next((of for of in stateful if keys.count(of.state_key) > 1), None):
        raise UserError(
            f"two callbacks {name_of(twice)} have the state_key {twice.state_key}, under which a checkpoint holds "
            "one state: give each a state_key of its own, or leave one out"
        )
    return tuple(listed)


def copy_callbacks(callbacks: Sequence[Callback]) -> tuple[Callback, ...]:
    """Returns copies for another training. Call it before the first one, which changes their state.

    Raises:
        UserError: for a callback that cannot be copied.
    """
    copies = []
    for callback in callbacks:
        try:
            copies.append(copy.deepcopy(callback))
        except Exception as error:  # Those of any object that the callback holds.
            raise UserError(
                f"the callback {name_of(callback)} cannot be copied for the training of another student "
                f"({first_line(error)}): set baseline=False and seeds=1, or give it a __deepcopy__"
            ) from error
    return tuple(copies)


def name_of(callback: Callback) -> str:
    """Returns the name of a callback in messages."""
    return type(callback).__name__


def describe_callback(callback: Callback) -> str:
    """Returns the class of a callback and its plain attributes, by which a fine-tuned teacher is found again."""
    plain = {
        name: value
        for name, value in sorted(vars(callback).items())
        if isinstance(value, str | int | float | bool | None)
    }
    return f"{type(callback).__module__}.{type(callback).__qualname__} {plain}"


@contextmanager
def naming_callbacks(callbacks: Sequence[Callback]) -> Iterator[None]:
    """Raises an error of one of the callbacks as a UserError of one line that names it and its method."""
    try:
        yield
    except DistillError:
        raise
    except Exception as error:  # Of a user's code.
        found = _find_callback(error.__traceback__, callbacks)
        if found is None:
            raise
        callback, method = found
        raise UserError(
            f"the callback {name_of(callback)} failed in {method} ({type(error).__name__}: {first_line(error)}): "
            "correct it and run again; a run with resume=True goes on from its last checkpoint"
        ) from error


def _find_callback(traceback: TracebackType | None, callbacks: Sequence[Callback]) -> tuple[Callback, str] | None:
    """Returns the callback that raised an error, and its method; None if it was none of these."""
    while traceback is not None:
        frame = traceback.tb_frame
        names = frame.f_locals
        for callback in callbacks:
            if names.get("self") is callback:
                return callback, frame.f_code.co_name
            if names.get("callback") is callback and "hook_name" in names:  # Of Lightning's call of a plain function.
                return callback, str(names["hook_name"])
        traceback = traceback.tb_next
    return None


class CheckStates(Callback):
    """Refuses states of callbacks that a checkpoint cannot give back, because only plain values are loaded from it.

    Args:
        callbacks: those of the user.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = tuple(callbacks)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._check()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._check()

    def _check(self) -> None:
        for callback in self.callbacks:
            content = io.BytesIO()
            try:
                torch.save(callback.state_dict(), content)
                content.seek(0)
                torch.load(content, weights_only=True)
            except (pickle.PicklingError, pickle.UnpicklingError, TypeError, AttributeError) as error:
                raise UserError(
                    f"the state_dict of the callback {name_of(callback)} has a value that no checkpoint gives back "
                    f"({first_line(error)}): return numbers, texts, tensors, and lists and dicts of them"
                ) from error
