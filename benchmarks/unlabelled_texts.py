"""Writes the texts without labels of docs/results.md: sentences of reviews for SST-2, and pairs of SQuAD for QNLI.

    python benchmarks/unlabelled_texts.py sentences path/to/imdb_unsup/train.jsonl.gz reviews.csv
    python benchmarks/unlabelled_texts.py pairs path/to/squad1/train.json.gz pairs.csv

Sentences are written as SST-2 writes them: lower case, with spaces round punctuation, and without markup. Each question
comes with the sentence of its answer and with up to `--others` further sentences of its paragraph.
"""

import argparse
import csv
import random
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console

from distill.data.sources import read_file
from distill.rows.columns import Table

SENTENCE_END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[\"'(]*[A-Z0-9])")
MARKUP = re.compile(r"<[^>]+>")
TOKEN = re.compile(r"n't\b|'(?:s|re|ve|ll|d|m)\b|\w+(?=n't\b)|\w+(?:-\w+)*|\.{2,}|[^\w\s]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["sentences", "pairs"])
    parser.add_argument("source", type=Path, help="a table with a column text, or the JSON of SQuAD")
    parser.add_argument("output", type=Path, help="a CSV with the column sentence, or question and sentence")
    parser.add_argument("--words", type=int, nargs=2, default=[4, 40], help="the fewest and the most of a sentence")
    parser.add_argument("--others", type=int, default=3, help="sentences without the answer for each question")
    options = parser.parse_args()
    table = read_file(options.source, ("text", "question", "context", "answers"))
    if options.kind == "sentences":
        columns, rows = ["sentence"], sentences_of_reviews(table.columns["text"], *options.words)
    else:
        columns, rows = ["question", "sentence"], pairs_of_questions(table, options.others)
    distinct = list(dict.fromkeys(rows))
    with options.output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(distinct)
    Console().print(f"{len(distinct):,} different {options.kind} in {options.output}")


def sentences_of_reviews(reviews: Iterable[Any], fewest: int, most: int) -> Iterator[tuple[str, ...]]:
    for review in reviews:
        for sentence in SENTENCE_END.split(MARKUP.sub(" ", review)):
            words = TOKEN.findall(sentence.lower())
            if fewest <= len(words) <= most:
                yield (" ".join(words),)


def pairs_of_questions(table: Table, others: int) -> Iterator[tuple[str, ...]]:
    generator = random.Random(0)
    rows: Iterable[Any] = zip(*(table.columns[name] for name in ("question", "context", "answers")), strict=True)
    for question, context, answers in rows:
        spans = list(pairwise([0, *(match.end() for match in SENTENCE_END.finditer(context)), len(context)]))
        starts = [answer["answer_start"] for answer in answers]
        holds = [span for span in spans if any(span[0] <= start < span[1] for start in starts)]
        rest = [span for span in spans if span not in holds]
        for first, end in holds + generator.sample(rest, min(others, len(rest))):
            yield question.strip(), context[first:end].strip()


if __name__ == "__main__":
    main()
