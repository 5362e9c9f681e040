"""Tests of the problems that are found in the rows of a table."""

import subprocess
import sys

import pytest

from distill.data import problems
from distill.rows import formats


@pytest.mark.parametrize(
    ("rows", "lines", "words"),
    [
        ([4], None, "example 5"),
        ([0, 1], [3, 1200], "lines 3 and 1200"),
        (range(5), range(2, 9), "lines 2, 3, 4, 5 and 6"),
        (range(7), range(2, 9), "lines 2, 3, 4, 5, 6 and 2 more"),
    ],
)
def test_lines_are_counted_and_the_first_ones_named(rows: list[int], lines: list[int] | None, words: str):
    assert problems.show_lines(rows, lines) == words


def test_rows_without_a_label_are_counted_with_their_lines_and_marks_are_named():
    [problem] = problems.find_unlabelled(["a", "", None, float("nan"), "b"], [2, 5, 6, 9, 10])
    assert problem.summary == "3 of 5 rows have no label (lines 5, 6 and 9)"
    assert "task.missing=drop" in problem.advice
    assert "task.missing=unlabelled" in problem.advice
    values = ["yes", "NA", "no", "NA"]
    [problem] = problems.find_unlabelled(values, marks=formats.find_marks(values))
    assert problem.summary == "2 of 4 rows have no label, for which NA counts too (examples 2 and 4)"
    assert problem.advice.endswith("; if NA is a class, name all with task.labels=[NA,...]")
    assert not problems.find_unlabelled(["a", "b"])


@pytest.mark.parametrize(
    ("values", "marks"),
    [
        (["a", "b", "null", "N/A"], {"null", "N/A"}),
        (["0", "1", "2", "-1"], {"-1"}),
        ([0.0, 1.0, 2.0, -1.0], {"-1.0"}),
        (["0", "1", "-1"], set()),  # A sentiment.
        (["-1", "1"], set()),  # One class would be left.
        (["-2", "-1", "1"], set()),
        (["+", "-", "?"], set()),
        (["EU", "NA"], set()),
        (["EU", "Asia", ""], set()),
        ([[1], [2]], set()),
    ],
)
def test_marks_are_told_from_classes(values: list[object], marks: set[str]):
    assert formats.find_marks(values) == marks


def test_rows_without_text_are_those_in_which_every_column_is_empty():
    [problem] = problems.find_empty([["a", "", " "], ["", "b", None]], [2, 3, 4])
    assert problem.summary == "1 of 3 rows has no text in either column of the pair (line 4)"
    assert not problems.find_empty([["a"], [""]])


def test_integers_written_as_floats_are_found_among_whole_numbers_only():
    [problem] = problems.find_floats(["4.0", "", "3"], [2, 3, 4])
    assert problem.summary == "1 of 3 rows has a label such as 4.0, a whole number (line 2)"
    assert problem.advice.startswith("4.0 is the class 4,")
    assert not problems.find_floats(["4.5", "3.0"])
    assert not problems.find_floats(["v4.0", "3.0"])
    assert not problems.find_floats([4, 3])


def test_small_classes_are_named_with_their_counts_and_lines():
    [problem] = problems.find_small_classes(["a"] * 10 + ["b"] * 3 + ["c"], range(2, 16))
    assert problem.summary == "2 of 3 classes have fewer than 10 rows: c (1: line 15), b (3: lines 12, 13 and 14)"
    assert not problems.find_small_classes(["a"] * 10)
    assert "'a\\nb' (1: example 1)" in problems.find_small_classes(["a\nb"])[0].summary


def test_doubled_rows_are_counted_and_those_with_another_label_too():
    [problem] = problems.find_doubled(["a", "a", "b", "b"], [1, 2, 1, 1], [2, 4, 6, 8])
    assert problem.summary == "2 of 4 rows have the text of an earlier row (lines 4 and 8)"
    assert problem.advice.startswith("1 of them has another label (line 4)")
    assert not problems.find_doubled(["a", "b"])


def test_rows_of_two_splits_are_compared_for_each_pair_of_splits():
    texts = {"train": ["a", "b"], "dev": ["b", "c"], "test": ["c", "d"]}
    first, second = problems.find_shared(
        texts, {"train": [1, 1], "dev": [0, 0], "test": [0, 0]}, {"dev": [2, 4], "test": [3, 5]}
    )
    assert first.summary == "1 of 2 rows of dev has the text of a row of train, with another label (line 2 of dev)"
    assert second.summary == "1 of 2 rows of test has the text of a row of dev (line 3 of test)"
    assert "too high" in first.advice
    assert "selects the checkpoint" in second.advice


@pytest.mark.parametrize(
    ("values", "is_error"),
    [
        ([f"a91f-{number}" for number in range(40)], False),
        (list(range(40)), True),
        ([f"a good film {number}" for number in range(40)], None),
        ([f"name{'abcdefgh'[number % 8]}{'ijklmnop'[number // 8]}" for number in range(40)], None),  # Without a digit.
        ([f"https://example.org/{number}" for number in range(40)], None),
        ([f"とても良い映画{number}" for number in range(40)], None),
        ([str(number % 5) for number in range(40)], None),
        (["7", "8", "9"], None),
    ],
)
def test_a_column_of_ids_is_told_from_text(values: list[object], is_error: bool | None):
    found = problems.find_ids("id", values, ["review", "title"])
    assert [problem.is_error for problem in found] == ([] if is_error is None else [is_error])
    for problem in found:
        assert "the column id looks like ids" in problem.summary
        assert "task.text=[review] (also text: title)" in problem.advice


def test_problems_are_found_without_numpy():
    code = "import sys; import distill.data.problems; sys.exit('numpy' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "other", "is_slip"),
    [
        ("positve", "positive", True),
        ("Positive", "positive", True),
        ("postiive", "positive", True),
        ("class1", "class2", False),
        ("B", "A", False),
        ("male", "female", False),
        ("negative", "positive", False),
        ("good ", "good", False),
    ],
)
def test_a_class_of_one_row_that_differs_by_a_letter_is_named_as_a_likely_slip(
    name: str, other: str, is_slip: bool
) -> None:
    [found] = problems.find_small_classes([*[other] * 92, name, *["something else"] * 12])
    assert (f"a likely slip for {other} with 92 rows" in found.summary) == is_slip
    [few] = problems.find_small_classes([*[other] * 9, name])
    assert "likely" not in few.summary
