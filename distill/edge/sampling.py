"""The choice of the next tokens of a text: options of a generation, rules that forbid tokens, sampling and beams."""

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from distill.core.errors import UserError, check_text, shorten
from distill.edge.index import check_count

Floats = NDArray[np.floating]


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

    min_length: int = 0
    min_new_tokens: int = 0
    no_repeat_ngram_size: int = 0
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()

    def before_forced(self, tokens: Sequence[int], length: int, eos: Set[int]) -> set[int]:
        """Returns the tokens that may not follow, unless one is forced.

        Args:
            tokens: so far, those of the prompt too.
            length: tokens without those of the prompt.
            eos: tokens that end a text.
        """
        found = set(self._repeating(tokens)) | set(self._completing(tokens, eos))
        if len(tokens) < self.min_length or length < self.min_new_tokens:
            found |= eos
        return found

    def after_forced(self, length: int, *, is_begun: bool) -> set[int]:
        """Returns the tokens that may not follow in any case.

        Args:
            length: tokens without those of the prompt.
            is_begun: whether the first token is forced.
        """
        begins = length == int(is_begun)
        return {*self.suppress_tokens, *(self.begin_suppress_tokens if begins else ())}

    def _repeating(self, tokens: Sequence[int]) -> Iterable[int]:
        """Yields the tokens that would repeat a sequence."""
        size = self.no_repeat_ngram_size
        if not size or len(tokens) < size:
            return
        last = list(tokens[len(tokens) + 1 - size :])
        for begin in range(len(tokens) + 1 - size):
            if list(tokens[begin : begin + size - 1]) == last:
                yield tokens[begin + size - 1]

    def _completing(self, tokens: Sequence[int], eos: Set[int]) -> Iterable[int]:
        """Yields the tokens that would complete a sequence which may not occur."""
        for *before, token in self.bad_words_ids:
            if before:
                if list(tokens[-len(before) :]) == before:
                    yield token
            elif token not in eos:
                yield token


def forbid(scores: Floats, row: int, tokens: Set[int]) -> None:
    """Sets scores `[rows, V]` of a row to minus infinity; tokens beyond the vocabulary have none."""
    known = [token for token in tokens if token < scores.shape[1]]
    scores[row, known] = -np.inf


Side = Literal["left", "right"]
SIDES: tuple[Side, ...] = ("left", "right")
MOST_BEAMS = 64
MOST_TOKENS = 2**20
LARGEST_SEED = 2**63 - 1


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
        for name, most in (("max_new_tokens", MOST_TOKENS), ("top_k", MOST_TOKENS)):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), most=most)
        if self.beams is not None:
            check_count("beams", self.beams, most=MOST_BEAMS)
        if self.temperature is not None and not _is_positive(self.temperature):
            raise UserError(
                f"got temperature={shorten(self.temperature)}, expected a number above 0, or none for the most "
                "probable token each time"
            )
        if self.top_p is not None and not (_is_positive(self.top_p) and self.top_p <= 1):
            raise UserError(f"got top_p={shorten(self.top_p)}, expected a number above 0 and at most 1")
        if self.repetition_penalty is not None and not _is_positive(self.repetition_penalty):
            raise UserError(f"got repetition_penalty={shorten(self.repetition_penalty)}, expected a number above 0")
        if self.seed is not None:
            check_count("seed", self.seed, least=0, most=LARGEST_SEED)
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


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max


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


