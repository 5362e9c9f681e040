"""The choice of the next tokens of a text: options of a generation, rules that forbid tokens, sampling and beams."""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from distill.core.errors import UserError, check_text, shorten
from distill.edge.values import (
    SIZE,
    TOKENS,
    are_counts,
    check_count,
    check_values,
    is_count,
    is_number,
    is_size,
    null_or,
)

Floats = NDArray[np.floating]


MOST_BEAMS = 64


_COUNT = {"rule": null_or(is_count, "a whole number of at least 0")}
_TOKEN = {"rule": null_or(is_count, "a token or null")}
_TOKENS = {"rule": null_or(are_counts, "a list of tokens")}
_WORDS = {
    "rule": null_or(
        lambda value: isinstance(value, list) and all(of and are_counts(of) for of in value), "lists of tokens"
    )
}
_ENDS = {"rule": null_or(lambda value: is_count(value) or (value and are_counts(value)), "a token or null")}
_EARLY = {"rule": null_or(lambda value: value in (True, False, "never"), "true, false or never")}
_FLAG = {"rule": null_or(lambda value: value in (True, False), "true or false")}
_NUMBER = {"rule": null_or(is_number, "a number")}
_POSITIONS = {"rule": null_or(is_size, "a whole number of at least 1, or null")}
_BEAMS = {"rule": null_or(lambda value: is_size(value) and value <= MOST_BEAMS, f"from 1 to {MOST_BEAMS}")}
_PENALTY = {"rule": null_or(lambda value: is_number(value) and value > 0, "a number above 0")}


@dataclass(frozen=True)
class TokenRules:
    """The tokens that a text may not have, of a model's generation configuration.

    Args:
        min_length: tokens before the end of a text at least, those of the prompt too, or the start of a decoder.
        min_new_tokens: tokens before its end at least, without those.
        no_repeat_ngram_size: number of tokens that do not occur twice in the same order; 0 for any.
        bad_words_ids: sequences of tokens that do not occur. The end of a text alone stays possible.
        suppress_tokens: tokens that do not occur.
        begin_suppress_tokens: tokens that no text begins with, behind a forced one.
    """

    min_length: int = field(default=0, metadata=_COUNT)
    min_new_tokens: int = field(default=0, metadata=_COUNT)
    no_repeat_ngram_size: int = field(default=0, metadata=_COUNT)
    bad_words_ids: tuple[tuple[int, ...], ...] = field(default=(), metadata=_WORDS)
    suppress_tokens: tuple[int, ...] = field(default=(), metadata=_TOKENS)
    begin_suppress_tokens: tuple[int, ...] = field(default=(), metadata=_TOKENS)

    def before_forced(self, tokens: Sequence[int], length: int, eos: Collection[int]) -> Iterator[int]:
        """Yields the tokens that may not follow, unless one is forced.

        Args:
            tokens: so far, those of the prompt too.
            length: tokens without those of the prompt.
            eos: tokens that end a text.
        """
        size = self.no_repeat_ngram_size
        for begin in range(len(tokens) + 1 - size) if size else ():
            *before, token = tokens[begin : begin + size]
            if before == list(tokens[len(tokens) + 1 - size :]):
                yield token
        for *before, token in self.bad_words_ids:
            if list(tokens[-len(before) :]) == before if before else token not in eos:
                yield token
        if len(tokens) < self.min_length or length < self.min_new_tokens:
            yield from eos

    def after_forced(self, length: int, *, is_begun: bool) -> set[int]:
        """Returns the tokens that may not follow in any case.

        Args:
            length: tokens without those of the prompt.
            is_begun: whether the first token is forced.
        """
        begins = length == int(is_begun)
        return {*self.suppress_tokens, *(self.begin_suppress_tokens if begins else ())}


def forbid(scores: Floats, row: int, tokens: Iterable[int]) -> None:
    """Sets scores `[rows, V]` of a row to minus infinity; tokens beyond the vocabulary have none."""
    known = [token for token in tokens if token < scores.shape[1]]
    scores[row, known] = -np.inf


