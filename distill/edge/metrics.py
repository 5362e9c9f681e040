"""Metrics of classes, sets of labels, numbers and rankings, by numpy alone.

A training and `python -m distill.edge --evaluate` compute the same ones.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

SHOWN = 8  # Classes in a message.
DEPTH = 100  # Documents of a ranking that are scored.


def compute_metrics(
    functions: Mapping[str, Callable[..., float]], names: Iterable[str], *arguments: object
) -> dict[str, float]:
    """Returns the named metrics, without the names of other functions."""
    return {name: float(functions[name](*arguments)) for name in names if name in functions}


def count_pairs(labels: NDArray[np.integer], predicted: NDArray[np.integer], classes: int) -> NDArray[np.integer]:
    """Returns how often each class is predicted for each label, `[C, C]` by label and prediction.

    >>> count_pairs(np.array([0, 0, 1]), np.array([0, 1, 1]), classes=2).tolist()
    [[1, 1], [0, 1]]
    """
    pairs: NDArray[np.integer] = np.bincount(labels * classes + predicted, minlength=classes**2)
    return pairs.reshape(classes, classes)


def compute_f1(counts: NDArray[np.integer], positive: int | None) -> float:
    """Returns the F1 of a class or, if that is None, the mean of those of all classes with a row, from `count_pairs`.

    The classes of the mean depend on the labels alone, so that the metrics of two models are means of the same classes.
    """
    values = 2 * np.diagonal(counts) / np.maximum(counts.sum(axis=0) + counts.sum(axis=1), 1)
    return average_present(values, counts.sum(axis=1)) if positive is None else float(values[positive])


def average_present(values: NDArray[np.floating], numbers: NDArray[np.integer]) -> float:
    """Returns the mean of values `[C]` over the classes with a row, 0 if there is none.

    Args:
        numbers: rows of each class, `[C]`.
    """
    present = numbers > 0
    return float(values[present].mean()) if present.any() else 0.0


def compute_matthews(counts: NDArray[np.integer]) -> float:
    """Returns Matthews' correlation (Gorodkin 2004) from `count_pairs`, 0 with a constant."""
    counts = counts.astype(np.float64)
    total, labels, predictions = counts.sum(), counts.sum(axis=1), counts.sum(axis=0)
    covariance = np.trace(counts) * total - labels @ predictions
    scale = np.sqrt((total**2 - predictions @ predictions) * (total**2 - labels @ labels))
    return float(covariance / scale) if scale else 0.0


def describe_absent(source: str, classes: Sequence[str], numbers: NDArray[np.integer]) -> str | None:
    """Returns a sentence that names the classes without a row, which a mean over classes leaves out; None without any.

    Args:
        source: of the rows, in words.
        numbers: rows of each class, `[C]`.
    """
    absent = [name for name, number in zip(classes, numbers, strict=True) if not number]
    if len(absent) in (0, len(classes)):
        return None
    shown = ", ".join(absent[:SHOWN]) + (", ..." if len(absent) > SHOWN else "")
    return f"{source} has no row of {shown}: the mean F1 is that of the other {len(classes) - len(absent)} classes"


def f1_of_labels(predicted: NDArray[np.bool_], labels: NDArray[np.bool_]) -> NDArray[np.floating]:
    """Returns the F1 of each label `[C]`, 0 for one that is neither given nor there."""
    return np.asarray(2 * (predicted & labels).sum(axis=0) / np.maximum(1, predicted.sum(axis=0) + labels.sum(axis=0)))


def correlate(values: NDArray[np.floating], others: NDArray[np.floating]) -> float:
    """Returns Pearson's correlation, 0 with a constant."""
    if np.ptp(values) == 0 or np.ptp(others) == 0:
        return 0.0
    return float(np.corrcoef(values, others)[0, 1])


def rank(values: NDArray[np.floating]) -> NDArray[np.floating]:
    """Returns the rank of each value; equal ones have the mean of their ranks."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((count.cumsum() - (count - 1) / 2)[place])


def score_rankings(rankings: np.ndarray, gains: Sequence[Mapping[int, int]]) -> dict[str, np.ndarray]:
    """Returns the metrics of each query by name, `[Q]` each from 0 to 1.

    nDCG is that of trec_eval: the gain of a document is its score, and the discount of rank r is `log2(r + 1)`. The
    ideal ranking has all relevant documents of the query, found or not (Jarvelin and Kekalainen 2002, section 2.2).

    Args:
        rankings: `[Q, k]`, the numbers of the documents found for each query, the best ones first; `k` is at least
            `DEPTH`, or the size of the corpus.
        gains: of each query's relevant documents, all above 0, by their number.
    """
    found = np.zeros(rankings.shape)
    for row, of_query in enumerate(gains):
        found[row] = [of_query.get(document, 0) for document in rankings[row].tolist()]
    ideal = np.zeros((len(gains), 10))
    for row, of_query in enumerate(gains):
        best = sorted(of_query.values(), reverse=True)[:10]
        ideal[row, : len(best)] = best
    relevant = np.array([len(of_query) for of_query in gains])
    hits = found > 0
    ranks = np.arange(1, hits[:, :10].shape[1] + 1)
    return {
        "ndcg@10": _discount(found[:, :10]) / _discount(ideal),
        "recall@10": hits[:, :10].sum(axis=1) / relevant,
        "recall@100": hits[:, :100].sum(axis=1) / relevant,
        "mrr@10": (hits[:, :10] / ranks).max(axis=1, initial=0),
    }


def _discount(gains: np.ndarray) -> np.ndarray:
    """Returns the discounted cumulative gain of rankings `[Q, k]`, `[Q]`."""
    discounted: np.ndarray = (gains / np.log2(np.arange(2, gains.shape[1] + 2))).sum(axis=1)
    return discounted


# Metric -> its value from the counts of labels and predictions, `[C, C]`, and the class that F1 is of.
CLASS_METRICS: Mapping[str, Callable[[NDArray[np.integer], int | None], float]] = {
    "accuracy": lambda counts, positive: np.trace(counts) / counts.sum(),
    "f1": compute_f1,
    "matthews": lambda counts, positive: compute_matthews(counts),
    "macro_f1": lambda counts, positive: compute_f1(counts, None),
}
# Metric -> its value from labels and predictions `[N, C]` (bool).
SET_METRICS: Mapping[str, Callable[[NDArray[np.bool_], NDArray[np.bool_]], float]] = {
    "micro_f1": lambda labels, given: f1_of_labels(given.reshape(-1, 1), labels.reshape(-1, 1))[0],
    "macro_f1": lambda labels, given: average_present(f1_of_labels(given, labels), labels.sum(axis=0)),
    "subset_accuracy": lambda labels, given: (given == labels).all(axis=-1).mean(),
}
# Metric -> its value from predictions and labels `[N]`.
NUMBER_METRICS: Mapping[str, Callable[[NDArray[np.floating], NDArray[np.floating]], float]] = {
    "pearson": correlate,
    "spearman": lambda given, labels: correlate(rank(given), rank(labels)),
    "mae": lambda given, labels: np.abs(given - labels).mean(),
}
