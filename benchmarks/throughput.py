"""Speed of a whole distillation next to the tools that a user would run instead.

    python benchmarks/throughput.py --data DIR --teacher DIR --install
    python benchmarks/throughput.py --data DIR --teacher DIR [--examples 8000 --epochs 3 --rounds 3] --json

All contestants get the same fine-tuned teacher, the same student made of its alternate layers, the same examples, batch
size, learning rate and loss (half soft targets at T=2, half labels). They take turns, each in a process of its own:

- distill: this project, once with an empty cache and once ("distill, again") with the cached outputs of the first run
- plain: a PyTorch loop with dynamic padding
- plain-bf16: the same loop under bf16 autocast
- trainer, trainer-bf16: a Hugging Face Trainer that runs the teacher in its loss, by default and with `bf16=True`
- textbrewer: TextBrewer's GeneralDistiller with dynamic padding
- textbrewer-caching: TextBrewer's BasicDistiller, which caches batches and logits in memory

The time covers tokenization, the teacher's pass, training and one evaluation on dev. distill evaluates and writes a
checkpoint in every epoch. Importing libraries and loading data and models is not timed. The accuracy is that of the
last step. distill trains in bf16 where the hardware supports it, the others in their default precision.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from machine import describe_machine, has_bf16, measure_peak_flops
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
PEERS = {"trainer": ["accelerate"], "textbrewer": ["textbrewer", "tensorboardX"]}
CONTESTANTS = ("distill", "plain", "plain-bf16", "trainer", "trainer-bf16", "textbrewer", "textbrewer-caching")


def prepare_teacher(options: argparse.Namespace) -> Path:
    """Returns the teacher, fine-tuned in the working directory on the same examples if it has no classifier."""
    config = transformers.AutoConfig.from_pretrained(options.teacher)
    if "SequenceClassification" in str(config.architectures):
        return Path(options.teacher)
    runs = options.work / "teacher-runs"
    if not list(runs.rglob("teacher/model/config.json")):
        print("Fine-tuning the teacher on these examples first.", file=sys.stderr)
        subprocess.run(
            [sys.executable, "-m", "distill", "job=finetune", "+teacher=minilm", f"teacher.path={options.teacher}",
             "task=sst2", f"task.data_dir={options.data}", f"task.train_examples={options.examples}",
             f"cache_dir={options.work}", f"output_dir={runs}"],
            check=True, stdout=sys.stderr, env=make_environment(options),
        )  # fmt: skip
    return Path(next(runs.rglob("teacher/model/config.json"))).parent


def run_contestant(
    options: argparse.Namespace, contestant: str, teacher: Path, cache: Path, seed: int = 0
) -> dict[str, Any]:
    """Trains with one contestant in a process of its own and returns the JSON that it prints."""
    process = subprocess.run(
        [sys.executable, ROOT / "benchmarks/contestants.py", contestant, "--data", options.data, "--teacher", teacher,
         "--examples", str(options.examples), "--epochs", str(options.epochs), "--work", options.work,
         "--cache", cache, "--teacher-precision", options.teacher_precision, "--seed", str(seed)],
        capture_output=True, text=True, check=False, env=make_environment(options),
    )  # fmt: skip
    if process.returncode != 0:
        sys.exit(f"{contestant} failed:\n{process.stderr}")
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    print(f"{contestant:20} {result['seconds']:8.1f} s   accuracy {result['accuracy']:.4f}", file=sys.stderr)
    return result


def make_environment(options: argparse.Namespace) -> dict[str, str]:
    """Returns the environment of a subprocess that imports this checkout and the peers."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(options.work / "peers")])}


def install_peers(directory: Path) -> None:
    """Installs the peers without their dependencies, because torch, numpy and transformers are installed."""
    packages = sorted({package for needed in PEERS.values() for package in needed})
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(directory), *packages]
    subprocess.run(pip, check=True, stdout=sys.stderr)


