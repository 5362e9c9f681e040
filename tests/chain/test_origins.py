"""Tests of what a student may start from besides its teacher: vectors of pieces, kept, and the shares of pieces."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from distill.builtin.teachers.loaded import Loaded
from transformers import BertModel, PreTrainedModel, PreTrainedTokenizerBase

from distill.chain import student_setup
from distill.chain.plan import Student
from distill.chain.student_setup import OriginSource
from distill.core.errors import UserError
from distill.kinds import Classification
from distill.models.surgery.initialization import Origins, encode_pieces
from distill.teachers.source import TeacherSource
from tests.conftest import toy_bert

TRAIN, UNLABELLED = ["a lovely film", "a dull [SEP] film"], ["a film"]


class Texts:
    """Stands in for the data of a task."""

    def texts(self) -> list[str]:
        return TRAIN

    def labelled_texts(self) -> list[str]:
        return TRAIN

    def unlabelled_texts(self) -> list[str]:
        return UNLABELLED


@pytest.fixture
def make(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> Callable[[PreTrainedModel], OriginSource]:
    def create(model: PreTrainedModel) -> OriginSource:
        data: Any = Texts()
        return OriginSource(TeacherSource(Loaded(model, tokenizer), None), data, tmp_path, torch.device("cpu"))

    return create


def test_pieces_are_counted_in_labelled_and_unlabelled_texts_without_special_tokens(
    make: Callable[[PreTrainedModel], OriginSource], tokenizer: PreTrainedTokenizerBase
) -> None:
    shares = make(toy_bert(len(tokenizer))).of(tokenizer).shares()
    ids = tokenizer.convert_tokens_to_ids(["a", "film", "lovely", "dull", "[SEP]"])
    assert shares[ids].tolist() == pytest.approx([3 / 8, 3 / 8, 1 / 8, 1 / 8, 0])
    assert float(shares.sum()) == pytest.approx(1)


def test_the_sentence_encoder_encodes_every_piece_once(
    make: Callable[[PreTrainedModel], OriginSource], tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, calls = toy_bert(len(tokenizer)), []

    def count(encoder: PreTrainedModel, reader: PreTrainedTokenizerBase, own: None) -> torch.Tensor:
        calls.append(type(encoder))
        return encode_pieces(encoder, reader, own)

    monkeypatch.setattr(student_setup, "encode_pieces", count)
    for _ in range(2):  # The second one is another run with the same cache.
        vectors = make(model).of(tokenizer).sentence_vectors()
    assert calls == [BertModel]
    torch.testing.assert_close(vectors, encode_pieces(model, tokenizer))
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight.mul_(2)
    make(model).of(tokenizer).sentence_vectors()
    assert len(calls) == 2


def test_a_function_gets_the_origins_that_it_has_a_parameter_for(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, make: Callable[[PreTrainedModel], OriginSource]
) -> None:
    task, data, given = Classification(text="sentence"), _NoBias(), make(teacher).of(tokenizer)
    seen: list[Origins] = []

    def build(model: PreTrainedModel, *, origins: Origins) -> PreTrainedModel:
        seen.append(origins)
        return model

    Student("mine", build).make(teacher, task, data, given)
    Student("other", lambda model: model).make(teacher, task, data, given)
    assert seen == [given]
    with pytest.raises(UserError, match="student mine cannot be built: .* 'origins'"):
        Student("mine", build).make(teacher, task, data)


class _NoBias(Texts):
    head_bias = None
