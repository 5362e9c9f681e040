"""Tests of denoising: its batches, the loss of transformers on them, and the tokenizers and models it refuses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from distill.builtin.teachers.new import NewModel
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from distill.core.contracts import IGNORED, TARGET_MASK
from distill.core.errors import UserError
from distill.kinds import Denoising
from distill.models.sentence_files import load_tokenizer
from distill.text.sequences import Sequences
from distill.text.vocabulary import train_bytes, train_sentinels

SIZES: dict[str, Any] = {"layers": 2, "hidden_size": 32, "heads": 4, "pieces": "sentinels", "vocabulary": 400}
FAMILIES = {"t5": {"positions": None}, "bart": {"positions": 64}}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty documents of one line each."""
    root = tmp_path_factory.mktemp("corpus")
    lines = [f"the cat number {number} sat on the mat. it saw the dog {number}!" for number in range(40)]
    (root / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def tokenizer(corpus: Path) -> PreTrainedTokenizerBase:
    return train_sentinels([(corpus / "text.txt").read_text(encoding="utf-8")] * 3, 400)


def encode(corpus: Path, tokenizer: PreTrainedTokenizerBase, cache: Path, **options: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"documents": "line", "max_length": 32, "dev_fraction": 0.2} | options
    task = Denoising(data=corpus, **settings)
    return dict(task.encode(task.read(cache), tokenizer, cache))


def test_a_batch_has_padded_sources_and_targets(
    corpus: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    train: Sequences = encode(corpus, tokenizer, tmp_path)["train"]
    batch = train[range(len(train))]
    assert batch.keys() == {"input_ids", "attention_mask", "labels", TARGET_MASK, "example_id"}
    ids, labels = batch["input_ids"], batch["labels"]
    assert torch.equal(labels != IGNORED, batch[TARGET_MASK].bool())
    assert torch.equal(ids != tokenizer.pad_token_id, batch["attention_mask"].bool())
    first = tokenizer.convert_tokens_to_ids("<extra_id_0>")
    assert (labels[:, 0] == first).all()
    assert ((ids == first).sum(dim=1) == 1).all()
    ends = batch[TARGET_MASK].sum(dim=1) - 1
    assert (labels.gather(1, ends[:, None]) == tokenizer.eos_token_id).all()
    # The end of a text separates documents in the sources, and is never hidden.
    assert (((labels == tokenizer.eos_token_id).sum(dim=1)) == 1).all()
    assert int((ids == tokenizer.eos_token_id).sum()) > len(train)
    assert train.lengths.tolist() == [32 + 5 + 2 + 1 + 1] * len(train)  # Five tokens of noise in two spans of 31.


def test_the_noise_of_a_sequence_is_new_in_every_visit_and_fixed_where_it_is_static(
    corpus: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    train: Sequences = encode(corpus, tokenizer, tmp_path, corruption=["permutation", "infilling"])["train"]
    assert train.visits is None
    number = len(train)
    batch = train[[0, number, 0, 5 * number]]
    assert torch.equal(batch["input_ids"][0], batch["input_ids"][2])
    assert not torch.equal(batch["input_ids"][0], batch["input_ids"][1])
    assert not torch.equal(batch["input_ids"][0], batch["input_ids"][3])
    assert (batch["labels"] == batch["labels"][0]).all()  # The whole text.
    static = encode(corpus, tokenizer, tmp_path, masking="static", masks=3)["train"]
    assert static.visits == 3
    digests = {train.digest, static.digest, encode(corpus, tokenizer, tmp_path, masking="static", masks=3,
                                                   mean_span=2.0)["train"].digest}  # fmt: skip
    assert len(digests) == 3


def test_the_counts_of_tokens_are_those_of_the_targets(
    corpus: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    train: Sequences = encode(corpus, tokenizer, tmp_path)["train"]
    labels = train[range(len(train))]["labels"]
    expected = np.bincount(labels[labels != IGNORED].numpy(), minlength=len(tokenizer))
    assert train.token_counts.tolist() == expected.tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_is_that_of_transformers(
    family: str, corpus: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    task = Denoising(data=corpus, documents="line", max_length=32, dev_fraction=0.2)
    data = task.read(tmp_path)
    start = NewModel(family=family, **SIZES, **FAMILIES[family]).load(task.info.auto_class, None, data.texts())
    start.model.save_pretrained(tmp_path / "model")
    start.tokenizer.save_pretrained(tmp_path / "model")
    loaded = load_tokenizer(tmp_path / "model")[0]
    assert loaded.get_vocab() == AutoTokenizer.from_pretrained(tmp_path / "model").get_vocab()
    assert loaded("the cat.")["input_ids"] == start.tokenizer("the cat.")["input_ids"]
    batch = task.encode(data, loaded, tmp_path)["train"][[0, 1, 2]]
    items = task.select(batch)
    with torch.no_grad():
        logits = task.run(start.model, batch, items, frozenset()).at(items).logits
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}
        expected = start.model(**inputs).loss
    assert logits is not None
    assert float(F.cross_entropy(logits, items.labels)) == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize(("family", "token"), [("t5", "<pad>"), ("bart", "</s>")])
def test_both_halves_of_a_new_model_have_its_sizes(family: str, token: str) -> None:
    texts = ["the cat sat on the mat"] * 3
    start = NewModel(family=family, **SIZES, **FAMILIES[family]).load("AutoModelForSeq2SeqLM", None, texts)
    config = start.model.config
    assert start.tokenizer.convert_ids_to_tokens(config.decoder_start_token_id) == token
    assert (config.pad_token_id, config.eos_token_id) == (start.tokenizer.pad_token_id, start.tokenizer.eos_token_id)
    for half in (start.model.get_encoder(), start.model.get_decoder()):
        assert len(half.block if family == "t5" else half.layers) == 2
    widths = {
        parameter.shape[0] for name, parameter in start.model.named_parameters() if "fc1.w" in name or ".wi." in name
    }
    assert widths == {128}


# Bad input


def test_a_tokenizer_that_does_not_end_texts_is_refused(corpus: Path, tmp_path: Path) -> None:
    tokenizer = train_bytes(["the cat sat"], 270)
    with pytest.raises(UserError, match=r"puts no token for its end \(eos_token\) behind a text"):
        encode(corpus, tokenizer, tmp_path)


def test_too_few_sentinels_for_a_sequence_are_refused_before_a_training(
    corpus: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"needs 102 sentinels for 101 spans .* and the vocabulary has 100"):
        encode(corpus, tokenizer, tmp_path, max_length=225, dev_fraction=0.5, noise=0.45, mean_span=1.0)


def test_a_sequence_of_one_token_is_refused(tmp_path: Path) -> None:
    lines = ["the cat sat on the mat"] * 20 + ["a"] * 20
    (tmp_path / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    tokenizer = train_sentinels(lines, 400)
    with pytest.raises(UserError, match="t5_spans got a sequence of 1 token of text, expected at least 2"):
        encode(tmp_path / "text.txt", tokenizer, tmp_path / "cache", packing="sentence")
