"""Tests of the gate of smaller vectors."""

import numpy as np
import pytest

import distill as d
from distill.core.contracts import Scores
from distill.core.errors import UserError
from distill.data.retrieval import Judgements
from distill.edge.bundle_files import read_manifest
from distill.export.gate import TorchScores, judge_vectors
from distill.kinds.vector_scores import PairScores, RankingScores
from distill.training import statistics
from tests.edge.conftest import Patch, Write


def pairs(*, width: int = 8, number: int = 200) -> Scores:
    """Returns vectors of pairs whose first 4 dimensions alone have the score of the pair."""
    random = np.random.default_rng(0)
    vectors = random.normal(size=(2 * number, width)).astype(np.float32)
    vectors[1::2, :4] = vectors[::2, :4] + vectors[1::2, :4] * random.uniform(0, 3, size=(number, 1))
    first, second = vectors[::2, :4], vectors[1::2, :4]
    labels = (first * second).sum(axis=1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    return Scores({"logits": vectors}, np.repeat(labels, 2), np.repeat(np.arange(number), 2))


def test_the_metric_of_first_dimensions_is_that_of_vectors_cut_off(monkeypatch: Patch) -> None:
    monkeypatch.setattr(statistics, "METRIC_RESAMPLES", 100)
    scoring, scores = PairScores(("spearman", "pearson")), pairs()
    settings = d.ExportSettings(dimensions=[1, 4, 8], max_vector_drop=0.1)
    torch = TorchScores(scoring, {"dev": scores})
    narrow, best, whole = torch.measure_vectors({"dev": scores, "test": scores}, settings)
    cut = Scores({"logits": scores.columns["logits"][:, :1]}, scores.labels, scores.example_id)
    for name, value in scoring.metrics(cut).items():
        assert narrow["metrics"][name] == narrow["metrics"][f"test/{name}"] == pytest.approx(value)
    assert best["metrics"]["spearman"] == pytest.approx(1.0, abs=1e-4)
    reference = scoring.metrics(scores)["spearman"]
    assert narrow["drop"] == pytest.approx(reference - narrow["metrics"]["spearman"])
    assert narrow["kept"] == pytest.approx(narrow["metrics"]["spearman"] / reference)
    assert [of["gate"] for of in (narrow, best, whole)] == ["failed", "passed", "passed"]
    assert narrow["reason"] == f"drop {narrow['drop']:.4f}, the limit is 0.1"
    assert (whole["dimensions"], whole["drop"], whole["kept"]) == (8, 0.0, 1.0)
    assert torch.measure_vectors({"dev": scores}, d.ExportSettings()) == []


def test_a_retrieval_set_has_every_precision_of_a_search() -> None:
    random = np.random.default_rng(0)
    documents = random.normal(size=(300, 64)).astype(np.float32)
    queries = documents[:30] + 0.8 * random.normal(size=(30, 64)).astype(np.float32)
    labels = np.array([*range(30), *(-1 - np.arange(300))], dtype=np.float32)
    scores = Scores({"logits": np.concatenate([queries, documents])}, labels, np.arange(330))
    data = Judgements(tuple({query: 1} for query in range(30)), tuple(map(str, range(300))))
    scoring = RankingScores(("ndcg@10", "mrr@10"), data=data)
    entries = TorchScores(scoring, {"dev": scores}).measure_vectors(
        {"dev": scores}, d.ExportSettings(dimensions=[16, 64])
    )
    forms = [(of["dimensions"], of["precision"], of["rescore"]) for of in entries]
    assert forms == [(16, "float32", 0), (64, "float32", 0), (64, "int8", 0), (64, "binary", 0), (64, "binary", 4)]
    narrow, whole, int8, binary, rescored = (of["metrics"]["ndcg@10"] for of in entries)
    assert whole == scoring.metrics(scores)["ndcg@10"]
    assert int8 == pytest.approx(whole, abs=0.02)
    assert narrow < whole
    assert binary < rescored


def test_the_gate_of_smaller_vectors() -> None:
    assert judge_vectors(0.03, [0.0, 0.06], 0.03) == ("passed", None)
    assert judge_vectors(0.031, [0.001, 0.04], 0.03) == ("failed", "drop 0.0310, the limit is 0.03")
    noise = "drop 0.0310, the limit is 0.03, and it may be noise (95% interval from 0.0000)"
    assert judge_vectors(0.031, [0.0, 0.04], 0.03) == ("undecided", noise)
    gate, reason = judge_vectors(0.01, [-0.1, 0.07], 0.03)
    assert (gate, reason) == ("undecided", "the drop may be up to 0.0700 (95% interval), the limit is 0.06")
    assert judge_vectors(float("nan"), [0.0, 0.0], 0.03)[0] == "failed"


def test_a_bundle_names_the_dimensions_that_passed(write: Write) -> None:
    content = read_manifest(write("vectors"))
    forms = [
        {"dimensions": size, "precision": precision, "rescore": 0, "gate": gate, "kept": 0.9}
        for size, precision, gate in (
            (2, "float32", "passed"), (1, "float32", "failed"), (2, "int8", "passed"), (3, "float32", "undecided"),
        )
    ]  # fmt: skip
    assert d.Bundle(write("vectors", vectors={content["recommended"]: forms})).dimensions == [2]
    wrong: object
    for wrong in ([], {"fp32": [{"dimensions": "2"}]}, {"fp32": [{"dimensions": 2, "precision": "int8"}]}):
        with pytest.raises(UserError, match="vectors is .*, expected the smaller forms of each model's vec"):
            d.Bundle(write("vectors", vectors=wrong))
