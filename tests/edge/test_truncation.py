"""Tests of the cut of texts: it has the tokens of `tokenizers`, and reads no more of a text than it needs."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from distill.edge.decoder import Truncation, cut_lengths
from distill.edge.words import CutEncoding

WORDS = ["film", "a", "moving", "Überraschung", "don't", "42", "1234567", "...", "<mask>", "été", "好", "x" * 120]
WORDS += ["\x00"]
SPACES = [" ", " ", " ", "  ", "\n", " \t ", "\u00a0", ", "]
CORPUS = [
    "a moving film don't you know",
    "ein Film, eine Überraschung 1234567 42",
    "été 好 好的 film films filming",
] * 20


def bert() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # type: ignore[call-arg]
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[UNK]", "[CLS]", "[SEP]", "<mask>"]
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=90, special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return tokenizer


def roberta() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), add_prefix_space=False)
    return tokenizer


def digits_in_threes() -> Tokenizer:
    tokenizer = roberta()
    pattern = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(use_regex=False)]
    )
    return tokenizer


def one_word() -> Tokenizer:
    """As Llama's: the whole text is one word, and no special token is added."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=100, special_tokens=["<unk>"]))
    return tokenizer


def second_text_first() -> Tokenizer:
    tokenizer = bert()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A [SEP]", pair="$B:1 [SEP] $A:0", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return tokenizer


KINDS: list[Callable[[], Tokenizer]] = [bert, digits_in_threes, one_word, second_text_first]


def write(seed: random.Random, words: int) -> str:
    return "".join(seed.choice(WORDS) + seed.choice(SPACES) for _ in range(words))


def read(encoding: Any) -> CutEncoding:
    return CutEncoding.select(encoding, range(len(encoding.ids)))


def cut_as_tokenizers(tokenizer: Tokenizer, texts: Sequence[Any], *, max_length: int, side: str) -> list[Any]:
    tokenizer.enable_truncation(max_length, direction=side)
    encodings = tokenizer.encode_batch(list(texts))
    tokenizer.no_truncation()
    return [(read(encoding), bool(encoding.overflowing)) for encoding in encodings]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_tokens_are_those_of_tokenizers(kind: Callable[[], Tokenizer], side: str) -> None:
    tokenizer, seed = kind(), random.Random(0)
    sizes = [0, 1, 2, 5, 13]
    short: list[Any] = [write(seed, size) for size in sizes]
    short += [(write(seed, first), write(seed, second)) for first in sizes for second in sizes]
    long: list[Any] = [write(seed, 120) for _ in range(4)]  # They are tokenized in part.
    long += [(write(seed, first), write(seed, second)) for first, second in [(120, 3), (9, 120), (70, 60), (60, 70)]]
    for max_length, texts in ((4, short), (9, short), (23, long), (24, long)):
        expected = cut_as_tokenizers(tokenizer, texts, max_length=max_length, side=side)
        found = Truncation(tokenizer, max_length=max_length, side=side).encode(texts)
        assert [(read(tokens), is_cut) for tokens, is_cut in found] == expected


def test_the_longer_text_loses_first() -> None:
    for lengths, room, kept in (
        ([3], 5, [3]), ([7], 5, [5]), ([2, 9], 5, [2, 3]), ([9, 2], 5, [3, 2]), ([9, 8], 5, [3, 2]),
        ([8, 9], 5, [2, 3]), ([9, 9], 5, [2, 3]), ([2, 2], 5, [2, 2]), ([9, 9], 0, [0, 0]),
    ):  # fmt: skip
        assert cut_lengths(lengths, room) == kept


class Counted:
    """A tokenizer that counts the characters that it reads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.characters = tokenizer, 0
        self.normalizer, self.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer

    def encode_batch(self, texts: list[Any]) -> list[Any]:
        self.characters += sum(len(text) if isinstance(text, str) else sum(map(len, text)) for text in texts)
        return self.tokenizer.encode_batch(texts)


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_long_text_is_not_read_to_its_end(side: str) -> None:
    for texts in ("a film " * 100_000, ("a film " * 100_000, "film"), ("a film " * 100_000,) * 2):
        counted: Any = Counted(bert())
        [(tokens, is_cut)] = Truncation(counted, max_length=15, side=side).encode([texts])
        assert (len(tokens.ids), is_cut) == (15, True)
        assert counted.characters < 3_000


@pytest.mark.parametrize("side", ["right", "left"])
def test_more_is_read_where_few_tokens_are_in_many_characters_or_a_pattern_looks_ahead(side: str) -> None:
    looking = roberta()
    looking.pre_tokenizer = pre_tokenizers.Split(Regex("a(?=.*!)|film|b"), "isolated")
    for tokenizer, text, length in (
        (bert(), " " * 3_000 + "a film " * 20 + "x" * 3_000 + " film" * 20 + " " * 3_000, 30),
        (looking, "a film b " * 2_000 + "!", 9),
    ):
        [expected] = cut_as_tokenizers(tokenizer, [text], max_length=length, side=side)
        [(tokens, is_cut)] = Truncation(tokenizer, max_length=length, side=side).encode([text])
        assert (read(tokens), is_cut) == expected
