"""The scores of a model: the columns that are kept of its outputs, and the metrics and tables that are made of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from distill.contracts import Constant, Items, Outputs, Scores
from distill.edge.classes import MASKED, pad_classes, softmax
from distill.tasks.own_metrics import Functions, compute_functions, digest_function
from distill.tasks.writing import Writing

if TYPE_CHECKING:
    from torch import Tensor

    from distill.data.tables import LabelledData
    from distill.edge.index import VectorForm

CALIBRATION_BINS = 15  # As in the results of Guo et al., arXiv 1706.04599.
TOLERANCE = 0.05  # Of the range of the reference's numbers, within which two models agree.


class Scoring:
    """All that concerns the scores of a task. The default bodies are those of one class an item, by its logits.

    A kind of task writes `names`, `metrics`, `tabulate`, `describe` and `summary`, and replaces what is different for
    it. The task's `read` makes the scoring that its data needs.

    Attributes:
        names: the metrics. The first one selects checkpoints, and retention and the export's gate compare it.
        selects: whether the best checkpoint has the most or the least of it.
        compared_column: the column of scores in which two models are compared number by number: their logits, or a
            function of them where these are too many to be kept.
        can_abstain: whether a prediction has a confidence, below which an exported model may abstain.
        compares_with_teacher: whether `compare` has columns.
        weak_may_teach: whether a teacher that is no better than a constant prediction gets a notice alone.
        functions: the metrics that the user wrote, by name.
        is_correlation: whether the metric is one, in which a spoiled example weighs as much as hundreds of others.
        writing: how models write texts for `plain_texts`; None where they write none that are scored.
    """

    names: tuple[str, ...]
    functions: Functions = MappingProxyType({})
    selects: Literal["max", "min"] = "max"
    compared_column = "logits"
    can_abstain = False
    compares_with_teacher = False
    weak_may_teach = False
    is_correlation = False
    writing: Writing | None = None

    @property
    def needs_teacher(self) -> bool:
        """Whether the classes that the teacher gives dev select checkpoints, because train has no labels."""
        return False

    @property
    def metric(self) -> str:
        """The metric that selects checkpoints."""
        return self.names[0]

    def metrics(self, scores: Scores) -> dict[str, float]:
        """The metrics of a split by name; shares are in 0..1."""
        raise TypeError(f"{type(self).__name__} has no metrics(scores)")

    def selecting_metric(self, scores: Scores) -> float:
        """The metric that selects checkpoints alone: `metrics(scores)[metric]`, which a bootstrap computes often."""
        return self.metrics(scores)[self.metric]

    def true_and_scores(self, scores: Scores) -> tuple[np.ndarray, np.ndarray]:
        """The labels `y_true` and the predictions `y_score` of a split, as functions of users read them."""
        return scores.labels, self.probabilities(scores)

    def add_functions(self, metrics: Mapping[str, float], scores: Scores) -> dict[str, float]:
        """The metrics in the order of `names`, with the values of the functions.

        Raises:
            UserError: for a function that fails, or returns something else than a finite number.
        """
        if not self.functions:
            return dict(metrics)
        own = compute_functions(self.functions, *self.true_and_scores(scores), of="the predictions of a model")
        return {name: {**metrics, **own}[name] for name in self.names}

    def adopt_functions(
        self,
        data: "LabelledData",
        perfect: Callable[[np.ndarray], np.ndarray],
        constant: Callable[[np.ndarray], np.ndarray],
    ) -> "LabelledData":
        """Returns the data with the function that selects checkpoints in its digest, if one does.

        Every function is called once, before anything is trained.

        Args:
            perfect: returns the logits `[N, C]` of the labels `[N]` or `[N, C]` of dev themselves.
            constant: returns the same prediction for every example, as logits of the shape of those.

        Raises:
            UserError: for a function that fails, or returns something else than a finite number.
        """
        if not self.functions:
            return data
        labels = data.splits["dev"].labels
        logits = perfect(labels)
        predictions = {"the labels of dev as predictions": logits, "a constant prediction on dev": constant(logits)}
        for of, predicted in predictions.items():
            scores = Scores({"logits": predicted.astype(np.float32)}, labels, np.arange(len(labels)))
            compute_functions(self.functions, *self.true_and_scores(scores), of=of)
        selecting = self.functions.get(self.metric)
        return data if selecting is None else data.with_option(f"metric={self.metric} {digest_function(selecting)}")

    def describe_functions(self) -> dict[str, Any]:
        """The field of run.json and bundle.json that names the functions; none without any."""
        return {"own_metrics": list(self.functions)} if self.functions else {}

    def tabulate(self, scores: Scores, splits: Any, *, examples: int) -> dict[str, list[Any]]:
        """The scores of a split as columns with one value an example: `label`, `prediction` and `probability`.

        A label and a prediction are names or numbers, the probability is that of the prediction. A value is a list
        where an example has several items, and None where there is none.

        Args:
            scores: in the order of the examples.
            splits: the data, as the task's `read` returned it.
            examples: number of examples in the split, also those without an item.
        """
        raise TypeError(f"{type(self).__name__} has no tabulate(scores, splits, examples)")

    def describe(self, splits: Any) -> dict[str, Any]:
        """The task's fields of run.json, bundle.json and the model card."""
        raise TypeError(f"{type(self).__name__} has no describe(splits)")

    def summary(self, splits: Any) -> str:
        """The predictions that there are, on one line: the classes, or the range of a number."""
        raise TypeError(f"{type(self).__name__} has no summary(splits)")

    def score(self, outputs: Outputs, items: Items) -> "dict[str, Tensor]":
        """The columns `[n]` or `[n, C]` that evaluation keeps of the items' outputs: `logits [n, C]`, float32."""
        if outputs.logits is None:
            raise ValueError("got outputs without logits, expected [n, C] at the items")
        return {"logits": outputs.logits.float()}

    def compare(self, columns: "Mapping[str, Tensor]", reference: Outputs) -> "dict[str, Tensor]":
        """Further columns, which compare those of `score` with a teacher's outputs for the same items."""
        return {}

    def rescore(self, scores: Scores, logits: Sequence[np.ndarray]) -> Scores:
        """The scores of the same items with the logits of another model, `[n, C]` of the items of each row of it.

        They are padded to the width of those that they replace.
        """
        width = scores.columns["logits"].shape[-1]
        padded = np.concatenate([pad_classes(of, width) for of in logits])
        return replace(scores, columns={**scores.columns, "logits": padded})

    def fit_decoder(self, scores: Scores) -> dict[str, Any]:
        """The values that a decoder needs besides logits, from the scores on dev: `decoding` of bundle.json."""
        return {}

    def plain_texts(self, split: Any) -> list[str]:
        """The texts of a split that exported files read besides its records; empty for most tasks.

        They are the sentences of examples that are given as words, or the sources for which texts are written.
        """
        return []

    def text_metrics(self, split: Any, predictions: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """The metrics of the predictions for `plain_texts`; their names are none of `names`."""
        return {}

    def condense(self, scores: Scores) -> Scores:
        """The scores with the columns that `metrics` reads, which may be fewer and narrower ones."""
        return scores

    def probabilities(self, scores: Scores) -> np.ndarray:
        """The probability of every class, `[n, C]`."""
        return softmax(scores.columns["logits"].astype(np.float64))

    def predictions(self, scores: Scores) -> np.ndarray:
        """The predicted class of every item, `[n]`."""
        return np.asarray(scores.columns["logits"].argmax(axis=-1))

    def confidences(self, scores: Scores) -> np.ndarray:
        """The probability of each prediction, `[n]`.

        Raises:
            TypeError: for scores that cannot abstain.
        """
        if not self.can_abstain:
            raise TypeError(f"{type(self).__name__} cannot abstain, because its predictions have no single probability")
        return np.asarray(self.probabilities(scores).max(axis=-1))

    def breakdown(self, scores: Scores) -> dict[str, dict[str, float]]:
        """The metric and `number` for each type of answer in a split, empty without types."""
        return {}

    def hits(self, scores: Scores) -> dict[str, np.ndarray]:
        """Whether each right answer of each type was found, `[number]` (bool); empty without types."""
        return {}

    def hit_rows(self, scores: Scores) -> dict[str, np.ndarray]:
        """The row of the split that each of `hits` belongs to, `[number]`."""
        return {}

    def rows(self, scores: Scores) -> np.ndarray:
        """The row of the split that each item belongs to, `[n]`."""
        return scores.example_id

    def example_metric(self, scores: Scores) -> np.ndarray | None:
        """The metric of each example `[N]` where the metric is their mean, None where it is no mean."""
        return None

    def spoil(self, scores: Scores) -> Scores | None:
        """The scores as `condense` returns them with wrong predictions, of which `metrics` makes as little as it can.

        None where the metric is a mean over examples, or has no worst value.
        """
        return None

    def agreement(self, scores: Scores, reference: Scores) -> float:
        """Share of the items that both predict alike."""
        return float((self.predictions(scores) == self.predictions(reference)).mean())

    def probability_diff(self, scores: Scores, reference: Scores) -> float:
        """Largest difference of a probability over all items; of numbers, as a share of the reference's range."""
        return float(self.probability_diffs(scores, reference).max())

    def probability_diffs(self, scores: Scores, reference: Scores) -> np.ndarray:
        """The largest difference of a probability for each item, `[n]`, of tokens that of the right one.

        Raises:
            KeyError: for scores without probabilities.
        """
        diffs = np.abs(self.probabilities(scores) - self.probabilities(reference))
        return np.asarray(diffs.reshape(len(diffs), -1).max(axis=1))

    def calibration_error(self, scores: Scores) -> float | None:
        """The expected calibration error (Guo et al., arXiv 1706.04599, equation 3); None without a probability."""
        probabilities = self.probabilities(scores)
        return expected_calibration_error(probabilities.max(axis=-1), probabilities.argmax(axis=-1) == scores.labels)

    def narrow(self, scores: Scores, dimensions: Sequence[int]) -> "Sequence[tuple[VectorForm, Scores]]":
        """The condensed scores of smaller forms of vectors, such as these first dimensions; none without vectors."""
        return ()

    def constants(self, scores: Scores) -> Sequence[Constant]:
        """The constant predictions that may be best for the labels of dev, the more frequent ones first.

        There are none if no model can be better or worse than a constant, or every model may teach.
        """
        return []

    def held_out(self, scores: Scores) -> Scores:
        """The scores of a model on dev, in which no example is decoded with values of `fit_decoder` that it chose.

        The values of each example are in columns, so that they go with it into subsets and resamples, and into the
        scores of an exported file of the model.
        """
        return scores


def draw_halves(example_id: np.ndarray) -> np.ndarray:
    """Returns the half of dev, 0 or 1, that each item is in with its example, `[n]`, in any order of the items."""
    examples, example = np.unique(example_id, return_inverse=True)
    halves: np.ndarray = np.random.default_rng(0).permutation(len(examples))[example] % 2
    return halves


def expected_calibration_error(confidences: np.ndarray, correct: np.ndarray) -> float:
    """The expected calibration error of predictions with these probabilities `[n]`, `correct [n]` are the right ones.

    The predictions are put into `CALIBRATION_BINS` bins of equal width by their probability. The error is the mean over
    them of the difference of accuracy and mean probability in their bin.
    """
    bins = np.minimum((confidences * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
    gaps = np.bincount(bins, weights=correct - confidences, minlength=CALIBRATION_BINS)
    return float(np.abs(gaps).sum() / len(confidences))


def compute_metrics(
    functions: Mapping[str, Callable[..., float]], names: Sequence[str], *arguments: object
) -> dict[str, float]:
    """The named metrics as floats, without the names of other functions."""
    return {name: float(functions[name](*arguments)) for name in names if name in functions}


def list_by_example(
    columns: Mapping[str, np.ndarray], example_id: np.ndarray, examples: int
) -> dict[str, list[list[Any]]]:
    """Returns columns `[n]` of items in the order of their examples as a list of values for each example."""
    ends = np.bincount(example_id, minlength=examples).cumsum()[:-1]
    return {name: [values.tolist() for values in np.split(column, ends)] for name, column in columns.items()}


def always(answer: str, index: int) -> Constant:
    """The constant prediction of class `index` by `logits [n, C]`; an item that cannot have it gets its first class."""

    def predict(scores: Scores) -> Scores:
        logits = scores.columns["logits"]
        constant = np.where(logits <= MASKED, MASKED, 0.0).astype(np.float32)
        if index < constant.shape[-1]:
            constant[:, index] += 1.0  # What is masked stays so.
        return replace(scores, columns={**scores.columns, "logits": constant})

    return Constant(answer, predict)


def is_constant(values: np.ndarray) -> bool:
    """Returns whether all values are the same."""
    return bool(np.ptp(values) == 0)


def share_within_range(values: np.ndarray, expected: np.ndarray) -> float:
    """Returns the share of numbers that differ by less than 5% of the range of the expected ones."""
    return float((np.abs(values - expected) < TOLERANCE * max(float(np.ptp(expected)), 1e-6)).mean())


def largest_difference(values: np.ndarray, expected: np.ndarray) -> float:
    """Returns the largest difference of two numbers, as a share of the range of the expected ones."""
    return float(np.abs(values - expected).max()) / (float(np.ptp(expected)) or 1.0)
