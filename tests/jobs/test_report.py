"""Tests of job=report, and of the report that a sweep over all recipes leaves."""

import csv
import json
import os
import re
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.__main__ import config_directory
from distill.chain import task_run
from tests.chain.test_seeds import write_metrics
from tests.jobs.conftest import Command


def test_recipes_are_compared_in_one_table_and_a_failed_one_with_its_error(
    command: Command, teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data_dir: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(task_run, "write_bundle", write_metrics)
    teacher.save_pretrained(tmp_path / "teacher")
    tokenizer.save_pretrained(tmp_path / "teacher")
    code, output, error = command(
        "+experiment=recipes", "objective=hinton,supervised,language_model", "+teacher=pretrained",
        "+student=distilbert",
        f"teacher.path={tmp_path / 'teacher'}", "teacher.accept_weak=true", "task=sst2", f"task.data_dir={data_dir}",
        "task.max_length=32", "trainer.max_steps=2", "seeds=2", "benchmark.enabled=false", "cache_dir=cache",
    )  # fmt: skip
    assert code == 2
    assert "has the term mlm, which cannot learn task sst2" in error
    [sweep] = (tmp_path / "runs" / "sweeps").iterdir()
    rows = {row["run"]: row for row in csv.DictReader((sweep / "report.csv").read_text().splitlines())}
    assert set(rows) == {"objective=hinton", "objective=supervised", "objective=language_model"}
    for path in (tmp_path / "runs" / "sst2").rglob("run.json"):
        record = json.loads(path.read_text())
        if record["status"] == "finished":
            row = rows[f"objective={record['objective']['name']}"]
            assert float(row["mean"]) == record["summary"]["accuracy"]["files"]["fp32"]["mean"]
            assert row["seeds"] == "0 1"
    assert rows["objective=language_model"]["error"].startswith("UserError: objective language_model has the term mlm")
    assert rows["objective=hinton"]["difference"]
    table = (sweep / "report.md").read_text()
    for text in ("| objective=hinton |", "cannot learn task sst2", "paired by seed"):
        assert text in table
    for directory in {path.parent for path in (tmp_path / "runs" / "sst2").rglob("report.md")}:
        assert f"[{os.path.relpath(directory, sweep)}](<{os.path.relpath(directory / 'report.html', sweep)}>)" in table
        assert "<h2>Predictions</h2>" in (directory / "report.html").read_text()
    assert f"Report   {sweep.relative_to(tmp_path) / 'report.html'}" in output
    code, output, error = command("job=report", f"runs={tmp_path / 'runs'}", f"report_dir={tmp_path / 'here'}")
    assert code == 0, error
    again = list(csv.DictReader((tmp_path / "here" / "report.csv").read_text().splitlines()))
    for row in again:
        name = row["directories"].split()[0]
        assert (tmp_path / "here" / name / "run.json").is_file()
    # The directories are relative to the report.
    assert [row | {"directories": ""} for row in again] == [row | {"directories": ""} for row in rows.values()]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["runs=."], "runs=. has no runs: give the directory of a run or a sweep, or one with runs below it"),
        (
            ["runs=.", "seeds=2"],
            "job=report reads only runs, report_dir, refresh, report.rank and report.against: leave out seeds=2",
        ),
        (["runs=.", "refresh=0"], "got refresh=0, expected a whole number of seconds of at least 1, or null"),
    ],
)
def test_bad_options_are_reported_in_one_line(command: Command, options: list[str], expected: str) -> None:
    code, _, error = command("job=report", *options)
    assert (code, len(error.strip().splitlines())) == (2, 1)
    assert expected in error


def test_recipes_sweep_over_every_objective_for_labelled_data() -> None:
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        swept = compose("config", ["+experiment=recipes"], return_hydra_config=True).hydra
        assert swept.mode.name == "MULTIRUN"
        excluded = re.fullmatch(r"glob\(\*,exclude=\[(.*)\]\)", swept.sweeper.params.objective)
        assert excluded
        for path in (config_directory() / "objective").iterdir():
            objective = instantiate(compose("config", [f"objective={path.stem}"]).objective)
            suits = not objective.unsuited(likelihood="softmax", classes_are_tokens=False)
            assert suits == (path.stem not in excluded[1].split(",")), path.stem


def test_a_dry_run_of_a_sweep_checks_every_run_and_reports_none(
    command: Command, teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data_dir: Path, tmp_path: Path
) -> None:
    teacher.save_pretrained(tmp_path / "teacher")
    tokenizer.save_pretrained(tmp_path / "teacher")
    (tmp_path / "texts.txt").write_text("a new film\nan old film\n")
    code, output, error = command(
        "+experiment=recipes", "objective=hinton,supervised", "+teacher=pretrained", "+student=distilbert",
        f"teacher.path={tmp_path / 'teacher'}", "task=sst2", f"task.data_dir={data_dir}", "task.max_length=32",
        "task.unlabelled=texts.txt", "cache_dir=cache", "dry_run=true",
    )  # fmt: skip
    assert (code, error) == (0, "")
    printed = " ".join(output.split())
    assert printed.count("Notice: objective supervised learns from labels alone, and the texts of task.unlabelled") == 1
    assert "there is no report" not in printed
