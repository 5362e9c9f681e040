"""Tests that words of a text become pieces, with rows that are the mean of those of their old pieces."""

import copy
import re
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, PreTrainedModel, PreTrainedTokenizerFast

from distill.core.errors import OptionError, UserError
from distill.models.loading import Start
from distill.models.surgery.embeddings import (
    LEAST_COUNT,
    REDUCTION,
    check_option,
    choose_words,
    count_words,
    grow_vocabulary,
    pieces_per_word,
    plan_growth,
)
from tests.export.test_vocabulary import byte_bpe, unigram

PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cell", ".", "gen", "##ome", "kin", "##ase", "##s", "a")
TEXTS = ["The genome. The kinase!", "Kinases a cell"] * LEAST_COUNT


def word_piece() -> PreTrainedTokenizerFast:
    vocabulary = {piece: number for number, piece in enumerate(PIECES)}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, **{f"{name}_token": token for name, token in special.items()}
    )


def language_model(rows: int = len(PIECES)) -> PreTrainedModel:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=rows, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=32,
    )  # fmt: skip
    model = BertForMaskedLM(config).eval()
    torch.nn.init.normal_(model.cls.predictions.bias)
    return model


def start(rows: int = len(PIECES)) -> Start:
    return Start(language_model(rows), word_piece(), fits=True)


def test_words_are_counted_as_the_tokenizer_splits_them() -> None:
    words = count_words(["The Genome. The", "KINASES!"], word_piece())
    assert words == {"the": 2, "genome": 1, ".": 1, "kinases": 1, "!": 1}
    # the, gen ##ome, ., the, kin ##ase ##s, [UNK]
    assert pieces_per_word(words, word_piece()) == pytest.approx(9 / 6)


def test_words_are_chosen_by_the_pieces_that_they_save() -> None:
    tokenizer = word_piece()
    words = count_words([*TEXTS, *["genomes"] * (LEAST_COUNT - 1)], tokenizer)
    assert choose_words(words, tokenizer, 10) == [
        "kinases",
        "genome",
        "kinase",
    ]  # Equal gains by name; genomes is rare.
    assert choose_words(words, tokenizer, 1) == ["kinases"]


def test_auto_takes_the_fewest_words_that_shorten_the_text_enough() -> None:
    tokenizer = word_piece()
    # The word kinases saves 2 of the pieces of each pair of texts, which are 4 + 3 and some marks.
    texts = [*TEXTS, *["the a cell"] * 30]
    words = count_words(texts, tokenizer)
    pieces = words.total() * pieces_per_word(words, tokenizer)
    assert 2 * LEAST_COUNT / pieces >= REDUCTION
    growth = plan_growth(texts, tokenizer, "auto")
    assert growth.words == ["kinases"]
    assert growth.before == pieces_per_word(words, tokenizer)
    assert growth.after == pytest.approx(growth.before - 2 * LEAST_COUNT / words.total())


def test_a_new_row_is_the_mean_of_the_rows_of_the_old_pieces() -> None:
    before = start()
    grown = grow_vocabulary(before, ["kinases", "genome"])
    model, first = grown.model, len(PIECES)
    table, old = model.get_input_embeddings().weight, before.model.get_input_embeddings().weight
    torch.testing.assert_close(table[first], old[[10, 11, 12]].mean(dim=0))
    torch.testing.assert_close(table[first + 1], old[[8, 9]].mean(dim=0))
    torch.testing.assert_close(table[:first], old)
    assert model.get_output_embeddings().weight is table  # Still tied.
    bias = model.get_output_embeddings().bias
    torch.testing.assert_close(bias[first], before.model.cls.predictions.bias[[10, 11, 12]].mean())
    assert model.config.vocab_size == len(grown.tokenizer) == first + 2
    text = grown.tokenizer("Kinases, the GENOME", return_tensors="pt")
    assert grown.tokenizer.convert_ids_to_tokens(text["input_ids"][0]) == [
        "[CLS]", "kinases", "[UNK]", "the", "genome", "[SEP]",
    ]  # fmt: skip
    assert model(**text).logits.shape == (1, 6, first + 2)
    # What was given is as it was.
    assert old.shape[0] == before.model.config.vocab_size == len(before.tokenizer) == first


def test_texts_without_new_words_have_the_same_logits() -> None:
    before = start()
    grown = grow_vocabulary(before, ["kinases"])
    batch = before.tokenizer("the kinase a cell.", return_tensors="pt")
    assert grown.tokenizer("the kinase a cell.")["input_ids"] == batch["input_ids"][0].tolist()
    with torch.no_grad():
        expected, logits = before.model(**batch).logits, grown.model(**batch).logits
    torch.testing.assert_close(logits[..., : len(PIECES)], expected)


def test_rows_that_nothing_reads_are_used_first() -> None:
    grown = grow_vocabulary(start(rows=16), ["kinases"])
    assert grown.model.get_input_embeddings().weight.shape[0] == 16
    table = grown.model.get_input_embeddings().weight
    torch.testing.assert_close(table[len(PIECES)], table[[10, 11, 12]].mean(dim=0))
    assert len(grown.tokenizer) == len(PIECES) + 1


def test_an_encoder_without_a_head_grows_too() -> None:
    before = start()
    encoder = copy.deepcopy(before.model.bert)
    grown = grow_vocabulary(Start(encoder, before.tokenizer, fits=False), ["genome"])
    torch.testing.assert_close(
        grown.model.get_input_embeddings().weight[-1], encoder.get_input_embeddings().weight[[8, 9]].mean(dim=0)
    )


def test_a_grown_tokenizer_is_loaded_as_it_was_saved(tmp_path: Path) -> None:
    grown = grow_vocabulary(start(), ["kinases", "genome"]).tokenizer
    grown.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for text in ("Kinases of the GENOME", "genomes kinase"):
        assert loaded(text)["input_ids"] == grown(text)["input_ids"]


def test_given_words_that_stand_already_are_named_and_not_repeated() -> None:
    growth = plan_growth(TEXTS, word_piece(), ["Genome", "the", "genome", "Cell"])
    assert (growth.words, growth.standing) == (["genome"], ["the", "cell"])
    assert str(growth).startswith("1 words become pieces: ")
    assert str(growth).endswith("; the, cell are pieces already")
    assert plan_growth(TEXTS, word_piece(), ["the"]).words == []
    same = start()
    assert grow_vocabulary(same, []) is same


def test_a_word_that_is_several_is_refused() -> None:
    expected = "got the word 'the cell' in adapt.add_words, which the tokenizer splits into 2 words"
    with pytest.raises(UserError, match=re.escape(expected) + ".*expected single words: leave it out, or give its pa"):
        plan_growth(TEXTS, word_piece(), ["the cell"])


@pytest.mark.parametrize("make", [byte_bpe, unigram])
def test_another_kind_of_vocabulary_is_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(UserError, match=r"^got adapt.add_words=5 and a vocabulary of the kind \w+, expected WordPiece, "
                       r"whose words can be added one by one: set adapt.add_words=0$"):  # fmt: skip
        plan_growth(TEXTS, make(), 5)


@pytest.mark.parametrize("value", [-1, True, "many", 1.5, [3], None])
def test_an_option_that_is_no_words_is_refused(value: object) -> None:
    with pytest.raises(OptionError, match=r"^got add_words=.*, expected auto, a number of at least 0, or a list"):
        check_option(value)
