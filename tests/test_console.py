"""Tests that the console prints the texts of users as they are."""

import io
import re
from pathlib import Path

import pytest
from rich.table import Table

import distill
from distill import console as module
from distill.console import ProgressMeter, create_console, print_line, print_notice

TEXTS = ("task.text=[text]", "teacher.paths=[/models/a]", "[bold]b[/bold]", "[/]", ":smile:", r"\[a]", "[red", "[x=y]")


@pytest.mark.parametrize("text", TEXTS)
def test_lines_tables_and_rules_show_a_text_as_it_is(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    print_line(text)
    print_notice(text)
    assert capsys.readouterr().out == f"{text}\nNotice: {text}\n"
    output = io.StringIO()
    console = create_console(file=output, width=120)
    table = Table(f"{text} head", title=f"{text} title", caption=f"{text} caption", show_footer=True)
    table.add_column(footer=f"{text} foot", style="cyan")
    table.add_row(f"{text} cell", text)
    console.print(table)
    console.rule(f"{text} rule")
    for name in ("head", "title", "caption", "foot", "cell", "rule"):
        assert f"{text} {name}" in output.getvalue()


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


@pytest.mark.parametrize("text", TEXTS)
def test_a_bar_shows_a_text_as_it_is(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    monkeypatch.setattr(module, "console", create_console(file=output, width=160, force_terminal=True))
    with ProgressMeter(text, 2) as meter:
        meter.show(1, f"{text} {{task}}")
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", output.getvalue())
    assert text in shown
    assert f"{text} {{task}}" in shown


def test_no_module_has_a_console_of_its_own() -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in Path(distill.__file__).parent.rglob("*.py")}
    own = [path.name for path, text in sources.items() if re.search(r"import Console\b|rich import print", text)]
    assert own == ["console.py"]
