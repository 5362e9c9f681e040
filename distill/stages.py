"""The stage of a command and the time left, in the last line of a terminal."""

import contextlib
import json
import time
from pathlib import Path

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from distill import console
from distill.events import events
from distill.storage.files import write_json

# The stages of a run in their order.
IMPORTS, DATA, TEACHER, TRAINING, BASELINE, EXPORT, BENCHMARK = STAGES = (
    "imports", "data", "teacher", "training", "baseline", "export", "benchmark"
)  # fmt: skip
# Those that take about as long as in the last command. The others depend on the plan.
STEADY = (IMPORTS, DATA, EXPORT, BENCHMARK)
FIRST = {IMPORTS: 6.0, DATA: 1.0}  # Of the first command on a machine, in s: those of two cores.
FILE = Path("stages", "last", "seconds.json")  # In the cache directory.
WIDTH = 30  # Of the bar, in columns.


class Stages:
    """Stages of one command, from `start` to `stop`.

    The time that a stage will take is that of the last command, which a file has, or what `expect` was given. Nothing
    is shown where output cannot be redrawn.
    """

    def __init__(self) -> None:
        self._live: Live | None = None
        self._file = Path()
        self.expect_runs(1)
        self._reset()

    def _reset(self) -> None:
        self._stage: str | None = None
        self._since = 0.0
        self._spent: dict[str, float] = {}
        self._expected = dict(FIRST)
        self._is_planned = False

    def start(self, cache_dir: Path) -> None:
        """Begins a command with the stage of its imports; `cache_dir` has the times of the last command."""
        self.stop()
        if self._begun == self._runs:  # Another command of this process.
            self.expect_runs(1)
        self._begun += 1
        self._file = cache_dir / FILE
        with contextlib.suppress(OSError, ValueError):  # There was no command before, or it was ended while it wrote.
            times = json.loads(self._file.read_text(encoding="utf-8"))
            self._expected |= {stage: float(times[stage]) for stage in STEADY if stage in times}
        self._enter(IMPORTS)
        events.send("stage", stage=IMPORTS, **self.progress())
        if console.console.is_interactive:
            self._live = Live(
                get_renderable=self._render, console=console.console, refresh_per_second=4, transient=True
            )
            self._live.start(refresh=True)

    def stop(self) -> None:
        """Ends the command, and writes the times of its stages for the next one."""
        if self._stage is None:
            return
        self._enter(None)
        if self._live is not None:
            self._live.stop()
            self._live = None
        times = {stage: self._spent.get(stage, self._expected.get(stage)) for stage in STEADY}
        with contextlib.suppress(OSError):  # Nothing but an estimate depends on them.
            if self._file.parents[2].is_dir():
                self._file.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._file, {stage: seconds for stage, seconds in times.items() if seconds})
        self._reset()

    def begin(self, stage: str) -> None:
        """Begins the next stage of a command that was started."""
        if stage not in STAGES:
            return
        if self._stage is not None:
            self._enter(stage)
        events.send("stage", stage=stage, **self.progress())

    def expect(self, **seconds: float) -> None:
        """Sets the seconds that stages will take. With those of the training, the whole run has a time."""
        self._expected |= seconds
        self._is_planned |= TRAINING in seconds
        if self._stage is not None and self._is_planned:
            events.send("stage", stage=self._stage, **self.progress())

    def expect_runs(self, number: int) -> None:
        """Sets the number of runs that the command is going to start one after the other, as those of a sweep."""
        self._runs, self._begun, self._share = number, 0, 0.0

    def expect_left(self, seconds: float) -> None:
        """Raises the time of the stage that runs, where it will take `seconds` s more than until now."""
        if self._stage is not None and self._stage in self._expected:
            whole = self._time(self._stage) + seconds
            self._expected[self._stage] = max(whole, self._expected[self._stage])

    def left(self) -> tuple[float | None, float | None]:
        """Returns the seconds left of the stage and of the run; None where no time is expected."""
        if self._stage is None or self._stage not in self._expected:
            return None, None
        own = max(0.0, self._expected[self._stage] - self._time(self._stage))
        if not self._is_planned:
            return own, None
        later = STAGES[STAGES.index(self._stage) + 1 :]
        return own, own + sum(max(0.0, self._expected.get(stage, 0.0) - self._time(stage)) for stage in later)

    def progress(self) -> dict[str, float | None]:
        """Returns the `seconds_left` of all runs and the share of their time that has passed, as an event has them.

        The other runs of a sweep are expected to take as long as this one. The share never falls.
        """
        left = self.left()[1]
        if left is None:
            return {"seconds_left": None, "progress": None}
        spent = sum(self._time(stage) for stage in STAGES)
        share = (max(0, self._begun - 1) + spent / max(spent + left, 1e-9)) / self._runs
        self._share = max(self._share, share)
        return {
            "seconds_left": round(left + (self._runs - self._begun) * (spent + left), 1),
            "progress": round(self._share, 4),
        }

    def _time(self, stage: str) -> float:
        """Returns the seconds that a stage took until now."""
        running = time.monotonic() - self._since if stage == self._stage else 0.0
        return self._spent.get(stage, 0.0) + running

    def _enter(self, stage: str | None) -> None:
        if self._stage is not None:
            self._spent[self._stage] = self._time(self._stage)
        self._stage, self._since = stage, time.monotonic()

    def _render(self) -> Table:
        stage = self._stage or ""
        spent, (own, whole) = self._time(stage), self.left()
        words = [f"{console.format_duration(own)} left"] if own else []  # Nothing for a stage that takes longer.
        if own is not None and whole is not None and whole > own:
            words.append(f"{console.format_duration(whole)} to the end")
        bar = ProgressBar(total=None if own is None else spent + own + 0.1, completed=spent, width=WIDTH)
        line = Table.grid(padding=(0, 1))
        line.add_row(Text(stage), bar, Text(console.format_duration(spent)), Text(", ".join(words)))
        return line


stages = Stages()
