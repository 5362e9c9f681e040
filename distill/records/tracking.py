"""The lock of a run's directory, and the status of the run in run.json."""

import contextlib
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from distill.credentials import hide_secrets
from distill.errors import DistillError, Interrupted, UserError, find_cause
from distill.events import events
from distill.records.record import LOCK, Run
from distill.storage import mirror
from distill.storage.cache import leases
from distill.storage.files import sweep
from distill.training.checkpoints import handle_signals


@contextmanager
def tracked(run: Run, *, resume_with: str, texts: bool = True) -> Iterator[None]:
    """Locks the run's directory, and writes its status: running, then finished, or failed with the error.

    Args:
        resume_with: the command that resumes an interrupted run.
        texts: whether the record has the message of an error, which may quote a text of the data.

    Raises:
        UserError: if another process has locked the run, or the URL of its directory cannot be written.
        Interrupted: on Ctrl-C and SIGTERM.
    """
    with _locked(run.directory), leases():
        sweep(run.directory)  # What was being written when the run was killed.
        with mirror.sent(run.directory), _named(run):
            yield from _track(run, resume_with, texts=texts)


@contextmanager
def _named(run: Run) -> Iterator[None]:
    """Sends the run's directory as an event, and names it in those that follow."""
    events.name_run(run.directory)
    events.send("run", directory=str(events.run))
    try:
        yield
    finally:
        events.name_run(None)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Locks a run's directory; the operating system releases the lock when the process ends, however it ends."""
    lock = FileLock(directory / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise UserError(
            f"{directory} is in use by another process: wait until it ends, or end it, and run the command again"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _track(run: Run, resume_with: str, *, texts: bool) -> Iterator[None]:
    try:
        run.update(status="running", error=None)
        with handle_signals(signal.default_int_handler, signal.SIGTERM), run.timed("total"):  # Sent by clusters.
            yield
    except (KeyboardInterrupt, SystemExit) as error:  # Lightning converts the first into the second.
        run.update(status="failed", error="interrupted")
        raise Interrupted(_describe_progress(run, resume_with)) from error
    except BaseException as error:  # Every error is recorded and raised again.
        with contextlib.suppress(OSError):  # A full disk has no room for the record.
            cause = find_cause(error)
            known = cause if isinstance(cause, DistillError) else error
            message = f"{type(known).__name__}: {known if texts else 'left out, because record.texts=false'}"
            run.update(status="failed", error=hide_secrets(message.splitlines()[0]))
        raise
    run.update(status="finished")


def _describe_progress(run: Run, resume_with: str) -> str:
    """Returns the message of an interrupted run: its checkpoint and the command that resumes it."""
    further = sorted(run.directory.glob("seeds/*"), key=lambda directory: int(directory.name), reverse=True)
    students = [stage for directory in (*further, run.directory) for stage in (directory / "baseline", directory)]
    for stage in (*students, run.directory / "teacher"):  # The latest first.
        last = stage / "checkpoints" / "last.ckpt"
        if last.is_file():
            return f"interrupted: {last} holds the training so far; {resume_with} goes on from there"
    return f"interrupted before the first checkpoint; {resume_with} begins again, with the teacher if it was ready"
