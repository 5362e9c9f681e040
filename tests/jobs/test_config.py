"""Tests that every YAML composes and instantiates."""

import functools
import pickle
import re
from collections.abc import Sequence
from pathlib import Path

import hydra
import pytest
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from distill.__main__ import config_directory, expand_tasks
from distill.jobs import execution
from distill.jobs.command_line import list_bases, read_yaml
from distill.losses import Objective
from distill.losses.term import EncoderSize

CONF = config_directory()
WITHOUT_TARGET = ("augment", "adapt", "job", "benchmark", "student", "logger", "experiment", "ablation", "variant")
# The teachers that are not trained, with the options that have no default.
LABELLERS = {
    "zero_shot": {"path": ".", "labels": ["sport", "politics"]},
    "file": {"path": "probabilities.csv", "encoder": "."},
}
FILES = sorted(path.relative_to(CONF) for path in CONF.glob("*/*.yaml"))


def compose_config(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", [expanded for override in overrides for expanded in expand_tasks(override)])


@functools.cache
def compose_choices(*choices: str) -> DictConfig:
    """Returns the configuration of these choices, which all tests of a process share and do not change."""
    return compose_config(*choices)


def compose_run(overrides: Sequence[str]) -> DictConfig:
    """Returns the configuration of a run; runs that choose the same YAML files compose them once."""
    groups = "|".join(path.name for path in CONF.iterdir() if path.is_dir())
    choices = [option for option in overrides if re.match(rf"[+~]?(hydra\W|({groups})(@[\w.]+)?=)", option)]
    search = [f"hydra.searchpath=['file://{Path.cwd()}']"] if "=my_" in " ".join(choices) else []
    values = [option for option in overrides if option not in choices]
    config: DictConfig = pickle.loads(pickle.dumps(compose_choices(*choices, *search)))
    ConfigLoaderImpl._apply_overrides_to_config(OverridesParser.create().parse_overrides(values), config)
    return config


@pytest.mark.parametrize("student", ["cnn", "static"])
def test_a_student_without_layers_selects_an_objective_on_logits(student: str) -> None:
    for given, name in (((), "hinton"), (("objective=logit_mse",), "logit_mse"), (("+experiment=recipes",), "hinton")):
        assert compose_config("+teacher=minilm", f"+student={student}", *given).objective.name == name
    labels = compose_config("+teacher=minilm", f"+student={student}", "+experiment=distilbert_finetune")
    assert labels.objective.name == "supervised"


def test_every_yaml_opens_with_its_command_and_composes() -> None:
    wrong = []
    for file in FILES:
        lines = (CONF / file).read_text(encoding="utf-8").splitlines()
        first = lines[1] if lines[0] == "# @package _global_" else lines[0]
        if not (first.startswith("# python -m distill ") and compose_file(file)):
            wrong.append(file)
    assert wrong == []


def test_every_plugin_of_hydra_opens_with_its_command_and_composes() -> None:
    for file in CONF.glob("hydra/*/*.yaml"):
        assert file.read_text(encoding="utf-8").startswith("# python -m distill -m ")
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose("config", [f"hydra/{file.parent.name}={file.stem}"], return_hydra_config=True).hydra
        assert config[file.parent.name] == OmegaConf.load(file)


def compose_file(file: Path) -> DictConfig:
    """Returns the configuration that a YAML contributes."""
    group, name = file.parts[0], file.stem
    if group == "features":
        return compose_choices("+teacher=embedded", f"features@teacher={name}").teacher.bilstm
    if group == "cache":
        return compose_choices("+teacher=embedded", f"cache@teacher.cache={name}").teacher.cache
    if group in ("experiment", "ablation", "variant"):  # They change any group, so a teacher and a student are needed.
        return compose_choices(f"+{group}={name}", "+teacher=embedded", "+student=distilbert")
    prefix = "+" if group in ("teacher", "student") else ""
    return compose_choices(f"{prefix}{group}={name}")[group]


def test_every_target_takes_exactly_the_keys_of_its_yaml() -> None:
    for file in FILES:
        if file.parts[0] not in WITHOUT_TARGET:
            instantiate_file(file)


def instantiate_file(file: Path) -> None:
    values = OmegaConf.to_container(compose_file(file), resolve=True)
    assert isinstance(values, dict)
    if file.parts[0] == "teacher":
        assert values.pop("accept_weak") is False
        assert values.pop("max_length", None) is None
        hydra.utils.instantiate(values.pop("cache"))
        if file.stem in LABELLERS:
            values |= LABELLERS[file.stem]
        else:
            assert values.pop("features") is None
            assert values.pop("start") is None
            for key in ("finetune", "bilstm", "contrastive"):
                hydra.utils.instantiate(values.pop(key))
        if file.stem in ("pretrained", "encoder_decoder"):
            values["path"] = "."
        if "beams" in values:
            assert (values.pop("beams"), values.pop("keep")) == (None, 1)
            assert (values.pop("sampling_temperature"), values.pop("sampling_seed")) == (None, 0)
        elif file.stem == "ensemble":
            values["paths"] = [".", "."]
        elif file.stem == "by_task":
            values["paths"] = {"sst2": ".", "mrpc": "."}
    elif file.stem in ("multi", "text_labels"):
        several = compose_config(f"task={file.stem}", "task.tasks=[sst2,mrpc]", "task.tasks.mrpc.max_length=64").task
        assert (list(several.tasks), several.tasks.mrpc.max_length) == (["sst2", "mrpc"], 64)
        values["tasks"] = OmegaConf.to_container(several.tasks)
    built = hydra.utils.instantiate(values, _convert_="all")
    if isinstance(built, Objective):
        assert set(built.names) == {name for name, term in values["terms"].items() if term["weight"] > 0}


def test_named_teachers_of_the_hub_have_all_options_of_pretrained() -> None:
    pretrained = compose_choices("+teacher=pretrained").teacher
    named = [file.stem for file in FILES if file.parts[0] == "teacher" and compose_file(file).get("_target_") ==
             pretrained._target_ and file.stem != "pretrained"]  # fmt: skip
    assert {"bert_base", "roberta_base", "minilm"} <= {*named}
    for name in named:
        own = compose_run([f"+teacher={name}", "teacher.positions=2048"]).teacher
        assert {*own} == {*pretrained}
        assert {key for key in own if own[key] != pretrained[key]} == {"name", "id", "positions"}


def test_a_data_set_has_every_option_of_its_kind() -> None:
    data_sets = [path for path in (CONF / "task").glob("*.yaml") if "_target_" not in read_yaml(path)]
    assert len(data_sets) > 30
    for path in data_sets:
        [kind] = list_bases(path)
        data_set = compose_choices(f"task={path.stem}").task
        assert {*data_set} >= {*compose_choices(f"task={kind.stem}").task}
        assert data_set.name == path.stem


def test_runs_with_different_seeds_share_one_teacher() -> None:
    one, two = compose_config("+teacher=minilm", "seed=1"), compose_config("+teacher=minilm", "seed=2")
    assert (one.trainer.seed, two.trainer.seed) == (1, 2)
    assert one.teacher.finetune == two.teacher.finetune


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (("+teacher=bert_base", "teacher.path=models/my encoder/"), "my-encoder"),
        (("+teacher=bert_base", "teacher.path=runs/first/student"), "first-student"),
        (("+teacher=bert_base", "teacher.path=models/bert-base-uncased"), "bert_base"),
        (("+teacher=bert_base", "teacher.path=hub/models--google-bert--bert-base-uncased/snapshots/1f3a"), "bert_base"),
        (("+teacher=bert_base",), "bert_base"),
        (("+teacher=pretrained", "teacher.path=models/other"), "pretrained"),
        ((), None),
    ],
)
def test_a_teacher_is_not_named_after_weights_that_it_does_not_have(options: tuple[str, ...], name: str | None) -> None:
    config = compose_config(*options)
    execution.name_teacher(config)
    assert OmegaConf.select(config, "teacher.name") == name


