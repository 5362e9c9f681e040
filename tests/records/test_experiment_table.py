"""Tests of the numbers of an experiment's table: differences, signs, orders, and the mean over tasks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distill.records.experiment import Outcome, Place, read_experiment
from distill.records.experiment_table import (
    DIFFERENCES,
    NONE_SEEN,
    NOT_SEEN,
    SEEN,
    TOO_SMALL,
    UNTESTED,
    Effect,
    ExperimentTable,
    describe_table,
)
from tests.records.test_collection_report import break_record, save
from tests.records.test_report import record

Values = dict[str, dict[str, list[float]]]


def create_table(root: Path, values: Values, *, selects: str = "max", **content: Any) -> ExperimentTable:
    """Returns the table of runs of job=finetune with these values of each row and task, one for each seed."""
    tasks = list(next(iter(values.values())))
    seeds = max(len(of) for row in values.values() for of in row.values())
    experiment = {
        "name": "toy", "title": "A toy", "rows": {row: ["seed={seed}"] for row in values},
        "tasks": {task: [f"task={task}"] for task in tasks}, "seeds": seeds,
    } | content  # fmt: skip
    outcomes = []
    for row, of in values.items():
        for task, numbers in of.items():
            for seed, value in enumerate(numbers):
                found = record()["task"] | {"name": task, "selects": selects, "examples": {"dev": 100}}
                teacher = record()["teacher"] | {"metrics": {"accuracy": value}}
                path = root / row / task / f"{seed}"
                save(path, job="finetune", task=found, teacher=teacher, student=None, export={})
                outcomes.append(Outcome(Place(row, task, seed), path))
    return ExperimentTable(read_experiment(experiment), outcomes, [])


def block(values: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"source": "A paper", "metric": "points", "values": values, **more}


def find(table: ExperimentTable, row: str, column: str) -> Effect:
    [effect] = [each for each in table.effects() if (each.row, each.column) == (row, column)]
    return effect


def test_a_difference_over_seeds_is_paired_and_has_the_sign_of_the_paper_or_not(tmp_path: Path) -> None:
    values = {
        "base": {"a": [0.50, 0.60, 0.70]}, "worse": {"a": [0.40, 0.51, 0.59]}, "better": {"a": [0.61, 0.70, 0.81]},
        "same": {"a": [0.60, 0.50, 0.71]}, "less": {"a": [0.60, 0.50, 0.71]}, "alike": {"a": [0.51, 0.61, 0.71]},
    }  # fmt: skip
    figures = {"base": 80.0, "worse": 70.0, "better": 79.0, "same": 81.0, "less": 30.0, "alike": 82.0}
    published = [block(figures)]
    table = create_table(tmp_path, values, published=published)
    signs = {row: find(table, row, "a").sign for row in values if row != "base"}
    assert signs == {
        "worse": SEEN, "better": NOT_SEEN, "same": TOO_SMALL, "less": NONE_SEEN, "alike": UNTESTED
    }  # fmt: skip
    ours = find(table, "worse", "a").ours
    assert ours is not None
    assert ours["difference"] == pytest.approx(-0.1)
    assert ours["interval"] == pytest.approx([-0.1 - 0.02484, -0.1 + 0.02484], abs=1e-4)  # t(2) = 4.303, s = 0.01
    assert find(table, "worse", "a").published == -10.0


def test_less_of_a_perplexity_is_better_and_a_paper_may_count_the_other_way(tmp_path: Path) -> None:
    values = {"all": {"lm": [9.0, 9.1]}, "without": {"lm": [12.0, 12.3]}, "other": {"lm": [10.0, 10.2]}}
    differences = {"without": -3.0, "other": -1.0}
    table = create_table(
        tmp_path, values, selects="min", published=[block(differences, reference="all", selects="max")]
    )
    assert (find(table, "without", "lm").published, find(table, "without", "lm").sign) == (-3.0, SEEN)
    assert table.correlations() == {"lm": (pytest.approx(1.0), 3)}  # The reference has the difference 0.
    same_way = create_table(tmp_path / "2", values, selects="min", published=[block(differences, reference="all")])
    assert find(same_way, "without", "lm").sign == NOT_SEEN
    assert table.columns == ["lm"]


def test_the_mean_is_over_the_tasks_that_no_row_lacks_and_a_row_without_any_number_counts_for_none(
    tmp_path: Path,
) -> None:
    values: Values = {
        "base": {"a": [0.5, 0.6], "b": [0.7, 0.8], "c": [0.1]}, "other": {"a": [0.4, 0.5], "b": [0.9, 0.8], "c": []},
        "failed": {"a": [], "b": [], "c": []},
    }  # fmt: skip
    figures = {"a": 60.0, "b": 70.0, "c": 95.0, "mean": 75.0}
    table = create_table(tmp_path, values, published=[block({"base": figures, "other": figures | {"b": 80.0}})])
    assert table.averaged == ["a", "b"]
    assert {row: of["mean"].values for row, of in table.cells.items()} == {
        "base": pytest.approx({0: 0.6, 1: 0.7}), "other": pytest.approx({0: 0.65, 1: 0.65}), "failed": {}
    }  # fmt: skip
    assert (table.published("base", "mean"), find(table, "other", "mean").published) == (65.0, 5.0)  # Of these tasks.
    without = create_table(tmp_path / "2", values, published=[block({"base": figures, "other": 76.0})])
    assert (without.published("base", "mean"), find(without, "other", "mean").published) == (75.0, 1.0)  # As printed.


def test_the_mean_of_one_seed_has_the_interval_of_independent_tasks(tmp_path: Path) -> None:
    values = {"base": {"a": [0.5], "b": [0.6]}, "other": {"a": [0.7], "b": [0.8]}}
    table = create_table(tmp_path, values, seeds=1)
    of_tasks = [find(table, "other", task).ours for task in ("a", "b")]
    mean = find(table, "other", "mean").ours
    assert mean is not None
    assert mean["interval"] is not None
    below = [of["difference"] - of["interval"][0] for of in of_tasks if of is not None and of["interval"] is not None]
    assert mean["difference"] - mean["interval"][0] == pytest.approx((below[0] ** 2 + below[1] ** 2) ** 0.5 / 2)
    assert (mean["over"], mean["number"]) == ("examples", 200)
    for row in values:
        break_record(
            tmp_path / row / "b" / "0", task=record()["task"] | {"name": "b", "selects": "max", "examples": {}}
        )
    mean = find(replace(table, outcomes=table.outcomes), "other", "mean").ours
    assert mean is not None
    assert mean["interval"] is None  # Without the number of examples b has none.
    unknown = create_table(tmp_path / "2", values, seeds=1, selects="max", tasks={
        "a": ["task=a"], "b": {"options": ["task=b"], "metric": "f1"},
    })  # fmt: skip
    assert unknown.columns == ["a", "b"]
    assert unknown.cells["other"]["b"].errors == ["its run has no f1"]


def test_a_column_of_seconds_has_those_of_the_student_and_less_is_better(tmp_path: Path) -> None:
    outcomes, seconds = [], {"teacher": 9.0, "half": 5.0, "untimed": None}
    for row, value in seconds.items():
        rows = [{"model": "teacher", "format": "onnx-fp32", "seconds": 1.0}]
        rows += [] if value is None else [{"model": "student", "format": "onnx-fp32", "seconds": value}]
        save(tmp_path / row, dev_pass=rows)
        outcomes.append(Outcome(Place(row, "fp32", None), tmp_path / row))
    published = block({"teacher": 668.0, "half": 410.0}, selects="min")
    content = {
        "name": "toy", "title": "A toy", "rows": {row: [] for row in seconds}, "tasks": {"fp32": {"seconds": "fp32"}},
        "published": [published],
    }  # fmt: skip
    table = ExperimentTable(read_experiment(content), outcomes, [])
    assert [of["fp32"].mean for of in table.cells.values()] == [9.0, 5.0, None]
    assert table.cells["untimed"]["fp32"].errors == ["its run has no seconds"]
    effect = find(table, "half", "fp32")
    assert (effect.ours and effect.ours["difference"], effect.published, effect.sign) == (-4.0, -258.0, UNTESTED)


def test_curves_are_of_the_rows_with_a_run_of_their_own_that_was_evaluated_more_than_once(tmp_path: Path) -> None:
    values = {"base": {"a": [0.5]}, "same": {"a": [0.5]}, "other": {"a": [0.7]}, "short": {"a": [0.6]}}
    table = create_table(tmp_path, values, tasks={"a": {"step": "first", "selects": "max"}}, seeds=1, steps={
        "first": ["seed={seed}"], "last": [],
    }, selects="min")  # fmt: skip
    outcomes = list(table.outcomes)
    outcomes[1] = Outcome(outcomes[1].place, outcomes[0].directory)
    for number, steps in ((0, "1,2"), (2, "1,3"), (3, "1")):
        lines = [f"{0.1 * int(step)},{step}" for step in steps.split(",")]
        (outcomes[number].directory or tmp_path).joinpath("metrics.csv").write_text(
            "\n".join(["dev/accuracy,step", *lines])
        )
    table = ExperimentTable(table.experiment, outcomes, [])
    curves = table.curves("a")
    assert {row: [step for step, _ in curve] for row, curve in curves.items()} == {"base": [1, 2], "other": [1, 3]}
    assert table.cells["base"]["a"].task["selects"] == "max"
    names = [figure.name for figure in describe_table(table).figures[DIFFERENCES]]
    assert names == ["toy", "accuracy-over-steps"]


def test_a_run_of_several_seeds_is_read_once(tmp_path: Path) -> None:
    table = create_table(tmp_path, {"base": {"a": [0.5]}}, seeds=2)
    [outcome] = table.outcomes
    twice = ExperimentTable(table.experiment, [outcome, Outcome(Place("base", "a", 1), outcome.directory)], [])
    assert twice.cells["base"]["a"].values == {0: 0.5}
    assert twice.directories == [outcome.directory]


def test_the_table_says_what_its_numbers_are_of(tmp_path: Path) -> None:
    one, three = (
        describe_table(create_table(tmp_path / str(len(values)), {"base": {"a": values}, "other": {"a": values}}))
        for values in ([0.5], [0.5, 0.6, 0.7])
    )
    assert "where more is better, of seed 0. Differences" in one.sentences[0]
    assert "where more is better, mean ± standard deviation over 3 seeds (0, 1, 2). Differences" in three.sentences[0]


def test_the_only_task_beside_a_perplexity_has_the_published_figures_of_the_mean(tmp_path: Path) -> None:
    values = {"base": {"loss": [6.0], "a": [0.5]}, "other": {"loss": [5.0], "a": [0.9]}}
    table = create_table(tmp_path, values, published=[block({"base": 80.0, "other": 82.0})])
    for row in values:
        path = tmp_path / row / "loss" / "0" / "run.json"
        path.write_text(path.read_text().replace('"selects": "max"', '"selects": "min"'))
    assert table.averaged == ["a"]
    assert (table.published("other", "a"), table.published("other", "loss")) == (82.0, None)
    assert find(table, "other", "a").sign == SEEN


def test_a_model_that_no_seed_changes_is_compared_with_every_seed_of_another(tmp_path: Path) -> None:
    table = create_table(tmp_path, {"trained": {"a": [0.70, 0.71, 0.72]}, "as_it_is": {"a": [0.5, 0.0, 0.0]}})
    outcomes = [
        replace(of, directory=tmp_path / "as_it_is" / "a" / "0") if of.place.row == "as_it_is" else of
        for of in table.outcomes
    ]
    ours = find(replace(table, outcomes=outcomes), "as_it_is", "a").ours
    assert ours is not None
    assert (ours["difference"], ours["over"], ours["number"]) == (pytest.approx(-0.21), "seeds", 3)
    assert ours["interval"] == pytest.approx([-0.21 - 0.02484, -0.21 + 0.02484], abs=1e-4)
