"""Tests of the sweeps in conf/experiment: every value composes, and says what its comment says."""

import functools
from itertools import product
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from distill.__main__ import register_resolvers
from distill.jobs.execution import instantiate, refuse_ignored
from distill.records.experiment import Experiment, fill_models, read_experiment
from tests.jobs.test_config import CONF, compose_config
from tests.jobs.test_config import compose_run as compose_cached

SWEEPS = ("export_precision", "layer_choice", "temperature")


@pytest.fixture(autouse=True)
def resolvers() -> None:
    register_resolvers()


@functools.cache
def compose_whole(experiment: str) -> DictConfig:
    """Returns the configuration of an experiment with that of Hydra."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", [f"+experiment={experiment}"], return_hydra_config=True)


def values_of(experiment: str) -> dict[str, list[str]]:
    """Returns the values of each option of a sweep."""
    config = compose_whole(experiment)
    params = [f"{name}={value}" for name, value in config.hydra.sweeper.params.items()]
    assert config.hydra.mode.name == "MULTIRUN"
    return {
        each.get_key_element(): list(each.sweep_string_iterator())
        for each in OverridesParser.create().parse_overrides(params)
    }


def compose_run(experiment: str, *overrides: str) -> DictConfig:
    student = "bilstm" if experiment == "bilstm" else "distilbert"
    return compose_config(*overrides, f"+experiment={experiment}", "+teacher=embedded", f"+student={student}")


@pytest.mark.parametrize("experiment", SWEEPS)
def test_every_value_of_a_sweep_composes_and_is_valid(experiment: str) -> None:
    values = values_of(experiment)
    longest = max(map(len, values.values()))
    assert longest > 1
    for number in range(longest):  # Every value once.
        overrides = [f"{name}={of[number % len(of)]}" for name, of in values.items()]
        config = compose_run(experiment, *overrides)
        for name in ("objective", "export", "trainer", "task"):
            instantiate(config[name])


def test_alpha_is_the_share_of_the_labels() -> None:
    weights = {}
    values = values_of("temperature")
    assert len(list(product(*values.values()))) == 12
    for alpha in values["alpha"]:
        terms = instantiate(compose_run("temperature", f"alpha={alpha}").objective).record()["terms"]
        weights[alpha] = (terms["hard"]["weight"], terms["soft"]["weight"])
    assert weights == {"0.1": (0.1, 0.9), "0.5": (0.5, 0.5), "0.9": (0.9, 0.1)}


def test_the_rows_of_the_bilstm_differ_in_objective_and_augmentation() -> None:
    experiment = compose_run("bilstm").experiment
    rows = {name: compose_run("bilstm", *options, "copies=3") for name, options in experiment.rows.items()}
    assert {path.stem for path in (CONF / "variant").glob("*.yaml")} == set(rows)
    assert {name: (row.objective.name, "_target_" in row.augment) for name, row in rows.items()} == {
        "labels_alone": ("supervised", False), "logits": ("logit_mse", False), "logits_augmented": ("logit_mse", True)
    }  # fmt: skip
    assert rows["logits_augmented"].augment.copies == 3
    assert {row.trainer.batch_size for row in rows.values()} == {64}  # That of +student=bilstm.


def test_the_comment_of_an_experiment_says_whether_it_is_a_recipe_a_sweep_or_a_table() -> None:
    for path in (CONF / "experiment").glob("*.yaml"):
        config = compose_whole(path.stem)
        kind = "Table" if "experiment" in config else "Sweep" if config.hydra.mode else "Recipe"
        assert f"\n# {kind}: " in path.read_text(encoding="utf-8"), path.stem


def read_table(name: str) -> tuple[Experiment, Experiment] | None:
    """Returns an experiment whose table has tasks of its own, without what is cut and with it."""
    experiment: Any = compose_whole(name).get("experiment")
    if experiment is None or "tasks" not in experiment:
        return None
    content: Any = OmegaConf.to_container(experiment, resolve=False)
    given = OmegaConf.create({"experiment": content | {"data": "data"}})
    content = OmegaConf.to_container(given.experiment, resolve=True)
    return read_experiment({**content, "cut": None}), read_experiment(content)


def test_the_runs_of_every_table_compose() -> None:
    tables = {path.stem: table for path in (CONF / "experiment").glob("*.yaml") if (table := read_table(path.stem))}
    assert len(tables) > 15
    composed = set[str]()
    for name, (whole, cut) in tables.items():
        assert whole.describe_cut() is None
        assert cut.describe_cut()
        for experiment in (cut, whole):
            for place in experiment.places():
                for step in experiment.needed(place):
                    parts = {f"{name} {step} {place.row}", f"{step} {place.column}"}
                    if not parts <= composed:  # Each row of each step once, and each task of any table.
                        composed |= parts
                        models = {of: of for of in experiment.steps}
                        check_run(name, fill_models(experiment.options(step, place), models))


def check_run(name: str, options: list[str]) -> None:
    """Composes the configuration of a run, and creates what is checked when it is created."""
    teacher = [] if any("+teacher=" in option for option in options) else ["+teacher=minilm"]
    config = compose_cached([f"+experiment={name}", *teacher, *options])
    is_text = getattr(get_class(config.task._target_), "raw_text", False)
    refuse_ignored(config, str(config.job.name), options, on_text=is_text)
    for group in ("task", "trainer", "objective"):
        instantiate(config[group])


def test_tables_share_the_runs_of_rows_that_they_have_in_common() -> None:
    runs = []
    for name in ("roberta_packing", "bert_table5"):
        table = read_table(name)
        assert table is not None
        runs.append({tuple(table[1].options("pretrain", place)) for place in table[1].places()})
    assert any("task.pair=nsp" in options for options in runs[0] & runs[1])
