"""Texts per second of a static student's bundle, with its tokenizer, next to a 3-layer student and model2vec.

    python benchmarks/static.py runs/sst2/minilm-static/... runs/sst2/minilm-distilbert/... texts.txt --model2vec DIR

Both runs have an int8 file. DIR is the `model2vec/` of a run with `student.buckets=0 export.model2vec=true`, or another
directory of model2vec, which needs `pip install model2vec`. The texts are the lines of a file. The three encode or
classify all of them in turns, from raw text, on the given number of threads.

`--profile` adds the parts of the static student's time: its tokenizer alone, its ONNX file alone, and the rest.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from machine import describe_machine
from rich.console import Console
from rich.table import Table

from distill.edge import Bundle

BATCH = 64  # Texts of a forward pass of the static student.
Function = Callable[[Sequence[str]], object]


def load_model2vec(directory: Path) -> Function:
    """Returns a function that encodes texts with model2vec, in one process."""
    from model2vec import StaticModel

    model = StaticModel.from_pretrained(directory)
    return lambda texts: model.encode(list(texts), use_multiprocessing=False)


def list_parts(bundle: Bundle) -> dict[str, Function]:
    """Returns functions of parts of what a bundle does for texts."""
    batches: list[dict[str, np.ndarray]] = []

    def run_file(texts: Sequence[str]) -> None:
        if not batches:  # In the call that is not timed.
            batches.extend(bundle.inputs(texts, batch_size=BATCH))
        for batch in batches:
            bundle.session.run(["logits"], batch)

    def tokenize(texts: Sequence[str]) -> None:
        bundle.tokenizer.encode_batch_fast(list(texts))

    return {"static: its tokenizer": tokenize, "static: its file": run_file}


def measure(variants: dict[str, Function], texts: Sequence[str], turns: int) -> dict[str, float]:
    """Returns the texts per second of each variant, the median of the turns."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for function in variants.values():
        function(texts)
    for _ in range(turns):
        for name, function in variants.items():
            start = time.perf_counter()
            function(texts)
            seconds[name].append(time.perf_counter() - start)
    return {name: len(texts) / statistics.median(times) for name, times in seconds.items()}


def count_megabytes(bundle: Bundle) -> float:
    """Returns the size of the bundle's file and its tokenizer."""
    files = (bundle.manifest["models"][bundle.model], "tokenizer.json")
    return sum((bundle.directory / file).stat().st_size for file in files) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("static", type=Path, help="the run directory of a static student")
    parser.add_argument("layers", type=Path, help="the run directory of a student of three layers")
    parser.add_argument("texts", type=Path)
    parser.add_argument("--model2vec", type=Path, help="a directory of model2vec")
    parser.add_argument("--number", type=int, default=5_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    os.environ["RAYON_NUM_THREADS"] = str(options.threads)  # Of tokenizers, before its first use.
    lines = [line for line in options.texts.read_text(encoding="utf-8").splitlines() if line.strip()]
    chosen = np.random.default_rng(0).permutation(len(lines))[: options.number]
    texts = [lines[index] for index in chosen]

    static, layers = (
        Bundle(run / "bundle", model="int8", threads=options.threads) for run in (options.static, options.layers)
    )
    variants: dict[str, Function] = {
        "3 layers, int8": layers.predict,
        "static, int8": lambda texts: static.predict(texts, batch_size=BATCH),
        "static, int8, logits": lambda texts: static.item_logits(texts, batch_size=BATCH),
    }
    if options.model2vec:
        variants["model2vec"] = load_model2vec(options.model2vec)
    if options.profile:
        variants |= list_parts(static)
    rates = measure(variants, texts, options.turns)
    table, reference = Table("variant", "texts/s", "ratio", "us a text"), rates["3 layers, int8"]
    for name, rate in rates.items():
        table.add_row(name, f"{rate:,.0f}", f"{rate / reference:.1f}x", f"{1e6 / rate:.1f}")
    console = Console()
    console.print(table)
    for name, bundle in {"static": static, "3 layers": layers}.items():
        console.print(f"{name}: {count_megabytes(bundle):.2f} MB, int8 file and tokenizer.json")
    words = [len(text.split()) for text in texts]
    console.print(f"{len(texts):,} texts of {min(words)} to {max(words)} words, median {statistics.median(words):.0f}")
    console.print(f"{describe_machine()}; {options.threads} threads")


if __name__ == "__main__":
    main()
