"""Masking: the choice of the tokens to predict, and what replaces them in the input, or shuffles them.

The shares are those of BERT (Devlin et al., arXiv 1810.04805, section 3.1): 15% of the tokens are chosen, of which 80%
become [MASK], 10% become a random token and 10% stay. Unlike in BERT, special tokens are neither counted nor drawn.
"""

import math
from collections.abc import Collection
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveInt
from pydantic.dataclasses import dataclass

from distill.core.contracts import IGNORED
from distill.core.errors import UserError
from distill.core.options import STRICT, raise_option_errors


def shuffle_runs(free: np.ndarray, *, number: float, size: int, random: np.random.Generator) -> np.ndarray:
    """Returns runs of adjacent tokens, each in a random order: positions `[runs, size]`.

    The sorted positions of a row are the places of its tokens. From StructBERT (Wang et al., arXiv 1908.04577, section
    2.2), which shuffles trigrams of unmasked tokens. Every order is equally likely, so that some runs stay as they are.

    No two runs overlap. A text without `size` free tokens in a row has no run.

    Args:
        free: `[n]` (bool), the tokens that may be moved.
        number: of runs. Its fraction is the probability of one more, so that short texts have this number on average.
        size: number of tokens of a run.
    """
    inside = np.convolve(free, np.ones(size, dtype=int), mode="valid") == size if len(free) >= size else free[:0]
    wanted = int(number + random.random())
    starts: list[int] = []
    for start in random.permutation(np.flatnonzero(inside)).tolist():
        if len(starts) == wanted:
            break
        if all(abs(start - other) >= size for other in starts):
            starts.append(start)
    runs = np.array(starts, dtype=int).reshape(-1, 1) + np.arange(size)
    return random.permuted(runs, axis=1)


Unit = Literal["token", "whole_word", "span"]
Shares = tuple[NonNegativeFloat, NonNegativeFloat, NonNegativeFloat]


def _check_sum(shares: Shares) -> Shares:
    if not abs(sum(shares) - 1) <= 1e-6:
        raise ValueError(f"got a sum of {sum(shares)}, expected 1")
    return shares


@raise_option_errors
@dataclass(frozen=True, config=STRICT)
class Masking:
    """Options of masking, the keys of `mask` in `conf/task/mlm.yaml`.

    Args:
        probability: share of the ordinary tokens that are chosen.
        unit: the unit that is chosen as a whole: a token, a word, or a span of words.
        replace: shares of the chosen tokens that become [MASK], become a random token, and stay.
        span_p: parameter of the geometric distribution of a span's length in words (SpanBERT, arXiv 1907.10529,
            section 3.1).
        span_longest: length of the longest span, in words. The distribution is truncated there and normalized.
        shuffle: share of the ordinary tokens in runs whose order is shuffled, among tokens that are not chosen. They
            are to be predicted too (StructBERT, arXiv 1908.04577, section 2.2).
        shuffle_size: number of tokens of such a run.
    """

    probability: Annotated[float, Field(gt=0, lt=1)] = 0.15
    unit: Unit = "token"
    replace: Annotated[
        Shares,
        Field(
            strict=False, description="three shares that sum to 1: of [MASK], of random tokens and of tokens that stay"
        ),
        AfterValidator(_check_sum),
    ] = (0.8, 0.1, 0.1)
    span_p: Annotated[float, Field(gt=0, le=1)] = 0.2
    span_longest: PositiveInt = 10
    shuffle: Annotated[float, Field(ge=0, lt=1)] = 0.0
    shuffle_size: Annotated[int, Field(ge=2)] = 3


def check_masking(masking: Masking, max_length: int) -> None:
    """Checks that spans and shuffled runs fit into a sequence, of whose `max_length` tokens two are special.

    A span longer than the budget of masked tokens is allowed, because it is shortened.

    Raises:
        UserError: if the longest span or a run does not fit.
    """
    room = max(0, max_length - 2)
    if masking.shuffle and masking.shuffle_size > room:
        raise UserError(
            f"got task.mask.shuffle_size={masking.shuffle_size}, expected at most {room}, the ordinary tokens of a "
            f"sequence of task.max_length={max_length}: lower task.mask.shuffle_size or raise task.max_length"
        )
    if masking.unit == "span" and masking.span_longest > room:
        raise UserError(
            f"got task.mask.span_longest={masking.span_longest}, expected at most {room}, the ordinary tokens of a "
            f"sequence of task.max_length={max_length}: lower task.mask.span_longest or raise task.max_length"
        )


