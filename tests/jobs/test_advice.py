"""Tests that every option which a message advises can be typed: it composes where the message can appear."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from distill.__main__ import AUTO, register_resolvers
from tests.documents import ROOT
from tests.jobs.test_config import CONF, compose_choices, compose_run

GROUPS = sorted(path.name for path in CONF.iterdir() if path.is_dir() and path.name != "hydra")
ADVICE = re.compile(rf"(?<![\w./])\+?((?:{'|'.join([*GROUPS, 'budget', 'record', 'inspect'])})(?:\.[\w.]+)?)=([\w./]*)")
NAMES = {group: sorted(path.stem for path in (CONF / group).glob("*.yaml")) for group in GROUPS}
PLACEHOLDERS = {"", "NAME", "DIR", "FILE", "PLACEHOLDER", "objective"}
# Options of further choices than those of their own group.
NEEDED = {"budget": (), "record": (), "inspect": ("job=inspect",)}


def read_texts(path: Path) -> Iterator[str]:
    """Yields the texts of a module that are no docstrings, with a word in place of each value of an f-string."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parts = {id(value) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for value in node.values}
    parts |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(v.value) if isinstance(v, ast.Constant) else "PLACEHOLDER" for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value


def find_advice() -> dict[str, set[str]]:
    """Returns the values of each option in a message of the package, its students and its teachers."""
    found: dict[str, set[str]] = {}
    for folder in ("distill", "students", "teachers"):
        for path in (ROOT / folder).rglob("*.py"):
            for text in filter(lambda text: " " in text, read_texts(path)):
                for name, value in ADVICE.findall(text):
                    found.setdefault(name, set()).add(value.rstrip("."))
    return {name: values for name, values in sorted(found.items()) if "PLACEHOLDER" not in name}


ADVISED = find_advice()
OPTIONS = [name for name in ADVISED if "." in name]


@pytest.fixture(autouse=True)
def resolvers() -> None:
    register_resolvers()


def test_every_choice_that_a_message_advises_is_there() -> None:
    chosen = {name: values - PLACEHOLDERS for name, values in ADVISED.items() if name in GROUPS}
    chosen["student"].discard(AUTO.partition("=")[2])  # It has no YAML, because it is a sweep.
    assert {name: left for name, values in chosen.items() if (left := values - {*NAMES[name]})} == {}
    assert {"student", "teacher", "task", "objective", "augment", "adapt", "job"} <= chosen.keys()
    assert len(OPTIONS) > 100


def test_every_option_that_a_message_advises_composes() -> None:
    for option in OPTIONS:
        group = option.partition(".")[0]
        places = [NEEDED[group]] if group in NEEDED else [_choose(group, name) for name in NAMES[group]]
        having = [place for place in places if _has(place, option)]
        assert having, f"no YAML of {group} has {option}"
        if group == "teacher" and any(_is_pretrained(place) for place in having):
            # A message may appear with any of them.
            assert [place for place in places if _is_pretrained(place) and not _has(place, option)] == []
        value = next((value for value in ADVISED[option] if value not in PLACEHOLDERS), "1")
        compose_run([*having[0], f"{option}={value}"])


def _has(place: tuple[str, ...], option: str) -> bool:
    """Returns whether a configuration has an option, perhaps without a value."""
    parent, _, name = option.rpartition(".")
    node = OmegaConf.select(compose_choices(*place), parent)
    return OmegaConf.is_dict(node) and name in node.keys()  # noqa: SIM118  A value that is missing counts too.


def _is_pretrained(place: tuple[str, ...]) -> bool:
    return str(compose_choices(*place).teacher._target_).endswith(".Pretrained")


def _choose(group: str, name: str) -> tuple[str, ...]:
    plus = "+" if group in ("teacher", "student", "experiment", "ablation", "variant") else ""
    return (f"{plus}{group}={name}",)
