"""Tests that masking chooses the right number of tokens evenly and replaces them in the configured shares."""

import itertools
from collections import Counter
from decimal import ROUND_HALF_UP, Decimal
from itertools import permutations
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from distill.core.contracts import IGNORED
from distill.core.errors import UserError
from distill.text.masking import Masker, Masking, Unit, check_masking, shuffle_runs

UNITS = get_args(Unit)
VOCABULARY = 1000
SPECIAL = (0, 1, 2, 7)  # One of them in the middle of the vocabulary.
MASK, SEPARATOR = 7, 2
SPANS = {"unit": "span", "probability": 0.005}
Pair = tuple[np.ndarray, np.ndarray]


def masker(*, seed: int = 0, vocabulary_size: int = VOCABULARY, **options: Any) -> Masker:
    chosen = Masking(**options)
    return Masker(chosen, mask_id=MASK, special_ids=SPECIAL, vocabulary_size=vocabulary_size, seed=seed)


def sentence(*lengths: int) -> Pair:
    """Returns ids and continuations of one text: words of these numbers of tokens, between special tokens."""
    words = np.arange(100, 100 + sum(lengths)) % 900 + 100
    continues = np.concatenate([np.arange(length) > 0 for length in lengths])
    return np.r_[1, words, SEPARATOR], np.r_[False, continues, False]


def mask_examples(mask: Masker, sequence: Pair, count: int) -> Pair:
    """Returns inputs and labels `[count, n]` of examples that all have the same tokens."""
    pairs = [mask(*sequence, example=example, visit=0) for example in range(count)]
    inputs, labels = zip(*pairs, strict=True)
    return np.stack(inputs), np.stack(labels)


def assert_near(values: np.ndarray, expected: Any, errors: float = 4.5) -> None:
    """Asserts that the mean over the first axis is within `errors` standard errors of the expected value."""
    standard_error = values.std(axis=0) / len(values) ** 0.5
    assert (abs(values.mean(axis=0) - expected) <= errors * standard_error).all()


def assert_even(counts: np.ndarray, draws: int, share: float) -> None:
    """Asserts that `draws` choices of a `share` of the positions, each without replacement, favour no position.

    The counts have a fixed sum, hence one degree of freedom less. The variance of each is smaller than that of
    independent choices by `1 - share`.
    """
    variance = draws * share * (1 - share) * len(counts) / (len(counts) - 1)
    chi2 = ((counts - draws * share) ** 2).sum() / variance
    assert 1e-4 < stats.chi2.sf(chi2, len(counts) - 1) < 1 - 1e-4


# Choice of tokens


@pytest.mark.parametrize(
    ("probability", "tokens", "chosen"),
    [
        (0.15, 100, 15),
        (0.15, 10, 2),  # 1.5
        (0.15, 30, 5),  # 4.5, which Python's round() makes 4
        (0.145, 100, 15),  # 14.499999999999998
        (0.15, 1, 1),
        (0.99, 3, 3),
    ],
)
def test_the_number_of_tokens_is_rounded_half_up(probability: float, tokens: int, chosen: int):
    for unit in UNITS:  # With words of one token, every unit uses the whole budget.
        _, labels = mask_examples(masker(unit=unit, probability=probability), sentence(*[1] * tokens), 20)
        assert (labels != -100).sum(axis=1).tolist() == [chosen] * 20


@pytest.mark.parametrize(("unit", "length"), [("token", 1), ("whole_word", 3)])
def test_all_positions_are_chosen_equally_often(unit: str, length: int):
    words = 60 // length
    _, labels = mask_examples(masker(unit=unit, probability=0.2), sentence(*[length] * words), 2000)
    chosen = (labels != -100)[:, 1:-1]
    assert chosen.sum() == 2000 * 12
    counts = chosen.sum(axis=0)
    assert_even(counts if unit == "token" else counts[::length], 2000, 0.2)


def test_short_spans_are_placed_with_equal_probability():
    """A budget of two of ten words gives one span of two, at nine positions, or two spans of one, anywhere."""
    _, labels = mask_examples(masker(unit="span", probability=0.2, span_longest=10), sentence(*[1] * 10), 2000)
    alone = 0.2 / (1 - 0.8**10)
    at_edge, inside = ((1 - alone) * count / 9 + alone * 0.2 for count in (1, 2))
    assert_near((labels != -100)[:, 1:-1], [at_edge, *[inside] * 8, at_edge])


