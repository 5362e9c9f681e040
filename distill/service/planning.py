"""The check of a job before it is accepted: the dry run of its command, in a process of its own."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from distill.credentials import hide_secrets
from distill.events import VARIABLE
from distill.serve.refusals import RefusedError
from distill.service.locations import name_directory, rename

AT_ONCE = 2  # Dry runs, each of which loads a teacher.
WAITING = 16  # Dry runs that wait for their turn.
SECONDS = 600.0  # After which a dry run is ended.


@dataclass(frozen=True)
class Plan:
    """The result of a dry run.

    Args:
        text: the summary before training.
        seconds: that all runs of the job will take; None where that is not known.
        notices: of the dry run.
    """

    text: str
    seconds: float | None
    notices: tuple[str, ...]


class Planner:
    """Checks jobs by their dry run.

    Args:
        cache: directory of what runs share.
    """

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0

    async def plan(self, overrides: Sequence[str], names: Mapping[str, str]) -> Plan:
        """Returns the plan of a job.

        Args:
            overrides: with the paths of data sets and teachers.
            names: what stands in a message in the place of a path, by the path.

        Raises:
            RefusedError: 422 with the line of the check, and 503 if others wait already.
        """
        if self._waiting >= WAITING:
            raise RefusedError(503, f"{WAITING} jobs are checked before this one: try again in a minute")
        self._waiting += 1
        try:
            async with self._turns:
                return await self._run(overrides, names)
        finally:
            self._waiting -= 1

    async def _run(self, overrides: Sequence[str], names: Mapping[str, str]) -> Plan:
        with tempfile.TemporaryDirectory() as directory:
            events = Path(directory, "events.jsonl")
            given = {override.partition("=")[0] for override in overrides}
            places = {"output_dir": Path(directory, "runs"), "cache_dir": self.cache.absolute()}
            added = [f"{name}={path}" for name, path in places.items() if name not in given]
            names = {**names, **name_directory(Path(directory), "the check")}
            names |= name_directory(self.cache.absolute().parent, "the service")
            command = (sys.executable, "-m", "distill", *overrides, *added, "dry_run=true")
            code, output, errors = await _run_command(command, {**os.environ, VARIABLE: str(events)})
            if code != 0:
                raise RefusedError(422, rename(_find_error(errors), names))
            lines = events.read_text(encoding="utf-8").splitlines() if events.is_file() else []
        seconds, notices = read_events(lines)
        text = "\n".join(line.rstrip() for line in output.strip().splitlines())
        return Plan(rename(text, names), seconds, tuple(rename(notice, names) for notice in notices))


async def _run_command(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str, str]:
    """Returns the exit code, the output and the errors of a command, whose processes end with this call."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env=environment, start_new_session=True,
    )  # fmt: skip
    try:
        output, errors = await asyncio.wait_for(process.communicate(), SECONDS)
    except TimeoutError:
        raise RefusedError(422, f"the check took more than {SECONDS:g} s: take less data") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    return process.returncode or 0, output.decode(errors="replace"), errors.decode(errors="replace")


def _find_error(errors: str) -> str:
    """Returns the message of a command that failed, in one line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    ours = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return hide_secrets((ours or lines or ["the check failed without a message"])[-1])


def read_events(lines: Sequence[str]) -> tuple[float | None, list[str]]:
    """Returns the seconds that all runs of a dry run will take, None if one is not known, and the notices."""
    runs: list[float | None] = []
    notices: list[str] = []
    for event in map(json.loads, lines):
        if event["kind"] == "stage" and event["stage"] == "imports":
            runs.append(None)
        elif event["kind"] == "stage" and runs and event.get("seconds_left") is not None:
            runs[-1] = event["seconds_left"]
        elif event["kind"] in ("notice", "warning"):
            notices.append(event["text"])
    known = [seconds for seconds in runs if seconds is not None]
    return (sum(known) if known and len(known) == len(runs) else None), notices
