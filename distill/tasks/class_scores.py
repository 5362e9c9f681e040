"""The classes of an example, one of them or any number: their data, predictions and metrics."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from distill.console import print_notice
from distill.contracts import IGNORED, Constant, Items, Likelihood, Outputs, Scores
from distill.data.tables import TEACHER_CLASS, LabelledData
from distill.edge.class_metrics import compute_f1, compute_matthews, count_pairs, describe_absent
from distill.errors import OptionError, UserError
from distill.losses import HardLabels
from distill.tasks.class_weights import ClassWeights, describe_weights, resolve_class_weights
from distill.tasks.own_metrics import Functions
from distill.tasks.scoring import Scoring, always, compute_metrics

if TYPE_CHECKING:
    from torch import Tensor

# Metric -> its value from the counts of labels and predictions, `[C, C]`, and the class that F1 is of.
METRICS: Mapping[str, Callable[[np.ndarray, int | None], float]] = {
    "accuracy": lambda counts, positive: np.trace(counts) / counts.sum(),
    "f1": compute_f1,
    "matthews": lambda counts, positive: compute_matthews(counts),
    "macro_f1": lambda counts, positive: compute_f1(counts, None),
}
AGREEMENT = "agreement"  # The share of examples of which a model's class is the teacher's.
CERTAIN = 10.0  # A logit whose probability is nearly 1.
ORDERED = (("0", "1"), ("0.0", "1.0"), ("false", "true"))  # Pairs of classes of which the second one is positive.


@dataclass(frozen=True)
class OneClass(Scoring):
    """One class for each example, by the softmax of the logits.

    Args:
        names: some of `METRICS` and of `functions`.
        functions: metrics of the user. Of two classes `y_true [N]` is 1 for the positive one, and `y_score [N]` its
            probability; of more, `y_true [N]` is the index of the class, and `y_score [N, C]` the probabilities.
        labels: the given names of the classes, None for those of the data.
        positive: of two classes the one whose F1 is computed, None for the second one where an order is known.
        class_weights: as in `Classification`.
        classes: the names of the classes, those of the data once it is read.
        positive_index: the class whose F1 is computed, None for the mean of both.
        weights: of the classes in the loss on the labels, None for equal ones.
    """

    kind = "classification"
    decoder = "classes"
    likelihood: ClassVar[Likelihood] = "softmax"
    can_abstain = True
    model_settings: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    no_label = float(IGNORED)

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
                "task.metrics", f"[{named}]", f"some of {', '.join(METRICS)}, because train has no labels"
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
        values = compute_metrics(METRICS, self.names, counts, self.positive_index if classes == 2 else None)
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

    def spoil(self, scores: Scores) -> Scores | None:
        """The least probable class of each example; None where a function of the user is compared."""
        if self.metric in self.functions:
            return None
        return replace(scores, columns={**scores.columns, "logits": -scores.columns["logits"]})

    def hits(self, scores: Scores) -> dict[str, np.ndarray]:
        """Whether each example of a class was given it."""
        is_right = self.predictions(scores) == scores.labels
        return {name: is_right[scores.labels == number] for number, name in enumerate(self.classes)}

    def hit_rows(self, scores: Scores) -> dict[str, np.ndarray]:
        """The example of each hit."""
        return {name: self.rows(scores)[scores.labels == number] for number, name in enumerate(self.classes)}

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
