"""Tests of the report of several runs: tasks, damaged records, figures, the paper's numbers, and the page."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import yaml
from omegaconf import OmegaConf

from distill.core.errors import UserError
from distill.jobs.publishing_jobs import run_report
from distill.records import comparison, plots, report, schema
from distill.records import pages as run_reports
from distill.records.headline import describe_result
from distill.records.pages import write_collection
from distill.records.run import Run, create_record, digest
from tests.conftest import CHROMIUM
from tests.records.test_report import record

# The words of cells and headings whose letters are on several lines.
BROKEN_WORDS = r"""() => {
  const found = [];
  for (const cell of document.querySelectorAll("th, td, h1, h2, h3")) {
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      for (const word of texts.currentNode.data.matchAll(/[\p{L}\p{N}_=.]+/gu)) {
        const range = document.createRange();
        range.setStart(texts.currentNode, word.index);
        range.setEnd(texts.currentNode, word.index + word[0].length);
        if (new Set(Array.from(range.getClientRects(), (box) => box.top)).size > 1) found.push(word[0]);
      }
    }
  }
  return found;
}"""


def save(directory: Path, config: dict[str, Any] | None = None, **changes: Any) -> Path:
    """Writes a finished run of the toy record."""
    directory.mkdir(parents=True)
    content = create_record(job="distill", seed=0, command=["python", "-m", "distill"]) | {"status": "finished"}
    Run(directory, content | record() | changes).save()
    if config is not None:
        (directory / "config.yaml").write_text(yaml.safe_dump(config))
    return directory


def save_sweep(root: Path) -> None:
    """Writes runs with two temperatures and three seeds."""
    for number in range(6):
        temperature, accuracy = 1.0 + number % 2, 0.85 + number / 100
        files = record()["export"]
        for file in files.values():
            file |= {"metrics": {"accuracy": accuracy}, "gate": "passed"}
        config = {"task": {"name": "toy"}, "objective": {"name": "hinton", "temperature": temperature}, "seed": number}
        save(root / f"{number}", config, seed=number, export=files)


CLASSES: dict[str, list[Any]] = {
    "split": ["dev"] * 4 + ["test"], "index": [0, 1, 2, 3, 0], "text": ["a b", "c", "d e f", "<i>|*g*", "not dev"],
    "label": ["yes", "no", "yes", "no", "no"],
    "teacher_prediction": ["yes", "no", "yes", "no", "no"], "teacher_probability": [0.95, 0.9, 0.8, 0.6, 0.9],
    "int8_prediction": ["yes", "no", "no", "yes", "no"], "int8_probability": [0.91, 0.5, 0.99, 0.55, 0.9],
}  # fmt: skip


def write_predictions(directory: Path, columns: dict[str, list[Any]]) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), directory / "predictions.parquet")
    return directory


def report_of(root: Path) -> str:
    assert write_collection(schema.find_runs(root), root).page == root / "report.html"
    return (root / "report.md").read_text()


def break_record(path: Path, **changes: Any) -> None:
    """Changes a record, with the checksum of its new content."""
    write_record(path, json.loads((path / "run.json").read_text()) | changes)


def write_record(path: Path, content: dict[str, Any]) -> None:
    (path / "run.json").write_text(json.dumps(content | {"sha256": digest(content)}))


def test_tasks_are_separated_and_runs_without_a_result_are_named(tmp_path: Path) -> None:
    save_sweep(tmp_path / "a")
    other = record()["task"] | {"name": "other", "metric": "f1"}
    save(tmp_path / "b", task=other)
    save(
        tmp_path / "c", status="failed", error="UserError: no |pipe|", task=None, teacher=None, student=None, export={}
    )
    save(tmp_path / "d", status="running", task=None, teacher=None, student=None, export={})
    break_record(save(tmp_path / "e", task=other), benchmark=[])
    break_record(save(tmp_path / "f"), task="toy")
    (save(tmp_path / "g") / "run.json").write_text("{")
    (tmp_path / "h").mkdir()
    (tmp_path / "h" / "run.json").write_text(json.dumps({"schema": 9, "status": "finished"}))
    text = report_of(tmp_path)
    assert "10 runs" in text.splitlines()[0]
    assert "8 finished, 1 running, 1 failed; 3 run.json cannot be read." in text
    toy, rest = text.partition("## toy: accuracy")[2].split("## other: f1")
    assert "**temperature=2.0 has accuracy 0.8800 ± 0.0200, 2.0 points below its teacher (0.900; 95% interval" in toy
    assert "| objective=unknown | - | 0 | - | - | 100" not in rest
    assert "| - |" in rest  # f1 is no metric of this record.
    assert "UserError: no \\|pipe\\|" in rest
    assert "f/run.json is damaged: task: Input should be a valid dictionary" in text
    assert "g/run.json is damaged: Expecting property name" in text
    assert (
        "h/run.json has the schema 9, this version of distill reads schema 1: start a new run, or read it with" in text
    )
    rows = list(csv.DictReader((tmp_path / "report.csv").read_text().splitlines()))
    assert {row["int8_mean"] for row in rows if "temperature=2" in row["run"]} == {str((0.86 + 0.88 + 0.90) / 3)}


def every_change(content: Any, *names: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yields every place in a record, and a wrong value for it."""
    inside = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for name, value in inside:
        yield (*names, name), None if isinstance(value, str | dict | list) else "x"
        yield from every_change(value, *names, name)


