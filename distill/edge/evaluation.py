"""Scores a bundle on the rows of labelled files with the metrics of its task, by numpy alone.

Scores a bundle on labelled rows with the metrics of its task, by numpy alone. The rows are those of a file that the
task may be trained from. A reader for each decoder makes records and labels of them, and computes the metrics from
predictions. Labels are read by the rules of a run, all of them in one way.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from distill.core.errors import UserError, shorten
from distill.edge import decoder, metrics
from distill.edge.answering import average_scores, normalize_references, score_answer
from distill.edge.bundle import Bundle
from distill.edge.decode import TASK, LabelWords
from distill.edge.decoder import Prediction, Record
from distill.edge.index import match_pairs
from distill.edge.metrics import count_pairs, describe_absent, score_rankings
from distill.edge.prediction import RecordError
from distill.edge.values import are_counts
from distill.edge.words import Span, TagScheme, locate_entities, locate_words, place_words, score_entities
from distill.rows.columns import read_conll, read_table
from distill.rows.formats import SUFFIXES, Notify, Row, read_articles, read_rows, reading_errors
from distill.rows.label_sets import find_label_sets, stack_columns
from distill.rows.labels import LabelColumn, find_classes, to_numbers

PARQUET = (".parquet",)
CONLL = (".conll", ".txt", ".conllu", ".bio", ".iob", ".conll.gz", ".txt.gz")
SQUAD = (".json", ".json.gz")
OTHERS: Mapping[str, Sequence[str]] = {"tags": CONLL, "spans": SQUAD}  # Types of one decoder alone.


@dataclass(frozen=True)
class LabelledFile:
    """Rows with their numbers, the noun of these, and the columns as they are named in the rows."""

    rows: Sequence[tuple[int, Row]]
    noun: str
    columns: "Columns"


def read_labelled(decoder: str, path: Path, columns: "Columns", notify: Notify) -> LabelledFile:
    """Reads the rows of a file.

    Args:
        columns: of a CoNLL file, the number of the words' column and that of the tags, counted from 0, or below 0 from
            the end.

    Raises:
        UserError: for a type that the decoder has not, and for a file that cannot be read.
    """
    name = path.name.lower()
    if name.endswith(SUFFIXES):
        return LabelledFile(list(read_rows(path)), "line", columns)
    if name.endswith(PARQUET):
        return LabelledFile(list(enumerate(_read_parquet(path), 1)), "row", columns)
    others = tuple(OTHERS.get(decoder, ()))
    if not others or not name.endswith(others):
        raise UserError(f"got {path}, expected a file that ends in {', '.join((*SUFFIXES, *PARQUET, *others))}")
    if decoder == "spans":
        with reading_errors(path):
            return LabelledFile(list(enumerate(read_articles(path), 1)), "question", columns)
    return _read_sentences(path, columns, notify)


def _read_sentences(path: Path, columns: "Columns", notify: Notify) -> LabelledFile:
    words = _read_number("--text-column", columns.texts[0]) if columns.texts else None
    tags = -1 if columns.label is None else _read_number("--label-column", columns.label)
    try:
        read = read_conll(path, tags, words, notify=lambda text: notify(_use_options(text)))
    except UserError as error:
        raise UserError(_use_options(str(error))) from error
    rows = [
        {"tokens": of_words, "tags": of_tags, "text": text}
        for of_words, of_tags, text in zip(read.words, read.tags, read.texts, strict=True)
    ]
    return LabelledFile(list(zip(read.lines, rows, strict=True)), "line", replace(columns, texts=None, label=None))


def _use_options(text: str) -> str:
    """Returns a text about the columns of a task with the options of the command."""
    for words, option in (("task.word_column=0", "--text-column 0"), ("task.word_column", "--text-column N"),
                          ("task.column", "--label-column N")):  # fmt: skip
        text = text.replace(f"set {words}", f"give {option}").replace(words, option)
    return text


def _read_number(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UserError(f"got {option} {text}, expected the number of a column of CoNLL, the first one is 0") from None


def _read_parquet(path: Path) -> list[Row]:
    table = read_table(path)
    columns = dict(table.columns)
    for name, classes in _find_classes(table.schema).items():
        if name in columns:
            columns[name] = [_name_classes(value, classes) for value in columns[name]]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _find_classes(schema: Any) -> dict[str, Sequence[str]]:
    """Returns the names of classes by their columns, as the `datasets` library has written them."""
    metadata = (schema.metadata or {}).get(b"huggingface")
    if metadata is None:
        return {}
    try:
        features = json.loads(metadata)["info"]["features"]
        inner = {name: feature.get("feature", feature) for name, feature in features.items()}
        return {name: feature["names"] for name, feature in inner.items() if feature.get("_type") == "ClassLabel"}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError("the Parquet file has damaged metadata of the datasets library, expected its features") from (
            error
        )


def _name_classes(value: object, classes: Sequence[str]) -> object:
    """Returns the name of a class in place of its number, also of each number of a list."""
    if isinstance(value, list):
        return [_name_classes(item, classes) for item in value]
    return classes[value] if isinstance(value, int) and 0 <= value < len(classes) else value


CHUNK = 1024  # Rows that are predicted together.
SHORTEST = 1e-12  # Length of a vector; shorter ones have a cosine of 0.
Metrics = dict[str, float]


@dataclass(frozen=True)
class Columns:
    """The names of columns; None for the usual ones of the decoder.

    Args:
        label: the column of the label.
        labels: a column of 0 and 1 for each label of a bundle with several; excludes `label`.
        as_text: predicts sentences that are given as words as plain text, which the bundle splits itself.
    """

    texts: Sequence[str] | None = None
    label: str | None = None
    labels: Sequence[str] | None = None
    as_text: bool = False


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a bundle on a file, the number of its rows, how many of them were cut, and how they were read.

    Attributes:
        read_as: `words` or `text`, as sentences that are given as words were predicted; None for other records.
    """

    metrics: Metrics
    rows: int
    truncated: int
    notices: Sequence[str] = ()
    read_as: str | None = None


