"""An int8 encoder of CTranslate2 next to the files of a student's bundle: latency, size and agreement.

    pip install --target path/to/packages ctranslate2
    python benchmarks/ctranslate2_encoder.py RUN --packages path/to/packages --texts dev.tsv

A run is a directory that `python -m distill` wrote, of a student from DistilBERT and a task with classes. The first
column of `--texts` has a text in each line after the header. CTranslate2 scales the activations of each token apart. It
has no classification heads, so that the head is computed with numpy, in float32. All files take turns, with the same
number of threads.
"""

import argparse
import csv
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe_machine
from numpy.typing import NDArray
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from distill.edge import Bundle
from distill.edge.bundle_files import count_bytes
from distill.export import latency

CONVERTED = "ctranslate2-int8"


class Ctranslate2Model:
    """A DistilBERT with its encoder in int8."""

    def __init__(self, student: Path, directory: Path, threads: int) -> None:
        from ctranslate2 import Encoder, StorageView
        from ctranslate2.converters import TransformersConverter

        model = AutoModelForSequenceClassification.from_pretrained(student).eval()
        model.distilbert.save_pretrained(directory / "encoder")
        AutoTokenizer.from_pretrained(student).save_pretrained(directory / "encoder")
        converted = directory / "int8"
        TransformersConverter(str(directory / "encoder")).convert(str(converted), quantization="int8")
        self.bytes = sum(file.stat().st_size for file in converted.iterdir())
        self._view = StorageView.from_array
        self._encoder = Encoder(str(converted), compute_type="int8", intra_threads=threads, inter_threads=1)
        layers = (model.pre_classifier, model.classifier)
        self._head = [(layer.weight.detach().numpy().T, layer.bias.detach().numpy()) for layer in layers]

    def run(self, feed: latency.Inputs) -> Any:
        """Returns logits `[B, C]`."""
        lengths = feed["attention_mask"].sum(axis=1).astype(np.int32)
        ids = self._view(np.ascontiguousarray(feed["input_ids"], dtype=np.int32))
        states = np.array(self._encoder.forward_batch(ids, lengths=self._view(lengths)).last_hidden_state)
        (first, first_bias), (last, last_bias) = self._head
        return np.maximum(states[:, 0] @ first + first_bias, 0) @ last + last_bias


def run(bundle: Bundle, feed: latency.Inputs) -> Any:
    """Returns logits `[B, C]` of a file of the bundle."""
    return bundle.session.run(["logits"], dict(feed))[0]


def compare(
    model: Callable[[latency.Inputs], Any], expected: NDArray[Any], feeds: Sequence[latency.Inputs]
) -> tuple[float, float]:
    """Returns the agreement and the largest difference of a probability, from logits `[N, C]` in float32."""
    logits = np.concatenate([model(feed) for feed in feeds])
    shares = [np.exp(of - np.logaddexp.reduce(of, axis=1, keepdims=True)) for of in (logits, expected)]
    agreement = float((logits.argmax(axis=1) == expected.argmax(axis=1)).mean())
    return agreement, float(np.abs(shares[0] - shares[1]).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--packages", type=Path, help="with ctranslate2, if it is installed apart")
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each file, batch size and length")
    options = parser.parse_args()
    if options.packages is not None:
        sys.path.append(str(options.packages))
    with options.texts.open(encoding="utf-8", newline="") as file:
        texts = [row[0] for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)][1:]
    manifest = json.loads((options.run / "bundle" / "bundle.json").read_text(encoding="utf-8"))
    bundles = {name: Bundle(options.run / "bundle", model=name, threads=options.threads) for name in manifest["models"]}
    first = bundles["fp32"]
    runs: dict[str, Callable[[latency.Inputs], Any]] = {name: partial(run, each) for name, each in bundles.items()}
    with tempfile.TemporaryDirectory() as directory:
        model = Ctranslate2Model(options.run / "student", Path(directory), options.threads)
        sizes = {name: count_bytes(options.run / "bundle" / file) for name, file in manifest["models"].items()}
        runs[CONVERTED], sizes[CONVERTED] = model.run, model.bytes
        feeds = list(first.inputs(texts, batch_size=32))
        expected = np.concatenate([runs["fp32"](feed) for feed in feeds])
        candidates = [
            latency.Candidate("student", name, first.input_names, sizes[name], each, lambda: options.threads)
            for name, each in runs.items()
        ]
        rows = [
            row
            for shape in ((1, 32), (8, 128))
            for row in latency.measure_latency(
                candidates, batches=[shape[0]], lengths=[shape[1]], threads=options.threads, seconds=options.seconds,
                vocabulary=first.tokenizer.get_vocab_size(),
            )
        ]  # fmt: skip
        print(describe_machine())
        for name, each in runs.items():
            agreement, difference = compare(each, expected, feeds)
            times = ", ".join(
                f"{row['batch']} x {row['length']}: p50 {row['p50_ms']:.2f} ms{' (busy)' if row['disturbed'] else ''}"
                for row in rows
                if row["format"] == name
            )
            size = sizes[name] / 1e6
            print(f"{name}: {size:.1f} MB, agreement {agreement:.4f}, difference {difference:.3f}; {times}")


if __name__ == "__main__":
    main()
