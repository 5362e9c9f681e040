"""Time and memory of a student of long texts: local attention beside full attention, in torch and in ONNX.

    python benchmarks/long_texts.py [--lengths 1024,2048,4096] [--rounds 5] [--window 256]

Both have 6 layers of width 384, as MiniLM, and random weights, because trained weights take the same time. The batch
size is 1. The models take turns in every round, and a time is the median over the rounds. The memory is what one text
of each length adds to a process that has loaded the ONNX file, so that the weights are left out.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from machine import describe_machine
from rich.console import Console
from rich.table import Table
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel

from distill.edge.bundle_files import session
from distill.export.onnx import export_onnx
from distill.training import processes
from students import distilbert

SIZES = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
Feed = Mapping[str, np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="1024,2048,4096")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--memory-of", type=Path, help=argparse.SUPPRESS)  # Of this file, in a process of its own.
    options = parser.parse_args()
    lengths = list(map(int, options.lengths.split(",")))
    if options.memory_of is not None:
        print(json.dumps(measure_memory(options.memory_of, lengths[0])))
        return
    processes.keep_freed_memory()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    teacher = BertForSequenceClassification(BertConfig(**SIZES, max_position_embeddings=max(lengths)))
    models = {
        "full": distilbert.from_teacher(teacher, depth=6).eval(),
        "local": distilbert.from_teacher(teacher, depth=6, attention="local", window=options.window).eval(),
    }
    with tempfile.TemporaryDirectory() as directory:
        files = {name: Path(directory) / f"{name}.onnx" for name in models}
        runs: dict[tuple[str, str], Callable[[Feed], object]] = {}
        for name, model in models.items():
            export_onnx(model, files[name])
            runs[name, "torch"] = partial(run_torch, model)
            runs[name, "onnx"] = partial(session(files[name], 1).run, ["logits"])
        seconds = measure_seconds(runs, lengths, options.rounds)
        megabytes = {(name, length): read_memory(files[name], length) for name in models for length in lengths}
    print_table(seconds, megabytes, lengths)


def make_feed(length: int) -> Feed:
    """Returns one text of random tokens without padding."""
    ids = np.random.default_rng(0).integers(1000, 30000, (1, length))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def run_torch(model: PreTrainedModel, feed: Feed) -> object:
    """Runs the model in torch."""
    with torch.inference_mode():
        return model(**{name: torch.from_numpy(values) for name, values in feed.items()}).logits


def measure_seconds(
    runs: Mapping[tuple[str, str], Callable[[Feed], object]], lengths: list[int], rounds: int
) -> dict[tuple[str, str, int], float]:
    """Returns the median seconds of each model, format and length, after one round that is not timed."""
    every: dict[tuple[str, str, int], list[float]] = {}
    for number in range(rounds + 1):
        for length in lengths:
            feed = make_feed(length)
            for key, run in runs.items():
                start = time.perf_counter()
                run(feed)
                if number:
                    every.setdefault((*key, length), []).append(time.perf_counter() - start)
    return {key: statistics.median(values) for key, values in every.items()}


def measure_memory(file: Path, length: int) -> float:
    """Returns the MB that one text adds to this process, which has loaded the file and read a short text."""
    loaded: onnxruntime.InferenceSession = session(file, 1)
    loaded.run(["logits"], make_feed(9))
    if not processes.reset_peak():
        return float("nan")
    before = processes.peak_mb()
    loaded.run(["logits"], make_feed(length))
    return processes.peak_mb() - before


def read_memory(file: Path, length: int) -> float:
    """Returns `measure_memory` of a process of its own."""
    command = [sys.executable, __file__, "--memory-of", str(file), "--lengths", str(length)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def print_table(
    seconds: Mapping[tuple[str, str, int], float], megabytes: Mapping[tuple[str, int], float], lengths: list[int]
) -> None:
    """Prints a row for each length, with the growth from the length before it."""
    table = Table(title=f"6 layers of 384, batch 1, 1 thread; {describe_machine()}")
    for column in ("tokens", "format", "full ms", "local ms", "local / full", "growth of local", "full MB", "local MB"):
        table.add_column(column, justify="right")
    for format in ("torch", "onnx"):
        for before, length in zip([None, *lengths], lengths, strict=False):
            full, local = (seconds[name, format, length] for name in ("full", "local"))
            growth = "" if before is None else f"{local / seconds['local', format, before]:.2f}x"
            sizes = [f"{megabytes[name, length]:,.0f}" if format == "onnx" else "" for name in ("full", "local")]
            table.add_row(
                f"{length:,}",
                format,
                f"{1e3 * full:,.0f}",
                f"{1e3 * local:,.0f}",
                f"{local / full:.2f}",
                growth,
                *sizes,
            )
    Console(width=None if sys.stdout.isatty() else 120).print(table)


if __name__ == "__main__":
    main()
