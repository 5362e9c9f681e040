"""Previews of data sets: tables, CoNLL, SQuAD and lines of text, with labels, lengths and problems."""

import itertools
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from distill.core.errors import UserError
from distill.data.check import profile_tables
from distill.data.labelled_text import RowRules, ignore_notice
from distill.data.problems import Problem, find_unreadable, refusal
from distill.data.prose import find_scripts, is_english, measure_lengths, sample_texts
from distill.data.sources import read_file
from distill.rows.columns import parse_conll, read_columns
from distill.rows.formats import Skipped, iterate_lines

FIRST = 10  # Rows that are shown.
LARGEST = 64 * 2**20  # Bytes of a file that is looked through as a whole; of a larger one its first rows.
_SHOWN = 300  # Characters of a value that are shown.
_MOST_LABELS = 200  # Labels whose rows are shown.
_MOST_COLUMNS = 200  # Columns that are shown.
_MOST_PROBLEMS = 50
_LARGEST_WHOLE = 2**53  # From which on JavaScript rounds whole numbers.

Preview = dict[str, Any]


def create_preview(
    splits: Mapping[str, int],
    *,
    kinds: Mapping[str, str] | None = None,
    columns: Mapping[str, Sequence[object]] | None = None,
    label_counts: Mapping[str, Mapping[str, int]] | None = None,
    measured: Collection[str] = (),
    problems: Iterable[Problem] = (),
    **guess: object,
) -> Preview:
    """Returns a preview, in which values and lists are short.

    Args:
        splits: number of rows of each split; of a single file that of `data`.
        kinds: of each column.
        columns: the values of all rows.
        label_counts: number of rows of each label by column.
        measured: columns of texts whose lengths are measured.
        guess: the task and its columns, where the names and values of the columns tell them.
    """
    columns = columns or {}
    texts = {name: [value for value in columns[name] if isinstance(value, str)] for name in measured}
    return {
        "splits": dict(splits),
        "columns": [name[:_SHOWN] for name in kinds or {}][:_MOST_COLUMNS],
        "kinds": {name[:_SHOWN]: kind for name, kind in list((kinds or {}).items())[:_MOST_COLUMNS]},
        "first_rows": [
            {name[:_SHOWN]: shorten(value) for name, value in list(zip(columns, row, strict=True))[:_MOST_COLUMNS]}
            for row in itertools.islice(zip(*columns.values(), strict=True), FIRST)
        ],
        "label_counts": {
            name[:_SHOWN]: {label[:_SHOWN]: rows for label, rows in list(counts.items())[:_MOST_LABELS]}
            for name, counts in (label_counts or {}).items()
        },
        "lengths": {name[:_SHOWN]: _measure(texts[name]) for name in measured if texts[name]},
        "problems": [str(problem) for problem in problems][:_MOST_PROBLEMS],
        **guess,
    }


