"""A corpus of forty lines, and helpers that encode and compare its sequences."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from distill.core.contracts import IGNORED
from distill.data.batches import CollatedBatch
from distill.kinds import MaskedLM
from distill.text.corpus import Corpus, Document
from distill.text.masking import Masking
from distill.text.sequences import Sequences
from tests.conftest import BAD, GOOD

BATCHES = {"batch_size": 4, "batch_tokens": None, "accumulate": 2, "seed": 0}


def make_text(number: int, count: int) -> str:
    """Returns the sentences of a document; most of them differ from those of other documents."""
    random = np.random.default_rng(number)
    return " ".join(f"{random.choice([*GOOD, *BAD]).capitalize()} {number}." for _ in range(count))


@pytest.fixture(scope="module")
def corpus_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty documents, one per line."""
    path = tmp_path_factory.mktemp("corpus") / "a.txt"
    path.write_text("\n".join(make_text(number, 3 + number % 9) for number in range(40)))
    return path


def make_task(corpus_file: Path | str, **options: Any) -> MaskedLM:
    defaults = {"name": "mlm", "mask": Masking(), "documents": "line", "max_length": 16, "dev_fraction": 0.2}
    return MaskedLM(data_dir=str(corpus_file), **{**defaults, "packing": "doc_sentences", **options})  # type: ignore[arg-type]


Encode = Callable[..., dict[str, Any]]


@pytest.fixture
def encode(corpus_file: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> Encode:
    """Returns the splits of a task on the corpus, or on another one, which are cached in a directory of the test."""

    def encode_task(path: Path = corpus_file, **options: Any) -> dict[str, Any]:
        task = make_task(path, **options)
        return task.encode(task.read(tmp_path / "cache"), tokenizer, tmp_path / "cache")

    return encode_task


def read_numbers(examples: Sequences, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Returns the numbers of the documents that sequences of whole sentences are from."""
    texts = (tokenizer.decode(ids, skip_special_tokens=True) for ids in unmask_all(examples))
    return {int("".join(filter(str.isdigit, text)) or -1) for text in texts} - {-1}


def equal_batches(one: CollatedBatch, other: CollatedBatch) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def unmask(batch: CollatedBatch) -> list[list[int]]:
    """Returns the tokens of each sequence before masking."""
    ids = torch.where(batch["labels"] != IGNORED, batch["labels"], batch["input_ids"])
    return [row[mask.bool()].tolist() for row, mask in zip(ids, batch["attention_mask"], strict=True)]


def unmask_all(examples: Sequences) -> list[list[int]]:
    return [unmask(examples[[index]])[0] for index in range(len(examples))]


def record_documents(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list that fills with the keys of all documents that are read."""
    keys: list[str] = []
    original = Corpus.read_documents

    def documents(self: Corpus, **options: Any) -> Iterator[Document]:
        for document in original(self, **options):
            keys.append(document.key)
            yield document

    monkeypatch.setattr(Corpus, "read_documents", documents)
    return keys
