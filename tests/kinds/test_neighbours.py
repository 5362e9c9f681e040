"""Tests of texts without judgements: their nearest ones by student and teacher, roles, and a whole run."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from transformers import PreTrainedTokenizerBase

import distill as d
from distill.core.contracts import Scores
from distill.core.errors import OptionError, UserError
from distill.kinds import Embedding
from distill.kinds.kind import Encoder
from distill.kinds.neighbour_scores import NeighbourScores
from distill.models.sentence_files import set_prompts
from tests.conftest import BAD, GOOD, toy_bert

WORDS = " ".join((*GOOD, *BAD)).replace(",", "").split()
RANDOM = np.random.default_rng(0)
TEXTS = [" ".join(RANDOM.choice(WORDS, 6)) for _ in range(240)]


def write(path: Path, texts: list[str]) -> Path:
    path.write_text("\n".join(texts) + "\n")
    return path


def scores_of(vectors: np.ndarray) -> Scores:
    return Scores({"logits": vectors}, np.arange(len(vectors), dtype=np.float32), np.arange(len(vectors)))


def test_each_different_line_is_a_text_and_empty_ones_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = Embedding(data_dir=write(tmp_path / "texts.txt", [*TEXTS, "", TEXTS[0].upper()]))
    data = task.read(tmp_path)
    output = " ".join(capsys.readouterr().out.split())
    assert "lines that are empty and left out: 1" in output
    assert "texts that are there more than once and are left out: 1" in output
    assert data.sizes() == {"train": 216, "dev": 24}
    assert data.splits["dev"].labels.tolist() == list(range(24))
    assert data.scoring.names == ("overlap@10", "cosine")
    table = {"body": TEXTS}
    assert Embedding(text="body", train=table, dev=table).read(tmp_path).sizes() == {"train": 240, "dev": 240}


def test_the_share_and_the_cosine_are_those_of_their_definitions() -> None:
    teacher = RANDOM.normal(size=(60, 8)).astype(np.float32)
    own = teacher + RANDOM.normal(size=teacher.shape).astype(np.float32)
    scoring = NeighbourScores(("overlap@10", "cosine"), vectors=teacher)
    unit = [vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (own, teacher)]
    nearest = [np.argsort(-(of @ of.T - 9 * np.eye(60)), axis=1)[:, :10] for of in unit]
    shares = [len(set(first) & set(second)) / 10 for first, second in zip(*nearest, strict=True)]
    metrics = scoring.metrics(scores_of(own))
    assert metrics["overlap@10"] == pytest.approx(np.mean(shares))
    assert metrics["cosine"] == pytest.approx((unit[0] * unit[1]).sum(axis=1).mean(), abs=1e-6)
    assert scoring.metrics(scores_of(teacher)) == pytest.approx({"overlap@10": 1.0, "cosine": 1.0})
    wider = np.concatenate([teacher, np.zeros_like(teacher)], axis=1)
    assert scoring.metrics(scores_of(wider)) == pytest.approx({"overlap@10": 1.0, "cosine": 0.0})
    [(form, cut)] = scoring.narrow(scores_of(teacher), [4])
    assert (form.dimensions, cut.columns["cosine"].mean()) == (4, pytest.approx(1.0))


def test_queries_are_compared_with_documents_and_each_begins_with_its_prompt(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    write(tmp_path / "queries.txt", TEXTS[:120])
    with pytest.raises(UserError, match=r"has no documents.txt beside the other one: give both, or one file"):
        Embedding(data_dir=tmp_path).read(tmp_path)
    write(tmp_path / "documents.txt", TEXTS[120:])
    task = Embedding(data_dir=tmp_path)
    data = task.read(tmp_path)
    dev = data.splits["dev"]
    queries = np.flatnonzero(dev["is_query"])
    teacher = RANDOM.normal(size=(len(dev), 8)).astype(np.float32)
    known = data.scoring.with_teacher(data, {"dev": scores_of(teacher)}).scoring
    condensed = known.condense(scores_of(teacher))
    assert condensed.example_id.tolist() == queries.tolist()
    assert condensed.columns["overlap@10"].tolist() == [1.0] * len(queries)
    prompted, notices = set_prompts(tokenizer, {"query": "film ", "passage": "text "}, None, "toy")
    assert notices == ["toy has prompts (query 'film ', passage 'text '): query and document begin the texts of a "
                       "retrieval set, and others have none"]  # fmt: skip
    began = task.prompted(data, prompted)
    expected = {True: "film ", False: "text "}
    rows = zip(dev["texts"], began.splits["dev"]["texts"], dev["is_query"].tolist(), strict=True)
    assert all(after == [expected[is_query] + before[0]] for before, after, is_query in rows)
    assert task.prompted(began, prompted) is began
    assert began.scoring.describe(began)["prompts"] == {"query": "film ", "document": "text "}
    streamed = task.encode_texts(Encoder(prompted, 24, None), data, task.create_rows([["lovely"]]))
    assert streamed.column("input_ids").tolist() == prompted("text lovely")["input_ids"]
    with pytest.raises(UserError, match="toy has no prompt mail, expected one of query, passage"):
        set_prompts(tokenizer, {"query": "film ", "passage": "text "}, "mail", "toy")


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (["the same"] * 50, {}, r"texts.txt has 1 different texts, expected at least 20"),
        (TEXTS[:25], {}, r"texts.txt, .* has 3 texts in dev, expected more than 10 that are near"),
        (TEXTS, {"metrics": ["ndcg@10"]}, r"expected \[overlap@10,cosine\] for single texts, which have no scores"),
    ],
)
def test_too_few_texts_and_other_metrics_are_refused(
    texts: list[str], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "texts.txt", texts)
    with pytest.raises((UserError, OptionError), match=message):
        Embedding(data_dir=path, **options).read(tmp_path)


def test_a_student_of_texts_alone_is_chosen_and_gated_by_the_nearest_ones_of_its_teacher(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    encoder = toy_bert(len(tokenizer), layers=1, initializer_range=0.05).bert
    teacher = d.Teacher(encoder, tokenizer, accept_weak=True, cache_dir=tmp_path / "cache")
    student = d.students.bilstm(hidden_dim=8, init="random")
    result = d.distill(
        teacher, student, Embedding(data_dir=write(tmp_path / "texts.txt", TEXTS), max_length=24),
        directory=tmp_path / "run",
        trainer=d.TrainerSettings(batch_size=16, precision="32-true", learning_rate=3e-2, max_steps=30),
        export=d.ExportSettings(formats=["fp32"], layout="hub"), benchmark=d.BenchmarkSettings(enabled=False),
    )  # fmt: skip
    record = result.record
    assert record["teacher"]["metrics"]["overlap@10"] == 1.0
    assert record["export"]["fp32"]["metrics"]["overlap@10"] > record["teacher"]["constant"]["metrics"]["overlap@10"]
    bundle = d.Bundle(tmp_path / "run" / "bundle")
    vectors = bundle.encode(TEXTS[:30])
    assert vectors.shape == (30, 32)
    index = d.Index(vectors, source=bundle.space)
    index.save(tmp_path / "index")
    np.save(tmp_path / "vectors.npy", vectors)
    found = bundle.search(TEXTS[:3], TEXTS[:30], k=2)
    for given in (index, tmp_path / "index", tmp_path / "vectors.npy"):
        assert [[row for row, _ in hits] for hits in bundle.search(TEXTS[:3], index=given, k=2)] == [
            [row for row, _ in hits] for hits in found
        ]
    vectors[3, 4] = np.nan
    np.save(tmp_path / "broken.npy", vectors)
    np.save(tmp_path / "wide.npy", np.ones((3, 48), dtype=np.float32))
    (tmp_path / "index.bin").write_bytes(b"")
    for name, message in {
        "broken.npy": "broken.npy: got vectors with numbers that are not finite",
        "wide.npy": "the index has vectors 48 wide, and those of .* are 32 wide: they are of another model",
        "index.bin": r"index.bin is no index: expected a directory of Index.save, or .npy, .parquet, .faiss",
    }.items():
        with pytest.raises(UserError, match=message):
            bundle.search(TEXTS[:1], index=tmp_path / name)
    with pytest.raises(UserError, match="the index is of another model than .* and its teacher"):
        bundle.search(TEXTS[:1], index=d.Index(vectors[:3], source="another"))
    with pytest.raises(UserError, match="got both a corpus and an index, or neither"):
        bundle.search(TEXTS[:1])
    with pytest.raises(UserError, match="has no prompt 'query', expected one of none"):
        bundle.encode(TEXTS[:1], prompt_name="query")
    names = {value.name for value in onnx.load(tmp_path / "run/hub/onnx/model.onnx").graph.output}
    assert names == {"sentence_embedding", "last_hidden_state"}
