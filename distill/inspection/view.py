"""The attention of sentences, small enough to be put into a page."""

import base64
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

LEVELS = 255  # A weight is a whole number of these.


@dataclass(frozen=True)
class AttentionView:
    """The attention of a model in one sentence.

    Attributes:
        tokens: the pieces of the sentence, special ones too.
        layers: number of layers.
        heads: number of heads of a layer.
        weights: `[N, A, L, L]` as whole numbers of 1 / 255; a row is a token that looks.
    """

    tokens: Sequence[str]
    layers: int
    heads: int
    weights: np.ndarray

    @classmethod
    def of(cls, attentions: Sequence[Tensor], tokens: Sequence[str]) -> "AttentionView":
        """Returns the view of the weights of each layer, `[A, L, L]`, rounded to the nearest level."""
        weights = np.stack([of.detach().float().cpu().numpy() for of in attentions])
        levels = np.rint(weights * LEVELS).astype(np.uint8)
        return cls(list(tokens), levels.shape[0], levels.shape[1], levels)

    def encode(self) -> dict[str, Any]:
        """Returns the content as JSON, with the weights of one byte each as base64 of what zlib makes of them."""
        return {
            "tokens": list(self.tokens), "layers": self.layers, "heads": self.heads,
            "weights": base64.b64encode(zlib.compress(self.weights.tobytes(), level=9)).decode(),
        }  # fmt: skip
