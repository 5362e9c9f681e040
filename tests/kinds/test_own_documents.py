"""Tests of sets for search whose queries are documents: a query neither finds itself nor is its own negative."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distill.core.contracts import Scores
from distill.core.errors import UserError
from distill.kinds import Embedding, Reranking
from tests.kinds.test_retrieval import RANKINGS, write_judgements

WORDS = ["plane", "cello", "horse", "onion", "guitar", "flute", "river", "mountain", "window", "market"]


def write_duplicates(directory: Path, *, titled: bool = False, chance: bool = False) -> Path:
    """Writes ten queries, each of which is a document too, with a rewording that is relevant and one that is not.

    The query q0 is also the document `twin`, in other letters. With `titled` documents have a title before the text, as
    in ArguAna. With `chance` the ids are equal by chance.
    """
    (directory / "qrels").mkdir(parents=True)
    texts = [f"a {word} is seen by {10 + number} people" for number, word in enumerate(WORDS)]
    rows = [{"_id": f"q{number}", "text": f"another {number}" if chance else text} for number, text in enumerate(texts)]
    rows += [{"_id": f"d{number}", "text": f"people see the {word}"} for number, word in enumerate(WORDS)]
    rows += [{"_id": f"n{number}", "text": f"{word} is for sale"} for number, word in enumerate(WORDS)]
    rows.append({"_id": "twin", "text": texts[0].upper() + " "})
    if titled:
        rows = [{"title": f"On {row['_id']}", **row} for row in rows]
    (directory / "corpus.jsonl").write_text("\n".join(map(json.dumps, rows)))
    queries = [{"_id": f"q{number}", "text": text} for number, text in enumerate(texts)]
    (directory / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)))
    for split, numbers in (("train", range(6)), ("dev", range(6, 10))):
        write_judgements(directory, split, *(f"q{number}\td{number}\t1" for number in numbers))
    return directory


def embedding(directory: Path, **options: Any) -> Embedding:
    return Embedding(**{"metrics": RANKINGS, "data_dir": directory, "max_length": 24, **options})


def score(task: Embedding, directory: Path, vectors: dict[str, np.ndarray]) -> tuple[Any, Scores]:
    data = task.read(directory)
    split = data.splits["dev"]
    logits = np.stack([vectors[text] for [text] in split["texts"]])
    return data, Scores({"logits": logits}, split.labels, np.arange(len(split)))


@pytest.mark.parametrize("titled", [False, True])
def test_a_query_does_not_find_itself(titled: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each query is nearest to itself, and then to the relevant document."""
    directory = write_duplicates(tmp_path / "set", titled=titled)
    data = embedding(directory).read(directory)
    assert "10 queries are documents too, by their ids" in " ".join(capsys.readouterr().out.split())
    random, vectors = np.random.default_rng(0), {}
    for [text] in data.splits["dev"]["texts"]:
        number = next((number for number, word in enumerate(WORDS) if word in text.lower()), 0)
        noise = 0 if "is seen by" in text else 0.1 if "people see" in text else 0.3
        vectors[text] = np.eye(10)[number] + noise * random.normal(size=10)
    data, scores = score(embedding(directory), directory, {name: of.astype(np.float32) for name, of in vectors.items()})
    assert data.scoring.metrics(scores) == {"ndcg@10": 1.0, "recall@10": 1.0, "recall@100": 1.0, "mrr@10": 1.0}
    table = data.scoring.tabulate(scores, data, examples=len(scores.labels))
    for label, prediction in zip(table["label"], table["prediction"], strict=True):
        if label is not None:
            assert prediction[0] == label[0]
            assert label[0].replace("d", "q") not in prediction
    narrow = {form.precision: of.columns["ndcg@10"].mean() for form, of in data.scoring.narrow(scores, [])}
    assert (narrow["float32"], narrow["int8"]) == (1.0, 1.0)


def test_equal_ids_of_other_texts_are_documents_as_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In Cranfield both queries and documents are numbered from 1."""
    directory = write_duplicates(tmp_path / "set", chance=True)
    data = embedding(directory).read(directory)
    assert not data.scoring.data.own
    assert "10 queries have the id of a document, and 10 of them another text" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.parametrize("titled", [False, True])
@pytest.mark.parametrize("by", ["tfidf", "teacher"])
def test_a_text_that_equals_the_query_is_no_negative(by: str, titled: bool, tmp_path: Path) -> None:
    directory = write_duplicates(tmp_path / "set", titled=titled)
    data = embedding(directory, negatives=30, negatives_by=by).read(directory)
    if by == "teacher":
        random = np.random.default_rng(0)
        assert data.mine is not None
        data = data.mine(data, lambda texts: random.normal(size=(len(texts), 40)).astype(np.float32))
    groups = data.splits["train"]["texts"]
    assert len(groups) > 6 * 8
    for query, _, negative in groups:
        assert query not in negative  # Without its title.
        assert titled or query.upper() != negative.strip()


def test_lists_to_rank_again_are_without_the_query(tmp_path: Path) -> None:
    directory = write_duplicates(tmp_path / "set")

    def read(top: int) -> Any:
        return Reranking(data_dir=directory, top=top, negatives=40, max_length=32).read(directory)

    data = read(40)
    for split in ("train", "dev"):
        for query, documents in zip(data.splits[split]["query"], data.splits[split]["documents"], strict=True):
            assert query not in documents
            assert split == "dev" or query.upper() + " " not in documents
    assert [len(documents) for documents in read(3).splits["dev"]["documents"]] == [3] * 4
    assert read(3).splits["dev"]["documents"] == [documents[:3] for documents in data.splits["dev"]["documents"]]


def test_a_query_is_no_answer_to_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_duplicates(tmp_path / "set")
    write_judgements(directory, "dev", "q6\tq6\t1", "q6\td6\t1", "q7\tq7\t1")
    data = embedding(directory).read(directory)
    [gains] = data.scoring.data.gains
    assert [data.scoring.data.documents[number] for number in gains] == ["d6"]
    assert "dev: judgements that are left out, of a query as the answer to itself: 2" in " ".join(
        capsys.readouterr().out.split()
    )
    write_judgements(directory, "dev", "q7\tq7\t1")
    with pytest.raises(UserError, match="dev has no query with a relevant document but itself"):
        embedding(directory).read(directory)


def test_the_digest_depends_on_the_documents_that_queries_are(tmp_path: Path) -> None:
    """The same texts, judgements and splits: whether ids are equal changes the metric that chooses a checkpoint."""
    digests = set()
    for name in ("q", "r"):
        directory = write_duplicates(tmp_path / name)
        rows = (directory / "corpus.jsonl").read_text().replace('"_id": "q', f'"_id": "{name}')
        (directory / "corpus.jsonl").write_text(rows)
        digests.add(embedding(directory).read(directory).sha256)
    assert len(digests) == 2
