"""Errors that end a run with a message of one line, each with its exit code."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from distill.credentials import hide_secrets

_SURE = 0.8  # Similarity of a misspelt name, from which on no other one can be meant.


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text, or the name of its class where it has no text."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def did_you_mean(given: str, names: Sequence[str], *, cutoff: float = 0.6) -> str:
    """Returns ` (did you mean NAME?)` with the nearest of these names, empty where none is near.

    Args:
        cutoff: the least similarity, from 0 to 1.
    """
    nearest = difflib.get_close_matches(given, names, n=1, cutoff=cutoff)
    return f" (did you mean {nearest[0]}?)" if nearest else ""


def suggest(given: str, names: Sequence[str]) -> str:
    """Returns the end of a message: the nearest name, and all names unless it is surely meant."""
    hint = did_you_mean(given, names)
    ends = [name.rpartition(".")[2] for name in (given, *names)]  # What is common to all says nothing.
    if hint and difflib.get_close_matches(ends[0], ends[1:], n=1, cutoff=_SURE):
        return hint
    return f"{hint}, expected one of {', '.join(names)}"


def find_cause(error: BaseException) -> BaseException:
    """Returns the error of ours that another one was raised from, as by Hydra, or the very first error."""
    while error.__cause__ is not None and not isinstance(error, DistillError):
        error = error.__cause__
    return error


class DistillError(Exception):
    """An error whose message is complete: what was wrong, what was expected, what to type."""

    exit_code = 1

    def __str__(self) -> str:
        """Returns the message, which may quote an option or an error of a library, without passwords."""
        return hide_secrets(super().__str__())


class UserError(DistillError):
    """A wrong input from the user: an option, a file or a model."""

    exit_code = 2


class OptionError(UserError, ValueError):
    """An option that got a value it cannot take.

    Args:
        option: name of the option within its class; `with_prefix` adds the rest.
        got: the value as the user typed it, None if the option was left out.
        expected: the values that the option takes, in words.
    """

    def __init__(self, option: str, got: str | None, expected: str) -> None:
        super().__init__(option, got, expected)
        self.option, self.got, self.expected = option, got, expected

    def __str__(self) -> str:
        got = f"no {self.option}" if self.got is None else f"{self.option}={self.got}"
        return hide_secrets(f"got {got}, expected {self.expected}")

    def with_prefix(self, prefix: str) -> "OptionError":
        """Returns the same error about `prefix.option`."""
        return OptionError(f"{prefix}.{self.option}", self.got, self.expected)


class UnreachableError(UserError):
    """A model or data set that is not on this machine and cannot be downloaded from the Hub."""


class Interrupted(DistillError):
    """An interrupt by Ctrl-C. The message names the saved state and the command that resumes the run."""

    exit_code = 130


class Pruned(DistillError):
    """The end of a trial of a search that had worse values than the others."""

    exit_code = 0


class NumericalError(DistillError):
    """A loss, or an output of an exported file, that is NaN or infinite."""

    exit_code = 3


@dataclass(frozen=True)
class Failure:
    """An error of a run, as it is sent to the process of the command.

    Attributes:
        is_reported: whether it was printed, because the run was in that process.
    """

    exit_code: int
    message: str
    is_reported: bool = False


def forget_interrupt() -> None:
    """Makes the interpreter end with its exit code after a `KeyboardInterrupt` that was caught.

    CPython 3.11 notes one that passes through `exec` of a string, as in an import of a dataclass, and `python -m` then
    ends by SIGINT whatever the program returns. Any other `exec` of a string clears the note.
    """
    exec("")
