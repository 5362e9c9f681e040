"""Tests of the budget: the deepest student within it, its place in run.json, and what cannot be chosen."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from distill.builtin.students.distilbert import from_teacher
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import distill as d
from distill.chain import student_setup
from distill.chain.plan import Plan, Student, check_plan, default_objective
from distill.chain.student_setup import DepthSearch, measure_delivered, warn_of_budget
from distill.core.errors import UserError
from distill.edge.bundle_files import count_bytes
from distill.export.onnx import export_onnx
from distill.export.quantization import RecipeInput, write_dynamic
from distill.kinds.multitask import Tasks
from distill.models.surgery.layers import Sizes, list_layers
from distill.records import report
from distill.records.run import Run, create_run_in
from distill.teachers.source import TeacherSource
from tests.conftest import cut_vocabulary
from tests.records.test_report import record

DISTILBERT = Student("distilbert", partial(from_teacher, depth=None, layers="alternate"))
TEXTS = ["a film", "films"]
TASK = d.tasks.Classification(text="text", train=(TEXTS, [0, 1]), dev=(TEXTS, [0, 1]), max_length=16)
SPLITS = TASK.read(Path("nowhere"))


def plan_of(**limits: Any) -> Plan:
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
    search = DepthSearch(DISTILBERT, plan_of(**limits), TASK, new_run(tmp_path), SPLITS)
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
    DepthSearch(DISTILBERT, plan_of(mb=2.0), TASK, run, SPLITS).choose(teacher, tokenizer)
    measured.clear()
    student = DepthSearch(DISTILBERT, plan_of(mb=2.0), TASK, run, SPLITS).choose(teacher, tokenizer)
    assert student.make(teacher, TASK, SPLITS).config.num_hidden_layers == 2
    assert measured == []


def test_a_budget_that_no_depth_is_within_is_refused_with_the_smallest(
    measured: list[int], teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    expected = (
        r"no student distilbert is within budget.mb=0.5: the one of depth 1 has 1.0 MB and 0.50 ms in int8 \(one text "
        r"of 8 tokens, 2 threads\): raise the budget, or take another student"
    )
    with pytest.raises(UserError, match=expected):
        DepthSearch(DISTILBERT, plan_of(mb=0.5), TASK, new_run(tmp_path), SPLITS).choose(teacher, tokenizer)
    assert measured == [4, 3, 2, 1]


@pytest.fixture
def weighed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Gives a student the weight of its layers in bytes; returns layers, heads and neurons of those measured."""
    sizes: list[tuple[int, int, int]] = []

    def measure(self: DepthSearch, student: Student, teacher: PreTrainedModel, tokenizer: Any) -> dict[str, Any]:
        model = student.make(teacher, TASK, SPLITS)
        found = Sizes.of(model)
        sizes.append((len(found.heads), found.heads[0], found.neurons[0]))
        weights = sum(parameter.numel() for layer in list_layers(model) for parameter in layer.parameters())
        return {"bytes": weights, "p50_ms": len(found.heads), "length": 8, "threads": 2}

    monkeypatch.setattr(DepthSearch, "_measure", measure)
    return sizes


