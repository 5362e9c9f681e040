"""Tests of CSV files with semicolons and decimal commas, as Excel writes them in Europe."""

from pathlib import Path

import pytest

from distill.core.errors import UserError
from distill.data.check import Chosen, profile_files
from distill.data.sources import read_file
from distill.rows.columns import read_columns
from distill.rows.formats import read_rows

EXCEL = 'Satz;Note;Tag\n"gut; sehr gut";3,5;1,5\nes geht;-1,25;-\nschlecht, leider;2;3\n'


def write(path: Path, content: str, encoding: str = "utf-8-sig") -> Path:
    path.write_text(content, encoding=encoding, newline="")
    return path


@pytest.mark.parametrize("first", ["", "sep=;\r\n"])
def test_semicolons_and_decimal_commas_are_read_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], first: str
) -> None:
    path = write(tmp_path / "rows.csv", first + EXCEL.replace("\n", "\r\n"))
    table = read_file(path, ["Satz", "Note"])
    assert table.names == ("Satz", "Note", "Tag")
    assert table.columns == {
        "Satz": ["gut; sehr gut", "es geht", "schlecht, leider"],
        "Note": ["3.5", "-1.25", "2"],
    }
    assert list(table.lines or ()) == [2 + bool(first), 3 + bool(first), 4 + bool(first)]
    note = "the columns are read as separated by ';', and 3,5 in Note is the number 3.5"
    assert capsys.readouterr().out == f"Notice: {path}: {note}\n"
    assert [row["Tag"] for _, row in read_rows(path)] == ["1,5", "-", "3"]  # Not all of them are numbers.
    profile = profile_files({"data": (path,)}, Chosen(text=("Satz",), label=("Note",)))
    assert (profile.chosen.task, profile.numbers) == ("regression", (-1.25, pytest.approx(4.25 / 3), 3.5))
    assert note in [problem.summary for problem in profile.problems]


@pytest.mark.parametrize(
    ("content", "names", "first"),
    [
        ("text,label\na;b,1\nc;d,2\n", ("text", "label"), "a;b"),
        ('"text;note",label\na;b,"1,5"\n', ("text;note", "label"), "a;b"),
        ("text, kurz;label\na, b, c;1\nd;2\n", ("text, kurz", "label"), "a, b, c"),
        ("text;label\na;1\nb;2\nragged\nc;3\n", ("text", "label"), "a"),
        ("text\na; b\n", ("text",), "a; b"),
        ("text,label\na;b,1\nragged;one\n", ("text", "label"), "a;b"),
    ],
)
def test_the_delimiter_is_the_one_that_gives_columns(
    tmp_path: Path, content: str, names: tuple[str, ...], first: str
) -> None:
    table = read_columns(write(tmp_path / "rows.csv", content))
    assert (table.names, table.columns[names[0]][0]) == (names, first)


def test_a_row_of_another_length_and_an_open_quote_are_still_refused_with_their_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", 'sep=;\ntext;label\na;1\nb;2;3\nc;"4\n')
    with pytest.raises(UserError, match=r"rows.csv, line 4 has 3 fields, its header 2"):
        read_file(path, ["text"])
    path = write(tmp_path / "rows.csv", 'sep=;\ntext;label\na;1\nc;"4\n')
    with pytest.raises(UserError, match=r"rows.csv, line 4 opens a quote that is never closed"):
        read_file(path, ["text"])
