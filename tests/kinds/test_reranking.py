"""Tests of reranking: candidates, lists of train, metrics, mistakes, and a run."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from transformers import BertForSequenceClassification, PreTrainedTokenizerBase

import distill as d
from distill.core.contracts import Scores
from distill.core.errors import OptionError, UserError
from distill.data import batches
from distill.edge.decoder import MASKED
from distill.kinds import Reranking
from distill.kinds.reranking import find_candidates
from distill.rows.formats import read_lines
from distill.teachers.prepared import compare_with_constant
from tests.conftest import LOOSE, toy_bert
from tests.kinds.test_retrieval import write_judgements, write_set


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_set(tmp_path / "set")


def reranking(directory: Path, **options: Any) -> Reranking:
    return Reranking(
        **{"data_dir": directory, "top": 8, "negatives": 3, "dev_fraction": 0.25, "max_length": 32, **options}
    )


def read_corpus(directory: Path) -> list[str]:
    rows = [json.loads(line) for line in read_lines(directory / "corpus.jsonl.gz")]
    return [f"{row['title']} {row['text']}" for row in rows]


# Lists


def test_a_row_of_train_is_a_relevant_document_before_candidates_that_are_not_relevant(directory: Path) -> None:
    data = reranking(directory).read(directory)
    train, corpus = data.splits["train"], read_corpus(directory)
    queries = {json.loads(line)["text"]: json.loads(line)["_id"] for line in read_lines(directory / "queries.jsonl")}
    candidates = dict(
        zip(queries.values(), find_candidates("bm25", list(queries), corpus, 8, None), strict=True)
    )  # fmt: skip
    assert len(train) == 2 * 14  # Both relevant documents of each query.
    for query, documents, label in zip(train["query"], train["documents"], train.labels, strict=True):
        number = queries[query]
        relevant, others = {corpus[number], corpus[number + 1]}, {corpus[each] for each in candidates[number]}
        assert label == 0
        assert documents[0] in relevant
        assert len(set(documents)) == 4
        assert set(documents[1:]) <= others - relevant
    again = reranking(directory).read(directory)
    assert again.sha256 == data.sha256
    assert again.splits["train"].records() == train.records()
    assert len(reranking(directory, train_examples=5).read(directory).splits["train"]) == 5


def test_dev_and_test_have_all_candidates_in_the_order_of_the_search(directory: Path) -> None:
    data, corpus = reranking(directory).read(directory), read_corpus(directory)
    for name, size in (("dev", 4), ("test", 6)):
        split = data.scored()[name]
        assert len(split) == size
        found = find_candidates("bm25", split["query"], corpus, 8, None)
        assert split["documents"] == [[corpus[number] for number in row] for row in found]
        assert [list(data.scoring.data.candidates[number]) for number in split.labels] == found
    assert data.labels == ("score",)
    assert len(reranking(directory, dev_examples=2).read(directory).splits["dev"]) == 2


def test_more_candidates_change_the_digest(directory: Path) -> None:
    assert reranking(directory).read(directory).sha256 != reranking(directory, top=9).read(directory).sha256


# Metrics


def test_a_document_that_is_found_is_at_its_place_and_one_that_is_missed_counts(directory: Path) -> None:
    """The relevant documents of a query have the gains 2 and 1, and the better one is put in the third place."""
    write_judgements(directory, "dev", "3\td3\t2", "3\td4\t1")
    data = reranking(directory).read(directory)
    scoring, dev = data.scoring, data.splits["dev"]
    candidates = list(scoring.data.candidates[0])
    logits = np.full((1, 8), MASKED, dtype=np.float32)
    logits[0, : len(candidates)] = -np.arange(len(candidates)) - 10.0
    rest = [place for place, number in enumerate(candidates) if number not in (3, 4)]
    logits[0, candidates.index(3)] = 1
    logits[0, rest[:2]] = (3, 2)
    if 4 in candidates:
        logits[0, candidates.index(4)] = -100
    scores = Scores({"logits": logits}, dev.labels, np.arange(1))
    later = 1 / math.log2(len(candidates) + 1) if 4 in candidates else 0
    assert scoring.metrics(scores)["ndcg@10"] == pytest.approx((2 / 2 + later) / (2 + 1 / math.log2(3)))
    assert scoring.metrics(scores)["mrr@10"] == pytest.approx(1 / 3)
    table = scoring.tabulate(scores, data, examples=1)
    assert table["label"] == [["d3", "d4"]]
    assert table["prediction"][0][:3] == [f"d{candidates[rest[0]]}", f"d{candidates[rest[1]]}", "d3"]


def test_the_order_of_the_search_is_the_constant_prediction(directory: Path) -> None:
    data = reranking(directory, metrics=["ndcg@10", "mrr@10", "recall@10"]).read(directory)
    scoring, dev = data.scoring, data.splits["dev"]
    [constant] = scoring.constants(Scores({}, dev.labels, np.arange(len(dev))))
    assert constant.answer == "the order of BM25"
    equal = Scores({"logits": np.zeros((len(dev), 8), dtype=np.float32)}, dev.labels, np.arange(len(dev)))
    metrics = scoring.metrics(constant.predict(equal))
    assert metrics == scoring.metrics(equal)  # Of equal scores the first candidate comes first.
    assert f"of which the order of BM25 has ndcg@10 {metrics['ndcg@10']:.4f}" in scoring.summary(data)
    assert 0 < metrics["ndcg@10"] < 1
    worst = Scores({"logits": -constant.predict(equal).columns["logits"].clip(-50, 50)}, dev.labels, np.arange(4))
    comparison = compare_with_constant(scoring, {"dev": worst})
    assert comparison is not None
    assert "worse than a constant prediction on the 4 examples of dev" in str(comparison.weakness)
    assert scoring.example_metric(worst).mean() == pytest.approx(scoring.metrics(worst)["ndcg@10"])


def test_models_agree_where_their_scores_differ_by_little(directory: Path) -> None:
    data = reranking(directory).read(directory)
    scoring, labels = data.scoring, data.splits["dev"].labels
    logits = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    logits[1, 6:] = MASKED
    reference, changed = (Scores({"logits": of.copy()}, labels, np.arange(4)) for of in (logits, logits))
    assert (scoring.agreement(changed, reference), scoring.probability_diff(changed, reference)) == (1.0, 0.0)
    changed.columns["logits"][0, 0] += np.ptp(logits[logits > MASKED]) / 2
    assert scoring.agreement(changed, reference) == pytest.approx(29 / 30)
    assert scoring.probability_diff(changed, reference) == pytest.approx(0.5, abs=1e-5)
    assert scoring.calibration_error(reference) is None


def test_documents_that_are_scored_in_parts_have_the_same_scores(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of at most 30 tokens, the longest document, are the parts: 30, 2 x 12, 3 x 9 and 3."""
    monkeypatch.setattr(batches, "SCORED_TOKENS", 24)
    model, sizes = toy_bert(len(tokenizer)).eval(), []
    valid = torch.tensor([[True] * 5, [True, True, False, False, False]])
    mask = (torch.arange(30) < torch.tensor([3, 12, 5, 12, 4, 9, 30])[:, None]).long()
    batch = {
        "input_ids": torch.randint(5, len(tokenizer), (7, 30)), "attention_mask": mask, "valid": valid,
        "labels": torch.zeros(2, dtype=torch.long), "example_id": torch.arange(2),
    }  # fmt: skip
    model.classifier = torch.nn.Linear(32, 1)
    model.register_forward_pre_hook(lambda _, args, inputs: sizes.append(inputs["input_ids"].shape), with_kwargs=True)
    task = Reranking(data_dir=".")
    whole = task.run(model, batch, task.select(batch), frozenset()).logits
    with torch.no_grad():
        parts = task.run(model, batch, task.select(batch), frozenset()).logits
    assert whole is not None
    torch.testing.assert_close(parts, whole.detach(), atol=1e-5, rtol=1e-4)
    assert sizes[0] == (7, 30)
    assert sorted(sizes[1:]) == [(1, 3), (1, 30), (2, 12), (3, 9)]


