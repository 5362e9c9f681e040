"""Writes text with an exported model: several texts at once, step by step, with numpy alone.

    generator = Bundle("path/to/bundle").generator()
    first, second = generator.start(["Once upon", "It was"], GenerationOptions(max_new_tokens=20))
    while generator.running:
        generator.step()
        print(first.read(), end="")

Other texts may start between two steps, and any may be dropped.

Sequences of tokens that a model reads together, step by step, with the keys and values of their earlier tokens: a model
of one file continues its prompts. One of two files has an encoder that reads sources, and its decoder continues from a
start token. Names of inputs and outputs are those of Optimum.

The text of tokens that arrive one after the other has never half a character, and none of a stop string:

    text = TokenText(tokenizer, stop=["\\n"])
    for token in tokenizer.encode("a film\\nand more").ids:
        text.add(token)
    text.end()
    text.read(), text.is_stopped  # ('a film', True)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from distill.core.errors import UserError, check_text, first_line, shorten
from distill.edge.bundle_files import Session, input_names
from distill.edge.decoder import Truncation
from distill.edge.sampling import Beams, Following, GenerationOptions, GenerationSettings, OneToken, TokenChoice

PAST, PRESENT = "past_key_values.", "present."
KEPT_LOGITS = "num_logits_to_keep"  # The input of a model that can leave out the logits of a prompt.
PADDING = "past_padding"  # The input `[B]` of a decoder: the first places of each row's caches that are padding.
# Numbers of logits in a pass over prompts, 134 MB: longer prompts are read in several passes.
MOST_LOGITS = 2**25
Array = NDArray[Any]


class CachedModel:
    """A model that reads tokens after those of its caches.

    Args:
        decoder: has the inputs `input_ids`, `past_key_values.{i}...` and others, and the outputs `logits` and
            `present.{i}...`.
        encoder: has the inputs `input_ids` and `attention_mask`, and the output `last_hidden_state`; None for a model
            without one.
        start: the first token of a decoder that has an encoder; without one it has no meaning.
    """

    def __init__(self, decoder: Session, encoder: Session | None = None, start: int = 0) -> None:
        self.decoder, self.encoder, self.start = decoder, encoder, start
        shapes = {value.name: value.shape for value in decoder.get_inputs()}
        self.inputs = input_names(decoder)
        self.caches = {name: (shape[1], shape[3]) for name, shape in shapes.items() if name.startswith(PAST)}
        self.classes: int = next(value.shape[-1] for value in decoder.get_outputs() if value.name == "logits")

    @property
    def joins(self) -> bool:
        """Whether rows of different numbers of read tokens can be read together."""
        return not self.inputs.isdisjoint({"attention_mask", PADDING})


def run_model(session: Session, names: Sequence[str], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Returns outputs by name; raises UserError if the model cannot be run."""
    try:
        outputs = session.run(names, inputs)
    except Exception as error:  # The errors of onnxruntime have no class in common.
        raise UserError(f"the model cannot be run: {first_line(error)}") from error
    return dict(zip(names, outputs, strict=True))


