"""Fuzz of two tokenizers: whatever a text holds, words and characters of teacher and student are matched rightly."""

import itertools
import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from distill.core.contracts import Items, Outputs
from distill.core.errors import UserError
from distill.data.batches import TokenizedExamples
from distill.kinds import QuestionAnswering, TokenClassification
from distill.kinds.token_classification import WORDS
from distill.teachers.reading import match_splits
from distill.text.vocabulary import train_bytes, train_word_pieces
from tests.conftest import sentences

TEXTS = 60
PARTS = (
    "plain words of a text", "naïve café", "e\u0301te\u0301", "👩\u200d👧 🙂", "line\r\nbreak", "tab\tand   spaces",
    "שלום עולם", "你好世界", "don't e-mail me@x.org", "3,141.59", "ﬁne ½", "A" * 40, "\u200bzero", "…", "مرحبا بالعالم",
    "word" * 30,
)  # fmt: skip


def fuzzed_texts(number: int) -> list[str]:
    """Returns texts of random parts, one of them with 10,000 characters."""
    draw = random.Random(0)
    texts = [" ".join(draw.choices(PARTS, k=draw.randint(1, 8))) for _ in range(number - 1)]
    return [*texts, "a long text with 你好 and words " * 320]


@pytest.fixture(scope="module")
def tokenizers() -> Mapping[str, PreTrainedTokenizerBase]:
    """Tokenizers of several families."""
    texts = [*fuzzed_texts(30), *(text for text, _ in sentences(32))]
    found: dict[str, PreTrainedTokenizerBase] = {"pieces": train_word_pieces(texts, 400)}
    found["bytes"] = train_bytes(texts, 500)
    found["bytes"].add_special_tokens({"cls_token": "[CLS]", "sep_token": "[SEP]"})
    found["few pieces"] = train_word_pieces(texts[:10], 150)
    return found


def test_words_are_those_of_the_same_place(tokenizers: Mapping[str, PreTrainedTokenizerBase]) -> None:
    words = [text.split() for text in fuzzed_texts(TEXTS)]
    tags = [["O", "B-x"][: len(of)] + ["O"] * (len(of) - 2) for of in words]
    task = TokenClassification(train=(words, tags), dev=(words, tags), max_length=64)
    data = task.read(Path())
    for student, teacher in itertools.permutations(tokenizers.values(), 2):
        splits = [task.encode(data, tokenizer, None) for tokenizer in (student, teacher)]
        examples, _ = match_splits(task, *splits)
        train = examples["train"]
        assert isinstance(train, TokenizedExamples)
        batch = train[list(range(len(words)))]
        items, own = task.select(batch), task.select(splits[1]["train"][list(range(len(words)))])
        # The logit of a word is its number, and that of a class the sentence.
        says = torch.stack([own[WORDS].flatten()[own.index], own.row], dim=1).float() + 1
        found = task.align(Outputs(logits=says), own, items).logits
        assert found is not None
        expected = torch.stack([items[WORDS].flatten()[items.index], items.row], dim=1).float() + 1
        taught = torch.ones(len(items), dtype=torch.bool) if items.taught is None else items.taught
        torch.testing.assert_close(found[taught], expected[taught])
        assert not found[~taught].any()
        both = {tuple(row) for row in says.tolist()}
        assert [tuple(row) in both for row in expected.tolist()] == taught.tolist()


def test_characters_are_those_of_the_token_that_holds_them(tokenizers: Mapping[str, PreTrainedTokenizerBase]) -> None:
    task = QuestionAnswering(max_length=48, doc_stride=16)
    rows = [
        {"question": "what?", "context": text, "answers": {"text": [], "answer_start": []}}
        for text in fuzzed_texts(TEXTS)[:-1]
    ]
    task = QuestionAnswering(train=rows, dev=rows, max_length=48, doc_stride=16)
    data = task.read(Path())
    readable = {}
    for name, tokenizer in tokenizers.items():
        try:
            readable[name] = task.encode(data, tokenizer, None)
        except UserError:  # No special token comes first, which stands for no answer.
            continue
    assert len(readable) > 1
    for student, teacher in itertools.permutations(readable.values(), 2):
        _, readings = match_splits(task, student, teacher)
        reading = readings[student["train"].digest]
        assert reading.rows is not None
        for first in range(0, len(student["train"]), 64):
            chosen = np.arange(first, min(first + 64, len(student["train"])))
            items = task.select(student["train"][chosen.tolist()])
            own = task.select(teacher["train"][reading.rows[chosen].tolist()])
            check_characters(task, items, own)


def check_characters(task: QuestionAnswering, items: Items, own: Items) -> None:
    """Every token of the teacher by itself is given to a token of the student that holds its character."""
    starts, ends = (own[name] for name in ("start_characters", "end_characters"))
    shown = [items[name] for name in ("start_characters", "end_characters")]
    draw = np.random.default_rng(0)
    assert own.valid is not None
    for _ in range(3):
        sure = torch.full(own.valid.shape, -50.0)
        token = torch.tensor([int(draw.choice(np.flatnonzero(row))) for row in own.valid.numpy()])
        sure[torch.arange(len(own)), token] = 50.0
        found = task.align(Outputs(logits=sure), own, items).logits
        assert found is not None
        assert items.valid is not None
        best = found.masked_fill(~items.valid, -torch.inf).argmax(dim=1)
        for item, (row, place) in enumerate(zip(items.row.tolist(), best.tolist(), strict=True)):
            side = item % 2
            character = int(starts[row, token[item]]) if side == 0 else int(ends[row, token[item]]) - 1
            first, last = (int(of[row, place]) for of in shown)
            if place == 0:  # No answer, or a character that this window does not show.
                inside = (shown[0][row] <= character) & (character < shown[1][row])
                assert token[item] == 0 or not inside[items.valid[item]].any()
            else:
                assert first <= character < last
