"""Writes text with an exported model: several texts at once, step by step, with numpy alone.

    generator = Bundle("path/to/bundle").generator()
    first, second = generator.start(["Once upon", "It was"], GenerationOptions(max_new_tokens=20))
    while generator.running:
        generator.step()
        print(first.read(), end="")

Other texts may start between two steps, and any may be dropped.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from distill.edge.cached_rows import CachedModel, CachedRows
from distill.edge.generation_options import GenerationOptions
from distill.edge.strings import check_text, shorten
from distill.edge.token_choice import Beams, EarlyStopping, Endings, Following, OneToken, TokenChoice
from distill.edge.token_text import TokenText
from distill.edge.truncation import Truncation
from distill.errors import UserError

Finish = Literal["stop", "length", "eos"]


@dataclass(frozen=True)
class GenerationSettings:
    """The key `generation` of bundle.json.

    Args:
        eos: tokens that end a text; empty where only its length does.
        start: the first token of a decoder with an encoder; of a causal model the token before a text, None for none.
        max_new_tokens: tokens that a text has at most where a call gives no number.
        positions: tokens that the model can read; None for any number.
        forced_bos, forced_eos: as in `Endings`.
        length_penalty, early_stopping: of a beam search, as in `Endings`.
    """

    eos: tuple[int, ...]
    start: int | None
    max_new_tokens: int
    positions: int | None
    forced_bos: int | None = None
    forced_eos: int | None = None
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "GenerationSettings":
        """Returns the settings of bundle.json; raises UserError for a value that is missing or invalid."""
        for name, (is_valid, expected) in _VALUES.items():
            if not is_valid(values.get(name)):
                raise UserError(f"generation has {name} {shorten(values.get(name))}, expected {expected}")
        given = {name: values[name] for name in _VALUES if values.get(name) is not None and name != "eos"}
        return cls(**{"start": None, "positions": None, "eos": tuple(values["eos"])} | given)


class Writing:
    """A text that is being written.

    `tokens` are its ids, `finish` is how it ended (`stop` at a stop string, `eos` at an end token, `length` at the last
    token that it may have) and None before, and `score` is that of a beam search, once it has ended.
    """

    def __init__(self, choice: TokenChoice, text: TokenText, endings: Endings) -> None:
        self._choice, self._text, self._endings = choice, text, endings
        self._shown = 0  # Tokens that are part of the text.
        self.finish: Finish | None = None

    @property
    def tokens(self) -> list[int]:
        """The ids, with the end token; of a beam search, once it has ended."""
        return self._choice.tokens

    @property
    def score(self) -> float | None:
        """The sum of log-probabilities of a beam search, divided by the length as its penalty has it."""
        return self._choice.score

    @property
    def text(self) -> str:
        """The text so far."""
        return self._text.text

    def read(self) -> str:
        """Returns the text since the last call: whole characters, and none that a stop string may begin with."""
        return self._text.read()

    def _advance(self, logits: NDArray[np.floating]) -> Following | None:
        """Chooses the next tokens by the logits `[rows, V]`; returns None if the text has ended."""
        following = self._choice.advance(logits)
        for token in self.tokens[self._shown :]:
            if token in self._endings.eos:
                self.finish = "eos"
                break
            self._text.add(token)
            if self._text.is_stopped:
                self.finish = "stop"
                break
        self._shown = len(self.tokens)
        if following is None and self.finish is None:
            self.finish = "length"
        if self.finish is None:
            return following
        self._text.end()
        return None


@dataclass
class _Batch:
    """Texts whose rows are read together; the rows of a text follow those of the text before it."""

    rows: CachedRows
    writings: list[Writing] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)  # The next token of each row of a text.


class Generator:
    """Writes several texts together, one token of each in a step.

    Args:
        model: reads tokens.
        tokenizer: neither pads nor truncates.
        settings: of the bundle.
    """

    def __init__(self, model: CachedModel, tokenizer: Tokenizer, settings: GenerationSettings) -> None:
        self.model, self.tokenizer, self.settings = model, tokenizer, settings
        self.size: int = tokenizer.get_vocab_size()
        self._batches: list[_Batch] = []

    @property
    def running(self) -> list[Writing]:
        """The texts that have not ended."""
        return [writing for batch in self._batches for writing in batch.writings]

    def start(
        self, prompts: Sequence[str], options: GenerationOptions, *, numbers: Sequence[int] | None = None
    ) -> list[Writing]:
        """Starts a text for each prompt, or source of a model with an encoder, and chooses its first token.

        The prompts are read together, apart from the texts that are running. Of one seed, the texts of a call are
        sampled independently of each other and of those that run beside them.

        Args:
            numbers: of the texts among those of one seed; None counts those of the call from 0.

        Raises:
            UserError: for a prompt that is empty, or too long, unless `options.truncate` has it cut. No text is
                started then.
        """
        numbers = range(len(prompts)) if numbers is None else numbers
        tokens = [self._tokenize(prompt, options) for prompt in prompts]
        writings = [self._create(ids, options, number) for ids, number in zip(tokens, numbers, strict=True)]
        if not writings:
            return []
        joins = self._batches and self.model.joins
        batch = self._batches[0] if joins else _Batch(CachedRows(self.model))
        kept = list(range(len(batch.rows)))
        logits = batch.rows.append(tokens)
        self._batches = self._batches if joins else [*self._batches, batch]
        self._go_on(batch, kept, [(writing, 1) for writing in writings], logits)
        return writings

    def step(self) -> None:
        """Reads the last token of every running text and chooses the next one. Texts that end are left out then."""
        for batch in self._batches:
            logits = batch.rows.step([token for own in batch.tokens for token in own])
            running = [(writing, len(own)) for writing, own in zip(batch.writings, batch.tokens, strict=True)]
            batch.writings, batch.tokens = [], []
            self._go_on(batch, [], running, logits)
        self._leave_out_empty()

    def drop(self, writing: Writing) -> None:
        """Ends a running text before its time; does nothing for one that has ended."""
        for batch in self._batches:
            owners = [other for other, own in zip(batch.writings, batch.tokens, strict=True) for _ in own]
            if writing in owners:
                place = batch.writings.index(writing)
                del batch.writings[place], batch.tokens[place]
                batch.rows.select([row for row, other in enumerate(owners) if other is not writing])
        self._leave_out_empty()

    def _go_on(
        self, batch: _Batch, kept: list[int], writings: Sequence[tuple[Writing, int]], logits: NDArray[np.floating]
    ) -> None:
        """Chooses the next tokens of texts, each with its number of rows, and takes the rows of those that go on.

        Args:
            kept: rows before those of the texts.
            logits: `[rows, V]` of the rows of the texts.
        """
        rows, begin = list(kept), 0
        for writing, count in writings:
            # A model may have more rows than there are tokens, such as a multiple of 64.
            following = writing._advance(logits[begin : begin + count, : self.size])
            if following is not None:
                sources, tokens = following
                rows += [len(kept) + begin + source for source in sources]
                batch.writings.append(writing)
                batch.tokens.append(tokens)
            begin += count
        batch.rows.select(rows)
        self._leave_out_empty()

    def _leave_out_empty(self) -> None:
        self._batches = [batch for batch in self._batches if batch.writings]

    def _create(self, tokens: Sequence[int], options: GenerationOptions, number: int) -> Writing:
        """Returns the text that begins after the tokens of a prompt, or of a source."""
        settings = self.settings
        has_encoder = self.model.encoder is not None
        before: Sequence[int] = [int(self.model.start or 0)] if has_encoder else tokens
        most = settings.max_new_tokens if options.max_new_tokens is None else options.max_new_tokens
        if settings.positions is not None:  # The last token is not read.
            most = min(most, settings.positions - len(before) + 1)
        endings = Endings(
            frozenset(settings.eos), most, forced_bos=settings.forced_bos, forced_eos=settings.forced_eos,
            length_penalty=settings.length_penalty, early_stopping=settings.early_stopping,
        )  # fmt: skip
        choice: TokenChoice = (
            Beams(before, options, endings) if options.beams > 1 else OneToken(before, options, endings, number)
        )
        return Writing(choice, TokenText(self.tokenizer, [] if has_encoder else tokens, options.stop), endings)

    def _tokenize(self, prompt: object, options: GenerationOptions) -> list[int]:
        """Returns the tokens of a prompt or a source."""
        if not isinstance(prompt, str):
            raise UserError(f"got {shorten(prompt)}, expected a text")
        encoding = self.tokenizer.encode(check_text(prompt))
        ids, special = encoding.ids, encoding.special_tokens_mask
        is_empty = all(special)
        if self.model.encoder is not None:
            if is_empty:
                raise UserError(f"got {shorten(prompt)}, expected a source with text")
            return self._cut_source(prompt, ids, options)
        own = [token for token, is_added in zip(ids, special, strict=True) if not is_added]
        starts_so = bool(ids) and special[0] == 1 and ids[0] == self.settings.start
        first = [ids[0]] if starts_so else []
        if is_empty:
            first = [token for token in (self.settings.start, *self.settings.eos) if token is not None][:1]
            if not first:
                raise UserError(
                    f"got {shorten(prompt)} as a prompt, and the model has no token that begins a text: give it a text"
                )
        return first + self._cut_prompt(prompt, own, len(first), options)

    def _cut_prompt(self, prompt: str, tokens: list[int], before: int, options: GenerationOptions) -> list[int]:
        """Returns the tokens of a prompt of a causal model, of which there are `before` more.

        A prompt that is cut has at least half of the positions, and otherwise leaves those of all new tokens.
        """
        positions = self.settings.positions
        if positions is None or len(tokens) + before <= positions:
            return tokens
        if options.truncate is None:
            raise self._too_long(prompt, len(tokens) + before)
        most = self.settings.max_new_tokens if options.max_new_tokens is None else options.max_new_tokens
        size = max(positions - most + 1, positions // 2, before + 1) - before
        return tokens[-size:] if options.truncate == "left" else tokens[:size]

    def _cut_source(self, source: str, tokens: list[int], options: GenerationOptions) -> list[int]:
        """Returns the tokens of a source, whose special ones stay if it is cut."""
        positions = self.settings.positions
        if positions is None or len(tokens) <= positions:
            return tokens
        if options.truncate is None:
            raise self._too_long(source, len(tokens))
        truncation = Truncation(self.tokenizer, max_length=positions, side=options.truncate)
        [(encoding, _)] = truncation.encode([source])
        return list(encoding.ids)

    def _too_long(self, text: str, tokens: int) -> UserError:
        return UserError(
            f"got {shorten(text)} of {tokens:,} tokens, and the model has {self.settings.positions:,} positions: "
            "shorten it, or give truncate=left"
        )


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_count(value: object) -> bool:
    return _is_id(value) and value != 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# Whether a value of `generation` in bundle.json is valid, None if it is missing, and the valid ones in words.
_VALUES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "eos": (lambda value: isinstance(value, list) and all(map(_is_id, value)), "a list of tokens"),
    "start": (lambda value: value is None or _is_id(value), "a token or null"),
    "max_new_tokens": (_is_count, "a whole number of at least 1"),
    "positions": (lambda value: value is None or _is_count(value), "a whole number of at least 1, or null"),
    "forced_bos": (lambda value: value is None or _is_id(value), "a token or null"),
    "forced_eos": (lambda value: value is None or _is_id(value), "a token or null"),
    "length_penalty": (lambda value: value is None or _is_number(value), "a number"),
    "early_stopping": (lambda value: value in (None, True, False, "never"), "true, false or never"),
}
