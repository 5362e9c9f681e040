"""Statistics of predictions.parquet on dev: calibration, confusion, lengths, and where student and teacher differ."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distill.edge.answer_metrics import normalize_references, score_answer
from distill.errors import UserError, first_line
from distill.readers.order import sort_classes
from distill.records.predictions import FILE, REFERENCES, WRITTEN
from distill.tasks.scoring import CALIBRATION_BINS

MOST_CLASSES = 20  # Of a confusion matrix.
SHOWN = 10  # Examples on which the models differ most.
LABEL_SETS = "labels"  # The form of a prediction that is any number of labels.
SHIPPED = ("int8", "fp32", "student")  # The first one that there is, is compared with the teacher.
Columns = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Calibration:
    """The reliability diagram of a model, in the bins of `Scoring.calibration_error`.

    Attributes:
        confidence: the mean probability in each bin that has predictions.
        accuracy: the share of right predictions in it.
        number: of the predictions in it.
        error: the expected calibration error.
    """

    confidence: Sequence[float]
    accuracy: Sequence[float]
    number: Sequence[int]
    error: float

    def mean_confidence(self) -> float:
        """Returns the mean probability of all predictions."""
        return float(np.average(self.confidence, weights=self.number))

    def mean_accuracy(self) -> float:
        """Returns the share of right predictions."""
        return float(np.average(self.accuracy, weights=self.number))


@dataclass(frozen=True)
class Disagreement:
    """An example on which two models differ: its texts, the label, and the two predictions with probabilities."""

    texts: Mapping[str, str]
    index: int
    label: object
    teacher: object
    student: object
    teacher_probability: float | None
    student_probability: float | None


@dataclass(frozen=True)
class Analysis:
    """Statistics of the predictions of a run on dev.

    Attributes:
        model: the name of the model that is compared with the teacher, such as `int8`.
        number: of the examples.
        agreement: share of the examples for which both predict the same; None for numbers.
        calibration: by model, of those with probabilities.
        calibrated: the name of their error. Of any number of labels it is that of the labels that were given, where
            the gate of a file has that of all labels.
        classes: the labels of the rows and columns of `confusion`.
        confusion: `[label, prediction]`, the numbers of examples of `model`; None without classes or with many of them.
        numbers: the predictions of teacher and `model` `[n, 2]`, if they are numbers.
        lengths: the words of each example; empty if the run recorded no texts.
        differences: the examples on which `model` and the teacher differ most.
    """

    model: str
    number: int
    agreement: float | None
    calibration: Mapping[str, Calibration]
    classes: Sequence[str]
    confusion: np.ndarray | None
    numbers: np.ndarray | None
    lengths: Sequence[int]
    differences: Sequence[Disagreement]
    calibrated: str = "calibration error"


def analyze_predictions(directory: Path, *, answer: str | None = None) -> Analysis | None:
    """Returns the statistics of a run's predictions; None without any, or without a teacher beside the student.

    Args:
        answer: the form of a prediction, as in the `task` of run.json.

    Raises:
        UserError: if the file is damaged.
    """
    path = directory / FILE
    if not path.is_file():
        return None
    columns = _read_dev(path)
    models = [name.removesuffix("_prediction") for name in columns if name.endswith("_prediction")]
    model = next((name for name in SHIPPED if name in models), None)
    if model is None or "teacher" not in models or not columns["label"]:
        return None
    classes, confusion = ((), None) if answer == LABEL_SETS else _count_confusions(columns, model)
    numbers = _stack_numbers(columns, model)
    pairs = list(zip(columns["teacher_prediction"], columns[f"{model}_prediction"], strict=True))
    calibrations = {name: _calibrate(_judge_items(columns, name, answer)) for name in models}
    return Analysis(
        model=model, number=len(pairs), classes=classes, confusion=confusion, numbers=numbers,
        agreement=None if numbers is not None else sum(first == second for first, second in pairs) / len(pairs),
        calibration={name: found for name, found in calibrations.items() if found is not None},
        lengths=_count_words(columns), differences=_find_differences(columns, model),
        calibrated="calibration error of given labels" if answer == LABEL_SETS else "calibration error",
    )  # fmt: skip


def _read_dev(path: Path) -> Columns:
    """Returns the columns of the examples of dev; of a retrieval set without the documents, which have no label."""
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path, filters=[("split", "==", "dev")])
        columns: dict[str, list[Any]] = table.to_pydict()
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise UserError(f"{path} is damaged: {first_line(error)}") from error
    names = [name.removesuffix("_prediction") for name in columns if name.endswith("_prediction")]
    needed = {"split", "index", "label", *(f"{name}_probability" for name in names)}
    if not needed <= columns.keys():
        raise UserError(f"{path} is damaged: it has no column {min(needed - columns.keys())}")
    # A question that is rightly left unanswered has neither label nor prediction, and a probability.
    known = [columns["label"], *(columns[f"{name}_{of}"] for name in names for of in ("prediction", "probability"))]
    rows = [row for row in range(len(columns["label"])) if any(of[row] is not None for of in known)]
    return {name: [values[row] for row in rows] for name, values in columns.items()}


def _text_columns(columns: Columns) -> list[str]:
    rest, endings = ("split", "index", "label", REFERENCES), ("_prediction", "_probability", WRITTEN)
    return [name for name in columns if name not in rest and not name.endswith(endings)]


def _rows(columns: Columns, model: str) -> Iterator[tuple[Any, Any, Any]]:
    """Yields label, prediction and probability of each example."""
    return zip(*(columns[name] for name in ("label", f"{model}_prediction", f"{model}_probability")), strict=True)


def _judge_items(columns: Columns, model: str, answer: str | None) -> list[tuple[bool, float]]:
    """Returns whether each item is right, and its probability.

    An item is an example, each of its words, or each label that it was given. A question with several correct answers
    is right if its prediction is one of them.
    """
    may_be_unanswerable = None in columns["label"]
    items: list[tuple[bool, float]] = []
    for label, prediction, probability in _rows(columns, model):
        if answer == LABEL_SETS:
            items += [(name in label, value) for name, value in zip(prediction, probability, strict=True)]
        elif isinstance(probability, float) and isinstance(label, list):
            references = normalize_references(label, may_be_unanswerable=may_be_unanswerable)
            exact, _ = score_answer(prediction, references, may_be_unanswerable=may_be_unanswerable)
            items.append((bool(exact), probability))
        elif isinstance(probability, float):
            items.append((label == prediction, probability))
        elif isinstance(probability, list):
            items += [
                (name == predicted, value)
                for name, predicted, value in zip(label, prediction, probability, strict=True)
            ]
    return items


def _calibrate(items: Sequence[tuple[bool, float]]) -> Calibration | None:
    """Returns the reliability diagram of items that are right or not, with their probabilities; None without any."""
    if not items:
        return None
    right, probability = np.array(items, dtype=np.float64).T
    bins = np.clip((probability * CALIBRATION_BINS).astype(int), 0, CALIBRATION_BINS - 1)
    used = [number for number in range(CALIBRATION_BINS) if (bins == number).any()]
    confidence = [float(probability[bins == number].mean()) for number in used]
    accuracy = [float(right[bins == number].mean()) for number in used]
    numbers = [int((bins == number).sum()) for number in used]
    gaps = np.abs(np.array(confidence) - np.array(accuracy))
    return Calibration(confidence, accuracy, numbers, float((gaps * numbers).sum() / len(items)))


def _count_confusions(columns: Columns, model: str) -> tuple[Sequence[str], np.ndarray | None]:
    """Returns the classes and the numbers of items by label and prediction; None if they are no names, or too many."""
    items: list[tuple[Any, Any]] = []
    for label, prediction, probability in _rows(columns, model):
        items += zip(label, prediction, strict=True) if isinstance(probability, list) else [(label, prediction)]
    names = sort_classes(name for item in items for name in item if isinstance(name, str))
    if not 1 < len(names) <= MOST_CLASSES or not all(isinstance(name, str) for item in items for name in item):
        return (), None
    counts = Counter(items)
    return names, np.array([[counts[label, prediction] for prediction in names] for label in names])


def _stack_numbers(columns: Columns, model: str) -> np.ndarray | None:
    """Returns the predictions of teacher and model `[n, 2]`; None if they are not numbers."""
    both = [columns[f"{name}_prediction"] for name in ("teacher", model)]
    if not all(isinstance(value, float) for values in both for value in values):
        return None
    return np.array(both).T


def _count_words(columns: Columns) -> list[int]:
    """Returns the number of words of the texts of each example."""
    texts = [columns[name] for name in _text_columns(columns)]
    return [sum(len(_plain(value).split()) for value in values) for values in zip(*texts, strict=True)]


def _plain(value: object) -> str:
    """Returns a text, or the texts of a list with ` | ` between them."""
    return " | ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


def _find_differences(columns: Columns, model: str) -> list[Disagreement]:
    """Returns the examples on which teacher and model differ most.

    Numbers are ordered by their distance. Other predictions differ or not: those that differ come first, the surest
    ones at the top, and then those with the largest difference of their probabilities.
    """
    found: list[tuple[tuple[bool, float], Disagreement]] = []
    names = _text_columns(columns)
    for row in range(len(columns["label"])):
        first, second = (columns[f"{name}_prediction"][row] for name in ("teacher", model))
        sure = [_mean(columns[f"{name}_probability"][row]) for name in ("teacher", model)]
        if isinstance(first, float) and isinstance(second, float):
            differs, rank = first != second, abs(first - second)
        elif first != second:
            differs, rank = True, sum(value or 0.0 for value in sure)
        else:
            differs, rank = False, abs((sure[0] or 0.0) - (sure[1] or 0.0))
        if differs or rank:
            texts = {name: _plain(columns[name][row]) for name in names}
            label, index = columns["label"][row], columns["index"][row]
            found.append(((differs, rank), Disagreement(texts, index, label, first, second, *sure)))
    found.sort(key=lambda pair: pair[0], reverse=True)
    return [difference for _, difference in found[:SHOWN]]


def _mean(probability: object) -> float | None:
    """Returns a probability, or the mean of those of an example's words."""
    if isinstance(probability, list):
        known = [value for value in probability if isinstance(value, float)]
        return sum(known) / len(known) if known else None
    return probability if isinstance(probability, float) else None