def test_no_wrong_value_in_a_record_ends_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda file: None)  # Of hundreds of files.
    baseline = {"metrics": {"accuracy": 0.8}, "seconds": 1.0}
    difference = {"difference": 0.1, "interval": [0.0, 0.2], "p": 0.04, "over": "examples", "number": 9}
    seed = {"seed": 5, "metrics": {"accuracy": 0.9}, "export": record()["export"], "baseline": baseline}
    seed["comparison"] = {"baseline": difference}
    attempts = [{"words": "a recipe", "metrics": {"accuracy": 0.8}, "interval": [0.1, 0.2], "gate": "passed"}]
    path = save(tmp_path / "run", baseline=baseline, seeds=[seed, seed | {"seed": 6}], attempts=attempts)
    content = json.loads((path / "run.json").read_text())
    content.pop("sha256")
    read = 0
    for (*outer, name), wrong in every_change(content):
        changed = json.loads(json.dumps(content))
        place = changed
        for inner in outer:
            place = place[inner]
        place[name] = wrong
        write_record(path, changed)
        try:
            runs = schema.Runs([(path, schema.read_record(path))], ["a/run.json is damaged"])
        except UserError:
            continue
        write_collection(runs, tmp_path)
        run_reports.write_report(*runs.readable[0])
        read += 1
    assert read > 20  # The others were refused.


def test_a_report_that_refreshes_is_written_until_ctrl_c(tmp_path: Path) -> None:
    save_sweep(tmp_path)
    pages = []

    def wait(seconds: float) -> None:
        assert seconds == 7
        pages.append((tmp_path / "report.html").read_text())
        if len(pages) == 1:
            save(tmp_path / "later")
            return
        raise KeyboardInterrupt

    run_report(OmegaConf.create({"runs": str(tmp_path), "report_dir": None, "refresh": 7}), wait=wait)
    assert ["Report of 6 runs" in pages[0], "Report of 7 runs" in pages[1]] == [True, True]
    assert all('<meta http-equiv="refresh" content="7">' in page for page in pages)
    assert "http-equiv" not in (tmp_path / "report.html").read_text()


