"""Tests of teachers from a handful of labelled rows: pairs tune the encoder, and then a head is fitted."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distill.builtin.teachers.pretrained import Pretrained
from transformers import BertForSequenceClassification, PreTrainedTokenizerBase

from distill.core.contracts import Examples
from distill.core.errors import OptionError, UserError
from distill.kinds import Classification, Regression
from distill.models.loading import find_head
from distill.teachers import source
from distill.teachers.computation import BilstmSettings, Features
from distill.teachers.source import ContrastiveSettings, TeacherSource, check_source, draw_pairs, read_start, tune
from tests.conftest import LABELS, LOOSE_OPTIONS, SETTINGS, sentences, toy_bert
from tests.jobs.conftest import Command, command
from tests.teachers.conftest import CPU

assert command


def test_each_row_has_pairs_within_its_class_and_with_others() -> None:
    classes = np.array([0, 0, 1, 2, 2])
    pairs = draw_pairs(classes, 3, np.random.default_rng(0))
    first, second, label = pairs.T
    assert ((classes[first] == classes[second]) == label).all()
    assert (first != second)[label == 1].all()
    # The only row of class 1 has none of its own class.
    assert np.bincount(first[label == 1], minlength=5).tolist() == [3, 3, 0, 3, 3]
    assert np.bincount(first[label == 0]).tolist() == [3] * 5
    assert len(draw_pairs(np.array([0]), 3, np.random.default_rng(0))) == 0


def encode(tokenizer: PreTrainedTokenizerBase, tmp_path: Path, count: int) -> tuple[Classification, Examples]:
    texts, labels = zip(*sentences(count), strict=True)
    table = (list(texts), list(labels))
    task = Classification(text="text", train=table, dev=table, unlabelled=None, max_length=40)
    return task, task.encode(task.read(tmp_path), tokenizer, None)["train"]


def test_pairs_move_the_vectors_of_one_class_together(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    task, examples = encode(tokenizer, tmp_path, 16)
    model = toy_bert(len(tokenizer), layers=2, initializer_range=0.1)
    before = separation(model, examples)
    tune(model, task, examples, ContrastiveSettings(pairs=4, epochs=8, learning_rate=3e-3), device=CPU)
    assert separation(model, examples) > before + 0.5
    batch = examples[range(16)]
    with torch.no_grad():
        logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    assert (logits.argmax(dim=1) == batch["labels"]).all()


def test_each_epoch_has_pairs_of_its_own(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, examples = encode(tokenizer, tmp_path, 16)
    drawn: list[Any] = []
    monkeypatch.setattr(source, "draw_pairs", lambda *given: drawn.append(draw_pairs(*given)) or drawn[-1])
    settings = ContrastiveSettings(pairs=2, epochs=3, batch_size=64)
    tune(toy_bert(len(tokenizer), layers=1), task, examples, settings, device=CPU)
    assert len({frozenset(map(tuple, pairs.tolist())) for pairs in drawn}) == len(drawn) == 3


@torch.no_grad()
def separation(model: torch.nn.Module, examples: Examples) -> float:
    """Returns the mean cosine within a class minus that between two, of the vectors that the head reads."""
    batch, vectors = examples[range(16)], []
    handle = find_head(model, 2).register_forward_pre_hook(lambda _, inputs: vectors.append(inputs[0]))  # type: ignore[arg-type, union-attr]
    model.eval()(batch["input_ids"], attention_mask=batch["attention_mask"])
    handle.remove()
    cosines = torch.nn.functional.normalize(vectors[0]) @ torch.nn.functional.normalize(vectors[0]).T
    is_same = batch["labels"][:, None] == batch["labels"]
    return float(cosines[is_same].mean() - cosines[~is_same].mean())


def test_the_same_seed_makes_the_same_teacher(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    task, examples = encode(tokenizer, tmp_path, 8)
    models = [toy_bert(len(tokenizer), layers=1) for _ in range(2)]
    for model in models:
        tune(model, task, examples, ContrastiveSettings(pairs=1), device=CPU)
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(one, other)


def test_another_start_is_refused() -> None:
    settings = ContrastiveSettings()
    assert read_start(None, settings) is None
    assert read_start("contrastive", settings) is settings
    with pytest.raises(ValueError, match="pairs"):
        ContrastiveSettings(pairs=0)
    with pytest.raises(OptionError, match="got teacher.start=setfit, expected null or contrastive"):
        read_start("setfit", settings)


def options(encoder: Path, data: Path, root: Path) -> list[str]:
    return [
        "+teacher=pretrained", f"teacher.path={encoder}", "teacher.start=contrastive", "teacher.accept_weak=true",
        "teacher.contrastive.pairs=2", "teacher.contrastive.learning_rate=1e-3", "task=classification",
        "task.text=[sentence]", f"task.data_dir={data}", f"task.labels=[{','.join(LABELS)}]", "task.max_length=40",
        "task.train_examples=16", f"cache_dir={root / 'cache'}", f"output_dir={root / 'runs'}",
    ]  # fmt: skip


def test_both_jobs_make_one_teacher_of_pairs(
    encoder_dir: Path, data_dir: Path, tmp_path: Path, command: Command
) -> None:
    given = options(encoder_dir, data_dir, tmp_path)
    code, output, error = command("job=finetune", *given)
    assert code == 0, error
    assert "is tuned on pairs of labelled rows, and its head is fitted to them, on classification first" in output
    [saved] = (tmp_path / "runs").rglob("teacher/model")
    assert type(BertForSequenceClassification.from_pretrained(saved)).__name__ == "BertForSequenceClassification"
    [record] = (tmp_path / "runs").rglob("run.json")
    assert json.loads(record.read_text(encoding="utf-8"))["teacher"]["origin"] == "tuned on pairs"
    student = [
        "+student=distilbert", "trainer.max_epochs=1", "trainer.batch_size=16", "export.enabled=false",
        "trainer.precision=32-true", *LOOSE_OPTIONS,
    ]  # fmt: skip
    code, output, error = command(*given, *student)
    assert code == 0, error
    assert "Teacher: fine-tuned before, read from" in output


def test_mistakes_end_before_anything_is_trained(
    encoder_dir: Path, data_dir: Path, tmp_path: Path, command: Command
) -> None:
    code, _, error = command("job=finetune", *options(encoder_dir, data_dir, tmp_path), "teacher.finetune.max_epochs=2")
    assert code == 2
    assert "teacher.finetune.max_epochs=2 would change nothing in job=finetune" in error
    source = TeacherSource(Pretrained(name="toy", path=str(encoder_dir)), SETTINGS, contrastive=ContrastiveSettings())
    classes = Classification(text=["sentence"], data_dir=str(data_dir))
    with pytest.raises(
        UserError, match="makes pairs of rows of one class, and task regression is regression: leave it"
    ):
        check_source(source, Regression(text=["sentence"], data_dir=str(data_dir)))
    features = Features("last", BilstmSettings(trainer=SETTINGS))
    with pytest.raises(UserError, match="teacher.start=contrastive tunes the encoder, which teacher.features freezes"):
        check_source(replace(source, features=features), classes)
    with pytest.raises(UserError, match="trains the teacher, and teacher.finetune=false does not: leave one out"):
        check_source(replace(source, finetune=None), classes)
