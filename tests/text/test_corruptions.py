"""Tests of corruptions of text: planted cases by hand, shares of noise over many draws, and restored texts."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from distill.core.errors import UserError
from distill.text.corruptions import CORRUPTIONS, Corruption, Corruptor, Infilling, Symbols, T5Spans
from distill.text.vocabulary import SENTINELS, train_sentinels

PAD, END, MASK, FULL_STOP = 0, 1, 2, 50
SENTINEL = np.arange(3, 23, dtype=np.int32)
SPECIAL = np.zeros(200, dtype=bool)
SPECIAL[[PAD, END, MASK, *SENTINEL]] = True
STOPS = np.zeros(200, dtype=bool)
STOPS[FULL_STOP] = True
SYMBOLS = Symbols(SPECIAL, STOPS, SENTINEL, MASK)
TEN = np.arange(100, 110, dtype=np.int32)
HUNDRED = np.arange(100, 200, dtype=np.int32)


def draw(number: int = 0) -> np.random.Generator:
    return np.random.default_rng(number)


def restore(source: np.ndarray, target: np.ndarray) -> list[int]:
    """Puts the tokens behind each sentinel of a target in its place in the source."""
    spans: dict[int, list[int]] = {}
    for token in target.tolist():
        if token in SENTINEL:
            spans[token] = last = []
        else:
            last.append(token)
    return [token for place in source.tolist() for token in spans.get(place, [place])]


def test_ten_tokens_have_one_span_of_two_at_their_end() -> None:
    """15% of ten tokens are two by rounding, which are one span; T5's code begins without noise and ends with it."""
    source, target = T5Spans()(TEN, draw(), SYMBOLS)
    assert source.tolist() == [*range(100, 108), 3]
    assert target.tolist() == [3, 108, 109, 4]
    # No span reaches across the end of a document.
    source, target = T5Spans()(np.insert(TEN, 9, END), draw(), SYMBOLS)
    assert source.tolist() == [*range(100, 108), 3, END, 4]
    assert target.tolist() == [3, 108, 4, 109, 5]


def test_two_spans_are_named_by_the_first_sentinels_in_order() -> None:
    spans = T5Spans(share=0.4, mean_span=2.0)  # Four tokens in two spans, and six tokens of text in two runs.
    assert spans.count_spans(10) == (4, 2)
    seen = set()
    for number in range(200):
        source, target = spans(TEN, draw(number), SYMBOLS)
        assert [token for token in source.tolist() if SPECIAL[token]] == [3, 4]
        assert [token for token in target.tolist() if SPECIAL[token]] == [3, 4, 5]
        assert (target[0], target[-1], source[-1]) == (3, 5, 4)
        assert restore(source, target) == TEN.tolist()
        seen.add(tuple(source.tolist()))
    assert len(seen) == 3 * 5  # All divisions of four tokens into two spans, and of six into two runs.


def test_t5_spans_have_the_share_and_the_mean_length_over_many_draws() -> None:
    lengths: Counter[int] = Counter()
    for number in range(300):
        source, target = T5Spans()(HUNDRED, draw(number), SYMBOLS)
        places = np.flatnonzero(np.isin(target, SENTINEL))
        lengths.update(np.diff(places).tolist())
        assert restore(source, target) == HUNDRED.tolist()
        assert len(target) - len(places) == 15
    sizes = np.array([*lengths.elements()]) - 1
    assert sizes.mean() == pytest.approx(3.0)
    assert set(sizes.tolist()) == set(range(1, sizes.max() + 1))
    # A division of 15 tokens into 5 spans has a first span of one token with probability C(13, 3) / C(14, 4) = 2/7.
    assert (sizes == 1).mean() == pytest.approx(2 / 7, abs=0.04)


def test_a_prefix_and_the_rest_are_the_text_and_both_have_tokens() -> None:
    ends = set()
    for number in range(200):
        source, target = CORRUPTIONS["prefix"]()(TEN, draw(number), SYMBOLS)
        assert np.concatenate((source, target)).tolist() == TEN.tolist()
        ends.add(len(source))
    assert ends == set(range(1, 10))


