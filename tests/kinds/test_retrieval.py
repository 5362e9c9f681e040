"""Tests of vectors for retrieval: the layout of BEIR, metrics of rankings, and a whole run from queries to a bundle."""

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import PreTrainedTokenizerBase

import distill as d
from distill.core.contracts import Scores
from distill.core.errors import OptionError, UserError
from distill.edge.metrics import score_rankings
from distill.kinds import Embedding
from distill.kinds.vector_scores import METRICS
from distill.rows.formats import read_lines
from distill.teachers.prepared import compare_with_constant
from tests.conftest import BAD, GOOD, toy_bert

WORDS = " ".join((*GOOD, *BAD)).replace(",", "").split()
RANKINGS = list(METRICS)


def write_set(directory: Path, *, documents: int = 60, queries: int = 24) -> Path:
    """Writes a retrieval set: a query is the middle of its relevant document, which has the score 2, and the next 1."""
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, 6)) for _ in range(documents)]
    rows = [{"_id": f"d{number}", "title": text[:4], "text": text[4:]} for number, text in enumerate(texts)]
    (directory / "qrels").mkdir(parents=True)
    with gzip.open(directory / "corpus.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    asked = [{"_id": number, "text": " ".join(texts[number].split()[1:5])} for number in range(queries)]
    (directory / "queries.jsonl").write_text("\n".join(map(json.dumps, asked)))
    for name, chosen in (("train", range(0, queries - 6)), ("test", range(queries - 6, queries))):
        lines = [f"{number}\td{other}\t{score}" for number in chosen for other, score in ((number, 2), (number + 1, 1))]
        write_judgements(directory, name, *lines)
    return directory


def write_judgements(directory: Path, name: str, *lines: str) -> None:
    (directory / "qrels" / f"{name}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_set(tmp_path / "set")


def embedding(directory: Path, **options: Any) -> Embedding:
    return Embedding(**{"metrics": RANKINGS, "data_dir": directory, "dev_fraction": 0.25, "max_length": 24, **options})


# Metrics


def by_definition(ranking: list[int], gains: dict[int, int]) -> dict[str, float]:
    """The metrics of one query, written from their definitions."""

    def dcg(values: list[int]) -> float:
        return sum(value / math.log2(rank + 1) for rank, value in enumerate(values[:10], 1))

    ranks = [rank for rank, number in enumerate(ranking, 1) if number in gains]
    return {
        "ndcg@10": dcg([gains.get(number, 0) for number in ranking]) / dcg(sorted(gains.values(), reverse=True)),
        "recall@10": len([rank for rank in ranks if rank <= 10]) / len(gains),
        "recall@100": len([rank for rank in ranks if rank <= 100]) / len(gains),
        "mrr@10": 1 / ranks[0] if ranks and ranks[0] <= 10 else 0.0,
    }


@pytest.mark.parametrize("documents", [4, 30, 300])
def test_the_metrics_of_random_rankings_are_those_of_their_definitions(documents: int) -> None:
    random = np.random.default_rng(documents)
    rankings = np.stack([random.permutation(documents)[:100] for _ in range(40)])
    gains = [
        {int(number): int(random.integers(1, 5)) for number in random.choice(documents, random.integers(1, 4))}
        for _ in range(40)
    ]
    metrics = score_rankings(rankings, gains)
    assert metrics.keys() == set(METRICS)
    for query, of_query in enumerate(gains):
        expected = by_definition(rankings[query].tolist(), of_query)
        assert {name: column[query] for name, column in metrics.items()} == pytest.approx(expected, abs=1e-12)
    assert 0 < metrics["ndcg@10"].mean() < 1


def test_graded_gains_by_hand() -> None:
    """Found are a document with gain 1 and then none; the better one, with gain 3, is missed."""
    metrics = score_rankings(np.array([[5, 6, 7]]), [{5: 1, 9: 3}])
    assert metrics["ndcg@10"][0] == pytest.approx(1 / (3 + 1 / math.log2(3)))
    assert (metrics["recall@10"][0], metrics["mrr@10"][0]) == (0.5, 1.0)


def test_vectors_are_scored_by_the_ranking_of_the_whole_corpus(directory: Path) -> None:
    task = embedding(directory)
    data = task.read(directory)
    split, scoring = data.splits["dev"], data.scoring
    random = np.random.default_rng(1)
    vectors = random.normal(size=(len(split), 8)).astype(np.float32)
    scores = Scores({"logits": vectors}, split.labels, np.arange(len(split)))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    queries, documents = np.flatnonzero(split.labels >= 0), np.flatnonzero(split.labels < 0)
    expected = []
    for query in queries:
        order = documents[np.argsort(-(unit[documents] @ unit[query]), kind="stable")]
        numbers = [int(-1 - split.labels[item]) for item in order]
        expected.append(by_definition(numbers, dict(data.scoring.data.gains[int(split.labels[query])])))
    means = {name: float(np.mean([of[name] for of in expected])) for name in METRICS}
    assert scoring.metrics(scores) == pytest.approx(means)
    np.testing.assert_allclose(scoring.example_metric(scores), [of["ndcg@10"] for of in expected])
    assert scoring.metrics(scoring.condense(scores)) == pytest.approx(means)
    order = random.permutation(len(split))
    assert scoring.metrics(scores.select(order)) == pytest.approx(means)
    assert (scoring.agreement(scores, scores), scoring.probability_diff(scores, scores)) == (1.0, 0.0)
    turned = vectors.copy()
    turned[queries[0]] *= -1
    changed = Scores({"logits": turned}, split.labels, scores.example_id)
    assert scoring.agreement(changed, scores) == pytest.approx(1 - 1 / len(queries), abs=0.05)
    table = scoring.tabulate(scores, data, examples=len(split))
    assert [row for row, value in enumerate(table["label"]) if value is not None] == queries.tolist()
    assert table["label"][0] == [f"d{number}" for number in data.scoring.data.gains[0]]
    assert len(table["prediction"][0]) == 10
    same = Scores({"logits": np.ones_like(vectors)}, split.labels, scores.example_id)
    assert "no better than a constant prediction" in compare_with_constant(scoring, {"dev": same}).weakness
    perfect = np.zeros((len(split), 128), dtype=np.float32)
    for row, label in enumerate(split.labels):
        gains = data.scoring.data.gains[int(label)] if label >= 0 else {}
        of_document = max(gains, key=gains.get) if label >= 0 else int(-1 - label)
        perfect[row, of_document] = 1.0
    assert (
        compare_with_constant(scoring, {"dev": Scores({"logits": perfect}, split.labels, scores.example_id)}).weakness
        is None
    )


# Reading


def test_queries_of_train_are_held_out_and_documents_have_their_titles(directory: Path) -> None:
    task = embedding(directory)
    data = task.read(directory)
    assert data.sizes() == {"train": 28, "dev": 4 + 60, "test": 6 + 60}
    train, dev, test = (data.splits[name] for name in ("train", "dev", "test"))
    assert all(len(group) == 2 and group[0] for group in train["texts"])
    assert np.isnan(train.labels).all()
    assert [type(term) for term in data.terms.values()] == [d.MultipleNegatives]
    scored = [split.select(np.flatnonzero(split["is_query"])) for split in (dev, test)]
    queries = {group[0] for split in (train, *scored) for group in split["texts"]}
    assert len(queries) == 24
    rows = [json.loads(line) for line in read_lines(directory / "corpus.jsonl.gz")]
    documents = {f"{row['title']} {row['text']}" for row in rows}
    for split in (dev, test):
        assert {group[0] for group, label in zip(split["texts"], split.labels, strict=True) if label < 0} == documents
    assert dev.labels[:3].tolist() == [0, *(-1 - number for number in data.scoring.data.gains[0])]
    assert sorted(data.scoring.data.gains[0].values()) == [1, 2]
    assert data.scoring.summary(data) == "a vector of length 1; dev has 4 queries and 60 documents"
    again = embedding(directory).read(directory)
    assert (again.sha256, again.splits["dev"]["texts"]) == (data.sha256, dev["texts"])
    fewer = embedding(directory, train_examples=5, dev_examples=2).read(directory)
    assert fewer.sizes() == {"train": 5, "dev": 2 + 60, "test": 6 + 60}
    write_judgements(directory, "dev", "20\td20\t1")
    assert embedding(directory).read(directory).sizes() == {"train": 36, "dev": 1 + 60, "test": 6 + 60}


def test_queries_without_negatives_are_counted(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_judgements(directory, "train", *(f"0\td{number}\t1" for number in range(60)), "1\td1\t1")
    write_judgements(directory, "dev", "2\td2\t1")
    assert len(embedding(directory, negatives=2).read(directory).splits["train"]) == 2
    notices = " ".join(capsys.readouterr().out.split())
    assert "train: queries that are left out, because all documents are relevant to them or seem to be: 1" in notices
    with gzip.open(directory / "corpus.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"_id": f"d{number}", "text": "a b"}) + "\n" for number in range(60))
    with pytest.raises(UserError, match=r"corpus.jsonl.gz has no words to find negatives by: set task.negatives=0"):
        embedding(directory, negatives=2).read(directory)


def rewrite_set(directory: Path, rows: list[str], query: str, *, relevant: tuple[int, int]) -> None:
    """Replaces the set by these documents and a query of train with two relevant ones."""
    corpus = "\n".join(json.dumps({"_id": f"d{number}", "text": text}) for number, text in enumerate(rows))
    (directory / "corpus.jsonl.gz").unlink()
    (directory / "corpus.jsonl").write_text(corpus)
    (directory / "queries.jsonl").write_text(f'{{"_id": "q", "text": "{query}"}}\n{{"_id": "r", "text": "six"}}')
    write_judgements(directory, "train", *(f"q\td{number}\t1" for number in relevant))
    write_judgements(directory, "dev", "r\td4\t1")
    (directory / "qrels" / "test.tsv").unlink()


def test_negatives_are_the_nearest_documents_that_are_not_relevant(directory: Path) -> None:
    """The query is in document d1, which is relevant, and half of it in d3; d2 is relevant too."""
    rows = ["one two three four", "one two three four", "five", "one two", "six", "seven"]
    rewrite_set(directory, rows, "one two three", relevant=(1, 2))
    groups = embedding(directory, negatives=2).read(directory).splits["train"]["texts"]
    assert groups == [["one two three", rows[document], rows[other]] for document in (1, 2) for other in (0, 3)]
    assert len(embedding(directory, negatives=9).read(directory).splits["train"]) == 2 * 4
    with pytest.raises(OptionError, match="got negatives_by=teacher, expected negatives=1 beside it, the number for e"):
        embedding(directory, negatives_by="teacher")
    with pytest.raises(OptionError, match="got negatives_by=bm25, expected tfidf or teacher"):
        embedding(directory, negatives=1, negatives_by="bm25")
    with pytest.raises(OptionError, match="got cross_encoder=.*, expected negatives=1 beside it, because all pairs of"):
        embedding(directory, cross_encoder=directory)
    with pytest.raises(OptionError, match="got negatives=1, expected 0, because they are found for retrieval sets alo"):
        embedding(directory, metrics=["spearman"], negatives=1)


def test_negatives_by_vectors_are_near_and_not_as_near_as_a_relevant_document(directory: Path) -> None:
    """The query has cosines 1, 0.8, 0.79, 0.6, 0 and 0.9 with the documents; the second and the last are relevant.

    The first one and the third one are left out, because they are about as near as the second one.
    """
    cosines = [1.0, 0.8, 0.79, 0.6, 0.0, 0.9]
    rows = ["one", "two", "three", "four", "five", "six"]
    rewrite_set(directory, [*rows, ""], "one two", relevant=(1, 5))
    vectors = {text: [of, (1 - of**2) ** 0.5] for text, of in zip(rows, cosines, strict=True)} | {"one two": [3.0, 0.0]}
    data = embedding(directory, negatives=2, negatives_by="teacher").read(directory)
    pairs = [["one two", "two"], ["one two", "six"]]
    assert data.splits["train"]["texts"] == [[*pair, other] for pair in pairs for other in ("one", "three")]  # TF-IDF.
    assert data.mine is not None
    mined = data.mine(data, lambda texts: np.array([vectors[text] for text in texts]))
    assert mined.splits["train"]["texts"] == [[*pair, other] for pair in pairs for other in ("four", "five")]
    assert mined.sha256 != data.sha256
    assert mined.splits["dev"] == data.splits["dev"]
    assert embedding(directory, negatives=2).read(directory).mine is None


def test_the_only_judgements_are_divided_and_what_cannot_be_found_is_counted(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "qrels" / "train.tsv").unlink()
    with pytest.raises(UserError, match=r"qrels has no train.tsv \(found test.tsv\), .*task.splits=\{train:\[test\]\}"):
        embedding(directory).read(directory)
    task = embedding(directory, splits={"train": ["test"]}, dev_fraction=0.5)
    assert task.read(directory).sizes() == {"train": 6, "dev": 3 + 60}
    write_judgements(directory, "test", "1\td1\t1", "2\td2\t0", "3\td3\t-1", "4\td60\t3", "4\td4\t1", "5\td5\t1")
    rows = [*read_lines(directory / "corpus.jsonl.gz"), json.dumps({"_id": "d60", "text": " "})]
    (directory / "corpus.jsonl.gz").unlink()
    (directory / "corpus.jsonl").write_text("\n".join(rows))
    capsys.readouterr()
    data = task.read(directory)
    output = " ".join(capsys.readouterr().out.split())
    assert "texts that are empty, which no search finds: 1" in output
    assert "queries that are left out, because they are empty or have no relevant document: 2" in output
    assert len(data.splits["dev"]) == 2 + 60
    judged = {number for gains in data.scoring.data.gains for number in gains}
    assert len(data.splits["train"]) + len(judged) == (4 if 60 in judged else 3)


MISTAKES: dict[str, tuple[dict[str, str], str]] = {
    "an unknown document": (
        {"qrels/test.tsv": "query-id\tcorpus-id\tscore\n1\td1\t1\n1\td99\t1\n"},
        r"qrels/test.tsv, line 3: 'd99' is no id of corpus.jsonl.gz, expected one",
    ),
    "an unknown query": (
        {"qrels/train.tsv": "query-id\tcorpus-id\tscore\nq\td1\t1\n"},
        r"qrels/train.tsv, line 2: 'q' is no id of queries.jsonl, expected one",
    ),
    "judgements of TREC": ({"qrels/train.tsv": "1 0 d1 1\n"}, r"train.tsv, line 1: got '1 0 d1 1', expected query-id,"),
    "a missing score": (
        {"qrels/train.tsv": "query-id\tcorpus-id\tscore\n1\td1\n"},
        "train.tsv, line 2 has 2 fields, its header 3: expected as many in every row",
    ),
    "a score in words": (
        {"qrels/train.tsv": "query-id\tcorpus-id\tscore\n1\td1\thigh\n"},
        "train.tsv, line 2: the score 'high' is no whole number",
    ),
    "a judgement twice": (
        {"qrels/train.tsv": "query-id\tcorpus-id\tscore\n1\td1\t1\n1\td1\t0\n"},
        "train.tsv, line 3: query 1 has document d1 twice, expected it once",
    ),
    "nothing relevant": (
        {"qrels/train.tsv": "query-id\tcorpus-id\tscore\n1\td1\t0\n"},
        "train.tsv has no query with a relevant document, expected scores above 0",
    ),
    "too few queries": (
        {"qrels/train.tsv": "query-id\tcorpus-id\tscore\n1\td1\t1\n"},
        "has 1 queries to train on, of which task.dev_fraction=0.25 cannot hold out dev: give qrels/dev.tsv",
    ),
    "an id twice": (
        {"queries.jsonl": '{"_id": "1", "text": "a"}\n{"_id": 1, "text": "b"}\n'},
        "queries.jsonl, line 2: the id 1 is there twice, expected it once",
    ),
    "a missing id": ({"queries.jsonl": '{"_id": "1", "text": "a"}\n{"text": "b"}\n'}, "line 2: column _id is None"),
    "a query that is no text": ({"queries.jsonl": '{"_id": "1", "text": 3}\n'}, "line 1: column text is 3, expected t"),
    "a missing column": ({"queries.jsonl": '{"_id": "1", "query": "a"}\n'}, "queries.jsonl has no column text: it has"),
    "two corpora": ({"corpus.jsonl": '{"_id": "1", "text": "a"}\n'}, "has corpus.jsonl and corpus.jsonl.gz: move one"),
}


@pytest.mark.parametrize(("files", "expected"), MISTAKES.values(), ids=MISTAKES.keys())
def test_sets_that_cannot_be_read_are_named(directory: Path, files: dict[str, str], expected: str) -> None:
    for name, content in files.items():
        (directory / name).write_text(content)
    with pytest.raises(UserError, match=expected):
        embedding(directory).read(directory)


def test_missing_sets_and_mixed_metrics_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"task embedding has no data of its own: give task.data_dir=DIR, expected cor"):
        embedding(tmp_path, data_dir=None).read(tmp_path)
    with pytest.raises(UserError, match=r"nowhere is no directory, expected corpus.jsonl, queries.jsonl, and qrels"):
        embedding(tmp_path / "nowhere").read(tmp_path)
    with pytest.raises(UserError, match=r"has no corpus.jsonl: expected corpus.jsonl, queries.jsonl, and qrels"):
        embedding(tmp_path).read(tmp_path)
    with pytest.raises(OptionError, match=r"expected those of pairs \(spearman, pearson\), those of rankings \(ndcg@1"):
        embedding(tmp_path, metrics=["ndcg@10", "spearman"])


# A whole run


def test_a_teacher_finds_the_negatives_of_a_run(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    directory = write_set(tmp_path / "set", documents=40, queries=39)
    encoder = toy_bert(len(tokenizer), layers=1, initializer_range=0.05).bert
    teacher = d.Teacher(encoder, tokenizer, accept_weak=True, cache_dir=tmp_path / "cache")
    result = d.distill(
        teacher, d.students.distilbert(depth=1), embedding(directory, negatives=2, negatives_by="teacher"),
        objective=d.Objective(negatives=d.MultipleNegatives()), directory=tmp_path / "run",
        trainer=d.TrainerSettings(batch_size=16, precision="32-true", learning_rate=1e-3, max_steps=2),
        export=d.ExportSettings(enabled=False),
    )  # fmt: skip
    digest = result.record["task"]["sha256"]
    assert digest != embedding(directory, negatives=2).read(tmp_path).sha256
    [entry] = (tmp_path / "cache" / "negatives").iterdir()
    vectors = np.load(entry / "vectors.npy")
    data = embedding(directory, negatives=2, negatives_by="teacher").read(tmp_path)
    assert vectors.shape == (len(data.scoring.data.texts.judged["train"]) + 40, 32)
    assert data.mine(data, lambda texts: vectors).sha256 == digest


def test_queries_with_the_text_of_a_training_query_are_counted(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Query a has the text of query 0 under another id, and query 1 is in train and dev itself."""
    rows = read_lines(directory / "queries.jsonl")
    same = json.dumps({"_id": "a", "text": json.loads(rows[0])["text"]})
    (directory / "queries.jsonl").write_text("\n".join([*rows, same]))
    write_judgements(directory, "dev", "a\td0\t1", "1\td1\t1", "20\td20\t1")
    embedding(directory).read(directory)
    notices = " ".join(capsys.readouterr().out.split())
    assert "2 of 3 queries of dev have the same text as one of train (a, 1), so that the scores of dev may" in notices
    assert "queries of test" not in notices


def write_nano(directory: Path, source: Path) -> None:
    """Writes a set again as NanoBEIR has it: Parquet in folders, and judgements without scores."""
    rows = {
        "corpus": [
            json.loads(line) for line in gzip.decompress((source / "corpus.jsonl.gz").read_bytes()).splitlines()
        ],
        "queries": [json.loads(line) for line in (source / "queries.jsonl").read_text().splitlines()],
    }
    lines = [line.split("\t") for line in (source / "qrels" / "test.tsv").read_text().splitlines()[1:]]
    rows["qrels"] = [{"query-id": query, "corpus-id": document} for query, document, _ in lines]
    for name, table in rows.items():
        (directory / name).mkdir(parents=True)
        content = [{key: str(value) for key, value in row.items()} for row in table]
        pq.write_table(pa.Table.from_pylist(content), directory / name / "train-00000-of-00001.parquet")


def test_further_sets_of_a_folder_have_corpora_of_their_own(directory: Path, tmp_path: Path) -> None:
    write_nano(tmp_path / "sets" / "first", directory)
    write_set(tmp_path / "sets" / "second", documents=30, queries=20)
    data = embedding(directory, transfer={"nano": str(tmp_path / "sets")}).read(tmp_path)
    assert data.sizes() == {"train": 28, "dev": 4 + 60, "test": 6 + 60, "nano-first": 6 + 60, "nano-second": 6 + 30}
    judgements = data.scoring.data
    for name in ("test", "nano-first", "nano-second"):
        split = data.splits[name]
        texts = {int(label): text for [text], label in zip(split["texts"], split.labels.tolist(), strict=True)}
        relevant = [texts[-1 - document] for label in texts if label >= 0 for document in judgements.gains[label]]
        vectors = np.array([[float(len(text)), 1.0, index] for index, text in enumerate(texts.values())], np.float32)
        columns = data.scoring.condense(Scores({"logits": vectors}, split.labels, np.arange(len(split)))).columns
        assert (len(relevant), len(columns["ndcg@10"])) == (12, 6)
    with pytest.raises(UserError, match=r"task.transfer.nano=.*nowhere is no directory, expected a retrieval set or s"):
        embedding(directory, transfer={"nano": str(tmp_path / "nowhere")}).read(tmp_path)


def test_a_student_searches_among_the_documents_of_its_teacher_with_the_prompts_of_both_roles(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    library = pytest.importorskip("sentence_transformers", reason="needs it, of the extra dev")
    directory = write_set(tmp_path / "set", documents=40, queries=39)
    (tmp_path / "encoder").mkdir()
    toy_bert(len(tokenizer), layers=2, initializer_range=0.3).bert.save_pretrained(tmp_path / "encoder")
    tokenizer.save_pretrained(tmp_path / "encoder")
    prompts = {"query": "film ", "document": "a great film "}
    teacher = d.Teacher.from_pretrained(
        str(tmp_path / "encoder"), prompts=prompts, accept_weak=True, cache_dir=tmp_path / "cache"
    )
    result = d.distill(
        teacher, d.students.distilbert(depth=1), embedding(directory), directory=tmp_path / "run",
        trainer=d.TrainerSettings(batch_size=16, precision="32-true", learning_rate=1e-3, max_steps=2),
        export=d.ExportSettings(formats=["fp32"], dimensions=[8]), benchmark=d.BenchmarkSettings(enabled=False),
    )  # fmt: skip
    own, among = (
        [form for form in result.record["export"]["fp32"]["vectors"] if form["documents"] == documents]
        for documents in ("own", "teacher")
    )
    assert len(own) == len(among) == len(result.record["teacher"]["vectors"]) == 5
    bundle = d.Bundle(tmp_path / "run" / "bundle")
    assert bundle.prompts == prompts
    encoder = library.SentenceTransformer(str(tmp_path / "run" / "student"), device="cpu")
    texts = ["the best film", "no plot"]
    for name, encode in (("query", encoder.encode_query), ("document", encoder.encode_document)):
        np.testing.assert_allclose(bundle.encode(texts, prompt_name=name), encode(texts), atol=1e-5)
    [[(row, cosine)]] = bundle.search(texts[:1], texts, k=1)
    expected = bundle.encode(texts[:1], prompt_name="query") @ bundle.encode(texts, prompt_name="document").T
    assert (row, cosine) == (expected.argmax(), pytest.approx(expected.max(), abs=1e-6))
