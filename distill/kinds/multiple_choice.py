"""Multiple choice: the right one of several choices for a question, any number of them; one item an example.

>>> from distill.kinds import MultipleChoice
>>> train = {"question": ["2 + 2?", "3 - 1?"], "choices": [["4", "5"], ["1", "2", "3"]], "answer": [0, 1]}
>>> dev = {"question": ["5 - 1?"], "choices": [["4", "6"]], "answer": [0]}
>>> MultipleChoice(train=train, dev=dev).read(None).splits["train"]["choices"][1]
['1', '2', '3']
"""

import itertools
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Annotated, Any, Unpack, cast

import numpy as np
from pydantic import Field
from torch import Tensor
from transformers.modeling_outputs import ModelOutput

from distill.core.console import print_notice
from distill.core.contracts import Batch, Constant, Items, Scores
from distill.core.errors import OptionError, UserError
from distill.core.options import check_arguments, show_value
from distill.data.batches import TokenizedExamples
from distill.data.labelled_text import get_labels, is_labelled, leave_out_unlabelled, read_text_column
from distill.data.pool import Unlabelled, UnlabelledTables, fill_pool
from distill.data.problems import show_lines
from distill.data.prose import normalize_text
from distill.data.sources import TableSource, check_columns, missing_columns, text_key
from distill.data.splits import LabelledData, Split, create_data
from distill.edge.decoder import (
    READINGS,
    Answer,
    choose_reading,
    describe_expected,
    join_choices,
    other_reading,
    pair_choices,
    split_choices,
)
from distill.kinds import labelled_rows
from distill.kinds.kind import Encoder, Kind
from distill.kinds.known import LABEL, PROBABILITIES, SCORES, SMALLEST, Found, Key, KnownTable, normalize, spread
from distill.kinds.scoring import Scoring, always
from distill.labelling.forms import ChoiceForm
from distill.losses import HardLabels
from distill.losses.term import scatter_logits
from distill.rows.columns import Table
from distill.rows.formats import is_without_label
from distill.rows.labels import LabelColumn

DESCRIPTIONS = {
    "name": "names of the choices", "text": "texts of the choices", "index": "indices of the choices, counted from 0",
    "number": "numbers of the choices, counted from 1", "letter": "letters of the choices",
}  # fmt: skip
ADVICE = "name yours with task.question=..., task.choices=... and task.answer=..."


def choice_split(
    questions: list[str],
    choices: list[list[str]],
    names: Sequence[Sequence[str] | None],
    contexts: list[str] | None = None,
) -> Split:
    """Returns questions with at least two choices each, whose right ones are not read.

    Args:
        names: of the choices of each question, such as A to D, None where the data has none.
        contexts: the texts that the questions are about, None for data without them.
    """
    columns: dict[str, list[Any]] = {"question": questions}
    columns |= {} if contexts is None else {"context": contexts}
    columns["choices"] = choices
    every = zip(contexts or repeat(""), questions, choices, strict=False)
    text = [" ".join(filter(None, [context, question, *texts])) for context, question, texts in every]
    labels = np.zeros(len(questions), dtype=np.int64)
    further: dict[str, list[Any]] = {"text": text, "names": list(names)}
    return Split({**columns, **further, "labels": labels}, tuple(columns), _create_record, whole="text")


def _list_content(splits: Mapping[str, Split]) -> Iterator[object]:
    return ([name, split.records(), split.labels.tolist()] for name, split in splits.items())


def _create_record(row: Mapping[str, Any]) -> dict[str, str | list[str]]:
    return {name: row[name] for name in ("question", "choices", "context") if name in row}


