"""Tests of whole jobs at toy size in which a teacher writes targets or continuations to train on, or the student."""

import json
from pathlib import Path

import pytest

from tests.jobs.conftest import Run
from tests.jobs.runs import read_record

TRAINER = (
    "trainer.max_steps=1 trainer.max_epochs=null trainer.batch_size=8 trainer.precision=32-true "
    "trainer.accelerator=cpu export.enabled=false teacher.accept_weak=true baseline=false"
)
TARGETS = (
    "+teacher=pretrained teacher.path=toys/bart teacher.finetune=false +student=distilbert task=seq2seq "
    f"task.data_dir=toys/targets task.max_length=32 task.max_target=8 task.scored_texts=0 {TRAINER}"
)
CORPUS = (
    "+teacher=pretrained teacher.path=toys/gpt2 +student=layers student.depth=1 task=clm task.data_dir=toys/corpus "
    f"task.max_length=16 task.dev_fraction=0.2 {TRAINER}"
)


def read_texts(root: Path) -> dict[Path, list[list[str]]]:
    """Returns the texts in each file of the cache."""
    paths = (root / "cache").glob("targets/*/*.json")
    return {path: json.loads(path.read_text(encoding="utf-8"))["texts"] for path in paths}


@pytest.mark.parametrize(
    ("common", "options", "plan"),
    [
        (TARGETS, "objective=hinton teacher.beams=2 teacher.keep=nearest", "the teacher writes 2 texts for each of "),
        (
            CORPUS,
            "objective=causal_language_model teacher.sampling_temperature=2.0 task.prompt=6",
            "the teacher continues each of ",
        ),
    ],
    ids=["targets", "continuations"],
)
def test_the_teachers_texts_are_written_once_and_planned_before(
    run: Run, tmp_path: Path, common: str, options: str, plan: str
) -> None:
    planned, _ = run(common, f"{options} dry_run=true")
    assert plan in planned
    assert read_texts(tmp_path) == {}
    _, first = run(common, options)
    written = read_texts(tmp_path)
    assert all(texts for texts in written.values())
    assert written
    again, second = run(common, options)
    assert plan not in again
    assert read_texts(tmp_path) == written
    assert read_record(first)["student"]["metrics"] == read_record(second)["student"]["metrics"]
    if common == CORPUS:
        run(common, f"{options} teacher.sampling_seed=1")
        others = [texts for path, texts in read_texts(tmp_path).items() if path not in written]
        assert len(others) == len(written)
        assert not any(texts in written.values() for texts in others)


@pytest.mark.parametrize("common", [TARGETS, CORPUS], ids=["targets", "continuations"])
def test_a_student_learns_on_its_own_texts_from_a_teacher_that_runs(run: Run, common: str) -> None:
    _, directory = run(common, "objective=on_policy objective.terms.gkd.student_share=1")
    assert read_record(directory)["teacher_outputs"] == {
        "cached": False, "reason": "the student writes some of the texts"
    }  # fmt: skip
