"""Console output of a job: lines, notices and progress, as a bar in a terminal and as plain lines elsewhere."""

import logging
import re
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from html import escape
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from distill.credentials import hide_secrets
from distill.events import EVERY_SECONDS, events

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