@dataclass(frozen=True, kw_only=True)
class ChoiceColumns:
    """The columns of questions with choices. Of several names, the first one that a table has is used.

    Args:
        question: the column of the question.
        context: the column of a text that the question is about; empty for data without one.
        choices: one column with the list of all choices, or a column for each choice. A list may be one of texts, one
            of `{"text", "label"}`, or `{"text": [...], "label": [...]}` as the Hub has it.
        answer: the column of the right choice, of which a table has one.
    """

    question: tuple[str, ...]
    choices: tuple[tuple[str, ...], ...]
    answer: tuple[str, ...]
    context: tuple[str, ...] = ()

    @property
    def text(self) -> tuple[str, ...]:
        """All columns of texts that may be read."""
        return (*self.question, *self.context, *(name for names in self.choices for name in names))

    def read(self, source: TableSource, cache_dir: Path) -> tuple[LabelledData, str]:
        """Reads `train`, `dev` and the other splits with answers; returns them and the reading of the answers.

        Raises:
            UserError: if a directory, file, column, text or answer is missing or invalid.
            UnreachableError: if the data is not in the cache and cannot be downloaded.
        """
        found = source.read(cache_dir, partial(self._hold_out_dev, source), partial(is_labelled, names=self.answer))
        tables = {name: self._check(table) for name, table in found.items()}
        splits = {name: self.read_rows(table) for name, table in tables.items()}
        indices, reading = find_answers({name: get_labels(of, self.answer) for name, of in tables.items()}, splits)
        splits = {name: split.with_columns(labels=indices[name]) for name, split in splits.items()}
        return create_data(source, (), splits, _list_content), reading

    def read_rows(self, table: Table) -> Split:
        """Returns the questions and the choices of a table, whose answers are not read.

        Raises:
            UserError: if a column or a text is missing, or an example has fewer than two choices.
        """
        check_columns(table, self._columns(), ADVICE)
        columns = next((names for names in self.choices if set(names) <= set(table.names)), None)
        if columns is None:
            raise missing_columns(table, " or ".join(", ".join(names) for names in self.choices), ADVICE)
        values = _read_lists(table, columns[0]) if len(columns) == 1 else _join_columns(table, columns)
        questions = read_text_column(table, _find(table, self.question), may_be_empty=False)
        contexts = (
            read_text_column(table, _find(table, self.context), may_be_empty=True, optional=True)
            if self.context
            else None
        )
        choices, names = [texts for texts, _ in values], [names for _, names in values]
        return choice_split(questions, choices, names, contexts)

    def add_unlabelled(self, questions: Unlabelled, data: LabelledData) -> LabelledData:
        """Returns the data with the questions of a source that are in none of its splits, each once, as its pool.

        Raises:
            UserError: if the source is missing, cannot be read, lacks a column, or has no new question.
        """
        usual = (self.question[0], *self.context[:1], *self.choices[0])
        tables = UnlabelledTables(questions, usual, self.text, self.answer, "questions with choices")
        return fill_pool(data, tables, map(self.read_rows, tables.read()))

    def _columns(self) -> list[tuple[str, ...]]:
        """Returns the names of each column that a table needs besides those of choices and answers."""
        return [self.question, self.context] if self.context else [self.question]

    def _check(self, table: Table) -> Table:
        """Returns the examples with an answer, of a table that has all columns."""
        check_columns(table, [*self._columns(), self.answer], ADVICE)
        return leave_out_unlabelled(table, self.answer)

    def _hold_out_dev(self, source: TableSource, table: Table) -> dict[str, Table]:
        table = self._check(table)
        questions = self.read_rows(table)
        contexts = questions.columns.get("context", [""] * len(questions))
        rows = zip(contexts, questions["question"], questions["choices"], strict=True)
        texts = [text_key([context, question, *choices]) for context, question, choices in rows]
        return source.hold_out_dev(table, together=[[normalize_text(of) or None for of in contexts], texts])


def _find(table: Table, names: Sequence[str]) -> str:
    return next(name for name in names if name in table.names)


Values = list[tuple[list[str], list[str] | None]]  # The texts of the choices, and their names.


