"""Every recipe of quantization on exported students: what it keeps, its size and its speed.

    python benchmarks/quantization.py RUN [RUN ...]
    python benchmarks/quantization.py --shape 6,768,12 --length 128

A run is a directory that `python -m distill` wrote, of a task with classes or numbers. Each recipe is applied to the
float32 file of its bundle and scored on dev from the file. The latencies of a student's files are measured in turns.

`--shape` times a DistilBERT with random weights of so many layers, width and heads: plain and smoothed files, and one
that keeps the second feed-forward matrix of the first third of its layers in float32. In students of MiniLM with three
layers, `mixed` kept that of the first layer.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import describe_machine, random_material
from transformers import DistilBertConfig, DistilBertForSequenceClassification

import students
from distill.core.console import silence_libraries
from distill.core.contracts import Scores
from distill.edge import Bundle
from distill.edge.bundle_files import this_target, weight_bits
from distill.export import graph, quantization
from distill.export.bundle_writer import Scorer
from distill.export.latency import load_candidate, measure_latency
from distill.export.onnx import export_onnx
from distill.export.recipe_search import RecipeSearch
from distill.jobs import execution
from distill.jobs.preflight import check_targets
from distill.records.run import CONFIG, read_config

assert students
RECIPES = ("dynamic", "smoothed", "mixed", "static", "weight_only", "float16")
BATCHES = (1, 8)
INPUTS = ["input_ids", "attention_mask"]  # Of a student with random weights.


def measure(run: Path, directory: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns a row for the float32 file and for every recipe."""
    config = read_config(run / CONFIG)
    check_targets(config, source=run / CONFIG, trust=())
    plan = execution.build_plan(config)
    [task] = plan.tasks.values()
    splits: Any = task.read(plan.cache_dir)
    scoring = splits.scoring
    bundle = Bundle(run / "bundle", model="fp32")
    dev = splits.scored()["dev"]
    labels = np.asarray(dev.labels)
    reference = {"dev": Scores({"logits": bundle.logits(dev.records())}, labels, np.arange(len(labels)))}
    scorer, fp32 = Scorer(bundle, splits, reference, plan.export), run / "bundle" / bundle.manifest["models"]["fp32"]
    material, target = (quantization.RecipeInput(fp32, weight_bits(this_target()), scorer.calibration()), this_target())
    rows: list[dict[str, Any]] = [{"recipe": "float32", "metrics": scoring.metrics(reference["dev"])}]
    files = [fp32]
    for recipe in RECIPES:
        path = directory / f"{run.name}-{recipe}.onnx"
        settings = replace(plan.export, recipes=(recipe,))
        search = RecipeSearch(material, target, scorer.torch, scorer.score, settings)
        [attempt] = search.run(path, path)
        if path.is_file():  # A failed float16 file is not kept.
            rows.append(dict(attempt))
            files.append(path)
    add_times(rows, files, bundle.manifest["inputs"], bundle.tokenizer.get_vocab_size(), arguments)
    return [row | {"run": str(run), "metric": scoring.metric} for row in rows]


def measure_shape(directory: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns a row for the float32 file of a student with random weights, and for three recipes."""
    layers, width, heads = arguments.shape
    torch.manual_seed(0)
    config = DistilBertConfig(n_layers=layers, dim=width, hidden_dim=4 * width, n_heads=heads)
    fp32 = directory / "float32.onnx"
    export_onnx(DistilBertForSequenceClassification(config).eval(), fp32)
    material = random_material(fp32, config.vocab_size, arguments.length)
    matrices = {tensor.name: tensor.dims for tensor in material.graph().graph.initializer}
    products = graph.find_products(material.graph())
    kept = [product.name for product in products if matrices[product.weight][0] == 4 * width][: max(1, layers // 3)]
    rows: list[dict[str, Any]] = [{"recipe": "float32"}]
    for recipe, keep in (("dynamic", []), ("smoothed", []), ("mixed", kept)):
        path = directory / f"{recipe}.onnx"
        quantization.write_dynamic(material, path, keep=keep, smoothed=recipe != "dynamic")
        rows.append({"recipe": recipe, "kept": keep})
    add_times(rows, [directory / f"{row['recipe']}.onnx" for row in rows], INPUTS, config.vocab_size, arguments)
    return rows


def add_times(
    rows: list[dict[str, Any]], files: list[Path], inputs: list[str], vocabulary: int, arguments: argparse.Namespace
) -> None:
    """Adds the size and the median latencies of its file to each row."""
    candidates = [
        load_candidate("student", row["recipe"], path, inputs, arguments.threads)
        for row, path in zip(rows, files, strict=True)
    ]
    times = measure_latency(
        candidates, batches=BATCHES, lengths=[arguments.length], threads=arguments.threads, seconds=arguments.seconds,
        vocabulary=vocabulary,
    )  # fmt: skip
    for row, candidate in zip(rows, candidates, strict=True):
        row["bytes"] = candidate.bytes
        row |= {f"p50_{time['batch']}": time["p50_ms"] for time in times if time["format"] == candidate.format}


def table(rows: list[dict[str, Any]]) -> str:
    """Returns the rows of one student as a Markdown table; the quality of a file is there if it was scored."""
    metric = rows[0].get("metric")
    head = ["recipe"] + ([metric, "agreement", "largest difference"] if metric else [])
    head += ["MB", *(f"ms, batch {batch} (speed-up)" for batch in BATCHES)] + (["gate", "s"] if metric else [])
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for row in rows:
        line = [f"{row['recipe']} ({len(row['kept'])} kept)" if row.get("kept") else row["recipe"]]
        if metric:
            numbers = row["metrics"][metric], row.get("agreement", 1)
            line += [*(f"{number:.4f}" for number in numbers), f"{row.get('max_probability_diff', 0):.3f}"]
        line.append(f"{row['bytes'] / 1e6:.1f}")
        line += [f"{row[f'p50_{b}']:.2f} ({rows[0][f'p50_{b}'] / row[f'p50_{b}']:.1f}x)" for b in BATCHES]
        if metric:
            line += [row.get("gate", ""), f"{row['seconds']:.1f}" if "seconds" in row else ""]
        lines.append(line)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="*")
    parser.add_argument("--shape", type=int, nargs=3, metavar=("LAYERS", "WIDTH", "HEADS"))
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", type=Path, help="a file for all rows")
    arguments = parser.parse_args()
    silence_libraries()
    measured: dict[str, Callable[[Path, argparse.Namespace], list[dict[str, Any]]]] = {
        str(run): partial(measure, run) for run in arguments.runs
    }
    if arguments.shape:
        measured["{} layers, {} wide, {} heads".format(*arguments.shape)] = measure_shape
    results = []
    for title, function in measured.items():
        with tempfile.TemporaryDirectory() as directory:
            rows = function(Path(directory), arguments)
        print(f"\n{title}\n\n{table(rows)}", flush=True)
        results += rows
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": describe_machine(), "rows": results}, indent=1))


if __name__ == "__main__":
    main()
