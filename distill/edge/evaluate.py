"""Scores a bundle on labelled rows with the metrics of its task, by numpy alone.

The rows are those of a CSV, TSV or JSONL file. A reader for each decoder makes records and labels of them, and computes
the metrics from predictions.
"""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from distill.edge.answer_metrics import normalize_references, score_answer
from distill.edge.bundle import Bundle, RecordError
from distill.edge.choices import READINGS, Answer, choose_reading, describe_expected, join_choices, split_choices
from distill.edge.decoder import Prediction, Record
from distill.edge.search import match_pairs
from distill.edge.splitting import place_words
from distill.edge.strings import shorten
from distill.edge.words import TagScheme, locate_entities, locate_words, score_entities
from distill.errors import UserError, first_line

SUFFIXES = (".csv", ".tsv", ".jsonl")
CHUNK = 1024  # Rows that are predicted together.
SHORTEST = 1e-12  # Length of a vector; shorter ones have a cosine of 0.
Values = Mapping[str, object]
Metrics = dict[str, float]


@dataclass(frozen=True)
class Columns:
    """The names of columns; None for the usual ones of the decoder.

    With `as_text`, sentences that are given as words are predicted as plain text, which the bundle splits itself.
    """

    texts: Sequence[str] | None = None
    label: str | None = None
    as_text: bool = False


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a bundle on a file, the number of its rows, and how many of them were cut.

    Attributes:
        read_as: `words` or `text`, as sentences that are given as words were predicted; None for other records.
    """

    metrics: Metrics
    rows: int
    truncated: int
    read_as: str | None = None


class LabelledRows(Protocol):
    """Reads labelled rows for one decoder and compares predictions with their labels."""

    def read(self, row: Values) -> tuple[Record, Any]:
        """Returns the record and the label of a row; raises UserError for a value that cannot be."""
        ...

    def score(self, predictions: Sequence[Prediction], labels: Sequence[Any]) -> Metrics:
        """Returns the metrics by name."""
        ...


def evaluate(bundle: Bundle, path: Path, columns: Columns, *, batch_size: int | None = None) -> Evaluation:
    """Scores a bundle on a file.

    Raises:
        UserError: for a file that cannot be read, a column that is missing, and a text or a label that cannot be.
    """
    if columns.as_text and bundle.manifest["decoder"] != "tags":
        raise UserError(f"got --as-text, and {bundle.directory} does not tag words: leave it out")
    numbered = list(read_table(path))
    if not numbered:
        raise UserError(f"{path} has no rows, expected labelled ones")
    reader = READERS[bundle.manifest["decoder"]](bundle, columns, [row for _, row in numbered])
    records, labels = [], []
    for line, row in numbered:
        try:
            record, label = reader.read(row)
            bundle.decoder.read(record)
        except UserError as error:
            raise UserError(f"{path}, line {line}: {error}") from error
        records.append(record)
        labels.append(label)
    predictions: list[Prediction] = []
    for start in range(0, len(records), CHUNK):
        try:
            predictions += bundle.predict(records[start : start + CHUNK], batch_size=batch_size)
        except RecordError as error:
            line, _ = numbered[start + error.number - 1]
            raise UserError(f"{path}, line {line}: {error.reason}") from error
    metrics = reader.score(predictions, labels)
    known = [name for name in bundle.manifest.get("metrics", {}).get(bundle.model, {}) if name in metrics]
    truncated = sum(prediction.get("truncated", False) for prediction in predictions)
    read_as = ("text" if columns.as_text else "words") if isinstance(reader, TagRows) else None
    return Evaluation({name: metrics[name] for name in known or metrics}, len(records), truncated, read_as)


def read_table(path: Path) -> Iterator[tuple[int, Values]]:
    """Yields the number of the line of each row, and its values by column.

    Raises:
        UserError: for a file that is missing, has another suffix, or is no table.
    """
    if path.suffix not in SUFFIXES:
        raise UserError(f"got {path}, expected a file that ends in {', '.join(SUFFIXES)}")
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            if path.suffix == ".jsonl":
                for line, text in enumerate(file, 1):
                    if text.strip():
                        yield line, _parse_object(text, path, line)
                return
            reader = csv.DictReader(file, strict=True)
            if path.suffix == ".tsv":
                reader = csv.DictReader(file, strict=True, delimiter="\t", quoting=csv.QUOTE_NONE)
            for row in reader:
                if None in row or None in row.values():
                    raise UserError(f"{path}, line {reader.line_num}: got another number of values than the header has")
                yield reader.line_num, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read: {first_line(error)}") from error


def _parse_object(text: str, path: Path, line: int) -> Values:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}, line {line}: got {shorten(text)}, expected JSON: {error}") from error
    if not isinstance(row, dict):
        raise UserError(f"{path}, line {line}: got {shorten(row)}, expected a JSON object")
    return row


def _value(row: Values, column: str) -> object:
    if column not in row:
        names = ", ".join(row)
        raise UserError(f"there is no column {column}, the columns are {names}: give --text-column or --label-column")
    return row[column]


class _Texts:
    """Reads the columns of a text or of a pair."""

    compares = False  # True: two texts, whatever the bundle reads.

    def __init__(self, bundle: Bundle, columns: Columns, rows: Sequence[Values]) -> None:
        self.labels, self.positive = bundle.labels, bundle.manifest.get("positive")
        self.label = columns.label or "label"
        self.texts = columns.texts or [name for name in rows[0] if name != self.label]
        is_pair = bundle.pair or self.compares
        if len(self.texts) != (2 if is_pair else 1):
            expected = "two columns of text" if is_pair else "one column of text"
            raise UserError(f"got {', '.join(self.texts) or 'none'}, expected {expected}: give --text-column NAME")

    def record(self, row: Values) -> Record:
        texts = [_value(row, name) for name in self.texts]
        return texts if len(texts) == 2 else texts[0]  # type: ignore[return-value]  # The decoder checks it.


class ClassRows(_Texts):
    """Rows with the name of a class, or its index where it is no name."""

    def read(self, row: Values) -> tuple[Record, int]:
        return self.record(row), find_label(_value(row, self.label), self.labels)

    def score(self, predictions: Sequence[Prediction], labels: Sequence[int]) -> Metrics:
        """Returns accuracy, F1 and Matthews' correlation of the most probable labels, withheld ones too."""
        best = np.array([np.argmax(list(prediction["probabilities"].values())) for prediction in predictions])
        counts = np.zeros((len(self.labels), len(self.labels)))  # Label, prediction.
        np.add.at(counts, (np.array(labels), best), 1)
        positive = self.labels.index(self.positive) if self.positive in self.labels else None
        return {
            "accuracy": float(np.trace(counts) / counts.sum()), "f1": compute_f1(counts, positive),
            "matthews": compute_matthews(counts),
        }  # fmt: skip


