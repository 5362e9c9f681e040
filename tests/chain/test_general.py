"""Tests of the general stage that a student starts from: trained once, shared, resumed, planned and refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from distill.builtin.students.distilbert import from_teacher
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerBase

import distill as d
from distill.errors import UserError
from distill.training.module import DistillationModule
from tests.conftest import sentences, toy_bert, write_corpus

TEXTS, CLASSES = (list(column) for column in zip(*sentences(40), strict=True))
STAGE: dict[str, Any] = {"tokens": 512, "passes": 2, "batch_size": 4, "max_length": 16, "documents": "line"}


TASK = d.tasks.Classification(text="text", train=(TEXTS, CLASSES), dev=(TEXTS[:8], CLASSES[:8]), max_length=24)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def teacher(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> d.Teacher:
    torch.manual_seed(0)
    model = toy_bert(len(tokenizer), layers=4)
    model.config.id2label, model.config.label2id = {0: "0", 1: "1"}, {"0": 0, "1": 1}
    return d.Teacher(model, tokenizer, accept_weak=True, cache_dir=tmp_path / "cache")


def distil(
    teacher: d.Teacher, directory: Path, corpus: Path | None, task: Any = TASK, *, student: Any = None,
    stage: dict[str, Any] = STAGE, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    general = stage | ({} if corpus is None else {"corpus": str(corpus)})
    given: dict[str, Any] = {"depth": 2, "init": "general", "general": general} | options
    d.distill(
        teacher, student or d.students.distilbert(**given), task,
        trainer=d.TrainerSettings(learning_rate=1e-9, batch_size=8, max_steps=1, precision="32-true"),
        export=d.ExportSettings(enabled=False), directory=directory, baseline=False, augment=None,
        benchmark=d.BenchmarkSettings(enabled=False),
    )  # fmt: skip
    record: dict[str, Any] = json.loads((directory / "run.json").read_text())
    return record


def test_every_task_starts_from_the_encoder_that_is_trained_once(
    teacher: d.Teacher, tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = distil(teacher, tmp_path / "first", corpus)["general"]
    assert record["steps"] == 2 * 512 // (4 * 16)
    assert record["distance"]["after"] < record["distance"]["before"]
    assert "general stage" in capsys.readouterr().out
    [entry] = (tmp_path / "cache" / "general").iterdir()
    assert entry.name == record["entry"]
    texts = [text.upper() for text in TEXTS]
    other = d.tasks.Classification(text="text", train=(texts, CLASSES), dev=(texts[:8], CLASSES[:8]), max_length=16)
    again = distil(teacher, tmp_path / "second", corpus, other)["general"]
    assert again == record
    assert "trained before" in capsys.readouterr().out
    # The learning rate of the students is so small that their encoders are those of the stage.
    expected = load_file(entry / "model.safetensors")
    for name in ("first", "second"):
        tensors = load_file(tmp_path / name / "student" / "model.safetensors")
        found = tensors["distilbert.transformer.layer.1.ffn.lin1.weight"]
        torch.testing.assert_close(found, expected["transformer.layer.1.ffn.lin1.weight"], rtol=0, atol=1e-6)