class LabelledRows:
    """Reads labelled rows for one decoder and compares predictions with their labels.

    The default record has the `keys` of a decoder, and the default label is compared as it is.

    Args:
        rows: all of the file.

    Attributes:
        keys: of a record; also the columns of texts where none are given.
        expected: the columns of texts in words, if there must be one for each of `keys`.
        texts, label: the columns.
    """

    keys: Sequence[str] = ()
    label = "label"
    expected = ""

    def __init__(self, bundle: Bundle, columns: Columns, rows: Sequence[Row]) -> None:
        self.labels, self.manifest, self.columns = bundle.labels, bundle.manifest, columns
        self.texts, self.label = columns.texts or self.keys, columns.label or self.label
        self.positive = bundle.manifest.get("positive")
        if self.expected:
            self._check_texts(len(self.keys), self.expected)

    def _check_texts(self, number: int, expected: str) -> None:
        """Raises UserError for another number of columns of texts."""
        if len(self.texts) != number:
            raise UserError(f"got {', '.join(self.texts) or 'none'}, expected {expected}")

    def read(self, row: Row) -> tuple[Record, Any]:
        """Returns the record and the label of a row; raises UserError for a value that cannot be."""
        return self.record(row), _value(row, self.label)

    def record(self, row: Row) -> Record:
        """Returns the record of a row, which the decoder checks."""
        return {key: _value(row, name) for key, name in zip(self.keys, self.texts, strict=True)}  # type: ignore[misc]

    def convert(self, column: LabelColumn, notify: Notify) -> Sequence[Any]:
        """Returns the labels of all rows as they are compared; raises UserError for one that cannot be."""
        return column.values

    def score(self, predictions: Sequence[Prediction], labels: Sequence[Any]) -> Metrics:
        """Returns the metrics by name."""
        raise NotImplementedError