def shorten(value: object) -> object:
    """Returns a value of JSON; long ones, other types and numbers that JSON lacks become a short text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < _LARGEST_WHOLE else str(value)[:_SHOWN]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _measure(texts: Sequence[str]) -> dict[str, int]:
    """Returns the lengths of texts in words, or in characters for scripts without spaces."""
    sample = sample_texts(texts)
    script = next(iter(find_scripts(sample)), "")
    lengths = measure_lengths([texts], script=script, is_english=is_english(sample))
    return {"median": lengths.median, "p95": lengths.p95, "longest": lengths.longest}


# The beginning of problems that rows of tags, pairs of texts or choices all have.
_OF_ONE_TASK = "no column looks like"


def preview_rows(paths: Mapping[str, Sequence[Path]]) -> Preview:
    """Returns the preview of the file of each split or of its parts, train first, or of a single one called `data`.

    Raises:
        UserError: for a file that cannot be read.
    """
    tables = {split: read_columns(*of_split, most=LARGEST) for split, of_split in paths.items()}
    profile = profile_tables(tables, RowRules())
    problems = [problem for problem in profile.problems if not problem.summary.startswith(_OF_ONE_TASK)]
    for table in tables.values():
        if table.left_out:
            rows = len(table)
            summary = f"only the first {rows:,} of {rows + table.left_out:,} rows are looked through"
            problems.append(Problem(summary, "a job reads all of them"))
    chosen, first = profile.chosen, next(iter(tables.values()))
    counts = {label: sum(rows.values()) for label, rows in profile.classes.items()}
    return create_preview(
        {split: len(table) + table.left_out for split, table in tables.items()},
        kinds={column.name: column.kind for column in profile.columns},
        columns=first.columns,
        label_counts={", ".join(chosen.label): counts} if counts else {},
        measured=[column.name for column in profile.columns if column.kind == "text" or column.name in chosen.text],
        problems=problems,
        task=chosen.task,
        text=chosen.text,
        label=chosen.label,
    )


_SAMPLED = 100_000  # Lines whose lengths are measured.
_ANSWERED, _UNANSWERED = "with an answer", "without an answer"


def preview_text(path: Path) -> Preview:
    """Returns the preview of a file with a text on each line.

    Raises:
        UserError: for a file that is empty or no UTF-8.
    """
    lines = (line.strip() for line in iterate_lines(path))
    texts = filter(None, lines)
    sample = list(itertools.islice(texts, _SAMPLED))
    if not sample:
        raise UserError(f"{path} is empty, expected a text on each line")
    rows = len(sample) + sum(1 for _ in texts)
    return create_preview({"data": rows}, kinds={"text": "text"}, columns={"text": sample}, measured=("text",))


def preview_conll(path: Path) -> Preview:
    """Returns the preview of a file with a word and its tag on each line and a blank line after each sentence.

    Raises:
        UserError: for a file without a word, or no UTF-8.
    """
    skipped: Skipped = {}
    file = parse_conll(path, ignore_notice, skipped)
    problems = find_unreadable(str(path), skipped)
    tags = Counter[str]()
    try:
        tags.update(itertools.chain.from_iterable(file.read(None, -1).tags))
    except UserError as error:
        problems.append(refusal(error))
    columns = {
        str(column): [" ".join(line.fields[column] for line in sentence) for sentence in file.sentences]
        for column in range(file.width)
    }
    last = str(file.width - 1)
    return create_preview(
        {"data": len(file.sentences)},
        kinds={column: "class" if column == last else "text" for column in columns},
        columns=columns,
        label_counts={last: dict(tags.most_common())} if tags else {},
        measured=("0",),
        problems=problems,
        task="token_classification",
    )


def preview_squad(path: Path) -> Preview:
    """Returns the preview of questions about contexts in the JSON of SQuAD.

    Raises:
        UserError: for a file of another form.
    """
    from distill.data.questions import COLUMNS, create_split

    if path.stat().st_size > LARGEST:
        raise UserError(f"{path} has more than {LARGEST:,} bytes of JSON: upload it as JSONL or Parquet")
    table = read_file(path, COLUMNS)
    problems = []
    try:
        create_split(table)
    except UserError as error:
        problems.append(refusal(error))
    columns = {name: table.columns.get(name, [None] * len(table)) for name in COLUMNS}
    columns["answers"] = answers = list(map(_show_answers, columns["answers"]))
    counts = Counter(_ANSWERED if answer else _UNANSWERED for answer in answers)
    return create_preview(
        {"data": len(table)},
        kinds=dict.fromkeys(columns, "text"),
        columns=columns,
        label_counts={"answers": {label: counts[label] for label in (_ANSWERED, _UNANSWERED) if counts[label]}},
        measured=("question", "context"),
        problems=problems,
        task="question_answering",
    )


def _show_answers(value: object) -> str:
    """Returns the texts of a question's answers, nothing for what are none."""
    answers = value if isinstance(value, list) else ()
    return " | ".join(str(answer.get("text")) for answer in answers if isinstance(answer, dict))
