"""Heads that follow a relation of words, such as from a verb to its object, measured on a parsed text."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.errors import UserError
from distill.models.forward import run_model
from distill.readers.lines import read_lines

LEAST = 20  # Words of a relation.
_COLUMNS = 10  # Of CoNLL-U: number, form, lemma, part of speech, tag, features, head, relation, further ones.


@dataclass(frozen=True)
class Parsed:
    """A parsed sentence.

    Attributes:
        words: of the sentence.
        heads: the word that each depends on, counted from 0; -1 for the root.
        relations: of each to its head, such as `obj`.
    """

    words: Sequence[str]
    heads: Sequence[int]
    relations: Sequence[str]


@dataclass(frozen=True)
class SyntacticHead:
    """The head of attention that follows a relation best (arXiv 1906.04341, section 4.2).

    Attributes:
        relation: such as `obj`.
        direction: `to head` or `to dependent`, from the word that looks.
        number: of the words with this relation.
        accuracy: share of the words whose largest weight is on the right word.
        baseline: that of the word at the most frequent distance.
        offset: this distance.
    """

    relation: str
    direction: str
    number: int
    layer: int
    head: int
    accuracy: float
    baseline: float
    offset: int


def read_parsed(path: Path) -> list[Parsed]:
    """Returns the sentences of a CoNLL-U file; words of several tokens and empty words are left out.

    Raises:
        UserError: for a file that is no CoNLL-U.
    """
    sentences, rows = [], list[list[str]]()
    for number, line in enumerate((*read_lines(path), ""), start=1):
        if line.strip() and not line.startswith("#"):
            cells = line.split("\t")
            if len(cells) != _COLUMNS:
                raise UserError(f"{path}, line {number}: got {len(cells)} columns, expected the {_COLUMNS} of CoNLL-U")
            if cells[0].isdecimal():
                rows.append(cells)
        elif rows and not line.strip():
            sentences.append(_read_sentence(path, number, rows))
            rows = []
    if not sentences:
        raise UserError(f"{path} has no sentences: expected CoNLL-U, whose words have {_COLUMNS} columns")
    return sentences


def _read_sentence(path: Path, number: int, rows: Sequence[Sequence[str]]) -> Parsed:
    """Returns the sentence that ends before a line."""
    try:
        heads = [int(row[6]) - 1 for row in rows]
    except ValueError:
        raise UserError(f"{path}, before line {number}: got no number of a head, expected one in column 7") from None
    if any(not -1 <= head < len(rows) for head in heads):
        raise UserError(f"{path}, before line {number}: got a head that is no word of the sentence")
    return Parsed([row[1] for row in rows], heads, [row[7].partition(":")[0] for row in rows])


def word_attention(weights: np.ndarray, word_ids: Sequence[int | None], words: int) -> np.ndarray:
    """Returns attention from word to word: the sum over pieces that are looked at, the mean over those that look.

    Args:
        weights: `[N, A, L, L]`.
        word_ids: the word of each token, `[L]`, None for special tokens.
        words: their number, W. A word without a token has zeros.

    Returns:
        `[N, A, W, W]`.
    """
    belongs = np.array([[word == number for number in range(words)] for word in word_ids], dtype=float)  # [L, W]
    mean = belongs / np.maximum(belongs.sum(axis=0), 1)
    return np.asarray(np.einsum("nalk,lw,kv->nawv", weights, mean, belongs, optimize=True))


@torch.inference_mode()
def find_syntactic_heads(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: Sequence[Parsed]
) -> list[SyntacticHead]:
    """Returns the best head for each relation with at least 20 words and each direction, the most accurate first."""
    hits: dict[tuple[str, str], np.ndarray] = {}
    offsets: dict[tuple[str, str], Counter[int]] = {}
    for sentence in sentences:
        encoded = tokenizer(list(sentence.words), is_split_into_words=True, truncation=True, return_tensors="pt")
        batch = {name: tensor for name, tensor in encoded.items() if isinstance(tensor, torch.Tensor)}
        layers = run_model(model, batch, frozenset(("attentions",))).attentions
        weights = torch.stack([of[0] for of in layers]).float().numpy()
        attention = word_attention(weights, encoded.word_ids(0), len(sentence.words))
        attention[
            ..., np.arange(len(sentence.words)), np.arange(len(sentence.words))
        ] = -1.0  # No word is its own head.
        largest = attention.argmax(axis=-1)  # [N, A, W]
        for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True)):
            if head < 0:
                continue
            for direction, source, target in (("to head", word, head), ("to dependent", head, word)):
                key = (relation, direction)
                hits[key] = hits.get(key, np.zeros(largest.shape[:2])) + (largest[:, :, source] == target)
                offsets.setdefault(key, Counter())[target - source] += 1
    found = [_best(relation, direction, hits[relation, direction], of) for (relation, direction), of in offsets.items()]
    return sorted((head for head in found if head.number >= LEAST), key=lambda head: -head.accuracy)


def _best(relation: str, direction: str, hits: np.ndarray, offsets: Counter[int]) -> SyntacticHead:
    layer, head = np.unravel_index(int(hits.argmax()), hits.shape)
    number = offsets.total()
    [(offset, most)] = offsets.most_common(1)
    return SyntacticHead(
        relation, direction, number, int(layer) + 1, int(head) + 1, float(hits.max()) / number, most / number, offset
    )
