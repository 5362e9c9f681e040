"""Tests that a smaller vocabulary reads known texts as before, and others by shorter pieces."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from distill.builtin.students import bilstm, cnn
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from distill.core.errors import OptionError, UserError
from distill.data.pool import read_texts
from distill.export.quantization import ExportSettings
from distill.kinds import Classification
from distill.models.surgery.embeddings import COMMON, check_cut
from tests.conftest import cut_vocabulary, toy_bert

TEXTS = ["the cat sat on the mat", "a zebra ate the tall grass", "crocodiles eat cats, not zebras!"] * 3
SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]


def wrap(backend: Tokenizer, **changes: Any) -> PreTrainedTokenizerFast:
    special = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>"} | changes
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def word_piece() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordPiece(unk_token="<unk>"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=120, special_tokens=SPECIAL))
    backend.post_processor = processors.BertProcessing(("</s>", 3), ("<s>", 2))
    return wrap(backend)


def byte_bpe() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet)
    backend.train_from_iterator(TEXTS, trainer)
    backend.post_processor = processors.RobertaProcessing(("</s>", 3), ("<s>", 2))
    return wrap(backend)


def unigram() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=100, special_tokens=SPECIAL, unk_token="<unk>")
    backend.train_from_iterator(TEXTS, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 2), ("</s>", 3)]
    )
    return wrap(backend)


KINDS = {"WordPiece": word_piece, "BPE": byte_bpe, "Unigram": unigram}


def logits_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *texts: str) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(**tokenizer(list(texts), return_tensors="pt", padding=True)).logits
    return logits


def pieces_of(tokenizer: PreTrainedTokenizerBase, *texts: str) -> list[str]:
    found: list[str] = tokenizer.convert_ids_to_tokens(tokenizer(*texts)["input_ids"])
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_known_texts_have_the_same_pieces_and_logits_and_others_shorter_pieces(kind: str) -> None:
    """The embeddings of many models are padded to a multiple of 64; rows beyond the tokenizer are cut too."""
    tokenizer = KINDS[kind]()
    model = toy_bert(len(tokenizer) + 64 - len(tokenizer) % 64).eval()
    size = model.config.vocab_size
    smaller, cut = cut_vocabulary(model, tokenizer, TEXTS[:1])
    assert smaller.config.vocab_size == smaller.get_input_embeddings().weight.shape[0] == len(cut) < len(tokenizer)
    for text in (TEXTS[0], "the mat"):
        assert pieces_of(cut, text) == pieces_of(tokenizer, text)
        torch.testing.assert_close(logits_of(smaller, cut, text), logits_of(model, tokenizer, text))
    assert (cut.pad_token, cut.pad_token_id) == ("<pad>", 0)
    assert model.config.vocab_size == size  # The given model and tokenizer are left as they are.
    before, after = (each.tokenize("crocodiles eat zebras") for each in (tokenizer, cut))
    assert len(after) > len(before)
    assert "<unk>" not in after
    joined = ["".join(pieces).replace("##", "").replace("▁", "").replace("Ġ", "") for pieces in (before, after)]
    assert joined[0] == joined[1]


def test_a_rare_piece_of_unlabelled_texts_goes_and_a_common_one_stays() -> None:
    tokenizer = word_piece()
    model = toy_bert(len(tokenizer))
    assert "crocodiles" in tokenizer.get_vocab()
    for texts, kept in ((COMMON - 1, False), (COMMON, True)):
        _, cut = cut_vocabulary(model, tokenizer, ["the cat"], ["crocodiles eat crocodiles"] * texts)
        assert ("crocodiles" in cut.get_vocab()) == kept


@pytest.mark.parametrize("build", [bilstm.from_teacher, cnn.from_teacher])
def test_a_student_without_attention_has_the_rows_of_its_vocabulary(
    build: Callable[..., PreTrainedModel], teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    student = build(
        teacher, task=Classification(text="text", labels=["a", "b"]), embedding_dim=16, hidden_dim=24
    ).eval()
    smaller, cut = cut_vocabulary(student, tokenizer, ["one two three"])
    assert len(cut) < len(tokenizer)
    expected, actual = (each("one two", return_tensors="pt") for each in (tokenizer, cut))
    with torch.no_grad():
        torch.testing.assert_close(smaller(actual["input_ids"]).logits, student(expected["input_ids"]).logits)


def test_a_pair_has_its_separators(tokenizer: PreTrainedTokenizerBase) -> None:
    _, cut = cut_vocabulary(toy_bert(len(tokenizer)), tokenizer, ["one two three"])
    assert pieces_of(cut, "one two", "three") == pieces_of(tokenizer, "one two", "three")
    assert pieces_of(cut, "one two", "three").count("[SEP]") == 2


def test_vocabularies_that_cannot_be_cut_are_refused() -> None:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=60, special_tokens=["<pad>"]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>")
    with pytest.raises(UserError, match="export.vocabulary=task and a vocabulary without an unknown piece, so that"):
        check_cut(tokenizer)
    check_cut(byte_bpe())  # Its bytes cover every text.
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<unk>": 1, "cat": 2}, unk_token="<unk>"))
    with pytest.raises(UserError, match="a vocabulary of the kind WordLevel, expected one of WordPiece, BPE, Unigram"):
        check_cut(wrap(words, cls_token=None, sep_token=None))
    with pytest.raises(OptionError, match=r"vocabulary_texts=\[a.txt\], expected \[\], because vocabulary=full keeps"):
        ExportSettings(vocabulary_texts=("a.txt",))


def roberta(tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=len(tokenizer) + 60, pad_token_id=tokenizer.pad_token_id, type_vocab_size=2,
    )  # fmt: skip
    return RobertaForSequenceClassification(config).eval()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", [None, 0.5, 1])
def test_positions_that_are_counted_by_the_padding_stay_as_they_are(kind: str, place: float | None) -> None:
    """RoBERTa takes tokens with the id of the padding for padding, and counts positions from the one behind it."""
    tokenizer = KINDS[kind]()
    if place is not None:  # A piece that no text holds, in the middle or at the end of the vocabulary.
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(int(place * (len(tokenizer) - 1)))
    model = roberta(tokenizer)
    smaller, cut = cut_vocabulary(model, tokenizer, TEXTS[:1])
    assert cut.pad_token_id == tokenizer.pad_token_id == smaller.config.pad_token_id
    assert place == 1 or len(cut) < len(tokenizer)
    texts = (TEXTS[0], "the mat")
    assert [pieces_of(cut, text) for text in texts] == [pieces_of(tokenizer, text) for text in texts]
    torch.testing.assert_close(logits_of(smaller, cut, *texts), logits_of(model, tokenizer, *texts))


def test_the_padding_of_the_embedding_stays_though_no_text_and_no_tokenizer_names_it() -> None:
    tokenizer = word_piece()
    model = toy_bert(len(tokenizer)).eval()
    model.get_input_embeddings().padding_idx = len(tokenizer) - 2
    smaller, cut = cut_vocabulary(model, tokenizer, TEXTS[:1])
    embedding = smaller.get_input_embeddings()
    assert isinstance(embedding, torch.nn.Embedding)
    assert cut.convert_ids_to_tokens(embedding.padding_idx) == tokenizer.convert_ids_to_tokens(len(tokenizer) - 2)


def test_texts_of_every_column_of_every_file_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "german"
    folder.mkdir()
    (folder / "a.txt").write_text("ein Satz\nnoch einer\n", encoding="utf-8")
    (folder / "b.csv").write_text("satz,zahl,label\nschön,1,gut\n", encoding="utf-8")
    rows = [{"words": ["drei", "Wörter"], "number": 3, "text": "ein Text"}, {"words": [], "number": 4, "text": None}]
    content = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(content.encode()))
    paths = [str(folder), str(tmp_path / "c.jsonl.gz")]
    assert sorted(read_texts(paths, "export.vocabulary_texts")) == sorted(
        ["ein Satz", "noch einer", "schön", "1", "gut", "drei", "Wörter", "ein Text"]
    )
    with pytest.raises(UserError, match="export.vocabulary_texts=nowhere.txt does not exist, expected a file or a dir"):
        list(read_texts(["nowhere.txt"], "export.vocabulary_texts"))
