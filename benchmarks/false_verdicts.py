"""Measures how often two models that are equally good are told apart, for every kind of metric.

    python benchmarks/false_verdicts.py
    python benchmarks/false_verdicts.py --quick

Each trial draws the examples of a split, and for two models of the same ability the scores of one or several seeds. The
package's own functions compare them, and 5% of their intervals should lack 0. A model has an effect on each example
that all of its seeds share, and one that each seed has alone. No seed is better than another on all examples, because
one seed cannot show that. `--seed-noise` adds it.

A metric is computed from sums over the examples, as the package's own one is from the examples themselves.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from distill.core.contracts import Scores
from distill.kinds.scoring import Scoring
from distill.training import statistics
from distill.training.statistics import Measured, measure_parts

SIZES, SEEDS = (200, 872, 5000), 5
TRIALS = {200: 400, 872: 200, 5000: 60}
RESAMPLES = 250  # The package has 10,000 of a mean, and 250 to 1,000 of another metric.
SHARED, OWN = 0.5, 0.5  # Deviations of an example's effect that the seeds of a model share, and of that of one seed.
CLASSES = np.array([0.5, 0.25, 0.15, 0.07, 0.03])


@dataclass(frozen=True)
class Sums(Scoring):
    """A metric of the sums of columns `counts [n, K]` over the examples, or of the examples where `ranks` is true.

    Args:
        combine: returns the metric of the sums `[K]`, or of the counts.
        worst: returns the counts of spoiled predictions; None without any.
        is_mean: whether the metric is the mean of the only column.
    """

    combine: Callable[[np.ndarray], float]
    worst: Callable[[np.ndarray], np.ndarray] | None = None
    is_mean: bool = False
    ranks: bool = False
    names = ("metric",)

    def selecting_metric(self, scores: Scores) -> float:
        counts = scores.columns["counts"]
        return self.combine(counts if self.ranks else counts.sum(axis=0))

    def example_metric(self, scores: Scores) -> np.ndarray | None:
        return scores.columns["counts"][:, 0] if self.is_mean else None

    def spoil(self, scores: Scores) -> Scores | None:
        if self.worst is None:
            return None
        return replace(scores, columns={"counts": self.worst(scores.columns["counts"])})


def confusion(labels: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """Returns a one-hot cell of the confusion matrix for each example, `[n, classes * classes]`."""
    cells: np.ndarray = np.eye(classes * classes)[labels * classes + predicted]
    return cells


def spoil_confusion(classes: int) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function that moves each example to a wrong class."""

    def spoil(counts: np.ndarray) -> np.ndarray:
        labels = counts.argmax(axis=1) // classes
        return confusion(labels, (labels + 1) % classes, classes)

    return spoil


def macro_f1(sums: np.ndarray, classes: int = len(CLASSES)) -> float:
    matrix = sums.reshape(classes, classes)
    total = matrix.sum(axis=0) + matrix.sum(axis=1)
    return float(np.mean([2 * matrix[k, k] / total[k] if total[k] else 0.0 for k in range(classes)]))


def binary_f1(sums: np.ndarray) -> float:
    matrix = sums.reshape(2, 2)
    return float(2 * matrix[1, 1] / max(1.0, 2 * matrix[1, 1] + matrix[0, 1] + matrix[1, 0]))


def matthews(sums: np.ndarray) -> float:
    (tn, fp), (fn, tp) = sums.reshape(2, 2)
    root = np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    return float((tp * tn - fp * fn) / root) if root else 0.0


def pearson(sums: np.ndarray) -> float:
    n, x, y, xx, yy, xy = sums
    return float((xy - x * y / n) / np.sqrt((xx - x * x / n) * (yy - y * y / n)))


def spearman(counts: np.ndarray) -> float:
    ranks: np.ndarray = np.empty(counts.shape)
    for column in range(2):
        ranks[counts[:, column].argsort(kind="stable"), column] = np.arange(len(counts))
    # A resample has examples more than once, whose ranks are shared by all of them.
    for column in range(2):
        _, group = np.unique(counts[:, column], return_inverse=True)
        ranks[:, column] = (np.bincount(group, ranks[:, column]) / np.bincount(group))[group]
    return float(np.corrcoef(ranks[:, 0], ranks[:, 1])[0, 1])


def entity_f1(sums: np.ndarray) -> float:
    correct, found, expected = sums
    return float(2 * correct / max(1.0, found + expected))


Draw = Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray]


def draw_classes(shares: np.ndarray) -> tuple[Callable[[np.random.Generator, int], np.ndarray], Draw]:
    """Returns functions that draw labels, and the cells of a model that is right where `ability [n]` is above 0."""

    def facts(random: np.random.Generator, n: int) -> np.ndarray:
        return random.choice(len(shares), n, p=shares)

    def predict(labels: np.ndarray, ability: np.ndarray, random: np.random.Generator) -> np.ndarray:
        wrong = (labels + random.integers(1, len(shares), len(labels))) % len(shares)
        return confusion(labels, np.where(ability > 0, labels, wrong), len(shares))

    return facts, predict


