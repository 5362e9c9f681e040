"""Tests that every documented command is one: it composes, its options are valid, and they fit each other."""

import copy
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.utils import get_class
from omegaconf import DictConfig

from distill import __main__ as command_line
from distill import client, service
from distill.chain.plan import check_plan, choose_augmentation, choose_for_text
from distill.edge import __main__ as edge_options
from distill.jobs import execution
from distill.jobs.command_line import find_job, quote_overrides
from distill.jobs.execution import refuse_ignored
from distill.models.generator import MaskedLMAugmentation
from distill.records.loggers import Tracking
from distill.serve import __main__ as serve
from tests import documents
from tests.jobs.test_config import CONF

PARSERS: dict[str, Callable[[Sequence[str]], Any]] = {
    "edge": edge_options.parse,
    "serve": serve._parse,
    "service": service._parse,
}
DOCUMENTS = [path for path in documents.COMMAND_DOCUMENTS if path.is_file() and list(documents.read_commands(path))]
# Files that an option is checked with.
FILES = {"probabilities.csv": "text,a,b\n", "path/to/german.txt": "Ein Satz.\n", "path/to/spanish.jsonl": "{}\n"}


NAMES = {path: str(path.relative_to(documents.ROOT)) for path in DOCUMENTS}


@pytest.fixture(autouse=True)
def hydra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A search path with the YAML files of users that the documents speak of."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Tracking, "check", lambda _: None)
    monkeypatch.setattr(MaskedLMAugmentation, "check", lambda _: None)
    Path("path/to").mkdir(parents=True)
    for name, content in FILES.items():
        Path(name).write_text(content)
    for group, target in (("student", "distilbert"), ("objective", "hinton")):
        Path(group).mkdir()
        Path(group, f"my_{group}.yaml").write_bytes((CONF / group / f"{target}.yaml").read_bytes())
    command_line.register_resolvers()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield


def test_commands_are_found_where_they_are_shown() -> None:
    found = {NAMES[path]: list(documents.read_commands(path)) for path in DOCUMENTS}
    assert ("", ["+teacher=bert_base", "+student=distilbert"]) in found["README.md"]
    submitted = [(module, words[:2]) for module, words in found["docs/service.md"]]
    assert ("", ["submit", "+teacher=minilm"]) in submitted
    assert ("edge", ["path/to/bundle", "--evaluate", "dev.tsv"]) in found["distill/edge/__main__.py"]
    assert sum(map(len, found.values())) > 600


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES.get)
def test_every_documented_command_is_valid(document: Path) -> None:
    for module, words in documents.read_commands(document):
        if module in PARSERS:
            if not all(word.startswith("-") for word in words):  # No name of an option alone.
                PARSERS[module](words)
        else:
            check_command(module, tuple(words))


@functools.cache
def check_command(module: str, words: tuple[str, ...]) -> None:
    """Checks a command as far as it can be without its data and its models."""
    assert module == ""
    overrides = list(words)
    if words[0] in command_line.SERVICE_COMMANDS:
        options, overrides = client._create_parser().parse_known_args(words)
        assert options.command == "submit" or not overrides
    ordered = command_line.put_options_first(overrides)
    valued = [before in command_line.VALUED for before in ["", *ordered]]
    given = [word for word, is_value in zip(ordered, valued, strict=False) if not (is_value or word.startswith("-"))]
    has_placeholder = any(word.endswith(("=NAME", "=value")) for word in given)
    for run in [] if has_placeholder else expand_sweep([o for word in given for o in command_line.expand_tasks(word)]):
        check_run(run)


def expand_sweep(overrides: list[str]) -> Iterator[list[str]]:
    """Yields the overrides of the first and the last run of a sweep; a range to search has one run."""
    values = []
    for override in OverridesParser.create().parse_overrides(quote_overrides(overrides, command_line.VALUED)):
        key, _, text = str(override.input_line).partition("=")
        if not override.is_sweep_override():
            values.append([str(override.input_line)])
        elif override.is_choice_sweep() or re.match(r"range|glob", text):
            values.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        else:
            values.append([f"{key}=1"])
    if values:
        yield [of[0] for of in values]
    if max(map(len, values), default=0) > 1:
        yield [of[-1] for of in values]


def compose_run(overrides: list[str]) -> DictConfig:
    """Returns the configuration of a run; runs that choose the same YAML files compose them once."""
    groups = "|".join(path.name for path in CONF.iterdir() if path.is_dir())
    choices = [option for option in overrides if re.match(rf"[+~]?(hydra\W|({groups})(@[\w.]+)?=)", option)]
    values = [option for option in overrides if option not in choices]
    config = copy.deepcopy(compose_choices(tuple(choices)))
    ConfigLoaderImpl._apply_overrides_to_config(OverridesParser.create().parse_overrides(values), config)
    return config


@functools.cache
def compose_choices(choices: tuple[str, ...]) -> DictConfig:
    search = [f"hydra.searchpath=['file://{Path.cwd()}']"] if "=my_" in " ".join(choices) else []
    return compose("config", [*choices, *search])


def check_run(overrides: list[str]) -> None:
    config = compose_run(overrides)
    command_line.check_added(config, overrides)
    job = find_job(config.job.name)
    execution.name_classes(config)
    if config.resume not in (False, True):
        return
    if not job.creates_run:
        assert not [option for option in overrides if not option.startswith(job.reads)]
    elif "tasks" not in (config.get("experiment") or {}):  # The runs of a table have options of their own.
        check_options(config, overrides)


def check_options(config: DictConfig, overrides: list[str]) -> None:
    """Creates the objects of a run, and checks that they fit each other."""
    name = str(config.job.name)
    is_text = getattr(get_class(config.task._target_), "raw_text", False)
    refuse_ignored(config, name, overrides, on_text=is_text)
    plan = execution.build_plan(config)
    if name == "distill":
        source = execution.build_source(config)
        assert execution.build_student(config).name == config.student.name
        check_plan(source, choose_augmentation(choose_for_text(plan), source))
    elif name == "finetune":
        execution.build_single_source(config)
