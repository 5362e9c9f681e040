"""Classification of one text or a pair of texts, with one label or several: `logits [B, C]`, one item an example.

>>> from distill.kinds import Classification
>>> task = Classification(text="sentence", train=(["good", "bad"] * 10, [1, 0] * 10), dev=(["fine", "poor"], [1, 0]))
>>> task.read(None).labels
('0', '1')
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Self, Unpack

import numpy as np
from pydantic import Field

from distill.core.console import print_notice
from distill.core.contracts import IGNORED, Constant, Items, Outputs, Scores
from distill.core.errors import OptionError, UserError
from distill.core.options import check_arguments, show_value
from distill.data.splits import TEACHER_CLASS, LabelledData
from distill.edge.decoder import sigmoid
from distill.edge.metrics import CLASS_METRICS, SET_METRICS, compute_metrics, count_pairs, describe_absent, f1_of_labels
from distill.kinds import labelled_rows
from distill.kinds.known import Found, KnownTable
from distill.kinds.labelled_rows import ClassWeights, TextRows, describe_weights, resolve_class_weights
from distill.kinds.scoring import (
    Functions,
    Scoring,
    always,
    annotate_metrics,
    draw_halves,
    expected_calibration_error,
    read_metrics,
)
from distill.labelling.forms import ClassForm, Form, SetForm
from distill.losses import HardLabels
from distill.rows.labels import simplify

if TYPE_CHECKING:
    from torch import Tensor

    from distill.kinds.scoring import Metrics


AGREEMENT = "agreement"  # The share of examples of which a model's class is the teacher's.
CERTAIN = 10.0  # A logit whose probability is nearly 1.
ORDERED = (("0", "1"), ("0.0", "1.0"), ("false", "true"))  # Pairs of classes of which the second one is positive.


@dataclass(frozen=True)
class OneClass(Scoring):
    """One class for each example, by the softmax of the logits.

    Args:
        names: some of `CLASS_METRICS` and of `functions`.
        functions: metrics of the user. Of two classes `y_true [N]` is 1 for the positive one, and `y_score [N]` its
            probability; of more, `y_true [N]` is the index of the class, and `y_score [N, C]` the probabilities.
        labels: the given names of the classes, None for those of the data.
        positive: of two classes the one whose F1 is computed, None for the second one where an order is known.
        class_weights: as in `Classification`.
        classes: the names of the classes, those of the data once it is read.
        positive_index: the class whose F1 is computed, None for the mean of both.
        weights: of the classes in the loss on the labels, None for equal ones.
    """

    can_abstain = True

    names: tuple[str, ...]
    functions: Functions = field(default_factory=dict)
    labels: tuple[str, ...] | None = None
    positive: str | None = None
    class_weights: ClassWeights | None = None
    classes: tuple[str, ...] = ()
    positive_index: int | None = 1
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.positive is not None and self.labels is not None:
            self._check_positive("positive", self.labels)

    def adapt(self, data: LabelledData) -> LabelledData:
        """Returns the data with its scoring, and a digest that depends on the options.

        Raises:
            UserError: for options that do not suit the data.
        """
        positive_index, weights = self._find_positive(data.labels), None
        dev = data.splits["dev"].labels
        if (data.splits["train"].labels == IGNORED).all():
            return self._adapt_without_labels(data, positive_index)
        if len(known := np.unique(dev)) == 1:
            print_notice(
                f"dev has one class only, {data.labels[int(known[0])]}: its {self.names[0]} says nothing of the others"
            )
        self._tell_absent(data, positive_index)
        # The digest is a part of a fine-tuned teacher's key, and F1 may select its checkpoint.
        if positive_index not in (1, None):
            data = data.with_option(f"positive={self.positive}")
        if self.class_weights is not None:
            weights = resolve_class_weights(self.class_weights, data.labels, data.splits["train"].labels)
            data = data.with_option(f"class_weights={weights}")
        scoring = replace(self, classes=data.labels, positive_index=positive_index, weights=weights)
        data = scoring.adopt_functions(
            data, perfect=lambda labels: CERTAIN * np.eye(len(data.labels))[labels], constant=np.zeros_like
        )
        return replace(data, scoring=scoring, terms={"hard": HardLabels()})

    def _tell_absent(self, data: LabelledData, positive_index: int | None) -> None:
        """Prints the classes without a row in a split that is scored, if a metric is a mean over classes."""
        f1_is_mean = len(data.labels) > 2 or positive_index is None
        is_mean = "macro_f1" in self.names or (f1_is_mean and "f1" in self.names)
        for split, rows in data.scored().items() if is_mean else ():
            numbers = np.bincount(rows.labels[rows.labels != IGNORED], minlength=len(data.labels))
            if absent := describe_absent(split, data.labels, numbers):
                print_notice(absent)

    def _adapt_without_labels(self, data: LabelledData, positive_index: int | None) -> LabelledData:
        """Returns data whose train has no labels with its scoring, by which the agreement selects checkpoints."""
        if self.class_weights is not None:
            raise OptionError("task.class_weights", str(self.class_weights), "null, because train has no labels")
        if self.functions:
            named = ", ".join(self.functions)
            raise OptionError(
                "task.metrics", f"[{named}]", f"some of {', '.join(CLASS_METRICS)}, because train has no labels"
            )
        scoring = replace(self, names=(AGREEMENT, *self.names), classes=data.labels, positive_index=positive_index)
        return replace(data, scoring=scoring)

    @property
    def needs_teacher(self) -> bool:
        """Whether the classes that the teacher gives dev select checkpoints, because train has no labels."""
        return self.names[0] == AGREEMENT

    def _find_positive(self, labels: Sequence[str]) -> int | None:
        """Returns the index of the positive class; None if F1 is the mean of both classes, because neither is known."""
        if self.positive is not None:
            self._check_positive("task.positive", labels)
            return labels.index(self.positive)
        known = self.labels is not None or tuple(map(str.casefold, labels)) in ORDERED
        if len(labels) == 2 and not known and self.names[0] != "f1":
            return None
        if len(labels) == 2 and not known:
            raise UserError(
                f"F1 is that of one of the two classes {' and '.join(labels)}: set task.positive={labels[0]} or "
                f"task.positive={labels[1]}"
            )
        return 1

    def _check_positive(self, option: str, labels: Sequence[str]) -> None:
        if len(labels) != 2:
            raise OptionError(option, self.positive, f"null, because the task has {len(labels)} classes")
        if self.positive not in labels:
            raise OptionError(option, self.positive, f"{labels[0]} or {labels[1]}")

    def metrics(self, scores: Scores) -> dict[str, float]:
        classes = scores.columns["logits"].shape[-1]
        agreement = dict[str, float]()
        if self.needs_teacher:
            agreement = {AGREEMENT: float((self.predictions(scores) == _teacher_classes(scores)).mean())}
            labelled = scores.columns.get(TEACHER_CLASS, scores.labels) != IGNORED
            if not labelled.any():
                return agreement
            scores = scores.select(labelled)
        counts = count_pairs(scores.labels, self.predictions(scores), classes)
        values = compute_metrics(CLASS_METRICS, self.names, counts, self.positive_index if classes == 2 else None)
        return agreement | self.add_functions(values, scores)

    def score(self, outputs: Outputs, items: Items) -> "dict[str, Tensor]":
        """The logits, and the class that the teacher gives each item where it selects checkpoints."""
        columns = super().score(outputs, items)
        if TEACHER_CLASS in items.batch:
            columns[TEACHER_CLASS] = items[TEACHER_CLASS][items.row]
        return columns

    def true_and_scores(self, scores: Scores) -> tuple[np.ndarray, np.ndarray]:
        """The labels and the probabilities, of two classes those of the positive one."""
        probabilities = self.probabilities(scores)
        if probabilities.shape[-1] != 2:
            return scores.labels, probabilities
        positive = 1 if self.positive_index is None else self.positive_index
        return (scores.labels == positive).astype(np.int64), probabilities[:, positive]

    def tabulate(self, scores: Scores, splits: LabelledData, *, examples: int) -> dict[str, list[Any]]:
        return {
            "label": [splits.labels[label] for label in scores.labels],
            "prediction": [splits.labels[label] for label in self.predictions(scores)],
            "probability": self.confidences(scores).tolist(),
        }

    def example_metric(self, scores: Scores) -> np.ndarray | None:
        if self.names[0] not in ("accuracy", AGREEMENT):
            return None
        expected = _teacher_classes(scores) if self.needs_teacher else scores.labels
        return np.asarray(self.predictions(scores) == expected, dtype=np.float64)

    def spoil_all(self, scores: Scores) -> Scores:
        """The least probable class of each example."""
        return scores.with_columns(logits=-scores.columns["logits"])

    def right_answers(self, scores: Scores) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Whether each example of a class was given it, and the example."""
        is_right, rows = self.predictions(scores) == scores.labels, self.rows(scores)
        chosen = {name: scores.labels == number for number, name in enumerate(self.classes)}
        return {name: (is_right[of_class], rows[of_class]) for name, of_class in chosen.items()}

    def constants(self, scores: Scores) -> Sequence[Constant]:
        """Every class of dev."""
        counts = np.bincount(scores.labels)
        order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)].tolist()
        return [always(f"always {self.classes[index] if self.classes else index}", index) for index in order]

    def describe(self, splits: LabelledData) -> dict[str, Any]:
        return {
            "labels": list(splits.labels),
            "positive": self._positive(splits),
            "class_weights": None if self.weights is None else list(self.weights),
            "answer": "classes",
            "pipeline_tag": "text-classification",
            "prediction": f"Labels: {', '.join(splits.labels)}.",
            **self.describe_functions(),
        }

    def summary(self, splits: LabelledData) -> str:
        classes = ", ".join(f"{index} {label}" for index, label in enumerate(splits.labels))
        classes += describe_weights(self.weights, splits.labels)
        if "f1" not in self.names or len(splits.labels) != 2:
            return classes
        return f"{classes}; F1 of {self._positive(splits) or 'both, averaged (task.positive=NAME for that of one)'}"

    def _positive(self, splits: LabelledData) -> str | None:
        """Returns the class whose F1 is computed, None for the mean of all classes and without F1."""
        if len(splits.labels) != 2 or "f1" not in self.names or self.positive_index is None:
            return None
        return splits.labels[self.positive_index]


