"""Tests of words that a masked language model replaces."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase

from distill.core.errors import UserError
from distill.data.augmentation import make_copies
from distill.data.splits import LabelledData, text_split
from distill.models import generator
from distill.models.generator import MaskedLMAugmentation, whole_words
from distill.models.loading import Start, load_directory
from tests.conftest import GOOD

TEXTS = ["a dull film", *GOOD, "one"]


@pytest.fixture(scope="module")
def model(tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=16, initializer_range=0.3, hidden_dropout_prob=0.5,
    )  # fmt: skip
    return BertForMaskedLM(config).eval()


@pytest.fixture(scope="module")
def model_dir(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    directory = tmp_path_factory.mktemp("mlm")
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def rows(texts: list[str], pairs: list[str] | None = None) -> LabelledData:
    return LabelledData((), {"train": text_split(texts, pairs)}, sha256="")


def expected_words(model: PreTrainedModel, tokenizer: Any, text: str, place: int, count: int) -> set[str]:
    """The likeliest whole words at one place, from a pass over this text alone."""
    words = text.split()
    masked = " ".join([*words[:place], tokenizer.mask_token, *words[place + 1 :]])
    batch = tokenizer(masked, return_tensors="pt")
    with torch.inference_mode():
        logits = model(**batch).logits[0]
    [position] = (batch["input_ids"][0] == tokenizer.mask_token_id).nonzero()
    ranked = logits[position[0]].argsort(descending=True).tolist()
    tokens = tokenizer.convert_ids_to_tokens(ranked)
    whole = [t for t in tokens if not t.startswith("##") and t.isalnum() and t not in tokenizer.all_special_tokens]
    return set(whole[:count])


def test_words_are_replaced_by_the_likeliest_ones(
    model: PreTrainedModel, model_dir: Path, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*arguments: Any, **options: Any) -> Start:
        start = load_directory(*arguments, **options)
        start.model.train()  # Its dropout is not of the words.
        return start

    monkeypatch.setattr(generator, "load_directory", load)
    augmentation = MaskedLMAugmentation(model=model_dir, copies=300, p_replace=1.0, candidates=3)
    [texts] = make_copies(rows(TEXTS), augmentation, None, "cpu")
    for row, text in enumerate(TEXTS):
        made = [copy.split() for copy in texts[300 * row : 300 * (row + 1)]]
        for place in range(len(text.split())):
            expected = expected_words(model, tokenizer, text, place, 3)
            counts = [[words[place] for words in made].count(word) for word in expected]
            assert sum(counts) == 300
            assert min(counts) > 60  # A third each.


def test_words_are_replaced_with_their_probability(model_dir: Path) -> None:
    augmentation = MaskedLMAugmentation(model=str(model_dir), copies=400, p_replace=0.4, candidates=2)
    [texts] = make_copies(rows(["zzz yyy xxx"]), augmentation, None, "cpu")
    kept = np.mean([np.array(copy.split()) == ["zzz", "yyy", "xxx"] for copy in texts])
    assert kept == pytest.approx(0.6, abs=0.05)


def test_of_pairs_both_sides_get_words_of_their_own_places(
    model: PreTrainedModel, model_dir: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    augmentation = MaskedLMAugmentation(model=model_dir, copies=3, p_replace=1.0, candidates=1)
    first, second = make_copies(rows(TEXTS[:2], TEXTS[2:4]), augmentation, None, "cpu")
    for row in range(2):
        sides = []
        for text in (TEXTS[row], TEXTS[row + 2]):
            words = [expected_words(model, tokenizer, text, place, 1).pop() for place in range(len(text.split()))]
            sides.append(" ".join(words))
        assert first[3 * row : 3 * row + 3] == [sides[0], TEXTS[row], sides[0]]
        assert second[3 * row : 3 * row + 3] == [TEXTS[row + 2], sides[1], sides[1]]


def test_a_word_beyond_the_longest_input_is_kept(model_dir: Path) -> None:
    augmentation = MaskedLMAugmentation(model=model_dir, copies=1, p_replace=1.0)
    [[text]] = make_copies(rows([" ".join(["film"] * 40)]), augmentation, None, "cpu")
    assert len(text.split()) == 40
    assert text.split()[20:] == ["film"] * 20


def test_candidates_are_whole_words(tokenizer: PreTrainedTokenizerBase) -> None:
    words = [tokenizer.decode([token]).strip() for token in range(len(tokenizer))]
    found = {tokenizer.convert_ids_to_tokens(token) for token in whole_words(tokenizer, words)}
    assert "film" in found
    assert not any(token.startswith(("##", "[")) or token in (",", ".") for token in found)


def test_the_key_follows_the_weights_and_not_the_path(model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(model_dir)
    key = MaskedLMAugmentation(model=model_dir).key(rows([""]))
    assert MaskedLMAugmentation(model=tmp_path / "link").key(rows([""])) == key
    assert MaskedLMAugmentation(model=model_dir, candidates=3).key(rows([""])) != key


def test_a_model_without_a_trained_head_is_refused(encoder_dir: Path) -> None:
    with pytest.raises(UserError, match="is no masked language model: its head is not trained .*; give one that was"):
        MaskedLMAugmentation(model=encoder_dir).check()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (None, "augment=mlm needs a masked language model: set augment.model=DIR or an id of the Hub"),
        ("nobody/nothing", "augment.model=nobody/nothing is no directory, and it is neither in the Hugging Face cache"),
    ],
)
def test_a_missing_model_is_refused(model: str | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        MaskedLMAugmentation(model=model).check()
