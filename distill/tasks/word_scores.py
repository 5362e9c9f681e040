"""The scores of labels as words: the likeliest word of each example, by the metrics of its own task."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from distill.contracts import Constant, Items, Outputs, Scores
from distill.data.label_words import NUMBER, simplify_word
from distill.data.tables import LabelledData, Split
from distill.edge.classes import MASKED
from distill.edge.label_words import WordTask
from distill.tasks.class_scores import OneClass
from distill.tasks.multi import MEAN
from distill.tasks.scoring import Scoring
from distill.tasks.writing import Writing

if TYPE_CHECKING:
    from torch import Tensor

WRITTEN_ACCURACY, NO_LABEL = "written_accuracy", "no_label"


@dataclass(frozen=True)
class WordScores(Scoring):
    """The log-likelihoods of the words of each example as the logits of its classes.

    With one task the metrics are its own. With several they are `task/metric`, and `mean`, the mean of the tasks' first
    metrics, which selects checkpoints. A split may lack a task.

    Args:
        tasks: in the order of their numbers, with the scoring of the labels of each.
        writing: of the texts that are scored besides; None for none.
    """

    tasks: Sequence[tuple[WordTask, OneClass]]
    writing: Writing | None = None

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]  # A property in place of a value.
        if len(self.tasks) == 1:
            return self.tasks[0][1].names
        return (MEAN, *(f"{task.name}/{name}" for task, scoring in self.tasks for name in scoring.names))

    def score(self, outputs: Outputs, items: Items) -> "dict[str, Tensor]":
        """The log-likelihoods `[n, K]`, `MASKED` for words that an example's task lacks, and the number of the task."""
        return {**super().score(outputs, items), NUMBER: items[NUMBER][items.row]}

    def metrics(self, scores: Scores) -> dict[str, float]:
        """The metrics of the tasks that have examples here, and the mean of their first ones."""
        values = {name: (scoring, scoring.metrics(of_task)) for name, scoring, of_task in self._parts(scores)}
        if len(self.tasks) == 1:
            return next(metrics for _, metrics in values.values())
        mean = np.mean([metrics[scoring.metric] for scoring, metrics in values.values()])
        named = {f"{name}/{metric}": value for name, (_, of) in values.items() for metric, value in of.items()}
        return {MEAN: float(mean), **named}

    def selecting_metric(self, scores: Scores) -> float:
        """The first metric of the task, or its mean over the tasks that have examples here."""
        return float(np.mean([_first_metric(scoring, of_task) for _, scoring, of_task in self._parts(scores)]))

    def _parts(self, scores: Scores) -> Iterator[tuple[str, OneClass, Scores]]:
        """Yields the name, the scoring and the scores of each task that has examples, its logits without others'."""
        numbers = scores.columns[NUMBER]
        for number, (task, scoring) in enumerate(self.tasks):
            chosen = numbers == number
            if chosen.any():
                of_task = scores.select(chosen)
                logits = of_task.columns["logits"][:, : len(task.labels)]
                yield task.name, scoring, replace(of_task, columns={**of_task.columns, "logits": logits})

    def tabulate(self, scores: Scores, splits: LabelledData, *, examples: int) -> dict[str, list[Any]]:
        numbers = scores.columns[NUMBER].tolist()
        names = [self.tasks[number][0].labels for number in numbers]
        columns = {"label": scores.labels.tolist(), "prediction": self.predictions(scores).tolist()}
        named = {key: [of[index] for of, index in zip(names, column, strict=True)] for key, column in columns.items()}
        return {**named, "probability": self.probabilities(scores).max(axis=-1).tolist()}

    def example_metric(self, scores: Scores) -> np.ndarray | None:
        """Whether each label is right, where the accuracy of one task is compared."""
        if len(self.tasks) > 1:
            return None
        [(_, scoring, of_task)] = self._parts(scores)
        return scoring.example_metric(of_task)

    def spoil(self, scores: Scores) -> Scores | None:
        """The least likely word of each example; None where a function of the user is compared."""
        if any(scoring.metric in scoring.functions for _, scoring in self.tasks):
            return None
        logits = scores.columns["logits"]
        return replace(scores, columns={**scores.columns, "logits": np.where(logits <= MASKED, logits, -logits)})

    def hits(self, scores: Scores) -> dict[str, np.ndarray]:
        """Whether each example of a label was given it; of several tasks by `task/label`."""
        return self._by_label(scores, lambda scoring, of_task: scoring.hits(of_task))

    def hit_rows(self, scores: Scores) -> dict[str, np.ndarray]:
        """The example of each hit."""
        return self._by_label(scores, lambda scoring, of_task: scoring.hit_rows(of_task))

    def _by_label(
        self, scores: Scores, collect: Callable[[OneClass, Scores], dict[str, np.ndarray]]
    ) -> dict[str, np.ndarray]:
        return {
            f"{name}/{label}" if len(self.tasks) > 1 else label: found
            for name, scoring, of_task in self._parts(scores)
            for label, found in collect(scoring, of_task).items()
        }

    def constants(self, scores: Scores) -> Sequence[Constant]:
        """The constants of one task, or of several the best one of each together."""
        every = [(name, scoring, of_task) for name, scoring, of_task in self._parts(scores)]
        if len(self.tasks) == 1:
            [(_, scoring, of_task)] = every
            return scoring.constants(of_task)
        best = {name: _best_constant(scoring, of_task) for name, scoring, of_task in every}
        answer = ", ".join(f"{constant.answer} for {name}" for name, constant in best.items())
        return [Constant(answer, self._predict_constants({name: constant.predict for name, constant in best.items()}))]

    def _predict_constants(self, predict: Mapping[str, Callable[[Scores], Scores]]) -> Callable[[Scores], Scores]:
        """Returns the prediction of the same label for every example of a task."""

        def predict_all(scores: Scores) -> Scores:
            logits, numbers = np.array(scores.columns["logits"]), scores.columns[NUMBER]
            for name, _, of_task in self._parts(scores):
                [number] = np.unique(of_task.columns[NUMBER])
                values = predict[name](of_task).columns["logits"]
                logits[numbers == number, : values.shape[1]] = values
            return replace(scores, columns={**scores.columns, "logits": logits})

        return predict_all

    def fit_decoder(self, scores: Scores) -> dict[str, Any]:
        return {"tasks": [task.describe() for task, _ in self.tasks]}

    def plain_texts(self, split: Split) -> list[str]:
        """The sources that texts are written for."""
        return [] if self.writing is None else [split["source"][row] for row in self.writing.rows(len(split))]

    def text_metrics(self, split: Split, predictions: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """The share of written texts that are the right word, and of those that are no word of the task."""
        if self.writing is None:
            return {}
        rows = self.writing.rows(len(split))
        known = [set(map(simplify_word, task.words)) for task, _ in self.tasks]
        written = [simplify_word(prediction["text"]) for prediction in predictions]
        right = [text == simplify_word(split["target"][row]) for text, row in zip(written, rows, strict=True)]
        strange = [text not in known[split[NUMBER][row]] for text, row in zip(written, rows, strict=True)]
        return {WRITTEN_ACCURACY: float(np.mean(right)), NO_LABEL: float(np.mean(strange))}

    def describe(self, splits: LabelledData) -> dict[str, Any]:
        first, _ = self.tasks[0]
        shown = "; ".join(f"{task.name}: {', '.join(task.labels)}" for task, _ in self.tasks)
        return {
            "labels": list(dict.fromkeys(label for task, _ in self.tasks for label in task.labels)),
            "answer": "label_words",
            "word_tasks": [task.describe() for task, _ in self.tasks],
            "pipeline_tag": "text2text-generation",
            "prediction": f"Writes labels, the likeliest word of each task. Labels of {shown}.",
            "example": f'"{first.source(["a sentence"] * len(first.columns))}"',
        }

    def summary(self, splits: LabelledData) -> str:
        named = (
            f"{task.name} " + ", ".join(f"{label} ({word})" if word != label else label for label, word in
                                         zip(task.labels, task.words, strict=True))
            for task, _ in self.tasks
        )  # fmt: skip
        return f"the words of labels: {'; '.join(named)}"


def _first_metric(scoring: OneClass, scores: Scores) -> float:
    """Returns the metric of a task that is compared."""
    by_example = scoring.example_metric(scores)
    return scoring.selecting_metric(scores) if by_example is None else float(by_example.mean())


def _best_constant(scoring: OneClass, scores: Scores) -> Constant:
    return max(
        scoring.constants(scores), key=lambda constant: scoring.selecting_metric(constant.predict(scores))
    )  # fmt: skip
