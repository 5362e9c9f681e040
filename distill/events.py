"""Events of a run, appended as lines of JSON to the file that DISTILL_EVENTS names, for a program that follows it."""

import contextlib
import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "DISTILL_EVENTS"
EVERY_SECONDS = 1.0  # Between two events of the steps of a training, or of what else has a progress.


class Events:
    """Events of this process, each written at once, and each with the directory of its run.

    Every line is one write at the end of the file, so that several processes, those of a sweep, can share it. A file
    that cannot be written, on a full disk, costs events and not the run.
    """

    def __init__(self) -> None:
        self.run: Path | None = None
        self._is_torn = False  # Whether the last line was written in part.

    @property
    def are_followed(self) -> bool:
        """Whether the variable names a file."""
        return bool(os.environ.get(VARIABLE))

    def name_run(self, directory: Path | None) -> None:
        """Sets the directory of the run that further events belong to, that of a further seed for instance."""
        self.run = None if directory is None else directory.absolute()

    def send(self, kind: str, **values: object) -> None:
        """Appends an event, without values that are None; numbers that are not finite are null.

        >>> events.send("stage", stage="training", seconds_left=40.0)  # With DISTILL_EVENTS=FILE
        """
        path = os.environ.get(VARIABLE)
        if not path:
            return
        event = {"time": round(time.time(), 3), "kind": kind, "run": self.run and str(self.run), **values}
        given = {name: _finite(value) for name, value in event.items() if value is not None}
        with contextlib.suppress(OSError):
            self._append(path, json.dumps(given).encode() + b"\n")

    def _append(self, path: str, line: bytes) -> None:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            content = b"\n" * self._is_torn + line
            self._is_torn = os.write(file, content) < len(content)
        finally:
            os.close(file)

    def leave_to_rank_zero(self) -> None:
        """Sends no event of this process, a worker of a training, any more."""
        os.environ.pop(VARIABLE, None)


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


events = Events()