def draw_numbers(facts: np.ndarray, ability: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Returns the products of labels and numbers whose errors are the ability."""
    predicted = facts + ability
    return np.stack([np.ones_like(facts), facts, predicted, facts**2, predicted**2, facts * predicted], axis=1)


def draw_entities(facts: np.ndarray, ability: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Returns correct, found and expected entities of sentences with `facts [n]` entities."""
    correct = random.binomial(facts, 1 / (1 + np.exp(-1.5 * ability)))
    return np.stack([correct, correct + random.binomial(facts - correct + 1, 0.3), facts], axis=1).astype(float)


def draw_losses(facts: np.ndarray, ability: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Returns the sum of the losses and the number of tokens of texts of `facts [n]` tokens."""
    return np.stack([facts * (4 - 0.3 * ability) + np.sqrt(facts) * random.normal(size=len(facts)), facts], axis=1)


def draw_spans(facts: np.ndarray, ability: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Returns F1 of answers: 1, 0, or a share of the words."""
    partial = random.integers(2, size=len(facts)) * random.random(len(facts))
    return np.where(ability > 0, 1.0, partial)[:, None]


def draw_shares(facts: np.ndarray, ability: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Returns a number in 0..1 of each example, such as nDCG or ROUGE."""
    return np.clip(0.6 + 0.2 * ability, 0, 1)[:, None]


def normal(random: np.random.Generator, n: int) -> np.ndarray:
    return random.normal(size=n)


two_classes, two_predicted = draw_classes(np.array([0.7, 0.3]))
five_classes, five_predicted = draw_classes(CLASSES)


def mean(sums: np.ndarray) -> float:
    raise TypeError("a mean has values of examples")


# Metric -> scoring, the facts of examples, the counts of a model, and the mean ability.
KINDS = {
    "accuracy": (Sums(lambda counts: float(counts.mean()), is_mean=True, ranks=True), normal,
                 lambda facts, ability, random: (ability > 0).astype(float)[:, None], 1.2),
    "F1 of two classes": (Sums(binary_f1, spoil_confusion(2)), two_classes, two_predicted, 1.2),
    "macro F1 of five": (Sums(macro_f1, spoil_confusion(5)), five_classes, five_predicted, 1.2),
    "Matthews": (Sums(matthews, spoil_confusion(2)), two_classes, two_predicted, 1.2),
    "Pearson": (Sums(pearson), normal, draw_numbers, 0.0),
    "Spearman": (Sums(lambda counts: spearman(counts[:, 1:3]), ranks=True), normal, draw_numbers, 0.0),
    "F1 of entities": (Sums(entity_f1, lambda counts: counts * [0, 1, 1]),
                       lambda random, n: random.poisson(1.5, n), draw_entities, 1.2),
    "F1 of answers": (Sums(lambda counts: float(counts.mean()), is_mean=True, ranks=True), normal, draw_spans, 0.8),
    "nDCG, ROUGE": (Sums(lambda counts: float(counts.mean()), is_mean=True, ranks=True), normal, draw_shares, 0.5),
    "perplexity": (Sums(lambda sums: float(np.exp(sums[0] / sums[1]))),
                   lambda random, n: random.integers(5, 60, n).astype(float), draw_losses, 0.0),
}  # fmt: skip


def draw_models(kind: str, n: int, seeds: int, random: np.random.Generator, noise: float) -> list[list[Scores]]:
    """Returns the scores of the seeds of two models of the same ability."""
    _, draw_facts, predict, ability = KINDS[kind]
    facts, difficulty = draw_facts(random, n), ability + random.normal(size=n)
    models = []
    for _ in range(2):
        shared = difficulty + SHARED * random.normal(size=n)
        effects = [shared + OWN * random.normal(size=n) + noise * random.normal() for _ in range(seeds)]
        models.append([Scores({"counts": predict(facts, of, random)}, np.zeros(n), np.arange(n)) for of in effects])
    return models


def compare(kind: str, n: int, random: np.random.Generator, noise: float) -> dict[str, statistics.Difference | None]:
    """Returns the comparisons of two models by each of the package's ways."""
    scoring = KINDS[kind][0]
    models = draw_models(kind, n, SEEDS, random, noise)
    values = [[Measured(scoring.selecting_metric(of), measure_parts(scoring, of)) for of in model] for model in models]
    first, second = values
    return {
        "one seed, resampled": statistics.compare_examples(scoring, models[0][0], models[1][0], most=RESAMPLES),
        "one seed, by parts": statistics.compare_seeds(first[:1], second[:1]),
        f"{SEEDS} seeds": statistics.compare_seeds(first, second),
        f"{SEEDS} seeds, without examples": statistics.compare_seeds([*map(float, first)], [*map(float, second)]),
    }


def measure(kind: str, n: int, trials: int, noise: float) -> dict[str, float]:
    """Returns the share of trials in which two equal models are told apart, in percent, by each way."""
    random = np.random.default_rng(n)
    told: dict[str, list[bool]] = {}
    for _ in range(trials):
        for name, found in compare(kind, n, random, noise).items():
            ends = found["interval"] if found else None
            told.setdefault(name, []).append(ends is not None and not ends[0] <= 0 <= ends[1])
    return {name: 100 * float(np.mean(of)) for name, of in told.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the trials, of 200 and 872 examples")
    parser.add_argument("--trials", type=float, default=1.0, help="factor of the number of trials")
    parser.add_argument("--seed-noise", type=float, default=0.0, help="deviation of the ability of a whole seed")
    parser.add_argument("--only", choices=KINDS, nargs="+", default=list(KINDS), help="kinds of metrics")
    options = parser.parse_args()
    statistics.RESAMPLES = RESAMPLES
    started, header = time.perf_counter(), True
    for kind in options.only:
        for n in SIZES[:2] if options.quick else SIZES:
            trials = max(2, round(TRIALS[n] * options.trials * (0.1 if options.quick else 1.0)))
            found = measure(kind, n, trials, options.seed_noise)
            if header:
                print(f"| metric | examples | trials | {' | '.join(found)} |\n|---|---:|---:|{'---:|' * len(found)}")
                header = False
            cells = [kind, f"{n:,}", str(trials), *(f"{value:.1f}" for value in found.values())]
            print(f"| {' | '.join(cells)} |", flush=True)
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