def test_depth_and_width_are_chosen_by_the_weights_in_the_layers(
    weighed: list[tuple[int, int, int]], teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase,
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    run, whole = new_run(tmp_path), Sizes.of(teacher)
    halves = (whole.heads[0] // 2, whole.neurons[0] // 2)
    plan = plan_of(ms=2.5, widths=[1.0, 0.5])
    student = DepthSearch(DISTILBERT, plan, TASK, run, SPLITS).choose(teacher, tokenizer)
    full = (whole.heads[0], whole.neurons[0])
    assert weighed == [(4, *full), (3, *full), (4, *halves), (2, *full)]  # Of two with as many, the deeper one first.
    recorded = json.loads((tmp_path / "run" / "run.json").read_text())["budget"]
    assert [(row["depth"], row["width"]) for row in recorded["tried"]] == [(4, 1.0), (3, 1.0), (4, 0.5), (2, 1.0)]
    assert "width" in capsys.readouterr().out
    assert "| 4 | 0.5 |" in report.render_report(record(budget=recorded))
    weighed.clear()
    again = DepthSearch(DISTILBERT, plan, TASK, run, SPLITS).choose(teacher, tokenizer)
    assert weighed == []
    assert [s.make(teacher, TASK, SPLITS).config.num_hidden_layers for s in (student, again)] == [2, 2]


def test_no_width_within_a_budget_is_refused_with_the_smallest(
    weighed: list[tuple[int, int, int]], teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    search = DepthSearch(DISTILBERT, plan_of(ms=0.5, widths=True), TASK, new_run(tmp_path), SPLITS)
    with pytest.raises(
        UserError, match=r"no student distilbert is within budget.ms=0.5: the one of depth 1 and width 0"
    ):
        search.choose(teacher, tokenizer)
    assert len(weighed) == 4 * 4


def test_a_width_that_cannot_be_chosen_is_refused(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    plan, run = plan_of(ms=2.5, widths=True), Run(tmp_path, {})
    cut = Student("distilbert", partial(from_teacher, heads=2))
    with pytest.raises(UserError, match="got student.heads=2 and budget.widths, which chooses it: leave out one"):
        DepthSearch(cut, plan, TASK, run, SPLITS).choose(teacher, tokenizer)
    loaded = Student("mine", from_teacher(teacher, layers=[0]))
    with pytest.raises(UserError, match="budget.widths is for a student with student.heads and student.ffn, and stud"):
        DepthSearch(loaded, plan, TASK, run, SPLITS).choose(teacher, tokenizer)
    source: Any = TeacherSource(weights=None, finetune=None)  # type: ignore[arg-type]
    with pytest.raises(
        UserError, match="budget.widths chooses a width within budget.mb or budget.ms: give one of them"
    ):
        check_plan(source, plan_of(widths=True))


@pytest.mark.parametrize("widths", [[], [0.0], [1.5], ["half"], "all"], ids=str)
def test_shares_that_cannot_be_are_refused(widths: Any) -> None:
    with pytest.raises(UserError, match="widths"):
        plan_of(ms=1.0, widths=widths)


def test_a_student_without_a_depth_is_measured_once(
    measured: list[int], teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    loaded = Student("mine", from_teacher(teacher, layers=[0, 1]))
    search = DepthSearch(loaded, plan_of(mb=2.0), TASK, new_run(tmp_path), SPLITS)
    assert search.choose(teacher, tokenizer) is loaded
    built = Student("mine", lambda teacher: from_teacher(teacher, layers=[0, 1, 2]))
    with pytest.raises(UserError, match=r"no student mine is within budget.mb=2: it has 3.0 MB and 1.50 ms"):
        DepthSearch(built, plan_of(mb=2.0), TASK, Run(tmp_path, {}), SPLITS).choose(teacher, tokenizer)
    assert measured == [2, 3]


def test_the_measured_size_is_that_of_a_student_with_other_weights(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    plan = plan_of(mb=1.0)
    student = Student("distilbert", partial(from_teacher, depth=1))
    row = DepthSearch(student, plan, TASK, Run(tmp_path, {}), SPLITS)._measure(student, teacher, tokenizer)
    model = student.make(teacher, TASK, SPLITS)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    export_onnx(model, tmp_path / "fp32.onnx", tokenizer=tokenizer)
    write_dynamic(RecipeInput(tmp_path / "fp32.onnx", 8), tmp_path / "int8.onnx")
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
        DepthSearch(student, of, TASK, Run(tmp_path, {}), SPLITS)._measure(student, teacher, tokenizer)
        for of in (plan, cut)
    )
    _, shorter = cut_vocabulary(student.make(teacher, TASK, SPLITS), tokenizer, TEXTS)
    saved = 4 * teacher.config.hidden_size * (len(tokenizer) - len(shorter))
    assert saved > 0
    assert whole["fp32_bytes"] - smaller["fp32_bytes"] == pytest.approx(saved, rel=0.02)


FILES = {
    "fp32": {"file": "model.onnx", "bytes": 4_000_000, "gate": "passed", "recipe": None},
    "int8": {"file": "model.int8.onnx", "bytes": 1_000_000, "gate": "passed", "recipe": "weight_only"},
}


@pytest.mark.parametrize(
    ("limits", "formats", "expected"),
    [
        ({"mb": 2.0, "ms": 3.0}, ("fp32", "int8"), None),
        ({"mb": 2.0}, (), None),
        ({"mb": 4.0}, ("fp32",), "model.onnx has 4.00 MB and takes 2.50 ms (one text of 32 tokens, 1 threads), within "
         "budget.mb=4; no int8 file passed its gate"),
        ({"mb": 2.0}, ("fp32",), "model.onnx has 4.00 MB and takes 2.50 ms (one text of 32 tokens, 1 threads), more "
         "than budget.mb=2; no int8 file passed its gate"),
        ({"ms": 1.0}, ("fp32", "int8"), "model.int8.onnx has 1.00 MB and takes 2.50 ms (one text of 32 tokens, 1 "
         "threads), more than budget.ms=1: its recipe is weight_only, and that of the file before the training was "
         "dynamic: set a smaller student.depth, or export.recipes=[dynamic]"),
        ({"mb": 0.99}, ("int8",), "model.int8.onnx has 1.00 MB and takes 2.50 ms (one text of 32 tokens, 1 threads), "
         "more than budget.mb=0.99: its recipe is weight_only"),
    ],
)  # fmt: skip
def test_the_delivered_file_is_measured_and_compared_with_the_budget(
    limits: dict[str, float],
    formats: tuple[str, ...],
    expected: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    timed: list[dict[str, Any]] = []

    def time_file(path: Path, inputs: Any, **options: Any) -> dict[str, Any]:
        timed.append({"path": path, **options})
        return {"p50_ms": 2.5, "length": options["length"], "threads": options["threads"], "disturbed": False}

    monkeypatch.setattr(student_setup, "time_file", time_file)
    plan = plan_of(**limits)
    content = {
        "budget": {"chosen": {"depth": 2, "length": 32, "threads": 1}, "tried": []},
        "export": {name: FILES[name] for name in formats},
    }
    delivered = measure_delivered(plan, content, tmp_path, inputs=["input_ids"], vocabulary=99, choices=None)
    warn_of_budget(plan.budget, delivered)
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith(f"Notice: the recommended file {expected}") if expected else printed == ""
    if delivered is not None:
        assert timed[0]["path"] == tmp_path / delivered["file"]
        assert (timed[0]["length"], timed[0]["threads"], timed[0]["vocabulary"]) == (32, 1, 99)