def test_terms_of_several_objectives_make_one_together() -> None:
    names = ("tinybert_layers", "minilmv2", "pkd", "dkd")
    terms = {
        name: term
        for objective in names
        for name, term in compose_config(f"objective={objective}").objective.terms.items()
    }
    terms["attention"] = {**terms["attention"], "layers": "uniform"}  # Not a reference to another term.
    objective = hydra.utils.instantiate({"_target_": "distill.losses.Objective", "terms": terms}, _convert_="all")
    assert set(objective.names) == {"hidden", "attention", "soft", "hard", "minilmv2", "pkd", "dkd"}
    assert objective.needs == {"hidden_states", "attention_vectors"}
    size = EncoderSize(96, 4, 4, 96)
    objective.connect(EncoderSize(48, 2, 4, 48), size)
    assert objective.teacher_layers(2, 4) == (0, 2, 4)
    assert objective.teacher_needs >= {"attention_vectors.2", "attention_vectors.4"}


# Of each experiment: the term that reads the data's own targets, and the rows that the other one does not have.
ABLATIONS = {
    "distilbert_ablation": ("mlm", {"no_mlm": (5.0, 0.0, 1.0, "teacher"), "mlm_alone": (0.0, 2.0, 0.0, "teacher")}),
    "task_ablation": ("hard", {"no_hard": (5.0, 0.0, 1.0, "teacher")}),
}
COMMON_ROWS = {
    "none": (5.0, 2.0, 1.0, "teacher"), "no_soft": (0.0, 2.0, 1.0, "teacher"), "no_cosine": (5.0, 2.0, 0.0, "teacher"),
    "random_weights": (5.0, 2.0, 1.0, "random"),
}  # fmt: skip


@pytest.mark.parametrize("experiment", ABLATIONS)
def test_each_ablation_changes_only_its_terms_or_its_init(experiment: str) -> None:
    recipe = compose_config(f"+experiment={experiment}", "+teacher=embedded", "+student=distilbert")
    label_term, own = ABLATIONS[experiment]
    expected = COMMON_ROWS | own
    others = {name for _, rows in ABLATIONS.values() for name in rows}
    assert {path.stem for path in (CONF / "ablation").glob("*.yaml")} == COMMON_ROWS.keys() | others
    for name, values in expected.items():
        # A sweep puts the ablation first.
        row = compose_config(
            f"+ablation={name}", f"+experiment={experiment}", "+teacher=embedded", "+student=distilbert"
        )
        terms = row.objective.terms
        assert (terms.soft.weight, terms[label_term].weight, terms.cosine.weight, row.student.init) == values
        assert row.trainer == recipe.trainer
        assert recipe.experiment.rows[name] == [f"+ablation={name}"]
    assert set(recipe.experiment.rows) == set(expected)
