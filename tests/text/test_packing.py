"""Tests that packing preserves tokens and their order, and adds the right lengths and special tokens."""

import string
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from distill.core.errors import UserError
from distill.text import packing
from distill.text.corpus import Document, Position
from distill.text.packing import Packer, SpecialTokens, TokenSequence, find_continuations

WORDS = ["lovely", "moving", "film", "acting", "joy", "dull", "mess", "warm", "cold", "minute", "hated", "loved"]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
quick = settings(max_examples=40, deadline=None, derandomize=True)
# Documents as lists of the numbers of words of their sentences.
corpora = st.lists(st.lists(st.integers(1, 40), max_size=12), min_size=1, max_size=8)


def write_documents(corpus: list[list[int]]) -> list[Document]:
    """Returns reproducible documents whose sentences have these numbers of words."""
    random = np.random.default_rng(0)
    texts = [" ".join(f"{' '.join(random.choice(WORDS, size))}. Then" for size in sizes) for sizes in corpus]
    return [Document(f"d#{number}", 0, text.removesuffix(" Then")) for number, text in enumerate(texts)]


def make_byte_level(**options: Any) -> PreTrainedTokenizerBase:
    """Returns a tokenizer like RoBERTa's, with two separators in a pair and no token types."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator([f"{' '.join(WORDS)} ## ##. Then"] * 4, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return wrap_tokenizer(tokenizer, **options)


def make_sentence_piece() -> PreTrainedTokenizerBase:
    """Returns a tokenizer like XLM-R's, which marks the beginning of the first word too."""
    names = [*SPECIAL, "▁", *(f"▁{word}" for word in WORDS), *string.ascii_lowercase]
    tokenizer = Tokenizer(models.Unigram([(name, -float(index)) for index, name in enumerate(names)], unk_id=3))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return wrap_tokenizer(tokenizer)


def wrap_tokenizer(tokenizer: Tokenizer, **options: Any) -> PreTrainedTokenizerBase:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", cls_token="<s>", sep_token="</s>",
        pad_token="<pad>", unk_token="<unk>", mask_token="<mask>", **options,
    )  # fmt: skip


def make_packer(tokenizer: PreTrainedTokenizerBase, mode: str, max_length: int = 16, **options: Any) -> Packer:
    return Packer(tokenizer, packing=mode, max_length=max_length, **{"pair": None, "seed": 0} | options)


def pack(
    tokenizer: PreTrainedTokenizerBase, mode: str, documents: Iterable[Document], **options: Any
) -> list[TokenSequence]:
    return list(make_packer(tokenizer, mode, **options).pack_documents(documents))


