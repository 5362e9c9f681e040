"""The tokens of prompts and sources, which are refused or cut if the model has fewer positions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from distill.edge.generation_options import GenerationOptions
from distill.edge.generation_settings import GenerationSettings
from distill.edge.strings import check_text, shorten
from distill.edge.truncation import Truncation
from distill.errors import UserError


@dataclass(frozen=True)
class Prompt:
    """The tokens of a prompt or a source, and whether others were cut off."""

    tokens: Sequence[int]
    is_truncated: bool = False


class Prompts:
    """Reads the prompts of a causal model, or the sources of a model with an encoder.

    A source has the special tokens that its tokenizer adds. A prompt has none but the start token, because an end token
    would end it.

    Args:
        tokenizer: neither pads nor truncates.
        complete: puts before a text what the model reads before every one.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        settings: GenerationSettings,
        *,
        has_encoder: bool,
        complete: Callable[[str], str] = str,
    ) -> None:
        self.tokenizer, self.settings, self.has_encoder, self.complete = tokenizer, settings, has_encoder, complete

    def count_new(self, options: GenerationOptions) -> int:
        """Returns how many tokens a text has at most, as far as there are positions."""
        return self.settings.max_new_tokens if options.max_new_tokens is None else options.max_new_tokens

    def read(self, text: str, options: GenerationOptions) -> Prompt:
        """Returns the tokens of a text.

        Raises:
            UserError: for a text that is empty, unless the model has a token that begins a text, and for one that is
                too long, unless `options.truncate` has it cut.
        """
        if not isinstance(text, str):
            raise UserError(f"got {shorten(text)}, expected a text")
        encoding = self.tokenizer.encode(check_text(text))
        is_empty = all(encoding.special_tokens_mask)
        if self.has_encoder:
            if is_empty:
                raise UserError(f"got {shorten(text)}, expected a source with text")
            return self._cut_source(text, self.complete(text), options)
        if is_empty:
            return Prompt([self._find_start(text)])
        own = [token for token, added in zip(encoding.ids, encoding.special_tokens_mask, strict=True) if not added]
        is_started = encoding.special_tokens_mask[0] == 1 and encoding.ids[0] == self.settings.start
        return self._cut_prompt(text, encoding.ids[:1] if is_started else [], own, options)

    def _find_start(self, text: str) -> int:
        for token in (self.settings.start, *self.settings.eos):
            if token is not None:
                return token
        raise UserError(
            f"got {shorten(text)} as a prompt, and the model has no token that begins a text: give it a text"
        )

    def _cut_prompt(self, text: str, first: list[int], tokens: list[int], options: GenerationOptions) -> Prompt:
        """Returns the tokens of a prompt behind those that stay first.

        A prompt that is cut has at least half of the positions, and otherwise leaves those of all new tokens.
        """
        positions = self.settings.positions
        if positions is None or len(first) + len(tokens) <= positions:
            return Prompt(first + tokens)
        if options.truncate is None:
            raise self._too_long(text, len(first) + len(tokens))
        size = max(positions - self.count_new(options) + 1, positions // 2, len(first) + 1) - len(first)
        return Prompt(first + (tokens[-size:] if options.truncate == "left" else tokens[:size]), is_truncated=True)

    def _cut_source(self, text: str, source: str, options: GenerationOptions) -> Prompt:
        """Returns the tokens of a text with what stands before it."""
        positions, tokens = self.settings.positions, self.tokenizer.encode(source).ids
        if positions is None or len(tokens) <= positions:
            return Prompt(tokens)
        if options.truncate is None:
            raise self._too_long(text, len(tokens))
        truncation = Truncation(self.tokenizer, max_length=positions, side=options.truncate)
        [(encoding, _)] = truncation.encode([source])
        return Prompt(encoding.ids, is_truncated=True)

    def _too_long(self, text: str, tokens: int) -> UserError:
        return UserError(
            f"got {shorten(text)} of {tokens:,} tokens, and the model has {self.settings.positions:,} positions: "
            "shorten it, or give truncate=left"
        )