def _teacher_classes(scores: Scores) -> np.ndarray:
    """Returns the class that the teacher gives each item, `[n]`, which is the label of an item without another one."""
    classes = scores.columns.get(TEACHER_CLASS, scores.labels)
    return np.where(classes == IGNORED, scores.labels, classes)


THRESHOLDS = "thresholds"  # Those of all examples in `Scores.decoding`, and those of each in `Scores.columns`.
THRESHOLD = 0.5  # Of a label that no example of dev has, and before thresholds are chosen.
CERTAIN_LABEL = 100.0  # A logit whose probability is 1 in float64.
SHOWN = 8  # Labels in a summary.
NAMED = 3  # Labels in the name of a constant set.


@dataclass(frozen=True)
class LabelSets(Scoring):
    """Any number of labels for each example, each by the sigmoid of its logit and a threshold that dev chooses.

    Args:
        names: some of `SET_METRICS` and of `functions`.
        separator: stands between the labels of a text that has several.
        labels: the names of the labels of the data.
        functions: metrics of the user, of `y_true [N, C]` (0 and 1) and the probabilities `y_score [N, C]`.
    """

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
            data, perfect=lambda labels: np.where(labels > 0, CERTAIN_LABEL, -CERTAIN_LABEL), constant=np.zeros_like
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
        values = compute_metrics(SET_METRICS, self.names, scores.labels > 0, self.predictions(scores))
        return self.add_functions(values, scores)

    def selecting_metric(self, scores: Scores) -> float:
        if self.metric in self.functions:
            return super().selecting_metric(scores)
        return float(SET_METRICS[self.metric](scores.labels > 0, self.predictions(scores)))

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
        is_share = self.names[0] == "subset_accuracy"
        values = (predicted == labels).mean(axis=0) if is_share else f1_of_labels(predicted, labels)
        numbers = zip(self.labels, values.tolist(), labels.sum(axis=0).tolist(), strict=True)
        return {label: {self.names[0]: value, "number": number} for label, value, number in numbers}

    def example_metric(self, scores: Scores) -> np.ndarray | None:
        """The subset accuracy of each example; None for F1, which is no mean."""
        if self.names[0] != "subset_accuracy":
            return None
        return np.asarray((self.predictions(scores) == (scores.labels > 0)).all(axis=-1), dtype=np.float64)

    def spoil_all(self, scores: Scores) -> Scores:
        """All labels that an example is not given, and none of the others."""
        certain = np.where(self.predictions(scores), -CERTAIN_LABEL, CERTAIN_LABEL)
        return scores.with_columns(logits=certain.astype(np.float32))

    def right_answers(self, scores: Scores) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Whether each example that has a label was given it, and the example."""
        predicted, labels, rows = self.predictions(scores), scores.labels > 0, self.rows(scores)
        return {
            name: (predicted[labels[:, number], number], rows[labels[:, number]])
            for number, name in enumerate(self.labels)
        }

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
            certain = np.where(given, CERTAIN_LABEL, -CERTAIN_LABEL).astype(np.float32)
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
        return scores.with_columns(**{THRESHOLDS: thresholds})

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
class ThresholdCandidates:
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
        metric: the metric to maximize, one of `SET_METRICS`.
    """
    candidates = [ThresholdCandidates.of(*columns) for columns in zip(probabilities.T, labels.T, strict=True)]
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


