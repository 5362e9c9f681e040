"""A word in its contexts: which of its occurrences in a corpus a model holds for alike, layer by layer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.errors import UserError
from distill.models.forward import run_model

NEAREST = 3
MOST = 200  # Occurrences that are compared.
SHOWN = 4  # Occurrences whose nearest ones are listed.


@dataclass(frozen=True)
class Occurrence:
    """A word in a sentence.

    Attributes:
        text: the sentence.
        start: of the word, in characters.
        end: the character after it.
    """

    text: str
    start: int
    end: int

    def shown(self) -> str:
        """Returns the sentence with the word in brackets."""
        return f"{self.text[: self.start]}[{self.text[self.start : self.end]}]{self.text[self.end :]}"


@dataclass(frozen=True)
class Neighbours:
    """The nearest other occurrences of a word by the cosine of their states in one layer, the nearest first.

    Attributes:
        layer: 0 for the embeddings.
    """

    layer: int
    of: Occurrence
    nearest: Sequence[tuple[Occurrence, float]]


def find_occurrences(word: str, texts: Sequence[str]) -> list[Occurrence]:
    """Returns the occurrences of a word, each in another text, evenly spaced ones if there are many.

    Raises:
        UserError: for a word that occurs less than three times.
    """
    pattern = re.compile(rf"\b{re.escape(word)}\b", re.IGNORECASE)
    found = [Occurrence(text, *match.span()) for text in texts if (match := pattern.search(text))]
    if len(found) < NEAREST:
        raise UserError(
            f"inspect.word={word} is in {len(found)} of {len(texts):,} texts, and its occurrences are compared from "
            f"{NEAREST} on: take another word, or inspect.corpus=FILE with more text"
        )
    return [found[place] for place in np.unique(np.linspace(0, len(found) - 1, MOST).astype(int))]


def compare_contexts(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, occurrences: Sequence[Occurrence]
) -> list[Neighbours]:
    """Returns the nearest other occurrences of some occurrences, in every layer; none without any."""
    if not occurrences:
        return []
    kept, states = _word_states(model, tokenizer, occurrences)
    chosen = np.unique(np.linspace(0, len(kept) - 1, SHOWN).astype(int))
    return [
        Neighbours(layer, kept[of], [(kept[other], cosine) for other, cosine in nearest(values, of)])
        for of in map(int, chosen)
        for layer, values in enumerate(states)
    ]


@torch.inference_mode()
def _word_states(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, occurrences: Sequence[Occurrence]
) -> tuple[list[Occurrence], np.ndarray]:
    """Returns the states of the word by layer, `[N, n, H]`, without occurrences that are cut off."""
    kept, states = [], []
    for occurrence in occurrences:
        encoded = tokenizer(occurrence.text, truncation=True, return_offsets_mapping=True, return_tensors="pt")
        offsets = encoded.pop("offset_mapping")[0].tolist()
        places = overlapping(offsets, occurrence.start, occurrence.end)
        if places:
            layers = run_model(model, dict(encoded), frozenset(("hidden_states",))).hidden_states
            kept.append(occurrence)
            states.append(torch.stack([of[0, places].mean(dim=0).float() for of in layers]))
    return kept, torch.stack(states, dim=1).numpy()


def overlapping(offsets: Sequence[Sequence[int]], start: int, end: int) -> list[int]:
    """Returns the tokens of a span of characters, from the first and the last character of each token."""
    return [place for place, (first, last) in enumerate(offsets) if first < end and last > start]


def nearest(states: np.ndarray, of: int) -> list[tuple[int, float]]:
    """Returns the nearest other states `[n, H]` of one by the cosine, at most 3, the nearest first."""
    unit = states / np.maximum(np.linalg.norm(states, axis=1, keepdims=True), 1e-12)
    cosines = unit @ unit[of]
    order = [int(other) for other in np.argsort(-cosines, kind="stable") if other != of]
    return [(other, float(cosines[other])) for other in order[:NEAREST]]
