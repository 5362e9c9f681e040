"""Which tests run a line, and the seconds of each: of one pass of the suite under coverage.py."""

import re
import sqlite3
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from coverage.numbits import numbits_to_nums

from tests.mutants.mutant import PACKAGES, ROOT

# A process that a test starts has its own name in the variable, so that its lines are those of the test.
_CONFIGURATION = """
[run]
source = {packages}
relative_files = true
parallel = true
patch = subprocess, _exit
data_file = {directory}/coverage
context = ${{PYTEST_CURRENT_TEST-}}
disable_warnings = no-data-collected, module-not-imported, module-not-measured, couldnt-parse
"""
# `tests/x.py::test_y[z]@group` with the phase behind it, in the form of pytest-cov or of the variable.
_TEST = re.compile(r"(tests/\S+?\.py::.+?)(?:@[\w.]+)?(?:\|(?:setup|run|teardown)| \((?:setup|call|teardown)\))$")


@dataclass(frozen=True)
class CoverageMap:
    """Tests by lines of the package.

    Args:
        lines: by file, from the root of the repository, and by line the tests that run it.
        seconds: by test.
    """

    lines: Mapping[str, Mapping[int, frozenset[str]]]
    seconds: Mapping[str, float]

    def find_tests(self, file: str, numbers: Iterable[int]) -> list[str]:
        """Returns the tests that run one of these lines, the quickest first; of the whole file where none does."""
        lines = self.lines.get(file, {})
        found = {test for number in numbers for test in lines.get(number, ())}
        found = found or {test for tests in lines.values() for test in tests}
        return sorted(found, key=lambda test: (self.seconds.get(test, 0.0), test))


def measure(directory: Path) -> None:
    """Runs the suite under coverage.py and writes its data; raises CalledProcessError if a test fails."""
    directory.mkdir(parents=True, exist_ok=True)
    configuration = directory / "coveragerc"
    configuration.write_text(_CONFIGURATION.format(directory=directory, packages=", ".join(PACKAGES)), encoding="utf-8")
    command = [
        sys.executable, "-m", "pytest", "tests", f"--cov-config={configuration}", "--cov", "--cov-report=",
        "--cov-context=test", f"--junit-xml={directory / 'durations.xml'}",
    ]  # fmt: skip
    subprocess.run(command, cwd=ROOT, check=True)


def read_map(directory: Path) -> CoverageMap:
    """Reads what `measure` has written."""
    lines: dict[str, dict[int, set[str]]] = {}
    with sqlite3.connect(directory / "coverage") as data:
        rows = data.execute(
            "select file.path, context.context, numbits from line_bits"
            " join file on file.id = file_id join context on context.id = context_id"
        )
        for path, context, bits in rows:
            match = _TEST.search(context)
            if match:
                of_file = lines.setdefault(path, {})
                for number in numbits_to_nums(bits):
                    of_file.setdefault(number, set()).add(match[1])
    frozen = {path: {number: frozenset(tests) for number, tests in of.items()} for path, of in lines.items()}
    return CoverageMap(frozen, _read_seconds(directory / "durations.xml"))


def _read_seconds(path: Path) -> dict[str, float]:
    found = {}
    for case in ET.parse(path).getroot().iter("testcase"):
        file = f"{case.attrib['classname'].replace('.', '/')}.py"
        name = re.sub(r"@[\w.]+$", "", case.attrib["name"])
        found[f"{file}::{name}"] = float(case.attrib["time"])
    return found
