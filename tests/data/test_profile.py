"""Tests of the profile of files: kinds of columns, guesses, counts, lengths, scripts, and problems with their lines."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from distill.core.errors import UserError
from distill.data.check import Profile, profile_files
from distill.data.labelled_text import RowRules
from distill.data.problems import describe_column
from distill.data.prose import find_scripts, measure_lengths
from distill.rows.columns import read_columns

WORDS = "the film was a long and moving story about people who would not give up".split()  # noqa: SIM905
GERMAN = "der Film war eine lange und bewegende Geschichte über Menschen die nicht aufgaben".split()  # noqa: SIM905


def sentence(number: int, words: Sequence[str] = WORDS) -> str:
    """Returns a sentence that no other number has."""
    return " ".join(words[(number + place) % len(words)] for place in range(6)) + f" {number}"


def write_rows(path: Path, rows: Sequence[Sequence[object]]) -> Path:
    """Writes CSV whose fields need no quotes."""
    path.write_text("".join(",".join(map(str, row)) + "\n" for row in rows), encoding="utf-8")
    return path


def labelled(count: int = 60, classes: Sequence[object] = ("bad", "good")) -> list[list[object]]:
    return [["review", "stars"], *([sentence(row), classes[row % len(classes)]] for row in range(count))]


def profile(path: Path, given: RowRules | None = None) -> Profile:
    return profile_files({"data": (path,)}, given)


def problems(of: Profile) -> list[str]:
    return [f"{'error: ' if problem.is_error else ''}{problem}" for problem in of.problems]


@pytest.mark.parametrize(
    ("name", "values", "kind", "separator"),
    [
        ("column", [sentence(row) for row in range(40)], "text", None),
        ("column", ["good", "bad", "fair", "bad"] * 10, "class", None),
        ("column", ["1.0", "2.0", "", "4.0"] * 8, "class", None),
        ("column", [str(row / 7) for row in range(40)], "number", None),
        ("score", [str(row % 30) for row in range(90)], "number", None),
        ("intent", [str(row % 30) for row in range(90)], "class", None),
        ("column", [str(1000 + row) for row in range(40)], "id", None),
        ("paid", [str(1000 + row * 7919 % 997) for row in range(40)], "number", None),
        ("customer_id", [str(1000 + row * 7919 % 997) for row in range(40)], "id", None),
        ("column", ["2024-01-31", "2024-02-01 12:00:00", "2024-02-01"] * 10, "date", None),
        ("column", [f"r-{row:04}" for row in range(40)], "id", None),
        ("column", ["rude|threat", "rude", "threat", "insult|rude"] * 10, "list", "|"),
        ("column", ["rude#threat", "rude", "threat", "insult#rude"] * 10, "list", "#"),
        ("column", ["['rude', 'threat']", "[]"] * 10, "list", None),
        ("column", [["rude", "threat"], []] * 10, "list", None),
        ("column", ["yes"] * 10, "constant", None),
        ("column", ["", None, " "], "empty", None),
    ],
)
def test_columns_have_kinds(name: str, values: list[object], kind: str, separator: str | None) -> None:
    column = describe_column(name, values)
    assert (column.kind, column.separator) == (kind, separator)
    assert column.values + column.missing == len(values)


@pytest.mark.parametrize(
    ("names", "text", "label"),
    [
        (("id", "body", "stars", "price"), ("body",), ("stars",)),
        (("key", "what was said", "mood", "price"), ("what was said",), ("mood",)),
        (("number", "Text", "Label", "score"), ("Text",), ("Label",)),
    ],
)
def test_columns_are_guessed_by_name_and_then_by_shape(
    tmp_path: Path, names: tuple[str, ...], text: tuple[str, ...], label: tuple[str, ...]
) -> None:
    rows = [[1000 + row, sentence(row), row % 3, row / 7] for row in range(60)]
    chosen = profile(write_rows(tmp_path / "rows.csv", [names, *rows])).chosen
    assert (chosen.text, chosen.label, chosen.task) == (text, label, "classification")


@pytest.mark.parametrize(
    "names", [("sentence1", "sentence2"), ("text_a", "text_b"), ("premise", "hypothesis"), ("question", "answer")]
)
def test_two_columns_with_names_of_a_pair_are_a_pair(tmp_path: Path, names: tuple[str, str]) -> None:
    rows = [[sentence(row), sentence(row + 100), row / 7] for row in range(60)]
    found = profile(write_rows(tmp_path / "rows.csv", [[*names, "score"], *rows]))
    assert (found.chosen.text, found.chosen.label, found.chosen.task) == (names, ("score",), "regression")
    assert found.numbers == (0, pytest.approx(29.5 / 7), pytest.approx(59 / 7))
    assert found.classes == {}


def test_columns_of_0_and_1_are_several_labels(tmp_path: Path) -> None:
    rows = [[sentence(row), row % 2, int(row % 3 == 0)] for row in range(60)]
    found = profile(write_rows(tmp_path / "rows.csv", [["text", "rude", "threat"], *rows]))
    assert (found.chosen.label, found.chosen.task) == (("rude", "threat"), "multi_label")
    assert found.classes == {"rude": {"data": 30}, "threat": {"data": 20}}
    found = profile_splits(tmp_path, train=[["text", "rude", "threat"], *rows], dev=[["text", "rude"], ["unseen", 1]])
    assert problems(found)[0].startswith(f"error: {tmp_path / 'dev.csv'} has no column threat: it has text, rude")
    found = profile(write_rows(tmp_path / "rows.csv", labelled(60, ("sun|sea", "sun", "", "sea"))))
    assert (found.chosen.task, found.chosen.separator) == ("multi_label", "|")
    assert found.classes == {"sea": {"data": 30}, "sun": {"data": 30}}
    [problem] = found.problems
    assert problem.advice.startswith("they count as examples with none of the labels")
    assert problem.summary == "15 of 60 rows have no label (lines 4, 8, 12, 16, 20 and 10 more)"


def profile_splits(root: Path, **splits: Sequence[Sequence[object]]) -> Profile:
    return profile_files({name: (write_rows(root / f"{name}.csv", rows),) for name, rows in splits.items()})


def test_classes_are_sorted_as_numbers_and_counted_by_split(tmp_path: Path) -> None:
    hidden = [["review", "stars"], ["another text", "-1"]]  # A test split without labels is no problem.
    dev = [["review", "stars"], ["an unseen text", 2]]
    found = profile_splits(tmp_path, train=labelled(60, (10, 2)), dev=dev, test=hidden)
    assert found.rows == {"train": 60, "dev": 1, "test": 1}
    assert list(found.classes.items()) == [("2", {"train": 30, "dev": 1}), ("10", {"train": 30})]
    assert found.problems == ()


def test_every_problem_has_its_count_and_the_lines_of_the_file(tmp_path: Path) -> None:
    rows = labelled(60, ("4.0", "5.0"))
    rows[3][1] = ""
    rows[7][0] = " "
    rows[20][0] = rows[10][0]
    rows[30][1] = "3.0"
    rows[50][0] = '"one\ntwo"'
    rows[60][1] = ""
    rows[40:40] = [[], ["one field"]]  # A blank line has no row, and does not move the lines of others.
    found = profile(write_rows(tmp_path / "rows.csv", rows))
    shown = problems(found)
    for text in (
        "error: 1 line cannot be read (line 42): line 42 has 1 field, its header 2: expected as many in every row",
        "2 of 60 rows have no label (lines 4 and 64)",
        "1 of 60 rows has no text (line 8)",
        "a label such as 4.0, a whole number (lines 2, 3, 5, 6, 7 and",
        "fewer than 10 rows: 3 (1: line 31)",
        "1 of 57 rows has the text of an earlier row (line 21)",
    ):
        assert any(text in problem for problem in shown), text
    assert found.classes == {"3": {"data": 1}, "4": {"data": 28}, "5": {"data": 28}}
    assert found.errors == [1]


ROWS = labelled()
NOT_ENGLISH = "the texts do not look like English (Latin letters)"
OF_TRAIN = [ROWS[0], ROWS[5], ["an unseen text", "good"], [ROWS[6][0], "bad"]]


@pytest.mark.parametrize(
    ("dev", "expected"),
    [
        ([ROWS[0], ["a text", "fair"]], "error: dev has 1 rows of a class that train lacks (fair)"),
        ([["text", "stars"], ["a text", "good"]], "dev.csv has no column review: it has text, stars; rename its"),
        ([ROWS[0], ["a text", "Good"]], "the classes 'Good' and 'good' look alike"),
        (OF_TRAIN, "2 of 3 rows of dev have the text of a row of train, 1 of them with another label (lines 2 "),
    ],
)
def test_splits_that_do_not_fit_each_other_have_problems(
    tmp_path: Path, dev: list[list[object]], expected: str
) -> None:
    found = profile_splits(tmp_path, train=ROWS, dev=dev)
    assert any(expected in problem for problem in problems(found))
    assert bool(found.errors) == (dev != OF_TRAIN)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([row[:1] for row in ROWS], "error: no column looks like a label: name it with label=NAME"),
        ([["a", "b"], *([row / 7, row % 2] for row in range(40))], "error: no column looks like text: name it"),
        (labelled(60, ("good",)), "error: there is one class only (good)"),
        (labelled(60, ("",)), "error: no row has a label"),
        (ROWS[1:], "error: line 1 looks like a row and not like the names of the columns ('bad')"),
        ([ROWS[0], *([sentence(row, GERMAN), row % 2] for row in range(60))], NOT_ENGLISH),
        (labelled(300, [f"{number} of a text" for number in range(300)]), "error: the label has 300 different values"),
    ],
)
def test_data_that_cannot_be_trained_on_is_an_error_and_other_languages_are_none(
    tmp_path: Path, rows: list[list[object]], expected: str
) -> None:
    found = profile(write_rows(tmp_path / "rows.csv", rows))
    assert problems(found)[0].startswith(expected)
    assert (1 in found.errors) == (expected != NOT_ENGLISH)
    assert expected != NOT_ENGLISH or not found.is_english


def test_given_columns_are_no_guesses(tmp_path: Path) -> None:
    rows = [[1000 + row, sentence(row), row % 2] for row in range(40)]
    path = write_rows(tmp_path / "rows.csv", [["id", "text", "label"], *rows])
    found = profile(path, RowRules(text=("id",), label=("label",)))
    assert (found.chosen.text, found.is_guess) == (("id",), False)
    assert problems(found)[0].startswith("error: the column id looks like ids (1000, 1001, 1002) and not like text")
    assert "task.text=[text]" in problems(found)[0]
    with pytest.raises(UserError, match=r"rows.csv has no column body: it has id, text, label"):
        profile(path, RowRules(text=("body",)))


def test_a_class_that_is_named_is_no_mark_of_a_row_without_a_label(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.csv", labelled(60, ("None", "good", "bad")))
    assert "20 of 60 rows have no label" in problems(profile(path))[0]
    given = RowRules(text=("review",), label=("stars",), task="classification", names=("None", "good", "bad"))
    assert profile(path, given).problems == ()


def test_lines_of_jsonl_that_are_no_objects_are_counted(tmp_path: Path) -> None:
    lines = [json.dumps({"text": sentence(row), "label": row % 2}) for row in range(40)]
    lines[4:4] = ["[1]", "", '{"text": 5, "label": 1}', "{"]
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    found = profile(path)
    assert found.rows == {"data": 41}
    first, second, *_ = problems(found)
    assert first.startswith("error: 2 lines cannot be read (lines 5 and 8): line 5 is [1], expected an object")
    assert second.startswith("error: 1 of 41 rows has no text but 5 or the like in column text (line 7): expected text")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("rows.csv", "text|label\ngood|1\n", "one column 'text|label' with '|' in its name, expected commas between"),
        ("rows.csv", "text\tlabel\ngood\t1\n", "'text\\tlabel' with a tab in its name, expected commas between the c"),
        ("rows.tsv", "text,label\ngood,1\n", "expected tabs between the columns of .tsv: rename it to .csv"),
        ("rows.conll", "Ada B-PER\n", "rows.conll is of no known kind, expected one of .tsv, .csv"),
    ],
)
def test_files_that_cannot_be_read_at_all_raise(tmp_path: Path, name: str, content: str, expected: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        read_columns(tmp_path / name)
    assert expected in str(caught.value)


def test_utf_16_is_refused_and_a_byte_order_mark_is_left_out(tmp_path: Path) -> None:
    text = write_rows(tmp_path / "rows.csv", labelled()).read_text(encoding="utf-8")
    (tmp_path / "marked.csv").write_text(text, encoding="utf-8-sig")
    found = profile(tmp_path / "marked.csv")
    assert found.chosen.text == ("review",)
    assert problems(found) == ["the file begins with a byte order mark: it is left out, which needs no action"]
    (tmp_path / "wide.csv").write_text(text, encoding="utf-16")
    with pytest.raises(UserError, match="is in UTF-16 or UTF-32, expected UTF-8: convert it with iconv"):
        profile(tmp_path / "wide.csv")


def test_lengths_count_words_and_estimate_tokens() -> None:
    texts = ["a " * number for number in (1, 2, 3, 4, 200)]
    lengths = measure_lengths([texts], script="Latin", is_english=True)
    assert (lengths.median, lengths.p95, lengths.longest, lengths.unit) == (3, 4, 200, "words")
    assert lengths.over == {128: 1, 256: 0, 512: 0}
    assert lengths.limit == 256
    pairs = measure_lengths([texts, texts], script="Latin", is_english=True)
    assert (pairs.longest, pairs.over[256]) == (400, 1)
    letters = measure_lengths([["愛" * 130, "愛"]], script="Han", is_english=False)
    assert (letters.unit, letters.longest, letters.over[128]) == ("characters", 130, 1)
    assert find_scripts(["Ада and 愛", "123 !"]) == {"Cyrillic": 3 / 7, "Latin": 3 / 7, "Han": 1 / 7}
