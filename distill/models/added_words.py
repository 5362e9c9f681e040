"""Makes words of a domain, which break into many pieces, pieces of a vocabulary, as SciBERT's and Legal-BERT's have."""

import copy
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.errors import OptionError, UserError
from distill.models.loading import Start
from distill.options import show_value

AUTO: Literal["auto"] = "auto"
REDUCTION = 0.08  # Of the pieces of a text, which `auto` adds words for.
MOST_WORDS = 5_000  # That `auto` adds.
LEAST_COUNT = 10  # Of a chosen word in the text; the row of a rarer one would hardly be trained.
LEAST_LETTERS = 3
KIND = "WordPiece"

AddWords = int | list[str] | Literal["auto"]


@dataclass(frozen=True)
class WordCounts:
    """The words of a text, as a tokenizer splits it before it looks for pieces, with their numbers."""

    counts: Mapping[str, int]

    def pieces_per_word(self, tokenizer: PreTrainedTokenizerBase) -> float:
        """Returns the mean number of pieces of a word."""
        return sum(count * len(_pieces(tokenizer, word)) for word, count in self.counts.items()) / self.total

    @property
    def total(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True)
class Growth:
    """The words that a vocabulary gets.

    Args:
        words: the new pieces, in the order of their ids.
        standing: words that were given and are pieces already.
        before, after: pieces of a word of the text.
    """

    words: Sequence[str]
    standing: Sequence[str]
    before: float
    after: float

    def __str__(self) -> str:
        fewer = 1 - self.after / self.before
        pieces = f"{self.before:.3f} -> {self.after:.3f} pieces a word, {fewer:.1%} fewer"
        if not self.standing:
            return f"{len(self.words):,} words become pieces: {pieces}"
        verb = "is a piece" if len(self.standing) == 1 else "are pieces"
        return f"{len(self.words):,} words become pieces: {pieces}; {', '.join(self.standing)} {verb} already"

    def record(self) -> dict[str, Any]:
        """Returns the growth for run.json."""
        return {
            "words": len(self.words), "standing": len(self.standing),
            "pieces_per_word": {"before": self.before, "after": self.after},
        }  # fmt: skip


def check_option(add_words: object, option: str = "add_words") -> None:
    """Raises OptionError for anything but `auto`, a number or a list of words, given as this option."""
    is_number = isinstance(add_words, int) and not isinstance(add_words, bool) and add_words >= 0
    is_list = isinstance(add_words, list) and all(isinstance(word, str) for word in add_words)
    if add_words != AUTO and not is_number and not is_list:
        expected = "auto, a number of at least 0, or a list of words"
        raise OptionError(option, show_value(add_words), expected)


def count_words(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> WordCounts:
    """Returns the words of texts after the normalization of the tokenizer."""
    backend: Tokenizer = tokenizer.backend_tokenizer
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_split(backend, text))
    return WordCounts(counts)


