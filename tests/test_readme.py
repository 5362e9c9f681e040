"""Tests of the README and the pages of `docs/`: size, code blocks, and the Run block in a fresh copy."""

import ast
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

import distill

ROOT = Path(distill.__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LONGEST_README = 130  # Lines: three screens.


def blocks(language: str = "sh", document: Path = ROOT / "README.md") -> list[str]:
    """Returns the fenced code blocks of one language in a document."""
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(encoding="utf-8"), re.M | re.S)


def test_the_first_two_blocks_are_run_and_test() -> None:
    run, test = blocks()[:2]
    assert run.strip().splitlines()[-1] == "python -m distill +teacher=bert_base +student=distilbert"
    assert test.strip().splitlines()[-1] == "python -m pytest"


def test_the_readme_fits_on_three_screens() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= LONGEST_README


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_python_block_parses(document: Path) -> None:
    for block in blocks("python", document):
        assert ast.parse(block).body


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_to_a_file_has_its_target(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
        assert (document.parent / target).is_file(), target


@pytest.mark.slow
def test_the_run_block_runs_in_a_fresh_copy(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(copy)], check=True)
    environment = {**os.environ, "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    environment.pop("DISTILL_CACHE", None)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", blocks()[0]],
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