def _read_lists(table: Table, column: str) -> Values:
    """Returns the choices out of a column of lists."""
    values: Values = []
    for row, value in enumerate(table.columns[column]):
        place = f"{table.place(row)}: column {column}"
        if isinstance(value, str):
            raise UserError(
                f"{place} is {reprlib.repr(value)}, expected a list of choices: columns of single choices are "
                "task.choices=[FIRST,SECOND,...]"
            )
        texts, names = split_choices(value)
        _check_choices(texts, f"{place} is {reprlib.repr(value)}", place)
        if names is not None and (len(set(map(str, names))) < len(texts) or len(names) != len(texts)):
            raise UserError(f"{place} names its choices {reprlib.repr(names)}, expected {len(texts)} different names")
        values.append((cast(list[str], texts), None if names is None else list(map(str, names))))
    return values


def _join_columns(table: Table, columns: Sequence[str]) -> Values:
    """Returns the choices out of one column for each."""
    values: Values = []
    for row, entries in enumerate(zip(*(table.columns[name] for name in columns), strict=True)):
        texts = join_choices(entries)
        place = f"{table.place(row)}: columns {', '.join(columns)}"
        _check_choices(texts, f"{place} hold {reprlib.repr(texts)}", place)
        values.append((cast(list[str], texts), None))
    return values


def _check_choices(texts: Sequence[object], found: str, place: str) -> None:
    """Raises UserError for fewer than two choices, and for one that is no text."""
    if len(texts) < 2:
        number = "no choices" if not texts else "one choice"
        raise UserError(f"{found}, {number}, expected at least two")
    for position, text in enumerate(texts, 1):
        if not isinstance(text, str) or not text.strip():
            raise UserError(f"{place}: choice {position} is {reprlib.repr(text)}, expected text")


def find_answers(answers: Mapping[str, LabelColumn], splits: Mapping[str, Split]) -> tuple[dict[str, np.ndarray], str]:
    """Returns the index of the right choice of every example, by split, and the name of the reading.

    An answer is the name of a choice, its text, its index from 0, its number from 1 or its letter. All answers of all
    splits are read in the same way.

    Raises:
        UserError: for an answer that is missing, or that is none of the choices.
    """
    empty = {
        split: [row for row, value in enumerate(column.values) if is_without_label(value)]
        for split, column in answers.items()
    }
    if any(empty.values()):
        counts = [
            f"{column.source}: {len(rows):,} of {len(column.values):,} rows ({show_lines(rows, column.lines)})"
            for column, rows in ((answers[split], rows) for split, rows in empty.items())
            if rows
        ]
        raise UserError(f"answers are empty, expected one of the choices: remove these rows: {'; '.join(counts)}")
    every = {
        name: list(map(Answer, answers[name].values, split["choices"], split["names"]))
        for name, split in splits.items()
    }
    reading = choose_reading(chain.from_iterable(every.values()))
    found = {split: [READINGS[reading](answer) for answer in of_split] for split, of_split in every.items()}
    for split, indices in found.items():
        if None in indices:
            row = indices.index(None)
            answer = every[split][row]
            raise UserError(
                f"{answers[split].place(row)}: answer {reprlib.repr(answer.value)} is none of its "
                f"{len(answer.choices)} choices, expected {describe_expected(answer, reading)}"
            )
    other = other_reading(chain.from_iterable(every.values()), reading)
    if reading == "number" or other is not None:
        instead = "" if other is None else f", and not as {DESCRIPTIONS[other]}, which they could be too"
        print_notice(f"the answers are read as {DESCRIPTIONS[reading]}{instead}")
    return {split: np.array(indices, dtype=np.int64) for split, indices in found.items()}, reading


Choices = Annotated[
    str | int | Sequence[str | int | Sequence[str | int]],
    Field(description="the column of the lists of choices, or a list of the columns of the single choices"),
]