Side = Literal["left", "right"]
SIDES: tuple[Side, ...] = ("left", "right")
# Options with their least and largest values.
_COUNTS = (
    ("max_new_tokens", 1, 2**20), ("top_k", 1, 2**20), ("beams", 1, MOST_BEAMS), ("seed", 0, 2**63 - 1),
)  # fmt: skip
# Options above 0 with their largest values, and the valid ones in words.
_POSITIVE = (
    ("temperature", math.inf, "a number above 0, or none for the most probable token each time"),
    ("top_p", 1, "a number above 0 and at most 1"),
    ("repetition_penalty", math.inf, "a number above 0"),
)


@dataclass(frozen=True)
class GenerationOptions:
    """The options of a generation.

    Args:
        max_new_tokens: tokens to write at most; None for the number of the bundle.
        temperature: divides the logits of sampled tokens; None takes the most probable token each time.
        top_k: samples from the `top_k` most probable tokens alone; None for any number.
        top_p: samples from the fewest most probable tokens whose probabilities sum to `top_p` or more (arXiv
            1904.09751); None for all.
        seed: repeats the sampled tokens; None for others each time.
        beams: sequences that a beam search keeps, 1 for none; None for the number of the bundle, or 1 for a text that
            is sampled.
        stop: texts at which the generation ends. They are no part of its text. A beam search goes on behind them, and
            its text is cut there.
        repetition_penalty: divides positive logits of the tokens so far and multiplies negative ones (arXiv 1909.05858,
            equation 2); None for that of the bundle.
        truncate: the end at which a prompt with more tokens than the model has positions is cut; None refuses it.

    Raises:
        UserError: for a value out of range, and for options that exclude each other.
    """

    max_new_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    beams: int | None = None
    stop: Sequence[str] = ()
    repetition_penalty: float | None = None
    truncate: Side | None = None

    def __post_init__(self) -> None:
        for name, most, expected in _POSITIVE:
            value = getattr(self, name)
            if value is not None and not (is_number(value) and 0 < value <= most):
                raise UserError(f"got {name}={shorten(value)}, expected {expected}")
        for name, least, most in _COUNTS:
            if (value := getattr(self, name)) is not None:
                check_count(name, value, least=least, most=most)
        if self.truncate not in (None, *SIDES):
            raise UserError(f"got truncate={shorten(self.truncate)}, expected {' or '.join(SIDES)}, or none to refuse")
        object.__setattr__(self, "stop", _read_stops(self.stop))
        self._check_together()

    def _check_together(self) -> None:
        """Raises UserError for an option that another one leaves without an effect."""
        if self.temperature is None:
            for name in ("top_k", "top_p", "seed"):
                if (value := getattr(self, name)) is not None:
                    raise UserError(
                        f"got {name}={value} without a temperature, by which tokens are sampled: give temperature=1 "
                        "too, or leave it out"
                    )
        elif (self.beams or 1) > 1:
            raise UserError(f"got beams={self.beams} and temperature={self.temperature}, expected one of the two")


def _read_stops(stop: object) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stops, list | tuple) or not all(isinstance(text, str) and text for text in stops):
        raise UserError(f"got stop={shorten(stop)}, expected texts that are not empty")
    return tuple(map(check_text, stops))


EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True)
class GenerationSettings:
    """The rules by which a model's texts begin and end: the key `generation` of bundle.json.

    Args:
        eos: tokens that end a text; empty where only its length does.
        start: the first token of a decoder with an encoder; of a causal model the token before a text, None for none.
        max_new_tokens: tokens that a text has at most; of a bundle, where a call gives no number.
        positions: tokens that the model can read; None for any number.
        forced_bos: the token that a text begins with, unless its prompt has several; None for any.
        forced_eos: the token that a text of `max_new_tokens` ends with, or one of several; None for any.
        length_penalty: exponent of the length that divides the score of a beam.
        early_stopping: ends a beam search as soon as there are enough whole beams if True, and if no better one is
            probable if False; with `never` if none is possible.
        renormalizes: whether the log-probabilities of a beam search are those of the tokens that may occur.
        beams, repetition_penalty: where a call gives none.
        rules: the tokens that a text may not have, whose names are keys of `generation` too.
    """

    eos: tuple[int, ...] = field(metadata={"rule": TOKENS})
    start: int | None = field(metadata=_TOKEN)
    max_new_tokens: int = field(metadata={"rule": SIZE})
    positions: int | None = field(metadata=_POSITIONS)
    forced_bos: int | None = field(default=None, metadata=_TOKEN)
    forced_eos: int | tuple[int, ...] | None = field(default=None, metadata=_ENDS)
    length_penalty: float = field(default=1.0, metadata=_NUMBER)
    early_stopping: EarlyStopping = field(default=False, metadata=_EARLY)
    renormalizes: bool = field(default=False, metadata=_FLAG)
    beams: int = field(default=1, metadata=_BEAMS)
    repetition_penalty: float = field(default=1.0, metadata=_PENALTY)
    rules: TokenRules = field(default_factory=TokenRules)

    @classmethod
    def read(cls, values: object) -> "GenerationSettings":
        """Returns the settings of bundle.json; raises UserError for a value that is missing or invalid."""
        if not isinstance(values, Mapping):
            raise UserError(f"generation is {shorten(values)}, expected the rules by which texts begin and end")
        own, of_rules = (_read_fields(kind, values) for kind in (cls, TokenRules))
        return cls(**{"start": None, "positions": None} | own, rules=TokenRules(**of_rules))

    def complete(self, options: GenerationOptions) -> GenerationOptions:
        """Returns the options of a call with the beams and the penalty of the bundle where it gives none."""
        beams = (self.beams if options.temperature is None else 1) if options.beams is None else options.beams
        given = options.repetition_penalty
        return replace(options, beams=beams, repetition_penalty=self.repetition_penalty if given is None else given)


