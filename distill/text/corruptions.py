"""Corruptions of packed sequences into sources and targets, for the pre-training of encoder-decoders.

Text infilling: one mask token stands for a span, whose length the model is to find out (BART). Lewis et al., arXiv
1910.13461, section 2.2: the lengths of spans are Poisson distributed with a mean of three. A span of no tokens inserts
a mask. The share of 30% is that of section 5.

Masked sequence to sequence pre-training: the target is a fragment of the text, which the source hides (MASS). Song et
al., arXiv 1905.02450, section 3.2: the fragment has half of the tokens, each of which is a mask token in the source.
Unlike there the decoder reads the fragment alone, and not masks in the place of the other tokens before it.

Prefix language modelling: the source is the beginning of a text, the target the rest of it. Raffel et al., arXiv
1910.10683, section 3.3.1 and table 3.

Document rotation: the source begins at a token of the document, behind whose end its beginning follows. Lewis et al.,
arXiv 1910.13461, section 2.2.

Tokens that are masked, with the whole text as the target, or that are dropped and are the target. Raffel et al., arXiv
1910.10683, section 3.3.1 (BERT-style) and 3.3.2: 15% of the tokens, 90% of which are masks and 10% random ones.

Spans of text that sentinels stand for: the target names each sentinel and the tokens behind it (T5). Raffel et al.,
arXiv 1910.10683, section 3.1.4 and figure 2: 15% of the tokens, in spans of three on average.
"""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from distill.core.errors import OptionError, UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


SENTINEL = "<extra_id_{}>"
_SENTENCE_ENDS = (".", "!", "?")


@dataclass(frozen=True)
class Symbols:
    """Tokens of a vocabulary of V.

    Args:
        special: `[V]` (bool), tokens that are no text, such as the one between documents. No corruption moves or hides
            them.
        ends: `[V]` (bool), tokens that end a sentence.
        sentinels: `[K]`, ids of the tokens that stand for the first, the second and further spans (`<extra_id_0>`).
        mask: id of the token that hides others; None without one.
    """

    special: np.ndarray
    ends: np.ndarray
    sentinels: np.ndarray
    mask: int | None

    @classmethod
    def of(cls, tokenizer: "PreTrainedTokenizerBase") -> Self:
        """Returns the tokens of a tokenizer. One without a mask token hides others behind its first sentinel."""
        vocabulary = tokenizer.get_vocab()
        special, ends = np.zeros((2, max(vocabulary.values()) + 1), dtype=bool)
        special[tokenizer.all_special_ids] = True
        ends[[id for token, id in vocabulary.items() if token.endswith(_SENTENCE_ENDS)]] = True
        sentinels: list[int] = []
        while (token := SENTINEL.format(len(sentinels))) in vocabulary:
            sentinels.append(vocabulary[token])
        special[sentinels] = True
        mask = tokenizer.mask_token_id
        if mask is None and sentinels:
            mask = sentinels[0]
        return cls(special, ends & ~special, np.array(sentinels, dtype=np.int32), mask)

    def documents(self, ids: np.ndarray) -> np.ndarray:
        """Returns the number of the document of each token `[n]`; a special token between two has one of its own."""
        special = self.special[ids]
        numbers: np.ndarray = 2 * np.cumsum(special) - special
        return numbers


def count_noise(tokens: int, share: float) -> int:
    """Returns the number of tokens that are a share of all, at least one and never all of them."""
    return max(1, min(round(tokens * share), tokens - 1))