def test_mass_hides_a_fragment_of_half_of_the_tokens() -> None:
    starts = set()
    for number in range(200):
        source, target = CORRUPTIONS["mass"]()(TEN, draw(number), SYMBOLS)
        start = int(np.flatnonzero(source == MASK)[0])
        assert source.tolist() == [*TEN[:start], *[MASK] * 5, *TEN[start + 5 :]]
        assert target.tolist() == TEN[start : start + 5].tolist()
        starts.add(start)
        source, target = CORRUPTIONS["mass"]()(np.insert(TEN, 5, END), draw(number), SYMBOLS)
        assert (source[5], END in target) == (END, False)  # The end of a document stays in its place.
    assert starts == set(range(6))


def test_dropped_tokens_are_the_target_in_their_order() -> None:
    for number in range(50):
        source, target = CORRUPTIONS["dropped"](0.3)(np.insert(TEN, 4, END), draw(number), SYMBOLS)
        assert len(target) == 3
        assert target.tolist() == sorted(target.tolist())
        assert sorted([*source.tolist(), *target.tolist()]) == [END, *TEN.tolist()]


def test_masked_tokens_keep_their_places_and_a_tenth_of_them_is_another_token_of_text() -> None:
    masks, others = 0, 0
    for number in range(300):
        source = CORRUPTIONS["masked"]()(HUNDRED, draw(number), SYMBOLS)
        changed = source[source != HUNDRED]
        masks += int((changed == MASK).sum())
        others += int((changed != MASK).sum())
        assert not SPECIAL[changed[changed != MASK]].any()
    assert (masks + others) / 300 == pytest.approx(15, abs=0.1)  # A random token may be the same one.
    assert others / (masks + others) == pytest.approx(0.1, abs=0.02)
    assert CORRUPTIONS["masked"]()(TEN[:1], draw(), SYMBOLS).tolist() == TEN[:1].tolist()  # After another corruption.


