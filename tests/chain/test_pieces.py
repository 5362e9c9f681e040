"""Tests of a vocabulary that is chosen before the training, by which teacher and student read."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    BertForQuestionAnswering,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

import distill as d
from distill.chain.encoding import check_pieces, compare_readings, cut_teacher
from distill.core.contracts import Scores
from distill.core.errors import UserError
from distill.teachers.prepared import PreparedTeacher
from distill.training.module import split_metrics
from tests.conftest import toy_bert

CITIES = ("boston", "denver", "dallas")
OTHERS = ("chicago", "seattle")  # Of dev alone.
TRAINED = d.ExportSettings(vocabulary="trained", recipes=["dynamic"], max_drop=1, min_agreement=0)


def rows(cities: tuple[str, ...]) -> list[dict[str, Any]]:
    made = []
    for number in range(16):
        city = cities[number % len(cities)]
        context = f"{'we fly ' * (1 + number % 4)}to {city} today"
        answers = {"text": [city], "answer_start": [context.index(city)]}
        made.append({"id": str(number), "question": "which city", "context": context, "answers": answers})
    return made


TASK = d.tasks.QuestionAnswering(train=rows(CITIES), dev=rows((*CITIES, *OTHERS)), max_length=32, doc_stride=4)
SETTINGS = d.TrainerSettings(learning_rate=1e-3, batch_size=8, max_epochs=1, precision="32-true")
QUICK = d.BenchmarkSettings(enabled=False, batches=[1], lengths=[8])


def random_teacher(tokenizer: PreTrainedTokenizerBase, directory: Path) -> d.Teacher:
    config = toy_bert(len(tokenizer), layers=2).config
    config.id2label, config.label2id = {0: "start", 1: "end"}, {"start": 0, "end": 1}
    torch.manual_seed(0)
    return d.Teacher(BertForQuestionAnswering(config), tokenizer, accept_weak=True, cache_dir=directory)


@pytest.fixture(scope="module")
def result(tokenizer: PreTrainedTokenizerBase, tmp_path_factory: Any) -> d.Result:
    root = tmp_path_factory.mktemp("pieces")
    return d.distill(
        random_teacher(tokenizer, root / "cache"), d.students.bilstm(embedding_dim=16, hidden_dim=16), TASK,
        objective=d.Objective(soft=d.SoftTargets()), trainer=SETTINGS, export=TRAINED, benchmark=QUICK,
        directory=root / "run",
    )  # fmt: skip


def test_the_student_is_trained_on_the_pieces_of_its_file(result: d.Result, tokenizer: PreTrainedTokenizerBase) -> None:
    student = AutoModelForQuestionAnswering.from_pretrained(result.directory / "student")
    own = AutoTokenizer.from_pretrained(result.directory / "student")
    assert student.config.vocab_size == len(own) == len(student.get_input_embeddings().weight) < len(tokenizer)
    bundle = d.Bundle(result.directory / "bundle", model="fp32")
    context = f"we fly to {OTHERS[0]} today"
    assert bundle.tokenizer.encode(context).ids == own(context)["input_ids"]
    assert own.tokenize(rows(CITIES)[0]["context"]) == tokenizer.tokenize(rows(CITIES)[0]["context"])
    fp32 = result.record["export"]["fp32"]
    assert (fp32["gate"], fp32["agreement"]) == ("passed", 1.0)
    assert fp32["metrics"] == pytest.approx(result.metrics, abs=1e-6)
    assert fp32["max_abs_diff"] < 1e-4


def test_the_record_says_what_the_teacher_reads(result: d.Result, tokenizer: PreTrainedTokenizerBase) -> None:
    own = AutoTokenizer.from_pretrained(result.directory / "student")
    [notice] = [notice for notice in result.record["teacher"]["notices"] if "pieces" in notice]
    start = f"it teaches by {len(own):,} of its {len(tokenizer):,} pieces, those of the task: its f1 on dev is "
    assert notice.startswith(start)
    assert re.fullmatch(r"0\.\d{4} with them, and 0\.\d{4} with all", notice.removeprefix(start))


@pytest.mark.parametrize("items", [[0, 1, 2, 3], [0, 1, 2, 2]], ids=["the same items", "other items"])
def test_a_teacher_has_its_scores_with_all_pieces_where_the_items_are_the_same(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, items: list[int]
) -> None:
    rows = (["one", "two", "three", "four"], ["a", "b", "a", "b"])
    data = d.tasks.Classification(train=rows, dev=rows, text="text").read(Path("unused"))
    whole = PreparedTeacher(
        requested="t", resolved="t", origin="t", tokenizer=tokenizer, load=lambda: teacher, precision="float32",
        weights="w", device=torch.device("cpu"),
    )  # fmt: skip
    fewer, cut = cut_teacher(whole, data, TRAINED)
    assert (fewer.tokenizer, fewer.model.config.vocab_size) == (cut.tokenizer, len(cut.kept))
    assert fewer.fingerprint != whole.fingerprint
    batches = [each("one two", return_tensors="pt") for each in (tokenizer, cut.tokenizer)]
    with torch.no_grad():
        logits = [model.model(**batch).logits for model, batch in zip((whole, fewer), batches, strict=True)]
    torch.testing.assert_close(*logits)
    labels = np.array([0, 1, 0, 1])
    for each, predicted, example in ((whole, labels, [0, 1, 2, 3]), (fewer, 0 * labels, items)):
        each.scores = {"dev": Scores({"logits": np.eye(2)[predicted]}, labels, np.array(example))}
        each.metrics = split_metrics(data.scoring, each.scores)
    compare_readings(fewer, data.scoring)
    sizes = f"{len(cut.kept):,} of its {len(tokenizer):,} pieces"
    expected = f"it teaches by {sizes}, those of the task: its accuracy on dev is 0.5000 with them, and 1.0000 with all"
    assert fewer.notices == [expected]
    assert fewer.metrics["accuracy"] == (1.0 if items == [0, 1, 2, 3] else 0.5)
    compare_readings(whole, data.scoring)
    assert whole.notices == []


@pytest.mark.parametrize("given", ["features", "labeller"])
def test_a_teacher_that_is_not_one_model_is_refused(given: str) -> None:
    plan: Any = SimpleNamespace(trains_pieces=True)
    source: Any = SimpleNamespace(**{"features": None, "labeller": None, given: object()})
    with pytest.raises(UserError, match=r"^export.vocabulary=trained needs a teacher that is one model with the head"):
        check_pieces(d.students.bilstm(), source, plan)
    check_pieces(d.students.bilstm(), source, SimpleNamespace(trains_pieces=False))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"student": "loaded"}, r"^export.vocabulary=trained is for a student that is made from its teacher, and st"),
        ({"student": "general"}, r"^export.vocabulary=trained trains other pieces than student.init=general, whose"),
        ({"task": d.tasks.MaskedLM(data="nowhere")}, r"^got export.vocabulary=trained, expected full, because"),
    ],
    ids=["student", "general", "task"],
)
def test_a_vocabulary_that_cannot_be_chosen_is_refused(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    teacher = random_teacher(tokenizer, tmp_path)
    students: dict[str | None, Any] = {
        "loaded": BertForQuestionAnswering(toy_bert(len(tokenizer), layers=1).config),
        "general": d.students.distilbert(init="general"),
        None: d.students.bilstm(embedding_dim=16, hidden_dim=16),
    }
    student = students[options.get("student")]
    with pytest.raises(UserError, match=message):
        d.distill(
            teacher, student, options.get("task", TASK), trainer=SETTINGS, export=TRAINED, benchmark=QUICK,
            objective=d.Objective(soft=d.SoftTargets()), directory=tmp_path / "run",
        )  # fmt: skip