@pytest.mark.parametrize("unit", ["whole_word", "span"])
def test_a_shortest_word_is_chosen_if_all_words_exceed_the_budget(unit: str):
    _, labels = mask_examples(masker(unit=unit, probability=0.05), sentence(3, 2, 5, 2), 1000)
    chosen = (labels != -100)[:, 1:-1]
    assert (chosen.sum(axis=1) == 2).all()
    assert not chosen[:, [0, 1, 2, 5, 6, 7, 8, 9]].any()
    assert_near(chosen[:, 3], 0.5)


def test_a_special_token_ends_a_word():
    ids = np.array([1, 500, 2, 501, 502, 2])
    continues = np.array([True, True, False, True, True, False])
    for unit in ("whole_word", "span"):
        _, labels = mask_examples(masker(unit=unit, probability=0.5), (ids, continues), 200)
        positions = {tuple(np.flatnonzero(row != -100).tolist()) for row in labels}
        assert positions == {(1,), (3, 4)}  # A budget of two: the word of one token leaves too little for the other.


# Spans


def find_runs(chosen: np.ndarray) -> list[slice]:
    """Returns the slices of adjacent chosen positions; spans that touch are one slice."""
    edges = np.flatnonzero(np.diff(np.r_[False, chosen, False]))
    return [slice(first, last) for first, last in edges.reshape(-1, 2).tolist()]


def test_lengths_of_spans_follow_the_geometric_distribution():
    """Counts each length with a budget of 20 words in 4000, so that spans seldom touch."""
    shares = stats.geom.pmf(np.arange(1, 11), 0.2)
    shares /= shares.sum()
    assert shares @ np.arange(1, 11) == pytest.approx(3.8, abs=0.01)  # The mean in the paper.
    expected = np.zeros((21, 10))  # Expected spans of each length in a budget, the last one cut.
    for budget in range(1, 21):
        for length, share in enumerate(shares, start=1):
            cut = min(length, budget)
            expected[budget, cut - 1] += share
            expected[budget] += share * expected[budget - cut]
    _, labels = mask_examples(masker(**SPANS), sentence(*[1] * 4000), 400)
    lengths = [[run.stop - run.start for run in find_runs(row)] for row in labels != -100]
    counts = np.array([[row.count(length) for length in range(1, 11)] for row in lengths])
    assert_near(counts, expected[20])


def test_a_span_is_replaced_as_a_whole():
    sequence = sentence(*[1] * 4000)
    inputs, labels = mask_examples(masker(**SPANS, vocabulary_size=10**6), sequence, 200)
    kinds_of_spans = []
    mixed = 0
    for row, chosen in zip(inputs, labels != -100, strict=True):
        for run in find_runs(chosen):
            kinds = set(classify_replacements(row[run], sequence[0][run]).tolist())
            mixed += len(kinds) > 1
            kinds_of_spans.append(min(kinds))
    # With 6 spans in 4000 words, spans touch in one of 200 sequences. Replaced token by token, a third would be mixed.
    assert mixed <= 5
    assert len(kinds_of_spans) > 1000
    assert_near(np.array(kinds_of_spans)[:, None] == np.arange(3), (0.8, 0.1, 0.1))
    drawn = inputs[inputs > VOCABULARY].tolist()
    assert len(set(drawn)) > 0.99 * len(drawn) > 200  # Each token of a span is drawn separately.


@pytest.mark.parametrize(("separators", "p"), [(True, 1e-9), (False, 1.0)])
def test_no_span_crosses_a_separator_or_exceeds_its_length(separators: bool, p: float):
    """Adjacent chosen words are replaced alike in half of the cases only if they are separate spans."""
    words = np.arange(100, 300)
    ids = np.stack([words, np.full(200, SEPARATOR)], axis=1).ravel() if separators else words
    mask = masker(unit="span", probability=0.5, replace=(0.5, 0.0, 0.5), span_p=p)
    inputs, labels = mask_examples(mask, (ids, np.zeros(len(ids), dtype=bool)), 60)
    ordinary = ids != SEPARATOR
    alike = [
        kinds[first] == kinds[second]
        for kinds, chosen in zip((inputs == MASK)[:, ordinary], (labels != -100)[:, ordinary], strict=True)
        for first, second in itertools.pairwise(np.flatnonzero(chosen))
        if second == first + 1
    ]
    assert len(alike) > 1500
    assert_near(np.array(alike), 0.5)


# Replacements


