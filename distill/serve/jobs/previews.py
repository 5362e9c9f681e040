"""Previews of data sets: tables, CoNLL, SQuAD and lines of text, with labels, lengths and problems."""

import csv
import itertools
import json
import math
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from distill.core.errors import UserError, first_line
from distill.data.check import profile_files
from distill.data.problems import Problem, show_lines
from distill.data.prose import find_scripts, is_like_english, measure_lengths, sample_texts
from distill.rows.columns import read_columns
from distill.rows.formats import iterate_lines, open_parquet, read_dialect, reading_errors

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
    first_rows: Iterable[Mapping[str, object]] = (),
    label_counts: Mapping[str, Mapping[str, int]] | None = None,
    texts: Mapping[str, Sequence[str]] | None = None,
    problems: Iterable[Problem] = (),
    **guess: object,
) -> Preview:
    """Returns a preview, in which values and lists are short.

    Args:
        splits: number of rows of each split; of a single file that of `data`.
        kinds: of each column.
        label_counts: number of rows of each label by column.
        texts: of each column whose lengths are measured.
        guess: the task and its columns, where the names and values of the columns tell them.
    """
    return {
        "splits": dict(splits),
        "columns": [name[:_SHOWN] for name in kinds or {}][:_MOST_COLUMNS],
        "kinds": {name[:_SHOWN]: kind for name, kind in list((kinds or {}).items())[:_MOST_COLUMNS]},
        "first_rows": [
            {name[:_SHOWN]: shorten(value) for name, value in list(row.items())[:_MOST_COLUMNS]} for row in first_rows
        ],
        "label_counts": {
            name[:_SHOWN]: {label[:_SHOWN]: rows for label, rows in list(counts.items())[:_MOST_LABELS]}
            for name, counts in (label_counts or {}).items()
        },
        "lengths": {name[:_SHOWN]: _measure(values) for name, values in (texts or {}).items() if values},
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
    lengths = measure_lengths([texts], script=script, is_english=is_like_english(sample))
    return {"median": lengths.median, "p95": lengths.p95, "longest": lengths.longest}


_PARQUET_ROWS = 50_000  # Rows of a Parquet file that are looked through, whose size tells nothing of them.
_OF_ONE_TASK = (
    "no column looks like"  # The beginning of problems that rows of tags, pairs of texts or choices all have.
)


class _Sample(NamedTuple):
    """A file, or the first rows of a large one with the number of all."""

    path: Path
    rows: int | None = None


def preview_rows(paths: Mapping[str, Path]) -> Preview:
    """Returns the preview of the file of each split, train first, or of a single one under the name `data`.

    Raises:
        UserError: for a file that cannot be read.
    """
    with tempfile.TemporaryDirectory(dir=next(iter(paths.values())).parent, prefix=".") as temporary:
        try:
            samples = {split: _sample(path, Path(temporary, path.name)) for split, path in paths.items()}
            profile = profile_files({split: (sample.path,) for split, sample in samples.items()})
            table = read_columns(next(iter(samples.values())).path)
        except UserError as error:
            raise UserError(str(error).replace(f"{temporary}/", "")) from error
    problems = [
        replace(problem, summary=problem.summary.replace(f"{temporary}/", ""))
        for problem in profile.problems
        if not problem.summary.startswith(_OF_ONE_TASK)
    ]
    for split, sample in samples.items():
        if sample.rows is not None:
            summary = f"only the first {profile.rows[split]:,} of {sample.rows:,} rows are looked through"
            problems.append(Problem(summary, "a job reads all of them"))
    chosen = profile.chosen
    counts = {label: sum(rows.values()) for label, rows in profile.classes.items()}
    return create_preview(
        {split: profile.rows[split] if sample.rows is None else sample.rows for split, sample in samples.items()},
        kinds={column.name: column.kind for column in profile.columns},
        first_rows=[
            {name: values[row] for name, values in table.columns.items()} for row in range(min(FIRST, len(table)))
        ],
        label_counts={", ".join(chosen.label): counts} if counts else {},
        texts={
            column.name: [value for value in table.columns[column.name] if isinstance(value, str)]
            for column in profile.columns
            if column.kind == "text" or column.name in chosen.text
        },
        problems=problems,
        task=chosen.task,
        text=chosen.text,
        label=chosen.label,
    )


def _sample(path: Path, target: Path) -> _Sample:
    """Returns a file; of a large one `target`, to which the first rows are copied."""
    with reading_errors(path):
        if path.suffix == ".parquet":
            return _sample_parquet(path, target)
        if path.stat().st_size <= LARGEST:
            return _Sample(path)
        if path.suffix != ".csv":
            rows = _copy_lines(filter(str.strip, iterate_lines(path)), target)
            return _Sample(target, rows - (path.suffix == ".tsv"))
        csv.field_size_limit(2**31 - 1)  # This process reads nothing else.
        try:
            return _Sample(target, _copy_fields(path, target, read_dialect(path).delimiter))
        except csv.Error as error:
            raise UserError(f"{path}: {first_line(error)}") from error


def _copy_lines(lines: Iterable[str], target: Path) -> int:
    """Copies the first lines; returns the number of all."""
    number, size = 0, 0
    with open(target, "w", encoding="utf-8", newline="") as file:
        for line in lines:
            number += 1
            size += len(line) if size < LARGEST else 0
            if size < LARGEST:
                file.write(line)
    return number


def _copy_fields(path: Path, target: Path, delimiter: str) -> int:
    """Copies the first rows; returns the number of all, without the header."""
    rows = csv.reader(iterate_lines(path), strict=True, delimiter=delimiter)
    number, size = 0, 0
    with open(target, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        for row in rows:
            number += any(row)
            size += sum(map(len, row)) if size < LARGEST else 0
            if size < LARGEST:
                writer.writerow(row)
    return number - 1


def _sample_parquet(path: Path, target: Path) -> _Sample:
    import pyarrow.parquet

    with open_parquet(path) as file:
        rows = file.metadata.num_rows
        if rows <= _PARQUET_ROWS and path.stat().st_size <= LARGEST:
            return _Sample(path)
        first = next(file.iter_batches(_PARQUET_ROWS))
        with pyarrow.parquet.ParquetWriter(target, first.schema) as writer:
            writer.write_batch(first)
    return _Sample(target, rows)


_SAMPLED = 100_000  # Sentences, lines or contexts whose lengths are measured.
_ANSWERED, _UNANSWERED = "with an answer", "without an answer"


class _Token(NamedTuple):
    line: int
    fields: list[str]


class _Question(NamedTuple):
    number: int
    row: dict[str, str]
    is_wrong: bool  # Whether an answer is not in its context where the file says.


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
    return create_preview(
        {"data": rows},
        kinds={"text": "text"},
        first_rows=[{"text": text} for text in sample[:FIRST]],
        texts={"text": sample},
    )


def preview_conll(path: Path) -> Preview:
    """Returns the preview of a file with a word and its tag on each line and a blank line after each sentence.

    Raises:
        UserError: for a file without a word, or no UTF-8.
    """
    sentences, labels, widths = list[list[_Token]](), Counter[str](), dict[int, list[int]]()
    number = 0
    for number, sentence in enumerate(_read_sentences(path), 1):
        labels.update(token.fields[-1] for token in sentence if len(token.fields) > 1)
        for token in sentence:
            widths.setdefault(len(token.fields), []).append(token.line)
        if number <= _SAMPLED:
            sentences.append(sentence)
    if not number:
        raise UserError(f"{path} is empty, expected a word and its tag on each line")
    width = max(widths, key=lambda fields: len(widths[fields]))
    return create_preview(
        {"data": number},
        kinds={str(column): "class" if column == width - 1 else "text" for column in range(width)},
        first_rows=[
            {str(column): " ".join(token.fields[column] for token in tokens) for column in range(width)}
            for tokens in (
                [token for token in sentence if len(token.fields) >= width] for sentence in sentences[:FIRST]
            )
        ],
        label_counts={str(width - 1): dict(labels.most_common())} if labels else {},
        texts={"0": [" ".join(token.fields[0] for token in sentence) for sentence in sentences]},
        problems=_find_width_problems(widths, width),
        task="token_classification",
    )


def preview_squad(path: Path) -> Preview:
    """Returns the preview of questions about contexts in the JSON of SQuAD.

    Raises:
        UserError: for a file of another form.
    """
    if path.stat().st_size > LARGEST:
        raise UserError(f"{path} has more than {LARGEST:,} bytes of JSON: upload it as JSONL or Parquet")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        questions = list(_read_questions(content))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"has no {error}" if isinstance(error, KeyError) else first_line(error)
        raise UserError(f'{path} is not in the form of SQuAD, {{"data": [{{"paragraphs": ...}}]}}: {reason}') from error
    if not questions:
        raise UserError(f"{path} has no questions")
    rows = [question.row for question in questions]
    wrong = [question.number for question in questions if question.is_wrong]
    answered = sum(bool(row["answers"]) for row in rows)
    counts = {_ANSWERED: answered, _UNANSWERED: len(rows) - answered}
    return create_preview(
        {"data": len(rows)},
        kinds=dict.fromkeys(rows[0], "text"),
        first_rows=rows[:FIRST],
        label_counts={"answers": {label: count for label, count in counts.items() if count}},
        texts={name: [row[name] for row in rows[:_SAMPLED]] for name in ("question", "context")},
        problems=_find_wrong_answers(rows, wrong),
        task="question_answering",
    )


def _read_sentences(path: Path) -> Iterator[list[_Token]]:
    """Yields the tokens of each sentence, without comments before its first word."""
    sentence: list[_Token] = []
    for number, line in enumerate(iterate_lines(path), 1):
        plain = line.strip(" \t\r\n")
        if plain and not plain.startswith("-DOCSTART-"):
            if sentence or not plain.startswith("# "):
                sentence.append(_Token(number, line.strip(" \r\n").split("\t") if "\t" in plain else plain.split()))
        elif sentence:
            yield sentence
            sentence = []
    if sentence:
        yield sentence


def _find_width_problems(widths: Mapping[int, Sequence[int]], width: int) -> list[Problem]:
    if width == 1:
        return [Problem("a line has one field", "expected a word and its tag, between tabs or spaces", is_error=True)]
    others = sorted(line for fields, lines in widths.items() if fields != width for line in lines)
    if not others:
        return []
    summary = (
        f"{len(others):,} lines have another number of fields than {width} ({show_lines(range(len(others)), others)})"
    )
    return [Problem(summary, "expected as many in every line", is_error=True)]


def _find_wrong_answers(questions: Sequence[object], wrong: Sequence[int]) -> list[Problem]:
    if not wrong:
        return []
    summary = f"{len(wrong):,} of {len(questions):,} answers are not in their context at answer_start"
    return [Problem(f"{summary} ({show_lines(wrong)})", "answer_start counts code points from 0", is_error=True)]


def _read_questions(content: Any) -> Iterator[_Question]:
    number = 0
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            context = paragraph["context"]
            for question in paragraph["qas"]:
                answers = question.get("answers") or []
                texts = [answer["text"] for answer in answers]
                if not all(isinstance(text, str) for text in [context, question["question"], *texts]):
                    raise ValueError(f"question {number + 1} has a value that is no text")
                starts = [answer["answer_start"] for answer in answers]
                wrong = any(
                    context[int(at) : int(at) + len(text)] != text for at, text in zip(starts, texts, strict=True)
                )
                row = {"question": question["question"], "context": context, "answers": " | ".join(texts)}
                yield _Question(number, row, wrong)
                number += 1
