"""Tests that the reference of Python has every public name, and each of them and its arguments a meaning."""

import inspect
import pydoc
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from typing_extensions import is_typeddict

import distill
from tests.documentation.conftest import ROOT

PAGES = sorted((ROOT / "docs" / "reference" / "python").glob("*.md"))
MODULES = ("loggers", "students", "tasks")  # Public names of `distill` that have names themselves.


def read_directives(page: Path) -> dict[str, list[str] | bool]:
    """Returns the names that a page documents, with the members of each."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^::: (\S+)\n((?: {4}.*\n)*)", text, re.M)
    return {
        name: ((yaml.safe_load(options) or {}).get("options") or {}).get("members", False) for name, options in found
    }


DOCUMENTED = {name: members for page in PAGES for name, members in read_directives(page).items()}


def test_every_public_name_is_on_a_page() -> None:
    assert {f"distill.{name}" for name in distill.__all__ if name not in MODULES} <= DOCUMENTED.keys()
    assert {f"distill.kinds.{name}" for name in distill.tasks.__all__} <= DOCUMENTED.keys()
    assert {f"distill.api._{name}_student" for name in vars(distill.students)} <= DOCUMENTED.keys()
    loggers = [value for value in vars(distill.loggers).values() if inspect.isclass(value) and hasattr(value, "open")]
    names = {cls.__name__ for cls in loggers if cls.__module__ == distill.loggers.__name__}
    assert {f"distill.loggers.{name}" for name in names - {"LoggerSettings", "Tracking"}} <= DOCUMENTED.keys()


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_name_and_its_arguments_have_a_meaning(name: str, reference: ModuleType) -> None:
    found = pydoc.locate(name)
    assert found is not None
    assert list(find_unexplained(found, DOCUMENTED[name], reference)) == []


def find_unexplained(found: Any, members: list[str] | bool, reference: ModuleType) -> Iterator[str]:
    """Yields the names without a docstring, and the arguments that no docstring explains."""
    if not inspect.getdoc(found):
        yield found.__name__
    if not is_typeddict(found):
        explained = {name.lstrip("*") for names in reference.read_docstrings(found) for name in names.split(", ")}
        for argument in inspect.signature(found).parameters:
            if argument not in explained and argument != "self":
                yield f"{found.__name__}({argument})"
    else:
        explained = reference.read_docstrings(found)
        yield from (f"{found.__name__}[{key}]" for key in vars(found)["__annotations__"] if key not in explained)
    if members is True:
        members = [name for name in vars(found) if not name.startswith("_")]
    for member in members or []:
        value = inspect.getattr_static(found, member, None)
        if isinstance(value, property):
            if not value.__doc__:
                yield f"{found.__name__}.{member}"
        elif callable(value) or isinstance(value, classmethod):
            yield from find_unexplained(getattr(found, member), False, reference)


def test_an_argument_without_a_meaning_is_found(reference: ModuleType) -> None:
    class Documented:
        """A class.

        Args:
            first: the first number.
        """

        def __init__(self, first: int, second: int) -> None: ...

        def add(self, third: int) -> None:
            """Adds it."""

        @property
        def total(self) -> int:
            return 0

    assert list(find_unexplained(Documented, True, reference)) == [
        "Documented(second)",
        "add(third)",
        "Documented.total",
    ]