def evaluate(bundle: Bundle, path: Path, columns: Columns, *, batch_size: int | None = None) -> Evaluation:
    """Scores a bundle on a file.

    Raises:
        UserError: for a file that cannot be read, a column that is missing, and a text or a label that cannot be.
    """
    if bundle.decoder.fields[0] == "text":
        raise UserError(f"{bundle.directory} writes text, which has no labels: run.json has its loss")
    _check_columns(bundle, columns)
    notices: list[str] = []
    file = read_labelled(bundle.manifest["decoder"], path, columns, notices.append)
    numbered, columns = file.rows, file.columns
    reader = READERS[bundle.manifest["decoder"]](bundle, columns, [row for _, row in numbered])
    records, values = [], []
    for line, row in numbered:
        try:
            record, value = reader.read(row)
            bundle.decoder.read(record)
        except UserError as error:
            raise UserError(f"{path}, {file.noun} {line}: {error}") from error
        records.append(record)
        values.append(value)
    column = LabelColumn(str(path), values, lines=[line for line, _ in numbered])
    labels = reader.convert(column, notices.append)
    predictions: list[Prediction] = []
    for start in range(0, len(records), CHUNK):
        try:
            predictions += bundle.predict(records[start : start + CHUNK], batch_size=batch_size)
        except RecordError as error:
            line, _ = numbered[start + error.number - 1]
            raise UserError(f"{path}, {file.noun} {line}: {error.reason}") from error
    metrics = reader.score(predictions, labels)
    known = [name for name in bundle.manifest["metrics"].get(bundle.model, {}) if name in metrics]
    if own := bundle.manifest.get("own_metrics"):
        notices.append(
            f"left out {', '.join(map(str, own))}: functions of the run that trained the bundle, which a bundle lacks"
        )
    truncated = sum(prediction.get("truncated", False) for prediction in predictions)
    read_as = ("text" if columns.as_text else "words") if isinstance(reader, TagRows) else None
    return Evaluation({name: metrics[name] for name in known or metrics}, len(records), truncated, notices, read_as)


def _check_columns(bundle: Bundle, columns: Columns) -> None:
    """Raises UserError for columns that are not for the bundle's kind of task."""
    decoder = bundle.manifest["decoder"]
    if columns.as_text and decoder != "tags":
        raise UserError(f"got --as-text, and {bundle.directory} does not tag words: leave it out")
    if columns.labels is not None and decoder != "labels":
        raise UserError(f"got the label columns {', '.join(columns.labels)}, expected one: this bundle has one label")


def _value(row: Row, column: str) -> object:
    if column not in row:
        names = ", ".join(row)
        raise UserError(f"there is no column {column}, the columns are {names}: give --text-column or --label-column")
    return row[column]


def _value_lists(row: Row, column: str, label: str, noun: str) -> tuple[list[Any], list[Any]]:
    """Returns two columns that are lists of the same length; raises UserError for others."""
    values, labels = _value(row, column), _value(row, label)
    if not isinstance(values, list) or not isinstance(labels, list) or len(values) != len(labels):
        raise UserError(f"got {shorten(labels)}, expected two lists, {column} with {noun}")
    return values, labels


class TextRows(LabelledRows):
    """Rows with the columns of a text or of a pair, and of a label."""

    compares = False  # True: two texts, whatever the bundle reads.

    def __init__(self, bundle: Bundle, columns: Columns, rows: Sequence[Row]) -> None:
        super().__init__(bundle, columns, rows)
        first: Row = rows[0] if rows else {}
        excluded = self.label_columns(first)
        self.texts = columns.texts or [name for name in first if name not in excluded]
        is_pair = bundle.pair or self.compares
        expected = "two columns of text" if is_pair else "one column of text"
        self._check_texts(2 if is_pair else 1, f"{expected}: give --text-column NAME")

    def label_columns(self, row: Row) -> Sequence[str]:
        """Returns the columns that are no text."""
        return [self.label]

    def record(self, row: Row) -> Record:
        texts = [_value(row, name) for name in self.texts]
        return texts if len(texts) == 2 else texts[0]  # type: ignore[return-value]  # The decoder checks it.


class ClassRows(TextRows):
    """Rows with the name of a class, or its index."""

    def convert(self, column: LabelColumn, notify: Notify) -> Sequence[int]:
        indices = find_classes(column, tuple(self.labels), notify)
        absent = describe_absent(column.source, self.labels, np.bincount(indices, minlength=len(self.labels)))
        if absent and self.positive is None:
            notify(absent)
        found: list[int] = indices.tolist()
        return found

    def score(self, predictions: Sequence[Prediction], labels: Sequence[int]) -> Metrics:
        """Returns accuracy, F1, Matthews' correlation and macro F1 of the most probable labels, withheld ones too."""
        best = np.array([np.argmax(list(prediction["probabilities"].values())) for prediction in predictions])
        counts = count_pairs(np.array(labels), best, len(self.labels))
        positive = self.labels.index(self.positive) if self.positive in self.labels else None
        return metrics.compute_metrics(metrics.CLASS_METRICS, metrics.CLASS_METRICS, counts, positive)


