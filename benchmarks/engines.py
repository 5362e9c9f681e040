"""One sweep on several engines: are its numbers the same, does it survive a lost worker, what does the sweep cost?

    python benchmarks/engines.py --data path/to/sst2 --teacher path/to/all-MiniLM-L6-v2 --output DIR

Twelve short runs of SST-2, four temperatures with three seeds, each with one thread: one after the other, as tasks of a
local Ray cluster, one worker of which is killed after its first checkpoint, and as jobs of SLURM, one of which is
requeued then. The teacher is fine-tuned before. `--engines serial,ray,slurm` selects some of them. All numbers of
run.json but times are compared with those of the serial runs, and so are the student's weights and the exported files.
*Overhead* is the time of the serial sweep beyond the sum of `seconds.total` of its runs, as a share of this sum.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from distill.core.files import hash_file
from distill.records.run import LOCK, RECORD

ROOT = Path(__file__).resolve().parents[1]
ENGINES = {
    "serial": (),
    "ray": ("hydra/launcher=ray",),
    "slurm": ("hydra/launcher=submitit_slurm", "hydra.launcher.cpus_per_task=1", "hydra.launcher.timeout_min=60"),
}
SWEEP = ("objective.terms.soft.temperature=1,2,4,8", "seed=0,1,2")
# Fields of run.json that differ between two runs of the same numbers: times, and who computed the teacher's outputs.
TIMES = {
    "seconds", "teacher_seconds", "examples_per_second", "tokens_per_second", "peak_rss_mb", "benchmark",
    "teacher_cache", "environment", "command", "config_sha256", "sha256",
}  # fmt: skip


def run_command(options: argparse.Namespace, *arguments: str, output: Path) -> subprocess.Popen[bytes]:
    """Starts the command with one thread and a cache that all engines share; its output goes to a file."""
    output.mkdir(parents=True, exist_ok=True)
    common = (
        "+teacher=minilm", f"teacher.path={options.teacher}", "task=sst2", f"task.data_dir={options.data}",
        f"task.train_examples={options.examples}", "task.dev_examples=200", "teacher.finetune.max_epochs=1",
        f"cache_dir={options.output / 'cache'}", f"output_dir={output}",
    )  # fmt: skip
    with open(output / "output.txt", "wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "distill", *arguments, *common], stdout=file, stderr=subprocess.STDOUT, cwd=output,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        )  # fmt: skip


def run_sweep(options: argparse.Namespace, engine: str) -> dict[str, Any]:
    """Runs the sweep on an engine, which loses a worker unless it is the serial one."""
    output = options.output / engine
    start = time.perf_counter()
    sweep = run_command(
        options, "-m", *ENGINES[engine], *SWEEP, "+student=distilbert", "objective=hinton", "trainer=fixed",
        "trainer.max_epochs=1", "trainer.checkpoint_steps=10", "benchmark.seconds=0.2", "benchmark.threads=1",
        "export.recipes=[dynamic]", output=output,
    )  # fmt: skip
    if engine != "serial":
        lose_worker(engine, wait_for_checkpoint(output, sweep))
    if sweep.wait():
        sys.exit((output / "output.txt").read_text(errors="replace"))
    seconds = time.perf_counter() - start
    records = {path.parent: json.loads(path.read_text()) for path in output.rglob(RECORD)}
    total = sum(record["seconds"]["total"] for record in records.values())
    printed = "".join(path.read_text(errors="replace") for path in [output / "output.txt", *output.rglob("*_log.out")])
    return {
        "engine": engine, "seconds": seconds, "total": total,
        "finished": sum(record["status"] == "finished" for record in records.values()),
        "resumed": printed.count("Resuming "),
        "numbers": {key_of(record): numbers_of(directory, record) for directory, record in records.items()},
    }  # fmt: skip


def wait_for_checkpoint(output: Path, sweep: subprocess.Popen[bytes]) -> Path:
    """Waits until a run has a checkpoint of its student, and returns its directory."""
    while not (found := sorted(output.glob("*/*/*/checkpoints/last.ckpt"))):
        if sweep.poll() is not None:
            sys.exit((output / "output.txt").read_text(errors="replace"))
        time.sleep(0.05)
    return found[0].parents[1]


def lose_worker(engine: str, run: Path) -> None:
    """Kills the worker of Ray that has locked the directory of a run, or requeues one of the running jobs of SLURM."""
    if engine == "slurm":
        squeue = ["squeue", "--noheader", "--array"]
        [job, *_] = subprocess.check_output([*squeue, "--states=RUNNING", "--format=%i"], text=True).split()
        subprocess.run(["scontrol", "requeue", job], check=True)
        while "PENDING" not in subprocess.check_output([*squeue, "--format=%T", f"--jobs={job}"], text=True):
            time.sleep(0.1)
        subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], check=True)  # Not in two minutes.
        return
    for process in psutil.process_iter(["cmdline"]):
        if "ray::" in " ".join(process.info["cmdline"] or []):
            with suppress(psutil.Error):
                if str(run / LOCK) in [file.path for file in process.open_files()]:
                    process.kill()


def key_of(record: Mapping[str, Any]) -> tuple[float, int]:
    """Returns the swept options of a run."""
    return record["objective"]["terms"]["soft"]["temperature"], record["seed"]


def numbers_of(directory: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all numbers of a run but times, with the hashes of its student and of its exported files."""
    files = [directory / "student" / "model.safetensors", *sorted((directory / "bundle").glob("*.onnx"))]
    return {"record": without_times(record), "files": {file.name: hash_file(file) for file in files}}


def without_times(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: without_times(item) for name, item in value.items() if name not in TIMES}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def find_differences(one: Any, other: Any, name: str = "") -> list[str]:
    """Returns the names of the values that differ."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return [
            found
            for key in {**one, **other}
            for found in find_differences(one.get(key), other.get(key), f"{name}.{key}")
        ]
    return [] if one == other else [name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="SST-2")
    parser.add_argument("--teacher", type=Path, required=True, help="a BERT; without a head for SST-2 it is fine-tuned")
    parser.add_argument("--output", type=Path, required=True, help="an empty directory")
    parser.add_argument("--examples", type=int, default=1500)
    parser.add_argument("--engines", default=",".join(ENGINES))
    options = parser.parse_args()
    options.output = options.output.absolute()
    first = run_command(options, "job=finetune", output=options.output / "teacher")
    if first.wait():
        sys.exit((options.output / "teacher" / "output.txt").read_text())
    results = [run_sweep(options, engine) for engine in options.engines.split(",")]
    table = Table("engine", "finished", "resumed", "seconds", "of the runs", "overhead", "numbers that differ")
    for result in results:
        differences = find_differences(results[0]["numbers"], result["numbers"])
        overhead = f"{result['seconds'] / result['total'] - 1:.1%}" if result["engine"] == "serial" else "-"
        table.add_row(
            result["engine"], str(result["finished"]), str(result["resumed"]), f"{result['seconds']:.0f}",
            f"{result['total']:.0f}", overhead, str(len(differences)),
        )  # fmt: skip
        for name in differences[:20]:
            print(result["engine"], name)
    Console().print(table)


if __name__ == "__main__":
    main()
