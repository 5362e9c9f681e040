"""Tests that the table of several runs groups seeds, pairs them with the reference, and shows what failed."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from scipy import stats

from distill.core.errors import UserError
from distill.records import comparison, row_tables, schema
from distill.records.run import Run, create_record


def write_run(
    root: Path, number: int, name: str, scores: dict[int, float], *, error: str | None = None,
    settings: dict[str, Any] | None = None, **options: Any,
) -> Path:  # fmt: skip
    """Writes a run with one seed, or with several in the form of `seeds=N`."""
    directory = root / "toy" / f"2026-01-01_00-00-{number:02}"
    directory.mkdir(parents=True)
    config = {"seed": min(scores, default=0), "seeds": max(1, len(scores)), "output_dir": str(root), "logger": {"a": 1}}
    config |= {"objective": {"name": name, "terms": {name: {"weight": 1.0}}}, "student": {"name": "small"}}
    (directory / "config.yaml").write_text(yaml.safe_dump({**config, **options}))
    record = create_record(job="distill", seed=config["seed"], settings=settings)
    record |= {"status": "finished", "objective": {"name": name}}
    if error is not None:
        record |= {"status": "failed", "error": error}
    file = {"file": "model.onnx", "bytes": 10, "gate": "passed"}
    entries = [
        {
            "seed": seed, "metrics": {"accuracy": 0.0}, "export": {"fp32": file | {"metrics": {"accuracy": value}}},
            "retention": {"torch": 0.1, "fp32": value / 0.8}, "seconds": 10.0 + seed,
        }
        for seed, value in scores.items()
    ]  # fmt: skip
    if entries:
        record["task"] = {"name": "toy", "metric": "accuracy", "selects": "max", "examples": {"dev": 9}}
        record["student"] = {"name": "small", "metrics": entries[0]["metrics"]}
        record["teacher"] = {"resolved": "big", "metrics": {"accuracy": 0.8}}
    if len(entries) == 1:
        record |= {"training": {"seconds": entries[0]["seconds"]}}
        record |= {of: entries[0][of] for of in ("export", "retention")}
    elif entries:
        record["seeds"] = entries
    Run(directory, record).save()
    return directory


def rows_of(root: Path) -> list[comparison.Row]:
    return comparison.compare_runs(schema.find_runs(root).readable)


def test_runs_that_differ_only_in_their_seed_are_one_row(tmp_path: Path) -> None:
    """One objective has a run for each seed, and the other one a run with three seeds."""
    for seed, value in enumerate((0.72, 0.76, 0.74)):
        write_run(tmp_path, seed, "hinton", {seed: value})
    write_run(tmp_path, 9, "supervised", {0: 0.70, 1: 0.71, 2: 0.72})
    first, second = rows_of(tmp_path)
    assert (first.label, second.label) == ("objective=hinton", "objective=supervised")
    assert first.values == {0: 0.72, 1: 0.76, 2: 0.74}
    assert first.spread() == {"mean": pytest.approx(0.74), "std": pytest.approx(0.02)}
    assert (first.kept, first.seconds) == (pytest.approx(0.74 / 0.8), 11.0)
    assert (len(first.directories), len(second.directories)) == (3, 1)
    expected = stats.ttest_rel([0.72, 0.76, 0.74], [0.70, 0.71, 0.72])
    assert first.difference is not None
    assert first.difference["difference"] == pytest.approx(0.03)
    assert first.difference["p"] == pytest.approx(expected.pvalue)
    assert second.difference is None


def test_table_has_the_metric_the_difference_and_the_error_of_every_row(tmp_path: Path) -> None:
    write_run(tmp_path, 0, "hinton", {0: 0.72, 1: 0.76, 2: 0.74})
    write_run(tmp_path, 1, "supervised", {0: 0.70, 1: 0.71, 2: 0.72})
    write_run(tmp_path, 2, "broken", {}, error="UserError: it cannot learn this")
    rows = rows_of(tmp_path)
    header, *cells = row_tables.table(rows)
    assert header == (
        "run", "accuracy", "95% interval", "seeds", "against the first", "against the teacher", "against supervised",
        "seconds", "error",
    )  # fmt: skip
    # The differences 2, 5 and 2 points have a deviation of sqrt(3), so the interval is 3 +- 4.303. That of the mean of
    # the first row is 4.303 * 2 / sqrt(3).
    broken = ("objective=broken", "-", "-", "0", "-", "-", "-", "-", "UserError: it cannot learn this")
    assert cells == [
        ("objective=hinton", "0.7400 ± 0.0200", "0.6903 to 0.7897", "3", "first", "-6.0 (-11.0 to -1.0)",
         "+3.0 (-1.3 to +7.3)", "11", ""),
        ("objective=supervised", "0.7100 ± 0.0100", "0.6852 to 0.7348", "3", "-3.0 (-7.3 to +1.3), undecided",
         "-9.0 (-11.5 to -6.5)", "-", "11", ""),
        broken,
    ]  # fmt: skip
    table = row_tables.terminal_table(rows)
    assert list(table.cells[0]) == [name for name in header if name != "95% interval"]
    assert table.cells[3] == broken[:2] + broken[3:]
    read = list(csv.DictReader(row_tables.to_csv(rows, tmp_path).splitlines()))
    assert [float(read[0][name]) for name in ("mean", "std", "difference")] == pytest.approx([0.74, 0.02, 0.03])
    assert (read[0]["seeds"], read[2]["error"], read[2]["mean"]) == ("0 1 2", "UserError: it cannot learn this", "")


FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "\n-1", "\uff1d1", '=HYPERLINK("http://x","y")']


def test_a_spreadsheet_reads_the_texts_of_the_table_as_texts(tmp_path: Path) -> None:
    directories = [write_run(tmp_path, number, name, {0: 0.7}) for number, name in enumerate(("hinton", "supervised"))]
    records = [schema.read_record(directory) for directory in directories]
    for text in FORMULAS:
        runs = [
            (directory, {**record, "task": {**record["task"], "name": text}, "status": "failed", "error": text})
            for directory, record in zip(directories, records, strict=True)
        ]
        rows = comparison.compare_runs(runs)
        for row in csv.DictReader(io.StringIO(row_tables.to_csv(rows, tmp_path), newline="")):
            expected = "'" + re.sub(r"\s", " ", text)
            assert (row["task"], row["error"]) == (expected, expected)
            assert row["run"].startswith("objective=")


def test_a_file_that_failed_its_gate_with_one_of_the_seeds_has_not_passed(tmp_path: Path) -> None:
    for seed in (0, 1):
        directory = write_run(tmp_path, seed, "hinton", {seed: 0.7})
    assert rows_of(tmp_path)[0].files["fp32"].passed
    record = schema.read_record(directory)
    record["export"]["fp32"]["gate"] = "failed"
    Run(directory, record).save()
    assert not rows_of(tmp_path)[0].files["fp32"].passed


def test_options_that_vary_name_the_rows_and_only_equal_ones_are_compared(tmp_path: Path) -> None:
    one, two = {"trainer": {"max_steps": 5}}, {"trainer": {"max_steps": 9}}
    write_run(tmp_path, 0, "hinton", {0: 0.7, 1: 0.8}, **one)
    write_run(tmp_path, 1, "hinton", {0: 0.75, 1: 0.82}, **two)
    write_run(tmp_path, 2, "supervised", {0: 0.6, 1: 0.65}, **two)
    rows = {row.label: row for row in rows_of(tmp_path)}
    assert set(rows) == {
        "objective=hinton max_steps=5", "objective=hinton max_steps=9",
        "objective=supervised max_steps=9",
    }  # fmt: skip
    assert rows["objective=hinton max_steps=5"].difference is None
    difference = rows["objective=hinton max_steps=9"].difference
    assert difference is not None
    assert difference["difference"] == pytest.approx(0.16)


def test_terms_of_one_objective_name_its_rows(tmp_path: Path) -> None:
    for number, weight in enumerate((1.0, 2.0)):
        objective = {"name": "hinton", "terms": {"soft": {"weight": weight}}}
        write_run(tmp_path, number, "hinton", {0: 0.7 + number / 10}, objective=objective)
    assert [row.label for row in rows_of(tmp_path)] == ["weight=2.0", "weight=1.0"]


def test_runs_from_python_have_the_options_of_their_record_and_else_their_directory(tmp_path: Path) -> None:
    def rows(name: str, *runs: tuple[int, float | None, float]) -> dict[str, dict[int, float]]:
        """Returns the values of the rows of runs with these seeds, learning rates and scores, by their labels."""
        for number, (seed, rate, value) in enumerate(runs):
            settings = None if rate is None else {"trainer": {"learning_rate": rate, "seed": seed}}
            directory = write_run(tmp_path / name, number, "hinton", {seed: value}, settings=settings)
            (directory / "config.yaml").unlink()
        return {row.label: row.values for row in rows_of(tmp_path / name)}

    assert rows("seeds", (0, None, 0.7), (1, None, 0.8)) == {"objective=hinton": {0: 0.7, 1: 0.8}}
    assert rows("settings", (0, 0.1, 0.7), (1, 0.1, 0.8), (2, 0.2, 0.9)) == {
        "learning_rate=0.2": {2: 0.9}, "learning_rate=0.1": {0: 0.7, 1: 0.8},
    }  # fmt: skip
    assert rows("one seed", (0, None, 0.7), (0, None, 0.8)) == {
        "directory=…/2026-01-01_00-00-01": {0: 0.8}, "directory=…/2026-01-01_00-00-00": {0: 0.7},
    }  # fmt: skip


def test_list_of_a_sweep_selects_its_runs_and_damaged_ones_are_named(tmp_path: Path) -> None:
    sweep = tmp_path / "sweeps" / "now"
    sweep.mkdir(parents=True)
    paths = [write_run(tmp_path, number, "hinton", {number: 0.7}) for number in range(3)]
    (sweep / "runs.txt").write_text("".join(f"../../toy/{path.name}\n" for path in (paths[0], paths[2], paths[0])))
    assert [path.name for path, _ in schema.find_runs(sweep).readable] == [paths[0].name, paths[2].name]
    (paths[0] / "run.json").write_text("{")
    found = schema.find_runs(sweep)
    assert [path.name for path, _ in found.readable] == [paths[2].name]
    [message] = found.unreadable
    assert f"{paths[0].name}/run.json is damaged" in message
    content = json.loads((paths[2] / "run.json").read_text())
    content.pop("sha256")
    (paths[2] / "run.json").write_text(json.dumps(content))
    assert "does not have the SHA-256" in schema.find_runs(sweep).unreadable[1]
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match="runs=.* has no runs: give the"):
        schema.find_runs(tmp_path / "none")
