"""Tests of the case of texts: that of a file, or else of the vocabulary, with a notice."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from distill.models.sentence_files import load_tokenizer

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[UNUSED]")


def write(directory: Path, words: tuple[str, ...], **settings: object) -> Path:
    """Writes the vocabulary of a BERT, and its settings if there are any."""
    (directory / "vocab.txt").write_text("\n".join((*SPECIAL, *words)))
    (directory / "config.json").write_text(json.dumps({"model_type": "bert"}))
    if settings:
        (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


@pytest.mark.parametrize("settings", [{}, {"model_max_length": 64}])
def test_a_cased_vocabulary_without_settings_keeps_the_case_with_a_notice(
    settings: dict[str, object], tmp_path: Path
) -> None:
    tokenizer, notices = load_tokenizer(write(tmp_path, ("film", "Film", "é"), **settings))
    assert tokenizer.tokenize("Film film É") == ["Film", "film", "[UNK]"]
    assert notices == [
        f"{tmp_path} does not say whether its tokenizer lower-cases (do_lower_case in tokenizer_config.json), and its "
        "vocabulary has capitals: texts keep their case"
    ]


def test_a_vocabulary_without_capitals_lower_cases(tmp_path: Path) -> None:
    tokenizer, notices = load_tokenizer(write(tmp_path, ("film", "a")))
    assert (tokenizer.tokenize("Film A"), notices) == (["film", "a"], [])


def test_lower_case_in_the_settings_is_taken_with_a_notice_about_capitals(tmp_path: Path) -> None:
    tokenizer, [notice] = load_tokenizer(write(tmp_path, ("film", "Film"), do_lower_case=True))
    assert tokenizer.tokenize("Film") == ["film"]
    assert notice == (
        f"the tokenizer of {tmp_path} lower-cases, and 1 of its 2 tokens have capitals, which no text gives then: "
        "check do_lower_case in its tokenizer_config.json"
    )
    tokenizer.save_pretrained(tmp_path / "saved")
    assert len(load_tokenizer(tmp_path / "saved")[1]) == 1


def test_a_cased_tokenizer_needs_no_notice(tmp_path: Path) -> None:
    tokenizer, notices = load_tokenizer(write(tmp_path, ("film", "Film"), do_lower_case=False))
    assert (tokenizer.tokenize("Film"), notices) == (["Film"], [])
    tokenizer.save_pretrained(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved")[1] == []


def test_capitals_that_stand_for_bytes_are_none(tmp_path: Path) -> None:
    tokenizer = Tokenizer(BPE(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = Lowercase(), ByteLevel()
    tokenizer.train_from_iterator(["a film"], BpeTrainer(special_tokens=list(SPECIAL), show_progress=False))
    assert "\u0120a" in tokenizer.get_vocab()  # The space is a capital G with a dot.
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(tmp_path)
    assert load_tokenizer(tmp_path)[1] == []