# Mistakes


def test_options_that_cannot_be_are_named(directory: Path) -> None:
    with pytest.raises(OptionError, match=r"got top=1, expected a whole number of at least 2"):
        reranking(directory, top=1)
    with pytest.raises(OptionError, match=r"got negatives=0, expected a whole number of at least 1"):
        reranking(directory, negatives=0)
    with pytest.raises(OptionError, match=r"expected a list of some of ndcg@10, mrr@10, recall@10"):
        reranking(directory, metrics=["accuracy"])
    with pytest.raises(UserError, match=r"task reranking has no data of its own: give task.data_dir=DIR, expected cor"):
        reranking(directory, data_dir=None).read(directory)


def write_query(directory: Path, text: str) -> None:
    """Adds the query `q`, of which dev has the only judgement."""
    rows = [*read_lines(directory / "queries.jsonl"), json.dumps({"_id": "q", "text": text})]
    (directory / "queries.jsonl").write_text("\n".join(rows))
    write_judgements(directory, "dev", "q\td0\t1")


def test_queries_without_candidates_are_refused(directory: Path) -> None:
    write_query(directory, "xylophone")
    with pytest.raises(
        UserError,
        match=r"dev: bm25 finds no document for 1 of 1 queries \(the first one is q: 'xylophone'\), and without",
    ):
        reranking(directory).read(directory)