def tokenize(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def strip_special(tokenizer: PreTrainedTokenizerBase, sequence: TokenSequence) -> list[int]:
    return [token for token in sequence.ids.tolist() if token not in tokenizer.all_special_ids]


def split_segments(tokenizer: PreTrainedTokenizerBase, sequence: TokenSequence) -> tuple[list[int], list[int]]:
    """Returns the two texts of a pair with BERT's special tokens."""
    ids = sequence.ids.tolist()
    middle = ids.index(tokenizer.sep_token_id)
    assert ids[0] == tokenizer.cls_token_id
    assert ids[-1] == tokenizer.sep_token_id
    return ids[1:middle], ids[middle + 1 : -1]


TOKENIZERS = ("word_piece", "byte_level", "sentence_piece")


@pytest.fixture(scope="module")
def tokenizers(tokenizer: PreTrainedTokenizerBase) -> dict[str, PreTrainedTokenizerBase]:
    return {"word_piece": tokenizer, "byte_level": make_byte_level(), "sentence_piece": make_sentence_piece()}


# full_sentences and doc_sentences


@quick
@given(corpora, st.integers(8, 40), st.sampled_from(TOKENIZERS), st.sampled_from([1, 100, 2**17]))
def test_full_sentences_contain_every_token_once_and_have_the_maximum_length(
    tokenizers: dict[str, PreTrainedTokenizerBase],
    corpus: list[list[int]],
    length: int,
    name: str,
    batch_characters: int,
):
    tokenizer, documents = tokenizers[name], write_documents(corpus)
    with pytest.MonkeyPatch.context() as patch:
        # The tokenizer's batch size must not change the result.
        patch.setattr(packing, "_BATCH_CHARACTERS", batch_characters)
        packer = make_packer(tokenizer, "full_sentences", length)
        sequences = list(packer.pack_documents(documents))
    assert {len(sequence.ids) for sequence in sequences} <= {length}
    assert all(sequence.type_ids is None and sequence.pair_label == -100 for sequence in sequences)
    stream = [token for sequence in sequences for token in sequence.ids.tolist()[1:-1]]
    expected: list[int] = []
    texts = [document.text for document in documents if document.text]
    for text in texts:
        expected += [*([tokenizer.sep_token_id] if expected else []), *tokenize(tokenizer, text)]
    assert stream == expected[: len(stream)]
    assert len(expected) - len(stream) == packer.dropped_token_count < length - 2
    assert packer.token_count == len(expected) - max(0, len(texts) - 1)


@quick
@given(corpora, st.integers(12, 40), st.sampled_from(TOKENIZERS))
def test_doc_sentences_do_not_cross_document_boundaries(
    tokenizers: dict[str, PreTrainedTokenizerBase], corpus: list[list[int]], length: int, name: str
):
    tokenizer, documents = tokenizers[name], write_documents(corpus)
    packer = make_packer(tokenizer, "doc_sentences", length)
    sequences = [sequence.ids.tolist() for sequence in packer.pack_documents(documents)]
    expected, left_out = [], 0
    for document in documents:
        ids = tokenize(tokenizer, document.text)
        pieces = [ids[first : first + length - 2] for first in range(0, len(ids), length - 2)]
        if len(pieces) > 1 and len(pieces[-1]) < 8:  # Too short to be a context.
            left_out += len(pieces.pop())
        expected += pieces
    assert [ids[1:-1] for ids in sequences] == expected
    assert {(ids[0], ids[-1]) for ids in sequences} <= {(tokenizer.cls_token_id, tokenizer.sep_token_id)}
    assert packer.dropped_token_count == left_out


def test_chunks_of_a_document_are_joined_and_empty_ones_are_ignored(tokenizer: PreTrainedTokenizerBase):
    parts = [Document("a", 0, "a lovely film\n"), Document("a", 1, "\u200d"), Document("a", 2, "a joy\n\n\nfunny")]
    whole, other = "a lovely film a joy funny", "a dull mess i hated every minute a bore"
    # The normalizer leaves nothing of a control character, and "b" has no token.
    documents = [*parts, Document("b", 0, "\u0001"), Document("c", 0, other)]
    [first, *_] = pack(tokenizer, "full_sentences", documents, max_length=12)
    expected = [*tokenize(tokenizer, whole), tokenizer.sep_token_id, *tokenize(tokenizer, other)]
    assert first.ids.tolist()[1:-1] == expected[:10]
    assert strip_special(tokenizer, pack(tokenizer, "doc_sentences", documents)[0]) == tokenize(tokenizer, whole)


# sentence


def test_each_sentence_is_one_truncated_sequence(tokenizers: dict[str, PreTrainedTokenizerBase]):
    for tokenizer in tokenizers.values():
        long = " ".join(["Film"] * 30)
        packer = make_packer(tokenizer, "sentence", 12)
        text = f"A lovely film. A joy!\n\nA dull\nmess. {long}"
        sequences = list(packer.pack_documents([Document("a", 0, text), Document("b", 0, "Cold.")]))
        expected = [tokenize(tokenizer, part) for part in ("A lovely film.", "A joy!", "A dull mess.", long, "Cold.")]
        assert [sequence.ids.tolist()[1:-1] for sequence in sequences] == [ids[:10] for ids in expected]
        assert packer.dropped_token_count == sum(max(0, len(ids) - 10) for ids in expected)


# segment_pair


@quick
@given(corpora, st.integers(8, 64), st.sampled_from([None, "sop"]))
def test_pairs_contain_the_corpus_once_and_in_order(
    tokenizer: PreTrainedTokenizerBase, corpus: list[list[int]], length: int, pair: str | None
):
    documents = write_documents(corpus)
    packer = make_packer(tokenizer, "segment_pair", length, pair=pair)
    sequences = list(packer.pack_documents(documents))
    stream = []
    for sequence in sequences:
        first, second = split_segments(tokenizer, sequence)
        assert first
        assert second
        assert len(sequence.ids) <= length
        assert sequence.type_ids is not None
        assert sequence.type_ids.tolist() == [0] * (len(first) + 2) + [1] * (len(second) + 1)
        assert sequence.pair_label == -100 if pair is None else sequence.pair_label in (0, 1)
        stream += [*second, *first] if sequence.pair_label == 1 else [*first, *second]
    whole = iter([token for document in documents for token in tokenize(tokenizer, document.text)])
    assert all(token in whole for token in stream)  # In this order, with gaps where a pair was cut.
    assert packer.token_count - packer.dropped_token_count == len(stream)


def test_a_pair_has_the_maximum_length(tokenizer: PreTrainedTokenizerBase):
    documents = [Document("a", 0, " ".join("A lovely film and a joy." for _ in range(400)))]
    sequences = pack(tokenizer, "segment_pair", documents, max_length=64)
    assert {len(sequence.ids) for sequence in sequences[:-1]} == {64}
    lengths = [len(split_segments(tokenizer, sequence)[0]) for sequence in sequences]
    assert min(lengths) < 15
    assert max(lengths) > 45  # Random shares.
    other = pack(tokenizer, "segment_pair", documents, max_length=64, seed=1)
    assert sequences[0].ids.tolist() != other[0].ids.tolist()


def make_numbered_documents(documents: int, sentences: int) -> list[Document]:
    """Returns sentences that contain the numbers of their document and sentence."""
    return [
        Document(f"d#{d}", 0, " ".join(f"Film {d} minute {s} loved." for s in range(sentences)))
        for d in range(documents)
    ]


def find_sentences(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[tuple[int, int]]:
    """Returns the document and sentence numbers of the complete sentences."""
    words = tokenizer.decode(ids).replace(".", " ").split()
    starts = [index for index, word in enumerate(words) if word == "film" and words[index + 4 : index + 5] == ["loved"]]
    return [(int(words[index + 1]), int(words[index + 3])) for index in starts]


@pytest.fixture(scope="module")
def digits(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """A tokenizer whose tokens are words and integers."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "film", "minute", "loved", ".", *map(str, range(3000))]
    backend = Tokenizer(models.WordPiece({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return type(tokenizer)(tokenizer_object=backend, do_lower_case=True)


Complete = list[tuple[int, list[tuple[int, int]], list[tuple[int, int]]]]


def pack_pairs(
    tokenizer: PreTrainedTokenizerBase, pair: str, documents: int, sentences: int
) -> tuple[list[TokenSequence], np.ndarray, Complete]:
    """Returns sequences, their labels, and of pairs with complete sentences the label and these of both segments.

    Asserts that whether the last sentence is cut reveals nothing of the label.
    """
    sequences = pack(tokenizer, "segment_pair", make_numbered_documents(documents, sentences), max_length=64, pair=pair)
    labels = np.array([sequence.pair_label for sequence in sequences])
    complete = []
    for sequence in sequences:
        one, two = (find_sentences(tokenizer, segment) for segment in split_segments(tokenizer, sequence))
        if one and two:
            complete.append((sequence.pair_label, one, two))
    stops = np.array([sequence.ids[-2] == tokenizer.convert_tokens_to_ids(".") for sequence in sequences])
    for label in range(1, 3 if pair == "three_way" and documents > 1 else 2):
        assert stops[labels == label].mean() == pytest.approx(stops[labels == 0].mean(), abs=0.12)
    return sequences, labels, complete


@pytest.mark.parametrize(("documents", "sentences"), [(60, 60), (1, 3000)])
def test_half_of_the_nsp_pairs_are_negative(digits: PreTrainedTokenizerBase, documents: int, sentences: int):
    sequences, labels, complete = pack_pairs(digits, "nsp", documents, sentences)
    assert labels.mean() == pytest.approx(0.5, abs=0.06)
    for label, one, two in complete:
        (document, last), (other, begin) = one[-1], two[0]
        if label == 0:
            assert document == other
            assert 1 <= begin - last <= 2  # 2 if the first segment's last sentence was cut.
        else:
            assert document != other or begin < last - 20
    firsts = [one[0] for _, one, _ in complete]
    assert firsts == sorted(firsts)  # The next pair begins with the replaced text.
    # Neither the length of a pair nor that of its segments reveals the label.
    full = np.array([len(sequence.ids) for sequence in sequences]) == 64
    assert full[labels == 1].mean() == pytest.approx(full[labels == 0].mean(), abs=0.08)
    shares = np.array([len(split_segments(digits, sequence)[0]) for sequence in sequences])
    assert shares[labels == 1].mean() == pytest.approx(shares[labels == 0].mean(), rel=0.15)
    # All of the corpus is trained on.
    seen = {sentence for label, one, two in complete for sentence in (*one, *(two if label == 0 else ()))}
    assert len(seen) > 0.8 * documents * sentences


def test_pairs_of_sop_are_swapped_and_those_of_three_way_may_be_of_another_document(digits: PreTrainedTokenizerBase):
    for pair, shares in (("sop", [1 / 2] * 2), ("three_way", [1 / 3] * 3)):
        _, labels, complete = pack_pairs(digits, pair, 50, 60)
        assert np.bincount(labels) / len(labels) == pytest.approx(shares, abs=0.06)
        for label, one, two in complete:
            assert (one[0][0] == two[0][0]) == (label < 2)
            assert label == 2 or (one[-1] < two[0]) == (label == 0)
    assert set(pack_pairs(digits, "three_way", 1, 900)[1].tolist()) == {0, 1}


@pytest.mark.parametrize("pair", [None, "nsp", "sop", "three_way"])
def test_a_document_of_one_sentence_makes_no_pair(tokenizer: PreTrainedTokenizerBase, pair: str | None):
    packer = make_packer(tokenizer, "segment_pair", pair=pair)
    assert list(packer.pack_documents([Document(f"{n}", 0, "A lovely film.") for n in range(9)])) == []
    assert packer.dropped_token_count == packer.token_count > 0


@pytest.mark.parametrize(("length", "pair", "share"), [(8, None, 0.5), (128, "nsp", 0.1), (128, "sop", 0.1)])
def test_a_very_long_sentence_is_split_into_pairs(
    tokenizer: PreTrainedTokenizerBase, length: int, pair: str | None, share: float
):
    text = "A joy. " + " ".join(WORDS[n % 12] for n in range(8_000)) + ". A bore."
    packer = make_packer(tokenizer, "segment_pair", length, pair=pair)
    sequences = list(packer.pack_documents([Document("a", 0, text)]))
    assert packer.dropped_token_count < share * packer.token_count
    assert len(sequences) > 0.5 * packer.token_count / length
    assert np.mean([len(sequence.ids) == length for sequence in sequences]) > 0.9


# Tokenizers


def test_special_tokens_are_those_of_the_tokenizer(tokenizers: dict[str, PreTrainedTokenizerBase]):
    for tokenizer in tokenizers.values():
        one, two = "a lovely film", "i loved every minute"
        special, expected = SpecialTokens(tokenizer), tokenizer(one, two)
        ids, types = special.wrap_pair(tokenize(tokenizer, one), tokenize(tokenizer, two))
        assert ids.tolist() == expected["input_ids"]
        assert (None if types is None else types.tolist()) == expected.get("token_type_ids")
        assert special.wrap_text(tokenize(tokenizer, one)).tolist() == tokenizer(one)["input_ids"]
        assert special.compute_capacity(30) == 30 - len(tokenizer("")["input_ids"])
        texts = len(tokenize(tokenizer, one)) + len(tokenize(tokenizer, two))
        assert special.compute_capacity(30, pair=True) == 30 - len(expected["input_ids"]) + texts


def test_earlier_truncation_and_padding_settings_are_ignored():
    tokenizer, documents = make_byte_level(), write_documents([[30, 20], [25]])
    expected = [sequence.ids.tolist() for sequence in pack(tokenizer, "doc_sentences", documents, max_length=200)]
    packer = make_packer(tokenizer, "doc_sentences", 200)
    tokenizer(["a", "b c"], truncation=True, max_length=4, padding="max_length")
    assert [sequence.ids.tolist() for sequence in packer.pack_documents(documents)] == expected


def test_special_tokens_within_a_text_are_encoded_as_ordinary_text(tokenizer: PreTrainedTokenizerBase):
    text = "a [SEP] film [MASK] [PAD]"
    [sequence] = pack(tokenizer, "sentence", [Document("a", 0, text)], max_length=64)
    special = np.isin(sequence.ids, [tokenizer.sep_token_id, tokenizer.mask_token_id, tokenizer.pad_token_id])
    assert np.flatnonzero(special).tolist() == [len(sequence.ids) - 1]
    assert tokenizer.mask_token_id in tokenizer(text)["input_ids"]  # The tokenizer itself is unchanged.


@pytest.mark.parametrize("letters", [[], ["a"]])
def test_special_tokens_are_found_if_a_letter_is_no_token_or_several(letters: list[str]):
    vocabulary = {word: number for number, word in enumerate(["<unk>", "</s>", "<s>", "film", *letters])}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>"))
    backend.normalizer = normalizers.Replace("a", "a film a")
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 2), ("</s>", 1)]
    )
    names = {"cls_token": "<s>", "sep_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"}
    ids, types = SpecialTokens(PreTrainedTokenizerFast(tokenizer_object=backend, **names)).wrap_pair([3, 3], [3])
    assert (ids.tolist(), types) == ([2, 3, 3, 1, 3, 1], None)


def test_continuations_agree_with_the_words_of_the_tokenizer(tokenizers: dict[str, PreTrainedTokenizerBase]):
    for name, tokenizer in tokenizers.items():
        is_continuation = find_continuations(tokenizer)
        assert is_continuation.shape == (len(tokenizer),)
        assert not is_continuation[tokenizer.all_special_ids].any()
        ids = tokenize(tokenizer, "lovely unheard film")
        words = tokenizer("lovely unheard film", add_special_tokens=False).word_ids()
        inside = [number > 0 and words[number] == words[number - 1] for number in range(len(ids))]
        assert sum(inside) > 1
        assert is_continuation[ids[1:]].tolist() == inside[1:], name


def test_tokenizers_without_special_tokens_or_word_markers_raise(tokenizers: dict[str, PreTrainedTokenizerBase]):
    backend = Tokenizer.from_str(tokenizers["byte_level"].backend_tokenizer.to_str())
    backend.post_processor = processors.ByteLevel()
    with pytest.raises(UserError, match="adds no special tokens around a text, which packing needs"):
        SpecialTokens(wrap_tokenizer(backend))
    backend = Tokenizer(models.BPE({"a</w>": 0, "b</w>": 1, "</s>": 2, "<s>": 3}, [], end_of_word_suffix="</w>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 3))
    with pytest.raises(UserError, match="does not mark where words begin: set task.mask.unit=token"):
        find_continuations(PreTrainedTokenizerFast(tokenizer_object=backend, cls_token="<s>", sep_token="</s>"))


def test_the_state_has_the_keys_that_a_checkpoint_keeps(tokenizer: PreTrainedTokenizerBase):
    packer = make_packer(tokenizer, "segment_pair", pair="nsp")
    list(packer.pack_documents(write_documents([[5, 9, 3], [8, 2]])))
    state = packer.state_dict()
    counts = {"tokens", "left_out", "_characters"}
    values = {"_last", "_document", "_held", "_began", "_texts", "_waiting", "_elsewhere", "_random"}
    assert set(state) == counts | values
    other = make_packer(tokenizer, "segment_pair", pair="nsp", seed=1)
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert asdict(Position(1, 2, 3)) == {"file": 1, "parts": 2, "documents": 3}