def test_infilling_hides_its_share_in_spans_whose_lengths_are_poisson_distributed() -> None:
    masks, hidden = [], []
    for number in range(400):
        source = Infilling()(HUNDRED, draw(number), SYMBOLS)
        kept = source[source != MASK]
        assert (np.diff(kept) > 0).all()  # In order, and only tokens of the text.
        hidden.append(len(HUNDRED) - len(kept))
        masks.append(int((source == MASK).sum()))
    assert set(hidden) == {30}
    # Lengths with a mean of three are drawn until they have 30 tokens: about half a span more than ten.
    assert np.mean(masks) == pytest.approx(10.7, abs=0.35)
    # Masks for empty spans do not make a source longer than its text.
    assert max(len(Infilling(share=0.9, mean_span=1.0)(TEN, draw(number), SYMBOLS)) for number in range(300)) == 10


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([3], {(MASK, 103), (100, MASK)}),
        # The empty span comes first: with the other one before or behind the only token left, or on its other side.
        ([0, 3], {(MASK, MASK, 103), (MASK, 100, MASK), (100, MASK, MASK)}),
        ([3, 0], {(MASK, MASK, 103), (MASK, 103, MASK), (100, MASK, MASK)}),
    ],
)
def test_a_span_of_no_tokens_inserts_a_mask(
    lengths: list[int], expected: set[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Infilling, "_draw_lengths", lambda *_: np.array(lengths))
    seen = {tuple(Infilling(share=0.75)(TEN[:4], draw(number), SYMBOLS).tolist()) for number in range(60)}
    assert seen == expected


def test_sentences_are_permuted_within_their_document() -> None:
    first, second, third = [101, 102, FULL_STOP], [103, FULL_STOP], [104, 105]
    other = [106, FULL_STOP]
    ids = np.array([*first, *second, *third, END, *other], dtype=np.int32)
    seen = {tuple(CORRUPTIONS["permutation"]()(ids, draw(number), SYMBOLS).tolist()) for number in range(200)}
    orders = [(a, b, c) for a in (0, 1, 2) for b in (0, 1, 2) for c in (0, 1, 2) if len({a, b, c}) == 3]
    sentences = [first, second, third]
    assert seen == {(*sentences[a], *sentences[b], *sentences[c], END, *other) for a, b, c in orders}


def test_deshuffling_keeps_tokens_in_their_document() -> None:
    ids = np.insert(TEN, 4, END)
    seen = set()
    for number in range(100):
        source = CORRUPTIONS["deshuffle"]()(ids, draw(number), SYMBOLS).tolist()
        assert sorted(source[:4]) == [100, 101, 102, 103]
        assert source[4] == END
        assert sorted(source[5:]) == [104, 105, 106, 107, 108, 109]
        seen.add(tuple(source[:4]))
    assert len(seen) == 24


def test_documents_are_rotated_to_any_of_their_tokens() -> None:
    ids = np.array([100, 101, 102, END, 103, 104], dtype=np.int32)
    seen = {tuple(CORRUPTIONS["rotation"]()(ids, draw(number), SYMBOLS).tolist()) for number in range(100)}
    assert seen == {(*a, END, *b) for a in ((100, 101, 102), (101, 102, 100), (102, 100, 101))
                    for b in ((103, 104), (104, 103))}  # fmt: skip


def test_deletion_leaves_the_others_in_order() -> None:
    deleted: Counter[int] = Counter()
    for number in range(400):
        source = CORRUPTIONS["deletion"]()(np.append(TEN, END), draw(number), SYMBOLS)
        assert len(source) == 9
        assert source[-1] == END
        assert all(a < b for a, b in pairwise(source[:-1].tolist()))
        deleted.update(set(TEN.tolist()) - set(source.tolist()))
    assert len(deleted) == 10
    assert max(deleted.values()) < 2 * min(deleted.values())


# The tokens of a vocabulary


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return train_sentinels(["the cat sat on the mat. it was a mat! was it?"] * 3, 400)


def sequence(tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    return np.array(tokenizer("the cat sat on the mat. it was a mat! was it?")["input_ids"], dtype=np.int32)


def test_a_vocabulary_for_encoder_decoders_has_padding_an_end_a_mask_and_sentinels(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    symbols = Symbols.of(tokenizer)
    assert tokenizer.convert_ids_to_tokens(symbols.sentinels.tolist()) == list(SENTINELS)
    assert tokenizer.convert_ids_to_tokens(symbols.mask) == "<mask>"
    special = {"<pad>", "</s>", "<mask>", *SENTINELS}
    assert {tokenizer.convert_ids_to_tokens(id) for id in np.flatnonzero(symbols.special).tolist()} == special
    ends = set(tokenizer.convert_ids_to_tokens(np.flatnonzero(symbols.ends).tolist()))
    assert {".", "!", "?"} <= ends
    assert all(end[-1] in ".!?" for end in ends)
    text = "日本, a cat."
    ids = tokenizer(text)["input_ids"]
    assert ids[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_the_noise_depends_on_seed_sequence_and_visit_alone(name: str, tokenizer: PreTrainedTokenizerBase) -> None:
    [stop] = tokenizer(".", add_special_tokens=False)["input_ids"]
    text = np.insert(np.arange(103, len(tokenizer)), np.arange(10, 270, 10), stop)
    ids = np.append(text, tokenizer.eos_token_id).astype(np.int32)

    def corrupt(seed: int, example: int, visit: int) -> tuple[list[int], list[int]]:
        source, target = Corruptor(Corruption((name,)), tokenizer, seed=seed)(ids, example=example, visit=visit)
        return source.tolist(), target.tolist()

    keys = [(seed, example, visit) for seed in range(2) for example in range(3) for visit in range(3)]
    first = {key: corrupt(*key) for key in keys}
    assert {key: corrupt(*key) for key in reversed(keys)} == first
    # Of noise that depends on two of the three there are nine at most; of 18 draws some may be equal.
    assert len({str(value) for value in first.values()}) > 9
    assert all(of[-1] == tokenizer.eos_token_id for pair in first.values() for of in pair)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_no_target_is_longer_than_is_counted_and_some_are_the_whole_text(
    name: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    ids = sequence(tokenizer)
    corruptor = Corruptor(Corruption((name,)), tokenizer, seed=0)
    [most] = corruptor.count_targets(np.array([len(ids)]))
    pairs = [corruptor(ids, example=1, visit=visit) for visit in range(100)]
    assert max(len(target) for _, target in pairs) == most
    assert any(source.tolist() != ids.tolist() for source, _ in pairs)
    if CORRUPTIONS[name].restores_whole:
        assert all(target.tolist() == ids.tolist() for _, target in pairs)


def test_corruptions_are_combined_in_their_order(tokenizer: PreTrainedTokenizerBase) -> None:
    ids = sequence(tokenizer)
    source, target = Corruptor(Corruption(("permutation", "infilling")), tokenizer, seed=0)(ids, example=1, visit=0)
    random = np.random.default_rng([0, 1, 0])
    symbols = Symbols.of(tokenizer)
    expected = Infilling()(CORRUPTIONS["permutation"]()(ids[:-1], random, symbols), random, symbols)
    assert source.tolist() == [*expected.tolist(), tokenizer.eos_token_id]
    assert target.tolist() == ids.tolist()


# Bad input

FEW, BARE = replace(SYMBOLS, sentinels=SENTINEL[:5]), replace(SYMBOLS, sentinels=SENTINEL[:0], mask=None)
NO_TARGET = "got a sequence of 1 token of text, expected at least"
TOO_MANY = "needs 6 sentinels for 5 spans and the end of the target, and the vocabulary has 5: lower task.max_length"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *((lambda n=n: CORRUPTIONS[n]()(TEN[:1], draw(), SYMBOLS), NO_TARGET) for n in ("t5_spans", "prefix", "mass")),
        (lambda: T5Spans().check(100, FEW), TOO_MANY),
        (lambda: T5Spans()(HUNDRED, draw(), FEW), TOO_MANY),
        (lambda: T5Spans().check(100, BARE), r"the vocabulary has no sentinels \(<extra_id_0> and further ones\)"),
        (lambda: CORRUPTIONS["mass"]().check(100, BARE), "neither a mask token nor sentinels .*corruption=mass hides"),
        (lambda: Infilling().check(100, BARE), "neither a mask token nor sentinels .* task.corruption=infilling hides"),
    ],
)
def test_a_text_or_a_vocabulary_that_is_too_small_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()
    T5Spans().check(100, replace(SYMBOLS, sentinels=SENTINEL[:6]))


@pytest.mark.parametrize("name", ["infilling", "deletion"])
def test_too_short_a_text_for_noise_is_refused_before_it_is_corrupted(
    name: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    corruptor = Corruptor(Corruption((name,)), tokenizer, seed=0)
    corruptor.check_lengths(np.array([3, 9]))
    with pytest.raises(UserError, match="1 token of text, expected at least 2: set task.packing=full_sentences"):
        corruptor.check_lengths(np.array([2, 9]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": ("t5",)}, "got corruption=t5, expected one or several of t5_spans, prefix, deshuffle, mass"),
        ({"names": ("t5_spans",), "noise": 1.0}, "got noise=1.0, expected a share between 0 and 1, or null"),
        ({"names": ("rotation",), "noise": 0.2}, "got noise=0.2, expected null, because it is for t5_spans, mass"),
        ({"names": ("infilling",), "mean_span": float("nan")}, "got mean_span=nan, expected a number of at least 1"),
        ({"names": ("infilling", "t5_spans")}, "corruption=t5_spans has targets of its own and cannot be combined"),
    ],
)
def test_options_that_exclude_each_other_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Corruption(**options)