def classify_replacements(inputs: np.ndarray, originals: np.ndarray) -> np.ndarray:
    """Returns 0 where a token was masked, 1 where it was replaced by a random one, 2 where it is unchanged."""
    return np.where(inputs == MASK, 0, np.where(inputs == originals, 2, 1))


@pytest.mark.parametrize("unit", ["token", "whole_word"])
@pytest.mark.parametrize("shares", [(0.8, 0.1, 0.1), (0.3, 0.7, 0.0)])
def test_chosen_tokens_are_replaced_in_the_configured_shares(unit: str, shares: tuple[float, float, float]):
    ids, continues = sentence(*[1, 2, 3] * 20)
    mask = masker(unit=unit, probability=0.3, replace=shares, vocabulary_size=10**6)
    inputs, labels = mask_examples(mask, (ids, continues), 500)
    chosen = labels != -100
    kinds = classify_replacements(inputs, ids)[chosen]
    assert len(kinds) > 500 * 34
    assert_near(kinds[:, None] == np.arange(3), shares)
    # The tokens of a word are replaced independently: two are alike as often as by chance.
    alike = classify_replacements(inputs, ids)[:, 2:4][chosen[:, 2:4].all(axis=1)]
    assert_near(alike[:, 0] == alike[:, 1], sum(share**2 for share in shares))


def test_random_tokens_are_drawn_evenly_from_the_ordinary_vocabulary():
    ids = np.r_[1, np.full(200, 20), 2]
    mask = masker(probability=0.5, replace=(0.0, 1.0, 0.0), vocabulary_size=44)
    inputs, labels = mask_examples(mask, (ids, np.zeros(202, dtype=bool)), 100)
    counts = np.bincount(inputs[labels != -100], minlength=44)
    assert not counts[list(SPECIAL)].any()
    counts = np.delete(counts, SPECIAL)
    assert counts.sum() == 100 * 100
    assert 1e-4 < stats.chisquare(counts).pvalue < 1 - 1e-4  # 20 itself included.


# Reproducibility


@pytest.mark.parametrize("options", [*({"unit": unit} for unit in UNITS), {"shuffle": 0.2}])
def test_a_mask_depends_only_on_seed_example_and_visit(options: dict[str, Any]):
    sequence = sentence(*[1, 2, 1, 3] * 10)

    def mask_once(seed: int, example: int, visit: int) -> str:
        mask = masker(**options, seed=seed)
        mask(*sentence(1, 2), example=5, visit=5)  # Earlier calls must not matter,
        np.random.seed(example)  # nor the global state.
        return str([array.tolist() for array in mask(*sequence, example=example, visit=visit)])

    numbers = list(itertools.product((0, 1), (0, 1, 10**6), (0, 1)))
    results = [mask_once(*three) for three in numbers]
    assert results == [mask_once(*three) for three in numbers]
    assert len(set(results)) == len(numbers)


def test_the_input_arrays_are_not_modified():
    ids, continues = sentence(1, 2, 3)
    ids = ids.astype(np.int32)
    ids.flags.writeable = continues.flags.writeable = False  # Like memory-mapped arrays.
    for unit in UNITS:
        inputs, labels = masker(unit=unit)(ids, continues, example=0, visit=0)
        assert not np.shares_memory(inputs, ids)
        assert (inputs.dtype, labels.dtype) == (np.int32, np.int64)


# Any sequence


def words_of(ids: np.ndarray, continues: np.ndarray) -> list[list[int]]:
    """Returns the positions of the tokens of each word."""
    words: list[list[int]] = []
    for position, token in enumerate(ids.tolist()):
        if token in SPECIAL:
            continue
        if continues[position] and words and words[-1][-1] == position - 1:
            words[-1].append(position)
        else:
            words.append([position])
    return words


tokens = st.lists(st.tuples(st.sampled_from([*SPECIAL, *range(20, 30)]), st.booleans()), max_size=60)
options = st.fixed_dictionaries(
    {
        "unit": st.sampled_from(UNITS),
        "probability": st.sampled_from([0.001, 0.05, 0.15, 0.5, 0.9, 0.999]),
        "replace": st.sampled_from([(0.8, 0.1, 0.1), (0.0, 1.0, 0.0)]),
        "span_p": st.sampled_from([1e-12, 0.2, 1.0]),
        "span_longest": st.sampled_from([1, 2, 10, 1000]),
    }
)


