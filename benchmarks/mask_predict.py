"""Tokens a second and chrF of texts whose masks are filled in rounds, compared with texts written token by token.

    python benchmarks/mask_predict.py dev.tsv --filled runs/.../bundle --written runs/.../bundle teacher_bundle

`--filled` is a bundle of task=mask_predict, and `--written` are bundles of task=seq2seq, such as an autoregressive
student, or the teacher, exported by a run of its own. The texts are of the first `--sources` rows with the columns
`--source-column` and `--target-column`. Every variant writes one text at a time by one thread, in turns at each source,
and a call includes the tokenizer. Tokens are those of the texts without special ones.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from machine import describe_machine
from rich.console import Console
from rich.table import Table

from distill.edge import Bundle
from distill.edge.bundle_files import count_bytes
from distill.kinds.scoring import text_metrics
from distill.rows.formats import read_rows

METRICS = ("chrf", "bleu", "length_ratio")


@dataclass
class Variant:
    """A way of writing a text for a source, and the texts that it has written."""

    name: str
    bundle: Bundle
    write: Callable[[str], str]
    texts: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens of all texts, without special ones."""
        return sum(len(of.ids) for of in self.bundle.tokenizer.encode_batch(self.texts, add_special_tokens=False))

    @property
    def megabytes(self) -> float:
        return count_bytes(self.bundle.directory / self.bundle.manifest["models"][self.bundle.model]) / 1e6


def open_variants(options: argparse.Namespace) -> list[Variant]:
    """Returns the variants of all bundles, those of task=seq2seq first."""
    variants = []
    for directory in options.written:
        bundle = Bundle(directory, model=options.model, threads=options.threads)
        for beams in options.beams:
            name = f"{directory.resolve().parent.name}, {'greedy' if beams == 1 else f'{beams} beams'}"
            variants.append(Variant(name, bundle, make_writer(bundle, beams, options.max_new_tokens)))
    bundle = Bundle(options.filled, model=options.model, threads=options.threads)
    for rounds in options.rounds:
        for lengths in options.lengths:
            variants.append(Variant(f"T={rounds}, {lengths} lengths", bundle, make_filler(bundle, rounds, lengths)))
    return variants


def make_writer(bundle: Bundle, beams: int, tokens: int) -> Callable[[str], str]:
    def write(source: str) -> str:
        [prediction] = bundle.generate_all([source], beams=beams, max_new_tokens=tokens, truncate="right")
        return str(prediction["text"])

    return write


def make_filler(bundle: Bundle, rounds: int, lengths: int) -> Callable[[str], str]:
    return lambda source: str(bundle.predict(source, rounds=rounds, lengths=lengths)["text"])


def measure(variants: list[Variant], sources: list[str]) -> None:
    """Writes a text of every variant for every source. The first source is written once more before, as a warm-up."""
    for variant in variants:
        variant.write(sources[0])
    for source in sources:
        for variant in variants:
            started = time.perf_counter()
            text = variant.write(source)
            variant.seconds += time.perf_counter() - started
            variant.texts.append(text)


def show(variants: list[Variant], references: list[list[str]]) -> list[dict[str, float | str]]:
    """Returns the rows of the table; a speed-up is of the time for all texts, against the slowest variant."""
    slowest = max(variant.seconds for variant in variants)
    return [
        {
            "variant": variant.name, "model": str(variant.bundle.model), "MB": variant.megabytes,
            "tokens/s": variant.tokens / variant.seconds, "ms a text": 1000 * variant.seconds / len(references),
            "speed-up": slowest / variant.seconds, **text_metrics(variant.texts, references, METRICS),
        }
        for variant in variants
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="rows with sources and targets: .tsv, .csv or .jsonl")
    parser.add_argument("--filled", type=Path, required=True, help="bundle of task=mask_predict")
    parser.add_argument("--written", type=Path, nargs="*", default=[], help="bundles of task=seq2seq")
    parser.add_argument("--source-column", default="source")
    parser.add_argument("--target-column", default="target")
    parser.add_argument("--sources", type=int, default=200)
    parser.add_argument("--rounds", type=int, nargs="+", default=[1, 4, 10])
    parser.add_argument("--lengths", type=int, nargs="+", default=[5])
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--model", help="file of the bundles; by default the recommended one of each")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, help="JSON file for the rows of the table")
    options = parser.parse_args()
    rows = [row for _, row in read_rows(options.data)][: options.sources]
    sources = [str(row[options.source_column]) for row in rows]
    references = [of if isinstance(of := row[options.target_column], list) else [str(of)] for row in rows]
    variants = open_variants(options)
    measure(variants, sources)
    results = show(variants, references)
    table = Table(*results[0], title=f"{len(sources)} texts, one at a time; {describe_machine()}")
    for result in results:
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else value for value in result.values()))
    Console(width=150).print(table)
    if options.output is not None:
        options.output.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
