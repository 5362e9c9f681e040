"""Writes the texts without labels of docs/results.md: sentences of reviews for SST-2, and pairs of SQuAD for QNLI.

    python benchmarks/unlabelled_texts.py sentences path/to/imdb_unsup/train.jsonl.gz reviews.csv
    python benchmarks/unlabelled_texts.py pairs path/to/squad1/train.json.gz pairs.csv

Sentences are written as SST-2 writes them: lower case, with spaces round punctuation, and without markup. Each question
comes with the sentence of its answer and with up to `--others` further sentences of its paragraph.
"""

import argparse
import csv
import gzip
import json
import random
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console

SENTENCE_END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[\"'(]*[A-Z0-9])")
MARKUP = re.compile(r"<[^>]+>")
TOKEN = re.compile(r"n't\b|'(?:s|re|ve|ll|d|m)\b|\w+(?=n't\b)|\w+(?:-\w+)*|\.{2,}|[^\w\s]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["sentences", "pairs"])
    parser.add_argument("source", type=Path, help="lines of JSON with a `text`, or the JSON of SQuAD, plain or gzipped")
    parser.add_argument("output", type=Path, help="a CSV with the column sentence, or question and sentence")
    parser.add_argument("--words", type=int, nargs=2, default=[4, 40], help="the fewest and the most of a sentence")
    parser.add_argument("--others", type=int, default=3, help="sentences without the answer for each question")
    options = parser.parse_args()
    with (gzip.open if options.source.suffix == ".gz" else open)(options.source, "rt", encoding="utf-8") as file:
        if options.kind == "sentences":
            reviews = (json.loads(line)["text"] for line in file)
            columns, rows = ["sentence"], sentences_of_reviews(reviews, *options.words)
        else:
            columns, rows = ["question", "sentence"], pairs_of_questions(json.load(file), options.others)
        distinct = list(dict.fromkeys(rows))
    with options.output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(distinct)
    Console().print(f"{len(distinct):,} different {options.kind} in {options.output}")


def sentences_of_reviews(reviews: Iterator[str], fewest: int, most: int) -> Iterator[tuple[str, ...]]:
    for review in reviews:
        for sentence in SENTENCE_END.split(MARKUP.sub(" ", review)):
            words = TOKEN.findall(sentence.lower())
            if fewest <= len(words) <= most:
                yield (" ".join(words),)


def pairs_of_questions(squad: dict[str, Any], others: int) -> Iterator[tuple[str, ...]]:
    generator = random.Random(0)
    for article in squad["data"]:
        for paragraph in article["paragraphs"]:
            context = paragraph["context"]
            starts = [0, *(match.end() for match in SENTENCE_END.finditer(context)), len(context)]
            spans = list(pairwise(starts))
            for question in paragraph["qas"]:
                answers = [answer["answer_start"] for answer in question["answers"]]
                holds = [span for span in spans if any(span[0] <= start < span[1] for start in answers)]
                rest = [span for span in spans if span not in holds]
                for start, end in holds + generator.sample(rest, min(others, len(rest))):
                    yield question["question"].strip(), context[start:end].strip()


if __name__ == "__main__":
    main()
