"""Every YAML composes and instantiates, every command in the documents composes."""

import re
import shlex
from pathlib import Path

import hydra
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from distill.__main__ import config_directory
from distill.losses import Objective

CONF = config_directory()
ROOT = CONF.parent
WITHOUT_TARGET = ("job", "benchmark", "student", "logger", "experiment", "ablation")
FILES = sorted(path.relative_to(CONF) for path in CONF.glob("*/*.yaml"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
DOCUMENTS = [*PAGES, CONF / "config.yaml", *(CONF / file for file in FILES)]


def composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", list(overrides))


@pytest.mark.parametrize("file", FILES, ids=str)
def test_every_yaml_opens_with_its_command_and_composes(file: Path) -> None:
    lines = (CONF / file).read_text(encoding="utf-8").splitlines()
    first = lines[1] if lines[0] == "# @package _global_" else lines[0]
    assert first.startswith("# python -m distill ")
    assert part(file)


def part(file: Path) -> DictConfig:
    """What a YAML becomes in the whole configuration."""
    group, name = file.parts[0], file.stem
    if group == "cache":
        return composed("+teacher=embedded", f"cache@teacher.cache={name}").teacher.cache
    if group in ("experiment", "ablation"):  # Of the whole configuration, whatever teacher and student there are.
        return composed(f"+{group}={name}", "+teacher=embedded", "+student=distilbert")
    prefix = "+" if group in ("teacher", "student") else ""
    return composed(f"{prefix}{group}={name}")[group]


@pytest.mark.parametrize("file", [f for f in FILES if f.parts[0] not in WITHOUT_TARGET], ids=str)
def test_every_target_takes_exactly_the_keys_of_its_yaml(file: Path) -> None:
    values = OmegaConf.to_container(part(file), resolve=True)
    assert isinstance(values, dict)
    if file.parts[0] == "teacher":
        for key in ("finetune", "cache"):
            hydra.utils.instantiate(values.pop(key))
        if file.stem == "pretrained":
            values["path"] = "."
    built = hydra.utils.instantiate(values, _convert_="all")
    if isinstance(built, Objective):
        assert set(built.names) == set(values["terms"])


def commands(document: Path) -> list[list[str]]:
    """Returns the arguments of every `python -m distill` in a document or YAML, under torchrun too."""
    found = []
    for line in document.read_text(encoding="utf-8").splitlines():
        match = re.search(r"-m distill ([^`#]*)", line)
        if match and "=" in match.group(1):
            found.append([word for word in shlex.split(match.group(1)) if not word.startswith("-")])
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_every_command_that_is_written_down_composes(document: Path) -> None:
    if not document.is_file():
        pytest.skip(f"{document} is not part of this installation")
    for arguments in commands(document):
        swept = [re.sub(r"(?<==)([\w.]+)(,[\w.]+)+$", r"\1", argument) for argument in arguments]
        if "=my_" not in " ".join(swept):
            config = composed(*swept)
            for argument in swept:
                key, _, value = argument.removeprefix("+").partition("=")
                if "." not in key and value in ("docstrings", "sst2", "bert_base", "minilm", "distilbert", "hinton"):
                    assert config[key].name == value


def test_a_sweep_of_students_seeds_shares_one_teacher() -> None:
    one, two = composed("+teacher=minilm", "seed=1"), composed("+teacher=minilm", "seed=2")
    assert (one.trainer.seed, two.trainer.seed) == (1, 2)
    assert one.teacher.finetune == two.teacher.finetune


def test_the_ablation_leaves_out_one_thing_at_a_time() -> None:
    recipe = composed("+experiment=distilbert_ablation", "+teacher=embedded", "+student=distilbert")
    whole = (5.0, 2.0, 1.0, "teacher")
    expected = {
        "none": whole, "no_soft": (0.0, *whole[1:]), "no_mlm": (5.0, 0.0, *whole[2:]),
        "no_cosine": (5.0, 2.0, 0.0, "teacher"), "random_weights": (*whole[:3], "random"),
        "mlm_alone": (0.0, 2.0, 0.0, "teacher"),
    }  # fmt: skip
    assert {path.stem for path in (CONF / "ablation").glob("*.yaml")} == set(expected)
    for name, values in expected.items():
        # Where a sweep puts it: before everything else.
        row = composed(
            f"+ablation={name}", "+experiment=distilbert_ablation", "+teacher=embedded", "+student=distilbert"
        )
        terms = row.objective.terms
        assert (terms.soft.weight, terms.mlm.weight, terms.cosine.weight, row.student.init) == values
        assert row.trainer == recipe.trainer
    with initialize_config_dir(str(CONF), version_base="1.3"):
        hydra_config = compose("config", ["+experiment=distilbert_ablation"], return_hydra_config=True).hydra
    assert set(hydra_config.sweeper.params["+ablation"].split(",")) == set(expected)
