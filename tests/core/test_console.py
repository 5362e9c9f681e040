"""Tests that the console prints the texts of users as they are."""

import io
import itertools
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
from rich.table import Table

import distill
from distill.core import console as module
from distill.core.console import ProgressMeter, create_console, print_line, print_notice


class Display:
    """Stands for IPython.display: the outputs of a cell and their changes."""

    def __init__(self) -> None:
        self.outputs: list[list[dict[str, str]]] = []

    def display(self, content: dict[str, str], *, raw: bool, display_id: bool) -> "Handle":
        self.outputs.append([content])
        return Handle(self.outputs[-1])


class Handle:
    def __init__(self, output: list[dict[str, str]]) -> None:
        self.output = output

    def update(self, content: dict[str, str], *, raw: bool) -> None:
        self.output.append(content)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Display:
    """The kernel of a notebook."""
    shown, ipython = Display(), types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)  # type: ignore[arg-type]
    clock = itertools.count(step=10)
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(clock)))
    return shown


def test_a_notebook_has_one_bar_that_changes_in_place(notebook: Display, capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressMeter("<b>student</b>", 4) as meter:
        meter.advance(1)
        meter.show(2, "loss 0.5", now="accuracy 0.9")
    with ProgressMeter("model.onnx on dev", 4, transient=True) as meter:
        meter.advance(4)
    bar, passing = notebook.outputs
    assert bar[0]["text/html"].startswith('<div><progress value="0" max="4"></progress> &lt;b&gt;student&lt;/b&gt;')
    assert bar[2]["text/plain"].startswith("<b>student</b>  2/4  loss 0.5  ")
    assert bar[2]["text/plain"].endswith(" s left")
    assert "left" not in bar[-1]["text/plain"]  # It stays in the notebook.
    assert passing[1]["text/plain"].startswith("model.onnx on dev  4/4")
    assert passing[-1] == {"text/html": "", "text/plain": ""}
    assert capsys.readouterr() == ("", "")


def test_a_notebook_draws_only_changes_that_an_eye_sees(notebook: Display, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.time, "monotonic", lambda: 1.0)
    with ProgressMeter("student", 1000) as meter:
        for _ in range(1000):
            meter.advance(1)
    [bar] = notebook.outputs
    assert [content["text/plain"].split("  ")[1] for content in bar] == ["0/1,000", "1,000/1,000"]


def test_a_process_without_a_kernel_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert not module.in_notebook()
    monkeypatch.delitem(sys.modules, "IPython")
    assert not module.in_notebook()


TEXTS = ("task.text=[text]", "[bold]b[/bold]", "[/]", ":smile:", r"\[a]", "[red", "[x=y]")


@pytest.mark.parametrize("text", TEXTS)
def test_lines_tables_rules_and_bars_show_a_text_as_it_is(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    print_line(text)
    print_notice(text)
    assert capsys.readouterr().out == f"{text}\nNotice: {text}\n"
    output = io.StringIO()
    console = create_console(file=output, width=160, force_terminal=True, force_interactive=True)
    table = Table(f"{text} head", title=f"{text} title", caption=f"{text} caption", show_footer=True)
    table.add_column(footer=f"{text} foot", style="cyan")
    table.add_row(f"{text} cell", text)
    console.print(table)
    console.rule(f"{text} rule")
    monkeypatch.setattr(module, "console", console)
    with ProgressMeter(text, 2) as meter:
        meter.show(1, f"{text} {{task}}")
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", output.getvalue())
    for name in ("head", "title", "caption", "foot", "cell", "rule", "{task}"):
        assert f"{text} {name}" in shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\rb", "a\\rb"),
        ("a\x9bb", "a\\x9bb"),
        ("a\u202eb", "a\\u202eb"),
        ("Größe 日本 \u200d🙂", "Größe 日本 \u200d🙂"),
    ],
)
def test_characters_that_move_the_cursor_are_spelled(text: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_line(text)
    assert capsys.readouterr().out == f"{shown}\n"
    output = io.StringIO()
    table = Table(text)
    table.add_row(text)
    create_console(file=output, width=120).print(table)
    assert output.getvalue().count(shown) == 2


def test_a_pipe_and_a_kernel_are_not_redrawn_although_colours_are_forced() -> None:
    """The kernel of a notebook and continuous integration set FORCE_COLOR."""
    program = (
        "import importlib, sys, types; from distill.core import console as module\n"
        "print(module.console.is_interactive, module.console.width)\n"
        "ipython = types.ModuleType('IPython'); ipython.get_ipython = lambda: types.SimpleNamespace(kernel=1)\n"
        "sys.modules['IPython'] = ipython; importlib.reload(module).print_notice('a notice')"
    )
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": "80"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "False 120\nNotice: a notice\n"


def test_no_module_has_a_console_of_its_own() -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in Path(distill.__file__).parent.rglob("*.py")}
    own = [path.name for path, text in sources.items() if re.search(r"Console\(|rich import print", text)]
    assert own == ["console.py"]