class CachedRows:
    """Rows of tokens `[B]` that a model reads together.

    `append` adds rows and returns the logits behind their prompts, `step` reads one more token of each row, and
    `select` repeats, reorders and leaves out rows. Prompts are padded on the left and sources on the right, and the
    mask keeps padding out of attention.
    """

    def __init__(self, model: CachedModel, rows: int = 0) -> None:
        self.model = model
        # Whether a place of the caches is a token, [B, P], of rows that end at the same place.
        self.mask = np.zeros((rows, 0), dtype=bool)
        self.caches: dict[str, Array] = {
            name: np.zeros((rows, heads, 0, width), dtype=np.float32) for name, (heads, width) in model.caches.items()
        }
        self.states = np.zeros((rows, 0, 0), dtype=np.float32)  # Of the encoder, [B, L, H].
        self.source_mask = np.zeros((rows, 0), dtype=bool)  # [B, L]

    def __len__(self) -> int:
        return len(self.mask)

    @property
    def lengths(self) -> Array:
        """The tokens `[B]` that each row has in the caches."""
        lengths: Array = self.mask.sum(axis=1)
        return lengths

    def append(self, prompts: Sequence[Sequence[int]]) -> Array:
        """Adds a row for each prompt behind the others, and returns the logits `[prompts, V]` of their next tokens.

        With an encoder the prompts are its sources, and all rows must have been added by one call unless the model
        `joins` them.

        Raises:
            UserError: if the model cannot be run, or its logits are not finite. No row is added then.
        """
        new = CachedRows(self.model, len(prompts))
        tokens, mask = pad_rows(prompts, on_left=self.model.encoder is None)
        if self.model.encoder is not None:
            sources = {"input_ids": tokens, "attention_mask": mask.astype(np.int64)}
            new.states = run_model(self.model.encoder, ["last_hidden_state"], sources)["last_hidden_state"]
            new.source_mask = mask
            tokens = np.full((len(prompts), 1), self.model.start, dtype=np.int64)
            mask = np.ones_like(tokens, dtype=bool)
        logits = new._read_prompts(tokens, mask)
        self._join(new)
        return logits

    def step(self, tokens: Sequence[int]) -> Array:
        """Reads one token of each row, and returns the logits `[B, V]` of the next ones."""
        column = np.array(tokens, dtype=np.int64)[:, None]
        return self._read(column, np.ones_like(column, dtype=bool))

    def select(self, rows: Sequence[int]) -> None:
        """Takes these rows in this order; a row may be taken several times."""
        if list(rows) == list(range(len(self))):
            return
        mask, source_mask = self.mask[rows], self.source_mask[rows]
        # Places that only left out rows had are left out: the first ones of texts, and the last ones of sources.
        begin = int(mask.any(axis=0).argmax()) if len(rows) else mask.shape[1]
        end = int(source_mask.any(axis=0).sum())
        self.mask, self.source_mask = mask[:, begin:], source_mask[:, :end]
        self.states = np.ascontiguousarray(self.states[rows][:, :end])
        for name, cache in self.caches.items():
            places = slice(end) if _is_of_source(name) else slice(begin, None)
            self.caches[name] = np.ascontiguousarray(cache[rows][:, :, places])

    def _read_prompts(self, tokens: Array, mask: Array) -> Array:
        """Reads tokens `[B, S]` in as many passes as their logits need."""
        size = tokens.shape[1]
        if KEPT_LOGITS not in self.model.inputs:
            size = max(1, MOST_LOGITS // (len(tokens) * self.model.classes))
        for begin in range(0, tokens.shape[1], size):
            logits = self._read(tokens[:, begin : begin + size], mask[:, begin : begin + size])
        return logits

    def _read(self, tokens: Array, mask: Array) -> Array:
        """Reads tokens `[B, S]`, and returns the logits `[B, V]` behind them."""
        # The caches of the source have all of its tokens after the first pass.
        sources = self.states.shape[1]
        is_full = {name: _is_of_source(name) and cache.shape[2] == sources > 0 for name, cache in self.caches.items()}
        names = [name for name, has_all in is_full.items() if not has_all]
        self.mask = np.concatenate([self.mask, mask], axis=1)
        places = (self.mask.cumsum(axis=1) - 1).clip(min=0)[:, -tokens.shape[1] :]
        possible = {
            "input_ids": tokens, "attention_mask": self.mask.astype(np.int64), "position_ids": places,
            "encoder_hidden_states": self.states, "encoder_attention_mask": self.source_mask.astype(np.int64),
            PADDING: self.mask.shape[1] - self.mask.sum(axis=1), KEPT_LOGITS: np.array(1, dtype=np.int64),
        }  # fmt: skip
        inputs = {name: value for name, value in possible.items() if name in self.model.inputs} | self.caches
        presents = [PRESENT + name.removeprefix(PAST) for name in names]
        outputs = run_model(self.model.decoder, ["logits", *presents], inputs)
        self.caches |= {name: outputs[present] for name, present in zip(names, presents, strict=True)}
        logits: Array = outputs["logits"][:, -1]
        if not np.isfinite(logits).all():
            raise UserError("the model has logits that are not finite")
        return logits

    def _join(self, new: "CachedRows") -> None:
        """Puts the rows of `new` behind these."""
        if not len(self):
            self.mask, self.caches, self.states, self.source_mask = new.mask, new.caches, new.states, new.source_mask
            return
        self.mask = _stack(self.mask, new.mask, axis=1, on_left=True)
        for name, cache in self.caches.items():
            self.caches[name] = _stack(cache, new.caches[name], axis=2, on_left=not _is_of_source(name))
        self.states = _stack(self.states, new.states, axis=1, on_left=False)
        self.source_mask = _stack(self.source_mask, new.source_mask, axis=1, on_left=False)


def _is_of_source(name: str) -> bool:
    """Returns whether a cache has keys or values of the encoder's states."""
    return ".encoder." in name


def pad_rows(rows: Sequence[Sequence[int]], *, on_left: bool, filler: int = 0) -> tuple[Array, Array]:
    """Returns tokens `[B, S]` padded with a filler, which is masked, and the mask."""
    lengths = np.array(list(map(len, rows)))[:, None]
    size = int(lengths.max())
    place = np.arange(size)
    mask = place >= size - lengths if on_left else place < lengths
    tokens = np.full(mask.shape, filler, dtype=np.int64)
    tokens[mask] = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    return tokens, mask


def _stack(first: Array, second: Array, *, axis: int, on_left: bool) -> Array:
    """Returns the rows of both arrays, padded with 0 at an end of an axis."""
    size = max(first.shape[axis], second.shape[axis])

    def pad(array: Array) -> Array:
        missing = size - array.shape[axis]
        widths = [(0, 0)] * array.ndim
        widths[axis] = (missing, 0) if on_left else (0, missing)
        return np.pad(array, widths) if missing else array

    return np.concatenate([pad(first), pad(second)])


REPLACEMENT = "\ufffd"  # Bytes that are no character.
LONGEST_PART = 3  # Bytes, and so tokens, that are part of a character in UTF-8 and not all of it, at most.
CONTEXT = 8  # Tokens of a prompt that decide how its first new tokens are written, such as with a space.


class TokenText:
    """The text of tokens that are added one by one.

    Special tokens have no text.

    Args:
        prompt: ids that the tokens continue. The text is what they add to that of the prompt.
        stop: texts before which the text ends.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = (), stop: Sequence[str] = ()) -> None:
        self.tokenizer, self.stop = tokenizer, tuple(stop)
        self.longest = max(map(len, self.stop), default=0)
        self.is_stopped = False
        # The text of the new tokens is that of both lists without that of the first one.
        self._context, self._new = list(prompt[-CONTEXT:]), list[int]()
        self._taken = 0  # Characters of the new tokens that are in `_whole`.
        self._whole = ""  # All whole characters.
        self._ready = 0  # Of these, those that are in no stop string.
        self._read = 0

    @property
    def text(self) -> str:
        """The text so far, without the characters that a stop string may begin with."""
        return self._whole[: self._ready]

    def add(self, token: int) -> None:
        """Appends a token. After a stop string, tokens add no text."""
        if self.is_stopped:
            return
        self._new.append(token)
        text = self._decode(self._context + self._new)[len(self._decode(self._context)) :]
        whole = text.rstrip(REPLACEMENT)
        if len(self._new) > LONGEST_PART:  # A character would be whole: bytes before the last ones are none.
            whole += text[len(whole) : -LONGEST_PART]
        self._extend(whole[self._taken :])
        self._taken = max(self._taken, len(whole))
        if text and len(whole) == len(text):
            self._context, self._new, self._taken = self._new, [], 0

    def end(self) -> None:
        """Makes the rest ready, which may look like the beginning of a stop string. Half a character is left out."""
        self._ready = len(self._whole)

    def read(self) -> str:
        """Returns the text that was added since the last call."""
        piece, self._read = self._whole[self._read : self._ready], self._ready
        return piece

    def _decode(self, tokens: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(tokens)
        return text

    def _extend(self, text: str) -> None:
        begin = max(0, len(self._whole) + 1 - self.longest)
        self._whole += text
        places = [place for stop in self.stop if (place := self._whole.find(stop, begin)) >= 0]
        if places:
            self._whole, self.is_stopped = self._whole[: min(places)], True
        self._ready = len(self._whole) - (0 if places else self._count_held())

    def _count_held(self) -> int:
        """Returns how many last characters may be the beginning of a stop string."""
        for size in range(min(self.longest - 1, len(self._whole)), 0, -1):
            end = self._whole[-size:]
            if any(stop.startswith(end) for stop in self.stop if len(stop) > size):
                return size
        return 0


@dataclass(frozen=True)
class Prompt:
    """The tokens of a prompt or a source, and whether others were cut off."""

    tokens: Sequence[int]
    is_truncated: bool = False


@dataclass(frozen=True)
class Prompts:
    """Reads the prompts of a causal model, or the sources of a model with an encoder.

    A source has the special tokens that its tokenizer adds. A prompt has none but the start token, because an end token
    would end it.

    Args:
        tokenizer: neither pads nor truncates.
        complete: puts before a text what the model reads before every one.
    """

    tokenizer: Tokenizer
    settings: GenerationSettings
    has_encoder: bool
    complete: Callable[[str], str] = str

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
            starts = [token for token in (self.settings.start, *self.settings.eos) if token is not None]
            if not starts:
                raise UserError(
                    f"got {shorten(text)} as a prompt, and the model has no token that begins a text: give it a text"
                )
            return Prompt(starts[:1])
        own = [token for token, added in zip(encoding.ids, encoding.special_tokens_mask, strict=True) if not added]
        is_started = encoding.special_tokens_mask[0] == 1 and encoding.ids[0] == self.settings.start
        return self._cut_prompt(text, encoding.ids[:1] if is_started else [], own, options)

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


Finish = Literal["stop", "length", "eos"]


class Writing:
    """A text that is being written.

    `tokens` are its ids, `finish` is how it ended (`stop` at a stop string, `eos` at an end token, `length` at the last
    token that it may have) and None before, `score` is that of a beam search, once it has ended, and `is_truncated` is
    true if tokens of its prompt were cut off.
    """

    def __init__(self, choice: TokenChoice, text: TokenText, *, is_truncated: bool) -> None:
        self._choice, self._text, self.is_truncated = choice, text, is_truncated
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
            if token in self._choice.settings.eos:
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
    texts: list[tuple[Writing, list[int]]] = field(default_factory=list)  # With the next token of each row of a text.


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
        self.prompts = Prompts(tokenizer, settings, model.encoder is not None, complete)
        self.size: int = tokenizer.get_vocab_size()
        self._batches: list[_Batch] = []

    @property
    def running(self) -> list[Writing]:
        """The texts that have not ended."""
        return [writing for batch in self._batches for writing, _ in batch.texts]

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
            logits = batch.rows.step([token for _, own in batch.texts for token in own])
            running = [(writing, len(own)) for writing, own in batch.texts]
            batch.texts = []
            self._go_on(batch, [], running, logits)
        self._leave_out_empty()

    def drop(self, writing: Writing) -> None:
        """Ends a running text before its time; does nothing for one that has ended."""
        for batch in self._batches:
            owners = [other for other, own in batch.texts for _ in own]
            if writing in owners:
                batch.texts = [text for text in batch.texts if text[0] is not writing]
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
                batch.texts.append((writing, tokens))
            begin += count
        batch.rows.select(rows)
        self._leave_out_empty()

    def _leave_out_empty(self) -> None:
        self._batches = [batch for batch in self._batches if batch.texts]

    def _create(self, prompt: Prompt, options: GenerationOptions, number: int) -> Writing:
        """Returns the text that begins after a prompt, or of a source."""
        before = prompt.tokens if self.model.encoder is None else [self.model.start]
        most = self.prompts.count_new(options)
        if self.settings.positions is not None:  # The last token is not read.
            most = min(most, self.settings.positions - len(before) + 1)
        settings = replace(self.settings, max_new_tokens=most)
        is_search = (options.beams or 1) > 1
        choice = Beams(before, options, settings) if is_search else OneToken(before, options, settings, number)
        text = TokenText(self.tokenizer, prompt.tokens if self.model.encoder is None else [], options.stop)
        return Writing(choice, text, is_truncated=prompt.is_truncated)
