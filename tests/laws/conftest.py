"""The toys of the laws, which all files share."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.golden.runs import golden_root
from tests.laws.toys import Cell, make_cell

assert golden_root

MakeCell = Callable[[str, str], Cell]


@pytest.fixture(scope="session")
def cell(golden_root: Path, tmp_path_factory: pytest.TempPathFactory) -> MakeCell:
    """Returns the cell of a kind of task and the student of a name, built once a session."""
    return partial(make_cell, golden_root / "toys", tmp_path_factory.mktemp("cache"))
