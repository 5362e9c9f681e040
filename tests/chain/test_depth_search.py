"""Tests of the budget: the deepest student within it, its place in run.json, and what cannot be chosen."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from distill.builtin.students.distilbert import from_teacher
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import distill as d
from distill.chain.depth_search import DepthSearch, warn_of_budget
from distill.chain.plan import Plan, Student, check_plan, default_objective
from distill.edge.model_files import count_bytes
from distill.errors import UserError
from distill.export.onnx import export_onnx
from distill.export.quantization import Material, write_dynamic
from distill.export.vocabulary import cut_vocabulary
from distill.records import report
from distill.records.record import Run, create_run_in
from distill.tasks.multi import Tasks
from distill.teaching.source import TeacherSource
from tests.records.test_report import record

DISTILBERT = Student("distilbert", partial(from_teacher, depth=None, layers="alternate"))
TEXTS = ["a film", "films"]
TASK = d.tasks.Classification(text="text", train=(TEXTS, [0, 1]), dev=(TEXTS, [0, 1]), max_length=16)
SPLITS = TASK.read(Path("nowhere"))
ORIGINS: Any = SimpleNamespace(of=lambda tokenizer: None)  # A DistilBERT starts from its teacher alone.


def plan_of(**limits: float) -> Plan:
    task = TASK
    return Plan(
        tasks=Tasks.of(task), objective=default_objective(task),
        trainer=d.TrainerSettings(learning_rate=1e-3, max_steps=1, batch_size=2),
        export=d.ExportSettings(), benchmark=d.BenchmarkSettings(batches=[1], lengths=[8, 16], seconds=0.01),
        cache_dir=Path("nowhere"), budget=d.Budget(**limits),
    )  # fmt: skip


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Makes a student of N layers have N MB and N / 2 ms; returns the numbers of layers that were measured."""
    depths: list[int] = []

    def measure(self: DepthSearch, student: Student, teacher: PreTrainedModel, tokenizer: Any) -> dict[str, Any]:
        depth = student.make(teacher, TASK, SPLITS).config.num_hidden_layers
        depths.append(depth)
        return {"bytes": depth * 1_000_000, "p50_ms": depth / 2, "length": 8, "threads": 2}

    monkeypatch.setattr(DepthSearch, "_measure", measure)
    return depths


def new_run(directory: Path) -> Run:
    return create_run_in(directory / "run", job="distill")


