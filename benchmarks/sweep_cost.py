"""Cost of 1, 4 and 8 runs of a temperature sweep, and the time to the first training step with cached outputs.

    python benchmarks/sweep_cost.py --data DIR --teacher DIR [--examples 8000 --runs 1,4,8] [--json]

Each sweep is one call of the command. Its cache holds the fine-tuned teacher and none of its outputs. `--teacher` is a
BERT. Without a head for SST-2 it is fine-tuned once, before the sweeps.
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
# Prints the seconds from the start of the process to the end of the first step, then exits.
EXIT_AFTER_FIRST_STEP = """
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


def run_command(
    options: argparse.Namespace, cache: Path, *arguments: str, program: tuple[str, ...] = ("-m", "distill")
) -> str:
    """Runs the command and returns its standard output."""
    process = subprocess.run(
        [sys.executable, *program, *arguments, "+teacher=minilm", f"teacher.path={options.teacher}",
         "+student=distilbert", "task=sst2", f"task.data_dir={options.data}", f"task.train_examples={options.examples}",
         "objective=hinton", "trainer.max_epochs=1", "augment=none", "baseline=false", "benchmark.enabled=false",
         f"cache_dir={cache}"],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    if process.returncode != 0:
        sys.exit(process.stdout + process.stderr)
    return process.stdout


def run_sweep(options: argparse.Namespace, work: Path, number: int) -> dict[str, Any]:
    """Runs the first `number` temperatures and returns the seconds and cache hits of the sweep."""
    shutil.rmtree(work / "cache" / "outputs", ignore_errors=True)
    output = Path(tempfile.mkdtemp(dir=work))
    start = time.perf_counter()
    temperatures = ",".join(map(str, TEMPERATURES[:number]))
    run_command(
        options, work / "cache", "-m", f"objective.terms.soft.temperature={temperatures}", f"output_dir={output}"
    )
    seconds = time.perf_counter() - start
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
        # Fine-tunes the teacher if necessary, so that no sweep includes it.
        run_command(options, work / "cache", "trainer.max_steps=1", f"output_dir={work / 'first'}")
        rows = [run_sweep(options, work, int(number)) for number in options.runs.split(",")]
        output = run_command(
            options, work / "cache", f"output_dir={work / 'start'}", program=("-c", EXIT_AFTER_FIRST_STEP)
        )
    seconds_to_first_step = float(output.rpartition("first step")[2])
    table = Table(title=f"{options.examples:,} examples, 1 epoch")
    for column in ("runs", "seconds", "per run", "teacher s", "teacher passes", "cache hits"):
        table.add_column(column, justify="right")
    seconds_per_pass = rows[0]["teacher_seconds"]
    for row in rows:
        row["passes"] = row["teacher_seconds"] / seconds_per_pass
        table.add_row(
            str(row["runs"]), f"{row['seconds']:.0f}", f"{row['seconds'] / row['runs']:.1f}",
            f"{row['teacher_seconds']:.1f}", f"{row['passes']:.2f}", str(row["hits"]),
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    print(f"Seconds to the end of the first step, with cached outputs: {seconds_to_first_step:.1f}")
    if options.json:
        print(json.dumps({"sweeps": rows, "seconds_to_first_step": seconds_to_first_step}))


if __name__ == "__main__":
    main()
