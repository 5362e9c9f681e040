"""Tests that a row is called the first one, and ahead of the others, beyond noise alone."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from distill.records import row_tables
from distill.records.comparison import Row, compare_runs, describe_ranking, judge_row
from distill.records.headline import describe_result
from distill.records.run import Run, open_run
from distill.records.verdict import UNKNOWN
from tests.records.test_comparison import rows_of, write_run

SEEDS = (0, 1, 2)


def write_row(root: Path, number: int, name: str, values: list[float], **changes: Any) -> Path:
    """Writes a run of several seeds, whose record has `changes`."""
    directory = write_run(root, number, name, dict(zip(SEEDS, values, strict=False)))
    Run(directory, open_run(directory).record | changes).save()
    return directory


def describe(rows: list[Row]) -> str:
    text = describe_ranking(rows)
    assert text is not None
    return text


def test_no_row_is_the_best_within_noise(tmp_path: Path) -> None:
    write_row(tmp_path, 0, "a", [0.80, 0.84, 0.82])
    write_row(tmp_path, 1, "b", [0.81, 0.82, 0.82])
    write_row(tmp_path, 2, "c", [0.60, 0.64, 0.621])
    rows = rows_of(tmp_path)
    assert describe(rows) == (
        "No best row: 1 of 2 other rows is not told apart from the first, objective=a (accuracy 0.8200 ± 0.0200 on "
        "dev, 95% interval 0.7703 to 0.8697, 3 seeds (0, 1, 2)): objective=b."
    )
    cells = [row[4] for row in row_tables.table(rows)]
    assert (cells[:2], cells[3]) == (["against the first", "first"], "-20.0 (-20.1 to -19.8)")
    assert cells[2].endswith("undecided")
    read = list(csv.DictReader(row_tables.to_csv(rows, tmp_path).splitlines()))
    assert [row["within_noise_of_first"] for row in read] == ["", "True", "False"]
    assert (describe_ranking(rows[:1]), judge_row(None, rows[0])) == (None, UNKNOWN)


def count_errors(root: Path) -> list[Row]:
    """Returns the rows after the metric of all runs has become one of which less is better."""
    for directory in (root / "toy").iterdir():
        text = json.dumps(open_run(directory).record)
        Run(directory, json.loads(text.replace("accuracy", "rmse").replace('"max"', '"min"'))).save()
    return rows_of(root)


def test_the_first_row_of_errors_has_the_least_and_the_next_one_is_the_nearest(tmp_path: Path) -> None:
    for number, (name, value) in enumerate((("c", 0.9), ("a", 0.7), ("b", 0.8))):
        write_row(tmp_path, number, name, [value, value + 0.04, value + 0.02 + number / 1000])
    rows = count_errors(tmp_path)
    assert [row.label for row in rows] == ["objective=a", "objective=b", "objective=c"]
    text = describe(rows)
    assert text.startswith("The first row is ahead of the others beyond noise: objective=a (rmse 0.7203 ± ")
    assert "; the nearest one, objective=b, has +0.100 (" in text
    assert row_tables.table(rows)[3][4].startswith("+0.200 (")


def test_rows_of_errors_are_equal_within_a_percent_of_the_first(tmp_path: Path) -> None:
    write_row(tmp_path, 0, "a", [30.0, 31.0, 30.5])
    write_row(tmp_path, 1, "b", [29.98, 31.03, 30.52])
    text = describe(count_errors(tmp_path))
    assert text.startswith("No best row: the other row is within 1% of the first, objective=a (rmse 30.5000 ")


def test_one_seed_decides_little(tmp_path: Path) -> None:
    """Nine examples cannot tell 0.9 from 0.7, and no number of examples is known for f1."""
    for number, (name, value) in enumerate((("a", 0.9), ("b", 0.7))):
        write_row(tmp_path, number, name, [value])
    rows = rows_of(tmp_path)
    text = describe(rows)
    assert "No best row: the other row is not told apart from the first, objective=a (accuracy 0.9000 on dev, " in text
    assert text.endswith("seed 0): objective=b. One seed decides little: set seeds=3.")


def test_test_compares_rows_that_dev_orders(tmp_path: Path) -> None:
    for number, (name, dev, test) in enumerate((("a", 0.9, 0.6), ("b", 0.8, 0.7))):
        directory = write_row(tmp_path, number, name, [dev, dev, dev])
        content = open_run(directory).record
        for index, entry in enumerate(content["seeds"]):
            entry["export"]["fp32"]["metrics"]["test/accuracy"] = test + index / 100 + number * index / 1000
        Run(directory, content).save()
    rows = rows_of(tmp_path)
    assert [(row.label, row.split) for row in rows] == [("objective=a", "test"), ("objective=b", "test")]
    assert (row_tables.table(rows)[0][1:4], row_tables.table(rows)[1][1:4]) == (
        ("accuracy on test", "95% interval", "on dev"),
        ("0.6100 ± 0.0100", "0.5852 to 0.6348", "0.9000 ± 0.0000"),
    )
    text = describe(rows)
    assert text.startswith("No best row: objective=a (accuracy 0.6100 ± 0.0100 on test, ")
    assert text.endswith("is the first by dev, and ahead of it on test, beyond noise, objective=b.")


def test_the_baseline_of_the_runs_themselves_is_compared_by_seed(tmp_path: Path) -> None:
    directory = write_row(tmp_path, 0, "a", [0.80, 0.84, 0.82])
    content = open_run(directory).record
    for entry, value in zip(content["seeds"], (0.78, 0.79, 0.80), strict=True):
        entry["baseline"] = {"metrics": {"accuracy": value}}
    Run(directory, content).save()
    [row] = rows_of(tmp_path)
    assert row.baselines["dev"] == {0: 0.78, 1: 0.79, 2: 0.80}
    header, cells = row_tables.table([row])
    place = header.index("baseline")
    assert header[place : place + 2] == ("baseline", "against the baseline")
    # The differences 2, 5 and 2 points have a deviation of sqrt(3), so the interval is 3 +- 4.303.
    assert cells[place : place + 2] == ("0.7900 ± 0.0100", "+3.0 (-1.3 to +7.3)")
    assert "against supervised" not in header
    [read] = csv.DictReader(row_tables.to_csv([row], tmp_path).splitlines())
    found = [float(read[name]) for name in ("baseline_mean", "baseline_difference", "baseline_low", "baseline_high")]
    assert found == pytest.approx([0.79, 0.03, -0.0130, 0.0730], abs=1e-4)
    assert read["directories"] == f"toy/{directory.name}"


def test_one_seed_has_the_difference_over_examples_of_its_run(tmp_path: Path) -> None:
    recorded = {"difference": 0.02, "interval": [-0.01, 0.05], "p": 0.2, "over": "examples", "number": 9}
    baseline = {"metrics": {"accuracy": 0.78, "test/accuracy": 0.7}}
    directory = write_row(tmp_path, 0, "a", [0.80], baseline=baseline, comparison={"baseline": recorded})
    [row] = rows_of(tmp_path)
    assert row.gain == recorded
    other = {"comparison": {"baseline": recorded | {"split": "test"}}}
    [row] = compare_runs([(directory, open_run(directory).record | other)])
    assert row.gain is not None
    assert row.gain["interval"] != recorded["interval"]


def test_the_sentence_over_a_sweep_is_of_the_split_of_its_table(tmp_path: Path) -> None:
    """Dev orders the rows, and the sentence has the metric, the interval and the examples of test."""
    recorded = {"difference": -0.04, "interval": [-0.07, -0.01], "p": 0.01, "over": "examples", "number": 60}
    for number, (name, dev, test) in enumerate((("a", 0.88, 0.75), ("b", 0.86, 0.76))):
        directory = write_row(tmp_path, number, name, [dev], comparison={"teacher": recorded | {"split": "test"}})
        content = open_run(directory).record
        content["export"]["fp32"]["metrics"]["test/accuracy"] = test
        content["teacher"]["metrics"]["test/accuracy"] = 0.8
        content["task"]["examples"] = {"dev": 9, "test": 60}
        Run(directory, content).save()
    first = rows_of(tmp_path)[0]
    assert (first.split, first.label) == ("test", "objective=a")
    # The interval is that of torch, around the metric of the file.
    assert describe_result(first, subject="a") == (
        "**a has accuracy 0.7500, 5.0 points below its teacher (0.800; 95% interval -8.0 to -2.0), on 60 examples of "
        "test, one seed.**"
    )
