"""Whole runs of students for long texts, from the training to the bundle."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedTokenizerBase

import distill as d
from distill.core.contracts import Task
from tests.conftest import sentences, toy_bert

pytestmark = pytest.mark.slow
CITIES = ("boston", "denver", "dallas")
LONGEST = 60
LOCAL: dict[str, Any] = {"attention": "local", "window": 8, "global_tokens": 2}


def long_texts(count: int) -> list[str]:
    """Returns texts of one to eight sentences, of which some are longer than the longest input."""
    texts = [text for text, _ in sentences(64)]
    return [" ".join(texts[number : number + 1 + number % 8]) for number in range(count)]


def classes(directory: Path) -> Task:
    texts = long_texts(24)
    labels = [str(number % 2) for number in range(24)]
    return d.tasks.Classification(train=(texts, labels), dev=(texts[:8], labels[:8]), max_length=LONGEST)


def vectors(directory: Path) -> Task:
    texts = long_texts(24)
    pairs = {"sentence1": texts, "sentence2": texts[::-1], "score": [float(n % 5) for n in range(24)]}
    return d.tasks.Embedding(train=pairs, dev={name: column[:8] for name, column in pairs.items()}, max_length=LONGEST)


def answering(directory: Path) -> Task:
    rows = []
    for number in range(24):
        context, city = f"{'we fly ' * (1 + number % 20)}to {CITIES[number % 3]} today", CITIES[number % 3]
        answers = {"text": [city], "answer_start": [context.index(city)]}
        rows.append({"id": str(number), "question": "which city", "context": context, "answers": answers})
    return d.tasks.QuestionAnswering(train=rows, dev=rows[:8], max_length=LONGEST, doc_stride=4)


def tags(directory: Path) -> Task:
    sentences = [
        ["we", "fly", "to"] + ["boston", "and"] * (1 + number % 20) + [CITIES[number % 3]] for number in range(24)
    ]
    tagged = [["B-city" if word in CITIES else "O" for word in words] for words in sentences]
    rows = {"tokens": sentences, "tags": tagged}
    return d.tasks.TokenClassification(
        train=rows, dev={name: column[:8] for name, column in rows.items()}, max_length=LONGEST
    )


def raw_text(directory: Path) -> Task:
    (directory / "text.txt").write_text("\n\n".join(long_texts(48)))
    return d.tasks.MaskedLM(data=directory / "text.txt", documents="paragraph", max_length=LONGEST, dev_fraction=0.25)


QUESTION = {"question": "which city", "context": "we fly " * 30 + "to boston"}
# Task, class of its teacher, options of the student, a record and the type of the saved student.
CASES: dict[str, tuple[Callable[[Path], Task], str, dict[str, Any], Any, str]] = {
    "classes": (classes, "BertForSequenceClassification", LOCAL, "a film " * 90, "distill_local_distilbert"),
    "vectors": (vectors, "BertModel", LOCAL, "a film " * 90, "distill_local_distilbert"),
    "answers": (answering, "BertForQuestionAnswering", LOCAL, QUESTION, "distill_local_distilbert"),
    "tags": (tags, "BertForTokenClassification", LOCAL, "we fly to boston " * 30, "distill_local_distilbert"),
    "raw text": (raw_text, "BertForMaskedLM", LOCAL, "a [MASK] film " * 8, "distill_local_distilbert"),
    "classes by chunks": (
        classes, "BertForSequenceClassification", {"chunk": 16, "chunk_overlap": 2, "chunk_pooling": "learned"},
        "a film " * 90, "distill_chunked",
    ),
    "vectors by chunks": (vectors, "BertModel", {"chunk": 16}, "a film " * 90, "distill_chunked"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_student_of_long_texts_is_trained_exported_and_read(
    name: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    make_task, head, options, record, model_type = CASES[name]
    task = make_task(tmp_path)
    config = toy_bert(len(tokenizer), layers=2).config
    labels = task.read(tmp_path).labels
    if labels:
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: index for index, label in enumerate(labels)}
    torch.manual_seed(0)
    teacher = d.Teacher(getattr(transformers, head)(config), tokenizer, accept_weak=True, cache_dir=tmp_path / "cache")
    result = d.distill(
        teacher, d.students.distilbert(depth=1, **options), task,
        trainer=d.TrainerSettings(learning_rate=1e-3, batch_size=8, max_epochs=1, precision="32-true"),
        export=d.ExportSettings(recipes=["dynamic"]), directory=tmp_path / "run",
        benchmark=d.BenchmarkSettings(enabled=False, batches=[1], lengths=[8]),
    )  # fmt: skip
    fp32 = result.record["export"]["fp32"]
    assert fp32["max_abs_diff"] < 1e-4
    shared = fp32["metrics"].keys() & result.metrics.keys()  # Of a text and of masks there are others on one side.
    assert {name: fp32["metrics"][name] for name in shared} == pytest.approx(
        {name: result.metrics[name] for name in shared}, rel=1e-6, abs=1e-6
    )
    assert task.read(tmp_path).scoring.metric in shared
    assert result.record["attempts"], "nothing was quantized"
    student = getattr(transformers, task.info.auto_class).from_pretrained(result.directory / "student")
    assert student.config.model_type == model_type
    for model in ("fp32", "int8"):
        assert len(d.Bundle(result.directory / "bundle", model=model).predict([record])) == 1
