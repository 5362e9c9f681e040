"""Tests of questions with other contexts of the same title."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from distill.core.contracts import IGNORED
from distill.core.errors import UserError
from distill.data.augmentation import augment, make_copies
from distill.data.batches import MixedExamples
from distill.data.questions import QuestionAugmentation
from distill.data.splits import LabelledData
from distill.kinds import Classification, QuestionAnswering

# The title of each context, and the questions about it. All answers are the first word.
ARTICLES = {
    "Turing": {"Alan Turing wrote it": ["who wrote it", "what is his name"], "Enigma was broken": ["what was broken"]},
    "Cities": {"Rome is old": ["what is old"], "Oslo is cold": ["what is cold"], "Bern is small": ["what is small"]},
    "Alone": {"Nobody came": ["who came"]},
}


def rows(*, titles: bool = True) -> list[dict[str, Any]]:
    made = []
    for title, contexts in ARTICLES.items():
        for context, questions in contexts.items():
            answers = {"text": [context.split()[0]], "answer_start": [0]}
            made += [
                {"question": question, "context": context, "answers": answers, **({"title": title} if titles else {})}
                for question in questions
            ]
    return made


DEV = [{"question": "what is old", "context": "Bern is small", "answers": {"text": [], "answer_start": []}}]


def read(train: Any) -> LabelledData:
    return QuestionAnswering(train=train, dev=DEV).read(Path("unused"))


def copies(**options: Any) -> list[list[tuple[str, str]]]:
    """Returns the copies of each question."""
    method = QuestionAugmentation(**options)
    pairs = list(zip(*make_copies(read(rows()), method, None, "cpu"), strict=True))
    return [pairs[start : start + method.copies] for start in range(0, len(pairs), method.copies)]


def test_a_question_is_asked_of_the_other_contexts_of_its_title() -> None:
    made = copies(copies=200)
    for row, pairs in zip(rows(), made, strict=True):
        others = set(ARTICLES[row["title"]]) - {row["context"]} or {row["context"]}
        assert set(pairs) == {(row["question"], context) for context in others}
    oslo = [pair[1] for pair in made[3]].count("Oslo is cold")
    assert oslo / 200 == pytest.approx(0.5, abs=0.12)


def test_the_json_of_squad_has_its_titles(tmp_path: Path) -> None:
    articles = []
    for title, contexts in ARTICLES.items():
        paragraphs = []
        for context, questions in contexts.items():
            answers = [{"text": context.split()[0], "answer_start": 0}]
            paragraphs.append({"context": context, "qas": [{"question": q, "answers": answers} for q in questions]})
        articles.append({"title": title, "paragraphs": paragraphs})
    (tmp_path / "train.json").write_text(json.dumps({"data": articles}))
    (tmp_path / "dev.json").write_text(json.dumps({"data": articles[:1]}))
    data = QuestionAnswering(data_dir=tmp_path).read(tmp_path)
    assert data.splits["train"]["title"] == [row["title"] for row in rows()]
    assert "title" not in data.splits["dev"].columns
    assert data.sha256 == QuestionAnswering(train=rows(titles=False), dev=rows()[:3]).read(tmp_path).sha256


def test_new_pairs_join_the_pool_without_an_answer(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    task = QuestionAnswering(train=rows(), dev=DEV, max_length=64, doc_stride=4)
    data = augment(
        task.read(tmp_path), QuestionAugmentation(copies=40), mask_token=None, cache_dir=tmp_path, device="cpu"
    )
    # Each context of Turing has one other, each one of Cities two, one of which is a row of dev.
    assert len(data.pool.rows) == 3 + 6 - 1
    assert data.pool.record()["augmentation"]["removed"]["dev"] > 0
    train = task.encode(data, tokenizer, None)["train"]
    assert isinstance(train, MixedExamples)
    items = task.select(train[list(range(len(train)))])
    assert set(items.row[items.labelled].tolist()) == set(range(len(rows())))
    assert set(items.labels[~items.labelled].tolist()) == {IGNORED}


def test_rows_that_have_no_contexts_of_a_title_are_refused() -> None:
    method = QuestionAugmentation()
    with pytest.raises(UserError, match=r"^augment=questions needs the titles of the contexts of train, by which it"):
        make_copies(read(rows(titles=False)), method, None, "cpu")
    film = Classification(train=(["a"], ["x"]), dev=(["a"], ["x"]), text="text", name="films")
    with pytest.raises(UserError, match=r"^augment=questions is for tasks with questions about contexts, and task fil"):
        method.check_task(film.info)
    method.check_task(QuestionAnswering(train=rows(), dev=DEV).info)
    with pytest.raises(UserError, match="got copies=0, expected a whole number of at least 1"):
        QuestionAugmentation(copies=0)