@settings(max_examples=120, deadline=None)
@given(tokens, options, st.integers(0, 3))
def test_any_sequence_is_masked_within_its_budget(tokens: list[tuple[int, bool]], options: dict[str, Any], visit: int):
    ids = np.array([token for token, _ in tokens], dtype=np.int64)
    continues = np.array([is_continuation for _, is_continuation in tokens], dtype=bool)
    inputs, labels = masker(**options, vocabulary_size=50)(ids, continues, example=3, visit=visit)
    assert inputs.shape == labels.shape == ids.shape
    chosen = labels != -100
    assert (inputs[~chosen] == ids[~chosen]).all()
    assert (labels[chosen] == ids[chosen]).all()
    assert not np.isin(ids[chosen], SPECIAL).any()
    assert not np.isin(inputs[chosen], [token for token in SPECIAL if token != MASK]).any()
    words = words_of(ids, continues)
    ordinary = sum(map(len, words))
    share = Decimal(str(options["probability"])) * ordinary
    budget = min(ordinary, max(1, int(share.to_integral_value(ROUND_HALF_UP))))
    if options["unit"] == "token":
        assert chosen.sum() == budget
        return
    whole = [word for word in words if chosen[word].all()]
    assert sum(map(len, whole)) == chosen.sum()
    if words and min(map(len, words)) > budget:
        assert [len(word) for word in whole] == [min(map(len, words))]
        return
    left = budget - chosen.sum()
    assert left >= 0
    assert all(len(word) > left for word in words if word not in whole)


# Errors


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"probability": 0}, "got probability=0, expected a number above 0 and below 1"),
        ({"probability": 1.0}, "got probability=1.0, expected a number above 0 and below 1"),
        ({"unit": "words"}, "got unit=words, expected one of token, whole_word, span"),
        ({"replace": (0.8, 0.1)}, r"got replace=\[0.8, 0.1\], expected three shares that sum to 1: of \[MASK\], of "),
        ({"replace": (1.1, -0.2, 0.1)}, r"got replace=\[1.1, -0.2, 0.1\], expected three shares that sum to 1"),
        ({"span_p": 1.5}, "got span_p=1.5, expected a number above 0 and at most 1"),
        ({"span_longest": 2.5}, "got span_longest=2.5, expected a whole number of at least 1"),
        ({"shuffle": 1.0}, "got shuffle=1.0, expected a number of at least 0 and below 1"),
        ({"shuffle_size": 1}, "got shuffle_size=1, expected a whole number of at least 2"),
    ],
)
def test_invalid_options_are_refused(wrong: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=f"^{message}"):
        Masking(**wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mask_id": 50}, r"got mask_id=50, expected one of special_ids=\[0, 1, 2, 7\]"),
        ({"vocabulary_size": 7}, r"got special_ids=\[7\], expected ids below vocabulary_size=7"),
        ({"special_ids": range(9), "vocabulary_size": 9}, "got 9 special_ids, expected fewer than vocabulary_size=9"),
        ({"seed": -1}, "got seed=-1, expected a whole number of at least 0"),
    ],
)
def test_an_invalid_vocabulary_is_refused(wrong: dict[str, Any], message: str):
    arguments = {"mask_id": MASK, "special_ids": SPECIAL, "vocabulary_size": VOCABULARY, "seed": 0}
    with pytest.raises(ValueError, match=f"^{message}"):
        Masker(Masking(), **arguments | wrong)


def test_invalid_sequences_are_refused():
    ids, continues = sentence(1, 2)
    with pytest.raises(ValueError, match=r"^got ids \[5\] and continues \[4\], expected both \[n\]"):
        masker()(ids, continues[1:], example=0, visit=0)
    with pytest.raises(ValueError, match=r"^got ids \[1, 5\] and continues \[1, 5\], expected both \[n\]"):
        masker()(ids[None], continues[None], example=0, visit=0)
    with pytest.raises(ValueError, match="^got token 202, expected ids below vocabulary_size=150"):
        masker(vocabulary_size=150)(ids, continues, example=0, visit=0)


@pytest.mark.parametrize(
    ("options", "length"),
    [({"unit": "span", "span_longest": 127}, "span_longest"), ({"shuffle": 0.05, "shuffle_size": 127}, "shuffle_size")],
)
def test_spans_and_runs_longer_than_a_sequence_are_refused(options: dict[str, Any], length: str):
    message = f"^got task.mask.{length}=127, expected at most 126, the ordinary tokens of a sequence of task.max_len"
    with pytest.raises(UserError, match=message):
        check_masking(Masking(**options), 128)
    check_masking(Masking(**options | {length: 126}), 128)
    check_masking(Masking(**{length: 127}), 128)  # Neither spans nor shuffled runs.


