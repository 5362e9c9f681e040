"""Any number of labels for each example: thresholds of their probabilities, and metrics of the sets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np

from distill.console import print_notice
from distill.contracts import Constant, Likelihood, Scores
from distill.data.tables import LabelledData
from distill.edge.class_metrics import average_present, describe_absent
from distill.edge.classes import sigmoid
from distill.losses import HardLabels
from distill.tasks.own_metrics import Functions
from distill.tasks.scoring import Scoring, compute_metrics, draw_halves, expected_calibration_error

# Metric -> its value from labels and predictions `[N, C]` (bool).
METRICS: Mapping[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "micro_f1": lambda labels, given: _f1(given.reshape(-1, 1), labels.reshape(-1, 1))[0],
    "macro_f1": lambda labels, given: average_present(_f1(given, labels), labels.sum(axis=0)),
    "subset_accuracy": lambda labels, given: (given == labels).all(axis=-1).mean(),
}
THRESHOLDS = "thresholds"  # Those of all examples in `Scores.decoding`, and those of each in `Scores.columns`.
THRESHOLD = 0.5  # Of a label that no example of dev has, and before thresholds are chosen.
CERTAIN = 100.0  # A logit whose probability is 1 in float64.
SHOWN = 8  # Labels in a summary.
NAMED = 3  # Labels in the name of a constant set.


@dataclass(frozen=True)
class LabelSets(Scoring):
    """Any number of labels for each example, each by the sigmoid of its logit and a threshold that dev chooses.

    Args:
        names: some of `METRICS` and of `functions`.
        separator: stands between the labels of a text that has several.
        labels: the names of the labels of the data.
        functions: metrics of the user, of `y_true [N, C]` (0 and 1) and the probabilities `y_score [N, C]`.
    """

    kind = "multi_label_classification"
    decoder = "labels"
    likelihood: ClassVar[Likelihood] = "sigmoid"
    # By which the pipelines of transformers take the sigmoid too.
    model_settings: ClassVar[Mapping[str, Any]] = MappingProxyType({"problem_type": "multi_label_classification"})
    no_label = np.nan
    weights = None

    names: tuple[str, ...]
    separator: str
    labels: tuple[str, ...] = ()
    functions: Functions = field(default_factory=dict)

    def adapt(self, data: LabelledData) -> LabelledData:
        """Returns the data with its scoring, and the bias of a new head."""
        bias = log_odds(data.splits["train"].labels > 0)
        for split, rows in data.scored().items() if "macro_f1" in self.names else ():
            if absent := describe_absent(split, data.labels, (rows.labels > 0).sum(axis=0)):
                print_notice(absent)
        scoring = replace(self, labels=data.labels)
        data = scoring.adopt_functions(
            data, perfect=lambda labels: np.where(labels > 0, CERTAIN, -CERTAIN), constant=np.zeros_like
        )
        return replace(data, scoring=scoring, terms={"hard": HardLabels()}, head_bias=bias)

    def probabilities(self, scores: Scores) -> np.ndarray:
        """The probability of every label, `[N, C]`."""
        return np.asarray(sigmoid(scores.columns["logits"].astype(np.float64)))

    def predictions(self, scores: Scores) -> np.ndarray:
        """The labels that each example is given, `[N, C]` (bool), by thresholds of its own where it has any."""
        thresholds = scores.columns.get(THRESHOLDS, scores.decoding.get(THRESHOLDS, THRESHOLD))
        return self.probabilities(scores) >= np.asarray(thresholds)

    def fit_decoder(self, scores: Scores) -> dict[str, Any]:
        """Returns the thresholds that are best for the metric that selects checkpoints, or micro F1 for a function."""
        thresholds = choose_thresholds(self.probabilities(scores), scores.labels > 0, metric=self.names[0])
        return {THRESHOLDS: thresholds, "separator": self.separator}

    def metrics(self, scores: Scores) -> dict[str, float]:
        """F1 of all pairs of an example and a label, the mean F1 of the labels, and the share of equal sets."""
        values = compute_metrics(METRICS, self.names, scores.labels > 0, self.predictions(scores))
        return self.add_functions(values, scores)

    def selecting_metric(self, scores: Scores) -> float:
        if self.metric in self.functions:
            return super().selecting_metric(scores)
        return float(METRICS[self.metric](scores.labels > 0, self.predictions(scores)))

    def true_and_scores(self, scores: Scores) -> tuple[np.ndarray, np.ndarray]:
        """The labels and their probabilities, `[N, C]` both."""
        return (scores.labels > 0).astype(np.int64), self.probabilities(scores)

    def tabulate(self, scores: Scores, splits: LabelledData, *, examples: int) -> dict[str, list[Any]]:
        """The labels of each example, those that it is given, and the probabilities of these."""
        predicted, probabilities = self.predictions(scores), self.probabilities(scores)
        return {
            "label": [_name(labels, splits.labels) for labels in scores.labels],
            "prediction": [_name(labels, splits.labels) for labels in predicted],
            "probability": [of[labels].tolist() for of, labels in zip(probabilities, predicted, strict=True)],
        }

    def breakdown(self, scores: Scores) -> dict[str, dict[str, float]]:
        """The task's metric of each label by itself, and the number of its examples.

        Of a single label every F1 is the same. There is none for a function of the user.
        """
        if self.metric in self.functions:
            return {}
        predicted, labels = self.predictions(scores), scores.labels > 0
        values = (predicted == labels).mean(axis=0) if self.names[0] == "subset_accuracy" else _f1(predicted, labels)
        numbers = zip(self.labels, values.tolist(), labels.sum(axis=0).tolist(), strict=True)
        return {label: {self.names[0]: value, "number": number} for label, value, number in numbers}

    def example_metric(self, scores: Scores) -> np.ndarray | None:
        """The subset accuracy of each example; None for F1, which is no mean."""
        if self.names[0] != "subset_accuracy":
            return None
        return np.asarray((self.predictions(scores) == (scores.labels > 0)).all(axis=-1), dtype=np.float64)

    def spoil(self, scores: Scores) -> Scores | None:
        """All labels that an example is not given, and none of the others; None for a function of the user."""
        if self.metric in self.functions:
            return None
        certain = np.where(self.predictions(scores), -CERTAIN, CERTAIN)
        return replace(scores, columns={**scores.columns, "logits": certain.astype(np.float32)})

    def hits(self, scores: Scores) -> dict[str, np.ndarray]:
        """Whether each example that has a label was given it."""
        predicted, labels = self.predictions(scores), scores.labels > 0
        return {name: predicted[labels[:, number], number] for number, name in enumerate(self.labels)}

    def hit_rows(self, scores: Scores) -> dict[str, np.ndarray]:
        """The example of each hit."""
        return {name: self.rows(scores)[scores.labels[:, number] > 0] for number, name in enumerate(self.labels)}

    def agreement(self, scores: Scores, reference: Scores) -> float:
        """Returns the share that both give of the labels that one of both gives to an example, averaged over examples.

        It is 1 for an example to which both give none.
        """
        first, second = self.predictions(scores), self.predictions(reference)
        shared, either = (first & second).sum(axis=-1), (first | second).sum(axis=-1)
        return float(np.where(either > 0, shared / np.maximum(either, 1), 1.0).mean())

    def calibration_error(self, scores: Scores) -> float:
        """The expected calibration error of the probabilities of all labels."""
        return expected_calibration_error(self.probabilities(scores).ravel(), scores.labels.ravel() > 0)

    def constants(self, scores: Scores) -> Sequence[Constant]:
        """The best constant set of labels: so many of the most frequent ones, from none to all of them."""
        given = _best_constant(scores.labels > 0, self.names[0])
        names = _name(given, self.labels) if self.labels else list(map(str, np.flatnonzero(given)))
        answer = ", ".join(names) if len(names) <= NAMED else f"the {len(names)} most frequent labels"

        def predict(scores: Scores) -> Scores:
            certain = np.where(given, CERTAIN, -CERTAIN).astype(np.float32)
            logits = np.broadcast_to(certain, scores.columns["logits"].shape).copy()
            return replace(scores, columns={**scores.columns, "logits": logits}, decoding={})

        return [Constant(f"always {answer or 'no label'}", predict)]

    def held_out(self, scores: Scores) -> Scores:
        """The scores with the thresholds of each example, which are the best ones for the other half of dev.

        On the examples that chose them, thresholds are too good: they give a label to all examples or to none where the
        probabilities tell nothing, and so are at least as good as every constant set. 20 labels of 200 examples without
        any signal have a macro F1 of 0.15 there, and 0.07 on other examples.
        """
        labels, probabilities = scores.labels > 0, self.probabilities(scores)
        halves, thresholds = draw_halves(scores.example_id), np.empty_like(probabilities)
        for half in (0, 1):
            chosen, others = halves == half, halves != half
            thresholds[chosen] = choose_thresholds(probabilities[others], labels[others], metric=self.names[0])
        return replace(scores, columns={**scores.columns, THRESHOLDS: thresholds})

    def describe(self, splits: LabelledData) -> dict[str, Any]:
        return {
            "labels": list(splits.labels),
            "answer": "labels",
            "pipeline_tag": "text-classification",
            "prediction": f"Gives any number of the labels: {', '.join(splits.labels)}.",
            **self.describe_functions(),
        }

    def summary(self, splits: LabelledData) -> str:
        labels = splits.splits["train"].labels
        shown = ", ".join(splits.labels[:SHOWN]) + (", ..." if len(splits.labels) > SHOWN else "")
        none = int((labels.sum(axis=-1) == 0).sum())
        without = f", none for {none:,} of them" if none else ""
        return f"{len(splits.labels)} labels, {labels.sum(axis=-1).mean():.2g} an example of train{without}: {shown}"


@dataclass(frozen=True)
class Candidates:
    """Possible thresholds of one label, `[K]` from the largest one on.

    Args:
        thresholds: in the middle of two neighbouring probabilities, of the largest one and 1, and of the smallest one
            and 0, so that rounding changes nothing.
        given: number of examples that get the label.
        correct: number of those that have it.
    """

    thresholds: np.ndarray
    given: np.ndarray
    correct: np.ndarray

    @classmethod
    def of(cls, probabilities: np.ndarray, labels: np.ndarray) -> Self:
        """Returns all that differ, or `THRESHOLD` alone if no example has the label.

        Args:
            probabilities: `[N]`.
            labels: whether an example has the label, `[N]` (bool).
        """
        if not labels.any():
            return cls(np.array([THRESHOLD]), np.array([(probabilities >= THRESHOLD).sum()]), np.array([0]))
        order = np.argsort(-probabilities, kind="stable")
        values = np.concatenate(([1.0], probabilities[order], [0.0]))
        correct, given = np.append(0, labels[order].cumsum()), np.arange(len(order) + 1)
        possible = values[:-1] > values[1:]  # Equal probabilities are given together.
        return cls(((values[:-1] + values[1:]) / 2)[possible], given[possible], correct[possible])

    def best(self, gains: np.ndarray) -> int:
        """Returns the index of the largest gain `[K]`; of several, that of the threshold nearest to `THRESHOLD`."""
        best = np.flatnonzero(gains >= gains.max() - 1e-9)
        return int(best[np.abs(self.thresholds[best] - THRESHOLD).argmin()])


def log_odds(labels: np.ndarray) -> tuple[float, ...]:
    """Returns the logit of each label's share of the examples, `[C]`, by the rule of succession `(n_c + 1) / (N + 2)`.

    A head that begins with these biases gives rare labels to few examples from the first step on. One that begins with
    0 first moves all logits of rare labels down, through the whole encoder, which can lose what tells texts apart
    (arXiv 1708.02002, section 4.1, gives the bias of detectors such a prior).

    Args:
        labels: which examples have which label, `[N, C]` (bool).
    """
    shares = (labels.sum(axis=0) + 1) / (len(labels) + 2)
    return tuple(np.log(shares / (1 - shares)).tolist())


def choose_thresholds(probabilities: np.ndarray, labels: np.ndarray, *, metric: str) -> list[float]:
    """Returns the threshold of each label, `[C]`, from which on it is given.

    For macro_f1 each label has the largest F1 of its own. A rare label that the probabilities do not tell apart is then
    given to many examples, which costs micro_f1 and subset_accuracy. For subset_accuracy each label has the fewest
    mistakes. For micro_f1 the F1 of all labels together is the largest: at that F1 the labels maximize
    `2 * correct - F1 * given` each by itself, so that F1 and thresholds are found in turns (Dinkelbach, 1967).

    Args:
        probabilities: `[N, C]`.
        labels: which examples have which label, `[N, C]` (bool).
        metric: the metric to maximize, one of `METRICS`.
    """
    candidates = [Candidates.of(*columns) for columns in zip(probabilities.T, labels.T, strict=True)]
    if metric == "macro_f1":
        numbers = labels.sum(axis=0)
        chosen = [
            each.best(2 * each.correct / np.maximum(1, each.given + number))
            for each, number in zip(candidates, numbers, strict=True)
        ]
    elif metric == "subset_accuracy":
        chosen = [each.best(2 * each.correct - each.given) for each in candidates]
    else:
        chosen = _choose_for_micro_f1(candidates, int(labels.sum()))
    return [float(each.thresholds[index]) for each, index in zip(candidates, chosen, strict=True)]


def _choose_for_micro_f1(candidates: Sequence[Candidates], number: int) -> list[int]:
    """Returns the index of each label's threshold, given the number of all pairs of an example and its label."""
    micro_f1 = 0.0
    while True:
        chosen = [each.best(2 * each.correct - micro_f1 * each.given) for each in candidates]
        pairs = list(zip(candidates, chosen, strict=True))
        correct, given = sum(each.correct[at] for each, at in pairs), sum(each.given[at] for each, at in pairs)
        reached = 2 * correct / max(1, given + number)
        if reached <= micro_f1 + 1e-12:
            return chosen
        micro_f1 = reached


