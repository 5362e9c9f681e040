"""Previews of CoNLL, SQuAD's JSON and lines of text."""

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from distill.errors import UserError, first_line
from distill.readers.lines import iterate_lines
from distill.readers.problems import Problem, show_lines
from distill.service.preview import FIRST, LARGEST, Preview, create_preview

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