class WordRows(ClassRows):
    """Rows with the name of a class, or its index, of the task of a bundle that `task` or the columns name."""

    def __init__(self, bundle: Bundle, columns: Columns, rows: Sequence[Row]) -> None:
        LabelledRows.__init__(self, bundle, columns, rows)
        decoder = cast(LabelWords, bundle.decoder)
        known = list(decoder.tasks.values())
        task = known[0] if len(known) == 1 else decoder.find(rows[0] if rows else {})
        self.task, self.labels, self.positive, self.keys = task.name, list(task.labels), task.positive, task.columns
        self.texts = columns.texts or self.keys
        self._check_texts(len(self.keys), f"{', '.join(self.keys)}: give --text-column NAME")

    def record(self, row: Row) -> Record:
        return {TASK: self.task, **cast(dict[str, str], LabelledRows.record(self, row))}


class LabelRows(TextRows):
    """Rows with any number of labels: a list, a text with the separator of the task between them, or 0 and 1 for each.

    There may also be a column of 0 and 1 for each label, which has its name.
    """

    each: Sequence[str] | None = None  # The columns of 0 and 1.

    def label_columns(self, row: Row) -> Sequence[str]:
        found = self.columns.labels
        if found is None and self.columns.label is None and set(self.labels) <= set(row):
            if self.label in row and self.label not in self.labels:
                raise UserError(
                    f"got a column {self.label} and one for each of {', '.join(self.labels[:8])}, which may both be "
                    f"the labels: give --label-column {self.label}, or one for each label"
                )
            found = self.labels
        if found is not None and sorted(found) != sorted(self.labels):
            raise UserError(f"got the label columns {', '.join(found)}, expected {', '.join(self.labels)}")
        self.each = None if found is None else self.labels
        return self.each or [self.label]

    def read(self, row: Row) -> tuple[Record, object]:
        return super().read(row) if self.each is None else (self.record(row), [_value(row, of) for of in self.each])

    def convert(self, column: LabelColumn, notify: Notify) -> Sequence[NDArray[np.bool_]]:
        if self.each is not None:
            values = zip(*column.values, strict=True)  # type: ignore[arg-type]  # Those of `read`.
            column = stack_columns(column.source, dict(zip(self.each, values, strict=True)), column.lines)
        separator = str(self.manifest["decoding"].get("separator") or "|")
        sets = find_label_sets(column, tuple(self.labels), separator, notify) > 0
        if absent := describe_absent(column.source, self.labels, sets.sum(axis=0)):
            notify(absent)
        return list(sets)

    def score(self, predictions: Sequence[Prediction], labels: Sequence[NDArray[np.bool_]]) -> Metrics:
        """Returns F1 of all labels together, the mean of their F1, and the share of rows with the right labels."""
        given = [{each["label"] for each in prediction["labels"]} for prediction in predictions]
        found = np.array([[name in names for name in self.labels] for names in given])
        return metrics.compute_metrics(metrics.SET_METRICS, metrics.SET_METRICS, np.array(labels), found)


class NumberRows(TextRows):
    """Rows with a number."""

    def convert(self, column: LabelColumn, notify: Notify) -> Sequence[Any]:
        numbers: list[float] = to_numbers(column).tolist()
        return numbers

    def score(self, predictions: Sequence[Prediction], labels: Sequence[float]) -> Metrics:
        """Returns the correlations of Pearson and Spearman, 0 with a constant, and the mean absolute error."""
        values = np.array([prediction["value"] for prediction in predictions])
        return metrics.compute_metrics(metrics.NUMBER_METRICS, metrics.NUMBER_METRICS, values, np.array(labels))


def create_vector_rows(bundle: Bundle, columns: Columns, rows: Sequence[Row]) -> LabelledRows:
    """Returns the rows of a bundle of vectors: translations if it was measured on them, or else similarities."""
    is_of_translations = "accuracy" in bundle.manifest["metrics"].get(bundle.model, {})
    return (TranslationRows if is_of_translations else SimilarityRows)(bundle, columns, rows)


class SimilarityRows(NumberRows):
    """Rows with two texts and a number, their similarity."""

    compares = True

    def score(self, predictions: Sequence[Prediction], labels: Sequence[float]) -> Metrics:
        """Returns the correlations of Pearson and Spearman between the cosines and the labels."""
        first, second = _split_vectors(predictions)
        lengths = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
        cosines = (first * second).sum(axis=-1) / np.maximum(lengths, SHORTEST)
        return metrics.compute_metrics(metrics.NUMBER_METRICS, ("pearson", "spearman"), cosines, np.array(labels))


