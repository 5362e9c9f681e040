"""Chooses the next tokens of a text from logits: the most probable one, a sampled one, or those of a beam search."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from distill.edge.generation_options import GenerationOptions
from distill.edge.token_rules import Floats, TokenRules, forbid

EarlyStopping = bool | Literal["never"]
Following = tuple[list[int], list[int]]  # The rows that a step goes on from, and the next token of each.
FEW = 1024  # Tokens that mostly have the probability `top_p`, so that the others need not be sorted.


@dataclass(frozen=True)
class Endings:
    """The rules by which a model's texts end, of its generation configuration.

    Args:
        eos: tokens that end a text; none for a text that only its length ends.
        most: tokens of a text.
        forced_bos: the token that a text begins with, unless its prompt has several; None for any.
        forced_eos: the token that a text of `most` tokens ends with, or one of several; None for any.
        length_penalty: exponent of the length that divides the score of a beam.
        early_stopping: ends a beam search as soon as there are enough whole beams if True, and if no better one is
            probable if False; with `never` if none is possible.
        rules: tokens that may not occur.
        renormalizes: whether the log-probabilities of a beam search are those of the tokens that may occur.
    """

    eos: Set[int]
    most: int
    forced_bos: int | None = None
    forced_eos: int | Sequence[int] | None = None
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    rules: TokenRules = field(default_factory=TokenRules)
    renormalizes: bool = False


class TokenChoice(Protocol):
    """Chooses the tokens of one text, which takes one row or more of a batch."""

    tokens: list[int]  # The tokens of the text so far; of a beam search, once it has ended.

    @property
    def score(self) -> float | None:
        """The score of a beam search that has ended."""
        ...

    def advance(self, logits: Floats) -> Following | None:
        """Returns how the rows go on after logits `[rows, V]` of them; None if the text has ended."""
        ...


class OneToken:
    """Chooses one token after the other.

    Args:
        prompt: tokens of the same model before the text, which a penalty counts too.
        number: of the text among those of one seed, which are sampled independently.
    """

    score: None = None

    def __init__(self, prompt: Sequence[int], options: GenerationOptions, endings: Endings, number: int = 0) -> None:
        self.tokens: list[int] = []
        self.prompt, self.options, self.endings = list(prompt), options, endings
        self.random = np.random.default_rng(None if options.seed is None else [options.seed, number])

    def advance(self, logits: Floats) -> Following | None:
        scores = adjust(logits, [self.prompt + self.tokens], len(self.tokens), self.options, self.endings)[0]
        temperature = self.options.temperature
        token = int(scores.argmax()) if temperature is None else self._sample(scores, temperature)
        self.tokens.append(token)
        if token in self.endings.eos or len(self.tokens) == self.endings.most:
            return None
        return [0], [token]

    def _sample(self, logits: Floats, temperature: float) -> int:
        """Returns a token from logits `[V]`."""
        scaled = logits.astype(np.float64) / temperature
        weights = np.exp(scaled - scaled.max())
        tokens = find_likely(weights, top_k=self.options.top_k, top_p=self.options.top_p)
        sums = weights[tokens].cumsum()
        place = np.searchsorted(sums, self.random.random() * sums[-1], side="right")
        return int(tokens[min(int(place), len(tokens) - 1)])


class Beams:
    """Chooses the text of a beam search, with the scores and the end of `generate` of transformers 5.

    In each step the `(1 + eos) * beams` best continuations of all beams are compared. Those that end and are among the
    `beams` best are whole texts, the best `beams` others go on.
    """

    def __init__(self, prompt: Sequence[int], options: GenerationOptions, endings: Endings) -> None:
        self.tokens: list[int] = []
        self.score: float | None = None
        self.prompt, self.options, self.endings = list(prompt), options, endings
        self.beams = options.beams or 1
        self.running: list[list[int]] = [[]]
        self.scores = np.zeros(1, dtype=np.float32)  # Sums of log-probabilities of the running beams.
        self.whole: list[tuple[float, list[int]]] = []  # Their scores and tokens, the best one first.
        self.length = 0

    def advance(self, logits: Floats) -> Following | None:
        log_probs = log_softmax(logits.astype(np.float32))
        written = [self.prompt + beam for beam in self.running]
        log_probs = adjust(log_probs, written, self.length, self.options, self.endings)
        if self.endings.renormalizes:
            log_probs = log_softmax(log_probs)
        candidates = self._find_best(log_probs + self.scores[:, None])
        self.length += 1
        at_end = self.length == self.endings.most
        ends = [at_end or token in self.endings.eos for _, _, token in candidates]
        for (score, row, token), is_end in list(zip(candidates, ends, strict=True))[: self.beams]:
            if is_end:
                self.whole.append((score / self.length**self.endings.length_penalty, [*self.running[row], token]))
        self.whole = sorted(self.whole, key=lambda beam: -beam[0])[: self.beams]
        following = [candidate for candidate, is_end in zip(candidates, ends, strict=True) if not is_end][: self.beams]
        if not following or not self._can_improve(following[0][0]):
            self.score, self.tokens = self.whole[0]
            return None
        self.running = [[*self.running[row], token] for _, row, token in following]
        self.scores = np.array([score for score, _, _ in following], dtype=np.float32)
        return [row for _, row, _ in following], [token for _, _, token in following]

    def _find_best(self, scores: NDArray[np.float32]) -> list[tuple[float, int, int]]:
        """Returns score, row and token of the best continuations from scores `[rows, V]`, the best one first."""
        flat, size = scores.ravel(), max(2, 1 + len(self.endings.eos)) * self.beams
        return [(float(flat[place]), *divmod(int(place), scores.shape[1])) for place in _sort_largest(flat, size)]

    def _can_improve(self, best: float) -> bool:
        """Returns whether the search goes on, whose best running beam has this sum of log-probabilities."""
        if len(self.whole) < self.beams:
            return True
        if self.endings.early_stopping is True:
            return False
        is_longest = self.endings.early_stopping == "never" and self.endings.length_penalty > 0
        length = self.endings.most if is_longest else self.length
        score: float = best / length**self.endings.length_penalty
        return score > self.whole[-1][0]


def find_likely(weights: Floats, *, top_k: int | None, top_p: float | None) -> NDArray[np.integer]:
    """Returns the tokens that may be sampled, of weights `[V]`: all of them, or the most probable ones.

    Args:
        top_k, top_p: as in `GenerationOptions`; the probabilities of `top_p` are those among the `top_k` tokens.
    """
    if top_k is None and top_p is None:
        return np.arange(len(weights))
    likely = _sort_largest(weights, FEW if top_k is None else top_k)
    if top_p is None:
        return likely
    total = weights.sum() if top_k is None else weights[likely].sum()
    if top_k is None and weights[likely].sum() < top_p * total:
        likely = _sort_largest(weights, len(weights))
    before = weights[likely].cumsum() - weights[likely]
    return likely[: max(1, int((before < top_p * total).sum()))]


def _sort_largest(values: Floats, count: int) -> NDArray[np.integer]:
    """Returns the places of the `count` largest of values `[n]`, or of all, the largest one first."""
    count = min(count, len(values))
    places = np.argpartition(-values, count - 1)[:count]
    order: NDArray[np.integer] = places[np.argsort(-values[places], kind="stable")]
    return order


def adjust(
    scores: Floats, written: Sequence[Sequence[int]], length: int, options: GenerationOptions, endings: Endings
) -> Floats:
    """Returns logits or log-probabilities `[rows, V]` with a penalty, and without tokens that may not follow.

    The order is that of `generate` of transformers: the penalty of repeated tokens, tokens that may not follow, forced
    tokens, and those that may not follow in any case.

    Args:
        written: tokens of each row, those of the prompt too.
        length: tokens without those of the prompt.
    """
    adjusted, penalty = scores.copy(), options.repetition_penalty or 1.0
    bos = endings.forced_bos if len(written[0]) - length <= 1 else None  # A longer prompt has a beginning.
    forced: int | Sequence[int] | None = bos if length == 0 else None
    if length == endings.most - 1 and endings.forced_eos is not None:
        forced = endings.forced_eos
    after = endings.rules.after_forced(length, is_begun=bos is not None)
    for row, tokens in enumerate(written):
        if forced is not None:
            adjusted[row] = -np.inf
            adjusted[row, np.atleast_1d(forced)] = 0
        else:
            seen = list(set(tokens)) if penalty != 1 else []
            adjusted[row, seen] = np.where(
                adjusted[row, seen] < 0, adjusted[row, seen] * penalty, adjusted[row, seen] / penalty
            )
            forbid(adjusted, row, endings.rules.before_forced(tokens, length, endings.eos))
        forbid(adjusted, row, after)
    return adjusted


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns log-probabilities `[rows, V]`."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: NDArray[np.float32] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result
