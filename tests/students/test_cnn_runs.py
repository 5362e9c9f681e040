"""Whole runs of the CNN student, from its training to its bundle, for tags and for several labels."""

from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedTokenizerBase

import distill as d
from distill.core.contracts import Task
from tests.conftest import sentences, toy_bert

TEXTS = [text for text, _ in sentences(24)]
SIZES = {"hidden_dim": 12, "classifier_dim": 8, "widths": [2, 3], "dilations": [1, 2]}


def tags() -> Task:
    rows = {"tokens": [text.split() for text in TEXTS], "tags": []}
    rows["tags"] = [["B-A" if len(word) > 4 else "O" for word in words] for words in rows["tokens"]]
    return d.tasks.TokenClassification(
        train=rows, dev={name: column[:8] for name, column in rows.items()}, max_length=24
    )


def several_labels() -> Task:
    rows = {"text": TEXTS, "label": [["a"] if number % 2 else ["a", "b"] if number % 3 else [] for number in range(24)]}
    dev = {name: column[:12] for name, column in rows.items()}
    return d.tasks.Classification(text="text", label="label", multi_label=True, train=rows, dev=dev, max_length=24)


CASES = {
    "tags": (tags, "BertForTokenClassification", [{"tokens": ["a", "lovely", "film"]}]),
    "labels": (several_labels, "BertForSequenceClassification", ["a lovely film"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_run_exports_the_student_that_torch_has_trained(
    case: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Any
) -> None:
    make_task, head, records = CASES[case]
    task = make_task()
    config = toy_bert(len(tokenizer), layers=2).config
    labels = task.read(tmp_path).labels
    config.num_labels = max(1, len(labels or ()))
    if labels:
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: index for index, label in enumerate(labels)}
    torch.manual_seed(0)
    model = getattr(transformers, head)(config)
    teacher = d.Teacher(model, tokenizer, accept_weak=True, cache_dir=tmp_path / "cache")
    result = d.distill(
        teacher, d.students.cnn(**SIZES), task, objective=d.Objective(soft=d.LogitMSE()),
        trainer=d.TrainerSettings(learning_rate=1e-3, batch_size=8, max_epochs=1, precision="32-true"),
        export=d.ExportSettings(recipes=["dynamic"]), directory=tmp_path / "run",
        benchmark=d.BenchmarkSettings(enabled=False, batches=[1], lengths=[8]),
    )  # fmt: skip
    metrics = result.record["export"]["fp32"]["metrics"]
    assert {name: metrics[name] for name in result.metrics} == pytest.approx(result.metrics, abs=1e-5)
    assert result.record["attempts"], "nothing was quantized"
    student = getattr(transformers, task.info.auto_class).from_pretrained(result.directory / "student")
    assert student.config.model_type == "distill_cnn"
    for name in ("fp32", "int8"):
        assert len(d.Bundle(result.directory / "bundle", model=name).predict(records)) == 1
