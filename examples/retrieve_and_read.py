"""Answers questions from a collection of passages: an encoder finds passages, and a reader finds the answer in them.

    python examples/retrieve_and_read.py --encoder runs/.../bundle --reader runs/.../bundle --data dev.json --k 1 5 20
    python examples/retrieve_and_read.py --encoder runs/.../bundle --reader runs/.../bundle --data dev.json --question "Who wrote it?"

The data are questions with their paragraphs in the format of SQuAD. Their paragraphs are the collection, so that the
passage of each question is known. Without `--question`, the script writes the exact match of the answers by the number of
passages that are read:

- `first`: the reader's answer in the nearest passage alone.
- `best`: the most probable answer in any passage, with the largest p(z|x) p(y|x,z) of passage z and answer y.
- `marginal`: the most probable answer over all passages, with the largest sum over z of p(z|x) p(y|x,z), as in REALM
  (arXiv 2002.08909, equation 1) and RAG (arXiv 2005.11401). These train the encoder and the reader together through
  that sum. Here each was trained by itself, and the sum only combines them: a reader that has only seen passages with an
  answer is as sure of one in any other passage.

p(z|x) is the softmax of the scores of the k passages: of cosines divided by `--temperature`, or of the scores of a re-ranker.
All three are bundles, of int8 files, that run without torch:

    python -m distill +teacher=minilm +student=distilbert task=retrieval task.data_dir=path/to/set objective=embedding
    python -m distill +teacher=bert_base +student=distilbert task=squad task.data_dir=path/to/squad
    python -m distill +teacher=minilm +student=distilbert task=reranking task.data_dir=path/to/set objective=ranking_lists
"""  # noqa: E501

import argparse
import gzip
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

import numpy as np

from distill.edge import Bundle
from distill.edge.answering import normalize_answer
from distill.edge.decoder import softmax

CANDIDATES = 5  # Answers of a passage that take part in the sum.
RERANKED = 5  # Passages that a re-ranker sees for each one that is read.


@dataclass(frozen=True)
class Question:
    """A question, its correct answers, and the position of its passage."""

    text: str
    answers: list[str]
    passage: int


