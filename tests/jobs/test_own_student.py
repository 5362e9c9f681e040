"""Tests of a student in a module of the working directory."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import get_object
from omegaconf import OmegaConf
from transformers import PreTrainedModel

from distill.chain.plan import Student
from distill.core.contracts import Task
from distill.core.errors import UserError
from distill.jobs import execution

TARGET = "students.mine.from_teacher"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory, which Python searches first as in a command."""
    with monkeypatch.context() as patch:
        for name in [name for name in sys.modules if name.partition(".")[0] == "students"]:
            patch.delitem(sys.modules, name)
        patch.chdir(tmp_path)
        patch.syspath_prepend(tmp_path)
        (tmp_path / "students").mkdir()
        yield tmp_path
        for name in [name for name in sys.modules if name.partition(".")[0] == "students"]:
            del sys.modules[name]


def create(target: str = TARGET, **options: Any) -> Student:
    return execution.build_student(OmegaConf.create({"student": {"_target_": target, "name": "mine", **options}}))


@pytest.mark.parametrize("is_package", [False, True])
def test_it_is_found_beside_those_of_distill(directory: Path, is_package: bool) -> None:
    (directory / "students" / "mine.py").write_text("def from_teacher(teacher, *, depth):\n    return depth\n")
    if is_package:
        (directory / "students" / "__init__.py").touch()
    student = create(depth=3)
    assert student.build("teacher") == 3  # type: ignore[operator]
    own = get_object("distill.builtin.students.distilbert.from_teacher")
    assert own.__module__ == "distill.builtin.students.distilbert"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def other(): ...\n", "{directory}/students/mine.py has no from_teacher"),
        (None, "there is no module students.mine, expected students/mine.py in {directory}"),
        ("import no_such_package\n", "students.mine needs no_such_package, which is not installed"),
        (
            "def from_teacher(\n",
            "students.mine cannot be imported (SyntaxError: '(' was never closed (mine.py, line 1))",
        ),
        ("raise OSError('no file')\n", "students.mine cannot be imported (OSError: no file)"),
    ],
)
def test_what_is_missing_is_one_line(directory: Path, source: str | None, expected: str) -> None:
    if source is not None:
        (directory / "students" / "mine.py").write_text(source)
    with pytest.raises(UserError) as raised:
        create()
    assert str(raised.value) == f"student._target_={TARGET}: {expected.format(directory=directory)}"


def test_a_package_of_others_that_is_found_first_is_named(
    directory: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "students" / "mine.py").write_text("def from_teacher(teacher): ...\n")
    others = tmp_path_factory.mktemp("others")
    (others / "students").mkdir()
    (others / "students" / "__init__.py").touch()
    monkeypatch.syspath_prepend(others)
    expected = f"Python finds another students first ({others}/students/__init__.py): add an empty students/__init__.py"
    with pytest.raises(UserError, match="student._target_") as raised:
        create()
    assert str(raised.value) == f"student._target_={TARGET}: {expected} to {directory}"


def test_a_directory_that_python_does_not_search_is_named(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / "teachers_of_mine").mkdir()
    (directory / "teachers_of_mine" / "one.py").touch()
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(directory)])
    with pytest.raises(UserError) as raised:
        create("teachers_of_mine.one.from_teacher")
    assert str(raised.value).endswith(
        f"does not search {directory}, where teachers_of_mine/one.py is: add it to PYTHONPATH"
    )


def test_a_function_that_returns_no_model_is_named(teacher: PreTrainedModel, task: Task) -> None:
    student = Student("three", lambda teacher: 3)  # type: ignore[arg-type, return-value]
    with pytest.raises(UserError) as raised:
        student._make(teacher, {"task": task})
    assert str(raised.value) == "the function of student three returned int, expected a PreTrainedModel"
