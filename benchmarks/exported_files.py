"""Latency of exported files, relative to BERT-base in torch, to Optimum's files, and to the processor's peak.

    python benchmarks/exported_files.py --install
    python benchmarks/exported_files.py --peer path/to/environment/bin/python

The student is a DistilBERT of six layers of 768. All weights are random, because trained weights take the same time.
Its float32 file and the int8 file of the recipe `smoothed` are compared with those that optimum-onnx exports and
quantizes from the same weights. Optimum's float32 file is there with the optimizations of its level O3 as well, after
which it cannot be quantized (optimum-onnx 0.1.0: no type is found for the output of a fused node). Optimum runs in an
environment of its own, which `--install` makes in the directory of `--work`. All files and BERT-base take turns, in the
session of `distill.edge`. The machine may be slow for a while, so that ratios are those of a round, and their median is
shown.
"""

import argparse
import contextlib
import itertools
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import describe_machine, random_material
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
)

from distill.core.console import silence_libraries
from distill.core.files import write_json
from distill.edge import bundle_files
from distill.edge.bundle_files import this_target
from distill.export import bundle_benchmark, latency
from distill.export.bundle_writer import FILES
from distill.export.latency import torch_candidate
from distill.export.onnx import export_onnx
from distill.export.quantization import write_dynamic

INPUTS = ["input_ids", "attention_mask"]
# Optimum is given torch as it is here, and the version of ONNX Runtime.
PEER = ("torch", "onnxruntime")
# argv: the model, the directory of the files, the configuration of quantization.
EXPORT = """
import sys
from optimum.onnxruntime import (
    AutoOptimizationConfig, AutoQuantizationConfig, ORTModelForSequenceClassification, ORTOptimizer, ORTQuantizer,
)
model, directory, target = sys.argv[1:]
ORTModelForSequenceClassification.from_pretrained(model, export=True).save_pretrained(f"{directory}/fp32")
ORTOptimizer.from_pretrained(f"{directory}/fp32").optimize(AutoOptimizationConfig.O3(), f"{directory}/fp32-O3")
config = getattr(AutoQuantizationConfig, target)(is_static=False, per_channel=False)
ORTQuantizer.from_pretrained(f"{directory}/fp32").quantize(config, f"{directory}/int8")
"""
PEER_FILES = {"fp32": "fp32/model.onnx", "fp32-O3": "fp32-O3/model_optimized.onnx", "int8": "int8/model_quantized.onnx"}


def install_peer(directory: Path) -> Path:
    """Returns the Python of a new environment with optimum-onnx and the versions of `PEER` that are installed here."""
    from importlib.metadata import version

    venv.create(directory, with_pip=True)
    python = directory / "bin/python"
    pinned = [f"{name}=={version(name).partition('+')[0]}" for name in PEER]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *pinned, "optimum-onnx[onnxruntime]"], check=True)
    return python


def export_files(student: DistilBertForSequenceClassification, directory: Path) -> dict[str, Path]:
    """Returns the files of this project by format. The ranges of `smoothed` are those of random tokens.

    `int8-dynamic` is the recipe `dynamic`, which does without them, as Optimum's quantization does.
    """
    files = {name: directory / file for name, file in FILES.items()}
    export_onnx(student, files["fp32"])
    material = random_material(files["fp32"], student.config.vocab_size, 128)
    write_dynamic(material, files["int8"], smoothed=True)
    files["int8-dynamic"] = directory / "dynamic.onnx"
    write_dynamic(material, files["int8-dynamic"])
    return files


def export_peer_files(student: DistilBertForSequenceClassification, directory: Path, python: Path) -> dict[str, Path]:
    """Returns the files of Optimum by format, with its quantization for this processor."""
    student.save_pretrained(directory / "student")
    target = {"vnni": "avx512_vnni", "avx2": "avx2", "arm64": "arm64"}[this_target()]
    subprocess.run([python, "-c", EXPORT, directory / "student", directory, target], check=True, stdout=sys.stderr)
    return {name: directory / path for name, path in PEER_FILES.items()}


