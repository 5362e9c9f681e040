"""What ends a run early: errors that are told in one line, each with its exit code."""


class DistillError(Exception):
    """An error whose message is complete: what was found, what was expected, what to do next."""

    exit_code = 1


class UserError(DistillError):
    """What the user gave is wrong: an option, a file, a model."""

    exit_code = 2


class UnreachableError(UserError):
    """Weights that are neither on this machine nor to be had from the Hub."""


class Interrupted(DistillError):
    """Ctrl-C; the message says what is kept and how to go on."""

    exit_code = 130


class NumericalError(DistillError):
    """A loss that is no longer a number."""

    exit_code = 3
