"""Toy teachers and data: everything is made on the spot, offline, in seconds."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from teachers.embedded import train_tokenizer

GOOD = ("a lovely and moving film", "wonderful acting , a joy", "funny , warm and clever", "i loved every minute")
BAD = ("a dull and lifeless mess", "terrible acting , a bore", "stale , cold and stupid", "i hated every minute")
LABELS = ("negative", "positive")


def sentences(count: int) -> list[tuple[str, int]]:
    """Sentences that a toy model can tell apart, of different lengths."""
    rows = []
    for index in range(count):
        label = index % 2
        source = GOOD if label else BAD
        text = " ".join(source[(index // 2 + k) % len(source)] for k in range(1 + index % 3))
        rows.append((f"{text} {index}", label))
    return rows


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    return train_tokenizer([text for text, _ in sentences(64)], 300)


def at_once(work: Callable[..., None], directory: Path) -> list[Any]:
    """What three processes put into `results` that run `work(directory, barrier, results)` at the same time."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(3), context.Queue()
    processes = [context.Process(target=work, args=(directory, barrier, results)) for _ in range(3)]
    for process in processes:
        process.start()
    found = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    return found


def toy_bert(
    vocab_size: int, *, layers: int = 4, seed: int = 0, width: int = 32, spread: float = 0.3
) -> PreTrainedModel:
    """A BERT with two labels, by default with weights that are large enough for differences to show."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=2 * width,
        max_position_embeddings=80,
        initializer_range=spread,
        id2label=dict(enumerate(LABELS)),
        label2id={label: index for index, label in enumerate(LABELS)},
    )
    return BertForSequenceClassification(config)


@pytest.fixture
def teacher(tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    return toy_bert(len(tokenizer)).eval()


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory laid out as SST-2: 64 examples to train on, 24 in dev."""
    directory = tmp_path_factory.mktemp("data")
    for name, rows in (("train", sentences(64)), ("dev", sentences(24))):
        lines = ["sentence\tlabel", *(f"{text}\t{label}" for text, label in rows)]
        (directory / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return directory


@pytest.fixture(scope="session")
def encoder_dir(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerBase) -> Path:
    """A pre-trained encoder without a classification head, in float16 as many checkpoints are."""
    directory = tmp_path_factory.mktemp("encoder")
    encoder = toy_bert(len(tokenizer), spread=0.05).bert.half()
    encoder.config.id2label, encoder.config.label2id = {0: "LABEL_0", 1: "LABEL_1"}, {"LABEL_0": 0, "LABEL_1": 1}
    encoder.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
