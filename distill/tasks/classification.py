"""Classification of one text or a pair of texts: `logits [B, C]`, one item an example.

>>> from distill.tasks import Classification
>>> task = Classification(text="sentence", train=(["good", "bad"] * 8, [1, 0] * 8), dev=(["fine", "poor"], [1, 0]))
>>> task.read(None).labels
('0', '1')
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from distill.contracts import Batch, Items, Likelihood, Outputs, Scores
from distill.data.tables import LabelledData
from distill.errors import UserError
from distill.tasks import rows

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from distill.data.batching import TokenizedExamples
    from distill.data.in_memory import Table, TableSplits
    from distill.models.forward import FullPass

METRICS = ("accuracy", "f1", "matthews")


class Classification:
    """Classes of one text or a pair of texts.

    Args:
        text: the column, or the two columns of a pair, that hold the text.
        label: the column that holds the class; of several names the first one that is there.
        name: names the task in records and directories.
        labels: names of the classes in the order of the data's integers; None takes the training split's own.
        metrics: of `METRICS`; the first one selects checkpoints, and retention compares it.
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

    Raises:
        ValueError: for an option that is out of range.
        UserError: for data of a type that cannot be read.
    """

    kind = "classification"
    auto_class = "AutoModelForSequenceClassification"
    selects: Literal["max", "min"] = "max"
    likelihood: Likelihood = "softmax"
    fixed_inputs = True
    over_vocabulary = False
    decoder: str | None = "classes"
    fine_tunes_teacher = True
    compares_with_teacher = False

    def __init__(
        self,
        *,
        text: str | Sequence[str],
        label: str | Sequence[str] = "label",
        name: str = "classification",
        labels: Sequence[str] | None = None,
        metrics: Sequence[str] = ("accuracy",),
        max_length: int = 128,
        data: "Table | TableSplits | str | Path | None" = None,
        train: "Table | None" = None,
        dev: "Table | None" = None,
        test: "Table | None" = None,
        data_dir: str | Path | None = None,
        dev_fraction: float = 0.1,
        splits: Mapping[str, Sequence[str]] | None = None,
        hub_id: str | None = None,
        builtin: bool = False,
        train_examples: int | None = None,
        dev_examples: int | None = None,
    ) -> None:
        if labels is not None and len({str(name) for name in labels}) < max(2, len(labels)):
            raise ValueError(f"got task.labels={list(labels)}, expected at least two names, each once")
        if any(isinstance(name, bool) for name in labels or ()):
            raise ValueError(f"got task.labels={list(labels or ())}, expected names: put quotes around them")
        if not metrics or any(metric not in METRICS for metric in metrics):
            raise ValueError(f"got task.metrics={list(metrics)}, expected some of {', '.join(METRICS)}")
        self.name, self.max_length, self.builtin = name, rows.check_max_length(max_length), builtin
        self.metric_names = tuple(metrics)
        self.rows = rows.labelled_text(
            name=name, text=text, label=label, data=data, train=train, dev=dev, test=test, data_dir=data_dir,
            dev_fraction=dev_fraction, splits=splits, hub_id=hub_id, builtin=builtin, train_examples=train_examples,
            dev_examples=dev_examples, label_names=None if labels is None else tuple(map(str, labels)),
        )  # fmt: skip

    @property
    def metric(self) -> str:
        return self.metric_names[0]

    @property
    def pair(self) -> bool:
        return len(self.rows.text) == 2

    def read(self, cache_dir: Path) -> LabelledData:
        return self.rows.read(cache_dir)

    def encode(
        self, splits: LabelledData, tokenizer: "PreTrainedTokenizerBase", cache_dir: Path | None
    ) -> "dict[str, TokenizedExamples]":
        return rows.encode_rows(splits, tokenizer, self.max_length, cache_dir)

    def select(self, batch: Batch, *, every_token: bool = False) -> Items:
        return rows.select_examples(batch, self.likelihood)

    def run(self, model: "PreTrainedModel", batch: Batch, items: Items, needs: frozenset[str]) -> "FullPass":
        return rows.run_whole_model(model, batch, needs)

    def score(self, outputs: Outputs, items: Items, reference: Outputs | None = None) -> "dict[str, Tensor]":
        return rows.score_logits(outputs)

    def predictions(self, scores: Scores) -> np.ndarray:
        """The class of every example, `[N]`."""
        return np.asarray(scores.columns["logits"].argmax(axis=-1))

    def metrics(self, scores: Scores) -> dict[str, float]:
        # scikit-learn takes a second to import, and the command's help does without it.
        from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

        predicted, labels = self.predictions(scores), scores.labels
        average = "binary" if scores.columns["logits"].shape[-1] == 2 else "macro"
        functions = {
            "accuracy": lambda: accuracy_score(labels, predicted),
            "f1": lambda: f1_score(labels, predicted, average=average, zero_division=0.0),
            "matthews": lambda: matthews_corrcoef(labels, predicted),
        }
        return rows.compute_metrics(functions, self.metric_names)

    def agreement(self, scores: Scores, reference: Scores) -> float:
        return float((self.predictions(scores) == self.predictions(reference)).mean())

    def check_teacher(self, scores: Scores, name: str) -> None:
        accuracy = float((self.predictions(scores) == scores.labels).mean())
        majority = float(np.bincount(scores.labels).max() / len(scores.labels))
        if accuracy < majority:
            raise UserError(
                f"teacher {name} has an accuracy of {accuracy:.3f} on dev, always answering the majority class has "
                f"{majority:.3f}: check that its labels mean the task's, or train it for longer"
            )

    def describe(self, splits: LabelledData) -> dict[str, Any]:
        return {
            "labels": list(splits.labels),
            "answer": "classes",
            "pipeline_tag": "text-classification",
            "prediction": f"Labels: {', '.join(splits.labels)}.",
        }

    def summary(self, splits: LabelledData) -> str:
        return ", ".join(f"{index} {label}" for index, label in enumerate(splits.labels))