def has_packages(contestant: str, peers: Path) -> bool:
    """Returns whether the packages of a contestant are installed among the peers."""
    needed = PEERS.get(contestant.partition("-")[0], [])
    return all((peers / package).is_dir() for package in needed)


def resolve_path(path: str) -> Path:
    return Path(path).expanduser().resolve()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=resolve_path, help="SST-2: train.tsv and dev.tsv")
    parser.add_argument("--teacher", required=True, type=resolve_path, help="a BERT, fine-tuned on SST-2 or not")
    parser.add_argument("--examples", type=int, default=8000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=1, help="number of rounds; medians are shown")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first round; each further round adds 1")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--teacher-precision", default="float32", choices=("float32", "bfloat16"), help="in distill")
    parser.add_argument(
        "--work", type=resolve_path, help="directory of teacher, peers and caches; temporary by default"
    )
    parser.add_argument("--install", action="store_true", help="install the peers from the package registry")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        options.work = options.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        compare(options)


def compare(options: argparse.Namespace) -> None:
    peers = options.work / "peers"
    if options.install:
        install_peers(peers)
    teacher = prepare_teacher(options)
    chosen = [name for name in options.contestants.split(",") if has_packages(name, peers)]
    for name in set(options.contestants.split(",")) - set(chosen):
        print(f"{name} is skipped because its packages are missing: add --install", file=sys.stderr)
    results: dict[str, list[dict[str, Any]]] = {}
    peaks = []
    for seed in range(options.seed, options.seed + options.rounds):
        peaks.append(measure_peak_flops(torch.bfloat16 if has_bf16() else torch.float32))
        with tempfile.TemporaryDirectory() as temporary:
            for name in chosen:
                results.setdefault(name, []).append(run_contestant(options, name, teacher, Path(temporary), seed))
                if name == "distill":
                    result = run_contestant(options, name, teacher, Path(temporary), seed)
                    results.setdefault("distill, again", []).append(result)
    rows = {
        name: {key: statistics.median(result[key] for result in rounds) for key in rounds[0]}
        for name, rounds in results.items()
    }
    peak = statistics.median(peaks)
    table = Table(
        title=f"{options.examples:,} examples, {options.epochs} epochs, median of {options.rounds}; "
        f"{describe_machine()}; matrix products {peak / 1e9:.0f} GFLOP/s in {'bf16' if has_bf16() else 'float32'}"
    )
    columns = (
        "",
        "seconds",
        "examples/s",
        "tokens/s",
        "padding",
        "peak MB",
        "of the peak",
        "dev",
        "distill's speed-up",
    )
    for column in columns:
        table.add_column(column, justify="right" if column else "left")
    for name, row in rows.items():
        row["share_of_peak"] = row["useful_flops"] / row["seconds"] / peak
        row["ratio"] = row["seconds"] / rows["distill"]["seconds"]
        row["ratio_again"] = row["seconds"] / rows["distill, again"]["seconds"]
        table.add_row(
            name, f"{row['seconds']:.1f}", f"{row['examples_per_second']:.0f}", f"{row['tokens_per_second']:,.0f}",
            f"{row['padding']:.1%}", f"{row['peak_rss_mb']:,.0f}", f"{row['share_of_peak']:.2f}",
            f"{row['accuracy']:.4f}", f"{row['ratio']:.2f}x, again {row['ratio_again']:.2f}x",
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    accuracies = [row["accuracy"] for row in rows.values()]
    spread = max(accuracies) - min(accuracies)
    warning = "" if spread <= 0.01 else ": more than 0.01, the students are not equally good"
    print(f"Dev accuracies differ by at most {spread:.4f}{warning}")
    if options.json:
        others = [name for name in rows if not name.startswith("distill")]
        print(json.dumps({
            "ratios": {name: rows[name]["ratio"] for name in others},
            "ratios_with_cache": {name: rows[name]["ratio_again"] for name in others},
            "accuracy_spread": spread, "peak_gflops": peak / 1e9, "machine": describe_machine(), "rows": rows,
        }))  # fmt: skip


if __name__ == "__main__":
    main()
