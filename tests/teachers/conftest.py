"""Toy examples, prepared teachers, and the data and options of trainings whose teacher needs no labels."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from distill.core.contracts import Task
from distill.data.batches import TokenizedExamples
from distill.data.splits import LabelledData, text_split
from distill.kinds import Classification
from distill.kinds.classification import OneClass
from distill.teachers import preparation
from distill.teachers.prepared import PreparedTeacher
from distill.teachers.source import TeacherSource
from tests.conftest import LOOSE_OPTIONS, sentences

CPU = torch.device("cpu")
TASK = Classification(name="toy", text=["sentence"])
EXAMPLES = 40
INFERENCE = ("contradiction", "entailment", "neutral")
WORDS = ("dull", "lovely")


def tokenize_sentences(tokenizer: PreTrainedTokenizerBase) -> TokenizedExamples:
    texts, labels = zip(*sentences(EXAMPLES), strict=True)
    split = text_split(list(texts), labels=np.array(labels))
    splits = {"train": split, "dev": split}
    data = LabelledData(labels=("bad", "good"), splits=splits, sha256="", scoring=OneClass(("accuracy",)))
    return TASK.encode(data, tokenizer, None)["train"]


@pytest.fixture
def examples(tokenizer: PreTrainedTokenizerBase) -> TokenizedExamples:
    return tokenize_sentences(tokenizer)


def prepare(source: TeacherSource, task: Task, directory: Path, *, splits: Any = None, **options: Any) -> Any:
    """Returns the prepared teacher of a source, by default with the task's own data."""
    chosen = preparation.Preparation(
        task=task, splits=splits or task.read(directory), cache_dir=directory, run_directory=directory / "run",
        device=CPU, **options,
    )  # fmt: skip
    return preparation.prepare(source, chosen)


def fingerprint_of(source: TeacherSource, task: Task, splits: Any, directory: Path) -> str:
    """Returns the digest of the trained teacher of a source."""
    chosen = preparation.Preparation(
        task=task, splits=splits, cache_dir=directory, run_directory=directory / "run", device=CPU
    )
    return preparation.Tuning(source, chosen).fingerprint()


def make_prepared(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, /, **other: Any) -> PreparedTeacher:
    values = {"precision": "float32", "weights": "abc", **other}
    return PreparedTeacher(
        requested="", resolved="", origin="", tokenizer=tokenizer, load=lambda: model, device=CPU, **values,
    )  # fmt: skip


SaveInference = Callable[..., Path]


@pytest.fixture
def save_inference(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> SaveInference:
    """Returns a function that saves a small model of natural language inference with random weights."""

    def save(labels: tuple[str, ...] = INFERENCE) -> Path:
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=64, max_position_embeddings=80, initializer_range=0.5, id2label=dict(enumerate(labels)),
            label2id={label: index for index, label in enumerate(labels)},
        )  # fmt: skip
        BertForSequenceClassification(config).save_pretrained(tmp_path / "inference")
        tokenizer.save_pretrained(tmp_path / "inference")
        return tmp_path / "inference"

    return save


@pytest.fixture
def inference(save_inference: SaveInference) -> Path:
    return save_inference()


def write_texts(root: Path, *labelled: str) -> Path:
    """Writes three splits, of which these have labels."""
    directory = root / "texts"
    directory.mkdir()
    for name, count in (("train", 64), ("dev", 24), ("test", 24)):
        rows = [f"{text}\t{WORDS[label]}" if name in labelled else text for text, label in sentences(count)]
        header = "sentence\tlabel" if name in labelled else "sentence"
        (directory / f"{name}.tsv").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return directory


@pytest.fixture
def films(tmp_path: Path) -> Path:
    """Sentences with labels in train and dev."""
    directory = write_texts(tmp_path, "train", "dev")
    (directory / "test.tsv").unlink()
    return directory


def teacher_options(root: Path, *teacher: str, is_timed: bool = False) -> list[str]:
    """Returns options of a short training, which exports and times the student only if `is_timed`."""
    timing = ["export.formats=[fp32]", "benchmark.seconds=0.01", "benchmark.batches=[1]", "benchmark.lengths=[8]"]
    return [
        *teacher, "+student=distilbert", "teacher.accept_weak=true", "task=classification", "task.text=[sentence]",
        "task.max_length=40", "trainer.max_epochs=1", "trainer.batch_size=16", "trainer.precision=32-true",
        *(timing if is_timed else ["export.enabled=false", "benchmark.enabled=false"]),
        f"cache_dir={root / 'cache'}", f"output_dir={root / 'runs'}", *LOOSE_OPTIONS,
    ]  # fmt: skip


def read_run(root: Path) -> dict[str, Any]:
    [path] = (root / "runs").rglob("run.json")
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record
