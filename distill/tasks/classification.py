"""Classification of one text or a pair of texts: `logits [B, C]`, one item an example.

>>> from distill.tasks import Classification
>>> task = Classification(text="sentence", train=(["good", "bad"] * 8, [1, 0] * 8), dev=(["fine", "poor"], [1, 0]))
>>> task.read(None).labels
('0', '1')
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from distill.contracts import Batch, EncodedSplits, Examples, Items, Likelihood, Outputs, ScoredSplits, Scores
from distill.data.in_memory import Table, TableSplits
from distill.data.labels import simplify
from distill.data.tables import LabelledData
from distill.data.unlabelled import Unlabelled
from distill.edge.decode import softmax
from distill.errors import OptionError, UserError
from distill.losses import HardLabels, Term
from distill.options import check_arguments, show_value
from distill.tasks import rows
from distill.tasks.class_weights import ClassWeights, describe_weights, resolve_class_weights

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from distill.models.forward import FullPass

Metrics = Annotated[
    Sequence[Literal["accuracy", "f1", "matthews"]],
    Field(min_length=1, description="a list of some of accuracy, f1, matthews"),
]
Labels = Annotated[
    Sequence[str | int | float], Field(min_length=2, description="at least two names, quoted if YAML's true or false")
]
Label = Annotated[str | int | float, Field(description="the name of a class, quoted if YAML's true or false")]
ORDERED = (("0", "1"), ("0.0", "1.0"), ("false", "true"))  # Pairs of classes of which the second one is positive.


class Classification:
    """Classes of one text or a pair of texts.

    Args:
        text: the column, or the two columns of a pair, that hold the text.
        label: the column that holds the class; of several names the first one that is there.
        name: names the task in records and directories.
        labels: names of the classes in the order of the data's integers; None takes the training split's own.
        positive: of two classes the one whose F1 is computed. None is the second one of `labels` or of 0 and 1; classes
            that the data names have none.
        class_weights: weights of the classes in the loss on the labels, of student and fine-tuned teacher: `balanced`
            (n / (C * count of the class) in train), or one number for each class; None weighs all alike.
        metrics: accuracy, f1 or matthews; the first one selects checkpoints, and retention compares it.
        max_length: tokens that an example is cut to.
        data: a path as `data_dir`, a table, or split -> table; a table is a pandas frame, a `datasets.Dataset`, a
            mapping of columns, or `(texts, labels)`. Of a single table `dev_fraction` is held out as dev.
        train, dev, test: tables, in place of `data`.
        data_dir: a directory with `train` and `dev`, or one file of which `dev_fraction` is held out as dev.
        dev_fraction: share of a single file or table that becomes dev, drawn class by class, the same in every run.
        splits: names under which a split is found besides the usual ones. Every split but train and dev is scored at
            the end and selects nothing.
        hub_id: the Hub's data set and, after a colon, its configuration, e.g. `nyu-mll/glue:sst2`.
        builtin: the data comes with the program.
        train_examples, dev_examples: use only so many examples, always the same ones; None uses all.
        unlabelled: more texts, which only the teacher labels: a file (plain text with one text a line, or a table
            with the columns of `text`), a directory of such files, a data set of the Hub, a list of texts or of pairs
            of texts, or a table. Texts of any split and repeated ones are left out.
        unlabelled_share: share of unlabelled texts in the examples of every optimizer step.

    Raises:
        OptionError: for an option that got a value it cannot take.
        UserError: for data of a type that cannot be read.
    """

    kind = "classification"
    auto_class = "AutoModelForSequenceClassification"
    selects: Literal["max", "min"] = "max"
    likelihood: Likelihood = "softmax"
    fixed_inputs = True
    model_settings: Mapping[str, Any] = MappingProxyType({})
    over_vocabulary = False
    decoder = "classes"
    compared_column = "logits"
    fine_tunes_teacher = True
    choices: int | None = None
    compares_with_teacher = False
    can_abstain = True
    can_augment = True

    @check_arguments
    def __init__(
        self,
        *,
        text: rows.Columns,
        label: rows.Columns = "label",
        name: str = "classification",
        labels: Labels | None = None,
        positive: Label | None = None,
        class_weights: ClassWeights | None = None,
        metrics: Metrics = ("accuracy",),
        max_length: rows.MaxLength = 128,
        data: Table | TableSplits | str | Path | None = None,
        train: Table | None = None,
        dev: Table | None = None,
        test: Table | None = None,
        data_dir: str | Path | None = None,
        dev_fraction: rows.Share = 0.1,
        splits: Mapping[str, Sequence[str]] | None = None,
        hub_id: str | None = None,
        builtin: bool = False,
        train_examples: rows.Amount | None = None,
        dev_examples: rows.Amount | None = None,
        unlabelled: Unlabelled | None = None,
        unlabelled_share: rows.Share = 0.5,
    ) -> None:
        names = None if labels is None else tuple(map(str, labels))
        if names is not None and len(set(map(simplify, names))) < len(names):
            raise OptionError("labels", show_value(names), "at least two names, each once")
        self.positive = None if positive is None else str(positive)
        if self.positive is not None and names is not None:
            self._check_positive("positive", names)
        self._positive_index: int | None = 1  # Set by `read`.
        self.class_weights = class_weights
        self._weights: tuple[float, ...] | None = None  # Set by `read`.
        self.name, self.max_length, self.builtin = name, max_length, builtin
        self.metric_names = tuple(metrics)
        self.rows = rows.labelled_text(
            name=name, text=text, label=label, data=data, train=train, dev=dev, test=test, data_dir=data_dir,
            dev_fraction=dev_fraction, splits=splits, hub_id=hub_id, builtin=builtin, train_examples=train_examples,
            dev_examples=dev_examples, label_names=names,
        )  # fmt: skip
        self.unlabelled, self.unlabelled_share = rows.unlabelled_text(unlabelled, self.rows), unlabelled_share

    @property
    def metric(self) -> str:
        return self.metric_names[0]

    @property
    def pair(self) -> bool:
        return len(self.rows.text) == 2

    @property
    def has_unlabelled(self) -> bool:
        return self.unlabelled is not None

    def read(self, cache_dir: Path) -> LabelledData:
        """Reads every split, and determines the positive class of two and the weights of the classes.

        Raises:
            UserError: for invalid data and class weights that do not fit it, and if F1 selects checkpoints and the
                positive class of two is unknown.
        """
        data = rows.add_unlabelled(self.rows.read(cache_dir), self.unlabelled, self.unlabelled_share)
        self._positive_index = self._find_positive(data.labels)
        # The digest is a part of a fine-tuned teacher's key, and F1 may select its checkpoint.
        if self._positive_index not in (1, None):
            data = _extend_digest(data, f"positive={self.positive}")
        if self.class_weights is None:
            return data
        self._weights = resolve_class_weights(self.class_weights, data.labels, data.splits["train"].labels)
        return _extend_digest(data, f"class_weights={self._weights}")

    def _find_positive(self, labels: Sequence[str]) -> int | None:
        """Returns the index of the positive class; None if F1 is the mean of both classes, because neither is known."""
        if self.positive is not None:
            self._check_positive("task.positive", labels)
            return labels.index(self.positive)
        known = self.rows.label_names is not None or tuple(map(str.casefold, labels)) in ORDERED
        if len(labels) == 2 and not known and self.metric != "f1":
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

    def encode(
        self, splits: LabelledData, tokenizer: "PreTrainedTokenizerBase", cache_dir: Path | None
    ) -> dict[str, Examples]:
        return rows.encode_rows(splits, tokenizer, self.max_length, cache_dir)

    def select(self, batch: Batch, *, every_token: bool = False) -> Items:
        return rows.select_examples(batch, self.likelihood, self._weights)

    def run(self, model: "PreTrainedModel", batch: Batch, items: Items, needs: frozenset[str]) -> "FullPass":
        return rows.run_whole_model(model, batch, needs)

    def score(self, outputs: Outputs, items: Items, reference: Outputs | None = None) -> "dict[str, Tensor]":
        return rows.score_logits(outputs)

    def predictions(self, scores: Scores) -> np.ndarray:
        """The class of every example, `[N]`."""
        return np.asarray(scores.columns["logits"].argmax(axis=-1))

    def rescore(self, scores: Scores, logits: Sequence[np.ndarray]) -> Scores:
        return rows.rescore(scores, logits)

    def scored_data(self, splits: LabelledData, examples: Callable[[], EncodedSplits]) -> ScoredSplits:
        return splits

    def fit_decoder(self, scores: Scores) -> dict[str, Any]:
        return {}

    def metrics(self, scores: Scores) -> dict[str, float]:
        # scikit-learn takes a second to import, and the command's help does without it.
        from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

        predicted, labels = self.predictions(scores), scores.labels
        positive = self._positive_index
        average = "macro" if scores.columns["logits"].shape[-1] > 2 or positive is None else "binary"
        functions = {
            "accuracy": lambda: accuracy_score(labels, predicted),
            "f1": lambda: f1_score(labels, predicted, pos_label=positive or 0, average=average, zero_division=0.0),
            "matthews": lambda: matthews_corrcoef(labels, predicted),
        }
        return rows.compute_metrics(functions, self.metric_names)

    def supervised_terms(self) -> dict[str, Term]:
        return {"hard": HardLabels()}

    def condense(self, scores: Scores) -> Scores:
        return scores

    def confidences(self, scores: Scores) -> np.ndarray:
        return np.asarray(softmax(scores.columns["logits"].astype(np.float64)).max(axis=-1))

    def tabulate(self, scores: Scores, splits: LabelledData, *, examples: int) -> dict[str, list[Any]]:
        return {
            "label": [splits.labels[label] for label in scores.labels],
            "prediction": [splits.labels[label] for label in self.predictions(scores)],
            "probability": self.confidences(scores).tolist(),
        }

    def breakdown(self, scores: Scores) -> dict[str, dict[str, float]]:
        return {}

    def example_metric(self, scores: Scores) -> np.ndarray | None:
        return (self.predictions(scores) == scores.labels).astype(np.float64) if self.metric == "accuracy" else None

    def agreement(self, scores: Scores, reference: Scores) -> float:
        return float((self.predictions(scores) == self.predictions(reference)).mean())

    def probability_diff(self, scores: Scores, reference: Scores) -> float:
        return rows.probability_diff(scores, reference)

    def calibration_error(self, scores: Scores) -> float | None:
        return rows.calibration_error(scores)

    def weakness(self, scores: Scores) -> str | None:
        constant = np.zeros_like(scores.columns["logits"])
        constant[:, np.bincount(scores.labels).argmax()] = 1
        return rows.compare_with_constant(self, scores, constant, "always answering the majority class")

    def describe(self, splits: LabelledData) -> dict[str, Any]:
        return {
            "labels": list(splits.labels),
            "positive": self._positive(splits),
            "class_weights": None if self._weights is None else list(self._weights),
            "answer": "classes",
            "pipeline_tag": "text-classification",
            "prediction": f"Labels: {', '.join(splits.labels)}.",
        }

    def summary(self, splits: LabelledData) -> str:
        classes = ", ".join(f"{index} {label}" for index, label in enumerate(splits.labels))
        classes += describe_weights(self._weights, splits.labels)
        if "f1" not in self.metric_names or len(splits.labels) != 2:
            return classes
        return f"{classes}; F1 of {self._positive(splits) or 'both, averaged (task.positive=NAME for that of one)'}"

    def _positive(self, splits: LabelledData) -> str | None:
        """Returns the class whose F1 is computed, None for the mean of all classes and without F1."""
        if len(splits.labels) != 2 or "f1" not in self.metric_names or self._positive_index is None:
            return None
        return splits.labels[self._positive_index]


def _extend_digest(data: LabelledData, option: str) -> LabelledData:
    """Returns the data with a digest that depends on an option too."""
    return replace(data, sha256=hashlib.sha256(f"{data.sha256} {option}".encode()).hexdigest())