@dataclass(frozen=True)
class ChoiceScores(Scoring):
    """The choices of a model, and the share that is right.

    Args:
        choices: the usual number of choices of an example.
        reading: of the answers; None before the data is read.
    """

    names = ("accuracy",)
    can_abstain = True

    choices: int | None = None
    reading: str | None = None

    def fit_decoder(self, scores: Scores) -> dict[str, Any]:
        """Returns the reading of the answers, with which a bundle reads those of a labelled file."""
        return {"answers": self.reading}

    def metrics(self, scores: Scores) -> dict[str, float]:
        return {"accuracy": float((self.predictions(scores) == scores.labels).mean())}

    def example_metric(self, scores: Scores) -> np.ndarray | None:
        return np.asarray(self.predictions(scores) == scores.labels, dtype=np.float64)

    def tabulate(self, scores: Scores, splits: LabelledData, *, examples: int) -> dict[str, list[Any]]:
        """The indices of the right and of the predicted choice."""
        return {
            "label": scores.labels.tolist(),
            "prediction": self.predictions(scores).tolist(),
            "probability": self.confidences(scores).tolist(),
        }

    def constants(self, scores: Scores) -> Sequence[Constant]:
        """The most frequent position of the right choice."""
        position = int(np.bincount(scores.labels).argmax())
        return [always(f"always choice {position + 1}", position)]

    def describe(self, splits: LabelledData) -> dict[str, Any]:
        return {
            "labels": [],
            "answer": "choices",
            "choices": self.choices,
            "pipeline_tag": "multiple-choice",
            "prediction": "Takes one of the choices of a question.",
            "example": r"$'a question\tone choice\tanother choice'",
        }

    def summary(self, splits: LabelledData) -> str:
        every = [len(choices) for split in splits.splits.values() for choices in split["choices"]]
        numbers = f"{min(every)}" if min(every) == max(every) else f"{min(every)} to {max(every)}"
        return f"{numbers} choices"


