"""Spans of text that sentinels stand for: the target names each sentinel and the tokens behind it (T5).

Raffel et al., arXiv 1910.10683, section 3.1.4 and figure 2: 15% of the tokens, in spans of three on average.
"""

import numpy as np

from distill.errors import UserError
from distill.text.corruptions.symbols import Symbols, check_text, count_noise, mark_spans


class T5Spans:
    """Replaces each span in the source with a sentinel; a last sentinel ends the target.

    The lengths of the spans, and of the text between them, are drawn as in T5's code: all divisions of their totals
    are equally likely, the text begins without noise and ends with a span.

    Args:
        share: share of the tokens in spans.
        mean_span: tokens of a span on average.
    """

    restores_whole = False
    least = 2

    def __init__(self, share: float = 0.15, mean_span: float = 3.0) -> None:
        self.share, self.mean_span = share, mean_span

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
        check_text(tokens, self.least, "t5_spans")
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