def test_a_split_whose_candidates_are_all_irrelevant_is_refused(directory: Path) -> None:
    corpus = read_corpus(directory)
    write_query(directory, corpus[40])
    with pytest.raises(UserError, match=r"dev: none of the first 2 documents by bm25 is relevant to its query, so tha"):
        reranking(directory, top=2).read(directory)


def test_queries_without_a_relevant_document_are_left_out_or_refused(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_judgements(directory, "dev", "20\td20\t0", "21\td21\t1")
    assert len(reranking(directory).read(directory).splits["dev"]) == 1
    assert "because they are empty or have no relevant document: 1" in " ".join(capsys.readouterr().out.split())
    write_judgements(directory, "dev", "20\td20\t0")
    with pytest.raises(UserError, match=r"dev.tsv has no query with a relevant document, expected scores above 0"):
        reranking(directory).read(directory)


def test_train_needs_a_candidate_that_is_not_relevant(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every = [f"0\td{number}\t1" for number in range(60)]
    write_judgements(directory, "dev", "20\td20\t1")
    write_judgements(directory, "train", *every, "1\td1\t1")
    assert set(reranking(directory).read(directory).splits["train"]["query"]) == {
        json.loads(read_lines(directory / "queries.jsonl")[1])["text"]
    }
    assert "they have no candidate that is not relevant: 1" in " ".join(capsys.readouterr().out.split())
    write_judgements(directory, "train", *every)
    with pytest.raises(UserError, match=r"has no query of train with a relevant document and a candidate that is not"):
        reranking(directory).read(directory)


def test_a_directory_that_is_no_bundle_finds_no_candidates(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"task.candidates=.*nowhere: .* is no bundle: .*; expected bm25 or a bundle o"):
        reranking(directory, candidates=tmp_path / "nowhere").read(directory)


# A run


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerBase) -> d.Result:
    root = tmp_path_factory.mktemp("reranking")
    config = toy_bert(len(tokenizer), layers=2).config
    config.num_labels = 1
    teacher = d.Teacher(BertForSequenceClassification(config), tokenizer, accept_weak=True, cache_dir=root / "cache")
    objective = d.Objective(lists=d.SoftTargets(temperature=1.0), margins=d.LogitMarginMSE(weight=0.1))
    return d.distill(
        teacher, d.students.distilbert(), reranking(write_set(root / "set")), objective=objective,
        directory=root / "run", export=replace(LOOSE, formats=("fp32",)),
        trainer=d.TrainerSettings(batch_size=8, precision="32-true", learning_rate=3e-3, max_steps=2),
        benchmark=d.BenchmarkSettings(enabled=False, batches=[1], lengths=[8]),
    )  # fmt: skip


def test_a_run_has_the_metrics_of_the_new_order_beside_those_of_the_search(result: d.Result) -> None:
    record = result.record
    assert record["task"]["metric"] == "ndcg@10"
    assert (record["task"]["kind"], record["task"]["first_stage"]) == ("reranking", "BM25")
    assert result.metrics.keys() == {"ndcg@10", "mrr@10", "test/ndcg@10", "test/mrr@10"}
    assert record["teacher"]["constant"]["answer"] == "the order of BM25"
    of_file = record["export"]["fp32"]["metrics"]["test/ndcg@10"]
    assert of_file == pytest.approx(result.metrics["test/ndcg@10"], abs=1e-6)
    assert "the order of BM25" in (result.directory / "report.md").read_text()


def test_the_bundle_ranks_the_documents_as_the_student(result: d.Result) -> None:
    table = pandas.read_parquet(result.directory / "predictions.parquet")
    bundle = d.Bundle(result.directory / "bundle", model="fp32")
    corpus = {text: f"d{number}" for number, text in enumerate(read_corpus(result.directory.parent / "set"))}
    for _, row in table[table.split == "test"].iterrows():
        ranking = bundle.rank(row["query"], list(row["documents"]))
        assert len(ranking["scores"]) == len(row["documents"])
        assert ranking["order"] == sorted(range(len(ranking["scores"])), key=lambda i: -ranking["scores"][i])
        assert [corpus[row["documents"][position]] for position in ranking["order"]] == list(row["student_prediction"])
        alone = [bundle.rank(row["query"], [text])["scores"][0] for text in row["documents"]]
        assert ranking["scores"] == pytest.approx(alone, abs=1e-4)