def _choose_for_micro_f1(candidates: Sequence[ThresholdCandidates], number: int) -> list[int]:
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


def _name(chosen: np.ndarray, names: Sequence[str]) -> list[str]:
    """Returns the names of the chosen labels."""
    return [names[index] for index in np.flatnonzero(chosen).tolist()]


if not TYPE_CHECKING:
    Metrics = annotate_metrics(f"{', '.join(CLASS_METRICS)}, or with multi_label of {', '.join(SET_METRICS)}")
Separator = Annotated[str, Field(min_length=1, description="at least one character")]
Labels = Annotated[
    Sequence[str | int | float], Field(min_length=2, description="at least two names, quoted if YAML's true or false")
]
Label = Annotated[str | int | float, Field(description="the name of a class, quoted if YAML's true or false")]


class Classification(TextRows):
    """Classes of one text or a pair of texts, one of them or, with `multi_label`, any number.

    Args:
        text: the column, or the two columns of a pair, that hold the text. Data in memory as
            `(texts, labels)` need no name.
        label: the column that holds the class; of several names the one that is there. With `multi_label` also the
            columns of 0 and 1, one for each label. None if no text has one. Without any label in train, the teacher
            must know the classes of `labels`, and the metric `agreement` with it selects checkpoints.
        name: names the task in records and directories.
        labels: names of the classes in the order of the data's integers; None takes the training split's own.
        positive: of two classes the one whose F1 is computed. None is the second one of `labels` or of 0 and 1; classes
            that the data names have none.
        class_weights: weights of the classes in the loss on the labels, of student and fine-tuned teacher: `balanced`
            (n / (C * count of the class) in train), or one number for each class; None weighs all alike. Only None
            with `multi_label`.
        multi_label: whether an example has any number of the labels, also none. A label is then given from a threshold
            of its probability on, which has the largest F1 of the label on dev.
        separator: between the labels of an example in a text, such as a field of CSV; lists of labels, and vectors of
            0 and 1 for each label, have none.
        metrics: accuracy, f1, matthews or macro_f1 (the mean of the F1 of every class with a row in the split), and
            with `multi_label` micro_f1, macro_f1 or subset_accuracy; the first one selects checkpoints, and retention
            compares it. None takes accuracy and f1, or all three of several labels.
            A function `(y_true, y_score) -> float` is a metric too, of which more is better, under its own name or
            that of a mapping. Of two classes it reads 1 for the positive one and its probability, `[N]` both; of more,
            the index of the class `[N]` and all probabilities `[N, C]`; with `multi_label` 0 and 1 `[N, C]` and the
            probabilities `[N, C]`. A bundle has its values, and cannot compute it.
        max_length: tokens that an example is cut to.
        data: a path as `data_dir`, a table, or split -> table; a table is a pandas frame, a `datasets.Dataset`, a
            mapping of columns, or `(texts, labels)`. Of a single table `dev_fraction` is held out as dev.
        train, dev, test: tables, in place of `data`.
        data_dir: a directory with `train` and `dev`, or one file of which `dev_fraction` is held out as dev.
        dev_fraction: share of a single file or table that becomes dev, drawn class by class, the same in every run.
        splits: names under which a split is found besides the usual ones. Every split but train and dev is scored at
            the end and selects nothing. With no name for dev, `{"dev": []}`, `dev_fraction` of train is held out.
        hub_id: the Hub's data set and, after a colon, its configuration, e.g. `nyu-mll/glue:sst2`.
        builtin: the data comes with the program.
        train_examples, dev_examples: use only so many examples, always the same ones; None uses all.
        missing: the treatment of rows without a label or a text, which are reported together with their lines. `error`
            refuses them, `drop` leaves them out, and `unlabelled` gives those of train that have a text to the teacher
            as unlabelled texts. `auto` does so too, except that with `multi_label` no label is none of the labels.
        unlabelled: more texts, which only the teacher labels: a file (plain text with one text a line, or a table
            with the columns of `text`), a directory of such files, a data set of the Hub, a list of texts or of pairs
            of texts, or a table. Texts of any split and repeated ones are left out. `auto` takes changed copies of the
            training texts and sentences of the bank, as many as suit the data (`data.auto_text`).
        unlabelled_share: share of unlabelled texts in the examples of every optimizer step.
        bank: sentences or prose in the domain of the task, of which those near the training texts join the texts of
            `unlabelled=auto`: a source as for `unlabelled`. A bank is for single texts.
        clean: rules for the texts of `unlabelled` and the bank: `web` keeps the prose of web text; None keeps all.
        options: those of `labelled_rows.TextOptions`.

    Raises:
        OptionError: for an option that got a value it cannot take.
        UserError: for data of a type that cannot be read.
    """

    kinds = ("classification", "multi_label_classification")
    decoder = "classes"
    can_abstain = True
    answer_form: type[Form[Any]] | None = ClassForm

    @check_arguments
    def __init__(
        self,
        *,
        text: labelled_rows.Columns | None = None,
        label: labelled_rows.Columns | None = "label",
        name: str = "classification",
        labels: Labels | None = None,
        positive: Label | None = None,
        class_weights: ClassWeights | None = None,
        multi_label: bool = False,
        separator: Separator = "|",
        metrics: Metrics | None = None,
        max_length: labelled_rows.MaxLength = 128,
        **options: Unpack[labelled_rows.TextOptions],
    ) -> None:
        names = None if labels is None else tuple(map(str, labels))
        if names is not None and len(set(map(simplify, names))) < len(names):
            raise OptionError("labels", show_value(names), "at least two names, each once")
        chosen, functions = _choose_metrics(metrics, multi_label=multi_label)
        scoring: OneClass | LabelSets
        if multi_label:
            if positive is not None:
                reason = "because task.multi_label=true has F1 of all labels"
                raise OptionError("positive", show_value(positive), f"null, {reason}")
            if class_weights is not None:
                reason = "because each label of task.multi_label=true has a threshold of its own"
                raise OptionError("class_weights", show_value(class_weights), f"null, {reason}")
            scoring = LabelSets(chosen, separator=separator, functions=functions)
        else:
            positive = None if positive is None else str(positive)
            scoring = OneClass(
                chosen, functions, labels=names, positive=positive, class_weights=class_weights, classes=names or ()
            )
        rows = {"task": "classification", "names": names}
        if multi_label:
            rows |= {"task": "multi_label", "separator": separator}
        super().__init__(name, max_length, scoring, text, label, rows, options)
        if label is None and multi_label:
            raise OptionError("label", "null", "the column of the labels, because task.multi_label=true")
        if multi_label:
            self.kind, self.likelihood, self.decoder = self.kinds[1], "sigmoid", "labels"
            self.answer_form = SetForm
            self.can_abstain, self.no_label = False, np.nan
            # By which the pipelines of transformers take the sigmoid too.
            self.model_settings = {"problem_type": self.kind}

    def read_known(self, known: KnownTable, data: LabelledData) -> Found:
        """Yields the logits of each text: of probabilities, of a label, or of candidates."""
        read = known.label_logits if self.likelihood == "sigmoid" else known.class_logits
        for row, texts in enumerate(known.texts(self.known_columns)):
            yield row, texts, read(row)[None]


def _choose_metrics(metrics: "Metrics | None", *, multi_label: bool) -> tuple[tuple[str, ...], Functions]:
    """Returns the names of the metrics, by default the usual ones, and the functions among them.

    Raises:
        OptionError: for metrics of one class with several labels, or the other way round.
    """
    known, others = list(CLASS_METRICS), list(SET_METRICS)
    if multi_label:
        known, others = others, known
    if metrics is None:
        return tuple(known if multi_label else known[:2]), {}
    listed = metrics if isinstance(metrics, Iterable) else ()
    if any(isinstance(metric, str) and metric in others and metric not in known for metric in listed):
        reason = f"because task.multi_label={show_value(multi_label)}"
        raise OptionError("metrics", show_value(list(metrics)), f"a list of some of {', '.join(known)}, {reason}")
    return read_metrics(metrics, known)
