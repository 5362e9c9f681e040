"""Speed of an exported CNN relative to a BiLSTM, for one text at a time.

    python benchmarks/cnn_against_bilstm.py
    python benchmarks/cnn_against_bilstm.py --cnn path/to/cnn/bundle --bilstm path/to/bilstm/bundle

Without bundles both students follow a MiniLM with random weights, have the sizes of their YAML, and random weights too,
because trained weights take the same time. The int8 files are those of the recipe `smoothed`. All files take turns,
timed by the code that times every run (distill.export.latency), without the tokenizer. The machine may be slow for a
while, so that ratios are those of a round, and their median and quartiles are shown.
"""

import argparse
import contextlib
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import describe_machine, random_material
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import BertConfig, BertForSequenceClassification

from distill.core.console import silence_libraries
from distill.core.files import write_json
from distill.export import latency
from distill.export.bundle_writer import FILES
from distill.export.onnx import export_onnx
from distill.export.quantization import write_dynamic
from distill.kinds import Classification
from students import bilstm, cnn

INPUTS = ["input_ids", "attention_mask"]
MINILM = {"hidden_size": 384, "num_hidden_layers": 1, "num_attention_heads": 12, "intermediate_size": 1536}
STUDENTS = {"CNN": cnn, "BiLSTM": bilstm}


def export_files(name: str, directory: Path) -> dict[str, Path]:
    """Returns the files of a student with random weights by format."""
    teacher = BertForSequenceClassification(BertConfig(**MINILM))
    student = STUDENTS[name].from_teacher(teacher, task=Classification(text="sentence")).eval()
    files = {format: directory / f"{name}-{file}" for format, file in FILES.items()}
    export_onnx(student, files["fp32"])
    write_dynamic(random_material(files["fp32"], teacher.config.vocab_size, 64), files["int8"], smoothed=True)
    return files


def measure(files: dict[str, dict[str, Path]], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns a row for each file and length, with the median ms of each round."""
    candidates = [
        latency.load_candidate(name, format, path, INPUTS, options.threads)
        for name, paths in files.items()
        for format, path in paths.items()
    ]
    rounds = [
        latency.measure_latency(
            candidates, batches=[1], lengths=options.lengths, threads=options.threads, seconds=options.seconds,
            vocabulary=options.vocabulary,
        )
        for _ in track(range(options.rounds), description="Rounds")
    ]  # fmt: skip
    return [
        {key: timings[0][key] for key in ("model", "format", "length", "threads", "bytes")}
        | {"p50_ms": [timing["p50_ms"] for timing in timings]}
        for timings in zip(*rounds, strict=True)
    ]


def print_table(rows: list[dict[str, Any]]) -> None:
    """Prints a row for each file and length, and how many times as fast the CNN is as the BiLSTM in the same format."""
    table = Table(*("length", "format", "model", "MB", "ms", "times as fast"))
    times = {(row["model"], row["format"], row["length"]): np.array(row["p50_ms"]) for row in rows}
    for row in sorted(rows, key=lambda row: (row["length"], row["format"], row["model"])):
        own = times[row["model"], row["format"], row["length"]]
        ratio = ""
        if row["model"] == "CNN":
            low, median, high = np.percentile(times["BiLSTM", row["format"], row["length"]] / own, [25, 50, 75])
            ratio = f"{median:.2f} ({low:.2f} to {high:.2f})"
        table.add_row(
            str(row["length"]), row["format"], row["model"], f"{row['bytes'] / 1e6:.1f}", f"{np.median(own):.3f}", ratio
        )
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cnn", type=Path, help="directory of a bundle")
    parser.add_argument("--bilstm", type=Path, help="directory of a bundle of the same vocabulary")
    parser.add_argument("--vocabulary", type=int, default=30_000, help="ids of the random texts, at most the bundles'")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lengths", type=int, nargs="+", default=[8, 16, 32, 64, 128])
    parser.add_argument("--rounds", type=int, default=9, help="of all files and lengths; ratios are those of a round")
    parser.add_argument("--seconds", type=float, default=0.5, help="measuring time per file, length and round")
    parser.add_argument("--json", type=Path, help="a file for all rows")
    options = parser.parse_args()
    silence_libraries()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        files = {}
        for name, bundle in (("CNN", options.cnn), ("BiLSTM", options.bilstm)):
            in_bundle = None if bundle is None else {format: bundle / file for format, file in FILES.items()}
            files[name] = in_bundle or export_files(name, directory)
        rows = measure(files, options)
    print(f"{describe_machine()}, {options.threads} thread(s), batches of 1")
    print_table(rows)
    if options.json:
        write_json(options.json, {"rows": rows})


if __name__ == "__main__":
    main()
