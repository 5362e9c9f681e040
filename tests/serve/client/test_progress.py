"""Tests of the progress of a job, redrawn and in lines."""

import io
from collections.abc import Iterator

import pytest

from distill.client import Event
from distill.serve import client
from distill.serve.client import show_progress

EVENTS = [
    Event(1, "state", {"state": "running", "attempt": 1}),
    Event(2, "stage", {"stage": "training", "progress": 0.25, "seconds_left": 100.0}),
    Event(3, "step", {"title": "student", "step": 1, "steps": 8, "loss": 0.5, "progress": 0.5, "seconds_left": 40.0}),
    Event(4, "metrics", {"step": 1, "metrics": {"dev/accuracy": 0.75, "dev/f1": None}}),
    Event(5, "notice", {"text": "a\x1b[2Jb"}),
    Event(6, "run", {"directory": "runs/a"}),
    Event(7, "state", {"state": "failed", "attempt": 1, "error": "no room"}),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_have_stages_evaluations_notices_and_the_end() -> None:
    output = io.StringIO()
    assert show_progress(EVENTS, output) == "failed"
    assert output.getvalue().splitlines() == [
        "running",
        "[#####...............]  25%  training  1.7 min left",
        "[##########..........]  50%  training  step 1/8  loss 0.5000  dev/accuracy 0.7500  40 s left",
        "Notice: a\\x1b[2Jb",
        "failed: no room",
    ]


def test_lines_have_a_step_after_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "EVERY_SECONDS", 0.0)
    output = io.StringIO()
    show_progress(EVENTS[2:3], output)
    assert output.getvalue() == "[##########..........]  50%  step 1/8  loss 0.5000  40 s left\n"


def test_a_terminal_redraws_one_line_and_keeps_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    output = Terminal()
    show_progress(EVENTS, output)
    kept = [line.rpartition("\r")[2].rstrip() for line in output.getvalue().split("\n")]
    assert kept == ["Notice: a\\x1b[2Jb", "[##########..........]  50%  failed: no room  training  ste", ""]
    assert all(len(drawn.rstrip("\n")) <= 60 for drawn in output.getvalue().split("\r"))
    finished = Event(8, "state", {"state": "finished", "error": None})
    for other in (Terminal(), type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()):
        show_progress([EVENTS[1], finished], other)  # It is done whatever was expected.
        shown = ["[####################]", "100%", "finished", "training"]
        assert other.getvalue().rpartition("\r")[2].split() == shown

    def fail() -> Iterator[Event]:
        yield EVENTS[1]
        raise KeyboardInterrupt

    output = Terminal()
    with pytest.raises(KeyboardInterrupt):
        show_progress(fail(), output)
    assert output.getvalue().endswith("1.7 min left\n")
