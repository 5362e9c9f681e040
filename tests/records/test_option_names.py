"""Tests of the short names of options in the report of a sweep."""

import csv
import io
from pathlib import Path

import pytest

from distill.jobs.publishing_jobs import write
from distill.records.pages import write_collection
from distill.records.schema import find_runs
from distill.records.verdict import describe_names, select_options, shorten_names
from tests.records.test_collection_report import save


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


def save_grid(root: Path) -> None:
    """Writes runs with two temperatures, of a name that only one option has, and two weights of each of two terms."""
    for number in range(16):
        temperature, soft, hard, seed = 2 + 8 * (number % 2), 1 + number // 2 % 2, 1 + number // 4 % 2, number // 8
        terms = {"soft": {"temperature": temperature, "weight": soft}, "hard": {"weight": hard}}
        config = {"task": {"name": "toy"}, "objective": {"name": "hinton", "terms": terms}, "seed": seed}
        save(root / f"{number}", config, seed=seed, student={
            "name": "small", "parameters": 9, "metrics": {"accuracy": 0.8 + number / 100},
        }, export={}, benchmark=[])  # fmt: skip


@pytest.mark.usefixtures("drawn")
def test_tables_figures_and_the_terminal_have_short_names_and_the_page_and_csv_the_full_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_grid(tmp_path)
    write(tmp_path, tmp_path)
    printed = " ".join(capsys.readouterr().out.split())
    page = (tmp_path / "report.html").read_text()
    sentence = (
        "Short names: hard.weight is objective.terms.hard.weight, temperature is objective.terms.soft.temperature, "
        "soft.weight is objective.terms.soft.weight."
    )
    for text in (printed, page, (tmp_path / "report-paper" / "toy-accuracy.tex").read_text()):
        assert sentence in text
        # Beside that sentence there are the short names alone.
        assert "objective.terms" not in text.replace(sentence, "")
        assert "temperature" in text.replace(sentence, "")
    for name in ("temperature", "soft.weight", "hard.weight"):
        assert f">{name}</text>" in page  # An axis.
    assert ">hard.weight=1 soft.weight=1</text>" in page  # A legend.
    assert "accuracy on dev against temperature; bars are 95% intervals: Student&#39;s t over 2 seeds (0, 1)" in page
    [first, *_] = csv.DictReader(io.StringIO((tmp_path / "report.csv").read_text()))
    assert first["run"].startswith("objective.terms.hard.weight=2 objective.terms.soft.temperature=10 ")
    [first, *_] = csv.DictReader((tmp_path / "report-paper" / "toy-accuracy.csv").read_text().splitlines())
    assert (first["objective.terms.soft.temperature"], first["objective.terms.hard.weight"]) == ("10", "2")


def test_rows_without_a_result_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for temperature in (10, 9, 2.5, 100):
        config = {"task": {"name": "toy"}, "objective": {"name": "hinton", "temperature": temperature}}
        save(tmp_path / f"{temperature}", config, status="failed", error="no", student=None, export={}, task=None)
    [group] = write_collection(find_runs(tmp_path), tmp_path).groups
    assert [row.label for row in group.rows] == [f"temperature={value}" for value in (2.5, 9, 10, 100)]
