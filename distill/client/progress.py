"""The progress of a job: one line that is redrawn in a terminal and a notebook, and lines elsewhere."""

import shutil
import sys
import time
from collections.abc import Iterable
from typing import TextIO

from distill.client.connection import Event

WIDTH = 20  # Of the bar, in columns.
EVERY_SECONDS = 20.0  # Between two lines of the steps of a training, where a line cannot be redrawn.


class ProgressLine:
    """The state of a job after the events until now."""

    def __init__(self) -> None:
        self.state, self.stage, self.error = "", "", ""
        self._progress: float | None = None
        self._left: float | None = None
        self._step = ""
        self._metrics: dict[str, float] = {}

    def add(self, event: Event) -> str:
        """Adds an event; returns the line that it is worth where nothing is redrawn, empty for a step."""
        data = event.data
        if event.kind in ("stage", "step"):
            self._progress = data.get("progress", self._progress)
            self._left = data.get("seconds_left", self._left if event.kind == "step" else None)
        if event.kind == "state":
            self.state, self.error = str(data.get("state", "")), str(data.get("error") or "")
            self._progress, self._left = 1.0 if self.state == "finished" else self._progress, None
            return self.state + (f": {self.error}" if self.error else "")
        if event.kind == "stage":
            self.stage, self._step = str(data.get("stage", "")), ""
            return self.describe()
        if event.kind == "step":
            loss = data.get("loss")
            self._step = f"{data.get('unit', 'step')} {data.get('step')}/{data.get('steps')}"
            self._step += f"  loss {loss:.4f}" if isinstance(loss, int | float) else ""
        elif event.kind == "metrics":
            values = data.get("metrics") or {}
            self._metrics = {name: value for name, value in values.items() if isinstance(value, int | float)}
            return self.describe()
        elif event.kind in ("notice", "warning"):
            return f"{event.kind.capitalize()}: {data.get('text', '')}"
        return ""

    def describe(self) -> str:
        """Returns the line: a bar, the stage, the step, the first metrics on dev and the time left, as far as known."""
        metrics = [f"{name} {value:.4f}" for name, value in list(self._metrics.items())[:2]]
        left = [] if self._left is None else [f"{_format_seconds(self._left)} left"]
        state = f"{self.state}: {self.error}" if self.error else self.state if self.state != "running" else ""
        words = [state, self.stage, self._step, *metrics, *left]
        return "  ".join(escape(word) for word in [self._draw_bar(), *words] if word)

    def _draw_bar(self) -> str:
        if self._progress is None:
            return ""
        share = min(1.0, max(0.0, self._progress))
        full = round(share * WIDTH)
        return f"[{'#' * full}{'.' * (WIDTH - full)}] {share:4.0%}"


def show_progress(events: Iterable[Event], output: TextIO | None = None) -> str:
    """Shows events until they end, and returns the last state of the job."""
    output = sys.stdout if output is None else output
    line, redraws, last, width = ProgressLine(), _can_redraw(output), time.monotonic(), 0
    try:
        for event in events:
            text = escape(line.add(event))
            if redraws:
                lasting = f"\r{text:<{width}}\n" if event.kind in ("notice", "warning") else ""
                shown = line.describe()[: shutil.get_terminal_size().columns - 1]
                output.write(f"{lasting}\r{shown:<{width}}")
                width = len(shown)
            elif text or (event.kind == "step" and time.monotonic() - last >= EVERY_SECONDS):
                last = time.monotonic()
                output.write(f"{text or line.describe()}\n")
            output.flush()
    finally:
        if redraws:
            output.write("\n")
            output.flush()
    return line.state


def _can_redraw(output: TextIO) -> bool:
    """Returns whether a line can be written again, as in a terminal and in the kernel of a notebook."""
    return output.isatty() or type(output).__module__.startswith("ipykernel")


def escape(text: str) -> str:
    """Returns a text on one line, with characters that would move the cursor spelled."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"
