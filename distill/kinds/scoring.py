"""The scores of a model, and metrics of them: a task's own, a user's, and those of written texts.

Metrics that a user writes: functions `(y_true, y_score) -> float`, beside the names of a task's own metrics.

>>> names, functions = read_metrics({"accuracy": "accuracy", "zero": lambda y_true, y_score: 0.0}, known=["accuracy"])
>>> names, list(functions)
(('accuracy', 'zero'), ['zero'])

Metrics of texts that a model wrote, against one or several references of each.

>>> text_metrics(["the cat sat"], [["the cat sat", "a cat sat"]])["exact_match"]
1.0

All values are in 0..1, except the length ratio: BLEU and chrF too, which are often printed as percentages.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import numpy as np
from pydantic import Field, SkipValidation

from distill.core.contracts import Constant, Items, Outputs, Scores
from distill.core.errors import DistillError, OptionError, UserError, first_line, install_command
from distill.core.options import show_value
from distill.edge.decoder import MASKED, pad_classes, softmax
from distill.losses.term import mask_logits

if TYPE_CHECKING:
    from torch import Tensor

    from distill.data.splits import LabelledData
    from distill.edge.bundle import Bundle
    from distill.edge.index import VectorForm


MetricFunction: TypeAlias = Callable[[np.ndarray, np.ndarray], float]
Functions: TypeAlias = Mapping[str, MetricFunction]
if TYPE_CHECKING:
    Metrics: TypeAlias = Sequence[str | MetricFunction] | Mapping[str, str | MetricFunction]
_NAME = re.compile(r"[A-Za-z][\w@.-]*")
_SHOWN = 60  # Characters of a value in a message.


class MetricError(UserError):
    """A function of a user that fails, or returns something else than a finite number."""


def annotate_metrics(known: str) -> Any:
    """Returns the annotation of the option `metrics`, which `read_metrics` checks; `known` are the names in words."""
    return Annotated[object, SkipValidation, Field(description=f"a list of some of {known}, or of functions")]


def read_metrics(given: "Metrics", known: Sequence[str]) -> tuple[tuple[str, ...], dict[str, MetricFunction]]:
    """Returns the names of the metrics in their order, and the functions among them by name.

    Args:
        given: names of `known` metrics and functions, which are called by their own names; or a mapping of names to
            functions, in which a metric of the task has its name as value.

    Raises:
        OptionError: for an unknown name, a function without a name, a name that is no word, and a name given twice.
    """
    expected = f"a list of some of {', '.join(known)}, or of functions (y_true, y_score)"
    entries = list[tuple[str, object]]()
    if isinstance(given, Mapping):
        entries = [(str(name), metric) for name, metric in given.items()]
    elif isinstance(given, Iterable) and not isinstance(given, str):
        entries = [(getattr(metric, "__name__", "") if callable(metric) else str(metric), metric) for metric in given]
    if not entries:
        raise _refuse(given, expected)
    names = [name for name, _ in entries]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise _refuse(given, f"metrics of different names, and {twice[0]} is there twice: name them in a mapping")
    functions = dict[str, MetricFunction]()
    for name, metric in entries:
        if not callable(metric):
            if metric != name or name not in known:
                raise _refuse(given, expected)
        elif name in known:
            raise _refuse(given, f"another name for the function {name}, because the task has a metric of this name")
        elif not _NAME.fullmatch(name):
            raise _refuse(
                given, "a name of letters, digits, _, - and @ for each function: name it in a mapping, as in "
                "metrics={'name': function}"
            )  # fmt: skip
        else:
            functions[name] = metric
    return tuple(names), functions


def _refuse(given: object, expected: str) -> OptionError:
    """Returns the error, with the option as it is typed and functions by their names."""

    def name(metric: object) -> object:
        return getattr(metric, "__name__", type(metric).__name__) if callable(metric) else metric

    if isinstance(given, Mapping):
        shown: object = {key: name(metric) for key, metric in given.items()}
    else:
        shown = list(map(name, given)) if isinstance(given, Iterable) and not isinstance(given, str) else name(given)
    return OptionError("metrics", show_value(shown), expected)


def compute_functions(functions: Functions, y_true: np.ndarray, y_score: np.ndarray, *, of: str) -> dict[str, float]:
    """Returns the values of the functions.

    Args:
        of: the predictions, in words of a message.

    Raises:
        MetricError: for a function that fails, or returns something else than a finite number.
    """
    return {name: _compute(name, function, y_true, y_score, of) for name, function in functions.items()}


def _compute(name: str, function: MetricFunction, y_true: np.ndarray, y_score: np.ndarray, of: str) -> float:
    try:
        value: Any = function(y_true.copy(), y_score.copy())  # It may change its arguments.
    except DistillError:
        raise
    except Exception as error:  # The function is the user's.
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise MetricError(
            f"the metric {name} failed for {of}, with y_true {list(y_true.shape)} and y_score {list(y_score.shape)}: "
            f"{reason}"
        ) from error
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        shown = repr(value)[:_SHOWN]
        raise MetricError(f"the metric {name} returned {shown} ({type(value).__name__}) for {of}, expected a number")
    if not math.isfinite(value):
        raise MetricError(f"the metric {name} returned {float(value)} for {of}, expected a finite number")
    return float(value)


def digest_function(function: MetricFunction) -> str:
    """Returns the name of a function and its code, so that a teacher that another one selected is another teacher."""
    code = getattr(function, "__code__", None)
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
    if code is None:
        return name
    constants = [value for value in code.co_consts if not hasattr(value, "co_code")]
    return f"{name} {code.co_code.hex()} {constants!r} {code.co_names!r}"


TextMetric = Literal[
    "exact_match", "rouge1", "rouge2", "rougeL", "chrf", "bleu", "distinct1", "distinct2", "length_ratio"
]  # fmt: skip


@dataclass(frozen=True)
class WritingSettings:
    """How texts are written and scored.

    Args:
        metrics: of `text_metrics`.
        sources: of a split that texts are written for, evenly spaced ones; None for all.
        beams: of the search for a text; 1 takes the most probable token each time, and None has the number of the
            model.
        max_target: the most tokens of a text.
    """

    metrics: tuple[str, ...]
    sources: int | None
    beams: int | None
    max_target: int

    def write(self, bundle: "Bundle", sources: Sequence[str]) -> list[Mapping[str, Any]]:
        """Returns the text that a bundle writes for each source, which is cut at the positions of its model."""
        return list(bundle.generate_all(
            sources, beams=self.beams, max_new_tokens=self.max_target, truncate="right"
        ))  # fmt: skip

    def rows(self, examples: int) -> list[int]:
        """Returns the rows of a split of `examples` that texts are written for.

        >>> WritingSettings(("chrf",), sources=3, beams=1, max_target=8).rows(9)
        [0, 4, 8]
        """
        number = examples if self.sources is None else min(self.sources, examples)
        rows: list[int] = np.linspace(0, examples - 1, number).round().astype(int).tolist()
        return rows


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
        weights: of the classes in the loss on the labels, None for equal ones.
    """

    names: tuple[str, ...]
    functions: Functions = MappingProxyType({})
    selects: Literal["max", "min"] = "max"
    compared_column = "logits"
    can_abstain = False
    compares_with_teacher = False
    weak_may_teach = False
    is_correlation = False
    writing: WritingSettings | None = None
    weights: tuple[float, ...] | None = None

    @property
    def needs_teacher(self) -> bool:
        """Whether the classes that the teacher gives dev select checkpoints, because train has no labels."""
        return False

    def with_teacher(self, data: "LabelledData", scores: Mapping[str, Scores] | None) -> "LabelledData":
        """Returns data with what the teacher says of each scored example, where that selects checkpoints.

        Args:
            scores: of the teacher by split; None in a dry run.
        """
        if scores is None:
            return data.with_teacher({name: np.zeros(len(of), dtype=np.int64) for name, of in data.scored().items()})
        return data.with_teacher({name: self.predictions(of) for name, of in scores.items()})

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
        """The columns `[n]` or `[n, C]` that evaluation keeps of the items' outputs: `logits [n, C]`, float32.

        They are `MASKED` for a class that an item cannot have.
        """
        if outputs.logits is None:
            raise ValueError("got outputs without logits, expected [n, C] at the items")
        return {"logits": mask_logits(outputs.logits.float(), items.valid)}

    def compare(self, columns: "Mapping[str, Tensor]", reference: Outputs) -> "dict[str, Tensor]":
        """Further columns, which compare those of `score` with a teacher's outputs for the same items."""
        return {}

    def rescore(self, scores: Scores, logits: Sequence[np.ndarray]) -> Scores:
        """The scores of the same items with the logits of another model, `[n, C]` of the items of each row of it.

        They are padded to the width of those that they replace.
        """
        width = scores.columns["logits"].shape[-1]
        padded = np.concatenate([pad_classes(of, width) for of in logits])
        return scores.with_columns(logits=padded)

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

    def right_answers(self, scores: Scores) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Whether each right answer of each type was found, `[number]` (bool), and its row of the split, `[number]`.

        Empty without types.
        """
        return {}

    def hits(self, scores: Scores) -> dict[str, np.ndarray]:
        """Whether each right answer of each type was found, `[number]` (bool)."""
        return {name: found for name, (found, _) in self.right_answers(scores).items()}

    def hit_rows(self, scores: Scores) -> dict[str, np.ndarray]:
        """The row of the split that each of `hits` belongs to, `[number]`."""
        return {name: rows for name, (_, rows) in self.right_answers(scores).items()}

    def type_recalls(self, scores: Scores) -> dict[str, tuple[int, float]]:
        """The number of right answers, and the share of them that is found, of each type held to the teacher's recall.

        Empty without such types.
        """
        return {}

    def rows(self, scores: Scores) -> np.ndarray:
        """The row of the split that each item belongs to, `[n]`."""
        return scores.example_id

    def example_metric(self, scores: Scores) -> np.ndarray | None:
        """The metric of each example `[N]` where the metric is their mean, None where it is no mean."""
        return None

    def spoil(self, scores: Scores) -> Scores | None:
        """The scores as `condense` returns them with wrong predictions, of which `metrics` makes as little as it can.

        None where the metric is a mean over examples, has no worst value, or is a function of the user.
        """
        return None if self.metric in self.functions else self.spoil_all(scores)

    def spoil_all(self, scores: Scores) -> Scores | None:
        """The scores for `spoil`, unless the metric is a function of the user."""
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

    def narrow(
        self, scores: Scores, dimensions: Sequence[int], teacher: Scores | None = None
    ) -> "Sequence[tuple[VectorForm, Scores]]":
        """The condensed scores of smaller forms of vectors, such as these first dimensions; none without vectors.

        Args:
            teacher: the scores of a teacher, whose documents the vectors of queries are searched among too.
        """
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


class NumberScoring(Scoring):
    """The scores of items by numbers without a probability, such as cosines, in which two models are compared."""

    def values(self, scores: Scores) -> np.ndarray:
        """The numbers, in one dimension and the same order for two models."""
        raise TypeError(f"{type(self).__name__} has no values(scores)")

    def agreement(self, scores: Scores, reference: Scores) -> float:
        """Share of the numbers that differ by less than 5% of the reference's range."""
        values, expected = self.values(scores), self.values(reference)
        return float((np.abs(values - expected) < TOLERANCE * max(float(np.ptp(expected)), 1e-6)).mean())

    def probability_diff(self, scores: Scores, reference: Scores) -> float:
        """The largest difference as a share of the reference's range."""
        expected = self.values(reference)
        return float(np.abs(self.values(scores) - expected).max()) / (float(np.ptp(expected)) or 1.0)

    def calibration_error(self, scores: Scores) -> float | None:
        """None, because a number has no probability."""
        return None


