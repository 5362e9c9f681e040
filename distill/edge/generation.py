"""Writes text with an exported model: several texts at once, step by step, with numpy alone.

    generator = Bundle("path/to/bundle").generator()
    first, second = generator.start(["Once upon", "It was"], GenerationOptions(max_new_tokens=20))
    while generator.running:
        generator.step()
        print(first.read(), end="")

Other texts may start between two steps, and any may be dropped.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from distill.edge.cached_rows import CachedModel, CachedRows
from distill.edge.generation_options import GenerationOptions
from distill.edge.generation_settings import GenerationSettings
from distill.edge.prompts import Prompt, Prompts
from distill.edge.token_choice import Beams, Endings, Following, OneToken, TokenChoice
from distill.edge.token_text import TokenText

Finish = Literal["stop", "length", "eos"]


class Writing:
    """A text that is being written.

    `tokens` are its ids, `finish` is how it ended (`stop` at a stop string, `eos` at an end token, `length` at the last
    token that it may have) and None before, `score` is that of a beam search, once it has ended, and `is_truncated` is
    true if tokens of its prompt were cut off.
    """

    def __init__(self, choice: TokenChoice, text: TokenText, endings: Endings, *, is_truncated: bool) -> None:
        self._choice, self._text, self._endings = choice, text, endings
        self.is_truncated = is_truncated
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
        complete: as in `Prompts`.
    """

    def __init__(
        self,
        model: CachedModel,
        tokenizer: Tokenizer,
        settings: GenerationSettings,
        complete: Callable[[str], str] = str,
    ) -> None:
        self.model, self.tokenizer, self.settings = model, tokenizer, settings
        self.prompts = Prompts(tokenizer, settings, has_encoder=model.encoder is not None, complete=complete)
        self.size: int = tokenizer.get_vocab_size()
        self._batches: list[_Batch] = []

    @property
    def running(self) -> list[Writing]:
        """The texts that have not ended."""
        return [writing for batch in self._batches for writing in batch.writings]

    def start(
        self, prompts: Sequence[str | Prompt], options: GenerationOptions, *, numbers: Sequence[int] | None = None
    ) -> list[Writing]:
        """Starts a text for each prompt, or source of a model with an encoder, and chooses its first token.

        The prompts are read together, apart from the texts that are running. Of one seed, the texts of a call are
        sampled independently of each other and of those that run beside them.

        Args:
            prompts: texts, or what `prompts.read` returns for them.
            numbers: of the texts among those of one seed; None counts those of the call from 0.

        Raises:
            UserError: for a prompt that is empty, or too long, unless `options.truncate` has it cut. No text is
                started then.
        """
        if not prompts:
            return []
        options = self.settings.complete(options)
        numbers = range(len(prompts)) if numbers is None else numbers
        read = [prompt if isinstance(prompt, Prompt) else self.prompts.read(prompt, options) for prompt in prompts]
        writings = [self._create(prompt, options, number) for prompt, number in zip(read, numbers, strict=True)]
        joins = self._batches and self.model.joins
        batch = self._batches[0] if joins else _Batch(CachedRows(self.model))
        kept = list(range(len(batch.rows)))
        logits = batch.rows.append([prompt.tokens for prompt in read])
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

    def _create(self, prompt: Prompt, options: GenerationOptions, number: int) -> Writing:
        """Returns the text that begins after a prompt, or of a source."""
        settings = self.settings
        has_source = self.model.encoder is not None
        before = [self.model.start] if has_source else prompt.tokens
        most = self.prompts.count_new(options)
        if settings.positions is not None:  # The last token is not read.
            most = min(most, settings.positions - len(before) + 1)
        endings, is_search = settings.endings(most), (options.beams or 1) > 1
        choice: TokenChoice = (
            Beams(before, options, endings) if is_search else OneToken(before, options, endings, number)
        )
        text = TokenText(self.tokenizer, [] if has_source else prompt.tokens, options.stop)
        return Writing(choice, text, endings, is_truncated=prompt.is_truncated)