def mark_spans(text: np.ndarray, gaps: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns which tokens are in a span, and which of these begin one, `[n]` (bool) both.

    A span that would reach across a token that is no text becomes two.

    Args:
        text: `[n]` (bool), tokens that may be in a span.
        gaps: `[S]`, tokens of the text before each span and behind the last one.
        lengths: `[S]`, tokens of the text in each span.
    """
    count = len(gaps)
    numbers, sizes = np.full(2 * count + 1, -1), np.empty(2 * count + 1, dtype=np.int64)
    numbers[1::2] = np.arange(count)
    sizes[:-1:2], sizes[1::2] = gaps, lengths
    sizes[-1] = text.sum() - gaps.sum() - lengths.sum()
    spans = np.full(len(text), -1)
    spans[text] = numbers.repeat(sizes)
    inside = spans >= 0
    first = inside.copy()
    first[1:] &= spans[1:] != spans[:-1]
    return inside, first


class Step:
    """A corruption of the text of a sequence, without the special tokens around it.

    Args:
        share: of the tokens; None for that of the class.
        mean_span: mean length of spans in tokens.

    Attributes:
        name: the value of `task.corruption`.
        restores_whole: whether the target is the whole text, so that a call returns the source alone.
        needs_mask: whether a token hides others, without which a vocabulary is refused.
        least: tokens of text without which there is nothing to corrupt.
        share: of a corruption that has none 0.
    """

    name: str
    restores_whole = True
    needs_mask = False
    least = 1
    share = 0.0

    def __init__(self, share: float | None = None, mean_span: float = 3.0) -> None:
        self.share, self.mean_span = self.share if share is None else share, mean_span

    def count_targets(self, tokens: int) -> int:
        """Returns the largest number of tokens of a target."""
        return tokens

    def check(self, tokens: int, symbols: Symbols) -> None:
        """Raises UserError for a vocabulary without what a text of so many tokens needs."""
        if self.needs_mask:
            self.find_mask(symbols)

    def check_text(self, tokens: int) -> None:
        """Raises UserError for fewer tokens of text than the corruption needs."""
        if tokens < self.least:
            raise UserError(
                f"task.corruption={self.name} got a sequence of {tokens} token{'' if tokens == 1 else 's'} of text, "
                f"expected at least {self.least}: set task.packing=full_sentences, which fills every sequence"
            )

    def find_mask(self, symbols: Symbols) -> int:
        """Returns the id of the token that hides others; raises UserError for a vocabulary without one."""
        if symbols.mask is None:
            raise UserError(
                f"the vocabulary has neither a mask token nor sentinels (<extra_id_0>), which task.corruption="
                f"{self.name} hides tokens behind: take another corruption, or a T5's or BART's tokenizer"
            )
        return symbols.mask

    def draw_places(self, ids: np.ndarray, random: np.random.Generator, symbols: Symbols) -> np.ndarray:
        """Returns the places of the share of the text of `[n]`; none where other corruptions left less than `least`."""
        places = np.flatnonzero(~symbols.special[ids])
        number = count_noise(len(places), self.share) if len(places) >= self.least else 0
        drawn: np.ndarray = random.permutation(places)[:number]
        return drawn

    def __call__(self, ids: np.ndarray, random: np.random.Generator, symbols: Symbols) -> Any:
        """Returns the source of a text `[n]`, or its source and target."""
        raise NotImplementedError


class Deletion(Step):
    """Deletes tokens that are drawn uniformly.

    Args:
        share: share of the tokens that is deleted, which the paper does not name.
    """

    name = "deletion"
    least = 2
    share = 0.15

    def __call__(self, ids: np.ndarray, random: np.random.Generator, symbols: Symbols) -> np.ndarray:
        return np.delete(ids, self.draw_places(ids, random, symbols))


class Deshuffle(Step):
    """Shuffles the tokens of each document."""

    name = "deshuffle"

    def __call__(self, ids: np.ndarray, random: np.random.Generator, symbols: Symbols) -> np.ndarray:
        order = np.lexsort((random.random(len(ids)), symbols.documents(ids)))
        shuffled: np.ndarray = ids[order]
        return shuffled


class Infilling(Step):
    """Replaces spans of a document with one mask each, at places that are drawn uniformly.

    Lengths are drawn until they have the share of the tokens; the last one is shortened. There are at
    most as many spans as hidden tokens.

    Args:
        share: share of the tokens in spans.
        mean_span: mean of the Poisson distribution.
    """

    name = "infilling"
    needs_mask = True
    least = 2
    share = 0.3

    def __call__(self, ids: np.ndarray, random: np.random.Generator, symbols: Symbols) -> np.ndarray:
        mask, text = self.find_mask(symbols), ~symbols.special[ids]
        tokens = int(text.sum())
        if tokens < self.least:  # After another corruption.
            return ids
        noise = count_noise(tokens, self.share)
        lengths = self._draw_lengths(random, noise)
        # Every choice of places among the other tokens and the spans themselves is equally likely.
        places = np.sort(random.permutation(tokens - noise + len(lengths))[: len(lengths)]) - np.arange(len(lengths))
        gaps = places.copy()
        gaps[1:] -= places[:-1]
        inside, first = mark_spans(text, gaps, lengths)
        source = ids.copy()
        source[first] = mask
        left = first | ~inside
        kept: np.ndarray = source[left]
        empty = lengths == 0
        if not empty.any():
            return kept
        before = np.append(text.nonzero()[0], len(ids))[(places + lengths.cumsum())[empty]]
        return np.insert(kept, np.append(0, left.cumsum())[before], mask)

    def _draw_lengths(self, random: np.random.Generator, noise: int) -> np.ndarray:
        """Returns the lengths of spans that have `noise` tokens together."""
        lengths = random.poisson(self.mean_span, size=2 * int(noise / self.mean_span) + 8)
        while lengths.sum() < noise:
            lengths = np.append(lengths, random.poisson(self.mean_span, size=len(lengths)))
        ends = lengths.cumsum()
        last = int(np.searchsorted(ends, noise))
        lengths[last] -= ends[last] - noise
        lengths = lengths[: last + 1]
        # A source is never longer than its text.
        return np.delete(lengths, (lengths == 0).nonzero()[0][: max(0, len(lengths) - noise)])


class Mass(Step):
    """Hides one fragment, whose start is drawn uniformly.

    Args:
        share: share of the tokens in the fragment.
    """

    name = "mass"
    restores_whole = False
    needs_mask = True
    least = 2
    share = 0.5

    def count_targets(self, tokens: int) -> int:
        """Returns the number of tokens of a target."""
        return count_noise(tokens, self.share)

    def __call__(self, ids: np.ndarray, random: np.random.Generator, symbols: Symbols) -> tuple[np.ndarray, np.ndarray]:
        text = ~symbols.special[ids]
        tokens = int(text.sum())
        self.check_text(tokens)
        length = count_noise(tokens, self.share)
        start = random.integers(tokens - length + 1, size=1)
        inside, _ = mark_spans(text, start, np.array([length]))
        return np.where(inside, self.find_mask(symbols), ids).astype(ids.dtype), ids[inside]


class Masked(Step):
    """Hides tokens that are drawn uniformly, each behind a mask, and a tenth of them behind another token of text.

    Args:
        share: share of the tokens.
    """

    name = "masked"
    needs_mask = True
    least = 2
    share = 0.15

    def __call__(self, ids: np.ndarray, random: np.random.Generator, symbols: Symbols) -> np.ndarray:
        places = self.draw_places(ids, random, symbols)
        others = random.choice(np.flatnonzero(~symbols.special), len(places))
        source = ids.copy()
        source[places] = np.where(random.random(len(places)) < 0.1, others, self.find_mask(symbols))
        return source


class Dropped(Step):
    """Deletes tokens that are drawn uniformly, which are the target in their order.

    Args:
        share: share of the tokens.
    """

    name = "dropped"
    restores_whole = False
    least = 2
    share = 0.15

    def count_targets(self, tokens: int) -> int:
        """Returns the number of tokens of a target."""
        return count_noise(tokens, self.share)

    def __call__(self, ids: np.ndarray, random: np.random.Generator, symbols: Symbols) -> tuple[np.ndarray, np.ndarray]:
        self.check_text(int((~symbols.special[ids]).sum()))
        places = np.sort(self.draw_places(ids, random, symbols))
        return np.delete(ids, places), ids[places]


class Permutation(Step):
    """Shuffles the sentences of each document, which end with a full stop, a question or an exclamation mark."""

    name = "permutation"

    def __call__(self, ids: np.ndarray, random: np.random.Generator, symbols: Symbols) -> np.ndarray:
        ends = symbols.ends[ids]
        sentence = np.cumsum(ends) - ends
        keys = random.random(int(sentence[-1]) + 1)
        # The same sentence has the same key, and its tokens keep their order, because the sort is stable.
        order = np.lexsort((keys[sentence], symbols.documents(ids)))
        shuffled: np.ndarray = ids[order]
        return shuffled


class Prefix(Step):
    """Splits the text at a place that is drawn uniformly, with at least one token on both sides."""

    name = "prefix"
    restores_whole = False
    least = 2

    def count_targets(self, tokens: int) -> int:
        """Returns the largest number of tokens of a target."""
        return tokens - 1

    def __call__(self, ids: np.ndarray, random: np.random.Generator, symbols: Symbols) -> tuple[np.ndarray, np.ndarray]:
        self.check_text(len(ids))
        end = int(random.integers(1, len(ids)))
        return ids[:end], ids[end:]


class Rotation(Step):
    """Rotates each document of a sequence to a token that is drawn uniformly."""

    name = "rotation"

    def __call__(self, ids: np.ndarray, random: np.random.Generator, symbols: Symbols) -> np.ndarray:
        documents = symbols.documents(ids)
        edges = np.concatenate(([0], (documents[1:] != documents[:-1]).nonzero()[0] + 1, [len(ids)]))
        sizes = edges[1:] - edges[:-1]
        start, size, shift = (of.repeat(sizes) for of in (edges[:-1], sizes, random.integers(sizes)))
        rotated: np.ndarray = ids[start + (np.arange(len(ids)) - start + shift) % size]
        return rotated


class T5Spans(Step):
    """Replaces each span in the source with a sentinel; a last sentinel ends the target.

    The lengths of the spans, and of the text between them, are drawn as in T5's code: all divisions of their totals
    are equally likely, the text begins without noise and ends with a span.

    Args:
        share: share of the tokens in spans.
        mean_span: tokens of a span on average.
    """

    name = "t5_spans"
    restores_whole = False
    least = 2
    share = 0.15

    def count_spans(self, tokens: int) -> tuple[int, int]:
        """Returns the numbers of tokens in spans and of spans."""
        noise = count_noise(tokens, self.share)
        return noise, max(1, min(round(noise / self.mean_span), tokens - noise))

    def count_targets(self, tokens: int) -> int:
        """Returns the number of tokens of a target."""
        return sum(self.count_spans(tokens)) + 1

    def check(self, tokens: int, symbols: Symbols) -> None:
        """Raises UserError for a text of so many tokens with more spans than sentinels."""
        self._check_sentinels(self.count_spans(max(tokens, self.least))[1], symbols)

    def __call__(self, ids: np.ndarray, random: np.random.Generator, symbols: Symbols) -> tuple[np.ndarray, np.ndarray]:
        text = ~symbols.special[ids]
        tokens = int(text.sum())
        self.check_text(tokens)
        noise, number = self.count_spans(tokens)
        lengths, gaps = _divide(random, noise, number), _divide(random, tokens - noise, number)
        inside, first = mark_spans(text, gaps, lengths)
        spans = int(first.sum())
        self._check_sentinels(spans, symbols)
        source = ids.copy()
        source[first] = symbols.sentinels[:spans]
        begins = first[inside]
        target = np.empty(len(begins) + spans + 1, dtype=ids.dtype)
        target[np.arange(len(begins)) + begins.cumsum()] = ids[inside]
        target[np.append(begins.nonzero()[0], len(begins)) + np.arange(spans + 1)] = symbols.sentinels[: spans + 1]
        return source[first | ~inside], target

    def _check_sentinels(self, spans: int, symbols: Symbols) -> None:
        sentinels = len(symbols.sentinels)
        if not sentinels:
            raise UserError(
                "the vocabulary has no sentinels (<extra_id_0> and further ones), which task.corruption=t5_spans "
                "needs: take another corruption, or a T5's tokenizer"
            )
        if spans >= sentinels:
            raise UserError(
                f"task.corruption=t5_spans needs {spans + 1} sentinels for {spans} spans and the end of the target, "
                f"and the vocabulary has {sentinels}: lower task.max_length or task.noise, or raise task.mean_span"
            )


def _divide(random: np.random.Generator, total: int, parts: int) -> np.ndarray:
    """Divides a total into so many parts of at least one, `[parts]`."""
    edges = np.zeros(parts + 1, dtype=np.int64)
    edges[1:-1] = np.sort(random.permutation(total - 1)[: parts - 1]) + 1
    edges[-1] = total
    return edges[1:] - edges[:-1]


CORRUPTIONS: dict[str, type[Step]] = {
    step.name: step
    for step in (T5Spans, Prefix, Deshuffle, Mass, Infilling, Permutation, Deletion, Rotation, Masked, Dropped)
}
_WITH_SHARE = [name for name, step in CORRUPTIONS.items() if step.share]


@dataclass(frozen=True)
class Corruption:
    """Options of a corruption, the keys of `conf/task/denoising.yaml`.

    Args:
        names: corruptions, which are applied one after another. Only those whose target is the whole text may be
            several.
        noise: share of the tokens that is hidden; None for that of each corruption.
        mean_span: mean length of spans in tokens.

    Raises:
        OptionError: for an unknown corruption or a number out of range.
        UserError: for several corruptions with targets of their own.
    """

    names: tuple[str, ...]
    noise: float | None = None
    mean_span: float = 3.0

    def __post_init__(self) -> None:
        if not self.names or any(name not in CORRUPTIONS for name in self.names):
            got = ", ".join(map(str, self.names)) or "nothing"
            raise OptionError("corruption", got, f"one or several of {', '.join(CORRUPTIONS)}")
        if self.noise is not None and not 0 < self.noise < 1:
            raise OptionError("noise", str(self.noise), "a share between 0 and 1, or null")
        if self.noise is not None and not set(self.names) & set(_WITH_SHARE):
            raise OptionError("noise", str(self.noise), f"null, because it is for {', '.join(_WITH_SHARE)}")
        if not 1 <= self.mean_span < float("inf"):
            raise OptionError("mean_span", str(self.mean_span), "a number of at least 1")
        own = [name for name in self.names if not CORRUPTIONS[name].restores_whole]
        if own and len(self.names) > 1:
            whole = ", ".join(name for name, of in CORRUPTIONS.items() if of.restores_whole)
            raise UserError(
                f"task.corruption={own[0]} has targets of its own and cannot be combined with others: leave out the "
                f"others, or combine {whole}"
            )

    def steps(self) -> list[Step]:
        """Returns the corruptions in their order."""
        return [CORRUPTIONS[name](self.noise, self.mean_span) for name in self.names]


class Corruptor:
    """Makes sources and targets of the sequences that a tokenizer's texts are packed into.

    Both are wrapped in the special tokens that the tokenizer puts around a text, the last of which ends it.

    Those of the tokenizer must end with a token for the end of a text.
    """

    def __init__(self, corruption: Corruption, tokenizer: "PreTrainedTokenizerBase", *, seed: int) -> None:
        self.corruption, self.seed, self.symbols = corruption, seed, Symbols.of(tokenizer)
        self._steps = corruption.steps()
        wrapped: list[int] = tokenizer("a")["input_ids"]
        inside: list[int] = tokenizer("a", add_special_tokens=False)["input_ids"]
        first = next(start for start in range(len(wrapped)) if wrapped[start : start + len(inside)] == inside)
        self._before, self._after = (
            np.array(of, dtype=np.int32) for of in (wrapped[:first], wrapped[first + len(inside) :])
        )

    def describe(self) -> list[object]:
        """Returns everything that a source and a target depend on besides sequence and visit."""
        symbols = self.symbols
        special = np.flatnonzero(symbols.special).tolist()
        return [asdict(self.corruption), self.seed, symbols.mask, symbols.sentinels.tolist(), special]

    def check_lengths(self, lengths: np.ndarray) -> None:
        """Raises UserError for lengths of sequences `[N]`, with special tokens, that cannot be corrupted so."""
        around = len(self._before) + len(self._after)
        for step in self._steps:
            step.check_text(int(lengths.min()) - around)
            step.check(int(lengths.max()) - around, self.symbols)

    def count_targets(self, lengths: np.ndarray) -> np.ndarray:
        """Returns the largest number of tokens of the target of a sequence of each length, `[N]`."""
        step, around = self._steps[0], len(self._before) + len(self._after)
        sizes, inverse = np.unique(lengths, return_inverse=True)
        targets = np.array([step.count_targets(int(size) - around) + around for size in sizes])
        return targets[inverse]

    def __call__(self, ids: np.ndarray, *, example: int, visit: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the source and the target of a sequence `[L]`, each with special tokens around it."""
        random = np.random.default_rng([self.seed, example, visit])
        text = ids[len(self._before) : len(ids) - len(self._after)]
        if self._steps[0].restores_whole:
            source, target = text, text
            for step in self._steps:
                source = step(source, random, self.symbols)
        else:
            source, target = self._steps[0](text, random, self.symbols)
        return self._wrap(source), self._wrap(target)

    def _wrap(self, ids: np.ndarray) -> np.ndarray:
        return np.concatenate((self._before, ids, self._after))