class MeanScoring(Scoring):
    """Metrics that are the means of columns of condensed scores, which have the same names."""

    def metrics(self, scores: Scores) -> dict[str, float]:
        columns = self.condense(scores).columns
        return {name: float(columns[name].mean()) for name in self.names}

    def example_metric(self, scores: Scores) -> np.ndarray:
        return np.asarray(self.condense(scores).columns[self.metric])


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
        return scores.with_columns(logits=constant)

    return Constant(answer, predict)


def is_constant(values: np.ndarray) -> bool:
    """Returns whether all values are the same."""
    return bool(np.ptp(values) == 0)


ROUGE = ("rouge1", "rouge2", "rougeL")
MEANS = ("exact_match", *ROUGE)  # Metrics that are the mean over the examples.
CORPUS = ("chrf", "bleu")  # Metrics that are a function of counts, which are summed over the examples.
DISTINCT = (1, 2)  # The lengths of n-grams of which the share of different ones is counted.
METRICS = (*MEANS, *CORPUS, *(f"distinct{size}" for size in DISTINCT), "length_ratio")
LONGEST = (8, 16, 32, 64)  # Words of the longest text of each group of `break_down_by_length` but the last.
References = Sequence[Sequence[str]]


def text_metrics(
    predictions: Sequence[str], references: References, metrics: Sequence[str] = METRICS
) -> dict[str, float]:
    """Returns the metrics of all predictions together.

    `exact_match`, `rouge1`, `rouge2` and `rougeL` are means over the examples. `bleu` (Papineni et al., 2002, as
    sacrebleu has it, arXiv 1804.08771) and `chrf` (Popović, 2015) are of the whole corpus, which is not the mean of its
    sentences. `distinct1` and `distinct2` are the share of different n-grams among all (Li et al., arXiv 1510.03055).
    `length_ratio` is the number of words written over that of the references that are nearest in length.

    Args:
        predictions: `N` texts.
        references: at least one for each of them.
        metrics: their names.

    Raises:
        UserError: if a library is not installed.
        ValueError: for no prediction, an example without a reference, or another number of examples.
    """
    columns = score_examples(predictions, references, metrics)
    values = {name: combine_examples(name, column) for name, column in columns.items()}
    values |= {f"distinct{size}": distinct_ngrams(predictions, size) for size in DISTINCT}
    values["length_ratio"] = _length_ratio(predictions, references)
    return {name: values[name] for name in metrics}


