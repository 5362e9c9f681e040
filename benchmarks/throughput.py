"""How fast is a whole distillation, next to what a user would run instead?

    python benchmarks/throughput.py --data DIR --teacher DIR --install
    python benchmarks/throughput.py --data DIR --teacher DIR [--examples 8000 --epochs 3 --rounds 3] --json

Everybody gets the same fine-tuned teacher, the same student out of its alternate layers, the same examples, batch size,
learning rate and loss (half soft targets at T=2, half labels), and trains in a process of its own, in turns:

- distill: this project; once with an empty cache, once with what that left behind
- plain: a PyTorch loop with dynamic padding
- plain-bf16: the same under bf16 autocast, for whoever has the hardware
- trainer, trainer-bf16: a Hugging Face Trainer whose loss asks the teacher, as it comes and with `bf16=True`
- textbrewer: TextBrewer's GeneralDistiller with dynamic padding
- textbrewer-caching: TextBrewer's BasicDistiller, which keeps batches and logits in memory

The time is that from texts to a trained student: tokenizing, the teacher's pass, training, scoring dev once (distill
scores it, and writes checkpoints, in every epoch). Loading libraries, data and models is left out for all. The accuracy
is that of the last step. distill trains in bf16 where there is hardware for it, the others as they do by themselves.
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
from machine import describe, has_bf16, peak_flops
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
PEERS = {"trainer": ["accelerate"], "textbrewer": ["textbrewer", "tensorboardX"]}
CONTESTANTS = ("distill", "plain", "plain-bf16", "trainer", "trainer-bf16", "textbrewer", "textbrewer-caching")


def prepared_teacher(options: argparse.Namespace) -> Path:
    """The teacher, fine-tuned on the same examples if its head does not fit; kept in the working directory."""
    config = transformers.AutoConfig.from_pretrained(options.teacher)
    if "SequenceClassification" in str(config.architectures):
        return Path(options.teacher)
    runs = options.work / "teacher-runs"
    if not list(runs.rglob("teacher/model/config.json")):
        print("The teacher is fine-tuned on these examples first.", file=sys.stderr)
        subprocess.run(
            [sys.executable, "-m", "distill", "job=finetune", "+teacher=minilm", f"teacher.path={options.teacher}",
             "task=sst2", f"task.data_dir={options.data}", f"task.train_examples={options.examples}",
             f"cache_dir={options.work}", f"output_dir={runs}"],
            check=True, stdout=sys.stderr, env=environment(options),
        )  # fmt: skip
    return next(runs.rglob("teacher/model/config.json")).parent


def run(options: argparse.Namespace, contestant: str, teacher: Path, cache: Path, seed: int = 0) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks/contestants.py", contestant, "--data", options.data, "--teacher", teacher,
         "--examples", str(options.examples), "--epochs", str(options.epochs), "--work", options.work,
         "--cache", cache, "--teacher-precision", options.teacher_precision, "--seed", str(seed)],
        capture_output=True, text=True, check=False, env=environment(options),
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"{contestant} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"{contestant:20} {found['seconds']:8.1f} s   accuracy {found['accuracy']:.4f}", file=sys.stderr)
    return found


def environment(options: argparse.Namespace) -> dict[str, str]:
    """Of a child: it finds this project and the peers."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(options.work / "peers")])}


def install(directory: Path) -> None:
    """The peers, without what they depend on: torch, numpy and transformers are here."""
    packages = sorted({package for needed in PEERS.values() for package in needed})
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(directory), *packages]
    subprocess.run(pip, check=True, stdout=sys.stderr)


def are_there(contestant: str, peers: Path) -> bool:
    needed = PEERS.get(contestant.partition("-")[0], [])
    return all((peers / package).is_dir() for package in needed)


def absolute(path: str) -> Path:
    return Path(path).expanduser().resolve()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=absolute, help="SST-2: train.tsv and dev.tsv")
    parser.add_argument("--teacher", required=True, type=absolute, help="a BERT, fine-tuned on SST-2 or not")
    parser.add_argument("--examples", type=int, default=8000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=1, help="the medians of so many are shown")
    parser.add_argument("--seed", type=int, default=0, help="of the first round; each has its own")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--teacher-precision", default="float32", choices=("float32", "bfloat16"), help="distill's")
    parser.add_argument(
        "--work", type=absolute, help="keeps teacher, peers and caches; a temporary directory by default"
    )
    parser.add_argument("--install", action="store_true", help="get the peers from the package registry")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        options.work = options.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        compare(options)


def compare(options: argparse.Namespace) -> None:
    peers = options.work / "peers"
    if options.install:
        install(peers)
    teacher = prepared_teacher(options)
    chosen = [name for name in options.contestants.split(",") if are_there(name, peers)]
    for name in set(options.contestants.split(",")) - set(chosen):
        print(f"{name} is left out: --install gets its packages", file=sys.stderr)
    found: dict[str, list[dict[str, Any]]] = {}
    peaks = []
    for seed in range(options.seed, options.seed + options.rounds):
        peaks.append(peak_flops(torch.bfloat16 if has_bf16() else torch.float32))
        with tempfile.TemporaryDirectory() as temporary:
            for name in chosen:
                found.setdefault(name, []).append(run(options, name, teacher, Path(temporary), seed))
                if name == "distill":
                    found.setdefault("distill, again", []).append(run(options, name, teacher, Path(temporary), seed))
    rows = {name: {key: statistics.median(one[key] for one in runs) for key in runs[0]} for name, runs in found.items()}
    peak = statistics.median(peaks)
    table = Table(
        title=f"{options.examples:,} examples, {options.epochs} epochs, median of {options.rounds}; {describe()}; "
        f"matrix products {peak / 1e9:.0f} GFLOP/s in {'bf16' if has_bf16() else 'float32'}"
    )
    for column in ("", "seconds", "examples/s", "tokens/s", "padding", "peak MB", "of the peak", "dev", "distill is"):
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
    print(f"Dev accuracies lie within {spread:.4f}" + ("" if spread <= 0.01 else ": more than 0.01, not equally good"))
    if options.json:
        others = [name for name in rows if not name.startswith("distill")]
        print(json.dumps({
            "ratios": {name: rows[name]["ratio"] for name in others},
            "ratios_with_cache": {name: rows[name]["ratio_again"] for name in others},
            "accuracy_spread": spread, "peak_gflops": peak / 1e9, "machine": describe(), "rows": rows,
        }))  # fmt: skip


if __name__ == "__main__":
    main()
