"""One class per kind of task: the Hugging Face auto class, how its output becomes logits of items, its metrics."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Integers = NDArray[np.integer]

METRICS = ("accuracy", "f1", "matthews")


class SequenceTask:
    """Classification of one text or a pair of texts: `logits [B, C]`, one item an example.

    Args:
        name: names the task in records and directories.
        text: the column, or the two columns of a pair, that hold the text.
        label: the column that holds the class.
        labels: names of the classes in the order of the data's integers; None takes the training split's own.
        metrics: out of `METRICS`; the first one selects, and is what retention speaks of.
        max_length: tokens an example is cut to.
        data_dir: a directory with `train` and `dev`; None asks the Hub for `hub_id`.
        hub_id: the Hub's data set and, after a colon, its configuration, e.g. `nyu-mll/glue:sst2`.
        builtin: the data come with the program: nothing from outside is needed.
        train_examples, dev_examples: use only so many examples, always the same ones; None uses all.
    """

    kind = "sequence"
    auto_class = "AutoModelForSequenceClassification"

    def __init__(
        self,
        *,
        name: str,
        text: Sequence[str],
        label: str = "label",
        labels: Sequence[str] | None = None,
        metrics: Sequence[str] = ("accuracy",),
        max_length: int = 128,
        data_dir: str | None = None,
        hub_id: str | None = None,
        builtin: bool = False,
        train_examples: int | None = None,
        dev_examples: int | None = None,
    ) -> None:
        if not 1 <= len(text) <= 2:
            raise ValueError(f"got task.text={list(text)}, expected one column or the two of a pair")
        unknown = [metric for metric in metrics if metric not in METRICS]
        if unknown or not metrics:
            raise ValueError(f"got task.metrics={list(metrics)}, expected some of {', '.join(METRICS)}")
        if max_length < 3:
            raise ValueError(f"got task.max_length={max_length}, expected at least 3 tokens")
        for option, examples in (("train_examples", train_examples), ("dev_examples", dev_examples)):
            if examples is not None and examples < 1:
                raise ValueError(f"got task.{option}={examples}, expected at least 1 or null for all")
        self.name = name
        self.text = tuple(text)
        self.label = label
        self.label_names = None if labels is None else tuple(labels)
        self.metric_names = tuple(metrics)
        self.max_length = max_length
        self.data_dir = data_dir
        self.hub_id = hub_id
        self.builtin = builtin
        self.train_examples = train_examples
        self.dev_examples = dev_examples

    @property
    def metric(self) -> str:
        """The metric that selects checkpoints, and that retention and the export's gate compare."""
        return self.metric_names[0]

    def collate(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
        """The part of a batch that this kind of task adds: `labels [B]` and `items [B]`, all of which count."""
        return {"labels": [example["label"] for example in examples], "items": [True] * len(examples)}

    def predictions(self, logits: Floats) -> Integers:
        """Class of every row of `logits [B, C]`."""
        return np.asarray(logits.argmax(axis=-1))

    def metrics(self, logits: Floats, labels: Integers) -> dict[str, float]:
        """The task's metrics of `logits [B, C]` against `labels [B]`."""
        # scikit-learn takes a second to import, and the command's help does without it.
        from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

        predicted = self.predictions(logits)
        average = "binary" if logits.shape[-1] == 2 else "macro"
        functions = {
            "accuracy": lambda: accuracy_score(labels, predicted),
            "f1": lambda: f1_score(labels, predicted, average=average, zero_division=0.0),
            "matthews": lambda: matthews_corrcoef(labels, predicted),
        }
        return {name: float(functions[name]()) for name in self.metric_names}

    def agreement(self, logits: Floats, reference: Floats) -> float:
        """Share of the items that both `logits [B, C]` put into the same class."""
        return float((self.predictions(logits) == self.predictions(reference)).mean())
