"""Questions about contexts with their answers, from SQuAD's JSON or rows in the layout of the Hub.

A row has `question`, `context` and `answers`, and may have an `id` and the `title` of what its context is a part of.
The answers are `{"text": [...], "answer_start": [...]}` or a list of `{"text": ..., "answer_start": ...}`, empty for a
question that the context does not answer.
"""

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from distill.console import print_notice
from distill.contracts import IGNORED
from distill.data.columns import read_text_column
from distill.data.held_out import text_keys
from distill.data.sources import TableSource, check_columns
from distill.data.tables import LabelledData, Split, create_data
from distill.errors import UserError
from distill.readers.columns import Table

COLUMNS = ("question", "context", "answers")
TITLE = "title"  # A column of train alone.
OPTIONAL_COLUMNS = ("id", "is_impossible", TITLE)
ADVICE = "a question needs the columns question, context and answers, and may have an id"
EXPECTED = 'expected {"text": [...], "answer_start": [...]}, both empty for a question without an answer'


class Answer(NamedTuple):
    """A correct answer: a text, and the code point of the context at which it starts."""

    text: str
    start: int


def question_split(questions: list[str], contexts: list[str], answers: list[tuple[Answer, ...]] | None = None) -> Split:
    """Returns questions, their contexts, and the correct answers to each: none if the context does not answer it.

    The questions of a pool have no column of answers at all.
    """
    columns: dict[str, list[Any]] = {"question": questions, "context": contexts}
    return Split(columns | ({} if answers is None else {"answers": answers}), tuple(columns), _create_record)


def _create_record(row: Mapping[str, Any]) -> dict[str, str]:
    return {"question": row["question"], "context": row["context"]}


def find_spans(questions: Split) -> np.ndarray:
    """Returns first and last (exclusive) character of the first answer without white space around it, `[N, 2]`.

    They are -1 for a question without an answer, and `IGNORED` for those of a pool.
    """
    if "answers" not in questions.columns:
        return np.full((len(questions), 2), IGNORED)
    return np.array([_strip(answers[0]) if answers else (-1, -1) for answers in questions["answers"]], dtype=np.int64)


def _strip(answer: Answer) -> tuple[int, int]:
    start = answer.start + len(answer.text) - len(answer.text.lstrip())
    return start, start + len(answer.text.strip())


def read_questions(
    source: TableSource, cache_dir: Path, labels: tuple[str, ...], options: Sequence[object]
) -> LabelledData:
    """Reads `train`, `dev` and the other splits with answers.

    Args:
        labels: names of the outputs of a model.
        options: what the digest depends on besides the content.

    Raises:
        UserError: if a file or column is missing, for an empty text, and for an answer that is not in its context.
        UnreachableError: if the data is not in the cache and cannot be downloaded.
    """
    tables = source.read(cache_dir, partial(_hold_out_contexts, source), _has_answers)
    splits = {name: _read_questions(table) for name, table in tables.items()}
    if TITLE in tables["train"].columns:
        titles = [None if title is None else str(title) for title in tables["train"].columns[TITLE]]
        splits["train"] = splits["train"].with_columns(**{TITLE: titles})
    data = create_data(source, labels, splits, lambda splits: [options, *_list_content(splits)])
    return replace(data, needs_all_texts=True)


def _check_questions(table: Table) -> None:
    """Raises UserError for a table that lacks a column of a question, or has no rows."""
    check_columns(table, [(name,) for name in COLUMNS], ADVICE)


def _hold_out_contexts(source: TableSource, table: Table) -> dict[str, Table]:
    """Splits a table into train and dev, which have no context in common, and no article if there are enough."""
    _check_questions(table)
    contexts = list(map(str, table.columns["context"]))
    titles = [str(title).strip() or None if title is not None else None for title in table.columns.get(TITLE, ())]
    together = [text_keys(contexts), titles] if len(set(titles)) * source.dev_fraction >= 1 else [text_keys(contexts)]
    return source.hold_out_dev(table, groups=contexts, group="context", together=together)


def _read_questions(table: Table) -> Split:
    """Converts a table with the columns of a question.

    Raises:
        UserError: for an empty text, answers of another form, and an answer that is not in its context.
    """
    _check_questions(table)
    questions, contexts = (read_text_column(table, name, may_be_empty=False) for name in ("question", "context"))
    impossible = table.columns.get("is_impossible", [None] * len(questions))
    answers = []
    for row, (value, context) in enumerate(zip(table.columns["answers"], contexts, strict=True)):
        try:
            answers.append(_read_answers(value, context))
        except ValueError as error:
            raise UserError(f"{_name(table, row)}: {error}") from error
        if impossible[row] is True and answers[-1]:
            raise UserError(f"{_name(table, row)} has is_impossible true and answers, expected one of them")
    return question_split(questions, contexts, answers)


def _has_answers(table: Table) -> bool:
    """Returns whether a split has answers at all: those of a test split may be hidden, which a notice says."""
    values = table.columns.get("answers", ())
    found = any(bool(value) and value != {"text": [], "answer_start": []} for value in values)
    if not found:
        print_notice(f"{table.source} has no answers and is left out")
    return found


def _list_content(splits: Mapping[str, Split]) -> Iterator[object]:
    """Yields the content of the splits, of which a digest is computed."""
    for name, split in splits.items():
        yield [name, split["question"], split["answers"]]
        yield from (context.encode() + b"\0" for context in split["context"])


def _name(table: Table, row: int) -> str:
    """Names a question in messages."""
    ids = table.columns.get("id")
    return table.place(row) + (f" (id {ids[row]})" if ids and ids[row] is not None else "")


def _read_answers(value: object, context: str) -> tuple[Answer, ...]:
    """Returns the answers of a question; raises ValueError with the reason in words."""
    pairs: list[tuple[object, object]]
    if isinstance(value, Mapping):
        texts, starts = value.get("text"), value.get("answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise ValueError(f"the answers are {reprlib.repr(value)}, {EXPECTED}")
        pairs = list(zip(texts, starts, strict=True))
    elif isinstance(value, list) and all(isinstance(answer, Mapping) for answer in value):
        pairs = [(answer.get("text"), answer.get("answer_start")) for answer in value]
    else:
        raise ValueError(f"the answers are {reprlib.repr(value)}, {EXPECTED}")
    return tuple(_read_answer(text, start, context) for text, start in pairs)


def _read_answer(text: object, start: object, context: str) -> Answer:
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"an answer is {reprlib.repr(text)}, expected text")
    if not isinstance(start, int) or isinstance(start, bool) or start < 0:
        raise ValueError(f"the answer {reprlib.repr(text)} has answer_start {start!r}, expected a whole number")
    found = context[start : start + len(text)]
    if found != text:
        place = context.find(text)
        known = f"it is at {place}" if place >= 0 else "it is nowhere in the context"
        raise ValueError(
            f"the answer {reprlib.repr(text)} is not in its context at answer_start {start}, where the context has "
            f"{reprlib.repr(found)}: {known}; answer_start counts code points"
        )
    return Answer(text, start)
