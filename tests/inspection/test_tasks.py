"""Tests of inspections of a teacher and its student for tasks whose answers are no class of a text."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from distill.builtin.students.distilbert import from_teacher
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.inspection.inspection import Inspection, Questions, inspect_models
from distill.inspection.inspection_report import tables, write_inspection
from distill.inspection.subjects import Subject, open_subject
from distill.kinds import CausalLM, MaskedLM, QuestionAnswering, Regression, Seq2Seq, TokenClassification
from distill.text.vocabulary import train_bytes, train_sentinels, train_word_pieces
from tests.conftest import BAD, GOOD, write_corpus
from tests.kinds.test_question_answering import questions
from tests.kinds.test_seq2seq import bart, t5

QUESTIONS = Questions(masked_rows=8, probe_rows=64, shown=3, attributions=False)
SMALL: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 64, "initializer_range": 0.3,
}  # fmt: skip
TEXTS = [*GOOD, *BAD] * 4


@dataclass(frozen=True)
class Case:
    """A task with data, and a teacher of it.

    Attributes:
        build: the teacher for a number of tokens.
        train: a tokenizer for texts and a number of tokens.
        sections: that its page has besides those of heads and layers.
    """

    task: Callable[[Path], Any]
    build: Callable[[int], PreTrainedModel]
    train: Callable[..., PreTrainedTokenizerBase] = train_word_pieces
    sections: tuple[str, ...] = ()


def seq2seq(_: Path) -> Seq2Seq:
    rows = [{"source": text, "target": " ".join(reversed(text.split()))} for text in TEXTS]
    return Seq2Seq(train=rows, dev=rows, scored_texts=0, max_length=36, max_target=36)


def regression(_: Path) -> Regression:
    rows = [{"text": text, "label": float(number % 7)} for number, text in enumerate(TEXTS)]
    return Regression(text="text", label="label", train=rows, dev=rows, max_length=40)


def answers(root: Path) -> QuestionAnswering:
    return QuestionAnswering(train=questions(40), dev=questions(30), max_length=48, doc_stride=8)


def of_bert(kind: type[PreTrainedModel], **options: Any) -> Callable[[int], PreTrainedModel]:
    return lambda vocabulary: kind(transformers.BertConfig(vocab_size=vocabulary, **SMALL, **options))


def gpt2(vocabulary: int) -> PreTrainedModel:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=vocabulary, n_embd=32, n_layer=3, n_head=4, n_positions=64, initializer_range=0.3,
            bos_token_id=0, eos_token_id=0, pad_token_id=0,
        )
    )  # fmt: skip


CASES = {
    "numbers": Case(
        regression, of_bert(transformers.BertForSequenceClassification, num_labels=1), sections=("Where they differ",)
    ),
    "answers": Case(answers, of_bert(transformers.BertForQuestionAnswering), sections=("Where they differ",)),
    "masked": Case(
        lambda root: MaskedLM(data=write_corpus(root), max_length=32), of_bert(transformers.BertForMaskedLM),
        sections=("Where they differ", "Types and calibration"),
    ),
    "causal": Case(
        lambda root: CausalLM(data=write_corpus(root), max_length=32), gpt2, train_bytes,
        sections=("Where they differ", "Types and calibration"),
    ),
    "t5": Case(seq2seq, t5, train_sentinels, ("Where they differ", "Types and calibration")),
    "bart": Case(seq2seq, bart, train_sentinels, ("Where they differ", "Types and calibration")),
}  # fmt: skip


def open_pair(case: Case, root: Path, *, vocabularies: tuple[int, int] = (400, 400)) -> list[Subject]:
    """Returns the subjects of a teacher and its untrained student of half its layers."""
    task, subjects = case.task(root), []
    data = task.read(root / "cache")
    for name, size in zip(("teacher", "student"), vocabularies, strict=True):
        tokenizer = case.train(TEXTS, size)
        torch.manual_seed(0)
        teacher = case.build(len(tokenizer)).eval()
        model = teacher if name == "teacher" else from_teacher(teacher)
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
        subjects.append(open_subject(name, root / name, task, data, root / "cache"))
    return subjects


def page_of(found: Inspection, root: Path) -> str:
    return write_inspection(found, root / "page").with_suffix(".md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CASES)
def test_a_student_is_compared_with_its_teacher(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    subjects = open_pair(case, tmp_path)
    found = inspect_models(subjects, QUESTIONS)
    page = page_of(found, tmp_path)
    for section in ("What was lost", "Attention", "Heads", "Layers that are alike", *case.sections):
        assert f"\n## {section}\n" in page
    assert found.similarity is not None
    # The student's embeddings are the teacher's, without those of the second text of a pair.
    assert found.similarity[0, 0] == pytest.approx(
        0.9 if name == "answers" else 1.0, abs=0.1 if name == "answers" else 1e-4
    )
    assert 0 < found.similarity[-1, -1] < 1
    assert found.agreement is not None
    assert {row["model"] for row in tables(found)["heads"]} == {"teacher", "student"}
    assert [len(of.views) for of in found.models] == [len(found.sentences)] * 2
    sizes = [of.size for of in found.differences]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) == min(3, len(subjects[0].split("dev")))
    if "Types and calibration" in case.sections:  # A task of tokens.
        words = {word for text in TEXTS for word in text.split()}
        for difference in found.differences:
            assert isinstance(difference.first, str)
            assert words & set(difference.text.lower().split())
        # The mean difference of the probability of the right token.
        [teacher, student], first = [of.seen.scores for of in found.models], found.differences[0]
        of_row = teacher.example_id == first.row
        right = [np.exp(-of.columns["loss"][of_row]) for of in (teacher, student)]
        assert first.size == pytest.approx(float(np.abs(right[0] - right[1]).mean()), rel=1e-4)


def test_words_that_two_models_tag_differently_are_shown_with_their_tags(tmp_path: Path) -> None:
    words = [text.split() for text in TEXTS]
    rows = {"tokens": words, "tags": [["B-x" if word in ("film", "bore") else "O" for word in of] for of in words]}
    task = TokenClassification(tokens="tokens", tags="tags", train=rows, dev=rows, max_length=40)
    data, subjects = task.read(tmp_path), []
    for name in ("teacher", "student"):
        torch.manual_seed(0)
        tokenizer = train_word_pieces(TEXTS, 400)
        model: Any = of_bert(transformers.BertForTokenClassification, num_labels=len(data.labels))(len(tokenizer))
        model.classifier.bias.data.zero_()
        if name == "student":  # It has the other tag for each word.
            model.classifier.weight.data.neg_()
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        subjects.append(open_subject(name, tmp_path / name, task, data, tmp_path))
    differences = inspect_models(subjects, replace(QUESTIONS, shown=32)).differences
    found = next(of for of in differences if of.first != of.second)
    label, first, second = (str(of).split(", ") for of in (found.label, found.first, found.second))
    shown = [[answer.partition(": ")[0] for answer in of] for of in (label, first, second)]
    assert shown[0] == shown[1] == shown[2]
    assert set(shown[0]) <= set(found.text.split())
    assert all(one != other for one, other in zip(first, second, strict=True))


def test_tokens_of_two_vocabularies_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = inspect_models(open_pair(CASES["causal"], tmp_path, vocabularies=(400, 270)), QUESTIONS)
    assert "the models have different tokens to predict" in " ".join(capsys.readouterr().out.split())
    assert (found.agreement, found.similarity) == (None, None)
    page = page_of(found, tmp_path)
    assert "\n## Heads\n" in page
    assert "\n## What was lost\n" not in page
