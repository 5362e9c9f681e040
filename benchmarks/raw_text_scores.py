"""The metric of a run beside that of its file on the same dev rows as raw text, for a toy of every kind of task.

    python benchmarks/raw_text_scores.py
    python benchmarks/raw_text_scores.py --kinds tags questions --work toys

Invented rows of each kind are written to files, a student of the built-in teacher learns them in seconds, and
`python -m distill.edge BUNDLE --evaluate DEV` scores the recommended file. Rankings, which that command does not score,
are computed from the vectors of the bundle. A difference is marked with `!`, and the exit code is then 1.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from distill.edge.bundle import Bundle

NEARLY = 1e-6
PLACES = ("Dublin", "New York", "Paris", "São Paulo", "Washington D.C.", "Rome")
PEOPLE = ("O'Brien", "Ms. Li", "Jean-Luc", "Ada Lovelace", "J. Smith")
TOPICS = {
    "sport": "the match was won in the last minute",
    "music": "a song with a slow piano",
    "food": "soup and bread",
}
GOOD, BAD = ("a lovely film", "warm, funny and clever", "I loved it"), ("a dull mess", "stale and cold", "I hated it")


@dataclass(frozen=True)
class Toy:
    """One kind of task: a function that writes its files, the options of its run, and those of `--evaluate`.

    `forms` are further options of `--evaluate`, one evaluation each.
    """

    write: Callable[[Path, random.Random], None]
    options: Sequence[str]
    dev: str
    columns: Sequence[str] = ()
    forms: Sequence[Sequence[str]] = ((),)


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Writes rows as JSONL."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def write_splits(directory: Path, make: Callable[[], dict[str, Any]]) -> None:
    """Writes 200 rows of train and 60 of dev."""
    for split, count in (("train", 200), ("dev", 60)):
        write_rows(directory / f"{split}.jsonl", [make() for _ in range(count)])


def make_review(chance: random.Random) -> tuple[str, str]:
    """Returns a review and its class, which is wrong for one in ten."""
    label = chance.choice(("good", "bad"))
    text = " ".join(chance.choice(GOOD if label == "good" else BAD) for _ in range(chance.randint(1, 3)))
    return f"{text} {chance.randint(0, 99)}", label if chance.random() < 0.9 else "good"


def write_classes(directory: Path, chance: random.Random) -> None:
    """Writes reviews."""
    write_splits(directory, lambda: dict(zip(("text", "label"), make_review(chance), strict=True)))


def write_labels(directory: Path, chance: random.Random) -> None:
    """Writes texts with any number of topics."""

    def make() -> dict[str, Any]:
        topics = chance.sample(sorted(TOPICS), chance.randint(0, 2))
        return {"text": " ; ".join(["it began", *(TOPICS[topic] for topic in topics)]), "label": topics}

    write_splits(directory, make)


def write_numbers(directory: Path, chance: random.Random) -> None:
    """Writes pairs of texts with the share of the words that they have in common."""

    def make() -> dict[str, Any]:
        first, second = (chance.sample(["red", "green", "blue", "black", "white", "grey"], 3) for _ in range(2))
        score = 5 * len(set(first) & set(second)) / 3
        return {"sentence1": " ".join(first), "sentence2": " ".join(second), "score": round(score, 2)}

    write_splits(directory, make)


def make_tagged(chance: random.Random) -> list[tuple[str, str]]:
    """Returns words with their tags; punctuation is a word of its own."""
    person, place = chance.choice(PEOPLE).split(), chance.choice(PLACES).split()
    begin = [("Yesterday", "O"), (",", "O")] if chance.random() < 0.5 else []
    tagged = [(word, f"{'I' if number else 'B'}-person") for number, word in enumerate(person)]
    tagged += [(chance.choice(("visited", "left")), "O")]
    return [*begin, *tagged, *((word, f"{'I' if n else 'B'}-place") for n, word in enumerate(place)), (".", "O")]


def write_tags(directory: Path, chance: random.Random) -> None:
    """Writes CoNLL for the run and, for the edge, JSONL of the same sentences."""
    for split, count in (("train", 200), ("dev", 60)):
        sentences = [make_tagged(chance) for _ in range(count)]
        blocks = ["\n".join(f"{word} {tag}" for word, tag in sentence) for sentence in sentences]
        (directory / f"{split}.conll").write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
        rows = [{"tokens": [word for word, _ in each], "tags": [tag for _, tag in each]} for each in sentences]
        write_rows(directory.parent / f"{directory.name}-{split}.jsonl", rows)


def write_questions(directory: Path, chance: random.Random) -> None:
    """Writes questions with contexts, one in five without an answer."""

    def make() -> dict[str, Any]:
        person, place, other = chance.choice(PEOPLE), chance.choice(PLACES), chance.choice(PEOPLE)
        context = f"{person} lives in {place}. The weather is fine there."
        known = other == person or chance.random() < 0.7
        answers = (
            {"text": [place], "answer_start": [context.index(place)]} if known else {"text": [], "answer_start": []}
        )
        asked = person if known else "the king"
        return {
            "id": str(chance.random()),
            "question": f"Where does {asked} live?",
            "context": context,
            "answers": answers,
        }

    write_splits(directory, make)


def write_choices(directory: Path, chance: random.Random) -> None:
    """Writes questions with three choices."""

    def make() -> dict[str, Any]:
        topics = chance.sample(sorted(TOPICS), 3)
        answer = chance.randrange(3)
        return {
            "question": f"Which text is about {topics[answer]}?",
            "choices": [TOPICS[each] for each in topics],
            "answer": answer,
        }

    write_splits(directory, make)


def write_ranking(directory: Path, chance: random.Random) -> None:
    """Writes a corpus, queries and judgements in the layout of BEIR."""
    documents = [
        f"{person} lives in {place} since {year}" for person in PEOPLE for place in PLACES for year in (1999, 2010)
    ]
    write_rows(
        directory / "corpus.jsonl", [{"_id": f"d{n}", "title": "", "text": text} for n, text in enumerate(documents)]
    )
    queries = [
        {"_id": f"q{n}", "text": f"who lives in {text.split(' in ')[1]}, {n}"} for n, text in enumerate(documents)
    ]
    write_rows(directory / "queries.jsonl", queries)
    (directory / "qrels").mkdir()
    numbers = chance.sample(range(len(documents)), len(documents))
    for split, chosen in (("train", numbers[:40]), ("dev", numbers[40:])):
        rows = ["query-id\tcorpus-id\tscore", *(f"q{n}\td{n}\t1" for n in chosen)]
        (directory / "qrels" / f"{split}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")


SHORT = ("--text-column", "sentence1", "--text-column", "sentence2", "--label-column", "score")
TOYS = {
    "classes": Toy(write_classes, ("task=classification",), "dev.jsonl"),
    "labels": Toy(write_labels, ("task=classification", "task.multi_label=true"), "dev.jsonl"),
    "numbers": Toy(
        write_numbers, ("task=regression", "task.text=[sentence1,sentence2]", "task.label=score"), "dev.jsonl", SHORT
    ),
    "tags": Toy(write_tags, ("task=token_classification",), "../tags-dev.jsonl", forms=((), ("--as-text",))),
    "questions": Toy(
        write_questions, ("task=question_answering", "task.max_length=64", "task.doc_stride=16"), "dev.jsonl"
    ),
    "choices": Toy(write_choices, ("task=multiple_choice",), "dev.jsonl"),
    "vectors": Toy(write_numbers, ("task=embedding", "objective=embedding"), "dev.jsonl", SHORT),
    "ranking": Toy(write_ranking, ("task=retrieval", "objective=embedding"), ""),
}  # fmt: skip


def train(name: str, directory: Path, teacher: Sequence[str]) -> Path:
    """Runs the command on a toy and returns its run directory."""
    command = [
        sys.executable, "-m", "distill", *teacher, "+student=distilbert", *TOYS[name].options,
        f"task.data_dir={directory}", f"output_dir={directory.parent / 'runs' / name}", "trainer.max_epochs=3",
        "task.name=toy", "teacher.accept_weak=true", "export.max_drop=1", "benchmark.enabled=false",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    return max((directory.parent / "runs" / name).glob("*/*/*/run.json")).parent


def score_rows(bundle: Path, toy: Toy, directory: Path) -> dict[str, Any]:
    """Returns the file that `--evaluate` scores, and the metrics that it prints for the dev rows."""
    found: dict[str, Any] = {"metrics": {}}
    for form in toy.forms:
        rows = [bundle, "--evaluate", directory / toy.dev, *toy.columns, *form, "--json"]
        done = subprocess.run([sys.executable, "-m", "distill.edge", *map(str, rows)], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        printed = json.loads(done.stdout)
        found |= {"model": printed["model"], "metrics": found["metrics"] | printed["metrics"]}
    return found


def score_ranking(bundle: Path, directory: Path) -> dict[str, Any]:
    """Returns NDCG@10 of the rankings by cosine, where one document is relevant to each query."""
    opened = Bundle(bundle)
    texts = {
        name: {row["_id"]: row["text"] for row in map(json.loads, (directory / f"{name}.jsonl").open(encoding="utf-8"))}
        for name in ("corpus", "queries")
    }
    judged = [line.split("\t")[:2] for line in (directory / "qrels/dev.tsv").read_text().splitlines()[1:]]
    documents = np.array([each["vector"] for each in opened.predict(list(texts["corpus"].values()))])
    queries = np.array([each["vector"] for each in opened.predict([texts["queries"][query] for query, _ in judged])])
    scores, ids = queries @ documents.T, list(texts["corpus"])
    places = [int((row > row[ids.index(right)]).sum()) for row, (_, right) in zip(scores, judged, strict=True)]
    gains = [1 / np.log2(place + 2) if place < 10 else 0.0 for place in places]
    return {"model": opened.model, "metrics": {"ndcg@10": float(np.mean(gains))}}


def main() -> int:
    """Runs the toys, prints the table and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=list(TOYS), default=list(TOYS))
    parser.add_argument("--work", type=Path, help="a new directory for rows and runs, which are then kept")
    parser.add_argument("--teacher", nargs="+", default=["+teacher=embedded", "teacher.layers=2"])
    options = parser.parse_args()
    table, equal = Table("kind", "file", "metric", "run", "raw text", ""), True
    with tempfile.TemporaryDirectory() as temporary:
        work = (options.work or Path(temporary)).absolute()
        for name in options.kinds:
            directory = work / name
            directory.mkdir(parents=True)
            TOYS[name].write(directory, random.Random(0))
            run = train(name, directory, options.teacher)
            bundle = run / "bundle"
            found = score_ranking(bundle, directory) if name == "ranking" else score_rows(bundle, TOYS[name], directory)
            measured = json.loads((run / "run.json").read_text())["export"][found["model"]]["metrics"]
            for metric, value in found["metrics"].items():
                same = abs(measured[metric] - value) < NEARLY
                equal &= same
                table.add_row(
                    name, found["model"], metric, f"{measured[metric]:.4f}", f"{value:.4f}", "" if same else "!"
                )
    Console().print(table)
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
