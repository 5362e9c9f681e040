"""Every recipe of quantization on exported students: what it keeps, its size and its speed.

    python benchmarks/quantization.py RUN [RUN ...]

A run is a directory that `python -m distill` wrote, of a task with classes or numbers. Each recipe is applied to the
float32 file of its bundle and scored on dev from the file. The latencies of a student's files are measured in turns.
"""

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from machine import environment
from omegaconf import DictConfig, OmegaConf

import students
from distill.benchmark.latency import load_onnx_candidate, measure_latency
from distill.console import silence_libraries
from distill.contracts import Scores
from distill.edge import Bundle
from distill.edge.processor import this_target, weight_bits
from distill.export.bundle import Scorer
from distill.export.quantization import Material
from distill.export.recipe_ladder import RecipeLadder
from distill.jobs import build
from distill.jobs.upgrade import upgrade

assert students
RECIPES = ("dynamic", "smoothed", "mixed", "static", "weight_only", "float16")
BATCHES = (1, 8)


def measure(run: Path, directory: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns a row for the float32 file and for every recipe."""
    config = OmegaConf.load(run / "config.yaml")
    assert isinstance(config, DictConfig)
    plan = build.plan(upgrade(config))
    splits: Any = plan.task.read(plan.cache_dir)
    bundle = Bundle(run / "bundle", model="fp32")
    dev = splits.scored()["dev"]
    labels = np.asarray(dev.labels)
    reference = {"dev": Scores({"logits": bundle.logits(dev.texts, dev.pairs)}, labels, np.arange(len(labels)))}
    scorer, fp32 = Scorer(bundle, splits, reference), run / "bundle" / bundle.manifest["models"]["fp32"]
    material, target = Material(fp32, weight_bits(this_target()), scorer.calibration(plan.export)), this_target()
    rows: list[dict[str, Any]] = [{"recipe": "float32", "metrics": plan.task.metrics(reference["dev"])}]
    candidates = [load_onnx_candidate("student", "float32", fp32, bundle.manifest["inputs"], arguments.threads)]
    for recipe in RECIPES:
        path = directory / f"{run.name}-{recipe}.onnx"
        settings = replace(plan.export, recipes=(recipe,))
        ladder = RecipeLadder(material, target, plan.task, reference, scorer.score, settings)
        [rung] = ladder.climb(path, path)
        if path.is_file():  # A failed float16 file is not kept.
            rows.append(dict(rung))
            inputs = bundle.manifest["inputs"]
            candidates.append(load_onnx_candidate("student", recipe, path, inputs, arguments.threads))
    times = measure_latency(
        candidates, batches=BATCHES, lengths=[arguments.length], threads=arguments.threads, seconds=arguments.seconds,
        vocabulary=bundle.tokenizer.get_vocab_size(),
    )  # fmt: skip
    for row, candidate in zip(rows, candidates, strict=True):
        row |= {"run": str(run), "metric": plan.task.metric, "bytes": candidate.bytes}
        row |= {f"p50_{time['batch']}": time["p50_ms"] for time in times if time["format"] == candidate.format}
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Returns the rows of one student as a Markdown table."""
    metric = rows[0]["metric"]
    head = [
        "recipe", metric, "agreement", "largest difference", "MB",
        *(f"ms, batch {batch} (speed-up)" for batch in BATCHES), "gate", "s",
    ]  # fmt: skip
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for row in rows:
        name = f"{row['recipe']} ({len(row['kept'])} kept)" if row.get("kept") else row["recipe"]
        times = [f"{row[f'p50_{b}']:.2f} ({rows[0][f'p50_{b}'] / row[f'p50_{b}']:.1f}x)" for b in BATCHES]
        lines.append([
            name, f"{row['metrics'][metric]:.4f}", f"{row.get('agreement', 1):.4f}",
            f"{row.get('max_probability_diff', 0):.3f}", f"{row['bytes'] / 1e6:.1f}", *times, row.get("gate", ""),
            f"{row['seconds']:.1f}" if "seconds" in row else "",
        ])  # fmt: skip
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", type=Path, help="a file for all rows")
    arguments = parser.parse_args()
    silence_libraries()
    results = []
    for run in arguments.runs:
        with tempfile.TemporaryDirectory() as directory:
            rows = measure(run, Path(directory), arguments)
        print(f"\n{run}\n\n{table(rows)}", flush=True)
        results += rows
    if arguments.json:
        arguments.json.write_text(json.dumps({"environment": environment(), "rows": results}, indent=1))


if __name__ == "__main__":
    main()
