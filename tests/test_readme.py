"""Tests of README, pages, notebooks and examples: size, code, links, and the Run block in a fresh copy."""

import ast
import functools
import importlib
import inspect
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

import distill as d
from tests.documents import DOCUMENTS, NOTEBOOKS, PAGES, ROOT, SCRIPTS, read_blocks, read_python, read_text

README = ROOT / "README.md"
LONGEST_README = 150  # Lines.
LARGEST_PICTURE = 150_000  # Bytes.


def test_the_first_two_blocks_are_run_and_test() -> None:
    run, test = read_blocks(README, "sh")[:2]
    assert run.strip().splitlines()[-1] == "python -m distill +teacher=bert_base +student=distilbert"
    assert test.strip().splitlines()[-1] == "python -m pytest"


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= LONGEST_README


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_names_only_what_there_is(document: Path) -> None:
    for block in read_python(document):
        tree = ast.parse(block)
        assert tree.body
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "distill":
                module = importlib.import_module(str(node.module))
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{node.module}.{alias.name}"
            elif isinstance(node, ast.Attribute | ast.Call):
                check_use(node)


def check_use(node: ast.Attribute | ast.Call) -> None:
    """Checks a name such as `d.tasks.Classification`, and the keywords that it is called with."""
    name = ast.unparse(node.func if isinstance(node, ast.Call) else node)
    if not re.fullmatch(r"d(\.\w+)+", name):
        return
    found = functools.reduce(getattr, name.split(".")[1:], d)
    if isinstance(node, ast.Call):
        parameters = inspect.signature(found).parameters.values()
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            given = {keyword.arg for keyword in node.keywords if keyword.arg}
            assert given <= {parameter.name for parameter in parameters}, name


@pytest.mark.parametrize("document", [*PAGES, *NOTEBOOKS], ids=lambda path: path.name)
def test_every_link_to_a_file_has_its_target(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", read_text(document)):
        assert (document.parent / target).is_file(), target


@pytest.mark.parametrize("document", [*PAGES, *NOTEBOOKS], ids=lambda path: path.name)
def test_every_file_of_the_repository_that_is_named_exists(document: Path) -> None:
    for target in re.findall(r"`((?:examples|benchmarks|deploy|docs)/[\w./-]+)`", read_text(document)):
        assert (ROOT / target).exists(), target


@pytest.mark.parametrize("picture", sorted((ROOT / "docs/images").iterdir()), ids=lambda path: path.name)
def test_every_picture_is_small_and_shown(picture: Path) -> None:
    assert picture.stat().st_size <= LARGEST_PICTURE
    assert any(f"images/{picture.name}" in read_text(page) for page in PAGES)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_example_opens_with_its_command_and_options_that_it_has(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(text)) or ""
    commands = re.findall(rf"^    python examples/{script.name}(.*)$", docstring, re.M)
    assert commands
    for option in re.findall(r"(--[\w-]+)", " ".join(commands)):
        assert f'add_argument("{option}"' in text, option


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_example_is_in_the_readme_of_the_examples(script: Path) -> None:
    assert f"]({script.name})" in (ROOT / "examples/README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_run_block_runs_in_a_fresh_copy(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(copy)], check=True)
    environment = {**os.environ, "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    environment.pop("DISTILL_CACHE", None)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", read_blocks(README, "sh")[0]],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [path] = (copy / "runs").rglob("run.json")
    record = json.loads(path.read_text())
    assert record["status"] == "finished"
    assert record["teacher"]["substituted"] is True
    assert record["retention"]["int8"] >= 0.97
