"""Questions about contexts: rows with answers, windows of tokens, and pairs that only the teacher answers.

Questions about contexts with their answers, from SQuAD's JSON or rows in the layout of the Hub. A row has `question`,
`context` and `answers`, and may have an `id` and the `title` of what its context is a part of. The answers are
`{"text": [...], "answer_start": [...]}` or a list of `{"text": ..., "answer_start": ...}`, empty for a question that
the context does not answer.
"""

import itertools
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from distill.core.console import print_notice
from distill.core.contracts import IGNORED, TaskInfo
from distill.core.errors import UserError
from distill.core.options import check_arguments
from distill.data import tokenization
from distill.data.augmentation import Augmentation, Copy
from distill.data.labelled_text import read_text_column
from distill.data.sources import TableSource, check_columns, text_keys
from distill.data.splits import LabelledData, Split, compute_digest, create_data
from distill.data.tokenization import Tokens
from distill.edge.answering import NO_ANSWER, Window, cut_windows
from distill.edge.decoder import TooLongError, chunk_texts
from distill.rows.columns import Table

if TYPE_CHECKING:
    import pyarrow
    from transformers import PreTrainedTokenizerBase


COLUMNS = ("question", "context", "answers")
TITLE = "title"  # A column of train alone.
OPTIONAL_COLUMNS = ("id", "is_impossible", TITLE)
ADVICE = "a question needs the columns question, context and answers, and may have an id"
EXPECTED = 'expected {"text": [...], "answer_start": [...]}, both empty for a question without an answer'


class AnswerSpan(NamedTuple):
    """A correct answer: a text, and the code point of the context at which it starts."""

    text: str
    start: int


def question_split(
    questions: list[str], contexts: list[str], answers: list[tuple[AnswerSpan, ...]] | None = None
) -> Split:
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


def _strip(answer: AnswerSpan) -> tuple[int, int]:
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
    splits = {name: create_split(table) for name, table in tables.items()}
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


def create_split(table: Table) -> Split:
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


def _read_answers(value: object, context: str) -> tuple[AnswerSpan, ...]:
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


def _read_answer(text: object, start: object, context: str) -> AnswerSpan:
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
    return AnswerSpan(text, start)


CHARACTER_COLUMNS = ("start_characters", "end_characters")


def tokenize_windows(
    split: Split,
    tokenizer: "PreTrainedTokenizerBase",
    *,
    max_length: int,
    doc_stride: int,
    cache_dir: Path | None,
    name: str,
) -> Tokens:
    """Returns the windows of the questions and contexts of a split, cached or computed.

    The columns are `input_ids`, `token_type_ids` if the model reads them, and `start_characters` and `end_characters`:
    the characters of the context that a token stands for, or `NO_ANSWER` and `NO_CLASS`, as in `Window`.

    Args:
        doc_stride: tokens of the context that neighbouring windows share.
        name: of the split in messages.

    Raises:
        UserError: for a question that is too long for the windows.
    """
    digest = tokenization.compute_digest(split, tokenizer, max_length, doc_stride=doc_stride)
    create = partial(_create_table, split, tokenizer, max_length=max_length, doc_stride=doc_stride, name=name)
    return tokenization.cached_tokens(digest, create, cache_dir)


def _create_table(
    split: Split, tokenizer: "PreTrainedTokenizerBase", *, max_length: int, doc_stride: int, name: str
) -> "pyarrow.Table":
    backend = tokenization.copy_backend(tokenizer)
    texts = list(zip(split.texts, split.pairs or (), strict=True))
    chunks = chunk_texts(texts, lambda pair: sum(map(len, pair)))
    windows: list[Window] = []
    rows: list[int] = []
    for row, encoding in enumerate(itertools.chain.from_iterable(map(backend.encode_batch, chunks))):
        try:
            cut = cut_windows(encoding, max_length=max_length, doc_stride=doc_stride)
        except ValueError as error:
            is_long = isinstance(error, TooLongError)
            advice = ": shorten it, raise task.max_length, or lower task.doc_stride" if is_long else ""
            raise UserError(f"{name}, example {row + 1}: {error}{advice}") from error
        windows += cut
        rows += [row] * len(cut)
    values = {
        "input_ids": [window.ids for window in windows],
        "token_type_ids": [window.type_ids for window in windows],
        **{column: [window.characters[side] for window in windows] for side, column in enumerate(CHARACTER_COLUMNS)},
    }
    if "token_type_ids" not in tokenizer.model_input_names:
        del values["token_type_ids"]
    return tokenization.create_table(values, rows=np.array(rows))