def _read_fields(kind: type[GenerationSettings | TokenRules], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a class that bundle.json has; raises UserError for one that is missing or invalid."""
    rules = {each.name: each.metadata["rule"] for each in fields(kind) if each.metadata}
    check_values("generation", values, rules)
    return {name: _freeze(values[name]) for name in rules if values.get(name) is not None}


def _freeze(value: object) -> Any:
    """Returns a value of JSON with tuples for its lists."""
    return tuple(map(_freeze, value)) if isinstance(value, list) else value


Following = tuple[list[int], list[int]]  # The rows that a step goes on from, and the next token of each.
FEW = 1024  # Tokens that mostly have the probability `top_p`, so that the others need not be sorted.


@dataclass
class TokenChoice(ABC):
    """Chooses the tokens of one text, which takes one row or more of a batch.

    Args:
        prompt: tokens of the same model before the text, which a penalty counts too.
        options: with the beams and the penalty of the bundle.
        settings: of the bundle, with the number of tokens that the text has at most.

    Attributes:
        tokens: of the text so far; of a beam search, once it has ended.
        score: of a beam search that has ended.
    """

    prompt: Sequence[int]
    options: GenerationOptions
    settings: GenerationSettings
    tokens: list[int] = field(default_factory=list, init=False)
    score: float | None = field(default=None, init=False)

    @abstractmethod
    def advance(self, logits: Floats) -> Following | None:
        """Returns how the rows go on after logits `[rows, V]` of them; None if the text has ended."""

    def adjust(self, scores: Floats, rows: Sequence[Sequence[int]]) -> Floats:
        """Returns logits or log-probabilities `[rows, V]` with a penalty, and without tokens that may not follow.

        The order is that of `generate` of transformers: the penalty of repeated tokens, tokens that may not follow,
        forced tokens, and those that may not follow in any case.

        Args:
            rows: tokens of each row so far.
        """
        settings, rules, length = self.settings, self.settings.rules, len(rows[0])
        adjusted, penalty = scores.copy(), self.options.repetition_penalty or 1.0
        bos = settings.forced_bos if len(self.prompt) <= 1 else None  # A longer prompt has a beginning.
        forced: int | Sequence[int] | None = bos if length == 0 else None
        if length == settings.max_new_tokens - 1 and settings.forced_eos is not None:
            forced = settings.forced_eos
        after = rules.after_forced(length, is_begun=bos is not None)
        for row, own in enumerate(rows):
            tokens = [*self.prompt, *own]
            if forced is not None:
                adjusted[row] = -np.inf
                adjusted[row, np.atleast_1d(forced)] = 0
            else:
                seen = list(set(tokens)) if penalty != 1 else []
                of_seen = adjusted[row, seen]
                adjusted[row, seen] = np.where(of_seen < 0, of_seen * penalty, of_seen / penalty)
                forbid(adjusted, row, rules.before_forced(tokens, length, settings.eos))
            forbid(adjusted, row, after)
        return adjusted


@dataclass
class OneToken(TokenChoice):
    """Chooses one token after the other.

    Args:
        number: of the text among those of one seed, which are sampled independently.
    """

    number: int = 0

    def __post_init__(self) -> None:
        seed = self.options.seed
        self.random = np.random.default_rng(None if seed is None else [seed, self.number])

    def advance(self, logits: Floats) -> Following | None:
        [scores] = self.adjust(logits, [self.tokens])
        temperature = self.options.temperature
        token = int(scores.argmax()) if temperature is None else self._sample(scores, temperature)
        self.tokens.append(token)
        if token in self.settings.eos or len(self.tokens) == self.settings.max_new_tokens:
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


@dataclass
class Beams(TokenChoice):
    """Chooses the text of a beam search, with the scores and the end of `generate` of transformers 5.

    In each step the `(1 + eos) * beams` best continuations of all beams are compared. Those that end and are among the
    `beams` best are whole texts, the best `beams` others go on.
    """

    def __post_init__(self) -> None:
        self.beams = self.options.beams or 1
        self.running: list[list[int]] = [[]]
        self.scores = np.zeros(1, dtype=np.float32)  # Sums of log-probabilities of the running beams.
        self.whole: list[tuple[float, list[int]]] = []  # Their scores and tokens, the best one first.

    def advance(self, logits: Floats) -> Following | None:
        log_probs = self.adjust(log_softmax(logits.astype(np.float32)), self.running)
        if self.settings.renormalizes:
            log_probs = log_softmax(log_probs)
        length = len(self.running[0]) + 1
        at_end = length == self.settings.max_new_tokens
        following = []
        for place, (score, row, token) in enumerate(self._find_best(log_probs + self.scores[:, None])):
            tokens = [*self.running[row], token]
            if not at_end and token not in self.settings.eos:
                following.append((score, row, tokens))
            elif place < self.beams:
                self.whole.append((score / length**self.settings.length_penalty, tokens))
        self.whole = sorted(self.whole, key=lambda beam: -beam[0])[: self.beams]
        following = following[: self.beams]
        if not following or not self._can_improve(following[0][0], length):
            self.score, self.tokens = self.whole[0]
            return None
        self.running = [tokens for _, _, tokens in following]
        self.scores = np.array([score for score, _, _ in following], dtype=np.float32)
        return [row for _, row, _ in following], [tokens[-1] for tokens in self.running]

    def _find_best(self, scores: NDArray[np.float32]) -> list[tuple[float, int, int]]:
        """Returns score, row and token of the best continuations from scores `[rows, V]`, the best one first."""
        flat, size = scores.ravel(), max(2, 1 + len(set(self.settings.eos))) * self.beams
        return [(float(flat[place]), *divmod(int(place), scores.shape[1])) for place in _sort_largest(flat, size)]

    def _can_improve(self, best: float, length: int) -> bool:
        """Returns whether the search goes on, whose best running beam has this sum of log-probabilities."""
        settings = self.settings
        if len(self.whole) < self.beams:
            return True
        if settings.early_stopping is True:
            return False
        is_longest = settings.early_stopping == "never" and settings.length_penalty > 0
        score: float = best / (settings.max_new_tokens if is_longest else length) ** settings.length_penalty
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


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns log-probabilities `[rows, V]`."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: NDArray[np.float32] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result
