"""Writes text with an exported model: several texts at once, step by step, with numpy alone.

    generator = Bundle("path/to/bundle").generator()
    first, second = generator.start(["Once upon", "It was"], GenerationOptions(max_new_tokens=20))
    while generator.running:
        generator.step()
        print(first.read(), end="")

Other texts may start between two steps, and any may be dropped.
"""

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
        forced_first, forced_last: as in `Endings`.
        length_penalty, early_stopping: of a beam search, as in `Endings`.
    """

    eos: tuple[int, ...]
    start: int | None
    max_new_tokens: int
    positions: int | None
    forced_first: int | None = None
    forced_last: int | None = None
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "GenerationSettings":
        """Returns the settings of bundle.json; raises UserError for a value that is missing or invalid."""
        raise NotImplementedError


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
        name: of the bundle in messages.
    """

    def __init__(self, model: CachedModel, tokenizer: Tokenizer, settings: GenerationSettings, name: str) -> None:
        self.model, self.tokenizer, self.settings, self.name = model, tokenizer, settings, name
        self._batches: list[_Batch] = []

    @property
    def running(self) -> list[Writing]:
        """The texts that have not ended."""
        return [writing for batch in self._batches for writing in batch.writings]

    def start(self, prompts: Sequence[str], options: GenerationOptions) -> list[Writing]:
        """Starts a text for each prompt, or source of a model with an encoder, and chooses its first token.

        The prompts are read together, apart from the texts that are running. Of one seed, the texts of a call are
        sampled independently of each other and of those that run beside them.

        Raises:
            UserError: for a prompt that is empty, or too long, unless `options.truncate` has it cut.
        """
        raise NotImplementedError

    def step(self) -> None:
        """Reads the last token of every running text and chooses the next one. Texts that end are left out then."""
        raise NotImplementedError

    def drop(self, writing: Writing) -> None:
        """Ends a running text before its time; does nothing for one that has ended."""
        raise NotImplementedError
