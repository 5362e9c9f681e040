"""Accuracy of students that learn from a fifth of the labels, chosen at random or by uncertainty, and from all of them.

    python -m benchmarks.chosen_texts path/to/rows --text sentence --encoder path/to/all-MiniLM-L6-v2 --seeds 0 1 2

`rows` has train, dev and test with the columns of `--text` and `--label`. A server of the tests is the annotator, whose
label of a text is right with a probability of 0.8, and always the same. Every student is one of `+student=distilbert`,
whose file is evaluated on test; those of a fifth of the labels have more epochs.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from distill.edge import Bundle
from distill.rows.columns import read_table
from tests.llm_server import LlmServer

RIGHT = 0.8  # Share of the annotator's labels.
SHARE = 0.2  # Of the labels.


def read_rows(directory: Path, split: str, text: str, label: str) -> list[tuple[str, str]]:
    """Returns the texts and labels of a split, each text once."""
    [path] = directory.glob(f"{split}.*")
    table = read_table(path, (text, label))
    rows = zip(map(str, table.columns[text]), map(str, table.columns[label]), strict=True)
    return list(dict(rows).items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--text", default="text")
    parser.add_argument("--label", default="label")
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=int, nargs=2, default=[2, 8], help="with all labels, and with a fifth")
    arguments = parser.parse_args()
    splits = {
        name: read_rows(arguments.rows, name, arguments.text, arguments.label) for name in ("train", "dev", "test")
    }
    classes = sorted({label for _, label in splits["train"]})
    accuracies: dict[str, list[float]] = {"all": [], "uncertain": [], "random": []}
    for seed in arguments.seeds:
        right = {" ".join(text.split()): label for rows in splits.values() for text, label in rows}

        def annotate(text: str, seed: int = seed, right: dict[str, str] = right) -> str:
            chance, label = random.Random(f"{seed} {text}"), right[" ".join(text.split())]
            others = [name for name in classes if name != label]
            return json.dumps({"label": label if chance.random() < RIGHT else chance.choice(others)})

        with LlmServer(annotate) as server, tempfile.TemporaryDirectory() as place:
            write(Path(place, "texts.jsonl"), [{"text": text} for text, _ in splits["train"]])
            write(Path(place, "gold.jsonl"), [{"text": text, "label": label} for text, label in splits["dev"]])
            for choice, found in accuracies.items():
                epochs = arguments.epochs[choice != "all"]
                number = len(splits["train"]) if choice == "all" else round(SHARE * len(splits["train"]))
                options = [f"label.rows={number}", f"label.choose={'uncertain' if choice == 'uncertain' else 'random'}"]
                bundle = train(
                    Path(place), server.url, classes, arguments.encoder, [*options, f"seed={seed}"], epochs, choice
                )
                predictions = bundle.predict([text for text, _ in splits["test"]])
                pairs = zip(predictions, splits["test"], strict=True)
                found.append(float(np.mean([prediction["label"] == label for prediction, (_, label) in pairs])))
                print(f"seed {seed}, {choice}: {number:,} labels, accuracy {found[-1]:.4f} on test", flush=True)
    print("| labels | accuracy on test | of all labels |")
    print("|---|---:|---:|")
    for choice, found in accuracies.items():
        print(
            f"| {choice} | {np.mean(found):.4f} ± {np.std(found, ddof=1) if len(found) > 1 else 0:.4f} | "
            f"{np.mean(found) / np.mean(accuracies['all']):.1%} |"
        )


def write(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def train(
    place: Path, url: str, classes: list[str], encoder: Path, options: list[str], epochs: int, name: str
) -> Bundle:
    """Labels texts and trains a student in one command; returns its bundle."""
    command = [
        sys.executable, "-m", "distill", "job=label", "data=texts.jsonl", "label.gold=gold.jsonl",
        f"label.endpoint={url}", "label.model=tiny", f"label.classes=[{','.join(classes)}]",
        f"label.output={name}.jsonl", "label.concurrency=4", *options, "+teacher=file",
        f"teacher.encoder={encoder.resolve()}", "+student=distilbert", "objective=hinton", "baseline=false",
        "augment=none", "task.unlabelled=null", "task.max_length=64", "trainer=fixed", f"trainer.max_epochs={epochs}",
        "trainer.batch_size=32", "trainer.learning_rate=2e-4", "export.formats=[fp32]", "benchmark.enabled=false",
        f"output_dir=runs/{name}", "objective.terms.hard.weight=0", "objective.terms.soft.weight=1",
        "objective.terms.soft.temperature=1", "teacher.accept_weak=true",
    ]  # fmt: skip
    path = os.pathsep.join([str(Path(__file__).resolve().parents[1]), *sys.path])
    subprocess.run(command, cwd=place, env={**os.environ, "PYTHONPATH": path}, check=True, stdout=subprocess.DEVNULL)
    [run] = (place / "runs" / name).rglob("run.json")
    return Bundle(run.parent / "bundle", model="fp32")


if __name__ == "__main__":
    main()