def _best_constant(labels: np.ndarray, metric: str) -> np.ndarray:
    """Returns the labels `[C]` (bool) of the constant set that is best for these examples `[N, C]`."""
    order = np.argsort(-labels.sum(axis=0), kind="stable")
    number = int(_score_most_frequent(labels[:, order], metric).argmax())
    given = np.zeros(labels.shape[1], dtype=bool)
    given[order[:number]] = True
    return given


def _score_most_frequent(labels: np.ndarray, metric: str) -> np.ndarray:
    """Returns the metric of giving every example the first k labels, for k from 0 to C, `[C + 1]`.

    Args:
        labels: which examples have which label, the most frequent one first, `[N, C]` (bool).
    """
    examples, classes = labels.shape
    counts, given = labels.sum(axis=0), np.arange(classes + 1)
    if metric == "subset_accuracy":
        first = np.logical_and.accumulate(labels, axis=1).sum(axis=1)  # Labels before the first one that is missing.
        return np.asarray(np.bincount(first[first == labels.sum(axis=1)], minlength=classes + 1) / examples)
    if metric == "macro_f1":
        return np.append(0.0, np.cumsum(2 * counts / (examples + counts)) / max(1, np.count_nonzero(counts)))
    return np.asarray(np.append(0, 2 * counts.cumsum()) / np.maximum(1, given * examples + counts.sum()))


def _f1(predicted: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns the F1 of each label `[C]`, 0 for one that is neither given nor there."""
    return np.asarray(2 * (predicted & labels).sum(axis=0) / np.maximum(1, predicted.sum(axis=0) + labels.sum(axis=0)))


def _name(chosen: np.ndarray, names: Sequence[str]) -> list[str]:
    """Returns the names of the chosen labels."""
    return [names[index] for index in np.flatnonzero(chosen).tolist()]
