"""Tests of hydra/sweeper=optuna with a job that writes a record in place of a training."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import DictConfig

from distill.core.errors import NumericalError, install_command
from distill.jobs import execution as jobs
from distill.jobs import optuna_sweeper
from distill.records.loggers import TrackerEntry
from distill.records.run import Run, create_record
from tests.jobs.conftest import Command
from tests.records.test_report import record

optuna = pytest.importorskip("optuna")

SEARCH = (
    "-m", "hydra/sweeper=optuna", "hydra.sweep.dir=search", "+teacher=embedded", "+student=distilbert",
    "objective=hinton",
)  # fmt: skip
TEMPERATURE = "objective.terms.soft.temperature"


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[DictConfig]:
    """The configurations of the runs, whose metric is best at temperature 3, and which are larger with more layers."""
    seen: list[DictConfig] = []

    def run(config: DictConfig, *, launch: str) -> Path:
        seen.append(config)
        soft, depth = config.objective.terms.soft, config.student.depth or 2
        if soft.weight == 0.75:
            raise NumericalError("the loss is nan")
        content: dict[str, Any] = create_record(job="distill", seed=0, command=[]) | record() | {"status": "finished"}
        metric = None if soft.weight == 0.25 else 1 - abs(soft.temperature - 3) / 10
        content["student"] |= {"metrics": {"accuracy": metric}}
        content["export"]["int8"] |= {"bytes": 1000 * depth, "gate": "passed"}
        directory = tmp_path / "runs" / f"{len(seen)}"
        directory.mkdir(parents=True)
        Run(directory, content).save()
        return directory

    monkeypatch.setattr(jobs, "run_job", run)
    return seen


def load(root: Path) -> Any:
    return optuna.load_study(study_name="distill", storage=f"sqlite:///{root / 'search' / 'optuna.db'}")


def test_a_search_finds_the_best_run_and_goes_on_where_it_ended(
    ran: list[DictConfig], command: Command, tmp_path: Path
) -> None:
    space = (f"{TEMPERATURE}=interval(1,8)", "student.depth=range(1,4)", "trainer.learning_rate=1e-4,2e-4")
    code, output, error = command(*SEARCH, *space, "hydra.sweeper.trials=4", "seed=5")
    assert code == 0, error
    assert len(ran) == 4
    first = load(tmp_path).trials
    assert [trial.params[TEMPERATURE] for trial in first] == [
        config.objective.terms.soft.temperature for config in ran
    ]  # fmt: skip
    assert {config.student.depth for config in ran} <= {1, 2, 3}
    assert {config.trainer.learning_rate for config in ran} == {1e-4, 2e-4}
    assert {config.seed for config in ran} == {5}
    best = max(first, key=lambda trial: trial.value)
    assert f"Best     metric {best.value:.5g}: " in output
    assert best.user_attrs["directory"] in output
    code, _, error = command(*SEARCH, *space, "hydra.sweeper.trials=7", "seed=5")
    assert code == 0, error
    study = load(tmp_path)
    assert (len(ran), len(study.trials)) == (7, 7)
    assert len({trial.params[TEMPERATURE] for trial in study.trials}) == 7  # The sampler did not begin again.
    code, _, error = command(*SEARCH, f"{TEMPERATURE}=interval(1,9)")
    assert (code, len(error.splitlines())) == (2, 1)
    assert "is the study of other objectives or another space" in error


@pytest.mark.parametrize(("selects", "value"), [("max", 0.25), ("min", -0.25)])
def test_a_metric_of_which_less_is_better_is_searched_for_its_minimum(selects: str, value: float) -> None:
    """The study maximizes the metric in both cases."""
    found = record()
    found["task"] |= {"metric": "loss", "selects": selects}
    found["student"]["metrics"] = {"loss": 0.25}
    assert optuna_sweeper.OBJECTIVES["metric"] == "maximize"
    assert optuna_sweeper.read_objective(found, "metric") == value
    assert optuna_sweeper.read_objective(found | {"summary": {"loss": {"mean": 0.25}}}, "metric") == value


def test_two_objectives_have_a_front(ran: list[DictConfig], command: Command, tmp_path: Path) -> None:
    options = ("hydra.sweeper.objectives=[metric,bytes]", "hydra.sweeper.trials=6", "hydra.sweeper.parallel=2")
    code, output, error = command(*SEARCH, f"{TEMPERATURE}=1,3", "student.depth=1,2", *options)
    assert code == 0, error
    study = load(tmp_path)
    assert len(study.trials) == 6
    assert len(ran) == len({tuple(trial.params.items()) for trial in study.trials})  # No run was repeated.
    [line] = [line for line in output.splitlines() if line.startswith("Best")]
    assert f"metric 1, bytes 1000: {TEMPERATURE}=3 student.depth=1" in line


def test_a_run_ends_when_it_is_worse_than_the_median(
    ran: list[DictConfig], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, evaluations = jobs.run_job, dict[float, int]()

    def run(config: DictConfig, *, launch: str) -> Path | None:
        temperature = config.objective.terms.soft.temperature
        pruner = instantiate(config.logger.pruner)
        logger, _ = pruner.open(TrackerEntry(tmp_path, "run", None, {}, None, metric="loss", selects="min"))
        for number in range(3):
            evaluations[temperature] = number + 1
            logger.log_metrics({"train/loss": 9.0}, step=number)
            logger.log_metrics({"dev/loss": abs(temperature - 3), "dev/accuracy": 0.5}, step=number)
        return finish(config, launch=launch)

    monkeypatch.setattr(jobs, "run_job", run)
    code, output, error = command(
        *SEARCH, f"{TEMPERATURE}=interval(1,8)", "hydra.sweeper.trials=12", "hydra.sweeper.pruning=true"
    )
    assert (code, error) == (0, "")
    trials = load(tmp_path).trials
    pruned = {trial.params[TEMPERATURE] for trial in trials if trial.state.name == "PRUNED"}
    whole = {trial.params[TEMPERATURE] for trial in trials if trial.state.name == "COMPLETE"}
    assert len(pruned | whole) == 12
    assert pruned
    assert {evaluations[temperature] for temperature in whole} == {3}
    assert {evaluations[temperature] for temperature in pruned} == {1}
    early = {trial.params[TEMPERATURE] for trial in trials[:5]}
    assert early <= whole
    assert min(abs(temperature - 3) for temperature in pruned) > min(abs(temperature - 3) for temperature in whole)
    lines = [line for line in output.splitlines() if line.startswith("Pruned")]
    assert lines[-1] == f"Pruned   {len(pruned)} of 12 trials"
    assert lines[0].endswith("worse than the median of the other trials by then")


def test_runs_that_fail_or_have_no_number_are_failed_trials(
    ran: list[DictConfig], command: Command, tmp_path: Path
) -> None:
    weights = "objective.terms.soft.weight=choice(0.25,0.5,0.75)"
    code, output, error = command(*SEARCH, weights, "hydra.sweeper.trials=8")
    states = {str(trial.params["objective.terms.soft.weight"]): trial.state.name for trial in load(tmp_path).trials}
    assert states == {"0.25": "FAIL", "0.5": "COMPLETE", "0.75": "FAIL"}
    assert "of 8 trials of the search failed or have no number to compare" in output
    assert "Best     metric 0.9: objective.terms.soft.weight=0.5" in output
    assert (code, set(error.splitlines())) == (3, {"error: the loss is nan"})


def test_a_run_of_a_killed_search_is_tried_again(
    ran: list[DictConfig], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = jobs.run_job

    def kill(config: DictConfig, *, launch: str) -> Path | None:
        monkeypatch.setattr(jobs, "run_job", finished)
        raise SystemExit(130)

    monkeypatch.setattr(jobs, "run_job", kill)
    options = (*SEARCH, f"{TEMPERATURE}=interval(1,8)", "hydra.sweeper.trials=2")
    with pytest.raises(SystemExit):
        command(*options)
    [lost] = load(tmp_path).trials
    code, output, error = command(*options)
    assert code == 0, error
    assert "failed" not in output
    assert len(ran) == 2
    assert ran[0].objective.terms.soft.temperature == lost.params[TEMPERATURE]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "hydra/sweeper=optuna has no option to search over: give one as a=1,2,4"),
        (["seed=1,2", "hydra.sweeper.trials=0"], "got hydra.sweeper.trials=0, expected a whole number of at least 1"),
        (
            ["seed=1,2", "hydra.sweeper.objectives=[metric,speed]"],
            "got hydra.sweeper.objectives=[metric, speed], expected one or two of metric, p50_ms, bytes",
        ),
        (
            ["seed=1,2", "hydra.sweeper.objectives=[metric,bytes]", "hydra.sweeper.pruning=true"],
            "got hydra.sweeper.pruning=true, expected false with other objectives than [metric]",
        ),
        (["trainer.learning_rate=tag(log,interval(0,1))"], "trainer.learning_rate=tag(log,interval(0,1)) cannot be"),
    ],
)  # fmt: skip
def test_a_search_that_cannot_be_is_one_line(options: list[str], expected: str, command: Command) -> None:
    code, _, error = command(*SEARCH, *options)
    assert (code, len(error.splitlines())) == (2, 1), error
    assert expected in error


def test_a_missing_optuna_is_answered_with_its_installation(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    find: Callable[..., Any] = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "optuna" else find(name, *rest)
    )
    code, _, error = command(*SEARCH, "seed=1,2")
    assert (code, len(error.splitlines())) == (2, 1), error
    assert f"which is not installed: {install_command('optuna')}" in error
