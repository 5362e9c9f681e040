"""Tests of language modelling in one direction and in both: items and perplexities by hand, sequences and models."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from distill.builtin.teachers.bilm import choose_weights
from torch import Tensor
from transformers import (
    BertConfig,
    BertForPreTraining,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from distill.core.contracts import Items, Outputs, Scores
from distill.core.errors import OptionError, UserError
from distill.kinds import BidirectionalLM, CausalLM
from distill.kinds.autoregressive import BothDirections, NextTokenScores
from distill.models.architectures.modeling_bilm import BilmConfig, BilmForPreTraining
from distill.models.loading import load_directory
from distill.text.corpus import Corpus, Document
from distill.text.packing import measure_tokens
from distill.text.sequences import PackedText, SequenceSettings
from distill.text.vocabulary import train_bytes, train_word_pieces
from tests.conftest import write_corpus

VOCABULARY = 40
ONE, BOTH = CausalLM(), BidirectionalLM()


@pytest.fixture
def model() -> PreTrainedModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=4, n_head=4, n_positions=16, initializer_range=0.3, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


def batch_of(*lengths: int, left: bool = False) -> dict[str, Tensor]:
    """Returns sequences of random tokens, padded to seven."""
    ids = torch.randint(1, VOCABULARY, (len(lengths), 7), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(7) < torch.tensor(lengths)[:, None]).long()
    ids = ids * mask
    if left:
        shift = [7 - length for length in lengths]
        ids, mask = (torch.stack([row.roll(n) for row, n in zip(rows, shift, strict=True)]) for rows in (ids, mask))
    return {"input_ids": ids, "attention_mask": mask, "example_id": torch.arange(len(lengths))}


def logits_of(
    task: CausalLM | BidirectionalLM, model: PreTrainedModel, batch: dict[str, Tensor]
) -> tuple[Items, Tensor]:
    items = task.select(batch)
    with torch.no_grad():
        logits: Tensor = task.run(model, batch, items, frozenset()).at(items).logits
    return items, logits


TWO_ROWS = {"input_ids": torch.tensor([[3, 1, 2], [4, 5, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}


def test_the_items_are_all_tokens_but_the_first_of_each_sequence() -> None:
    items = ONE.select(TWO_ROWS)
    assert items.labels.tolist() == [1, 2, 5]
    assert items.row.tolist() == [0, 0, 1]
    assert items.index is not None
    assert items.index.tolist() == [0, 1, 3]  # Each is predicted at the token before it.


def test_the_items_are_the_next_and_the_previous_token_of_each_token() -> None:
    items = BOTH.select(TWO_ROWS)
    assert items.labels.tolist() == [1, 2, 3, 1, 5, 4]
    assert items.row.tolist() == [0, 0, 0, 0, 1, 1]
    assert items.labelled.all()
    one = BOTH.select({"input_ids": torch.tensor([[3, 0]]), "attention_mask": torch.tensor([[1, 0]])})
    assert len(one) == 0  # A text of one token has nothing to predict it from.


def test_perplexities_and_bits_of_a_byte_are_the_loss_of_all_tokens_over_those_of_the_text() -> None:
    batch = {
        "input_ids": torch.tensor([[0, 1, 2]]), "attention_mask": torch.ones(1, 3, dtype=torch.long),
        "text_bytes": torch.tensor([[7, 3, 2]]), "text_words": torch.tensor([[1, 1, 0]]),
    }  # fmt: skip
    items, scoring = ONE.select(batch), NextTokenScores(ONE.settings)
    logits = torch.tensor([[0.25, 0.5, 0.25], [0.5, 0.375, 0.125]]).log()  # Token 1 gets 1/2 and token 2 gets 1/8.
    columns = {name: column.numpy() for name, column in scoring.score(Outputs(logits=logits), items).items()}
    scores = Scores(columns, items.labels.numpy(), np.zeros(2))
    metrics = scoring.metrics(scores)
    assert metrics["perplexity"] == pytest.approx(4.0)  # The square root of 2 * 8.
    assert metrics["accuracy"] == 0.5
    assert metrics["word_perplexity"] == pytest.approx(16.0)  # One word: the first token of a sequence is not scored.
    assert metrics["bits_per_byte"] == pytest.approx(4 / 5)
    rescored = scoring.rescore(scores, [logits.numpy()])
    assert scoring.metrics(rescored) == pytest.approx(metrics)


def test_the_perplexity_of_each_direction_is_that_of_its_items() -> None:
    items = BOTH.select({"input_ids": torch.tensor([[0, 1, 2]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)})
    assert items.labels.tolist() == [1, 2, 0, 1]  # Forwards, forwards, backwards, backwards.
    # The right tokens get 1/2 and 1/8 forwards, 1/4 and 1/16 backwards.
    logits = torch.tensor(
        [[1 / 4, 1 / 2, 1 / 4], [1 / 2, 3 / 8, 1 / 8], [1 / 4, 1 / 2, 1 / 4], [1 / 2, 1 / 16, 7 / 16]]
    )
    scoring = BothDirections(BOTH.settings)
    columns = scoring.score(Outputs(logits=logits.log()), items)
    assert columns["direction"].tolist() == [0, 0, 1, 1]
    parts = [scoring.score(Outputs(logits=logits[at : at + 2].log()), items.part(at, at + 2)) for at in (0, 2)]
    assert torch.equal(torch.cat([part["direction"] for part in parts]), columns["direction"])
    scores = Scores({name: column.numpy() for name, column in columns.items()}, items.labels.numpy(), np.zeros(4))
    metrics = scoring.metrics(scores)
    assert metrics["perplexity_forwards"] == pytest.approx(4.0)  # The square root of 2 * 8.
    assert metrics["perplexity_backwards"] == pytest.approx(8.0)
    assert metrics["perplexity"] == pytest.approx(32.0**0.5)
    assert metrics["loss"] == pytest.approx(np.log(32.0) / 2)
    assert metrics["accuracy"] == 0.25


def test_padding_on_the_left_has_the_items_and_logits_of_padding_on_the_right(model: PreTrainedModel) -> None:
    with torch.no_grad():
        model.transformer.wpe.weight.zero_()  # GPT-2 counts positions from the padding.
    results = [logits_of(ONE, model, batch_of(7, 4, 2, left=left)) for left in (False, True)]
    (right_items, right), (left_items, left) = results
    assert right_items.index is not None
    assert left_items.index is not None
    assert not torch.equal(left_items.index, right_items.index)
    assert torch.equal(left_items.labels, right_items.labels)
    assert torch.equal(left_items.row, right_items.row)
    torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-5)


def test_the_loss_is_the_mean_of_both_directions() -> None:
    torch.manual_seed(0)
    model = BilmForPreTraining(BilmConfig(vocab_size=VOCABULARY, hidden_dim=8, num_hidden_layers=2)).eval()
    batch, lengths = batch_of(7, 4, 2), (7, 4, 2)
    items, logits = logits_of(BOTH, model, batch)
    expected = []
    for row, length in enumerate(lengths):
        ids = batch["input_ids"][row : row + 1, :length]
        both = model(ids).logits[0]  # [L, 2, V]
        expected.append(F.cross_entropy(both[:-1, 0], ids[0, 1:], reduction="none"))
        expected.append(F.cross_entropy(both[1:, 1], ids[0, :-1], reduction="none"))
    assert len(items) == 2 * (sum(lengths) - len(lengths))
    torch.testing.assert_close(F.cross_entropy(logits, items.labels), torch.cat(expected).mean())


def test_a_model_that_reads_both_sides_at_once_is_refused() -> None:
    bert = BertForPreTraining(
        BertConfig(
            vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
        )
    )
    batch = batch_of(7, 4)
    with pytest.raises(UserError, match="a BertForPreTraining reads both sides of a token at once, and task bilm need"):
        BOTH.run(bert, batch, BOTH.select(batch), frozenset())


@pytest.mark.parametrize("train_tokenizer", [train_bytes, train_word_pieces])
def test_words_and_bytes_are_those_of_the_text_whatever_the_tokenizer_does_to_it(
    train_tokenizer: Callable[..., PreTrainedTokenizerBase], tmp_path: Path
) -> None:
    text = "Zwölf Boxkämpfer, 日本 und ein ☂!\nnext  line here\n\nAn other paragraph"
    paragraphs = ["Zwölf Boxkämpfer, 日本 und ein ☂! next line here", "An other paragraph"]
    tokenizer = train_tokenizer(["the cat sat on the mat and saw a dog"] * 2, 330)
    settings = SequenceSettings(mask=None, packing="doc_sentences", max_length=256)
    packer = PackedText(Corpus(data_dir="none"), settings, tokenizer).create_packer(0, measures=True)
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
    start = load_directory(tmp_path, ONE.info.auto_class, None, trust_remote_code=False)
    assert start.fits
    assert start.tokenizer.pad_token == "<|endoftext|>"
    assert start.tokenizer.padding_side == "right"
    of_vectors = load_directory(tmp_path, "AutoModel", None, trust_remote_code=False)
    assert of_vectors.tokenizer.pad_token == "<|endoftext|>"


def test_a_packing_of_pairs_is_refused() -> None:
    with pytest.raises(UserError, match="got packing=segment_pair, expected one of full_sentences, doc_sentences"):
        CausalLM(packing="segment_pair")


def test_a_sequence_has_two_items_for_each_of_its_pairs_of_neighbours(tmp_path: Path) -> None:
    task = BidirectionalLM(data=write_corpus(tmp_path), documents="line", max_length=16, dev_fraction=0.2)
    data = task.read(tmp_path / "cache")
    start = choose_weights(layers=1, hidden_dim=4, vocabulary=200).load(task.info.auto_class, None, data.texts())
    assert isinstance(start.model, BilmForPreTraining)
    assert not start.notices  # Padding on the right changes no logit.
    train = task.encode(data, start.tokenizer, tmp_path / "cache")["train"]
    items = task.select(train[range(len(train))])
    assert train.items_per_example == len(items) / len(train) == 2 * 15
    assert start.tokenizer.sep_token_id in items.labels


def test_a_new_model_depends_on_its_sizes_and_its_seed() -> None:
    options = ({}, {"layers": 1}, {"hidden_dim": 4}, {"dropout": 0.2}, {"seed": 1}, {"vocabulary": 100})
    assert len({choose_weights(**given).fingerprint() for given in options}) == len(options)
    assert choose_weights().fingerprint() == choose_weights(precision="bfloat16").fingerprint()
    assert choose_weights(hidden_dim=4).width() == 8


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"layers": 0}, "got teacher.layers=0, expected a whole number of at least 1"),
        ({"hidden_dim": 1.5}, "got teacher.hidden_dim=1.5, expected a whole number of at least 1"),
        ({"dropout": 1.0}, "got teacher.dropout=1.0, expected a share from 0 to below 1"),
        ({"path": "model", "layers": 3}, "got teacher.layers=3, expected 2, the default, because teacher.path has a t"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, object], expected: str) -> None:
    with pytest.raises(OptionError, match=expected):
        choose_weights(**options)  # type: ignore[arg-type]


def test_a_head_that_no_model_has_is_refused() -> None:
    with pytest.raises(UserError, match=r"teacher bilm \(distill_bilm\) has no AutoModelForMaskedLM: take a task"):
        choose_weights().load("AutoModelForMaskedLM", None, [])
