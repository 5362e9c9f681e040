"""Errors that end a run with a message of one line, each with its exit code."""


class DistillError(Exception):
    """An error whose message is complete: what was wrong, what was expected, what to type."""

    exit_code = 1


class UserError(DistillError):
    """A wrong input from the user: an option, a file or a model."""

    exit_code = 2


class UnreachableError(UserError):
    """A model or data set that is not on this machine and cannot be downloaded from the Hub."""


class Interrupted(DistillError):
    """An interrupt by Ctrl-C. The message names the saved state and the command that resumes the run."""

    exit_code = 130


class NumericalError(DistillError):
    """A loss that is NaN or infinite."""

    exit_code = 3
