"""Do memory and time of `job=teach`, and of a training that streams its shards, stay flat and linear in the texts?

    python benchmarks/shards.py --data path/to/sst2 [--millions 0.05,1,5 --work DIR --workers 2]

The texts are made of random words, the teacher has two layers of width 64, and the student one of them. Each command
runs in a process of its own, whose peak of memory and seconds are shown. A row says how much more memory than with the
fewest texts the pass and the training took, and how soon the whole command ended: the training has ten steps, so that
nearly all of its seconds are those before the first one. `--made 20` adds a training over so many million texts whose
outputs are made up, because a pass over them takes most of an hour. With `--workers 2` the pass is timed again by two
processes at once. Every process has a core of its own. With `--kills 20` it is killed so many times at random and
started again, and its shards are compared with those of a pass that ran through.
"""

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from machine import describe_machine
from rich.console import Console
from rich.table import Table
from transformers import BertConfig, BertForSequenceClassification

from distill.data.shards import Manifest, ShardWriter
from distill.text.vocabulary import train_word_pieces

WORDS = [
    f"{first}{second}" for first in ("ka", "lo", "mi", "nu", "ra", "se") for second in ("ten", "vor", "lis", "dam")
]
LABELS = ("negative", "positive")


def make_texts(path: Path, number: int) -> None:
    """Writes so many different texts of four to nine words, one on each line."""
    chosen = np.random.default_rng(0)
    with path.open("w") as file:
        for first in range(0, number, 100_000):
            rows = chosen.integers(0, len(WORDS), (min(100_000, number - first), 8))
            lengths = chosen.integers(3, 9, len(rows))
            for row, (words, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
                file.write(f"{' '.join(WORDS[word] for word in words[:length])} {first + row}\n")


def make_teacher(directory: Path) -> None:
    """Saves a classifier of two layers with random weights, whose labels are those of SST-2."""
    tokenizer = train_word_pieces([" ".join(WORDS), *map(str, range(2000))], 500)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=256,
        id2label=dict(enumerate(LABELS)), label2id={name: number for number, name in enumerate(LABELS)},
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def start(work: Path, *options: str, worker: int = 0) -> subprocess.Popen[bytes]:
    """Starts a command on one core, of each worker another one."""
    cores = sorted(os.sched_getaffinity(0))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    log = (work / "log.txt").open("ab")
    command = [sys.executable, "-m", "distill", *options]
    process = subprocess.Popen(command, cwd=work, stdout=log, stderr=log, env=environment)
    os.sched_setaffinity(process.pid, {cores[worker % len(cores)]})
    return process


def finish(process: subprocess.Popen[bytes]) -> tuple[int, float]:
    """Returns the exit status of a process and its peak of memory in MB."""
    _, status, usage = os.wait4(process.pid, 0)
    return os.waitstatus_to_exitcode(status), usage.ru_maxrss / 1024


def run(work: Path, *options: str, workers: int = 1) -> tuple[float, float]:
    """Runs a command so many times at once; returns the seconds and the largest peak of memory in MB."""
    begin = time.perf_counter()
    ends = [finish(process) for process in [start(work, *options, worker=worker) for worker in range(workers)]]
    if any(code for code, _ in ends):
        raise SystemExit((work / "log.txt").read_text()[-2000:])
    return time.perf_counter() - begin, max(peak for _, peak in ends)


def digest(directory: Path) -> list[str]:
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.glob("*.parquet"))]


def kill_at_random(work: Path, options: list[str], kills: int, seconds: float) -> int:
    """Starts a pass that is killed so many times, and then one that ends; returns the number of starts."""
    moments = random.Random(0)
    for _ in range(kills):
        process = start(work, *options)
        time.sleep(moments.uniform(0.2, 1) * seconds)
        os.kill(process.pid, signal.SIGKILL)
        finish(process)
    run(work, *options)
    return kills + 1


def make_shards(work: Path, like: str, name: str, number: int, size: int) -> None:
    """Writes shards of so many texts with random outputs, which are said to be of the teacher of other shards."""
    writer = ShardWriter(work / name, replace(Manifest.read(work / like), source=(name,), shards=None))
    chosen, shards = np.random.default_rng(0), -(-number // size)
    for shard in range(shards):
        rows = chosen.integers(0, len(WORDS), (size, 6)).tolist()
        texts = [f"{' '.join(WORDS[word] for word in words)} {shard * size + row}" for row, words in enumerate(rows)]
        writer.write(shard, {"sentence": texts}, chosen.normal(size=(size, 2)).astype(np.float32))
    writer.finish(shards)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="SST-2: train.tsv and dev.tsv")
    parser.add_argument("--millions", default="0.05,1,5", help="millions of texts, the fewest first")
    parser.add_argument("--texts", type=int, default=50_000, help="texts of a shard")
    parser.add_argument("--made", type=float, help="millions of texts with made outputs, for a training alone")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--work", type=Path, help="directory of texts and shards; temporary by default")
    options = parser.parse_args()
    table = Table(title=f"Shards of {options.texts:,} texts; {describe_machine()}")
    for column in ("texts", "pass s", "texts/s", "MB more", "training s", "MB more", "workers", "shards"):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        make_teacher(work / "teacher")
        common = [
            "+teacher=pretrained", f"teacher.path={work / 'teacher'}", "teacher.accept_weak=true", "cache_dir=cache",
            "task=sst2", f"task.data_dir={Path(options.data).absolute()}", "task.train_examples=2000",
        ]  # fmt: skip
        train = [
            *common, "+student=distilbert", "objective=hinton", "trainer.max_steps=10", "export.enabled=false",
            "benchmark.enabled=false", "baseline=false",
        ]  # fmt: skip
        least: tuple[float, float] | None = None
        for millions in map(float, options.millions.split(",")):
            number = round(millions * 1e6)
            make_texts(work / "texts.txt", number)
            teach = ["job=teach", "data=texts.txt", f"teach.texts={options.texts}", *common]
            seconds, peak = run(work, *teach, f"teach.output=shards{number}")
            trained, train_peak = run(work, *train, f"task.unlabelled=shards{number}")
            least = least or (peak, train_peak)
            faster, same = "", ""
            if options.workers > 1:
                together, _ = run(work, *teach, f"teach.output=together{number}", workers=options.workers)
                faster = f"{seconds / together:.2f}x"
                same = str(digest(work / f"together{number}") == digest(work / f"shards{number}"))
            if options.kills:
                kill_at_random(work, [*teach, f"teach.output=killed{number}"], options.kills, seconds)
                same = str(digest(work / f"killed{number}") == digest(work / f"shards{number}"))
            row = (
                f"{number:,}", f"{seconds:.0f}", f"{number / seconds:,.0f}", f"{peak - least[0]:+.0f}",
                f"{trained:.1f}", f"{train_peak - least[1]:+.0f}", faster, same,
            )  # fmt: skip
            table.add_row(*row)
            print(*row, file=sys.stderr, flush=True)
        if options.made and least:
            made = round(options.made * 1e6)
            make_shards(work, f"shards{number}", "made", made, options.texts)
            trained, train_peak = run(work, *train, "task.unlabelled=made")
            row = (f"{made:,} made", "", "", "", f"{trained:.1f}", f"{train_peak - least[1]:+.0f}", "", "")
            table.add_row(*row)
            print(*row, file=sys.stderr, flush=True)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


if __name__ == "__main__":
    main()