class LabelRows(_Texts):
    """Rows with any number of labels: a list, or a text with the separator of the task between them."""

    def __init__(self, bundle: Bundle, columns: Columns, rows: Sequence[Values]) -> None:
        super().__init__(bundle, columns, rows)
        self.separator = str(bundle.manifest["decoding"].get("separator") or "|")

    def read(self, row: Values) -> tuple[Record, NDArray[np.bool_]]:
        value = _value(row, self.label)
        labels = _split_labels(value, self.separator)
        chosen = np.zeros(len(self.labels), dtype=bool)
        chosen[[find_label(label, self.labels) for label in labels]] = True
        return self.record(row), chosen

    def score(self, predictions: Sequence[Prediction], labels: Sequence[NDArray[np.bool_]]) -> Metrics:
        """Returns F1 of all labels together, the mean of their F1, and the share of rows with the right labels."""
        given = [{each["label"] for each in prediction["labels"]} for prediction in predictions]
        found = np.array([[name in of_row for name in self.labels] for of_row in given])
        expected = np.array(labels)
        correct, total = (found & expected).sum(axis=0), found.sum(axis=0) + expected.sum(axis=0)
        return {
            "micro_f1": float(2 * correct.sum() / max(1, total.sum())),
            "macro_f1": float((2 * correct / np.maximum(1, total)).mean()),
            "subset_accuracy": float((found == expected).all(axis=-1).mean()),
        }


