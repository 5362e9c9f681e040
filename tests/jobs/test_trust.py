"""Tests of the objects that the configuration of an earlier run may create."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from omegaconf import OmegaConf

from distill.core.errors import UserError
from distill.jobs import execution as jobs
from distill.jobs.command_line import known_targets
from distill.jobs.preflight import check_targets
from distill.records.run import read_config, read_plain, write_config
from tests.jobs.conftest import Command
from tests.jobs.test_config import compose_config

PACKAGE = """
import os
import functools
from os import system
from toy_trusted_package_evil import build as evil
class Term: ...
class Shell(os._wrap_close): ...
def build(): ...
class Caller:
    def __call__(self): ...
caller = Caller()
shell = functools.partial(os.system, "true")
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a package of a user, with a module in it."""
    name = "toy_trusted_package"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("import shutil\n")
    (tmp_path / name / "terms.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{name}_evil.py").write_text("def build(): ...\n")
    yield name
    for module in [module for module in sys.modules if module.startswith(name)]:
        del sys.modules[module]


def check(values: dict[str, Any], *trust: str) -> None:
    check_targets(OmegaConf.create(values), source="config.yaml", trust=trust)


def test_the_known_names_are_those_of_our_files_and_all_of_them_are_ours() -> None:
    known = known_targets()
    assert {
        "distill.kinds.Classification",
        "distill.builtin.students.bilstm.from_teacher",
        "distill.losses.SoftTargets",
    } <= known
    assert {name.partition(".")[0] for name in known} == {"distill"}
    for overrides in (
        ["+teacher=ensemble", "+student=bilstm", "logger=[csv,wandb]"],
        ["+teacher=by_task", "augment=mlm"],
    ):
        config = compose_config(*overrides)
        check_targets(config, source="config.yaml", trust=())


@pytest.mark.parametrize(
    "values",
    [
        {"task": {"_target_": "os.system", "command": "true"}},
        {"task": {"_target_": "distill.core.storage.os.system"}},
        {"task": {"_target_": "distill.core.files.write_text"}},
        {"task": {"_target_": "distill.kinds.Classification", "data": {"_target_": "pandas.read_pickle"}}},
        {"student": {"model": {"_target_": "subprocess.run", "_partial_": True}}},
        {"objective": {"terms": [{"x": [{"_target_": "builtins.eval", "_args_": ["1"]}]}]}},
        {"augment": {"_target_": "hydra.utils.instantiate", "config": {}}},
        {"job": {"_target_": "posix.system"}, "hydra": {}},
    ],
    ids=lambda values: str(values)[:60],
)
def test_an_object_that_no_yaml_names_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"config.yaml would run .*_target_=.*if you trust .* add trust=\["):
        check(values)


@pytest.mark.parametrize("target", [None, 3, ["os.system"], {"a": "b"}])
def test_a_target_that_is_no_name_is_refused(target: object) -> None:
    with pytest.raises(UserError, match="config.yaml is damaged: task._target_ is"):
        check({"task": {"_target_": target}}, "os")


@pytest.mark.parametrize("name", ["terms.Term", "terms.build", "terms.Caller.__call__"])
def test_classes_and_functions_of_a_trusted_package_are_created(package: str, name: str) -> None:
    values = {"objective": {"terms": {"own": {"_target_": f"{package}.{name}"}}}}
    with pytest.raises(UserError, match=rf"add trust=\[{package}\]"):
        check(values)
    check(values, package)
    check(values, "another", f"{package}.terms")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("shutil.rmtree", "one of shutil"),
        ("terms.os.system", "one of posix"),
        ("terms.system", "one of posix"),
        ("terms.evil", "one of toy_trusted_package_evil"),
        ("terms.os", "the module os"),
        ("terms", "the module toy_trusted_package.terms"),
        ("terms.shell", "an object of partial"),
        ("terms.caller", "an object of Caller"),
        ("terms.Term.__class__", "one of builtins"),
        ("terms.Term.__subclasses__", "one of Python"),
        ("terms.Shell.close", "one of os"),
        ("terms.build.__globals__", "an object of dict"),
        ("terms.Nothing", "missing"),
        ("terms..Term", "missing"),
        ("os.system", "missing"),
    ],
)
def test_what_is_only_reached_through_a_trusted_package_is_refused(package: str, name: str, found: str) -> None:
    with pytest.raises(UserError, match=rf"no class or function of {package} itself but {found}: expected one of"):
        check({"task": {"_target_": f"{package}.{name}"}}, package)


def test_trusting_imports_nothing_outside_of_the_package(package: str, tmp_path: Path) -> None:
    other = tmp_path / "toy_other_package"
    other.mkdir()
    (other / "__init__.py").write_text("raise RuntimeError('imported')")
    with pytest.raises(UserError, match=r"add trust=\[toy_other_package\]"):
        check({"task": {"_target_": "toy_other_package.f"}}, package)
    with pytest.raises(UserError, match="but missing"):
        check({"task": {"_target_": f"{package}.toy_other_package.f"}}, package)
    with pytest.raises(UserError, match=r"add trust=\[toy_trusted_package_evil\]"):
        check({"task": {"_target_": f"{package}_evil.f"}}, package)


@pytest.mark.parametrize(
    "places", [{"path": "a/b"}, {"paths": ["a/b"]}, {"paths": {"sst2": "a/b"}}, {"tokenizer": "a/b"}]
)
@pytest.mark.parametrize("on", [True, "yes", 1])
def test_code_of_weights_runs_only_if_the_weights_are_trusted(places: dict[str, Any], on: object) -> None:
    values = {
        "teacher": {"_target_": "distill.builtin.teachers.pretrained.Pretrained", "trust_remote_code": on, **places}
    }
    with pytest.raises(
        UserError,
        match=r"run Python code that comes with a/b, because of teacher.trust_remote_code: .* add trust=\[a/b\]",
    ):
        check(values, "a")
    check(values, "a/b")
    check({"teacher": {**values["teacher"], "trust_remote_code": False}})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: &a [1, 2]\nb: [*a, *a]\n", "it has the alias \\*a, and config.yaml of a run has no aliases"),
        ("a: &a {x: 1}\nb:\n  <<: *a\n", "it has the alias"),
        ("a: " + "[" * 60 + "]" * 60, "it has more than 50 mappings and lists in each other"),
        ("a: '${b}'\nb: 1\n", r"it has the reference \$\{b\}"),
        ("a: '${oc.env:HOME}'\n", "it has the reference"),
        ("a: [{b: 'x ${oc.create:{_target_:os.system}}'}]\n", "it has the reference"),
        ("'${a}': 1\n", "it has the reference"),
        ("!!python/object/apply:os.system ['true']\n", "could not determine a constructor"),
        ("- 1\n", "it is no mapping"),
        ("a: [\n", "is damaged"),
    ],
)
def test_a_configuration_with_more_than_plain_values_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=expected) as raised:
        read_config(tmp_path / "config.yaml")
    assert len(str(raised.value).splitlines()) == 1


def test_a_bomb_of_aliases_is_refused_before_it_grows(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10))]
    (tmp_path / "config.yaml").write_text("\n".join(lines))  # 9 ** 9 * 2 texts.
    with pytest.raises(UserError, match="it has the alias"):
        read_plain(tmp_path / "config.yaml")


def test_a_run_writes_a_configuration_that_it_reads_again(tmp_path: Path) -> None:
    same = [1, 2]
    config = OmegaConf.create({"seed": 3, "a": same, "b": same, "trainer": {"seed": "${seed}"}, "none": None})
    write_config(tmp_path, config)
    assert read_config(tmp_path / "config.yaml") == {
        "seed": 3, "a": [1, 2], "b": [1, 2], "trainer": {"seed": 3}, "none": None
    }  # fmt: skip


def create(tmp_path: Path, *overrides: str) -> Path:
    """Writes an interrupted run; returns its directory."""
    config = compose_config("+teacher=pretrained", "teacher.path=.", "+student=distilbert", *overrides)
    config.output_dir = str(tmp_path / "runs")
    run = jobs._create_run(config)
    run.update(status="failed", error="interrupted")
    return run.directory


def change(directory: Path, **changes: object) -> None:
    """Replaces a part of the configuration."""
    path = directory / "config.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))


def test_resume_creates_no_strange_object(command: Command, tmp_path: Path) -> None:
    directory = create(tmp_path)
    change(directory, record={"_target_": "distill.core.storage.os.system"})
    digest = jobs.digest(read_config(directory / "config.yaml"))  # As a stranger can write it.
    jobs.open_run(directory).update(config_sha256=digest)
    code, _, error = command(f"resume={directory}")
    assert code == 2
    assert error == (
        f"error: {directory}/config.yaml would run record._target_=distill.core.storage.os.system, which no YAML of "
        "distill names: if you trust the run and that code, add trust=[distill]\n"
    )
    code, _, error = command(f"resume={directory}", "trust=[distill]")
    assert (code, "is no class or function of distill itself but one of posix" in error) == (2, True)


def test_resume_creates_the_objects_of_a_trusted_package(command: Command, tmp_path: Path) -> None:
    own = "+objective.terms.attention={_target_: tests.training.test_distributed.FailingLabels}"
    directory = create(tmp_path, "task=sst2", f"task.data_dir={tmp_path / 'gone'}", own)
    code, _, error = command(f"resume={directory}")
    assert code == 2
    assert "no YAML of distill names: if you trust the run and that code, add trust=[tests]" in error
    code, _, error = command(f"resume={directory}", "trust=[tests]")
    assert (code, f"{tmp_path / 'gone'} and does not exist: put it back" in error) == (2, True)  # The next check.


@pytest.mark.parametrize(
    ("changes", "name"),
    [({"teacher": 5}, "teacher"), ({"task": ["a"]}, "task"), ({"job": {"name": "cache"}}, "job"), ({"job": {}}, "job")],
)
def test_a_configuration_without_the_groups_of_a_run_is_refused(
    command: Command, tmp_path: Path, changes: dict[str, object], name: str
) -> None:
    directory = create(tmp_path)
    change(directory, **changes)
    code, _, error = command(f"resume={directory}")
    assert (code, error) == (2, f"error: {directory}/config.yaml is damaged: {name} is not that of a run\n")


def test_trust_is_a_list_for_commands_that_open_a_run(command: Command, tmp_path: Path) -> None:
    code, _, error = command("+teacher=embedded", "+student=distilbert", "trust=[os]")
    assert (code, "trust= is for resume=DIR and job=benchmark, which open runs of others" in error) == (2, True)
    directory = create(tmp_path)
    code, _, error = command(f"resume={directory}", "trust=os")
    assert (code, "got trust=os, expected a list of packages and of weights" in error) == (2, True)


def test_a_run_saves_neither_what_its_command_trusts_nor_the_pruner_of_its_search(tmp_path: Path) -> None:
    directory = create(
        tmp_path,
        "trust=[os]",
        "+logger.pruner={_target_:distill.jobs.pruning.TrialPruner,storage:'sqlite:///x',trial:1}",
    )
    saved = read_config(directory / "config.yaml")
    assert "trust" not in saved
    assert list(saved.logger) == ["csv"]
    check_targets(saved, source="config.yaml", trust=())


def test_the_names_of_the_command_itself_may_be_created() -> None:
    own = "tests.training.test_distributed.FailingLabels"
    config = OmegaConf.create({"task": {"_target_": own}})
    check_targets(config, source="config.yaml", trust=(), own={own})
    with pytest.raises(UserError, match=r"add trust=\[tests\]"):
        check_targets(config, source="config.yaml", trust=())
