"""Tests of the teacher's vectors by which negatives are found, and of everything that their cache depends on."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from transformers import BertTokenizer, PreTrainedTokenizerBase

from distill.teachers import prepared
from distill.teachers.prepared import PreparedTeacher

TEXTS = ["a lovely film", "a dull film"]


@pytest.fixture
def encode(tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., bool]:
    """Returns a function that encodes texts, and whether the teacher computed them."""
    computed: list[int] = []
    monkeypatch.setattr(
        prepared,
        "_compute_vectors",
        lambda examples, teacher: computed.append(len(examples)) or np.ones((len(examples), 2)),
    )

    def run(texts: list[str] = TEXTS, *, max_length: int = 8, **options: Any) -> bool:
        given = {"tokenizer": tokenizer, "fingerprint": "one", "device": torch.device("cpu"), **options}
        before = len(computed)
        teacher = cast(PreparedTeacher, SimpleNamespace(**given))
        vectors = prepared.encode_texts(texts, teacher, max_length=max_length, cache_dir=tmp_path)
        assert len(vectors) == len(texts)
        return len(computed) > before

    return run


def test_vectors_are_cached_by_everything_that_they_depend_on(
    encode: Callable[..., bool], tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = list(tokenizer.get_vocab())
    other = BertTokenizer(vocab={word: number for number, word in enumerate([*words[:5], *words[:4:-1]])})
    assert encode()
    assert not encode()
    changes: list[dict[str, Any]] = [
        {"texts": TEXTS[::-1]}, {"texts": [*TEXTS, "more"]}, {"max_length": 3}, {"tokenizer": other},
        {"fingerprint": "two"}, {"device": torch.device("meta")},
    ]  # fmt: skip
    for change in changes:
        assert encode(**change), change
        assert not encode(**change), change
    monkeypatch.setattr(prepared, "library_versions", lambda: {"torch": "0"})
    assert encode()
