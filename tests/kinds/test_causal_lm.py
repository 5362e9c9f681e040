"""Tests of causal language modelling: its items and its perplexity by hand, its sequences and the models it takes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from distill.builtin.teachers.vocabulary import train_bytes, train_word_pieces
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from distill.core.contracts import Items, Outputs, Scores
from distill.core.errors import UserError
from distill.kinds import CausalLM
from distill.kinds.autoregressive import NextTokenScores
from distill.models.loading import load_directory
from distill.text.corpus import Document
from distill.text.packing import measure_tokens
from distill.text.sequences import SequenceSettings, make_packer

VOCABULARY = 40
TASK = CausalLM()


@pytest.fixture
def model() -> PreTrainedModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=4, n_head=4, n_positions=16, initializer_range=0.3, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


def batch_of(*, lengths: tuple[int, ...] = (7, 7, 7), left: bool = False) -> dict[str, Tensor]:
    """Returns sequences of random tokens, padded to seven."""
    ids = torch.randint(1, VOCABULARY, (len(lengths), 7), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(7) < torch.tensor(lengths)[:, None]).long()
    ids = ids * mask
    if left:
        shift = [7 - length for length in lengths]
        ids, mask = (torch.stack([row.roll(n) for row, n in zip(rows, shift, strict=True)]) for rows in (ids, mask))
    return {"input_ids": ids, "attention_mask": mask, "example_id": torch.arange(len(lengths))}


def logits_of(model: PreTrainedModel, batch: dict[str, Tensor]) -> tuple[Items, Tensor]:
    items = TASK.select(batch)
    with torch.no_grad():
        logits: Tensor = TASK.run(model, batch, items, frozenset()).at(items).logits
    return items, logits


def test_the_items_are_all_tokens_but_the_first_of_each_sequence() -> None:
    batch = {"input_ids": torch.tensor([[3, 1, 2], [4, 5, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
    items = TASK.select(batch)
    assert items.labels.tolist() == [1, 2, 5]
    assert items.row.tolist() == [0, 0, 1]
    assert items.index is not None
    assert items.index.tolist() == [0, 1, 3]  # Each is predicted at the token before it.


def test_padding_on_the_left_has_the_items_and_logits_of_padding_on_the_right(model: PreTrainedModel) -> None:
    with torch.no_grad():
        model.transformer.wpe.weight.zero_()  # GPT-2 counts positions from the padding.
    results = [logits_of(model, batch_of(lengths=(7, 4, 2), left=left)) for left in (False, True)]
    (right_items, right), (left_items, left) = results
    assert right_items.index is not None
    assert left_items.index is not None
    assert not torch.equal(left_items.index, right_items.index)
    assert torch.equal(left_items.labels, right_items.labels)
    assert torch.equal(left_items.row, right_items.row)
    torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-5)


def test_perplexity_of_a_word_and_bits_of_a_byte_are_the_loss_of_all_tokens_over_those_of_the_text() -> None:
    batch = {
        "input_ids": torch.tensor([[0, 1, 2]]), "attention_mask": torch.ones(1, 3, dtype=torch.long),
        "text_bytes": torch.tensor([[7, 3, 2]]), "text_words": torch.tensor([[1, 1, 0]]),
    }  # fmt: skip
    items, scoring = TASK.select(batch), NextTokenScores(TASK.settings)
    logits = torch.tensor([[0.25, 0.5, 0.25], [0.5, 0.375, 0.125]]).log()  # Token 1 gets 1/2 and token 2 gets 1/8.
    columns = {name: column.numpy() for name, column in scoring.score(Outputs(logits=logits), items).items()}
    scores = Scores(columns, items.labels.numpy(), np.zeros(2))
    metrics = scoring.metrics(scores)
    assert metrics["word_perplexity"] == pytest.approx(16.0)  # One word: the first token of a sequence is not scored.
    assert metrics["bits_per_byte"] == pytest.approx(4 / 5)
    rescored = scoring.rescore(scores, [logits.numpy()])
    assert scoring.metrics(rescored) == pytest.approx(metrics)


@pytest.mark.parametrize("train_tokenizer", [train_bytes, train_word_pieces])
def test_words_and_bytes_are_those_of_the_text_whatever_the_tokenizer_does_to_it(
    train_tokenizer: Callable[..., PreTrainedTokenizerBase], tmp_path: Path
) -> None:
    text = "Zwölf Boxkämpfer, 日本 und ein ☂!\nnext  line here\n\nAn other paragraph"
    paragraphs = ["Zwölf Boxkämpfer, 日本 und ein ☂! next line here", "An other paragraph"]
    tokenizer = train_tokenizer(["the cat sat on the mat and saw a dog"] * 2, 330)
    settings = SequenceSettings(mask=None, packing="doc_sentences", max_length=256)
    packer = make_packer(settings, tokenizer, 0, measures=True)
    [sequence] = packer.pack_documents([Document("a", 0, text)])
    assert sequence.sizes is not None
    assert len(sequence.sizes) == len(sequence.ids)
    expected = "\n".join(paragraphs)
    assert sequence.sizes.sum(axis=0).tolist() == [len(expected.encode()), len(expected.split())]
    assert bool((sequence.sizes >= 0).all())


def test_text_of_another_document_has_no_line_break_before_it() -> None:
    sizes = measure_tokens("ab cd", [(0, 1), (1, 2), (3, 5)], joined=False)
    assert sizes.tolist() == [[1, 1], [1, 0], [3, 1]]
    assert measure_tokens("ab cd", [(0, 1), (1, 2), (3, 5)], joined=True)[0].tolist() == [2, 1]
    assert measure_tokens(" ab", [(0, 3)], joined=True).tolist() == [[3, 1]]
    # Two tokens of one character, whose bytes are counted once, and a character that no token has.
    assert measure_tokens("é x", [(0, 1), (0, 1)], joined=False).tolist() == [[2, 1], [2, 1]]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty documents of one line each."""
    root = tmp_path_factory.mktemp("corpus")
    lines = [f"the cat number {number} sat on the mat and saw the dog {number}" for number in range(20)]
    (root / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    return root


def test_documents_are_separated_by_the_end_of_a_text_across_which_tokens_are_predicted(
    corpus: Path, tmp_path: Path
) -> None:
    task = CausalLM(data=corpus, documents="line", max_length=8, dev_fraction=0.2)
    data = task.read(tmp_path)
    tokenizer = train_bytes(data.texts(), 300, 16)
    assert tokenizer.all_special_tokens == ["<|endoftext|>"]
    splits = task.encode(data, tokenizer, tmp_path)
    train, dev = splits["train"], splits["dev"]
    of_dev = dev[[0]]
    written = tokenizer.decode(of_dev["input_ids"][0]).replace("<|endoftext|>", "")
    assert int(of_dev["text_bytes"].sum()) == len(written.encode())
    batch = train[range(len(train))]
    assert "text_bytes" not in batch  # Of dev alone.
    assert "labels" not in batch
    ids, end = batch["input_ids"], tokenizer.eos_token_id
    assert ids.shape == (len(train), 8)
    texts = tokenizer.decode(ids.flatten()).split("<|endoftext|>")
    assert all(text.startswith("the cat number ") for text in texts)
    assert len(texts) > 8
    items = task.select(batch)
    assert len(items) == len(train) * 7
    assert train.items_per_example == 7
    position = items.index
    assert position is not None
    flat = ids.flatten()
    assert torch.equal(items.labels, flat[position + 1].long())
    assert bool((items.labels == end).any())  # The end of a text is predicted,
    assert bool((flat[position] == end).any())  # and the first token behind it.
    assert set((position % 8).tolist()) == set(range(7))  # No token is predicted from another sequence.


def test_a_tokenizer_without_padding_pads_with_the_end_of_a_text(model: PreTrainedModel, tmp_path: Path) -> None:
    tokenizer = train_bytes(["the cat sat"], 260, 16)
    tokenizer.pad_token = None
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    start = load_directory(tmp_path, TASK.info.auto_class, None, trust_remote_code=False)
    assert start.fits
    assert start.tokenizer.pad_token == "<|endoftext|>"
    assert start.tokenizer.padding_side == "right"
    of_vectors = load_directory(tmp_path, "AutoModel", None, trust_remote_code=False)
    assert of_vectors.tokenizer.pad_token == "<|endoftext|>"


def test_a_packing_of_pairs_is_refused() -> None:
    with pytest.raises(UserError, match="got packing=segment_pair, expected one of full_sentences, doc_sentences"):
        CausalLM(packing="segment_pair")