def score_examples(
    predictions: Sequence[str], references: References, metrics: Sequence[str] = (*MEANS, *CORPUS)
) -> dict[str, np.ndarray]:
    """Returns the column of each metric that `combine_examples` computes from any examples.

    It has the value of each example, `[N]`, for one of `MEANS`, where ROUGE is the F-measure with the best reference.
    It has the counts of each example, `[N, K]`, for one of `CORPUS`. Other metrics have no column.

    Raises:
        UserError: if a library is not installed.
        ValueError: for no prediction, an example without a reference, or another number of examples.
    """
    if not predictions:
        raise ValueError("got no predictions, expected at least one")
    if len(predictions) != len(references):
        raise ValueError(f"got {len(predictions)} predictions and references of {len(references)} examples")
    for row, of in enumerate(references):
        if isinstance(of, str) or not of:
            raise ValueError(f"got {of!r} as the references of example {row}, expected a list of at least one text")
    pairs = list(zip(predictions, references, strict=True))
    columns: dict[str, np.ndarray] = {}
    if "exact_match" in metrics:
        exact = [text.split() in map(str.split, of) for text, of in pairs]
        columns["exact_match"] = np.array(exact, dtype=np.float64)
    if rouge := [name for name in ROUGE if name in metrics]:
        scorer = _import("rouge_score", "rouge_scorer").RougeScorer(rouge)
        scores = [scorer.score_multi(list(of), text) for text, of in pairs]
        columns |= {name: np.array([of[name].fmeasure for of in scores]) for name in rouge}
    # The first, second, ... reference of all examples, None for those with fewer.
    streams = list(map(list, itertools.zip_longest(*references)))
    for name in CORPUS:
        if name in metrics:
            counts = _create_scorer(name)._extract_corpus_statistics(list(predictions), streams)
            columns[name] = np.array(counts, dtype=np.float64)
    return columns