# Shuffled runs

LEAST = 1e-9  # The least probability, with which one token of a text is chosen for masks.


def make_masker(*, seed: int = 0, shuffle: float = 0.05, shuffle_size: int = 3, probability: float = 0.15) -> Masker:
    mask = Masking(shuffle=shuffle, shuffle_size=shuffle_size, probability=probability, replace=(1.0, 0.0, 0.0))
    return Masker(mask, mask_id=MASK, special_ids=(1, SEPARATOR, MASK), vocabulary_size=500, seed=seed)


def mask_text(masker: Masker, ids: np.ndarray, example: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return masker(ids, np.zeros(len(ids), dtype=bool), example=example, visit=0)


def text(*lengths: int) -> np.ndarray:
    """Returns texts of so many tokens, all different, with a separator behind each."""
    ends = np.cumsum(lengths)
    parts = [[*range(100 + end - length, 100 + end), SEPARATOR] for length, end in zip(lengths, ends, strict=True)]
    return np.array([1, *(token for part in parts for token in part)])


def test_five_percent_of_the_tokens_are_in_shuffled_trigrams() -> None:
    ids, moved, labelled = text(60), [], []
    masker = make_masker()
    for example in range(1000):
        inputs, labels = mask_text(masker, ids, example)
        shuffled = (labels != IGNORED) & (inputs != MASK)
        labelled.append(shuffled.sum())
        moved.append((inputs != ids)[shuffled].sum())
        assert (labels[labels != IGNORED] == ids[labels != IGNORED]).all()  # The right tokens.
        assert (inputs == ids)[labels == IGNORED].all()
        assert sorted(inputs[shuffled]) == sorted(ids[shuffled])
        assert (inputs == MASK).sum() == 9  # As without a shuffle.
    assert set(labelled) == {3}  # One trigram, 5% of 60.
    assert np.mean(moved) == pytest.approx(2.0, abs=0.14)  # A random order leaves a third of the tokens in place.


def test_short_texts_have_the_share_on_average() -> None:
    masker = make_masker(probability=LEAST)
    shares = [
        ((labels != IGNORED) & (inputs != MASK)).sum() / 12
        for inputs, labels in (mask_text(masker, text(12), example) for example in range(1500))
    ]
    assert np.mean(shares) == pytest.approx(0.05, abs=0.011)


def test_every_order_is_equally_likely() -> None:
    random = np.random.default_rng(0)
    free = np.array([False, True, True, True, False])
    orders = Counter(
        tuple(run) for _ in range(6000) for run in shuffle_runs(free, number=1.0, size=3, random=random).tolist()
    )
    assert orders.keys() == set(permutations((1, 2, 3)))
    assert all(abs(count - 1000) < 150 for count in orders.values())


@pytest.mark.parametrize("size", [2, 5])
def test_runs_never_overlap_or_cross_a_special_or_a_masked_token(size: int) -> None:
    ids, masker = text(2, 4, 1, 9), make_masker(shuffle=0.9, shuffle_size=size, probability=0.1)
    separators = np.cumsum(np.isin(ids, (1, SEPARATOR)))
    seen = 0
    for example in range(200):
        inputs, labels = mask_text(masker, ids, example)
        place = {int(token): position for position, token in enumerate(ids)}
        for position in np.flatnonzero((inputs != ids) & (inputs != MASK)):
            origin = place[int(inputs[position])]
            assert abs(origin - position) < size
            assert separators[origin] == separators[position]
            between = slice(min(origin, position), max(origin, position))
            assert MASK not in inputs[between]
            seen += 1
        assert ((labels != IGNORED) & (inputs != MASK)).sum() % size == 0
    assert seen


@pytest.mark.parametrize("lengths", [(2,), (1,), (2, 2), ()])
def test_a_text_of_two_tokens_is_left_alone(lengths: tuple[int, ...]) -> None:
    ids, masker = text(*lengths), make_masker(shuffle=0.99, probability=LEAST)
    for example in range(20):
        inputs, labels = mask_text(masker, ids, example)
        assert (inputs[inputs != MASK] == ids[inputs != MASK]).all()
        assert (labels != IGNORED).sum() == (inputs == MASK).sum()
