"""Tests of the short names of options in the report of a sweep."""

import csv
import io
from collections.abc import Callable
from pathlib import Path

from distill.records.pages import write_collection
from distill.records.schema import find_runs
from distill.records.verdict import describe_names, select_options, shorten_names
from tests.golden.runs import golden_output, golden_root
from tests.records.test_collection_report import save

assert golden_output
assert golden_root


def test_a_short_name_is_the_shortest_end_that_no_other_option_has() -> None:
    assert shorten_names(["objective.terms.soft.temperature", "trainer.learning_rate", "student"]) == {
        "objective.terms.soft.temperature": "temperature", "trainer.learning_rate": "learning_rate",
        "student": "student",
    }  # fmt: skip
    assert shorten_names(["objective.terms.soft.weight", "objective.terms.hard.weight", "a.weights"]) == {
        "objective.terms.soft.weight": "soft.weight", "objective.terms.hard.weight": "hard.weight",
        "a.weights": "weights",
    }  # fmt: skip
    # A name that is the end of another one is its own, and the other one is longer.
    assert shorten_names(["student", "teacher.student", "a.teacher.student"]) == {
        "student": "student", "teacher.student": "teacher.student", "a.teacher.student": "a.teacher.student",
    }  # fmt: skip
    assert shorten_names(["layers", "layers"]) == {"layers": "layers"}


def test_the_full_names_are_in_a_sentence() -> None:
    assert describe_names({"a.b": "b", "c": "c", "d.e": "e"}) == "Short names: b is a.b, e is d.e."
    assert describe_names({"c": "c"}) is None


def test_rows_begin_with_the_student_and_leave_the_benchmark_out() -> None:
    rows = [
        {"task.name": "sst2", "trainer.max_epochs": 2, "student.name": name, "student.depth": depth,
         "benchmark.enabled": depth == 1, "benchmark.seconds": seconds}
        for name, depth, seconds in (("small", 1, 0.1), ("small", 2, 0.2), ("large", 1, 0.3))
    ]  # fmt: skip
    rows[2]["trainer.max_epochs"] = 3
    typed = {"benchmark.enabled", "benchmark.seconds", "student.depth", "trainer.max_epochs"}
    assert [list(row.items()) for row in select_options(rows, typed)] == [
        [("student", "small"), ("student.depth", 1), ("trainer.max_epochs", 2)],
        [("student", "small"), ("student.depth", 2), ("trainer.max_epochs", 2)],
        [("student", "large"), ("student.depth", 1), ("trainer.max_epochs", 3)],
    ]
    alone = [rows[0], {**rows[0], "benchmark.seconds": 0.5}]  # Nothing else tells these apart.
    assert select_options(alone, typed) == [{"benchmark.seconds": 0.1}, {"benchmark.seconds": 0.5}]


def test_tables_for_papers_have_short_names_and_csv_the_full_ones(golden_output: Callable[[str], Path]) -> None:
    [sweep] = (golden_output("classes") / "sweeps").iterdir()
    latex = (sweep / "report-paper" / "sst2-accuracy.tex").read_text()
    sentence = "Short names: temperature is objective.terms.soft.temperature."
    for text in (latex, (sweep / "report.html").read_text()):
        assert sentence in text
    # Beside that sentence there are the short names alone.
    assert "objective.terms" not in latex.replace(sentence, "")
    assert "temperature" in latex.replace(sentence, "")
    [first, *_] = csv.DictReader(io.StringIO((sweep / "report.csv").read_text()))
    assert first["run"] == "objective.terms.soft.temperature=1"
    [first, *_] = csv.DictReader((sweep / "report-paper" / "sst2-accuracy.csv").read_text().splitlines())
    assert first["objective.terms.soft.temperature"] == "1"


def test_rows_without_a_result_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for temperature in (10, 9, 2.5, 100):
        config = {"task": {"name": "toy"}, "objective": {"name": "hinton", "temperature": temperature}}
        save(tmp_path / f"{temperature}", config, status="failed", error="no", student=None, export={}, task=None)
    [group] = write_collection(find_runs(tmp_path), tmp_path).groups
    assert [row.label for row in group.rows] == [f"temperature={value}" for value in (2.5, 9, 10, 100)]