@dataclass(frozen=True)
class GenerationSettings:
    """The key `generation` of bundle.json.

    Args:
        eos: tokens that end a text; empty where only its length does.
        start: the first token of a decoder with an encoder; of a causal model the token before a text, None for none.
        max_new_tokens: tokens that a text has at most where a call gives no number.
        positions: tokens that the model can read; None for any number.
        forced_bos, forced_eos: as in `Endings`.
        length_penalty, early_stopping, renormalizes: of a beam search, as in `Endings`.
        beams, repetition_penalty: where a call gives none.
        rules: the tokens that a text may not have, whose names are keys of `generation` too.
    """

    eos: tuple[int, ...]
    start: int | None
    max_new_tokens: int
    positions: int | None
    forced_bos: int | None = None
    forced_eos: int | tuple[int, ...] | None = None
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    renormalizes: bool = False
    beams: int = 1
    repetition_penalty: float = 1.0
    rules: TokenRules = field(default_factory=TokenRules)

    @classmethod
    def read(cls, values: object) -> "GenerationSettings":
        """Returns the settings of bundle.json; raises UserError for a value that is missing or invalid."""
        if not isinstance(values, Mapping):
            raise UserError(f"generation is {shorten(values)}, expected the rules by which texts begin and end")
        for name, (is_valid, expected) in _VALUES.items():
            if not is_valid(values.get(name)):
                raise UserError(f"generation has {name} {shorten(values.get(name))}, expected {expected}")
        given = {name: _freeze(values[name]) for name in _VALUES if values.get(name) is not None}
        rules = TokenRules(**{rule.name: given.pop(rule.name) for rule in fields(TokenRules) if rule.name in given})
        return cls(**{"start": None, "positions": None} | given, rules=rules)

    def complete(self, options: GenerationOptions) -> GenerationOptions:
        """Returns the options of a call with the beams and the penalty of the bundle where it gives none."""
        beams = (self.beams if options.temperature is None else 1) if options.beams is None else options.beams
        given = options.repetition_penalty
        return replace(options, beams=beams, repetition_penalty=self.repetition_penalty if given is None else given)

    def endings(self, most: int) -> Endings:
        """Returns the rules by which a text of at most `most` tokens is written."""
        return Endings(
            frozenset(self.eos), most, forced_bos=self.forced_bos, forced_eos=self.forced_eos,
            length_penalty=self.length_penalty, early_stopping=self.early_stopping, rules=self.rules,
            renormalizes=self.renormalizes,
        )  # fmt: skip


def _freeze(value: Any) -> Any:
    """Returns a value of JSON with tuples for its lists."""
    return tuple(map(_freeze, value)) if isinstance(value, list) else value


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_count(value: object) -> bool:
    return _is_id(value) and value != 0


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_id, value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# Whether a value of `generation` in bundle.json is valid, None if it is missing, and the valid ones in words.
_VALUES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "eos": (_is_ids, "a list of tokens"),
    "start": (lambda value: value is None or _is_id(value), "a token or null"),
    "max_new_tokens": (_is_count, "a whole number of at least 1"),
    "positions": (lambda value: value is None or _is_count(value), "a whole number of at least 1, or null"),
    "forced_bos": (lambda value: value is None or _is_id(value), "a token or null"),
    "forced_eos": (lambda value: value is None or _is_id(value) or (_is_ids(value) and value), "a token or null"),
    "length_penalty": (lambda value: value is None or _is_number(value), "a number"),
    "early_stopping": (lambda value: value in (None, True, False, "never"), "true, false or never"),
    "renormalizes": (lambda value: value in (None, True, False), "true or false"),
    "beams": (lambda value: value is None or (_is_count(value) and value <= MOST_BEAMS), f"from 1 to {MOST_BEAMS}"),
    "repetition_penalty": (lambda value: value is None or (_is_number(value) and value > 0), "a number above 0"),
    **{
        name: (lambda value: value is None or _is_id(value), "a whole number of at least 0")
        for name in ("min_length", "min_new_tokens", "no_repeat_ngram_size")
    },
    "bad_words_ids": (
        lambda value: value is None or (isinstance(value, list) and all(of and _is_ids(of) for of in value)),
        "lists of tokens",
    ),
    **{
        name: (lambda value: value is None or _is_ids(value), "a list of tokens")
        for name in ("suppress_tokens", "begin_suppress_tokens")
    },
}