@pytest.mark.parametrize(
    ("limits", "tried"),
    [({"mb": 20.0}, [4]), ({"mb": 3.0}, [4, 3]), ({"ms": 1.2}, [4, 3, 2]), ({"mb": 3.5, "ms": 0.5}, [4, 3, 2, 1])],
)
def test_the_deepest_student_within_the_budget_is_chosen(
    limits: dict[str, float], tried: list[int], measured: list[int], teacher: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    search = DepthSearch(DISTILBERT, plan_of(**limits), TASK, new_run(tmp_path), SPLITS, ORIGINS)
    student = search.choose(teacher, tokenizer)
    assert student.make(teacher, TASK, SPLITS).config.num_hidden_layers == tried[-1]
    assert search.choose(teacher, tokenizer) is student
    assert measured == tried
    recorded = json.loads((tmp_path / "run" / "run.json").read_text())["budget"]
    assert [(row["depth"], row["fits"]) for row in recorded["tried"]] == [(n, n == tried[-1]) for n in tried]
    assert recorded["chosen"] == recorded["tried"][-1]
    printed = capsys.readouterr().out
    assert f"{tried[-1]}.0 MB" in printed
    assert f"{tried[-1] / 2:.2f} ms" in printed
    text = report.render_report(record(budget=recorded))
    assert f"| {tried[-1]} | {tried[-1]}.0 MB | {tried[-1] / 2:.2f} | yes |" in text


def test_a_resumed_run_keeps_its_choice(
    measured: list[int], teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    run = new_run(tmp_path)
    DepthSearch(DISTILBERT, plan_of(mb=2.0), TASK, run, SPLITS, ORIGINS).choose(teacher, tokenizer)
    measured.clear()
    student = DepthSearch(DISTILBERT, plan_of(mb=2.0), TASK, run, SPLITS, ORIGINS).choose(teacher, tokenizer)
    assert student.make(teacher, TASK, SPLITS).config.num_hidden_layers == 2
    assert measured == []


def test_without_a_budget_the_student_is_not_measured(
    measured: list[int], teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    run = new_run(tmp_path)
    assert DepthSearch(DISTILBERT, plan_of(), TASK, run, SPLITS, ORIGINS).choose(teacher, tokenizer) is DISTILBERT
    assert (measured, run.record["budget"]) == ([], None)


def test_a_budget_that_no_depth_is_within_is_refused_with_the_smallest(
    measured: list[int], teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    expected = (
        r"no student distilbert is within budget.mb=0.5: the one of depth 1 has 1.0 MB and 0.50 ms in int8 \(one text "
        r"of 8 tokens, 2 threads\): raise the budget, or take another student"
    )
    with pytest.raises(UserError, match=expected):
        DepthSearch(DISTILBERT, plan_of(mb=0.5), TASK, new_run(tmp_path), SPLITS, ORIGINS).choose(teacher, tokenizer)
    assert measured == [4, 3, 2, 1]


def test_a_student_without_a_depth_is_measured_once(
    measured: list[int], teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    loaded = Student("mine", from_teacher(teacher, layers=[0, 1]))
    search = DepthSearch(loaded, plan_of(mb=2.0), TASK, new_run(tmp_path), SPLITS, ORIGINS)
    assert search.choose(teacher, tokenizer) is loaded
    built = Student("mine", lambda teacher: from_teacher(teacher, layers=[0, 1, 2]))
    with pytest.raises(UserError, match=r"no student mine is within budget.mb=2: it has 3.0 MB and 1.50 ms"):
        DepthSearch(built, plan_of(mb=2.0), TASK, Run(tmp_path, {}), SPLITS, ORIGINS).choose(teacher, tokenizer)
    assert measured == [2, 3]


def test_the_measured_size_is_that_of_a_student_with_other_weights(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    plan = plan_of(mb=1.0)
    student = Student("distilbert", partial(from_teacher, depth=1))
    row = DepthSearch(student, plan, TASK, Run(tmp_path, {}), SPLITS, ORIGINS)._measure(student, teacher, tokenizer)
    model = student.make(teacher, TASK, SPLITS)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    export_onnx(model, tmp_path / "fp32.onnx", tokenizer=tokenizer)
    write_dynamic(Material(tmp_path / "fp32.onnx", 8), tmp_path / "int8.onnx")
    assert row["bytes"] == pytest.approx(count_bytes(tmp_path / "int8.onnx"), rel=1e-3)
    assert row["fp32_bytes"] == pytest.approx(count_bytes(tmp_path / "fp32.onnx"), rel=1e-3)
    assert row["fp32_bytes"] > row["bytes"]
    assert row["p50_ms"] > 0
    assert row["length"] == 8


def test_the_measured_size_is_that_of_the_cut_vocabulary(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    plan = plan_of(mb=1.0)
    cut = replace(plan, export=d.ExportSettings(vocabulary="task"))
    student = Student("distilbert", partial(from_teacher, depth=1))
    whole, smaller = (
        DepthSearch(student, of, TASK, Run(tmp_path, {}), SPLITS, ORIGINS)._measure(student, teacher, tokenizer)
        for of in (plan, cut)
    )
    _, shorter = cut_vocabulary(student.make(teacher, TASK, SPLITS), tokenizer, TEXTS)
    saved = 4 * teacher.config.hidden_size * (len(tokenizer) - len(shorter))
    assert saved > 0
    assert whole["fp32_bytes"] - smaller["fp32_bytes"] == pytest.approx(saved, rel=0.02)


@pytest.mark.parametrize(
    ("limits", "chosen", "expected"),
    [
        ({}, "fp32", None),
        ({"mb": 2.0, "ms": 1.0}, "int8", None),
        ({"mb": 2.0}, None, None),
        ({"mb": 4.0}, "fp32", None),
        ({"mb": 2.0}, "fp32", "model.onnx has 4.00 MB, and budget.mb=2 is of the int8 file, which did not pass its"),
        ({"ms": 2.0}, "fp32", "model.onnx has 4.00 MB, and budget.ms=2 is of the int8 file, which did not pass its"),
        (
            {"mb": 0.99}, "int8",
            "model.int8.onnx has 1.00 MB, more than budget.mb=0.99, because its recipe adds bytes to the file that was",
        ),
    ],
)  # fmt: skip
def test_a_recommended_file_that_is_not_within_the_budget_is_reported(
    limits: dict[str, float], chosen: str | None, expected: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    formats = {
        "fp32": {"file": "model.onnx", "bytes": 4_000_000}, "int8": {"file": "model.int8.onnx", "bytes": 1_000_000},
    }  # fmt: skip
    warn_of_budget(plan_of(**limits), formats, chosen)
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith(f"Notice: the recommended file {expected}") if expected else printed == ""


def test_a_budget_needs_an_export() -> None:
    source: Any = TeacherSource(weights=None, finetune=None)  # type: ignore[arg-type]
    plan = replace(plan_of(mb=2.0, ms=1.0), export=d.ExportSettings(enabled=False))
    with pytest.raises(UserError, match="budget.mb=2 budget.ms=1 is for exported students, and export.enabled=false"):
        check_plan(source, plan)
