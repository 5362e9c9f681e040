"""Whole runs of the static student, from its training to its bundle and its directory of model2vec."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertModel, PreTrainedTokenizerBase

import distill as d
from distill.core.errors import UserError
from tests.conftest import LABELS, sentences, toy_bert

TEXTS = ["a lovely and moving film", "stale , cold and stupid", "zzqx i hated every minute"]
SIZES = {"dim": 16, "classifier_dim": 8}


def task_on(rows: int = 24, *, vectors: bool) -> Any:
    pairs, labels = zip(*sentences(rows), strict=True)
    if not vectors:
        names = [LABELS[label] for label in labels]
        return d.tasks.Classification(train=(pairs, names), dev=(pairs[:8], names[:8]), max_length=32)
    train = {"sentence1": pairs, "sentence2": pairs[::-1], "score": [float(n % 5) for n in range(rows)]}
    return d.tasks.Embedding(train=train, dev={name: column[:8] for name, column in train.items()}, max_length=32)


def distill(root: Path, tokenizer: PreTrainedTokenizerBase, *, vectors: bool, buckets: int, **export: Any) -> Any:
    torch.manual_seed(0)
    bert = toy_bert(len(tokenizer), layers=2)
    teacher = d.Teacher(
        BertModel(bert.config) if vectors else bert, tokenizer, accept_weak=True, cache_dir=root / "cache"
    )
    soft: d.Term = d.EmbeddingMSE() if vectors else d.SoftTargets()
    limits = {"max_drop": 1.0, "min_agreement": 0.0, "max_probability_diff": 1.0, "max_ece_rise": 1.0}
    return d.distill(
        teacher, d.students.static(buckets=buckets, **SIZES), task_on(vectors=vectors),
        objective=d.Objective(soft=soft),
        trainer=d.TrainerSettings(
            learning_rate=1e-3, embeddings_learning_rate=1e-2, batch_size=8, max_epochs=1, precision="32-true"
        ),
        export=d.ExportSettings(recipes=["rows"], **limits, **export), directory=root / "run",
        benchmark=d.BenchmarkSettings(enabled=False, batches=[1], lengths=[8]),
    )  # fmt: skip


def test_model2vec_and_sentence_transformers_have_the_vectors_of_the_bundle(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    model2vec = pytest.importorskip("model2vec", reason="needs model2vec, of the extra dev")
    transformers = pytest.importorskip("sentence_transformers", reason="needs it, of the extra dev")
    distill(tmp_path, tokenizer, vectors=True, buckets=0, model2vec=True)
    directory, expected = (
        tmp_path / "run" / "model2vec",
        d.Bundle(tmp_path / "run" / "bundle", model="fp32").encode(TEXTS),
    )
    assert np.linalg.norm(expected, axis=1) == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(model2vec.StaticModel.from_pretrained(directory).encode(TEXTS), expected, atol=1e-5)
    encoder = transformers.SentenceTransformer(str(directory), device="cpu")
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-5)


def test_model2vec_is_refused_before_the_training(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has student\.buckets=64 of two pieces, which model2vec does not read"):
        distill(tmp_path, tokenizer, vectors=True, buckets=64, model2vec=True)
    with pytest.raises(UserError, match=r"export\.model2vec=true is for exported students, and export\.enabled=false"):
        distill(tmp_path / "again", tokenizer, vectors=True, buckets=0, model2vec=True, enabled=False)
    teacher = d.Teacher(toy_bert(len(tokenizer)), tokenizer, accept_weak=True, cache_dir=tmp_path / "cache")
    with pytest.raises(UserError, match=r"is for a table of vectors, and student bilstm is a BilstmFor"):
        d.distill(
            teacher, d.students.bilstm(), task_on(vectors=False), directory=tmp_path / "third",
            export=d.ExportSettings(model2vec=True),
        )  # fmt: skip
