"""Tests of tables in a narrow terminal."""

import re

import pytest
from rich.console import Console

from distill.records.headline import TerminalTable

HEADER = ("run", "accuracy on test", "seconds", "against the baseline", "error")
ROWS = [
    ("temperature=2 weight=10", "0.8411 ± 0.0019", "22", "+2.2 (-0.2 to +4.6), undecided", ""),
    ("temperature=16 weight=1", "-", "-", "-", "UserError: no rows in /a/very/long/path/without/any/space/in/it.csv"),
]


def render(width: int) -> list[str]:
    table = TerminalTable(None, [HEADER, *ROWS], left=("run", "error"), least=("seconds", "accuracy on test"))
    console = Console(width=width)
    with console.capture() as capture:
        console.print(table)
    return capture.get().splitlines()


@pytest.mark.parametrize("width", [75, 100, 300])
def test_no_word_is_broken_and_no_line_is_too_long(width: int) -> None:
    lines = render(width)
    assert max(map(len, lines)) <= width
    words = set(re.findall(r"[^\s┃│]+", "\n".join(lines)))
    kept = [place for place, name in enumerate(HEADER) if name.split()[-1] in words]
    assert len(kept) == len(HEADER) if width >= 100 else set(kept) >= {0, 3, 4}
    expected = {word for row in (HEADER, *ROWS) for place in kept for word in row[place].split() if "/" not in word}
    assert expected <= words


def test_a_wide_terminal_has_one_line_for_each_row() -> None:
    lines = render(300)
    assert len(lines) == len(ROWS) + 2
    assert all("  ".join(row[:1]) in line for row, line in zip(ROWS, lines[2:], strict=True))


def test_columns_of_single_words_are_shown_where_there_is_no_room() -> None:
    table = TerminalTable(None, [[f"metric{number}" for number in range(6)], ["0.1234"] * 6], left=())
    for width in (10, 20, 40):
        console = Console(width=width)
        with console.capture() as capture:
            console.print(table)
        assert max(map(len, capture.get().splitlines())) <= width
