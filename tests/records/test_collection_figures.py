"""Tests of the trainings and the predictions in the report of several runs."""

from pathlib import Path

import pytest

from distill.records import plots
from distill.records.pages import write_collection
from distill.records.schema import find_runs
from tests.records.test_collection_report import save_sweep
from tests.records.test_run_report import CLASSES, write


def test_the_report_of_a_sweep_has_the_predictions_of_its_first_row(tmp_path: Path) -> None:
    save_sweep(tmp_path)
    # The first run of the row stands for it.
    write(tmp_path / "1", CLASSES)
    write(tmp_path / "0", CLASSES | {"int8_prediction": ["yes"] * 5})
    page = write_collection(find_runs(tmp_path), tmp_path).page
    text = (tmp_path / "report.md").read_text()
    section = text.partition("\n## Predictions of toy: accuracy\n")[2].partition("\n## ")[0]
    assert "int8 of the first row, temperature=2.0, is compared with the teacher on 4 examples" in section
    assert "The agreement of the two is 0.5000." in section
    assert "| 2 | d e f | yes | yes (0.80) | no (0.99) |" in section
    assert page.read_text().count("<figure") == 5  # Cost, temperature; calibration, confusion, lengths.


def test_damaged_predictions_are_a_notice_of_the_report_of_a_sweep(tmp_path: Path) -> None:
    save_sweep(tmp_path)
    (tmp_path / "1" / "predictions.parquet").write_bytes(b"no parquet")
    write_collection(find_runs(tmp_path), tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "> **Notice.** " in text
    assert "predictions.parquet is damaged" in text
    assert "## Predictions of" not in text


def test_the_trainings_of_the_best_rows_are_compared(tmp_path: Path) -> None:
    save_sweep(tmp_path)
    for number in (0, 1):
        curves = f"epoch,step,train/soft,train/loss,dev/accuracy\n0,4,{number + 1}.0,3.0,0.25\n0,8,1.0,3.0,0.5\n"
        (tmp_path / str(number) / "metrics.csv").write_text(curves)
    page = write_collection(find_runs(tmp_path), tmp_path).page
    html = page.read_text()
    assert "accuracy on dev over the training, of several rows" in html
    assert "Loss soft over the training, of several rows" in html
    assert html.count("<figure") == 4  # Cost and temperature before them.


@pytest.mark.usefixtures("drawn")
def test_a_term_of_one_run_and_the_total_are_not_compared() -> None:
    one = {
        "train/soft": [(1, 1.0), (2, 0.5)],
        "train/loss": [(1, 9.0)],
        "dev/f1": [(1, 0.2), (2, 0.5)],
        "dev/accuracy": [(2, 0.1)],
    }
    other = {"train/hard": [(1, 1.0)], "train/soft": [(1, 0.0)], "train/loss": [(1, 9.0)], "dev/f1": [(2, 0.75)]}
    found = plots.compare_trainings({"a": one, "b": other}, metric="f1")
    assert [figure.caption for figure in found] == [
        "f1 on dev over the training, of several rows, one run each with their first seed, without intervals",
        "Loss soft over the training, of several rows, one run each with their first seed, without intervals",
    ]  # fmt: skip
    assert all(f">{name}</text>" in figure.svg for figure in found for name in ("a", "b"))
    assert plots.compare_trainings({"a": one}, metric="f1") == []
