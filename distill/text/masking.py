"""Which tokens are to be predicted, and what stands in their place?

The shares are those of BERT (Devlin et al., arXiv 1810.04805, section 3.1): 15% of the tokens are chosen; of these
80% become [MASK], 10% a random token, and 10% stay. Unlike there, special tokens are neither counted nor drawn.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from distill.errors import UserError

UNITS = ("token", "whole_word", "span")
IGNORED = -100  # As in `distill.losses`, which needs torch.


@dataclass(frozen=True)
class Masking:
    """How tokens are chosen and replaced: plain values, as the YAML has them.

    Args:
        probability: share of the ordinary tokens that are chosen.
        unit: what is chosen as a whole: a token, a word, or a span of words.
        replace: shares of the chosen that become [MASK], become a random token, and stay.
        span_p: of the geometric distribution of a span's length in words (SpanBERT, arXiv 1907.10529, section 3.1).
        span_longest: words of the longest span; the distribution is cut off there and made to sum to 1 again.
    """

    probability: float = 0.15
    unit: str = "token"
    replace: tuple[float, float, float] = (0.8, 0.1, 0.1)
    span_p: float = 0.2
    span_longest: int = 10

    def __post_init__(self) -> None:
        if not 0 < self.probability < 1:
            raise ValueError(f"got probability {self.probability}, expected a share between 0 and 1")
        if self.unit not in UNITS:
            raise ValueError(f"got unit {self.unit}, expected one of {', '.join(UNITS)}")
        if len(self.replace) != 3 or min(self.replace) < 0 or not abs(sum(self.replace) - 1) <= 1e-6:
            raise ValueError(
                f"got replace {list(self.replace)}, expected three shares that sum to 1: "
                "of [MASK], of random tokens, and of tokens that stay"
            )
        if not 0 < self.span_p <= 1:
            raise ValueError(f"got span_p {self.span_p}, expected a number above 0 and at most 1")
        if self.span_longest < 1 or self.span_longest != int(self.span_longest):
            raise ValueError(f"got span_longest {self.span_longest}, expected a whole number of at least 1")


def check_span(masking: Masking, max_length: int) -> None:
    """Refuse spans that no sequence has room for; two of its `max_length` tokens are special.

    A span beyond the budget is shortened, and no reason to refuse.
    """
    room = max(0, max_length - 2)
    if masking.unit == "span" and masking.span_longest > room:
        raise UserError(
            f"task.mask.span_longest={masking.span_longest}, but a sequence of task.max_length={max_length} tokens "
            f"has at most {room} beside its special tokens: lower the one or raise the other"
        )


class Masker:
    """Masks one sequence at a time; what comes out depends on `seed`, `example` and `visit` alone.

    Of `n` ordinary tokens `probability * n` are chosen, rounded half up, but at least one:

    `token`: exactly so many, all tokens alike.
    `whole_word`: words in random order, leaving out those that are longer than what is left of the budget.
    `span`: lengths are drawn one after the other, each put where so many words are free in a row, all such places
    alike. Unlike in SpanBERT (arXiv 1907.10529, section 3.1) spans never overlap, though they may touch; the budget
    cuts one off between words, never within; and neither a word nor a span goes on behind a special token.

    Where the budget is too small for any word, one of the shortest is chosen all the same.
    """

    def __init__(
        self, masking: Masking, *, mask_id: int, special_ids: Collection[int], vocabulary_size: int, seed: int
    ) -> None:
        outside = sorted(token for token in special_ids if not 0 <= token < vocabulary_size)
        if outside:
            raise ValueError(f"got special_ids {outside}, expected them within a vocabulary of {vocabulary_size}")
        if mask_id not in special_ids:
            raise ValueError(f"got mask_id {mask_id}, expected one of the special_ids {sorted(special_ids)}")
        if seed < 0:
            raise ValueError(f"got seed {seed}, expected 0 or more")
        self.masking, self.mask_id, self.seed = masking, mask_id, seed
        self._special = np.zeros(vocabulary_size, dtype=bool)
        self._special[list(special_ids)] = True
        self._drawn = np.flatnonzero(~self._special)
        if not len(self._drawn):
            raise ValueError(f"got {vocabulary_size} special_ids, expected some of the vocabulary to be ordinary")
        share = np.cumsum((1 - masking.span_p) ** np.arange(masking.span_longest))
        self._length_at_most = share / share[-1]

    def __call__(
        self, ids: np.ndarray, continues: np.ndarray, *, example: int, visit: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and labels `[n]` of one sequence without padding; labels are the original ids, -100 where not chosen.

        `continues [n]` (bool): the token goes on with the word of the token before it.
        """
        if ids.ndim != 1 or ids.shape != continues.shape:
            raise ValueError(f"got ids {list(ids.shape)} and continues {list(continues.shape)}, expected both [n]")
        try:
            ordinary = np.flatnonzero(~self._special[ids])
        except IndexError:
            raise ValueError(f"got token {ids.max()}, expected a vocabulary of {len(self._special)}") from None
        inputs, labels = ids.copy(), np.full(len(ids), IGNORED)
        if len(ordinary):
            random = np.random.default_rng([self.seed, example, visit])
            chosen, draws = self._choose(random, ordinary, continues)
            labels[chosen] = ids[chosen]
            masked, drawn, _ = self.masking.replace
            inputs[chosen[draws < masked]] = self.mask_id
            places = chosen[(draws >= masked) & (draws < masked + drawn)]
            inputs[places] = self._drawn[random.integers(len(self._drawn), size=len(places))]
        return inputs, labels

    def _choose(
        self, random: np.random.Generator, ordinary: np.ndarray, continues: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Places of the chosen tokens, and for each a number in [0, 1) that decides what stands there."""
        # 0.145 * 100 is 14.499999999999998, which has to become 15.
        budget = max(1, math.floor(round(self.masking.probability * len(ordinary), 9) + 0.5))
        if self.masking.unit == "token":
            return random.permutation(ordinary)[:budget], random.random(budget)
        after_gap = np.diff(ordinary, prepend=-2) > 1
        first = np.flatnonzero(after_gap | np.logical_not(continues[ordinary]))  # [W]
        lengths = np.diff(first, append=len(ordinary))
        if self.masking.unit == "whole_word":
            picked = np.zeros(len(lengths), dtype=bool)
            picked[_whole_words(random, lengths, budget)] = True
            chosen = ordinary[np.repeat(picked, lengths)]
            return chosen, random.random(len(chosen))
        segment = np.cumsum(after_gap[first])
        spans = self._spans(random, lengths, np.searchsorted(segment, segment, side="right"), budget)
        span_of_word = np.full(len(lengths), -1)
        for number, (start, end) in enumerate(spans):
            span_of_word[start:end] = number
        span_of_token = np.repeat(span_of_word, lengths)
        inside = span_of_token >= 0
        return ordinary[inside], random.random(len(spans))[span_of_token[inside]]

    def _spans(
        self, random: np.random.Generator, lengths: np.ndarray, ends: np.ndarray, budget: int
    ) -> list[tuple[int, int]]:
        """First word of each span, and the word behind it.

        `lengths [W]` in tokens; `ends [W]` is the word behind the last that a span from each word on may reach, which
        is written over. Each span takes a token at least, so that there are at most `budget` of them.
        """
        words = np.arange(len(lengths))
        tokens_to = np.cumsum(lengths)
        tokens_from = tokens_to - lengths
        total = int(tokens_to[-1])
        drawn = 1 + np.searchsorted(self._length_at_most, random.random(budget), side="right")
        spans: list[tuple[int, int]] = []
        for longest, place in zip(drawn.tolist(), random.random(budget).tolist(), strict=True):
            free = ends - words
            fitting = np.searchsorted(tokens_to, tokens_from + budget, side="right") - words
            # The end of the sequence is no end of the budget: as if words of the mean length went on behind it.
            fitting += np.maximum(tokens_from + (budget - total), 0) * len(words) // total
            longest = min(longest, int(np.minimum(free, fitting).max()))
            if longest < 1:
                break
            # Shortened before it gets its place: the other way round, first words would be chosen too often.
            length = np.minimum(fitting, longest)
            starts = np.flatnonzero((length > 0) & (length <= free))
            start = int(starts[int(place * len(starts))])
            end = start + int(length[start])
            spans.append((start, end))
            ends[:start] = np.minimum(ends[:start], start)
            ends[start:end] = 0
            budget -= int(tokens_to[end - 1] - tokens_from[start])
            if not budget:
                break
        if not spans:
            shortest = _one_of_the_shortest(random, lengths)
            return [(shortest, shortest + 1)]
        return spans


def _whole_words(random: np.random.Generator, lengths: np.ndarray, budget: int) -> list[int]:
    """Words of `lengths [W]` tokens that stay within the budget, or else one."""
    chosen = []
    of_word = lengths.tolist()
    for word in random.permutation(len(of_word)).tolist():
        if of_word[word] <= budget:
            chosen.append(word)
            budget -= of_word[word]
            if not budget:
                break
    return chosen or [_one_of_the_shortest(random, lengths)]


def _one_of_the_shortest(random: np.random.Generator, lengths: np.ndarray) -> int:
    return int(random.choice(np.flatnonzero(lengths == lengths.min())))
