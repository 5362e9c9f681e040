"""Tests that no page, card or table has a path of somebody's disk."""

from pathlib import Path
from typing import Any

import pytest

from distill.records import report, row_tables, run
from distill.records.pages import write_collection, write_report
from distill.records.schema import find_runs, read_record
from tests.records.test_collection_report import save
from tests.records.test_report import record


def test_paths_are_told_apart_by_as_few_of_their_last_parts_as_needed() -> None:
    assert run.shorten_paths(["/home/me/bert", "/data/a/student", "/data/b/student", "/student"]) == {
        "/home/me/bert": "…/bert", "/data/a/student": "…/a/student", "/data/b/student": "…/b/student",
        "/student": "…/student",
    }  # fmt: skip


def test_absolute_paths_in_a_text_are_shortened_and_nothing_else() -> None:
    for text, expected in (
        ("teacher /home/me/bert is weak: set it", "teacher …/bert is weak: set it"),
        ("'/home/me/x.csv', (~/data/y.csv) and file:///home/z", "'…/x.csv', (…/y.csv) and …/z"),
        ("owner/name, https://host/a/b, s3://a/b, n/a, 3 / 4, </b> and ../x", None), ("…/bert", None),
    ):  # fmt: skip
        assert run.hide_in_text(text) == (expected or text)


def test_values_of_an_option_still_differ_without_their_paths() -> None:
    values = ["/runs/a/student", "/runs/b/student", "owner/name", 3, ["/my data/x.csv", "b"]]
    assert run.hide_values(values) == ["…/a/student", "…/b/student", "owner/name", 3, ["…/x.csv", "b"]]


def test_a_command_can_still_be_read_as_one() -> None:
    command = ["python", "task.text=[a]", "teacher.path=/home/my self/bert", "task.data_dir=/home/a,/home/b"]
    hidden = run.hide_paths({"command": command})["command"]
    assert hidden == ["python", "task.text=[a]", "teacher.path=…/bert", "task.data_dir=…/a,…/b"]
    assert run.show_command(hidden) == "python 'task.text=[a]' teacher.path=…/bert task.data_dir=…/a,…/b"


def test_a_report_elsewhere_names_runs_by_their_last_part(tmp_path: Path) -> None:
    assert run.relative_path(tmp_path / "a" / "b", tmp_path) == "a/b"
    assert run.relative_path(tmp_path / "a", tmp_path / "c") == "../a"
    assert run.relative_path(Path("/nowhere/runs/a"), Path("/elsewhere")) == "…/a"


SECRET = "/home/somebody"


def save_private(directory: Path, number: int, **changes: Any) -> Path:
    """Writes a run whose teacher, data, cache and output are absolute paths."""
    teacher = record()["teacher"] | {
        "requested": f"{SECRET}/my models/bert", "resolved": f"{SECRET}/my models/bert",
        "notices": [f"teacher {SECRET}/my models/bert is new"],
    }  # fmt: skip
    data = f"{SECRET}/data {number}"
    options = [f"teacher.path={SECRET}/my models/bert", f"task.data_dir={data}"]
    command = [f"{SECRET}/bin/python", "-m", "distill", *options]
    config = {
        "task": {"name": "toy", "data_dir": data}, "teacher": {"path": f"{SECRET}/my models/bert"},
        "cache_dir": f"{SECRET}/cache", "output_dir": f"{SECRET}/runs", "objective": {"name": "hinton"},
    }  # fmt: skip
    return save(directory, config, teacher=teacher, command=command, **changes)


@pytest.mark.usefixtures("drawn")
def test_no_page_card_or_table_has_a_path_of_the_disk(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"{number}").mkdir()
        private = save_private(tmp_path / f"{number}" / "run", number)
    save_private(tmp_path / "failed", 2, status="failed", error=f"UserError: {SECRET}/data is no directory")
    (save(tmp_path / "damaged") / "run.json").write_text("{")
    (private / "predictions.parquet").write_bytes(b"no parquet")
    content = read_record(private)
    page = write_report(private, content)
    written = write_collection(find_runs(tmp_path), tmp_path)
    collected, groups = written.page, written.groups
    sections = {"tasks": {"toy": {name: content[name] for name in ("task", "teacher", "student", "export")}}}
    finetuned = content | {"job": "finetune", "student": None, "export": {}, "benchmark": []}
    shown = {
        "page": page.read_text(), "report": (private / "report.md").read_text(), "collection": collected.read_text(),
        "csv": (tmp_path / "report.csv").read_text(), "card": report.render_model_card(content, ["no", "yes"]),
        "overview": report.render_overview_card(content | sections), "title": str(report.summary_table(content).title),
        "collection.md": (tmp_path / "report.md").read_text(), "finetuned": report.render_report(finetuned),
        "finetuned card": report.render_model_card(finetuned, ["no", "yes"], auto_class="AutoModel"),
        "table": str(row_tables.table(groups[0].rows)),
    }  # fmt: skip
    for name, text in shown.items():
        for path in (SECRET, str(tmp_path)):
            assert path not in text, name
    assert "small from bert on toy" in shown["page"]
    assert "teacher.path=…/bert 'task.data_dir=…/data 1'" in shown["report"]
    assert "Distilled from **bert**." in shown["card"]
    assert "damaged/run.json is damaged" in shown["collection.md"]
    assert "| [1/run](<1/run/report.html>) |" in shown["collection.md"]
    assert f"teacher.path={SECRET}/my models/bert" in read_record(private)["command"]


def test_teachers_in_other_directories_have_different_names(tmp_path: Path) -> None:
    members = [{"resolved": f"{SECRET}/{name}/student", "origin": "", "share": 0.5, "metrics": {}} for name in "ab"]
    whole = f"the mean of {SECRET}/a/student, {SECRET}/b/student"
    teacher = record()["teacher"] | {"resolved": whole, "members": members}
    hidden = run.hide_paths(record(teacher=teacher))["teacher"]
    assert hidden["resolved"] == "the mean of a/student, b/student"
    assert [member["resolved"] for member in hidden["members"]] == ["a/student", "b/student"]
    local = tmp_path / "models" / "bert"
    local.mkdir(parents=True)
    for name, expected in ((str(local), "bert"), ("runs/toy/1/student", "student"), ("google/bert", "google/bert")):
        found = run.hide_paths(record(teacher=record()["teacher"] | {"resolved": name}))
        assert found["teacher"]["resolved"] == expected
