"""How often does the gate of exported files err: does it fail a file that loses nothing, or pass one that loses more?

    python benchmarks/gate_errors.py --metrics accuracy macro_f1 --sizes 200 872 5000 --times 300

The scores of a model and of an exported file are drawn, and compared by the functions of the package. Both have the
same signal, and noise that is nearly the same, so that a file that is *equal* has the metric of the model on infinitely
many rows. A file that *loses* has a weaker signal, by which its metric on infinitely many rows is 2 points lower: twice
`export.max_drop`, the limit of the interval. Written are the shares of equal files that fail and that pass as the first
of the default recipes, and the shares of losing files that pass as the only recipe, and as one of seven that are tried
until one passes, whose noise is independent: with an interval of 95% for each, and with those of `gate.split_error`.
The limits of agreement, probabilities and calibration are off.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from distill.core.contracts import Scores
from distill.export.gate import FAILED, PASSED, TorchScores, judge, split_error
from distill.export.quantization import ExportSettings
from distill.kinds.classification import LabelSets, OneClass
from distill.kinds.regression import NumberScores
from distill.kinds.scoring import Scoring
from distill.kinds.token_classification import TagScores
from distill.training import statistics
from distill.training.module import fit_decoding
from distill.training.statistics import LEVEL

LIMITS = ExportSettings(min_agreement=0, max_probability_diff=1, max_ece_rise=1)
LOSS = 0.02  # Twice `max_drop`.
RECIPES = 7
POPULATION = 50_000  # Examples on which the signal of a losing file is found.
LABELS = tuple(f"label {number}" for number in range(10))
TAGS = ("O", "B-x", "B-y")
WORDS = 4  # Of a sentence.


class Signal(NamedTuple):
    """The labels of some examples, and the logits that tell them without noise."""

    labels: np.ndarray
    logits: np.ndarray
    example_id: np.ndarray


@dataclass(frozen=True)
class Kind:
    """A metric.

    Args:
        draw: returns a signal of so many examples.
        same: correlation of the noise of the model and of a file.
    """

    scoring: Scoring
    draw: Callable[[int, np.random.Generator], Signal]
    same: float = 0.995


def draw_classes(number: int, random: np.random.Generator, shares: Sequence[float], strength: float) -> Signal:
    labels = random.choice(len(shares), size=number, p=shares)
    return Signal(labels, strength * np.eye(len(shares))[labels], np.arange(number))


def draw_sets(number: int, random: np.random.Generator) -> Signal:
    shares = np.geomspace(0.05, 0.4, len(LABELS))
    labels = (random.random((number, len(LABELS))) < shares).astype(float)
    return Signal(labels, 2.0 * labels, np.arange(number))


def draw_numbers(number: int, random: np.random.Generator) -> Signal:
    labels = random.normal(size=number)
    return Signal(labels, 2.0 * labels[:, None], np.arange(number))


def draw_tags(number: int, random: np.random.Generator) -> Signal:
    words = draw_classes(number * WORDS, random, (0.8, 0.12, 0.08), 3.0)
    return words._replace(example_id=np.arange(number).repeat(WORDS))


KINDS: Mapping[str, Kind] = {
    "accuracy": Kind(OneClass(("accuracy",)), lambda number, random: draw_classes(number, random, (0.6, 0.4), 2.0)),
    "macro_f1": Kind(
        OneClass(("macro_f1",)), lambda number, random: draw_classes(number, random, (0.5, 0.3, 0.15, 0.05), 2.5)
    ),
    "several_labels": Kind(LabelSets(("macro_f1",), separator="|", labels=LABELS), draw_sets),
    "pearson": Kind(NumberScores(("pearson",)), draw_numbers),
    "tags": Kind(TagScores(TAGS), draw_tags),
}


def draw_pair(kind: Kind, number: int, random: np.random.Generator, *, strength: float = 1.0) -> list[Scores]:
    """Returns the scores of a model and of a file with this share of its signal, decoded as an export decodes them."""
    signal = kind.draw(number, random)
    noise, other = random.normal(size=(2, *signal.logits.shape))
    mixed = kind.same * noise + np.sqrt(1 - kind.same**2) * other
    reference = Scores({"logits": signal.logits + noise}, signal.labels, signal.example_id)
    [reference] = fit_decoding(kind.scoring, {"dev": reference}).values()
    columns = {**reference.columns, "logits": strength * signal.logits + mixed}
    return [reference, replace(reference, columns=columns)]


def find_strength(kind: Kind) -> float:
    """Returns the share of the signal with which a file loses `LOSS` of a model's metric."""

    def loss(strength: float) -> float:
        pair = draw_pair(kind, POPULATION, np.random.default_rng(0), strength=strength)
        value, of_file = map(kind.scoring.selecting_metric, pair)
        return value - of_file

    low, high = 0.5, 1.0
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if loss(middle) > LOSS else (low, middle)
    return (low + high) / 2


def simulate(
    kind: Kind, number: int, *, times: int, strength: float, confidences: Sequence[float], seed: int
) -> dict[float, list[str]]:
    """Returns the verdicts of files with this strength for each confidence, in so many draws of dev and of noise."""
    random, verdicts = np.random.default_rng(seed), {confidence: list[str]() for confidence in confidences}
    for _ in range(times):
        reference, file = draw_pair(kind, number, random, strength=strength)
        comparison = TorchScores(kind.scoring, {"dev": reference}).compare({"dev": file})
        for confidence, gates in verdicts.items():
            gates.append(judge(comparison, LIMITS, confidence=confidence).gate)
    return verdicts


def share_of(gate: str, gates: Sequence[str]) -> float:
    """Returns the share of the verdicts that are this one."""
    return gates.count(gate) / len(gates)


def any_passes(shares: Sequence[float]) -> float:
    """Returns the share of cases in which one of several independent files passes."""
    return float(1 - np.prod(1 - np.asarray(shares)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--metrics", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--sizes", nargs="+", type=int, default=[200, 872, 5000])
    parser.add_argument("--times", type=int, default=300)
    parser.add_argument("--resamples", type=int, default=statistics.METRIC_RESAMPLES)
    arguments = parser.parse_args()
    statistics.METRIC_RESAMPLES = arguments.resamples
    spent = split_error(RECIPES)
    print("| metric | examples | equal: fails | passes | loses 2 points: passes alone | of 7 at 95% | of 7 |")
    print("|---|---:|---:|---:|---:|---:|---:|", flush=True)
    for name in arguments.metrics:
        kind = KINDS[name]
        strength = find_strength(kind)
        for number in arguments.sizes:
            equal = simulate(kind, number, times=arguments.times, strength=1, confidences=spent[:1], seed=1)[spent[0]]
            every = sorted({LEVEL, *spent})
            loses = simulate(kind, number, times=arguments.times, strength=strength, confidences=every, seed=2)
            passes = {confidence: share_of(PASSED, gates) for confidence, gates in loses.items()}
            shares = (
                share_of(FAILED, equal), share_of(PASSED, equal), passes[LEVEL], any_passes([passes[LEVEL]] * RECIPES),
                any_passes([passes[confidence] for confidence in spent]),
            )  # fmt: skip
            print(f"| {name} | {number:,} | " + " | ".join(f"{share:.1%}" for share in shares) + " |", flush=True)


if __name__ == "__main__":
    main()
