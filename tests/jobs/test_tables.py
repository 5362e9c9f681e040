"""Tests of experiments: tables of rows, tasks and seeds, with a job that writes a record in place of a training."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig

from distill.core.errors import UserError
from distill.jobs import execution as jobs
from distill.jobs.command_line import Job
from distill.jobs.sweepers import TableSweeper
from distill.records.experiment import read_experiment
from distill.records.run import Run
from tests.jobs.conftest import Command
from tests.records.test_report import record

EXPERIMENT: dict[str, Any] = {
    "name": "toy", "title": "A toy",
    "steps": {"pretrain": ["job=pretrain", "+teacher=new", "task=mlm"], "finetune": ["job=finetune", "seed={seed}"]},
    "tasks": {"sst2": ["task=sst2"], "mrpc": {"options": ["task=mrpc"], "metric": "f1"}},
    "rows": {
        "full": {"finetune": ["+teacher=pretrained", "teacher.path={pretrain}"]},
        "half": {"pretrain": ["teacher.layers=2"], "finetune": ["+teacher=pretrained", "teacher.path={pretrain}"]},
        "none": {"finetune": ["+teacher=new"]},
    },
    "seeds": 2,
    "published": [
        {"source": "A paper, arXiv 0000.00000, table 1", "metric": "accuracy in percent",
         "values": {"full": {"sst2": 95.0, "mrpc": 90.0}, "half": {"sst2": 93.0, "mrpc": 88.0},
                    "none": {"sst2": 94.0, "mrpc": 89.0}}},
    ],
    "differs": "All of it.",
}  # fmt: skip


class StandIn:
    """A job of any name that gives a run the metrics of its options, and counts the runs."""

    def __init__(self) -> None:
        self.runs: list[DictConfig] = []
        self.interrupt_after: int | None = None
        self.fails: Callable[[DictConfig], bool] = lambda config: False

    def __call__(self, config: DictConfig, run: Run) -> None:
        if self.interrupt_after == len(self.runs):
            self.interrupt_after = None
            raise KeyboardInterrupt
        self.runs.append(config)
        if self.fails(config):
            raise UserError(f"the data of {config.task.name} cannot be read")
        model = run.directory / "teacher" / "model"
        model.mkdir(parents=True)
        metrics = {"accuracy": self.measure(config), "f1": self.measure(config) - 0.1, "perplexity": 9.5}
        metric = "perplexity" if config.job.name == "pretrain" else "accuracy"
        task = record()["task"] | {"name": config.task.name, "metric": metric}
        task["selects"] = "min" if metric == "perplexity" else "max"
        (model / "value").write_text(str(metrics["accuracy"]))
        run.update(task=task, teacher=record()["teacher"] | {"metrics": metrics})

    @staticmethod
    def measure(config: DictConfig) -> float:
        """Returns 0.6 for a new model, and for another one that of its start; more with a larger seed and for MRPC."""
        if config.teacher.name == "pretrained":
            start = float((Path(config.teacher.path) / "value").read_text())
        else:
            start = {4: 0.9, 2: 0.8}[config.teacher.layers] if config.job.name == "pretrain" else 0.6
        return start + 0.01 * config.seed + (0.02 + 0.001 * config.seed if config.task.name == "mrpc" else 0)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    job = StandIn()
    load = Job.load
    monkeypatch.setattr(Job, "load", lambda self: job if self.creates_run else load(self))
    monkeypatch.setattr(jobs, "refuse_ignored", lambda *_, **__: None)
    return job


@pytest.fixture
def make(command: Command, tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """Runs the toy experiment with other content, and further options."""

    def run(*options: str, **changes: Any) -> tuple[int, str, str]:
        directory = tmp_path / "conf" / "experiment"
        directory.mkdir(parents=True, exist_ok=True)
        hydra = {
            "mode": "MULTIRUN", "sweep": {"dir": "table"},
            "sweeper": {"_target_": "hydra_plugins.distill.TableSweeper"},
        }  # fmt: skip
        content = {"experiment": EXPERIMENT | changes, "hydra": hydra}
        text = "# @package _global_\n" + yaml.safe_dump(content, sort_keys=False)
        (directory / "toy.yaml").write_text(text)
        return command("-m", "--config-dir", str(tmp_path / "conf"), "+experiment=toy", *options)

    return run


def read_csv(root: Path, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((root / "table" / "report-paper" / f"{name}.csv").read_text().splitlines()))


def test_a_table_has_our_numbers_beside_the_papers(
    stand_in: StandIn, make: Callable[..., tuple[int, str, str]], command: Command, tmp_path: Path
) -> None:
    code, output, error = make()
    assert (code, error) == (0, "")
    # Two models are pre-trained, once each, and three rows are fine-tuned on two tasks with two seeds.
    assert [config.job.name for config in stand_in.runs] == ["pretrain"] * 2 + ["finetune"] * 12
    report = (tmp_path / "table" / "report.md").read_text()
    for line in (
        "| row | sst2: accuracy | sst2, paper | mrpc: f1 | mrpc, paper | mean of 2 | median | mean, paper |",
        "| full | 90.50 ± 0.71 | 95 | 82.55 ± 0.78 | 90 | 86.53 ± 0.74 | 86.53 | 92.5 | 100.0% |",
        "| half | 80.50 ± 0.71 | 93 |",
        "| half | mean | -10.00 | - | -2.00 | no interval |",  # Both seeds have the same difference.
        "Spearman's correlation of our order with the published one, mean: +0.50 of 3 rows.",
        "Published: A paper, arXiv 0000.00000, table 1 (accuracy in percent)",
        "What differs: All of it.",
    ):
        assert line in report, report
    assert "Spearman" in output
    values = {(row["row"], row["column"]): row for row in read_csv(tmp_path, "toy-values")}
    assert values["none", "mrpc"]["values"] == "0.52 0.531"
    assert float(values["none", "mean"]["paper"]) == 91.5
    differences = read_csv(tmp_path, "toy-differences")
    assert [row["column"] for row in differences] == ["sst2", "sst2", "mrpc", "mrpc", "mean", "mean"]
    for file in ("toy.svg", "toy.pdf", "toy-values.tex", "toy-differences.tex"):
        assert (tmp_path / "table" / "report-paper" / file).is_file()
    # A report of the directory has the table again.
    page = (tmp_path / "table" / "report.md").read_text()
    (tmp_path / "table" / "report.md").unlink()
    code, output, _ = command("job=report", "runs=table")
    assert code == 0
    assert "A toy" in output
    assert (tmp_path / "table" / "report.md").read_text() == page
    (tmp_path / "table" / "table.json").write_text("{}")
    code, _, error = command("job=report", "runs=table")
    assert (code, len(error.strip().splitlines())) == (2, 1)
    assert "table.json is damaged ('cells'): run the experiment again" in error


SMALL: dict[str, Any] = {
    "rows": {name: EXPERIMENT["rows"][name] for name in ("full", "none")}, "tasks": {"sst2": ["task=sst2"]},
    "published": [], "seeds": 1,
}  # fmt: skip


def test_a_table_that_was_interrupted_is_the_same_when_it_is_begun_again(
    stand_in: StandIn, make: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    numbers = []
    for after in (None, 1):
        stand_in.runs.clear()
        stand_in.interrupt_after = after
        options = (f"output_dir=runs{after}",)
        if after is not None:
            with pytest.raises(SystemExit) as ended:
                make(*options, **SMALL)
            assert ended.value.code == 130
        code, _, error = make(*options, **SMALL)
        assert (code, error.strip(), len(stand_in.runs)) == (0, "", 3)
        numbers.append([(tmp_path / "table" / "report-paper" / f"toy-{name}.csv").read_text() for name in
                        ("values", "differences")])  # fmt: skip
    assert all(each == numbers[0] for each in numbers)


def test_the_runs_of_all_batches_are_numbered_on() -> None:
    first: list[int] = []

    def launch(overrides: list[list[str]], initial_job_idx: int) -> list[JobReturn]:
        first.append(initial_job_idx)
        return [JobReturn(status=JobStatus.COMPLETED) for _ in overrides]

    sweeper = TableSweeper(max_batch_size=2)
    sweeper.launcher, sweeper._job = Mock(launch=launch), Mock()
    sweeper._results, sweeper._number = {}, 0
    sweeper._launch([(f"seed={seed}",) for seed in range(5)])
    assert first == [0, 2, 4]


def test_rows_of_another_table_are_not_run_again(
    stand_in: StandIn, make: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    make(**SMALL)
    stand_in.runs.clear()
    rows = {"again": EXPERIMENT["rows"]["full"], "other": {"finetune": ["+teacher=new", "teacher.layers=3"]}}
    code, _, error = make(**SMALL | {"name": "second", "rows": rows})
    assert (code, error) == (0, "")
    assert [config.teacher.layers for config in stand_in.runs] == [3]
    assert {row["row"]: row["values"] for row in read_csv(tmp_path, "second-values")} == {
        "again": "0.9", "other": "0.6"
    }  # fmt: skip


def test_a_cell_without_data_or_with_a_failed_run_says_so_and_the_others_are_run(
    stand_in: StandIn, make: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    stand_in.fails = lambda config: config.task.name == "cola"
    tasks = {**EXPERIMENT["tasks"], "cola": ["task=cola"], "qqp": ["task=qqp", "task.data_dir=nowhere"]}
    code, output, error = make(tasks=tasks, seeds=1)
    assert code == 2
    assert [line for line in error.splitlines() if "nowhere" in line] == [
        "error: task.data_dir=nowhere does not exist (task qqp of experiment toy, whose cells say that it is missing)"
    ]
    assert error.count("error: the data of cola cannot be read") == len(error.splitlines()) - 1 == 3
    report = (tmp_path / "table" / "report.md").read_text()
    assert "| full | 90.00 | 95 | 82.00 | 90 | missing | missing | 86.00 | 92.5 | 100.0% |" in report
    assert "The mean is over sst2, mrpc, without cola, qqp." in report
    assert [line for line in report.splitlines() if "is missing from" in line] == [
        "- cola is missing from every row: the data of cola cannot be read.",
        "- qqp is missing from every row: task.data_dir=nowhere does not exist.",
    ]
    assert "The mean is over sst2, mrpc, without cola, qqp." in output


def test_what_is_cut_is_said_and_left_out(
    stand_in: StandIn, make: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    cut = {
        "rows": ["none"], "tasks": ["sst2"], "seeds": 1, "steps": {"finetune": ["teacher.finetune.max_steps=7"]},
        "row_steps": {"none": {"finetune": ["teacher.finetune.max_steps=5"]}},
    }  # fmt: skip
    code, output, error = make(cut=cut)
    assert (code, error) == (0, "")
    assert [config.teacher.finetune.max_steps for config in stand_in.runs if config.job.name == "finetune"] == [7, 5]
    said = (
        "Cut here: rows left out: half; tasks left out: mrpc; 1 seed; finetune: teacher.finetune.max_steps=7; none, "
        "finetune: teacher.finetune.max_steps=5. The same command with experiment.cut=null cuts nothing."
    )
    assert said in " ".join(output.split())
    assert said in (tmp_path / "table" / "report.md").read_text()
    code, output, error = make("experiment.cut=null", "dry_run=true", cut=cut)
    assert "Cut here" not in output


def test_a_task_may_have_some_of_the_rows(
    stand_in: StandIn, make: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    tasks = EXPERIMENT["tasks"]
    some = {**tasks["mrpc"], "rows": ["full", "none"]}
    code, _, error = make(tasks={**tasks, "mrpc": some})
    assert (code, error) == (0, "")
    assert [config.task.name for config in stand_in.runs].count("mrpc") == 4
    values = {(row["row"], row["column"]): row for row in read_csv(tmp_path, "toy-values")}
    assert (values["half", "mrpc"]["values"], values["half", "mrpc"]["missing"]) == ("", "")
    assert ("half", "mean") not in values


PUBLISHED = EXPERIMENT["published"][0]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"published": [PUBLISHED | {"values": {"twice": {"sst2": 1.0}}}]},
            "experiment toy has published figures of a row twice that is not there, expected one of full, half, none",
        ),
        (
            {"published": [{name: of for name, of in PUBLISHED.items() if name != "source"}]},
            "experiment toy has published figures without a source (full, half, none): add source",
        ),
        ({"published": [PUBLISHED | {"source": " "}]}, "experiment toy has published figures without a source"),
        (
            {"published": [PUBLISHED, PUBLISHED]},
            "experiment toy has two published figures of row full and task sst2: leave one out",
        ),
        (
            {"published": [PUBLISHED | {"values": {"full": {"sst": 1.0}}}]},
            "published figures of a task sst that is not there (did you mean sst2?), expected one of sst2, mrpc, mean",
        ),
        (
            {"published": [PUBLISHED | {"reference": "x"}]},
            "experiment toy has differences from a row x that is not there",
        ),
        ({"reference": "best"}, "experiment toy has as its reference a row best that is not there"),
        ({"rows": {"full": {"train": []}}}, "row full of experiment toy has options of a step train that is not there"),
        ({"tasks": {"sst2": {"step": "train"}}}, "task sst2 of experiment toy is of a step train that is not there"),
        ({"tasks": {"sst2": {"rows": ["twice"]}}}, "task sst2 of experiment toy has a row twice that is not there"),
        ({"cut": {"rows": ["twice"]}}, "the cut of experiment toy keeps one of its rows, twice that is not there"),
        ({"cut": {"steps": {"train": []}}}, "the cut of experiment toy has options of a step train that is not there"),
        (
            {"cut": {"row_steps": {"twice": {}}}},
            "the cut of experiment toy has options of a row twice that is not there",
        ),
        ({"rows": {}, "published": []}, "experiment toy has no rows: add experiment.rows"),
        ({"seeds": 0}, "got experiment.seeds=0, expected a whole number of at least 1"),
        ({"titel": "x"}, "got experiment.titel=x, expected one of the options name, title"),
        (
            {"steps": {"pretrain": [], "finetune": []}},
            "experiment toy has 2 seeds, and no option of its steps and rows has {seed}",
        ),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[:40],
)  # fmt: skip
def test_an_experiment_that_cannot_be_is_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError) as raised:
        read_experiment(EXPERIMENT | changes)
    assert expected in str(raised.value)


def test_a_table_that_cannot_be_is_refused_in_one_line_before_any_run(
    stand_in: StandIn, make: Callable[..., tuple[int, str, str]]
) -> None:
    for changes, expected in (
        ({"data": "???"}, "experiment toy has no data: add experiment.data=DIR"),
        ({"tasks": {"sst2": ["task=sst3"]}, "published": []}, "there is no task sst3 (did you mean sst2?)"),
        ({"tasks": {"sst2": ["task.max_lenth=3"]}, "published": []}, "there is no option task.max_lenth (did you mean"),
        ({"reference": "best"}, "experiment toy has as its reference a row best that is not there"),
    ):
        code, _, error = make(**changes)
        assert (code, len(error.strip().splitlines())) == (2, 1), error
        assert expected in error
    assert not stand_in.runs


def test_two_rows_of_one_name_are_refused(stand_in: StandIn, command: Command, tmp_path: Path) -> None:
    directory = tmp_path / "conf" / "experiment"
    directory.mkdir(parents=True)
    (directory / "toy.yaml").write_text(
        "# @package _global_\nexperiment:\n  name: toy\n  rows:\n    full: [seed=1]\n    full: [seed=2]\n"
    )
    code, _, error = command("-m", "--config-dir", str(tmp_path / "conf"), "+experiment=toy")
    assert (code, len(error.strip().splitlines())) == (2, 1), error
    assert "duplicate key full" in error
    assert "toy.yaml" in error


def test_swept_options_of_the_command_are_rows_tasks_and_seeds(
    stand_in: StandIn, make: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    rows = {str(layers): [f"teacher.layers={layers}"] for layers in (4, 2)}
    changes = {
        "rows": rows, "seeds": None, "steps": {"run": ["job=pretrain", "+teacher=new"]}, "tasks": None,
        "published": [{"source": "A", "metric": "accuracy", "values": {"4": {"mlm": 3.0, "other": 4.0}, "2": 1.0}}],
    }  # fmt: skip
    code, _, error = make("task=mlm", **changes)
    assert (code, error) == (0, "")
    found = {row["row"]: row for row in read_csv(tmp_path, "toy-values")}
    assert [(row, of["column"], of["metric"], of["paper"]) for row, of in found.items()] == [
        ("4", "mlm", "perplexity", "3.0"), ("2", "mlm", "perplexity", "1.0")
    ]  # fmt: skip
    code, _, error = make("task=mlm,clm", "seed=3,4", "trainer.max_steps=7", **changes)
    assert (code, error) == (0, "")
    found = {(row["row"], row["column"]): row for row in read_csv(tmp_path, "toy-values")}
    assert found["4", "clm"]["seeds"] == "3 4"
    assert {config.trainer.max_steps for config in stand_in.runs[2:]} == {7}
    code, _, error = make("task=mlm", "trainer.max_steps=1,2", **changes)
    assert (code, len(error.strip().splitlines())) == (2, 1)
    assert "trainer.max_steps=1,2 is no option of the rows of experiment toy: give it one value" in error


def test_options_of_the_command_that_have_no_place_in_a_table_are_refused(
    stand_in: StandIn, make: Callable[..., tuple[int, str, str]]
) -> None:
    for option, expected in (
        ("task=cola", "task=cola: experiment toy has tasks of its own, and ++experiment.cut.tasks=[cola] chooses from"),
        ("seed=1,x", "got experiment.seeds=[1, x], expected a whole number of at least 1, a list of whole numbers"),
    ):
        code, _, error = make(option)
        assert (code, len(error.strip().splitlines())) == (2, 1)
        assert expected in error
    assert not stand_in.runs
    assert make("seed=7", tasks={"sst2": ["task=sst2"]}, published=[])[0] == 0
    assert {config.seed for config in stand_in.runs if config.job.name == "finetune"} == {7}
