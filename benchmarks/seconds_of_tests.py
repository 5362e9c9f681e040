"""Counts the CPU seconds of the tests, of their fixtures and child processes: by room, by file and by test.

    python -m pytest -n 0 -p benchmarks.seconds_of_tests tests/jobs     # writes a JSON line for each phase and fixture
    python benchmarks/seconds_of_tests.py test_seconds.jsonl            # prints the tables

The seconds are those of the process and of the children that it has waited for, so that they depend little on what
else the machine does. The variable `TEST_SECONDS` names another file to write. With several workers, which all write to
the same file, the fixtures of a session count once a worker.
"""

import json
import os
import resource
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FILE = "test_seconds.jsonl"


def cpu_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def write(kind: str, name: str, seconds: float) -> None:
    with Path(os.environ.get("TEST_SECONDS", FILE)).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"kind": kind, "name": name, "seconds": round(seconds, 3)}) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Counts a test with the fixtures that are made for it or that it is the first to use."""
    start = cpu_seconds()
    result = yield
    write("test", item.nodeid, cpu_seconds() - start)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Iterator[Any]:
    """Counts a fixture of a module or of the session."""
    start = cpu_seconds()
    result = yield
    if fixturedef.scope != "function":
        write("fixture", f"{fixturedef.baseid}::{fixturedef.argname}", cpu_seconds() - start)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[Any]:
    """Counts the collection, and before it the imports of the process."""
    start = cpu_seconds()
    write("process", "start", start)
    result = yield
    write("process", "collection", cpu_seconds() - start)
    return result


def print_tables(lines: list[dict[str, Any]], shown: int = 60) -> None:
    tests = [(line["name"], line["seconds"]) for line in lines if line["kind"] == "test"]
    rooms: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for name, seconds in tests:
        file = name.partition("::")[0]
        rooms["/".join(file.split("/")[:2])] += seconds
        files[file] += seconds
    others = {kind: [(x["name"], x["seconds"]) for x in lines if x["kind"] == kind] for kind in ("fixture", "process")}
    print(f"{sum(rooms.values()):.0f} s in {len(tests)} tests")
    for title, table in (
        ("rooms", rooms.items()), ("files", files.items()), ("tests", tests),
        ("fixtures", others["fixture"]), ("processes", others["process"]),
    ):  # fmt: skip
        print(f"\n{title}")
        for name, seconds in sorted(table, key=lambda row: -row[1])[:shown]:
            print(f"{seconds:8.1f}  {name}")


if __name__ == "__main__":
    print_tables([json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()])
