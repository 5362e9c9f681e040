"""Tests that every documented command is one: it composes, its options are valid, and they fit each other."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.utils import get_class
from omegaconf import DictConfig

from distill import __main__ as command_line
from distill import client, service
from distill.chain.plan import check_plan
from distill.edge import __main__ as edge_options
from distill.jobs import execution
from distill.jobs.command_line import find_job, quote_overrides
from distill.jobs.execution import refuse_ignored
from distill.models.generator import MaskedLMAugmentation
from distill.records.loggers import Tracking
from distill.serve import __main__ as serve
from tests import documents
from tests.jobs.test_config import CONF, compose_run

PARSERS: dict[str, Callable[[Sequence[str]], Any]] = {
    "edge": edge_options.parse,
    "serve": serve._parse,
    "service": service._parse,
}
DOCUMENTS = [path for path in documents.COMMAND_DOCUMENTS if path.is_file() and list(documents.read_commands(path))]
# Files that an option is checked with.
FILES = {
    "outputs.csv": "text,a,b\n",
    "labels.jsonl": "{}\n",
    "path/to/german.txt": "Ein Satz.\n",
    "path/to/spanish.jsonl": "{}\n",
}


NAMES = {path: str(path.relative_to(documents.ROOT)) for path in DOCUMENTS}


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_commands_are_found_where_they_are_shown() -> None:
    found = {NAMES[path]: list(documents.read_commands(path)) for path in DOCUMENTS}
    assert ("", ["+teacher=bert_base", "+student=distilbert"]) in found["README.md"]
    submitted = [(module, words[:2]) for module, words in found["docs/service.md"]]
    assert ("", ["submit", "+teacher=minilm"]) in submitted
    assert ("edge", ["path/to/bundle", "--evaluate", "dev.tsv"]) in found["distill/edge/__main__.py"]
    assert sum(map(len, found.values())) > 600


def test_every_documented_command_is_valid() -> None:
    """Composes the commands that have an option or a choice which no longer one has, paths and numbers aside."""
    runs = set[tuple[str, ...]]()
    for document in DOCUMENTS:
        for module, words in documents.read_commands(document):
            if module not in PARSERS:
                runs |= {tuple(run) for run in list_runs(module, words)}
            elif not all(word.startswith("-") for word in words):  # No name of an option alone.
                PARSERS[module](words)
    assert len(runs) > 400
    seen = set[str]()
    for run in sorted(runs, key=lambda run: (-len(run), run)):
        parts = {re.sub("=.*[/A-Z0-9].*", "", word) for word in run}
        if not parts <= seen:
            check_run(list(run))
            seen |= parts


def list_runs(module: str, words: Sequence[str]) -> Iterator[list[str]]:
    """Yields the overrides of the runs of a command, which is checked as far as it can be without them."""
    assert module == ""
    overrides = list(words)
    if words[0] in command_line.SERVICE_COMMANDS:
        options, overrides = client._create_parser().parse_known_args(words)
        assert options.command == "submit" or not overrides
    automatic = command_line.choose_automatically(overrides)
    if "hydra/sweeper=auto" in automatic:  # One of its students.
        kept = [word for word in overrides if word != command_line.AUTO and not word.startswith("auto.")]
        overrides = [*kept, "+student=distilbert"]
    ordered = command_line.put_options_first(overrides)
    valued = [before in command_line.VALUED for before in ["", *ordered]]
    given = [word for word, is_value in zip(ordered, valued, strict=False) if not (is_value or word.startswith("-"))]
    if not any(word.endswith(("=NAME", "=value")) for word in given):
        yield from expand_sweep([option for word in given for option in command_line.expand_tasks(word)])


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


def check_run(overrides: list[str]) -> None:
    config = compose_run(overrides)
    command_line.check_added(config, overrides)
    job = find_job(config.job.name)
    execution.name_classes(config)
    if config.resume not in (False, True):
        return
    if not job.creates_run:
        assert not [option for option in overrides if not option.startswith(job.reads)]
    elif not {"tasks", "steps"} & {*(config.get("experiment") or {})}:  # The runs of a table have options of their own.
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
        check_plan(source, plan.choose_for(source))
    elif name == "finetune":
        execution.build_single_source(config)
