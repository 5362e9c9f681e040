"""Labels as words that a model with an encoder would write: the likeliest word of a text's task is its label.

A source is the name of a task and the columns of a row with their names, as T5 has it (arXiv 1910.10683, appendix D):
`mrpc sentence1: ... sentence2: ...`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from distill.edge.classes import softmax
from distill.edge.decoder import Example, Floats, Items, Prediction, Record, Row, SourceTokens
from distill.edge.strings import check_text, escape, shorten
from distill.edge.texts import Targets
from distill.errors import UserError

TASK = "task"  # The key of a record with the name of its task.


@dataclass(frozen=True)
class WordTask:
    """A task whose labels are words.

    Args:
        name: stands before each source.
        columns: of the texts of a row, whose names are a part of the source.
        labels: in the order of the classes.
        words: of each label.
        positive: of two labels the one whose F1 is computed; None for the mean of both.
    """

    name: str
    columns: tuple[str, ...]
    labels: tuple[str, ...]
    words: tuple[str, ...]
    positive: str | None = None

    @classmethod
    def parse(cls, value: object) -> "WordTask":
        """Returns the task of an entry of bundle.json; raises UserError for one that is none."""
        if isinstance(value, Mapping) and isinstance(value.get("name"), str):
            lists = [value.get(name) for name in ("columns", "labels", "words")]
            if all(isinstance(of, list) and of and all(isinstance(text, str) for text in of) for of in lists):
                columns, labels, words = map(tuple, lists)  # type: ignore[arg-type]  # They are lists.
                if len(labels) == len(words) > 1:
                    return cls(value["name"], columns, labels, words, value.get("positive"))
        raise UserError(f"decoding has the task {shorten(value)}, expected a name, columns, and a word for each label")

    def describe(self) -> dict[str, Any]:
        """Returns the task as an entry of bundle.json."""
        return {
            "name": self.name, "columns": list(self.columns), "labels": list(self.labels), "words": list(self.words),
            "positive": self.positive,
        }  # fmt: skip

    @property
    def beginning(self) -> str:
        """The beginning of every source."""
        return f"{self.name} {self.columns[0]}: "

    def source(self, texts: Sequence[str]) -> str:
        """Returns the source of a row with these texts."""
        named = (f"{column}: {text}" for column, text in zip(self.columns, texts, strict=True))
        return " ".join([self.name, *named])


class LabelWords(Targets):
    """Decodes the label of a text as `Classes` does, by the log-likelihood of its word after the source.

    The probabilities are the softmax of the log-likelihoods of the words of a task, each with the token that ends it. A
    bundle of several tasks adds `task`. A record is a whole source, which begins with the name of its task and a
    column, or a mapping of the columns, with `task` where several tasks have them. Where a bundle has one task, a
    record may also be a text, or the two texts of a pair.

    Args:
        decoding: that of `Targets`, and `tasks`, as `WordTask.describe` returns each.
    """

    fields: tuple[str, ...] = ("label", "probability", "probabilities")

    @staticmethod
    def accepts(labels: int) -> bool:
        return labels > 1

    def __init__(self, labels: Sequence[str], pair: bool, decoding: Mapping[str, Any], tokenizer: Tokenizer) -> None:
        super().__init__(labels, pair, decoding, tokenizer)
        entries = decoding.get("tasks")
        if not isinstance(entries, list) or not entries:
            raise UserError(f"decoding has tasks {shorten(entries)}, expected a list of at least one task")
        self.tasks = {task.name: task for task in map(WordTask.parse, entries)}
        if self.start is None or self.end is None or self.max_target is None:
            raise UserError("decoding lacks start, end or max_target, without which no word can be scored")
        self.words = {  # The tokens of the words of each task.
            name: [self._tokenize(word, self.max_target, self.end, "right") for word in task.words]
            for name, task in self.tasks.items()
        }

    def parse(self, line: str) -> Record:
        return line.split("\t") if "\t" in line else line

    def complete(self, text: str) -> str:
        """Returns the whole source of a text, as `read` does."""
        return self.read(text).text

    def read(self, record: Record) -> Example:
        """Returns the source of a record; raises UserError for one of an unknown task, or without a text."""
        texts: object = record
        if isinstance(record, str):
            begun = [task for task in self.tasks.values() if record.startswith(task.beginning)]
            if begun:
                return Example(check_text(record), task=begun[0].name)
            texts = [record]
        if isinstance(record, Mapping):
            task = self.find(record)
            texts = [record[column] for column in task.columns]
        else:
            task = self._find_only(record)
        texts = texts if isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts) else ()
        if len(texts) != len(task.columns) or not any(text.strip() for text in texts):
            raise UserError(f"got {shorten(record)}, expected text in {' and '.join(task.columns)}")
        return Example(check_text(task.source(texts)), task=task.name)

    def _find_only(self, record: Record) -> WordTask:
        """Returns the task of a bundle with one; raises UserError where the record must name one of several."""
        if len(self.tasks) > 1:
            names = ", ".join(repr(task.beginning.strip()) for task in self.tasks.values())
            raise UserError(
                f'got {shorten(record)}, expected a text that begins with one of {names}, or {{"{TASK}": ..., ...}} '
                "with the columns of the task"
            )
        return next(iter(self.tasks.values()))

    def find(self, row: Mapping[str, Any]) -> WordTask:
        """Returns the task that a row names, or the only one whose columns it has.

        Raises:
            UserError: for an unknown task, and where none or several have these columns.
        """
        named = row.get(TASK)
        if named is not None and TASK not in {column for task in self.tasks.values() for column in task.columns}:
            fitting = [task for task in self.tasks.values() if task.name == named]
            if not fitting:
                raise UserError(f"got the task {shorten(named)}, expected one of {', '.join(self.tasks)}")
        else:
            fitting = [task for task in self.tasks.values() if set(task.columns) <= set(row)]
        if len(fitting) > 1:
            names = " and ".join(task.name for task in fitting)
            raise UserError(f"got the columns {', '.join(row)}, which {names} both have: name one of them in {TASK}")
        if not fitting or not set(fitting[0].columns) <= set(row):
            known = "; ".join(f"{task.name} has {', '.join(task.columns)}" for task in fitting or self.tasks.values())
            raise UserError(f"got the columns {', '.join(map(str, row)) or 'none'}, and {known}")
        return fitting[0]

    def cut(self, example: Example, row: Row, *, max_length: int, doc_stride: int | None, side: str) -> list[Row]:
        [source] = row
        return [[self._append(source, ids) for ids in self.words[str(example.task)]]]

    def _append(self, source: Any, ids: Sequence[int]) -> SourceTokens:
        """Returns a source with the tokens that the decoder reads to predict those of a word."""
        assert self.start is not None
        return SourceTokens(source.ids, source.type_ids, source.attention_mask, [self.start, *ids[:-1]])

    def select(self, example: Example, row: Row, logits: Floats) -> Items:
        """Returns the log-likelihood of each word, `[1, words]`, from the logits `[words, T, V]` of its tokens."""
        likelihoods = [
            _log_likelihood(of_word[: len(ids)], ids)
            for ids, of_word in zip(self.words[str(example.task)], logits, strict=True)
        ]
        return row, np.array([likelihoods], dtype=np.float32)

    def decode(self, example: Example, rows: Sequence[Items]) -> Prediction:
        [(_, logits)] = rows
        task, row = self.tasks[str(example.task)], softmax(logits[0].astype(np.float64))
        best = int(row.argmax())
        prediction: Prediction = {
            "label": task.labels[best], "probability": float(row[best]),
            "probabilities": dict(zip(task.labels, row.tolist(), strict=True)),
        }  # fmt: skip
        return prediction | ({TASK: task.name} if len(self.tasks) > 1 else {})

    def format(self, prediction: Prediction) -> str:
        return f"{escape(prediction['label'])}\t{prediction['probability']:.4f}"


def _log_likelihood(logits: Floats, ids: Sequence[int]) -> float:
    """Returns the log-likelihood of tokens `[T]` from the logits `[T, V]` at each."""
    values = logits.astype(np.float64)
    most = values.max(axis=-1)
    log_sums = most + np.log(np.exp(values - most[:, None]).sum(axis=-1))
    return float((values[np.arange(len(ids)), ids] - log_sums).sum())