def _split_labels(value: object, separator: str) -> list[Any]:
    if isinstance(value, list):
        return value
    text = "" if value is None else str(value).strip()
    return [label.strip() for label in text.split(separator)] if text else []


class NumberRows(_Texts):
    """Rows with a number."""

    def read(self, row: Values) -> tuple[Record, float]:
        value = _value(row, self.label)
        try:
            number = float(str(value))
        except ValueError:
            number = np.nan
        if not np.isfinite(number):
            raise UserError(f"the label {shorten(value)} is no number")
        return self.record(row), number

    def score(self, predictions: Sequence[Prediction], labels: Sequence[float]) -> Metrics:
        """Returns the correlations of Pearson and Spearman, 0 with a constant, and the mean absolute error."""
        values, expected = np.array([prediction["value"] for prediction in predictions]), np.array(labels)
        return {
            "pearson": correlate(values, expected), "spearman": correlate(rank(values), rank(expected)),
            "mae": float(np.abs(values - expected).mean()),
        }  # fmt: skip


class VectorRows(NumberRows):
    """Rows with two texts and a number, their similarity, or with a text and its translation and perhaps a language."""

    compares = True

    def __init__(self, bundle: Bundle, columns: Columns, rows: Sequence[Values]) -> None:
        self.translates = "accuracy" in bundle.manifest.get("metrics", {}).get(bundle.model, {})
        self.has_language = columns.label is not None
        super().__init__(bundle, columns, rows)

    def read(self, row: Values) -> tuple[Record, Any]:
        if not self.translates:
            return super().read(row)
        language = _value(row, self.label) if self.has_language else row.get(self.label, "")
        return self.record(row), str(language)

    def score(self, predictions: Sequence[Prediction], labels: Sequence[Any]) -> Metrics:
        """Returns the correlations of Pearson and Spearman between the cosines and the labels.

        Of translations it returns the share of the texts whose nearest one in their language is their own translation.
        """
        first, second = np.array([prediction["vector"] for prediction in predictions]).swapaxes(0, 1)
        if self.translates:
            nearest = match_pairs(first, second, np.array(labels))
            return {"accuracy": float((nearest == np.arange(len(labels))).mean())}
        lengths = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
        cosines, expected = (first * second).sum(axis=-1) / np.maximum(lengths, SHORTEST), np.array(labels)
        return {"pearson": correlate(cosines, expected), "spearman": correlate(rank(cosines), rank(expected))}


class TagRows:
    """Rows with a list of words and a list of their tags, or with the text of the words in place of the list.

    The text is that of the column `text`, if it has these words, or else the words with spaces between.
    """

    def __init__(self, bundle: Bundle, columns: Columns, rows: Sequence[Values]) -> None:
        self.labels, self.scheme, self.as_text = bundle.labels, TagScheme(bundle.labels), columns.as_text
        self.tokens, self.label = (columns.texts or ["tokens"])[0], columns.label or "tags"

    def read(self, row: Values) -> tuple[Record, set[tuple[str, int, int]]]:
        words, tags = (_value(row, name) for name in (self.tokens, self.label))
        if not isinstance(words, list) or not isinstance(tags, list) or len(words) != len(tags):
            raise UserError(f"got {shorten(tags)}, expected two lists, {self.tokens} with a tag for each word")
        numbers = np.array([find_label(tag, self.labels) for tag in tags], dtype=int)
        if self.as_text and words and all(isinstance(word, str) and word for word in words):
            text, spans = place_words(words, row.get("text"))
            return text, locate_entities(self.scheme, numbers, spans)
        return {"tokens": words}, locate_entities(self.scheme, numbers, locate_words(list(map(str, words))))

    def score(self, predictions: Sequence[Prediction], labels: Sequence[set[tuple[str, int, int]]]) -> Metrics:
        """Returns F1, precision and recall of entities. Those of words that are cut off count as missed."""
        metrics = score_entities(predictions, labels)
        return {f"text_{name}": value for name, value in metrics.items()} if self.as_text else metrics