def combine_examples(metric: str, column: np.ndarray) -> float:
    """Returns a metric of the examples of a column of `score_examples`."""
    if metric in CORPUS:
        return float(_create_scorer(metric)._compute_score_from_stats(column.sum(axis=0).tolist()).score) / 100
    return float(column.mean())


def score_sentences(predictions: Sequence[str], references: References, metric: str) -> np.ndarray:
    """Returns the `chrf` or `bleu` of each prediction, `[N]` in 0..1."""
    scorer = _create_scorer(metric, is_sentence=True)
    scores = [scorer.sentence_score(text, list(of)).score for text, of in zip(predictions, references, strict=True)]
    return np.array(scores) / 100


def distinct_ngrams(texts: Sequence[str], size: int) -> float:
    """Returns the share of different n-grams of words among those of all texts, 0 without any."""
    words = [text.split() for text in texts]
    ngrams = [tuple(of[first : first + size]) for of in words for first in range(len(of) - size + 1)]
    return len(set(ngrams)) / len(ngrams) if ngrams else 0.0


def break_down_by_length(columns: Mapping[str, np.ndarray], texts: Sequence[str]) -> dict[str, dict[str, float]]:
    """Returns the metrics and `number` of the examples by the words of their texts: `up to 8 words`.

    Args:
        columns: as `score_examples` returns them.
        texts: whose words are counted, such as the sources.
    """
    groups = np.searchsorted(LONGEST, [len(text.split()) for text in texts])
    titles = [*(f"up to {longest} words" for longest in LONGEST), f"more than {LONGEST[-1]} words"]
    return {
        title: {
            **{name: combine_examples(name, column[groups == group]) for name, column in columns.items()},
            "number": float((groups == group).sum()),
        }
        for group, title in enumerate(titles)
        if (groups == group).any()
    }


def _length_ratio(predictions: Sequence[str], references: References) -> float:
    """Returns the words written over those of the references, 0 where these have none."""
    written = [len(text.split()) for text in predictions]
    nearest = [
        min((len(text.split()) for text in of), key=lambda words: (abs(words - length), words))
        for length, of in zip(written, references, strict=True)
    ]
    return sum(written) / sum(nearest) if sum(nearest) else 0.0


def _create_scorer(metric: str, *, is_sentence: bool = False) -> Any:
    """Returns sacrebleu's scorer, of BLEU for a sentence with the n-grams alone that it is long enough for."""
    module = _import("sacrebleu", "metrics")
    return module.CHRF() if metric == "chrf" else module.BLEU(effective_order=is_sentence)


def _import(package: str, module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"{package}.{module}")
    except ModuleNotFoundError as error:
        raise UserError(
            f"texts are scored with {package.replace('_', '-')}, which is not installed: {install_command('train')}"
        ) from error
