"""Tests of the text of tokens that arrive one after the other."""

from collections.abc import Sequence

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from distill.edge.generation import REPLACEMENT, TokenText

TEXTS = [
    "Grüße, ein naïver Café-Gast: 10 €!",
    "日本語 と emoji 🎉🎊 done.",
    "don't stop; it's fine , is n't it ?",
    "  two  spaces\n\nlines",
]


def train_byte_pairs() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        TEXTS[2:], trainers.BpeTrainer(vocab_size=290, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    )
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


def train_word_pieces() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=80, special_tokens=["[UNK]", "<end>"]))
    return tokenizer


def make_unigrams() -> Tokenizer:
    """A tokenizer as that of T5 or Llama: words with a mark before them, and bytes for unknown characters."""
    pieces = [("<unk>", 0.0), ("<end>", 0.0), *((f"<0x{byte:02X}>", -9.0) for byte in range(256))]
    pieces += [("▁", -3.0), *((letter, -5.0) for letter in sorted(set("".join(TEXTS[2:])) - {" "}))]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


TOKENIZERS = {"byte pairs": train_byte_pairs, "word pieces": train_word_pieces, "unigrams": make_unigrams}


def write(
    tokenizer: Tokenizer, tokens: Sequence[int], prompt: Sequence[int] = (), stop: Sequence[str] = ()
) -> list[str]:
    """Returns the piece after each token and, as the last one, that at the end."""
    text, pieces = TokenText(tokenizer, prompt, stop), []
    for token in tokens:
        text.add(token)
        pieces.append(text.read())
    text.end()
    pieces.append(text.read())
    assert "".join(pieces) == text.text
    return pieces


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("text", TEXTS)
def test_pieces_make_the_text_of_all_tokens_and_none_has_half_a_character(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]()
    tokens = tokenizer.encode(text).ids
    pieces = write(tokenizer, tokens)
    assert "".join(pieces) == tokenizer.decode(tokens)
    assert not any(REPLACEMENT in piece for piece in pieces)
    assert sum(map(bool, pieces)) > len(text.split())


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_text_behind_a_prompt_is_what_it_adds(name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    tokens = tokenizer.encode(TEXTS[2]).ids
    whole = tokenizer.decode(tokens)
    for size in range(len(tokens)):
        prompt = tokenizer.decode(tokens[:size])
        assert prompt + "".join(write(tokenizer, tokens[size:], prompt=tokens[:size])) == whole


def test_a_character_of_several_tokens_comes_with_its_last_one_and_half_of_it_never() -> None:
    tokenizer = train_byte_pairs()
    tokens = tokenizer.encode("a🎉b").ids
    assert write(tokenizer, tokens) == ["a", "", "", "", "🎉", "b", ""]
    assert write(tokenizer, tokens[:3]) == ["a", "", "", ""]


def test_bytes_that_are_no_character_are_shown_as_such_and_hold_nothing_back() -> None:
    tokenizer = train_byte_pairs()
    half, letter = tokenizer.encode("🎉").ids[0], tokenizer.encode("x").ids[0]
    pieces = write(tokenizer, [half] * 6 + [letter])
    assert "".join(pieces) == REPLACEMENT * 6 + "x"
    assert "".join(pieces[:-2]) == REPLACEMENT * 3


def test_a_stop_string_may_span_pieces_and_ends_the_text_before_it() -> None:
    tokenizer = train_byte_pairs()
    tokens = [token for letter in "one two three" for token in tokenizer.encode(letter).ids]
    assert "".join(write(tokenizer, tokens, stop=["two thr"])) == "one "
    assert "".join(write(tokenizer, tokens, stop=["three", "wo t", "o th"])) == "one t"
    assert "".join(write(tokenizer, tokens, stop=["o t", "two t"])) == "one "  # The same token ends both.
    assert write(tokenizer, tokens, stop=["wo!"])[4:8] == ["t", "", "", "wo "]


def test_a_stop_string_that_is_never_reached_holds_only_its_beginning_back() -> None:
    tokenizer = train_byte_pairs()
    tokens = [token for letter in "aab" for token in tokenizer.encode(letter).ids]
    assert write(tokenizer, tokens, stop=["aax"]) == ["", "", "aab", ""]
    assert write(tokenizer, tokens[:2], stop=["aax"]) == ["", "", "aa"]
    assert write(tokenizer, tokens, stop=["abx"]) == ["", "a", "", "ab"]


def test_tokens_behind_a_stop_string_add_nothing() -> None:
    tokenizer = train_byte_pairs()
    text = TokenText(tokenizer, stop=["b"])
    for token in tokenizer.encode("xaxbxc").ids:
        text.add(token)
    assert text.is_stopped
    assert text.text == "xax"
