"""Tests of iterative pruning: its schedule, a run with its curve, a run that is resumed, and refused options."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from distill.builtin.students.distilbert import from_teacher
from transformers import (
    AutoModelForSequenceClassification,
    BertForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

import distill as d
from distill.chain import student_search
from distill.chain.distillation import check_ranking
from distill.chain.plan import Student
from distill.chain.student_search import Schedule, check_pruning, create_schedule
from distill.core.errors import Interrupted, UserError
from distill.kinds.multitask import Tasks
from distill.models.surgery.layers import Importance, Sizes
from distill.records.pages import render_run
from distill.records.schema import check_record
from tests.conftest import sentences, toy_bert
from tests.students.test_albert import logits, toy

STEPS = {"depth": 2, "heads": 2, "ffn": 24, "prune": "iterative", "prune_steps": 3}


def schedule_of(teacher: PreTrainedModel, **options: Any) -> tuple[Schedule, PreTrainedModel]:
    student = Student("distilbert", partial(from_teacher, **(STEPS | options)))
    last = student.make(teacher, TASK, DATA)
    return create_schedule(student, last, teacher, TASK, DATA)


TEXTS, CLASSES = (list(column) for column in zip(*sentences(24), strict=True))
TASK = d.tasks.Classification(
    text="text", train=(TEXTS, CLASSES), dev=(TEXTS[:8], CLASSES[:8]), max_length=16,
)  # fmt: skip
DATA = TASK.read(Path("nowhere"))


def random_importance(model: PreTrainedModel) -> Importance:
    sizes, random = Sizes.of(model), torch.Generator().manual_seed(0)
    heads, neurons = ([torch.rand(size, generator=random) for size in of] for of in (sizes.heads, sizes.neurons))
    return Importance(heads, neurons)


@pytest.mark.parametrize(
    ("family", "options", "depths", "heads"),
    [
        ("Bert", {}, [3, 3, 2], [10, 8, 4]),
        ("Bert", {"heads": 1}, [3, 3, 2], [9, 6, 2]),
        ("Bert", {"depth": 4, "prune_steps": 2}, [4, 4], [12, 8]),
        ("Bert", {"depth": 1, "heads": None, "prune_steps": 3}, [3, 2, 1], [12, 8, 4]),
        ("Bert", {"prune_steps": 1}, [2], [4]),
        ("ModernBert", {"embedding_dim": 8}, [3, 3, 2], [10, 8, 4]),
        ("MPNet", {"heads": 1}, [3, 3, 2], [9, 6, 2]),
    ],
    ids=str,
)
def test_heads_neurons_and_layers_fall_evenly_to_the_sizes_at_the_end(
    family: str, options: dict[str, Any], depths: list[int], heads: list[int]
) -> None:
    teacher = toy(family)
    schedule, student = schedule_of(teacher, **options)
    assert Sizes.of(student) == Sizes([4] * 4, [48] * 4)
    found = []
    for step in range(1, schedule.steps + 1):
        student = schedule.remove(student, random_importance(student), step)
        sizes = Sizes.of(student)
        assert min(sizes.heads) >= 1
        assert set(schedule.layers) <= set(student.config.teacher_layers)
        found.append((len(sizes.heads), sum(sizes.heads)))
    assert found == list(zip(depths, heads, strict=True))
    assert student.config.teacher_layers == schedule.layers
    assert logits(student).isfinite().all()
    assert sum(Sizes.of(student).neurons) == schedule.last[1]


def test_a_layer_that_stays_keeps_its_weights() -> None:
    teacher = toy()
    schedule, student = schedule_of(teacher, heads=None, ffn=None)
    for step in (1, 2, 3):
        student = schedule.remove(student, random_importance(student), step)
    wanted = from_teacher(teacher, depth=2)
    for name, tensor in wanted.named_parameters():
        if "norm" in name:
            assert torch.equal(student.get_parameter(name), tensor), name


@pytest.fixture(scope="module")
def teacher_of_run(tokenizer: PreTrainedTokenizerBase, tmp_path_factory: Any) -> d.Teacher:
    torch.manual_seed(0)
    config = toy_bert(len(tokenizer), layers=4).config
    config.id2label, config.label2id = {0: "0", 1: "1"}, {"0": 0, "1": 1}
    model = BertForSequenceClassification(config)
    return d.Teacher(model, tokenizer, accept_weak=True, cache_dir=tmp_path_factory.mktemp("cache"))


def distil(teacher: d.Teacher, directory: Path, **options: Any) -> Any:
    return d.distill(
        teacher, d.students.distilbert(depth=2, heads=1, ffn=8, embedding_dim=8, prune="iterative", prune_steps=3),
        TASK, trainer=d.TrainerSettings(learning_rate=1e-3, batch_size=8, max_epochs=2, precision="32-true"),
        export=d.ExportSettings(enabled=False), benchmark=d.BenchmarkSettings(enabled=False), directory=directory,
        augment=None,
        **({"baseline": False} | options),
    )  # fmt: skip


@pytest.fixture(scope="module")
def pruned(teacher_of_run: d.Teacher, tmp_path_factory: Any) -> Path:
    directory: Path = tmp_path_factory.mktemp("pruned") / "run"
    distil(teacher_of_run, directory)
    return directory


def read(directory: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((directory / "run.json").read_text())
    return record


def test_a_run_ends_with_the_sizes_and_has_the_curve_in_its_report(pruned: Path) -> None:
    record = read(pruned)
    check_record(record)
    rows = record["pruning"]
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert [len(row["layers"]) for row in rows] == [4, 3, 3, 2]
    assert (rows[-1]["heads"], sum(rows[-1]["neurons"])) == ([1, 1], 16)
    assert [row["removed"] for row in rows] == sorted(row["removed"] for row in rows)
    assert rows[0] == {
        "step": 0, "layers": [0, 1, 2, 3], "heads": rows[0]["heads"], "neurons": rows[0]["neurons"], "removed": 0.0,
        "before": None, "after": record["teacher"]["metrics"]["accuracy"],
    }  # fmt: skip
    assert all(row["after"] is not None for row in rows)
    assert rows[-1]["after"] == record["student"]["metrics"]["accuracy"]
    loaded = AutoModelForSequenceClassification.from_pretrained(pruned / "student", trust_remote_code=True)
    assert (loaded.config.layer_heads, loaded.config.word_width) == ([1, 1], 8)
    report = render_run(pruned, record)
    assert "Heads, inner neurons and layers were removed in 3 steps" in report.markdown
    assert (
        f"| 3 | 2 | 1, 1 | {rows[-1]['neurons'][0]}, {rows[-1]['neurons'][1]} | {rows[-1]['removed']:.1%} |"
        in report.markdown
    )
    assert [figure.name for figure in report.figures["Pruning"]] == ["pruning"]


def test_a_resumed_run_goes_on_with_the_step_that_it_was_in(
    pruned: Path, teacher_of_run: d.Teacher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removals: list[int] = []
    remove = Schedule.remove

    def stop_in_second(self: Schedule, student: PreTrainedModel, importance: Importance, step: int) -> PreTrainedModel:
        removals.append(step)
        if removals == [1, 2]:
            raise KeyboardInterrupt
        return remove(self, student, importance, step)

    monkeypatch.setattr(student_search.Schedule, "remove", stop_in_second)
    with pytest.raises(Interrupted):
        distil(teacher_of_run, tmp_path / "run")
    distil(teacher_of_run, tmp_path / "run", resume=True)
    assert removals == [1, 2, 2, 3]
    own, other = read(tmp_path / "run"), read(pruned)
    assert own["pruning"] == other["pruning"]
    assert own["student"]["metrics"] == other["student"]["metrics"]


# Refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prune_steps": 0}, "got student.prune_steps=0, expected a whole number of at least 1"),
        ({"prune_share": 0}, "got student.prune_share=0, expected a number above 0 and at most 1"),
        ({"prune_share": 1.5}, "got student.prune_share=1.5, expected a number above 0 and at most 1"),
        ({"init": "random"}, "student.prune=iterative removes parts of the teacher, and student.init=random copies"),
        ({"attention": "local"}, "student.heads, ffn, embedding_dim and prune cut no student for long texts"),
    ],
    ids=str,
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        from_teacher(toy(), **(STEPS | options))


def test_a_pruning_of_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="student.prune=iterative removes nothing: give student.heads"):
        schedule_of(toy(), depth=4, heads=4, ffn=None)


def test_heads_are_not_ranked_on_texts_without_labels() -> None:
    unlabelled: Any = SimpleNamespace(terms={})
    student = Student("distilbert", partial(from_teacher, heads=2, ffn=[8, 9]))
    with pytest.raises(
        UserError, match=r"student.heads=2 student.ffn=\[8, 9\] ranks heads and inner neurons by the loss"
    ):
        check_ranking(student, unlabelled, TASK)
    check_ranking(Student("distilbert", partial(from_teacher, heads=2, init="random")), unlabelled, TASK)
    check_ranking(Student("distilbert", partial(from_teacher, depth=2)), unlabelled, TASK)


def plan_with(tasks: Any, **terms: Any) -> Any:
    return SimpleNamespace(tasks=Tasks.of(tasks), objective=d.Objective(**terms))


def test_a_pruning_that_a_run_cannot_have_is_refused() -> None:
    student, unlabelled = Student("distilbert", partial(from_teacher, **STEPS)), SimpleNamespace(terms={})
    teacher = toy()
    last = student.make(teacher, TASK, DATA)
    several = plan_with(Tasks({"first": TASK, "second": TASK}, name="both", kind="several"), soft=d.SoftTargets())
    with pytest.raises(UserError, match="student.prune is for one task, and task=.* has several: leave it out"):
        check_pruning(student, last, teacher, several, TASK, DATA)
    one = plan_with(TASK, soft=d.SoftTargets())
    with pytest.raises(UserError, match="student.prune=iterative ranks heads and inner neurons by the loss on labels"):
        check_pruning(student, last, teacher, one, TASK, unlabelled)  # type: ignore[arg-type]
    check_pruning(student, last, teacher, one, TASK, DATA)
    mapped = plan_with(TASK, hidden=d.HiddenStateMSE(layers=[1, 4]))  # For two layers, and a step has three.
    with pytest.raises(UserError, match="the term hidden"):
        check_pruning(student, last, teacher, mapped, TASK, DATA)