class MultipleChoice(Kind):
    """Questions with choices, of which one is right. Examples may have different numbers of choices.

    A model reads every choice with its question as two texts, or with a context, the context and both of them. Models
    are of `AutoModelForMultipleChoice`, and give each choice one logit.

    Args:
        question: the column of the question; of several names the first one that is there.
        choices: the column that holds the list of choices, or the columns of the single choices, of which the last
            ones may be empty. Of several lists of columns the first one whose columns are there.
        answer: the column of the right choice; of several names the one that is there. An answer is the name
            of a choice where the data names them, its index from 0, its number from 1, its letter or its text. All
            answers are read in the same way.
        context: the column of a text that the question is about; None for data without one.
        max_length: tokens that a choice with its question is cut to, the longer text first.
        name: names the task in records and directories.
        options: those of `labelled_rows.DataOptions`, `unlabelled` with questions and their choices. Of a single file
            or table, dev is drawn without regard to the answers.

    Raises:
        OptionError: for an option that got a value it cannot take.
        UserError: for data of a type that cannot be read.
    """

    kinds = ("multiple_choice",)
    auto_class = "AutoModelForMultipleChoice"
    decoder = "choices"
    pair = can_abstain = True
    answer_form = ChoiceForm

    @check_arguments
    def __init__(
        self,
        *,
        question: labelled_rows.Columns = "question",
        choices: Choices = "choices",
        answer: labelled_rows.Columns = "answer",
        context: labelled_rows.Columns | None = None,
        name: str = "multiple_choice",
        max_length: labelled_rows.MaxLength = 128,
        **options: Unpack[labelled_rows.DataOptions],
    ) -> None:
        self.columns = ChoiceColumns(
            question=labelled_rows.column_names(question), choices=_list_columns(choices),
            answer=labelled_rows.column_names(answer),
            context=() if context is None else labelled_rows.column_names(context),
        )  # fmt: skip
        self.source = labelled_rows.table_source(
            name=name, text=self.columns.text, label=self.columns.answer, options=options
        )
        pool = labelled_rows.pool_source(options, lambda questions: partial(self.columns.add_unlabelled, questions))
        super().__init__(name, max_length, builtin=options.get("builtin", False), pool=pool)

    def read(self, cache_dir: Path) -> LabelledData:
        """Reads every split, and determines the usual number of choices and how their answers are read.

        Raises:
            UserError: for a directory, file, column, text or answer that is missing or unusable.
        """
        labelled, reading = self.columns.read(self.source, cache_dir)
        data = self.pool.add_to(labelled)
        choices = int(np.bincount(list(map(len, data.splits["train"]["choices"]))).argmax())
        terms = {"hard": HardLabels()}
        return replace(data, scoring=ChoiceScores(choices, reading), terms=terms, choices=choices)

    @property
    def known_columns(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.columns.question[0], *self.columns.choices[0])

    def read_known(self, known: KnownTable, data: LabelledData) -> Found:
        """Yields the logit of each choice: of scores or probabilities of all, or of the number or text of one."""
        split = self.columns.read_rows(known.table)
        for row, (key, choices) in enumerate(zip(self.known_keys(split), split["choices"], strict=True)):
            name = next((name for name in (SCORES, PROBABILITIES) if known.has(name)), LABEL)
            if name == LABEL:
                label = known.value(row, LABEL)
                numbers = [*choices, *map(str, range(len(choices)))]
                if str(label) not in numbers:
                    raise known.fail(
                        row, f"the label {label!r} is no choice, expected one of them or its number from 0"
                    )
                logits = spread([numbers.index(str(label)) % len(choices)], len(choices), known.trust)
            else:
                logits = known.numbers(row, name, "a number for each choice")
                if len(logits) != len(choices):
                    raise known.fail(row, f"{name} has {len(logits)} entries for {len(choices)} choices")
                logits = logits if name == SCORES else np.log(np.maximum(logits, SMALLEST))
            for choice, logit in zip(key, logits, strict=True):
                yield row, choice, np.array([[logit]])

    def known_keys(self, split: Split) -> list[list[Key]]:
        contexts = split.columns.get("context") or [""] * len(split)
        rows = zip(zip(split["question"], contexts, strict=True), split["choices"], strict=True)
        return [[normalize((*map(str, texts), choice)) for choice in choices] for texts, choices in rows]

    def join_known(self, found: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(found).T

    def encode_split(self, encoder: Encoder, data: LabelledData, name: str, split: Split) -> TokenizedExamples:
        """Tokenizes every choice with its question. The logits of all splits are as wide as the most choices."""
        every: list[Split] = [*data.splits.values(), *([data.pool.rows] if len(data.pool) else [])]
        most = max(len(choices) for of_split in every for choices in of_split["choices"])
        contexts = split.columns.get("context", itertools.repeat(None))
        rows = zip(split["question"], contexts, split["choices"], strict=False)
        pairs = [pair for row in rows for pair in pair_choices(*row)]
        first, second = ([pair[side] for pair in pairs] for side in (0, 1))
        counts = list(map(len, split["choices"]))
        return encoder.encode_lists(
            first, second, counts, most, classes_per_item=float(np.mean(counts)), labels=split.labels
        )  # fmt: skip

    def select_logits(self, output: ModelOutput, batch: Batch, items: Items) -> Tensor:
        return scatter_logits(output.logits, batch["valid"])  # [B, K]


def _list_columns(choices: str | int | Sequence[str | int | Sequence[str | int]]) -> tuple[tuple[str, ...], ...]:
    """Returns the lists of columns that `choices` names."""
    if isinstance(choices, str | int):
        return ((str(choices),),)
    lists = [labelled_rows.column_names(entry) for entry in choices if not isinstance(entry, str | int)]
    if not choices or (lists and len(lists) < len(choices)) or not all(lists):
        raise OptionError("choices", show_value(choices), "names of columns, or lists of them, of which one is taken")
    return tuple(lists) or (tuple(map(str, choices)),)