class TranslationRows(TextRows):
    """Rows with a text and its translation, and perhaps a language."""

    compares = True

    def read(self, row: Row) -> tuple[Record, str]:
        language = row.get(self.label, "") if self.columns.label is None else _value(row, self.label)
        return self.record(row), str(language)

    def score(self, predictions: Sequence[Prediction], labels: Sequence[str]) -> Metrics:
        """Returns the share of the texts whose nearest one in their language is their own translation."""
        first, second = _split_vectors(predictions)
        nearest = match_pairs(first, second, np.array(labels))
        return {"accuracy": float((nearest == np.arange(len(labels))).mean())}


def _split_vectors(predictions: Sequence[Prediction]) -> NDArray[np.floating]:
    """Returns the vectors of the first and of the second texts, `[2, N, D]`."""
    return np.array([prediction["vector"] for prediction in predictions]).swapaxes(0, 1)


class TagRows(LabelledRows):
    """Rows with a list of words and a list of their tags, or with the text of the words in place of the list.

    The text is that of the column `text`, if it has these words, or else the words with spaces between.
    """

    keys, label = ("tokens",), "tags"

    def read(self, row: Row) -> tuple[Record, tuple[Sequence[Span], list[object]]]:
        words, tags = _value_lists(row, self.texts[0], self.label, "a tag for each word")
        if self.columns.as_text and words and all(isinstance(word, str) and word for word in words):
            text, spans = place_words(words, row.get("text"))
            return text, (spans, tags)
        return {"tokens": words}, (locate_words(list(map(str, words))), tags)

    def convert(self, column: LabelColumn, notify: Notify) -> Sequence[set[tuple[str, int, int]]]:
        """Returns the type, the start and the end of each entity of each row."""
        rows: Sequence[tuple[Sequence[Span], list[object]]] = column.values  # type: ignore[assignment]  # Of `read`.
        every = [tag for _, tags in rows for tag in tags]
        row_numbers = [row for row, (_, tags) in enumerate(rows) for _ in tags]
        scheme = TagScheme(self.labels)
        numbers = find_classes(replace(column, values=every, rows=row_numbers), tuple(self.labels), notify)
        ends = np.cumsum([len(tags) for _, tags in rows])
        return [
            locate_entities(scheme, of, spans)
            for (spans, _), of in zip(rows, np.split(numbers, ends[:-1]), strict=True)
        ]

    def score(self, predictions: Sequence[Prediction], labels: Sequence[set[tuple[str, int, int]]]) -> Metrics:
        """Returns F1, precision and recall of entities. Those of words that are cut off count as missed."""
        metrics = score_entities(TagScheme(self.labels), predictions, labels)
        return {f"text_{name}": value for name, value in metrics.items()} if self.columns.as_text else metrics


class SpanRows(LabelledRows):
    """Rows with a question, its context, and the correct answers: texts, or those of SQuAD in either of its layouts."""

    keys, label = ("question", "context"), "answers"
    expected = "the columns of the question and of the context"

    def read(self, row: Row) -> tuple[Record, Sequence[str]]:
        answers = _value(row, self.label)
        texts = answers.get("text") if isinstance(answers, dict) else answers
        if not isinstance(texts, list):
            texts = [] if texts is None else [texts]
        texts = [of.get("text") if isinstance(of, dict) else of for of in texts]  # Those of SQuAD's JSON are objects.
        if not all(isinstance(text, str) for text in texts):
            raise UserError(f"got {shorten(answers)}, expected a list of answers")
        return self.record(row), texts

    def score(self, predictions: Sequence[Prediction], labels: Sequence[Sequence[str]]) -> Metrics:
        """Returns F1 and exact match, as SQuAD defines them, also of the questions with and without an answer."""
        options = {"may_be_unanswerable": self.manifest["decoding"]["null_threshold"] is not None}
        values = [
            score_answer(prediction["answer"], normalize_references(texts, **options), **options)
            for prediction, texts in zip(predictions, labels, strict=True)
        ]
        return average_scores(np.array(values), np.array([bool(texts) for texts in labels]))