class SpanRows:
    """Rows with a question, its context, and the correct answers: texts, or `{"text": [...]}` as in SQuAD."""

    def __init__(self, bundle: Bundle, columns: Columns, rows: Sequence[Values]) -> None:
        self.texts, self.label = columns.texts or ["question", "context"], columns.label or "answers"
        self.options = {"may_be_unanswerable": bundle.manifest["decoding"]["null_threshold"] is not None}
        if len(self.texts) != 2:
            raise UserError(f"got {', '.join(self.texts)}, expected the columns of the question and of the context")

    def read(self, row: Values) -> tuple[Record, Sequence[str]]:
        answers = _value(row, self.label)
        texts = answers.get("text") if isinstance(answers, dict) else answers
        texts = [] if texts is None else [texts] if isinstance(texts, str) else texts
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise UserError(f"got {shorten(answers)}, expected a list of answers")
        question, context = (_value(row, name) for name in self.texts)
        return {"question": question, "context": context}, texts  # type: ignore[dict-item]  # The decoder checks it.

    def score(self, predictions: Sequence[Prediction], labels: Sequence[Sequence[str]]) -> Metrics:
        """Returns F1 and exact match, as SQuAD defines them."""
        values = [
            score_answer(prediction["answer"], normalize_references(texts, **self.options), **self.options)
            for prediction, texts in zip(predictions, labels, strict=True)
        ]
        exact, f1 = np.array(values).mean(axis=0)
        return {"f1": float(f1), "exact_match": float(exact)}


class ChoiceRows:
    """Rows with a question, its choices, perhaps a context, and the right choice.

    One column has the list of the choices, and that of a context may follow it; or each choice has a column of texts.
    All answers are read in the same way, which is the one of the bundle's run if it finds every answer: as names of the
    choices, as their texts, as indices from 0, as numbers from 1, or as letters.
    """

    def __init__(self, bundle: Bundle, columns: Columns, rows: Sequence[Values]) -> None:
        self.question, *self.choices = columns.texts or ("question", "choices")
        self.label, self.context = columns.label or "answer", "context"
        self.lists = len(self.choices) < 2 or not isinstance(_value(rows[0], self.choices[0]), str)
        if self.lists and len(self.choices) == 2:
            self.context = self.choices.pop()
        if self.lists and len(self.choices) != 1:
            expected = "the columns of the question and the choices, and perhaps of the context"
            raise UserError(f"got {', '.join([self.question, *self.choices])}, expected {expected}")
        usual = bundle.manifest["decoding"].get("answers")  # Earlier bundles do not have it.
        self.reading = choose_reading(map(self._answer, rows), usual)

    def _choices(self, row: Values) -> tuple[list[object], list[object] | None]:
        values = [row.get(column) for column in self.choices]
        return split_choices(values[0]) if self.lists else (join_choices(values), None)

    def _answer(self, row: Values) -> Answer:
        texts, names = self._choices(row)
        return Answer(row.get(self.label), list(map(str, texts)), None if names is None else list(map(str, names)))

    def read(self, row: Values) -> tuple[Record, int]:
        for column in (self.label, *self.choices):
            _value(row, column)
        choices, answer = self._choices(row)[0], self._answer(row)
        if not choices:
            expected = "a list of choices" if self.lists else "at least two choices"
            raise UserError(f"got {shorten(row[self.choices[0]])}, expected {expected}")
        index = READINGS[self.reading](answer)
        if index is None:
            expected = describe_expected(answer, self.reading)
            raise UserError(f"the answer {shorten(answer.value)} is none of the choices, expected {expected}")
        record: dict[str, Any] = {"question": _value(row, self.question), "choices": choices}
        return record | ({} if row.get(self.context) is None else {"context": row[self.context]}), index

    def score(self, predictions: Sequence[Prediction], labels: Sequence[int]) -> Metrics:
        """Returns the accuracy of the most probable choices."""
        return {
            "accuracy": float(np.mean([of["index"] == label for of, label in zip(predictions, labels, strict=True)]))
        }


