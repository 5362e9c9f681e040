"""Tests that the golden commands leave what is stored of them, and that bad commands are refused in the stored words.

`python -m tests.golden --update` stores what they leave now.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.conftest import run_here
from tests.golden.commands import COMMANDS, replace_options
from tests.golden.contents import read_output
from tests.golden.normal import settle, show_difference
from tests.golden.runs import golden_output, golden_root

assert golden_output
assert golden_root

STORED = Path(__file__).parent / "stored"
IS_UPDATE = os.environ.get("GOLDEN_UPDATE") == "1"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_leaves_what_is_stored(name: str, golden_output: Callable[[str], Path]) -> None:
    compare(STORED / name, read_output(golden_output(name)))


def test_bad_commands_are_refused_in_the_stored_words(golden_root: Path) -> None:
    groups = yaml.safe_load((STORED / "refused" / "refusals.yaml").read_text(encoding="utf-8"))
    for group in groups.values():
        for options in group["refused"]:
            given = replace_options(group["command"], options)
            done = run_here(*given, cwd=golden_root)
            assert done.returncode == 2, f"exit code {done.returncode} of {' '.join(given)}"
            group["refused"][options] = done.stderr.strip().replace(str(golden_root), "<path>")
    compare(STORED / "refused", {"refusals.yaml": yaml.safe_dump(groups, width=120, sort_keys=False)})


def compare(directory: Path, made: dict[str, str]) -> None:
    """Fails with the difference between the files of a directory and these texts, or stores the texts there."""
    stored = {path.relative_to(directory).as_posix(): path.read_text("utf-8") for path in _list_files(directory)}
    differences = []
    for name in sorted({*stored, *made}):
        old, new = stored.get(name, ""), made.get(name, "")
        new = settle(old, new, is_rounded=name.endswith((".md", ".txt")))
        if old != new:
            differences.append(show_difference(f"{directory.name}/{name}", old, new))
            if IS_UPDATE:
                _write(directory / name, new)
    if IS_UPDATE:
        print("".join(differences))
    elif differences:
        pytest.fail("".join(differences), pytrace=False)


def _list_files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    if not text:
        path.unlink()
