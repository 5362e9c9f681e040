"""Tests of the choice of a bank's sentences, and of the teacher's vectors by which negatives are found."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from distill.builtin.teachers.pretrained import Pretrained
from transformers import AutoModel, BertTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from distill.data.pool import Bank
from distill.data.splits import LabelledData
from distill.kinds import Classification
from distill.teachers import prepared as module
from distill.teachers.prepared import PreparedTeacher, Search
from distill.teachers.source import TeacherSource
from tests.conftest import sentences
from tests.teachers.conftest import CPU

TRAIN, DEV = sentences(12), [(f"{text} dev", label) for text, label in sentences(4)]
SENTENCES = [f"{text} more {number}" for number in range(6) for text, _ in sentences(10)]


def data_of(rows: list[tuple[str, int]]) -> tuple[list[str], list[int]]:
    return [text for text, _ in rows], [label for _, label in rows]


TASK = Classification(text="text", name="toy", max_length=48, train=data_of(TRAIN), dev=data_of(DEV))


@pytest.fixture
def data() -> LabelledData:
    return TASK.read(Path("unused"))


def search(encoder: Path, cache: Path, texts: list[str]) -> Search:
    weights = Pretrained(name="toy", path=str(encoder))
    source = TeacherSource(weights=weights, finetune=None)
    return Search(Bank(texts, "films"), TASK, source, cache, CPU)


@pytest.fixture
def prepared(teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> PreparedTeacher:
    fake = SimpleNamespace(fingerprint="toy", device=CPU, tokenizer=tokenizer, running=lambda: teacher, members=[])
    fake.members = [fake]
    return cast(PreparedTeacher, fake)


def test_vectors_are_means_of_the_last_hidden_states_of_length_one(
    encoder_dir: Path, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    texts = SENTENCES[:5]
    one = search(encoder_dir, tmp_path, texts)
    model, own = one._load(TASK.read(tmp_path))
    vectors = one._encode(texts, model, own)
    reference = AutoModel.from_pretrained(encoder_dir, dtype=one._dtype).eval()
    for text, vector in zip(texts, vectors, strict=True):
        with torch.no_grad():
            states = reference(**tokenizer(text, return_tensors="pt")).last_hidden_state.float()
        mean = states.mean(dim=1)[0]
        expected = (mean / mean.norm()).numpy()
        tolerance = 0.02 if one._dtype != torch.float32 else 2e-3
        np.testing.assert_allclose(vector.astype(np.float32), expected, atol=tolerance)


def test_chosen_sentences_are_new_balanced_and_cached(
    encoder_dir: Path, tmp_path: Path, data: LabelledData, prepared: PreparedTeacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [*SENTENCES, *(text.upper() for text, _ in TRAIN), *(text for text, _ in DEV)]
    one = search(encoder_dir, tmp_path, texts)
    # The toy teacher predicts one class for nine of ten sentences.
    classes = {text: int(number % 10 == 0) for number, text in enumerate(texts)}
    monkeypatch.setattr(Search, "_predict", lambda self, given, teacher: np.array([classes[text] for text in given]))
    chosen = one.add_to(data, prepared, 10)
    rows = chosen.pool.rows.texts
    assert len(rows) == len(set(rows)) == 10
    assert set(rows) <= set(SENTENCES)
    assert sum(classes[text] for text in rows) >= 2
    assert chosen.pool.sources == ({"name": "bank", "examples": 10, "from": f"of {len(texts)} sentences of films"},)
    assert chosen.sha256 == data.sha256
    monkeypatch.setattr(Search, "_encode", _not_again)
    assert one.add_to(data, prepared, 10).pool.rows.texts == rows
    with pytest.raises(AssertionError, match="again"):
        one.add_to(data, prepared, 11)
    assert len(list((tmp_path / "banks").iterdir())) == 2


def test_the_choice_is_cached_by_everything_that_it_depends_on(
    encoder_dir: Path, tmp_path: Path, data: LabelledData, prepared: PreparedTeacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the vectors of the bank are shared by choices of other teachers, tasks and counts."""
    chosen: list[int] = []
    monkeypatch.setattr(Search, "_find", lambda *of: np.arange(5))
    monkeypatch.setattr(Search, "_encode", lambda self, texts, *of: np.ones((len(texts), 2)))
    monkeypatch.setattr(Search, "_select", lambda self, near, data, teacher, count: chosen.append(count) or near)
    one = search(encoder_dir, tmp_path, SENTENCES)
    more = data.splits["train"] + data.splits["dev"]
    task = Classification(text="text", name="toy", max_length=24, train=data_of(TRAIN), dev=data_of(DEV))
    changes: list[tuple[Search, LabelledData, PreparedTeacher, int]] = [
        (one, data, prepared, 3),
        (one, data, prepared, 4),
        (one, data, cast(PreparedTeacher, SimpleNamespace(**{**vars(prepared), "fingerprint": "other"})), 3),
        (one, replace(data, sha256="other"), prepared, 3),
        (one, replace(data, splits={**data.splits, "train": more}), prepared, 3),
        (one, replace(data, pool=data.pool.add(data.splits["dev"], "new", "here")), prepared, 3),
        (search(encoder_dir, tmp_path, SENTENCES[1:]), data, prepared, 3),
        (replace(one, task=task), data, prepared, 3),
        (replace(one, source=replace(one.source, weights=other_weights(encoder_dir))), data, prepared, 3),
    ]
    for number, (of_search, of_data, teacher, count) in enumerate(changes, 1):
        for _ in range(2):
            of_search._choose(of_data, teacher, count)
            assert len(chosen) == number
    monkeypatch.setattr(module, "CANDIDATES", 7)
    one._choose(data, prepared, 3)
    assert len(chosen) == len(changes) + 1