def measure(files: dict[str, dict[str, Path]], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns a row for each file and size, with the median ms and the share of the peak of each round."""
    teacher = BertForSequenceClassification(BertConfig()).eval()
    candidates = [torch_candidate("BERT-base", teacher, [*INPUTS, "token_type_ids"])]
    candidates += [
        latency.load_candidate(owner, format, path, INPUTS, options.threads)
        for owner, paths in files.items()
        for format, path in paths.items()
    ]
    rounds, peaks = [], []
    for _ in track(range(options.rounds), description="Rounds"):
        peaks.append(bundle_benchmark.measure_peak(options.threads))
        rounds.append(
            latency.measure_latency(
                candidates, batches=options.batches, lengths=options.lengths, threads=options.threads,
                seconds=options.seconds, vocabulary=teacher.config.vocab_size,
            )
        )  # fmt: skip
    operations = {}
    for batch, length in itertools.product(options.batches, options.lengths):
        feed = latency.make_inputs((batch, length), teacher.config.vocab_size)
        inputs = {name: feed[name] for name in INPUTS}
        operations[batch, length] = bundle_benchmark.count_operations(files["distill"]["fp32"], inputs)
    rows = []
    for timings in zip(*rounds, strict=True):
        row = {key: timings[0][key] for key in ("model", "format", "batch", "length", "threads", "bytes")}
        row["p50_ms"] = [timing["p50_ms"] for timing in timings]
        if row["format"] != "torch":
            needed = operations[row["batch"], row["length"]]
            row["share_of_peak"] = [
                bundle_benchmark.share_of_peak(needed, timing["p50_ms"] / 1000, best, row["format"])
                for timing, best in zip(timings, peaks, strict=True)
            ]
        rows.append(row)
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    """Prints a row for each file and size, with its speed relative to BERT-base and to Optimum's file of its kind."""
    table = Table(*("batch", "length", "model", "format", "MB", "ms", "of BERT-base", "of Optimum's", "of the peak"))
    times = {(of["model"], of["format"], of["batch"], of["length"]): of["p50_ms"] for of in rows}
    for row in rows:
        own, size = np.array(row["p50_ms"]), (row["batch"], row["length"])
        equivalent = row["format"].removesuffix("-dynamic")
        teacher, peer = (times.get((*of, *size), ()) for of in (("BERT-base", "torch"), ("Optimum", equivalent)))
        table.add_row(
            str(row["batch"]), str(row["length"]), row["model"], row["format"], f"{row['bytes'] / 1e6:.0f}",
            f"{np.median(own):.2f}", describe(teacher / own), describe(peer / own if peer else ()),
            describe(row.get("share_of_peak", ())),
        )  # fmt: skip
    Console(width=140).print(table)


def describe(values: Sequence[float] | NDArray[np.floating]) -> str:
    """Returns the median and the quartiles of the rounds."""
    if not np.size(values):
        return ""
    low, median, high = np.percentile(values, [25, 50, 75])
    return f"{median:.2f} ({low:.2f} to {high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, help="Python of an environment with optimum-onnx[onnxruntime]")
    parser.add_argument("--install", action="store_true", help="make that environment")
    parser.add_argument("--work", type=Path, help="directory of the environment; temporary by default")
    parser.add_argument("--threads", type=int, default=bundle_files.count_cores())
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--rounds", type=int, default=9, help="of all files and sizes; ratios are those of a round")
    parser.add_argument("--seconds", type=float, default=1.0, help="measuring time per model, size and round")
    parser.add_argument("--json", type=Path, help="a file for all rows")
    options = parser.parse_args()
    silence_libraries()
    with contextlib.ExitStack() as stack:
        if options.install:
            work = options.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            options.peer = install_peer(work / "optimum")
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        torch.manual_seed(0)
        torch.set_num_threads(options.threads)
        student = DistilBertForSequenceClassification(DistilBertConfig()).eval()
        files = {"distill": export_files(student, directory)}
        if options.peer:
            files["Optimum"] = export_peer_files(student, directory, options.peer)
        rows = measure(files, options)
    print(f"{describe_machine()}, {options.threads} thread(s)")
    print_table(rows)
    if options.json:
        write_json(options.json, {"rows": rows})


if __name__ == "__main__":
    main()