def can_grow(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Returns whether words can be added to a vocabulary one by one."""
    return _kind(tokenizer) == KIND


def plan_growth(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, add_words: AddWords) -> Growth:
    """Chooses the words that a vocabulary gets.

    Args:
        texts: are read only for a vocabulary that can grow.
        add_words: a number of words, words, or `auto` for as many as shorten the texts by `REDUCTION`, at most
            `MOST_WORDS`.

    Raises:
        UserError: for a vocabulary of another kind than WordPiece, and words that are none.
    """
    if not can_grow(tokenizer):
        raise UserError(
            f"got adapt.add_words={show_value(add_words)} and a vocabulary of the kind {_kind(tokenizer)}, expected "
            f"{KIND}, whose words can be added one by one: set adapt.add_words=0"
        )
    words, standing = count_words(texts, tokenizer), list[str]()
    if isinstance(add_words, list):
        chosen, standing = _sort_given(add_words, tokenizer)
    else:
        chosen = choose_words(words, tokenizer, None if add_words == AUTO else int(add_words))
    after = words.pieces_per_word(_add_pieces(tokenizer, chosen))
    return Growth(chosen, standing, words.pieces_per_word(tokenizer), after)


def grow_vocabulary(start: Start, words: Sequence[str]) -> Start:
    """Returns copies of the model and its tokenizer with further pieces, which are words.

    Rows of embeddings begin as the mean of those of the pieces that a word had.
    """
    if not words:
        return start
    model = _grow_embeddings(start, [_pieces(start.tokenizer, word) for word in words])
    return replace(start, model=model, tokenizer=_add_pieces(start.tokenizer, words))


def choose_words(words: WordCounts, tokenizer: PreTrainedTokenizerBase, number: int | None = None) -> list[str]:
    """Returns the words that save most pieces: their count times the pieces beyond one.

    Words have `LEAST_LETTERS` letters, and stand `LEAST_COUNT` times in the text.

    Args:
        number: of words at most; None for the fewest that shorten the text by `REDUCTION`, at most `MOST_WORDS`.
    """
    gains = {
        word: count * (len(_pieces(tokenizer, word)) - 1)
        for word, count in words.counts.items()
        if count >= LEAST_COUNT and sum(map(str.isalpha, word)) >= LEAST_LETTERS
    }
    ordered = sorted((word for word, gain in gains.items() if gain > 0), key=lambda word: (-gains[word], word))
    if number is not None:
        return ordered[:number]
    wanted, saved = REDUCTION * words.total * words.pieces_per_word(tokenizer), 0
    for place, word in enumerate(ordered[:MOST_WORDS]):
        if saved >= wanted:
            return ordered[:place]
        saved += gains[word]
    return ordered[:MOST_WORDS]


def _sort_given(given: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> tuple[list[str], list[str]]:
    """Returns the given words that are new and those that are pieces already, each once, as texts have them.

    Raises:
        UserError: for a word that the tokenizer splits before it looks for pieces.
    """
    backend: Tokenizer = tokenizer.backend_tokenizer
    vocabulary = tokenizer.get_vocab()
    new: dict[str, None] = {}
    standing: dict[str, None] = {}
    for word in given:
        parts = _split(backend, word)
        if len(parts) != 1:
            raise UserError(
                f"got the word {word!r} in adapt.add_words, which the tokenizer splits into {len(parts)} words before "
                "it looks for pieces, expected single words: leave it out, or give its parts"
            )
        (standing if parts[0] in vocabulary else new)[parts[0]] = None
    return list(new), list(standing)


def _kind(tokenizer: PreTrainedTokenizerBase) -> str:
    return str(type(tokenizer.backend_tokenizer.model).__name__)


def _split(backend: Tokenizer, text: str) -> list[str]:
    """Returns the words of a text, normalized."""
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    if backend.pre_tokenizer is None:
        return text.split()
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]


def _pieces(tokenizer: PreTrainedTokenizerBase, word: str) -> list[int]:
    """Returns the ids of a word's pieces."""
    return [piece.id for piece in tokenizer.backend_tokenizer.model.tokenize(word)]


def _add_pieces(tokenizer: PreTrainedTokenizerBase, words: Sequence[str]) -> PreTrainedTokenizerBase:
    """Returns a copy of the tokenizer with further pieces in its model.

    Tokens that are added beside the model would keep the case of a text and bypass its normalization.
    """
    content: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    first = _next_id(tokenizer)
    content["model"]["vocab"] |= {word: first + place for place, word in enumerate(words)}
    grown = copy.deepcopy(tokenizer)
    grown._tokenizer = Tokenizer.from_str(json.dumps(content))
    return grown


def _next_id(tokenizer: PreTrainedTokenizerBase) -> int:
    return int(max(tokenizer.get_vocab().values())) + 1


@torch.no_grad()
def _grow_embeddings(start: Start, pieces: Sequence[Sequence[int]]) -> PreTrainedModel:
    """Returns a copy of the model with a row for each new piece, the mean of the rows of its old pieces.

    Rows beyond the tokenizer's, which nothing read, are used first.
    """
    model: PreTrainedModel = copy.deepcopy(start.model)
    first = _next_id(start.tokenizer)
    needed = first + len(pieces)
    if needed > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(needed, mean_resizing=False)
    output = model.get_output_embeddings()
    rows = [model.get_input_embeddings().weight]
    if output is not None:
        bias = getattr(output, "bias", None)
        rows += [*([] if output.weight is rows[0] else [output.weight]), *([] if bias is None else [bias])]
    for parameter in rows:
        for place, old in enumerate(pieces, first):
            parameter[place] = parameter[list(old)].mean(dim=0)
    return model
