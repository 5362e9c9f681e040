"""Writes the training pairs of a cross-encoder from the judgements that a retrieval set has for training.

    python benchmarks/cross_encoder_pairs.py path/to/scifact pairs.csv

Each query comes with its relevant documents and with up to `--negatives` documents for each of them that are nearest by
TF-IDF and not relevant. Queries of dev and test are left out. Dev is that of the task `scifact`, and with
`--dev-fraction 0.5 --only-judgements test` that of `cranfield`. A classifier of these pairs is a cross-encoder:

    python -m distill job=finetune +teacher=minilm task=classification task.data_dir=pairs.csv \\
        task.text=[query,document] task.label=label
"""

import argparse
import csv
from pathlib import Path

from rich.console import Console

from distill.data.retrieval import read_retrieval
from distill.kinds import Embedding


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="a retrieval set in the layout of BEIR")
    parser.add_argument("output", type=Path, help="a CSV with the columns query, document and label")
    parser.add_argument("--negatives", type=int, default=3)
    parser.add_argument("--dev-fraction", type=float, default=0.1)
    parser.add_argument("--only-judgements", help="the judgements that are divided into train and dev")
    options = parser.parse_args()
    task = Embedding(
        data_dir=options.directory, metrics=["ndcg@10"], dev_fraction=options.dev_fraction,
        splits={"train": [options.only_judgements]} if options.only_judgements else None,
    )  # fmt: skip
    data, _ = read_retrieval(task.source, negatives=options.negatives)
    train = data.splits["train"]
    relevant = dict.fromkeys((query, positive) for query, positive, _ in train["texts"])
    others = dict.fromkeys((query, negative) for query, _, negative in train["texts"])
    with options.output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["query", "document", "label"])
        writer.writerows((*pair, "relevant") for pair in relevant)
        writer.writerows((*pair, "other") for pair in others)
    Console().print(f"{len(relevant):,} relevant pairs and {len(others):,} others in {options.output}")


if __name__ == "__main__":
    main()