def label_windows(tokens: Tokens, spans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first and the last token of the answer in each window, both `[windows]`.

    They are 0, the token that stands for no answer, in a window without the whole answer, and `IGNORED` in a window of
    a question without a label.

    Args:
        spans: `[N, 2]`, first and last (exclusive) character of the answer to each question, `NO_ANSWER` for none and
            `IGNORED` for a question without a label.
    """
    assert tokens.rows is not None
    rows, number = tokens.rows, len(tokens)
    starts, ends = (np.asarray(tokens.columns[name], dtype=np.int64) for name in CHARACTER_COLUMNS)
    context = np.flatnonzero(starts > NO_ANSWER)
    window = np.repeat(np.arange(number), np.diff(tokens.offsets))[context]
    starts, ends = starts[context], ends[context]
    # The characters of all windows in one ascending order, because those of a window are below `step`.
    step = max(int(ends.max()), int(spans.max())) + 1
    base = np.arange(number) * step
    first_character, last_character = spans[rows].T
    first = np.searchsorted(ends + window * step, base + np.maximum(first_character, 0), side="right")
    last = np.searchsorted(starts + window * step, base + np.maximum(last_character, 0), side="left") - 1
    lowest, highest = (np.searchsorted(window, np.arange(number), side=side) for side in ("left", "right"))
    new_row = np.diff(rows, prepend=-1) != 0
    ends_row = np.append(new_row[1:], True)
    holds = (
        (first_character >= 0) & (lowest <= first) & (first <= last) & (last < highest)
        & (new_row | (starts[lowest] <= first_character))
        & (ends_row | (ends[highest - 1] >= last_character))
    )  # fmt: skip
    labels = []
    for token in (first, last):
        position = context[np.minimum(token, len(context) - 1)] - tokens.offsets[:-1]
        labels.append(np.where(first_character == IGNORED, IGNORED, np.where(holds, position, 0)))
    return labels[0], labels[1]


class QuestionAugmentation(Augmentation):
    """Asks the questions of train of other contexts: those of the same title, such as the paragraphs of one article.

    Such a context is about the same things and rarely has the answer. The teacher says where it would be, and how sure
    it is that there is none. Each copy has one of the other contexts of its title, drawn with the same probability. The
    question of a title with one context has none.

    Args:
        copies: of each training question.
        seed: of all random choices.

    Raises:
        OptionError: for an option that got a value it cannot take.
    """

    name, rows = "questions", "questions about contexts"

    @check_arguments
    def __init__(self, *, copies: PositiveInt = 2, seed: NonNegativeInt = 0) -> None:
        self.copies, self.seed = copies, seed

    def fits(self, task: TaskInfo) -> bool:
        return task.has_contexts

    def key(self, data: LabelledData) -> list[object]:
        return [self.options(), compute_digest([self._titles(data)])]

    def prepare(self, data: LabelledData, mask_token: str | None, device: str) -> Copy:
        """Returns the function that makes the copies; the mask token and the device are not read.

        Raises:
            UserError: for questions without titles.
        """
        train, titles = data.splits["train"], self._titles(data)
        contexts: dict[str | None, dict[str, int]] = {}  # The number of each context of a title.
        for title, context in zip(titles, train["context"], strict=True):
            of_title = contexts.setdefault(title, {})
            of_title.setdefault(context, len(of_title))
        listed = {title: list(numbers) for title, numbers in contexts.items()}

        def copy(row: int, number: int, random: np.random.Generator) -> tuple[str, ...]:
            title, context = titles[row], train["context"][row]
            others = len(listed[title]) - 1
            if title is not None and others:
                chosen = int(random.integers(others))
                context = listed[title][chosen + (chosen >= contexts[title][context])]
            return train["question"][row], context

        return copy

    def _titles(self, data: LabelledData) -> list[str | None]:
        """Returns the title of each training question, None for one without."""
        titles: list[str | None] = data.splits["train"].columns.get(TITLE, [])  # type: ignore[assignment]
        if not any(title is not None for title in titles):
            raise UserError(
                "augment=questions needs the titles of the contexts of train, by which it knows those of one article: "
                "give SQuAD's JSON with a title for each article, or rows with the column title"
            )
        return titles
