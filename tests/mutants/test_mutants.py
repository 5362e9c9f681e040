"""Tests that every mutant can be planted, and by hand that the tests find them."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.mutant import ROOT, find_faults, read_mutants

LEAST = 150  # Mutants.
SHARE = 0.95  # That the tests find.


def test_every_mutant_can_be_planted() -> None:
    mutants = read_mutants()
    assert len(mutants) >= LEAST
    assert find_faults(mutants) == []
    assert max(Counter((mutant.file, mutant.old) for mutant in mutants).values()) == 1


@pytest.mark.slow
def test_the_tests_find_the_mutants(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.mutants", "--measure", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True)
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    survivors = [result for result in results if not result["killed_by"]]
    assert len(survivors) <= (1 - SHARE) * len(results), survivors
