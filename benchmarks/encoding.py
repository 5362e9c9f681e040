"""Sentences per second of an encoder's bundle, compared with sentence-transformers on the same student.

    python benchmarks/encoding.py runs/stsb_embedding/... sentences.txt

It needs `pip install sentence-transformers`. The texts are the lines of a file. All variants encode them in turns. With
`--teacher DIR` the student's teacher is one of them, and the ratios are to its sentences per second. The vectors of the
float32 file are compared with those of sentence-transformers. Batches by length (Sentence-BERT, arXiv 1908.10084,
section 7) are compared with one text at a time and with padding to the longest text of all.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from machine import describe_machine
from rich.console import Console
from rich.table import Table

from distill.edge import Bundle

BATCH = 32  # The default of sentence-transformers.
REFERENCE = "sentence-transformers"


def encode_padded(bundle: Bundle, texts: Sequence[str]) -> None:
    """Encodes texts in batches as they come, each padded to the longest of all."""
    batches = [next(bundle.inputs(texts[start : start + BATCH])) for start in range(0, len(texts), BATCH)]
    longest = max(batch["input_ids"].shape[1] for batch in batches)
    for batch in batches:
        wide = {name: np.pad(values, ((0, 0), (0, longest - values.shape[1]))) for name, values in batch.items()}
        bundle.session.run(["logits"], {name: wide[name] for name in bundle.manifest["inputs"]})


def load_reference(directory: Path) -> Callable[[Sequence[str]], np.ndarray]:
    """Returns a function that encodes texts with sentence-transformers, in float32."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(directory), device="cpu", model_kwargs={"dtype": "float32"})
    return lambda texts: model.encode(list(texts), batch_size=BATCH, show_progress_bar=False)


def load_variants(run: Path, teacher: Path | None, threads: int) -> dict[str, Callable[[Sequence[str]], object]]:
    """Returns a function for each variant, which encodes texts; the ratios of the table are to the first one."""
    fp32, int8 = (Bundle(run / "bundle", model=name, threads=threads) for name in ("fp32", "int8"))
    variants: dict[str, Callable[[Sequence[str]], object]] = {
        REFERENCE: load_reference(run / "student"),
        "fp32": lambda texts: fp32.encode(texts, batch_size=BATCH),
        "int8": lambda texts: int8.encode(texts, batch_size=BATCH),
        "fp32, one at a time": lambda texts: fp32.encode(texts, batch_size=1),
        "fp32, padded to the longest": lambda texts: encode_padded(fp32, texts),
    }
    return variants if teacher is None else {f"teacher, {REFERENCE}": load_reference(teacher), **variants}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run directory with a student and a bundle of vectors")
    parser.add_argument("texts", type=Path)
    parser.add_argument("--teacher", type=Path, help="a directory with the student's teacher")
    parser.add_argument("--number", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    lines = [line for line in options.texts.read_text(encoding="utf-8").splitlines() if line.strip()]
    chosen = np.random.default_rng(0).permutation(len(lines))[: options.number]
    texts = [lines[index] for index in chosen]
    variants = load_variants(options.run, options.teacher, options.threads)

    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(options.turns):
        for name, encode in variants.items():
            encode(texts[:BATCH])
            start = time.perf_counter()
            encode(texts)
            seconds[name].append(time.perf_counter() - start)
    rates = {name: len(texts) / statistics.median(times) for name, times in seconds.items()}

    expected, found = (np.asarray(variants[name](texts[:1000])) for name in (REFERENCE, "fp32"))
    table, first = Table("variant", "texts/s", "ratio"), next(iter(rates.values()))
    for name, rate in rates.items():
        table.add_row(name, f"{rate:,.0f}", f"{rate / first:.2f}x")
    console = Console()
    console.print(table)
    words = [len(text.split()) for text in texts]
    console.print(f"{len(texts):,} texts of {min(words)} to {max(words)} words, median {statistics.median(words):.0f}")
    console.print(f"largest difference of a vector to sentence-transformers: {np.abs(found - expected).max():.1e}")
    console.print(describe_machine())


if __name__ == "__main__":
    main()
