"""Output of a job: lines, progress, stages with the time left, and events for a program that follows it."""

import contextlib
import json
import logging
import math
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from distill.core.errors import hide_secrets
from distill.core.files import write_json

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


_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # And those of the direction.


class PlainConsole(Console):
    """A console that prints names and options of users as they are: "[text]" is no markup, and ":smile:" no emoji.

    Characters that would move the cursor or reverse the text are spelled.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """Returns a text as rich prints it."""
        spelled = _CONTROLS.sub(lambda found: found.group().encode("unicode_escape").decode(), text)
        return super().render_str(spelled, **options)


def in_notebook() -> bool:
    """Returns whether this process is the kernel of a notebook, which shows HTML."""
    ipython = sys.modules.get("IPython")  # A kernel has imported it.
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


# In a notebook every text that rich shows would be an output of its own, and lines are printed as one.
create_console = partial(PlainConsole, highlight=False, markup=False, emoji=False, force_jupyter=False)
# A file and a pipe cannot be redrawn, whatever FORCE_COLOR says, and the default of 80 columns would break the tables.
# A kernel sets it although the text of a saved notebook would have the codes of the colours.
console = (
    create_console()
    if sys.stdout is not None and sys.stdout.isatty()
    else create_console(width=120, force_interactive=False, color_system=None if in_notebook() else "auto")
)
LINE_EVERY_SECONDS = 20.0


def print_line(text: str, style: str | None = None) -> None:
    """Prints one line without wrapping it, so that its paths can be copied."""
    console.print(hide_secrets(text), style=style, soft_wrap=True)


def print_notice(text: str) -> None:
    """Prints a notice: something unexpected that is no error."""
    print_line(f"Notice: {text}", style="yellow")
    events.send("notice", text=hide_secrets(text))


def display_html(html: str) -> None:
    """Shows HTML as an output of the notebook."""
    from IPython.display import HTML, display

    display(HTML(html))


class NotebookBar:
    """A progress bar in one output of a notebook, which is changed in place and stays in the saved notebook.

    It is HTML without scripts, and needs no widgets.
    """

    EVERY_SECONDS = 0.2

    def __init__(self) -> None:
        self._handle: Any = None
        self._last = 0.0

    def clear(self) -> None:
        """Empties the output."""
        if self._handle is not None:
            self._handle.update({"text/html": "", "text/plain": ""}, raw=True)

    def show(self, done: int, total: int, words: str, *, is_last: bool = False) -> None:
        """Draws the bar with words behind it; too many changes for an eye are left out, unless it is the last one."""
        now = time.monotonic()
        if self._handle is not None and not is_last and now - self._last < self.EVERY_SECONDS:
            return
        self._last = now
        words = hide_secrets(words)
        html = f'<div><progress value="{done}" max="{max(1, total)}"></progress> {escape(words)}</div>'
        content = {"text/html": html, "text/plain": words}
        if self._handle is None:
            from IPython.display import display

            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


class ProgressMeter:
    """Shows progress and the time left while its context is open: a bar in a terminal or notebook, else lines.

    It sends events of the first units, the last ones, and in between at most one in a second.

    Args:
        total: number of all units.
        done: number of units done before.
        unit: name of the units.
        transient: whether the bar disappears at the end.
    """

    def __init__(self, title: str, total: int, *, done: int = 0, unit: str = "steps", transient: bool = False) -> None:
        self.title, self.total, self.unit, self.transient = title, total, unit, transient
        self._first = self._done = done
        self._status = ""
        self._progress: Progress | None = None
        self._notebook_bar: NotebookBar | None = None
        self._last_event, self._sent = float("-inf"), done

    def __enter__(self) -> "ProgressMeter":
        self._started = self._last_line = time.monotonic()
        if in_notebook():
            self._notebook_bar = NotebookBar()
            self._draw()
        elif console.is_interactive:
            self._progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TextColumn("{task.fields[status]}", markup=False),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=console,
                transient=self.transient,
            )
            self._bar = self._progress.add_task(self.title, total=self.total, completed=self._first, status="")
            self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._progress is not None:
            self._progress.stop()
        if self._notebook_bar is not None:
            if self.transient:
                self._notebook_bar.clear()
            else:
                self._draw(is_last=True)

    def _draw(self, *, is_last: bool = False) -> None:
        """Draws the bar of a notebook, with the time that it took and, until its end, the time left."""
        assert self._notebook_bar is not None
        took = f"{format_duration(time.monotonic() - self._started)}"
        left = f"{format_duration(self.left())} left" if self._done > self._first and not is_last else ""
        words = [f"{self.title}  {self._done:,}/{self.total:,}", self._status, took, left]
        self._notebook_bar.show(self._done, self.total, "  ".join(word for word in words if word), is_last=is_last)

    def left(self) -> float:
        """Returns the time left in s, at the speed until now."""
        return (time.monotonic() - self._started) / max(1, self._done - self._first) * (self.total - self._done)

    def advance(self, number: int) -> None:
        """Adds `number` to the units done."""
        self.show(self._done + number)

    def show(
        self,
        done: int,
        status: str | None = None,
        *,
        now: str | None = None,
        details: Callable[[], Mapping[str, object]] = dict,
    ) -> None:
        """Sets the number of units done and the status; without a bar, `now` prints a line at once and ends it.

        Args:
            details: returns what an event has besides the progress.
        """
        self._done, self._status = done, self._status if status is None else status
        if events.are_followed:
            self._send(details)
        if self._progress is not None:
            self._progress.update(self._bar, completed=done, status=self._status)
            return
        if self._notebook_bar is not None:
            self._draw()
            return
        time_now = time.monotonic()
        if now is not None or time_now - self._last_line >= LINE_EVERY_SECONDS:
            self._last_line = time_now
            count = f"{self.title}  {self.unit} {done:,}/{self.total:,}"
            words = [count, self._status, now or "", f"{self.left():.0f} s left"]
            print_line("  ".join(word for word in words if word))

    def _send(self, details: Callable[[], Mapping[str, object]]) -> None:
        now = time.monotonic()
        if self._done != self._sent and (now - self._last_event >= EVERY_SECONDS or self._done >= self.total):
            self._last_event, self._sent = now, self._done
            events.send("step", title=self.title, unit=self.unit, step=self._done, steps=self.total, **details())


@contextlib.contextmanager
def logging_only_errors(*names: str | None) -> Iterator[None]:
    """Leaves out messages below an error of these loggers; None is the root."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def silence_libraries() -> None:
    """Silences messages of Lightning and Transformers that need no action; other warnings are still printed."""
    import transformers

    transformers.logging.disable_progress_bar()
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    for message in (
        "does not have many workers",
        "exists and is not empty",
        "is smaller than the logging interval",
        "isinstance(treespec, LeafSpec)",
        "your dataloader is not resumable",  # Ours resumes after the last step of the checkpoint.
        "`IterableDataset` has `__len__` defined",  # For a stream it is the length of the training.
        "It is recommended to use `self.log(",  # Each process evaluates on all of dev.
        "command is available on your system but is not used",  # srun, of which Lightning reminds every process.
        "returned a view tensor",  # No view is changed in place.
    ):
        warnings.filterwarnings("ignore", message=f".*{re.escape(message)}")


def format_duration(seconds: float) -> str:
    """Returns a duration in words: `89 s`, and `1.5 min` from 90 s on."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"


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
        self.foreseen: Mapping[str, float] = {}  # The seconds of each stage of the command before, as expected.
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
        if console.is_interactive:
            self._live = Live(get_renderable=self._render, console=console, refresh_per_second=4, transient=True)
            self._live.start(refresh=True)

    def stop(self) -> None:
        """Ends the command, and writes the times of its stages for the next one."""
        if self._stage is None:
            return
        self._enter(None)
        self.foreseen = dict(self._expected)
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
        words = [f"{format_duration(own)} left"] if own else []  # Nothing for a stage that takes longer.
        if own is not None and whole is not None and whole > own:
            words.append(f"{format_duration(whole)} to the end")
        bar = ProgressBar(total=None if own is None else spent + own + 0.1, completed=spent, width=WIDTH)
        line = Table.grid(padding=(0, 1))
        line.add_row(Text(stage), bar, Text(format_duration(spent)), Text(", ".join(words)))
        return line


stages = Stages()