class Masker:
    """Masks one sequence at a time. The result depends only on `seed`, `example` and `visit`.

    The budget is `probability * n` of the `n` ordinary tokens, rounded half up, and at least one token.

    `token`: chooses exactly that many tokens, each with the same probability.
    `whole_word`: chooses words in random order and skips those longer than the remaining budget.
    `span`: chooses runs of words (`_choose_spans`).

    No word and no span continues after a special token.

    If the budget is too small for any word, one of the shortest words is chosen.

    With `shuffle` runs of the other ordinary tokens are shuffled, none across a special or a chosen token.
    """

    def __init__(
        self, masking: Masking, *, mask_id: int, special_ids: Collection[int], vocabulary_size: int, seed: int
    ) -> None:
        outside = sorted(token for token in special_ids if not 0 <= token < vocabulary_size)
        if outside:
            raise ValueError(f"got special_ids={outside}, expected ids below vocabulary_size={vocabulary_size}")
        if mask_id not in special_ids:
            raise ValueError(f"got mask_id={mask_id}, expected one of special_ids={sorted(special_ids)}")
        if seed < 0:
            raise ValueError(f"got seed={seed}, expected a whole number of at least 0")
        self.masking, self.mask_id, self.seed = masking, mask_id, seed
        self._special = np.zeros(vocabulary_size, dtype=bool)
        self._special[list(special_ids)] = True
        self._ordinary_ids = np.flatnonzero(~self._special)
        if not len(self._ordinary_ids):
            raise ValueError(
                f"got {vocabulary_size} special_ids, expected fewer than vocabulary_size={vocabulary_size}"
            )
        cumulative = np.cumsum((1 - masking.span_p) ** np.arange(masking.span_longest))
        self._span_length_cdf = cumulative / cumulative[-1]

    def __call__(
        self, ids: np.ndarray, continues: np.ndarray, *, example: int, visit: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns inputs and labels `[n]` of one sequence without padding; labels are -100 at tokens not to predict.

        `continues [n]` (bool) marks tokens that continue the word of the token before them.
        """
        if ids.ndim != 1 or ids.shape != continues.shape:
            raise ValueError(f"got ids {list(ids.shape)} and continues {list(continues.shape)}, expected both [n]")
        try:
            ordinary = np.flatnonzero(~self._special[ids])
        except IndexError:
            raise ValueError(
                f"got token {ids.max()}, expected ids below vocabulary_size={len(self._special)}"
            ) from None
        inputs, labels = ids.copy(), np.full(len(ids), IGNORED)
        if len(ordinary):
            random = np.random.default_rng([self.seed, example, visit])
            chosen, draws = self._choose_tokens(random, ordinary, continues)
            labels[chosen] = ids[chosen]
            masked, replaced, _ = self.masking.replace
            inputs[chosen[draws < masked]] = self.mask_id
            randomized = chosen[(draws >= masked) & (draws < masked + replaced)]
            inputs[randomized] = self._ordinary_ids[random.integers(len(self._ordinary_ids), size=len(randomized))]
            if self.masking.shuffle:
                self._shuffle(random, ids, inputs, labels)
        return inputs, labels

    def _shuffle(self, random: np.random.Generator, ids: np.ndarray, inputs: np.ndarray, labels: np.ndarray) -> None:
        """Shuffles runs of tokens in `inputs`, and makes the right ones their labels."""
        ordinary, size = ~self._special[ids], self.masking.shuffle_size
        number = self.masking.shuffle * int(ordinary.sum()) / size
        runs = shuffle_runs(ordinary & (labels == IGNORED), number=number, size=size, random=random)
        inputs[np.sort(runs, axis=1)] = ids[runs]
        labels[runs] = ids[runs]

    def _choose_tokens(
        self, random: np.random.Generator, ordinary: np.ndarray, continues: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the positions of the chosen tokens and a number in [0, 1) for each, which decides its replacement."""
        # 0.145 * 100 is 14.499999999999998, which must round to 15.
        budget = max(1, math.floor(round(self.masking.probability * len(ordinary), 9) + 0.5))
        if self.masking.unit == "token":
            return random.permutation(ordinary)[:budget], random.random(budget)
        after_gap = np.diff(ordinary, prepend=-2) > 1
        first = np.flatnonzero(after_gap | np.logical_not(continues[ordinary]))  # [W]
        lengths = np.diff(first, append=len(ordinary))
        if self.masking.unit == "whole_word":
            picked = np.zeros(len(lengths), dtype=bool)
            picked[_choose_words(random, lengths, budget)] = True
            chosen = ordinary[np.repeat(picked, lengths)]
            return chosen, random.random(len(chosen))
        segment = np.cumsum(after_gap[first])
        spans = self._choose_spans(random, lengths, np.searchsorted(segment, segment, side="right"), budget)
        span_of_word = np.full(len(lengths), -1)
        for number, (start, end) in enumerate(spans):
            span_of_word[start:end] = number
        span_of_token = np.repeat(span_of_word, lengths)
        inside = span_of_token >= 0
        return ordinary[inside], random.random(len(spans))[span_of_token[inside]]

    def _choose_spans(
        self, random: np.random.Generator, lengths: np.ndarray, ends: np.ndarray, budget: int
    ) -> list[tuple[int, int]]:
        """Returns the first word of each span and the word after its last.

        One length after the other is drawn, and a position chosen uniformly among those with that many free words in a
        row. Unlike in SpanBERT (arXiv 1907.10529, section 3.1) spans never overlap, though they may be adjacent. The
        budget ends a span between words, never within one.

        `lengths [W]` are those of the words in tokens. `ends [W]`, overwritten here, holds for each word the end
        (exclusive) of a span that starts there. There are at most `budget` spans, as each has at least one token.
        """
        words = np.arange(len(lengths))
        tokens_to = np.cumsum(lengths)
        tokens_from = tokens_to - lengths
        total = int(tokens_to[-1])
        drawn = 1 + np.searchsorted(self._span_length_cdf, random.random(budget), side="right")
        spans: list[tuple[int, int]] = []
        for longest, draw in zip(drawn.tolist(), random.random(budget).tolist(), strict=True):
            free = ends - words
            fitting = np.searchsorted(tokens_to, tokens_from + budget, side="right") - words
            # The end of the sequence does not end the budget: words of the mean length are assumed to follow it.
            fitting += np.maximum(tokens_from + (budget - total), 0) * len(words) // total
            longest = min(longest, int(np.minimum(free, fitting).max()))
            if longest < 1:
                break
            # Shortened before its position is drawn, because otherwise first words would be chosen too often.
            length = np.minimum(fitting, longest)
            starts = np.flatnonzero((length > 0) & (length <= free))
            start = int(starts[int(draw * len(starts))])
            end = start + int(length[start])
            spans.append((start, end))
            ends[:start] = np.minimum(ends[:start], start)
            ends[start:end] = 0
            budget -= int(tokens_to[end - 1] - tokens_from[start])
            if not budget:
                break
        if not spans:
            shortest = _choose_shortest_word(random, lengths)
            return [(shortest, shortest + 1)]
        return spans


def _choose_words(random: np.random.Generator, lengths: np.ndarray, budget: int) -> list[int]:
    """Returns words of `lengths [W]` tokens that fit into the budget, or one of the shortest if none fits."""
    chosen = []
    word_lengths = lengths.tolist()
    for word in random.permutation(len(word_lengths)).tolist():
        if word_lengths[word] <= budget:
            chosen.append(word)
            budget -= word_lengths[word]
            if not budget:
                break
    return chosen or [_choose_shortest_word(random, lengths)]


def _choose_shortest_word(random: np.random.Generator, lengths: np.ndarray) -> int:
    return int(random.choice(np.flatnonzero(lengths == lengths.min())))
