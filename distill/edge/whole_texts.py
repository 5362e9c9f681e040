"""Sessions that read whole texts in one pass, also with a model that writes text token by token."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distill.edge.cached_rows import PAST
from distill.edge.model_files import Session, encoder_file, session

TARGET = "decoder_input_ids"  # An input of an encoder-decoder here: the tokens that its decoder reads.
TARGET_MASK = "decoder_attention_mask"  # An input of one that fills targets, which reads them from both sides.
STATES = "encoder_hidden_states"  # The input of a decoder with an encoder.


class _Input(NamedTuple):
    name: str
    shape: Sequence[Any]


class WholeTexts:
    """A model that writes text, run on whole texts: its caches are empty, and nobody reads those that it returns.

    A causal model has the inputs `input_ids [B, L]` and `attention_mask [B, L]`, and an encoder-decoder
    `decoder_input_ids [B, T]` too. Texts may be padded on either side. One that fills targets has no caches, and the
    inputs `decoder_attention_mask [B, T]` and `positions [n]` besides.

    Args:
        decoder: as `export.generator` or `export.mask_predictor` writes it.
        encoder: of an encoder-decoder; None for a causal model.
    """

    def __init__(self, decoder: Session, encoder: Session | None) -> None:
        self.decoder, self.encoder = decoder, encoder
        self.shapes = {value.name: value.shape for value in decoder.get_inputs()}

    def run(self, names: Sequence[str], inputs: Mapping[str, NDArray[np.int64]]) -> list[NDArray[np.floating]]:
        """Returns the outputs of these names."""
        rows, mask = len(inputs["input_ids"]), inputs["attention_mask"]
        feed: dict[str, Any] = {
            name: np.zeros((rows, shape[1], 0, shape[3]), dtype=np.float32)
            for name, shape in self.shapes.items()
            if name.startswith(PAST)
        }
        if self.encoder is None:
            positions = (mask.cumsum(axis=1) - 1).clip(min=0)
            feed |= {"input_ids": inputs["input_ids"], "attention_mask": mask, "position_ids": positions}
        else:
            states = self._encode(inputs["input_ids"], mask)
            feed |= {"input_ids": inputs[TARGET], "encoder_attention_mask": mask, STATES: states}
            feed |= {own: inputs[name] for own, name in self._own_inputs().items()}
        return self.decoder.run(names, {name: value for name, value in feed.items() if name in self.shapes})

    def _encode(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.floating]:
        """Returns the states `[B, L, H]` of the sources; equal ones that follow each other are encoded once."""
        assert self.encoder is not None
        changes = (ids[1:] != ids[:-1]).any(axis=1) | (mask[1:] != mask[:-1]).any(axis=1)
        firsts = np.flatnonzero(np.append(True, changes))
        [states] = self.encoder.run(["last_hidden_state"], {"input_ids": ids[firsts], "attention_mask": mask[firsts]})
        return states if len(firsts) == len(ids) else np.repeat(states, np.diff(firsts, append=len(ids)), axis=0)

    def get_inputs(self) -> Sequence[Any]:
        """Returns the inputs that `run` takes."""
        if self.encoder is None:
            return [_Input(name, self.shapes[name]) for name in ("input_ids", "attention_mask")]
        own = [_Input(name, self.shapes[given]) for given, name in self._own_inputs().items()]
        return [*self.encoder.get_inputs(), _Input(TARGET, self.shapes["input_ids"]), *own]

    def _own_inputs(self) -> dict[str, str]:
        """Returns the further inputs of a decoder that fills targets, and their names in `run`."""
        names = {"attention_mask": TARGET_MASK, "positions": "positions"}
        return {own: name for own, name in names.items() if own in self.shapes}

    def get_outputs(self) -> Sequence[Any]:
        """Returns the outputs of the decoder."""
        return self.decoder.get_outputs()


def open_model(path: Path, threads: int | None = None, *, encoder: Path | None = None) -> Session:
    """Returns a session that reads whole texts: `WholeTexts` of a model with caches or an encoder, else its own.

    Args:
        threads: as in `model_files.session`.
        encoder: the file of the encoder, if there is one; None for the one beside `path`.

    Raises:
        UserError: if a file cannot be loaded.
    """
    loaded = session(path, threads)
    if not any(value.name.startswith(PAST) or value.name == STATES for value in loaded.get_inputs()):
        return loaded
    beside = encoder_file(path) if encoder is None else encoder
    return WholeTexts(loaded, session(beside, threads) if beside.is_file() else None)
