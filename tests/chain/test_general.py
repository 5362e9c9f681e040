"""Tests of the general stage that a student starts from: trained once, shared, resumed, planned and refused."""

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from distill.builtin.students.bilstm import from_teacher as create_bilstm
from distill.builtin.students.distilbert import from_teacher
from distill.builtin.students.pretrained import from_teacher as load_student
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerBase

import distill as d
from distill.chain.plan import Student
from distill.core.errors import UserError
from distill.kinds.multitask import Tasks
from distill.models.surgery.initialization import GeneralSettings
from distill.teachers import language_modeling
from distill.teachers.language_modeling import GeneralStage
from distill.training.module import DistillationModule
from tests.chain.starts import CLASSES, TASK, TEXTS, distil_one_step
from tests.conftest import toy_bert, write_corpus

STAGE: dict[str, Any] = {"tokens": 256, "passes": 2, "batch_size": 4, "max_length": 16, "documents": "line"}


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
    return distil_one_step(teacher, student or d.students.distilbert(**given), task, directory)


def test_every_task_starts_from_the_encoder_that_is_trained_once(
    teacher: d.Teacher, tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = distil(teacher, tmp_path / "first", corpus)["general"]
    assert record["steps"] == 2 * 256 // (4 * 16)
    assert record["distance"]["after"] < record["distance"]["before"]
    assert "general stage" in capsys.readouterr().out
    [entry] = (tmp_path / "cache" / "general").iterdir()
    assert entry.name == record["entry"]
    texts = [text.upper() for text in TEXTS]
    other = d.tasks.Classification(text="text", train=(texts, CLASSES), dev=(texts[:8], CLASSES[:8]), max_length=16)
    again = distil(teacher, tmp_path / "second", corpus, other)["general"]
    assert again == record
    assert "trained before" in capsys.readouterr().out
    # The learning rate of the students is so small that their encoders are those of the stage: the teacher is no other.
    expected = load_file(entry / "model.safetensors")
    for name in ("first", "second"):
        tensors = load_file(tmp_path / name / "student" / "model.safetensors")
        found = tensors["distilbert.transformer.layer.1.ffn.lin1.weight"]
        torch.testing.assert_close(found, expected["transformer.layer.1.ffn.lin1.weight"], rtol=0, atol=1e-6)


def open_stage(
    teacher: d.Teacher, cache_dir: Path, corpus: Path | None, depth: int = 2, *, task: Any = TASK, build: Any = None,
    **options: Any,
) -> GeneralStage:  # fmt: skip
    settings = GeneralSettings.of(STAGE | ({} if corpus is None else {"corpus": str(corpus)}) | options)
    return GeneralStage(
        teacher.source_for(Tasks.of(TASK)).weights, build or (lambda model: from_teacher(model, depth=depth)), settings,
        task.read(cache_dir), accelerator="cpu", cache_dir=cache_dir,
    )  # fmt: skip


def test_what_the_stage_has_changed_is_added_to_the_layers_of_the_fine_tuned_teacher(
    teacher: d.Teacher, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, corpus: Path
) -> None:
    stage = open_stage(teacher, tmp_path, corpus)
    before = {name: tensor.clone() for name, tensor in stage.student.base_model.state_dict().items()}
    stage.train()
    changes = open_stage(teacher, tmp_path, corpus).load_changes()  # As in a later run.
    for name, tensor in stage.load().items():
        torch.testing.assert_close(before[name] + changes[name], tensor)
    torch.manual_seed(1)
    fine_tuned = toy_bert(len(tokenizer), layers=4)
    build = partial(from_teacher, depth=2)
    data = TASK.read(tmp_path)
    start = Student("copied", build).make(fine_tuned, TASK, data).base_model.state_dict()
    found = Student("general", build, encoder_changes=changes).make(fine_tuned, TASK, data).base_model.state_dict()
    assert max(float(change.abs().max()) for change in changes.values()) > 0
    for name, change in changes.items():
        torch.testing.assert_close(found[name], start[name] + change)


class Killed(Exception):
    """Stands for the end of a process."""


def test_a_killed_stage_goes_on_from_its_checkpoint_in_the_next_run(
    teacher: d.Teacher, tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language_modeling, "CHECKPOINT_STEPS", 1)
    whole = open_stage(teacher, tmp_path / "whole", corpus)
    whole.train()
    stopped = open_stage(teacher, tmp_path / "stopped", corpus)
    original, steps = DistillationModule.training_step, list[int]()

    def stop_at_the_third(self: DistillationModule, *arguments: Any) -> Any:
        steps.append(self.global_step)
        if len(steps) == 3:
            raise Killed
        return original(self, *arguments)

    monkeypatch.setattr(DistillationModule, "training_step", stop_at_the_third)
    with pytest.raises(Killed):
        stopped.train()
    assert not stopped.is_trained()
    again = open_stage(teacher, tmp_path / "stopped", corpus)
    again.train()
    assert steps == [*range(3), *range(2, 8)]
    assert again.record()["steps"] == 8
    for name, tensor in whole.load().items():
        torch.testing.assert_close(again.load()[name], tensor, rtol=0, atol=0, msg=name)
    assert [entry.name for entry in again.directory.parent.iterdir()] == [again.directory.name]


def test_the_entry_depends_on_everything_that_the_encoder_does(
    teacher: d.Teacher, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, corpus: Path
) -> None:
    copied, other = tmp_path / "copied", tmp_path / "other"
    for target, ending in ((copied, ""), (other, " And one more.")):
        target.mkdir()
        for file in corpus.iterdir():
            (target / file.name).write_text(file.read_text() + ending * (file.name == "00.txt"))
    torch.manual_seed(1)
    stronger = d.Teacher(toy_bert(len(tokenizer), layers=4), tokenizer, accept_weak=True, cache_dir=tmp_path)
    changes: list[dict[str, Any]] = [
        {}, {"corpus": other}, {"depth": 3}, {"tokens": 257}, {"passes": 3}, {"learning_rate": 1e-4}, {"batch_size": 5},
        {"max_length": 15}, {"documents": "file"}, {"teacher": stronger},
    ]  # fmt: skip
    given = {"teacher": teacher, "cache_dir": tmp_path, "corpus": corpus}
    names = [open_stage(**given | change).directory.name for change in changes]
    assert len(set(names)) == len(names)
    assert open_stage(**given | {"corpus": copied}).directory.name == names[0]


def test_a_plan_says_how_long_the_stage_takes_or_that_it_is_kept(
    teacher: d.Teacher, tmp_path: Path, corpus: Path
) -> None:
    options = STAGE | {"corpus": str(corpus)}
    student = d.students.distilbert(depth=2, init="general", general=options)
    planned = dict(d.plan(teacher, student, TASK).rows)["general stage"]
    assert planned.startswith(f"to be trained on {corpus.name}: 8 steps of 4 examples, ")
    assert planned.endswith(", once")
    assert not (tmp_path / "cache" / "general").exists()
    open_stage(teacher, tmp_path / "cache", corpus).train()
    planned = dict(d.plan(teacher, student, TASK).rows)["general stage"]
    assert planned.startswith(f"trained before on {corpus.name}, in ")


def test_the_texts_without_labels_are_the_text_without_a_corpus(
    teacher: d.Teacher, tmp_path: Path, corpus: Path
) -> None:
    lines = [line for file in sorted(corpus.iterdir()) for line in file.read_text().splitlines()]
    task = d.tasks.Classification(
        text="text", train=(TEXTS, CLASSES), dev=(TEXTS[:8], CLASSES[:8]), max_length=24, unlabelled=lines,
    )  # fmt: skip
    stage = open_stage(teacher, tmp_path, None, task=task)
    texts = [document.text for document in stage.text.corpus.read_documents()]
    assert texts == list(dict.fromkeys(lines))


def test_a_narrower_student_learns_through_a_projection(
    teacher: d.Teacher, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, corpus: Path
) -> None:
    narrow = toy_bert(len(tokenizer), width=8, layers=2)
    narrow.save_pretrained(tmp_path / "narrow")
    tokenizer.save_pretrained(tmp_path / "narrow")
    stage = open_stage(
        teacher, tmp_path, corpus, build=lambda teacher: load_student(teacher, path=str(tmp_path / "narrow"))
    )
    stage.train()
    distance = stage.record()["distance"]
    assert distance["after"] < distance["before"]
    assert stage.load()["embeddings.word_embeddings.weight"].shape[1] == 8


# Refused


def test_what_is_no_general_stage_is_refused(teacher: d.Teacher, tmp_path: Path, corpus: Path) -> None:
    runs = itertools.count()

    def refused(message: str, given: Path | None = corpus, **options: Any) -> None:
        with pytest.raises(UserError, match=message):
            distil(teacher, tmp_path / f"{next(runs)}", given, **options)
        assert not (tmp_path / "cache" / "general").exists()

    small = tmp_path / "small.txt"
    small.write_text("word " * 512)  # A character less than those of 640 tokens, without the last blank.
    refused(r"^student.init=general learns from plain text, and the task has no texts without labels: set "
            r"student.general.corpus=PATH to a text file or a folder of them, or give task.unlabelled=FILE$",
            None)  # fmt: skip
    refused(r"^student.general.corpus=.*small.txt has about 639 tokens, expected at least 640, which are 10 steps of "
            r"4 sequences: give more text, or another student.init$", small)  # fmt: skip
    refused(r"^student.general.corpus=nowhere does not exist, expected a text file or a folder", Path("nowhere"))
    refused(r"^student.general.token is unknown, expected one of corpus, documents, tokens", stage={"token": 3})
    refused(r"^got student.general.passes=0, expected a whole number of at least 1$", stage=STAGE | {"passes": 0})
    refused(r"^student.init=general starts the students of all tasks from the same weights, and student.heads=1 "
            r"chooses them for one task: leave out one$", heads=1)  # fmt: skip
    refused(r"^student.init=\['general', 'search'\] combines the layers that suit one task with a general stage",
            init=["general", "search"])  # fmt: skip


def test_a_student_without_layers_is_refused(teacher: d.Teacher, tmp_path: Path, corpus: Path) -> None:
    bilstm = Student("bilstm", lambda teacher, *, init="general": create_bilstm(teacher, init=init))
    message = (
        r"^student.init=general trains the layers of a student on plain text, and student bilstm has none of the "
        r"teacher's: take \+student=distilbert or \+student=layers$"
    )
    with pytest.raises(UserError, match=message):
        distil(teacher, tmp_path / "run", corpus, student=bilstm)