class MaskRows:
    """Rows with a text with masks, and the right piece of its only mask or the list of those of all."""

    def __init__(self, bundle: Bundle, columns: Columns, rows: Sequence[Values]) -> None:
        self.text, self.label = (columns.texts or ["text"])[0], columns.label or "label"

    def read(self, row: Values) -> tuple[Record, list[str]]:
        text, label = _value(row, self.text), _value(row, self.label)
        pieces = label if isinstance(label, list) else [label]
        if not all(isinstance(piece, str) and piece for piece in pieces):
            raise UserError(f"got {shorten(label)}, expected the piece of each mask")
        return text, pieces  # type: ignore[return-value]  # The decoder checks it.

    def score(self, predictions: Sequence[Prediction], labels: Sequence[list[str]]) -> Metrics:
        """Returns the share of masks whose most probable piece is the right one. Those that are cut off count as wrong.

        Raises:
            UserError: for a text with another number of masks than it has pieces.
        """
        right = 0
        for number, (prediction, pieces) in enumerate(zip(predictions, labels, strict=True), 1):
            best = [mask["pieces"][0]["piece"].strip() for mask in prediction["masks"]]
            if len(best) != len(pieces) and not prediction.get("truncated"):
                raise UserError(f"row {number} has {len(best)} masks and {len(pieces)} pieces, expected one for each")
            right += sum(map(str.__eq__, best, pieces))
        return {"accuracy": right / sum(map(len, labels))}


READERS: Mapping[str, Callable[[Bundle, Columns, Sequence[Values]], LabelledRows]] = {
    "classes": ClassRows, "labels": LabelRows, "number": NumberRows, "tags": TagRows, "spans": SpanRows,
    "choices": ChoiceRows, "vectors": VectorRows, "masks": MaskRows,
}  # fmt: skip


def find_label(value: object, labels: Sequence[str]) -> int:
    """Returns the index of a label, given by its name or else by its index; raises UserError for another value."""
    if str(value) in labels:
        return list(labels).index(str(value))
    if str(value).isdecimal() and not isinstance(value, bool) and int(str(value)) < len(labels):
        return int(str(value))
    shown = ", ".join(map(str, labels[:8])) + (", ..." if len(labels) > 8 else "")
    raise UserError(f"the label {shorten(value)} is none of {shown}")


def compute_f1(counts: NDArray[np.floating], positive: int | None) -> float:
    """Returns the F1 of a class, or the mean of all classes that occur, from `counts [label, prediction]`."""
    correct, total = np.diagonal(counts), counts.sum(axis=0) + counts.sum(axis=1)
    values = 2 * correct / np.maximum(total, 1)
    return float(values[total > 0].mean() if positive is None else values[positive])


def compute_matthews(counts: NDArray[np.floating]) -> float:
    """Returns Matthews' correlation (Gorodkin 2004) from `counts [label, prediction]`, 0 with a constant."""
    total, labels, predictions = counts.sum(), counts.sum(axis=1), counts.sum(axis=0)
    covariance = np.trace(counts) * total - labels @ predictions
    scale = np.sqrt((total**2 - predictions @ predictions) * (total**2 - labels @ labels))
    return float(covariance / scale) if scale else 0.0


def correlate(values: NDArray[np.floating], others: NDArray[np.floating]) -> float:
    """Returns Pearson's correlation, 0 with a constant."""
    if np.ptp(values) == 0 or np.ptp(others) == 0:
        return 0.0
    return float(np.corrcoef(values, others)[0, 1])


def rank(values: NDArray[np.floating]) -> NDArray[np.floating]:
    """Returns the rank of each value; equal ones have the mean of their ranks."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((count.cumsum() - (count - 1) / 2)[place])