class ChoiceRows(LabelledRows):
    """Rows with a question, its choices, perhaps a context, and the right choice.

    One column has the list of the choices, and that of a context may follow it; or each choice has a column of texts.
    All answers are read in the same way, which is the one of the bundle's run if it finds every answer: as names of the
    choices, as their texts, as indices from 0, as numbers from 1, or as letters.
    """

    keys, label = ("question", "choices"), "answer"

    def __init__(self, bundle: Bundle, columns: Columns, rows: Sequence[Row]) -> None:
        super().__init__(bundle, columns, rows)
        (self.question, *self.choices), self.context = self.texts, "context"
        self.lists = len(self.choices) < 2 or not isinstance(_value(rows[0], self.choices[0]), str)
        if self.lists and len(self.choices) == 2:
            self.context = self.choices.pop()
        if self.lists and len(self.choices) != 1:
            expected = "the columns of the question and the choices, and perhaps of the context"
            raise UserError(f"got {', '.join([self.question, *self.choices])}, expected {expected}")
        self.reading = decoder.choose_reading(map(self._answer, rows), self.manifest["decoding"].get("answers"))

    def _choices(self, row: Row) -> tuple[list[object], list[object] | None]:
        values = [row.get(column) for column in self.choices]
        return decoder.split_choices(values[0]) if self.lists else (decoder.join_choices(values), None)

    def _answer(self, row: Row) -> decoder.Answer:
        texts, names = self._choices(row)
        return decoder.Answer(
            row.get(self.label), list(map(str, texts)), None if names is None else list(map(str, names))
        )

    def read(self, row: Row) -> tuple[Record, int]:
        for column in (self.label, *self.choices):
            _value(row, column)
        choices, answer = self._choices(row)[0], self._answer(row)
        if not choices:
            expected = "a list of choices" if self.lists else "at least two choices"
            raise UserError(f"got {shorten(row[self.choices[0]])}, expected {expected}")
        index = decoder.READINGS[self.reading](answer)
        if index is None:
            expected = decoder.describe_expected(answer, self.reading)
            raise UserError(f"the answer {shorten(answer.value)} is none of the choices, expected {expected}")
        record: dict[str, Any] = {"question": _value(row, self.question), "choices": choices}
        return record | ({} if row.get(self.context) is None else {"context": row[self.context]}), index

    def score(self, predictions: Sequence[Prediction], labels: Sequence[int]) -> Metrics:
        """Returns the accuracy of the most probable choices."""
        return {
            "accuracy": float(np.mean([of["index"] == label for of, label in zip(predictions, labels, strict=True)]))
        }


class RankingRows(LabelledRows):
    """Rows with a query, the list of its documents, and the list of their gains, whole numbers that are 0 or more."""

    keys, label = ("query", "documents"), "gains"
    expected = "the columns of the query and of the documents"

    def read(self, row: Row) -> tuple[Record, list[int]]:
        record = self.record(row)
        _, gains = _value_lists(row, self.texts[1], self.label, "a gain for each document")
        if not are_counts(gains):
            raise UserError(f"got the gains {shorten(gains)}, expected whole numbers of at least 0")
        if not any(gains):
            raise UserError(
                f"got the gains {shorten(gains)}, expected one above 0: no order of the documents is better"
            )
        return record, cast(list[int], gains)

    def score(self, predictions: Sequence[Prediction], labels: Sequence[list[int]]) -> Metrics:
        """Returns the means of nDCG, of the reciprocal rank and of recall of the first 10.

        The documents are all that are relevant to the query.
        """
        rows = [
            score_rankings(np.array([of["order"]]), [{position: gain for position, gain in enumerate(gains) if gain}])
            for of, gains in zip(predictions, labels, strict=True)
        ]
        return {name: float(np.mean([row[name] for row in rows])) for name in ("ndcg@10", "mrr@10", "recall@10")}


class MaskRows(LabelledRows):
    """Rows with a text with masks, and the right piece of its only mask or the list of those of all."""

    keys = ("text",)

    def read(self, row: Row) -> tuple[Record, list[str]]:
        text, label = _value(row, self.texts[0]), _value(row, self.label)
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


READERS: Mapping[str, Callable[[Bundle, Columns, Sequence[Row]], LabelledRows]] = {
    "classes": ClassRows, "labels": LabelRows, "number": NumberRows, "tags": TagRows, "spans": SpanRows,
    "choices": ChoiceRows, "vectors": create_vector_rows, "masks": MaskRows, "ranking": RankingRows,
    "label_words": WordRows,
}  # fmt: skip
