"""What do 1, 4 and 8 runs of a temperature sweep cost, and how soon does a run with kept outputs begin to train?

    python benchmarks/sweep_cost.py --data DIR --teacher DIR [--examples 8000 --runs 1,4,8] [--json]

The sweeps go through the command itself, each with a cache that holds the fine-tuned teacher and none of its outputs.
`--teacher` is a BERT for SST-2; where its head does not fit it is fine-tuned first, once for all.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
TEMPERATURES = (1, 2, 3, 4, 5, 6, 8, 10)
# Tells when the first step is done, in seconds since the process began, and ends the process there.
UNTIL_THE_FIRST_STEP = """
import os, sys, time, psutil
from distill.training import module
original = module.DistillationModule.training_step
def training_step(self, *arguments):
    original(self, *arguments)
    print("first step", time.time() - psutil.Process().create_time(), flush=True)
    os._exit(0)
module.DistillationModule.training_step = training_step
from distill.__main__ import main
sys.exit(main())
"""


def command(options: argparse.Namespace, cache: Path, *more: str, program: tuple[str, ...] = ("-m", "distill")) -> str:
    """What the command printed."""
    done = subprocess.run(
        [sys.executable, *program, *more, "+teacher=minilm", f"teacher.path={options.teacher}", "+student=distilbert",
         "task=sst2", f"task.data_dir={options.data}", f"task.train_examples={options.examples}", "objective=hinton",
         "trainer.max_epochs=1", "benchmark.enabled=false", f"cache_dir={cache}"],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    return done.stdout


def sweep(options: argparse.Namespace, work: Path, number: int) -> dict[str, Any]:
    shutil.rmtree(work / "cache" / "outputs", ignore_errors=True)
    output = Path(tempfile.mkdtemp(dir=work))
    began = time.perf_counter()
    temperatures = ",".join(map(str, TEMPERATURES[:number]))
    command(options, work / "cache", "-m", f"objective.terms.soft.temperature={temperatures}", f"output_dir={output}")
    seconds = time.perf_counter() - began
    runs = [json.loads(path.read_text())["training"] for path in sorted(output.rglob("run.json"))]
    return {
        "runs": number,
        "seconds": seconds,
        "teacher_seconds": sum(run["teacher_seconds"] for run in runs),
        "hits": sum(run["teacher_cache"]["hit"] for run in runs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=lambda path: Path(path).resolve())
    parser.add_argument("--teacher", required=True, type=lambda path: Path(path).resolve())
    parser.add_argument("--examples", type=int, default=8000)
    parser.add_argument("--runs", default="1,4,8")
    parser.add_argument("--work", type=lambda path: Path(path).resolve(), help="a temporary directory by default")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        command(options, work / "cache", "trainer.max_steps=1", f"output_dir={work / 'first'}")  # The teacher itself.
        rows = [sweep(options, work, int(number)) for number in options.runs.split(",")]
        told = command(options, work / "cache", f"output_dir={work / 'start'}", program=("-c", UNTIL_THE_FIRST_STEP))
    start = float(told.rpartition("first step")[2])
    table = Table(title=f"{options.examples:,} examples, 1 epoch")
    for column in ("runs", "seconds", "for a run", "teacher s", "passes", "from the cache"):
        table.add_column(column, justify="right")
    one = rows[0]["teacher_seconds"]
    for row in rows:
        row["passes"] = row["teacher_seconds"] / one
        table.add_row(
            str(row["runs"]), f"{row['seconds']:.0f}", f"{row['seconds'] / row['runs']:.1f}",
            f"{row['teacher_seconds']:.1f}", f"{row['passes']:.2f}", str(row["hits"]),
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    print(f"From the start of the command to the end of the first step, with kept outputs: {start:.1f} s")
    if options.json:
        print(json.dumps({"sweeps": rows, "seconds_to_first_step": start}))


if __name__ == "__main__":
    main()
