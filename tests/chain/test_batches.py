"""Tests of `trainer.batch_size=auto`: larger batches of many short texts, for students with pre-trained layers."""

from dataclasses import replace
from pathlib import Path

import pytest
from distill.builtin.students import bilstm
from distill.builtin.students.distilbert import from_teacher
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import distill as d
from distill.chain.plan import Plan, default_objective
from distill.core.contracts import EncodedSplits
from distill.kinds.multitask import Tasks
from distill.losses import PairwiseSimilarity

TEXTS = ["a lovely and moving film", "a stale film"]
TASK = d.tasks.Classification(text="text", train=(TEXTS, [0, 1]), dev=(TEXTS, [0, 1]), max_length=16)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return Plan(
        tasks=Tasks.of(TASK), objective=default_objective(TASK), trainer=d.TrainerSettings.auto(),
        export=d.ExportSettings(), benchmark=d.BenchmarkSettings(batches=[1], lengths=[8]), cache_dir=tmp_path,
    )  # fmt: skip


@pytest.fixture
def examples(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> EncodedSplits:
    return TASK.encode(TASK.read(tmp_path), tokenizer, tmp_path)


def test_students_with_pre_trained_layers_get_larger_batches_and_a_larger_rate(
    plan: Plan, teacher: PreTrainedModel, examples: EncodedSplits
) -> None:
    student = from_teacher(teacher)
    chosen = plan.choose_batches(student, examples["train"], rows=20_000)
    assert chosen.trainer.batch_size == 128
    assert chosen.chosen == {
        "batch_size": {"value": 128, "reason": "20,000 texts of 6 tokens on average are many and short"}
    }
    rates = []
    for given in (chosen, plan.choose_batches(student, examples["train"], rows=2)):
        ready = given.choose_training(student, examples=20_000, steps_per_epoch=100, scored=2)
        assert ready.trainer.unresolved() == []
        rates.append(ready.trainer.learning_rate)
    assert rates[0] == 2 * rates[1]
    assert "batch_size" in chosen.choose_training(student, examples=20_000, steps_per_epoch=157, scored=2).chosen


def test_other_students_and_objectives_keep_32(plan: Plan, teacher: PreTrainedModel, examples: EncodedSplits) -> None:
    random = from_teacher(teacher, init="random")
    recurrent = bilstm.from_teacher(teacher, task=TASK, embedding_dim=16, hidden_dim=8)
    compares = replace(plan, objective=d.Objective(soft=d.SoftTargets(), similarity=PairwiseSimilarity()))
    for given, student in ((plan, random), (plan, recurrent), (compares, from_teacher(teacher))):
        chosen = given.choose_batches(student, examples["train"], rows=20_000)
        assert (chosen.trainer.batch_size, chosen.chosen) == (32, {})
    fixed = replace(plan, trainer=replace(plan.trainer, batch_size=48))
    assert fixed.choose_batches(from_teacher(teacher), examples["train"], rows=20_000) == fixed