def other_weights(encoder: Path) -> Pretrained:
    """Returns the weights of the encoder with another fingerprint."""

    class Other(Pretrained):
        def fingerprint(self) -> str:
            return "other"

    return Other(name="toy", path=str(encoder))


def _not_again(*arguments: object) -> None:
    raise AssertionError("the texts are encoded again")


def test_the_class_is_that_of_the_teacher(
    encoder_dir: Path, tmp_path: Path, prepared: PreparedTeacher, teacher: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
) -> None:  # fmt: skip
    found = search(encoder_dir, tmp_path, SENTENCES)._predict(SENTENCES[:8], prepared)
    with torch.no_grad():
        logits = [teacher(**tokenizer(text, return_tensors="pt")).logits[0] for text in SENTENCES[:8]]
    assert found.tolist() == [int(of_text.argmax()) for of_text in logits]


def test_the_nearest_sentence_of_every_row_comes_first(
    encoder_dir: Path, tmp_path: Path, data: LabelledData, prepared: PreparedTeacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each row has one sentence that differs from it in one character.
    near = [f"{text} ." for text, _ in TRAIN]
    one = search(encoder_dir, tmp_path, [*SENTENCES, *near])
    monkeypatch.setattr(module, "CANDIDATES", 1)
    chosen = one.add_to(data, prepared, len(near)).pool.rows.texts
    assert len(set(chosen) & set(near)) >= len(near) - 2


def test_no_new_sentence_leaves_the_data_as_it_is(
    encoder_dir: Path, tmp_path: Path, data: LabelledData, prepared: PreparedTeacher
) -> None:
    assert search(encoder_dir, tmp_path, [text for text, _ in DEV]).add_to(data, prepared, 5) is data
    more = replace(data, pool=replace(data.pool, share=0.25))
    assert search(encoder_dir, tmp_path, SENTENCES).add_to(more, prepared, 5).pool.share == 0.25


# Negatives


def test_vectors_are_cached_by_everything_that_they_depend_on(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[int] = []

    def compute(examples: Any, teacher: Any) -> np.ndarray:
        computed.append(len(examples))
        return np.ones((len(examples), 2))

    def encode(texts: Sequence[str] = ("a lovely film", "a dull film"), max_length: int = 8, **options: Any) -> bool:
        """Returns whether the teacher computed the vectors."""
        before = len(computed)
        given = {"tokenizer": tokenizer, "fingerprint": "one", "device": CPU, **options}
        teacher = cast(PreparedTeacher, SimpleNamespace(**given))
        assert len(module.encode_texts(list(texts), teacher, max_length=max_length, cache_dir=tmp_path)) == len(texts)
        return len(computed) > before

    monkeypatch.setattr(module, "_compute_vectors", compute)
    words = list(tokenizer.get_vocab())
    other = BertTokenizer(vocab={word: number for number, word in enumerate([*words[:5], *words[:4:-1]])})
    changes: list[dict[str, Any]] = [
        {}, {"texts": ["a dull film", "a lovely film"]}, {"texts": ["a lovely film", "a dull film", "more"]},
        {"max_length": 3}, {"tokenizer": other}, {"fingerprint": "two"}, {"device": torch.device("meta")},
    ]  # fmt: skip
    for change in changes:
        assert encode(**change), change
        assert not encode(**change), change
    monkeypatch.setattr(module, "library_versions", lambda: {"torch": "0"})
    assert encode()
