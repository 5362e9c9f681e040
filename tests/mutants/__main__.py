"""Plants each mutant in a copy of the repository and runs the tests of its lines: which mistakes would be found?

python -m tests.mutants --measure          # once: the suite under coverage.py, for the tests that run a line
python -m tests.mutants                    # all lists
python -m tests.mutants service records    # two of them
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.mutants.coverage_map import measure, read_map
from tests.mutants.mutant import ROOT, Mutant, find_faults, read_mutants
from tests.mutants.running import run_mutants


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", help="names of lists, without .yaml")
    parser.add_argument("--measure", action="store_true", help="run the suite under coverage.py first")
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "mutants", help="of the data and results")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.directory)
    mutants = [mutant for mutant in read_mutants() if not arguments.rooms or mutant.room in arguments.rooms]
    faults = find_faults(mutants)
    if faults:
        sys.exit("\n".join(faults))
    results = run_mutants(mutants, read_map(arguments.directory), arguments.jobs)
    text = json.dumps([asdict(mutant) | {"killed_by": test} for mutant, test in results], indent=1)
    (arguments.directory / "results.json").write_text(text, encoding="utf-8")
    print_results(results)


def print_results(results: Sequence[tuple[Mutant, str | None]]) -> None:
    """Prints a table of the rooms."""
    total = Counter(mutant.room for mutant, _ in results)
    killed = Counter(mutant.room for mutant, test in results if test)
    table = Table("list", "mutants", "killed", title="mutants")
    for room in sorted(total):
        table.add_row(room, str(total[room]), str(killed[room]))
    table.add_row("all", str(total.total()), str(killed.total()), style="bold")
    Console().print(table)


if __name__ == "__main__":
    start = time.perf_counter()
    main()
    print(f"{time.perf_counter() - start:.0f} s")