@pytest.mark.usefixtures("drawn")
def test_the_page_needs_no_other_file_and_shows_texts_as_they_are(tmp_path: Path) -> None:
    save_sweep(tmp_path)
    text = "<script>alert(1)</script> & *stars* ![x](http://example.com/x.png) <b>"
    save(tmp_path / "x", status="failed", error=text)
    report_of(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; *stars* ![x](http://example.com/x.png) &lt;b&gt;" in page
    assert "<img" not in page
    assert page.count("<svg") == page.count("</svg>") == 2  # Cost, and the temperature.
    assert 'src="' not in page
    assert "<link" not in page
    assert ">temperature</text>" in page
    assert "#0a0001" not in page
    assert "var(--series-1" in page


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, which .ci/run installs")
@pytest.mark.usefixtures("drawn")
@pytest.mark.xdist_group("browser")
def test_the_page_fits_a_telephone_is_dark_at_night_and_sorts_its_tables(browser: Any, tmp_path: Path) -> None:
    save_sweep(tmp_path)
    report_of(tmp_path)
    page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page.goto((tmp_path / "report.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate(BROKEN_WORDS) == []
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"
    runs = "section:has(h2:text('All runs')) tbody tr td:first-child"
    assert page.locator(runs).all_inner_texts() == ["0", "1", "2", "3", "4", "5"]
    for expected in (["0", "1", "2", "3", "4", "5"], ["5", "4", "3", "2", "1", "0"]):
        page.click("section:has(h2:text('All runs')) th button >> nth=0")
        assert page.locator(runs).all_inner_texts() == expected
    page.close()


def test_a_speed_up_on_a_busy_machine_says_so(tmp_path: Path) -> None:
    timings = [row | {"disturbed": row["length"] == 32} for row in record()["benchmark"]]
    files = record()["export"]
    files["int8"]["gate"] = "passed"
    for name in ("a", "b"):
        save(tmp_path / name, benchmark=timings, export=files)
    text = report_of(tmp_path)
    assert "6.4x as fast as the teacher's own fp32 file (batch 1, length 32, 2 threads of a processor" in text
    assert "of a processor, busy with other work)" in text


def test_a_headline_report_and_card_say_why_a_file_did_not_pass(tmp_path: Path) -> None:
    files = record()["export"]
    files["int8"] |= {"gate": "undecided", "reason": "dev has 24 examples, at least 148 are needed"}

    def headline(name: str) -> str:
        path = save(tmp_path / name, export=files)
        [row] = comparison.compare_runs([(path, schema.read_record(path))])
        return str(describe_result(row, subject="small"))

    words = "model.int8.onnx is undecided: dev has 24 examples, at least 148 are needed."
    assert headline("undecided").endswith(f"; {words}**")
    for text in (report.render_report(record(export=files)), report.render_model_card(record(export=files), ["a"])):
        assert f"- {words}" in text
    files["fp32"] |= {"gate": "failed", "reason": "the recall falls of y by 1.00 (14 of 14 lost, 0 gained)"}
    text = report.render_report(record(export=files))
    assert "- model.onnx failed its gate: the recall falls of y by 1.00 (14 of 14 lost, 0 gained)." in text
    assert (
        "**small has accuracy 0.9000, level with its teacher (0.900; 95% interval -19.2 to +19.2), on 24 examples of "
        "dev, one seed; no exported file passed its gate, so these numbers are those in torch; model.onnx failed its"
    ) in headline("failed")


def test_the_report_of_a_sweep_has_the_predictions_of_its_first_row(tmp_path: Path) -> None:
    save_sweep(tmp_path)
    # The first run of the row stands for it.
    write_predictions(tmp_path / "1", CLASSES)
    write_predictions(tmp_path / "0", CLASSES | {"int8_prediction": ["yes"] * 5})
    page = write_collection(schema.find_runs(tmp_path), tmp_path).page
    text = (tmp_path / "report.md").read_text()
    section = text.partition("\n## Predictions of toy: accuracy\n")[2].partition("\n## ")[0]
    assert "int8 of the first row, temperature=2.0, is compared with the teacher on 4 examples" in section
    assert "The agreement of the two is 0.5000." in section
    assert "| 2 | d e f | yes | yes (0.80) | no (0.99) |" in section
    assert page.read_text().count("<figure") == 5  # Cost, temperature; calibration, confusion, lengths.


def test_the_trainings_of_the_best_rows_are_compared(tmp_path: Path) -> None:
    save_sweep(tmp_path)
    for number in (0, 1):
        curves = f"epoch,step,train/soft,train/loss,dev/accuracy\n0,4,{number + 1}.0,3.0,0.25\n0,8,1.0,3.0,0.5\n"
        (tmp_path / str(number) / "metrics.csv").write_text(curves)
    page = write_collection(schema.find_runs(tmp_path), tmp_path).page
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
