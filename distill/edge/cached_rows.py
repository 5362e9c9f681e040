"""Sequences of tokens that a model reads together, step by step, with the keys and values of their earlier tokens.

A model of one file continues its prompts. One of two files has an encoder that reads sources, and its decoder continues
from a start token. Names of inputs and outputs are those of Optimum.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distill.edge.model_files import Session, input_names
from distill.errors import UserError, first_line

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

    def run(self, session: Session, names: Sequence[str], inputs: Mapping[str, Array]) -> dict[str, Array]:
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

    def __init__(self, model: CachedModel) -> None:
        self.model = model
        # Whether a place of the caches is a token, [B, P], of rows that end at the same place.
        self.mask = np.zeros((0, 0), dtype=bool)
        self.caches: dict[str, Array] = {
            name: np.zeros((0, heads, 0, width), dtype=np.float32) for name, (heads, width) in model.caches.items()
        }
        self.states = np.zeros((0, 0, 0), dtype=np.float32)  # Of the encoder, [B, L, H].
        self.source_mask = np.zeros((0, 0), dtype=bool)  # [B, L]

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
        new = CachedRows(self.model)
        tokens, mask = pad_rows(prompts, on_left=self.model.encoder is None)
        if self.model.encoder is not None:
            new._read_sources(tokens, mask)
            tokens = np.full((len(prompts), 1), self.model.start, dtype=np.int64)
            mask = np.ones_like(tokens, dtype=bool)
        new._clear(len(prompts))
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
        self.mask = self.mask[rows]
        # Places that only the rows had that are left out.
        begin = int(self.mask.any(axis=0).argmax()) if len(rows) else self.mask.shape[1]
        self.mask = self.mask[:, begin:]
        for name, cache in self.caches.items():
            if not _is_of_source(name):
                self.caches[name] = np.ascontiguousarray(cache[rows][:, :, begin:])
        if self.model.encoder is not None:
            self._select_sources(rows)

    def _select_sources(self, rows: Sequence[int]) -> None:
        """Takes the sources of these rows, without the last places that only left out sources had."""
        mask = self.source_mask[rows]
        end = int(mask.any(axis=0).sum())
        self.states, self.source_mask = np.ascontiguousarray(self.states[rows][:, :end]), mask[:, :end]
        for name, cache in self.caches.items():
            if _is_of_source(name):
                self.caches[name] = np.ascontiguousarray(cache[rows][:, :, :end])

    def _clear(self, rows: int) -> None:
        """Makes rows without tokens."""
        self.mask = np.zeros((rows, 0), dtype=bool)
        for name, cache in self.caches.items():
            self.caches[name] = np.zeros((rows, cache.shape[1], 0, cache.shape[3]), dtype=np.float32)

    def _read_sources(self, tokens: Array, mask: Array) -> None:
        inputs = {"input_ids": tokens, "attention_mask": mask.astype(np.int64)}
        assert self.model.encoder is not None
        outputs = self.model.run(self.model.encoder, ["last_hidden_state"], inputs)
        self.states, self.source_mask = outputs["last_hidden_state"], mask

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
        names = [name for name in self.caches if not self._is_full(name)]
        self.mask = np.concatenate([self.mask, mask], axis=1)
        places = (self.mask.cumsum(axis=1) - 1).clip(min=0)[:, -tokens.shape[1] :]
        possible = {
            "input_ids": tokens, "attention_mask": self.mask.astype(np.int64), "position_ids": places,
            "encoder_hidden_states": self.states, "encoder_attention_mask": self.source_mask.astype(np.int64),
            PADDING: self.mask.shape[1] - self.mask.sum(axis=1), KEPT_LOGITS: np.array(1, dtype=np.int64),
        }  # fmt: skip
        inputs = {name: value for name, value in possible.items() if name in self.model.inputs} | self.caches
        presents = [PRESENT + name.removeprefix(PAST) for name in names]
        outputs = self.model.run(self.model.decoder, ["logits", *presents], inputs)
        self.caches |= {name: outputs[present] for name, present in zip(names, presents, strict=True)}
        logits: Array = outputs["logits"][:, -1]
        if not np.isfinite(logits).all():
            raise UserError("the model has logits that are not finite")
        return logits

    def _is_full(self, name: str) -> bool:
        """Returns whether a cache of the source has all of its tokens."""
        return _is_of_source(name) and self.caches[name].shape[2] == self.states.shape[1] > 0

    def _join(self, new: "CachedRows") -> None:
        """Puts the rows of `new` behind these."""
        if not len(self):
            self.mask, self.caches, self.states, self.source_mask = new.mask, new.caches, new.states, new.source_mask
            return
        self.mask = _stack(self.mask, new.mask, axis=1, on_left=True)
        for name, cache in self.caches.items():
            self.caches[name] = _stack(cache, new.caches[name], axis=2, on_left=not _is_of_source(name))
        if self.model.encoder is not None:
            self.states = _stack(self.states, new.states, axis=1, on_left=False)
            self.source_mask = _stack(self.source_mask, new.source_mask, axis=1, on_left=False)


def _is_of_source(name: str) -> bool:
    """Returns whether a cache has keys or values of the encoder's states."""
    return ".encoder." in name


def pad_rows(rows: Sequence[Sequence[int]], *, on_left: bool) -> tuple[Array, Array]:
    """Returns tokens `[B, S]` padded with 0, which is masked, and the mask."""
    lengths = np.array(list(map(len, rows)))[:, None]
    size = int(lengths.max())
    place = np.arange(size)
    mask = place >= size - lengths if on_left else place < lengths
    tokens = np.zeros(mask.shape, dtype=np.int64)
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
