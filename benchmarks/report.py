"""Measures how long a report of many runs takes, and how large its page is.

    python benchmarks/report.py --run path/to/run

Copies the run.json and config.yaml of one run with other seeds, temperatures and metrics, three seeds a setting, and
writes the report of 100 and of 1,000 such runs. CPU seconds are those of this process.
"""

import argparse
import itertools
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from distill.records.pages import write_collection
from distill.records.run import Run
from distill.records.schema import find_runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="directory of a finished run")
    parser.add_argument("--counts", type=int, nargs="+", default=[100, 1000])
    arguments = parser.parse_args()
    for count in arguments.counts:
        with tempfile.TemporaryDirectory() as root:
            copy_runs(arguments.run, Path(root), count)
            start, cpu = time.perf_counter(), time.process_time()
            page = write_collection(find_runs(Path(root)), Path(root)).page
            seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
            print(f"{count} runs: {seconds:.1f} s, {cpu:.1f} CPU s, {page.stat().st_size / 1e6:.2f} MB")


def copy_runs(run: Path, root: Path, count: int) -> None:
    """Writes `count` runs: three seeds of each of several temperatures and weights."""
    record = json.loads((run / "run.json").read_text(encoding="utf-8")) | {"seeds": [], "summary": {}}
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    values = itertools.product(range(1, 1 + -(-count // 30)), range(10), range(3))
    for number, (temperature, weight, seed) in zip(range(count), values, strict=False):
        config["seed"] = seed
        config["objective"]["terms"]["soft"] |= {"temperature": temperature, "weight": weight}
        changed = shift_metrics(record, random.Random(number).gauss(0, 0.01)) | {"seed": seed}
        directory = root / f"{number:04}"
        directory.mkdir()
        (directory / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        Run(directory, changed).save()


def shift_metrics(record: dict[str, Any], difference: float) -> dict[str, Any]:
    """Returns a copy of the record in which the metrics of the student and of its files are shifted."""
    changed: dict[str, Any] = json.loads(json.dumps(record))
    for model in (changed["student"], *changed["export"].values()):
        model["metrics"] = {name: value + difference for name, value in model["metrics"].items()}
    return changed


if __name__ == "__main__":
    main()