@dataclass(frozen=True)
class Reading:
    """A passage with its p(z|x), and the answers in it with their p(y|x,z), the best first."""

    passage: int
    weight: float
    answers: list[tuple[str, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoder", type=Path, required=True, help="bundle with vectors of texts")
    parser.add_argument("--reader", type=Path, required=True, help="bundle that answers questions by spans")
    parser.add_argument("--ranker", type=Path, help="bundle that ranks documents, between the two")
    parser.add_argument("--model", default="int8", help="file of each bundle (default %(default)s)")
    parser.add_argument("--data", type=Path, required=True, help="questions in the format of SQuAD, .json or .json.gz")
    parser.add_argument("--question", help="is answered, in place of the questions of the data")
    parser.add_argument("--k", type=int, nargs="+", default=[1, 2, 5, 10], help="passages that are read")
    parser.add_argument("--limit", type=int, default=200, help="questions that are answered (default %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.05, help="of cosines (default %(default)s)")
    options = parser.parse_args()

    encoder, reader = (Bundle(path, model=options.model) for path in (options.encoder, options.reader))
    ranker = Bundle(options.ranker, model=options.model) if options.ranker else None
    passages, questions = read_squad(options.data)
    if options.question:
        questions = [Question(options.question, [], -1)]
    questions = questions[:: max(1, len(questions) // options.limit)][: options.limit]

    index = encoder.index(passages, precision="int8")
    depth = max(options.k)
    found = encoder.search([question.text for question in questions], index, k=depth * (RERANKED if ranker else 1))
    readings = []
    for question, neighbours in zip(questions, found, strict=True):
        scored = [(number, cosine / options.temperature) for number, cosine in neighbours]
        if ranker:
            scored = rerank(ranker, question.text, passages, [number for number, _ in scored])
        readings.append(read(reader, question.text, passages, scored[:depth]))

    if options.question:
        show_answers(readings[0], passages)
        return
    own = [read(reader, question.text, passages, [(question.passage, 0.0)]) for question in questions]
    exact = np.mean([is_exact(combine(each)["first"], question) for question, each in zip(questions, own, strict=True)])
    print(f"{len(questions)} questions, {len(passages)} passages; exact match in its own passage {exact:.3f}")
    show_metrics(questions, readings, options.k)


def read_squad(path: Path) -> tuple[list[str], list[Question]]:
    """Returns the paragraphs, and the questions that have an answer."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    passages: list[str] = []
    questions = []
    for article in json.loads(content)["data"]:
        for paragraph in article["paragraphs"]:
            for each in paragraph["qas"]:
                answers = [answer["text"] for answer in each["answers"]]
                if answers:
                    questions.append(Question(each["question"], answers, len(passages)))
            passages.append(paragraph["context"])
    return passages, questions


def rerank(ranker: Bundle, question: str, passages: Sequence[str], numbers: Sequence[int]) -> list[tuple[int, float]]:
    """Returns passages in the order of a re-ranker, with their scores."""
    ranking = ranker.rank(question, [passages[number] for number in numbers])
    return [(numbers[position], ranking["scores"][position]) for position in ranking["order"]]


def read(reader: Bundle, question: str, passages: Sequence[str], scored: Sequence[tuple[int, float]]) -> list[Reading]:
    """Returns the answers in each passage; the weights of all sum to 1."""
    records = [{"question": question, "context": passages[number], "top_k": CANDIDATES} for number, _ in scored]
    weights = softmax(np.array([score for _, score in scored]))
    return [
        Reading(
            number, float(weight), [(each["answer"], each["score"]) for each in prediction["answers"] if each["answer"]]
        )
        for (number, _), weight, prediction in zip(scored, weights, reader.predict(records), strict=True)
    ]


def combine(readings: Sequence[Reading]) -> dict[str, str]:
    """Returns the answer by each rule from these passages alone, whose weights are scaled to sum to 1.

    Answers are equal if their words are, as in the metric of SQuAD.
    """
    total = sum(reading.weight for reading in readings)
    joint = [(share * reading.weight / total, answer) for reading in readings for answer, share in reading.answers]
    sums: dict[str, float] = defaultdict(float)
    for probability, answer in joint:
        sums[normalize_answer(answer)] += probability
    first = readings[0].answers
    return {
        "first": first[0][0] if first else "",
        "best": max(joint, key=itemgetter(0), default=(0.0, ""))[1],
        "marginal": max(sums, key=sums.__getitem__, default=""),
    }


def is_exact(answer: str, question: Question) -> bool:
    """Returns whether an answer is a correct one, but for case, punctuation and articles."""
    return normalize_answer(answer) in map(normalize_answer, question.answers)


def show_metrics(questions: Sequence[Question], readings: Sequence[Sequence[Reading]], depths: Sequence[int]) -> None:
    """Writes the exact match by the number of passages, beside the share of questions whose passage is among them."""
    print("  k  found  first   best  marginal")
    pairs = list(zip(questions, readings, strict=True))
    for k in depths:
        found = np.mean([any(one.passage == question.passage for one in each[:k]) for question, each in pairs])
        answers = [combine(each[:k]) for each in readings]
        first, best, marginal = (
            np.mean([is_exact(given[rule], question) for question, given in zip(questions, answers, strict=True)])
            for rule in ("first", "best", "marginal")
        )
        print(f"{k:3}  {found:.3f}  {first:.3f}  {best:.3f}     {marginal:.3f}")


def show_answers(readings: Sequence[Reading], passages: Sequence[str]) -> None:
    """Writes the answer by each rule, and what was read."""
    for rule, answer in combine(readings).items():
        print(f"{rule}: {answer}")
    for reading in readings:
        answer, share = reading.answers[0] if reading.answers else ("(no answer)", 0.0)
        print(f"{reading.weight:.2f}  {answer} ({share:.2f})  {passages[reading.passage][:60]}")


if __name__ == "__main__":
    main()
