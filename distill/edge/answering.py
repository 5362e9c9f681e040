"""Answers in spans of a context, and the metrics of answers.

Exact match and F1 of extracted answers, as SQuAD 1.1 (arXiv 1606.05250) and 2.0 (arXiv 1806.03822) define them. Answers
are compared without case, punctuation, articles, and differences in white space. An answer has the better score of all
correct ones. In SQuAD 2.0 a question without a correct answer is right if it gets none, and the questions with an
answer and those without one have metrics of their own too.

Extractive answers: windows of a long context, and the best span of each question over its windows. A window is one row
of the model. Its classes are its tokens: class 0 is the first token of the row (`[CLS]`), which stands for no answer,
and the tokens of the context stand for the characters at which an answer starts or ends.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

from distill.edge.decoder import MASKED, Floats, TooLongError

PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Returns a text in the form in which answers are compared."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def normalize_references(answers: Sequence[str], *, may_be_unanswerable: bool) -> tuple[str, ...]:
    """Returns the different correct answers to a question in the form in which they are compared.

    Where questions may have no answer (SQuAD 2.0), a correct answer that is empty in this form does not count, and a
    question without any has the empty one.
    """
    references = tuple(dict.fromkeys(map(normalize_answer, answers)))
    if not may_be_unanswerable:
        return references
    return tuple(filter(None, references)) or ("",)


def score_answer(answer: str | None, references: Sequence[str], *, may_be_unanswerable: bool) -> tuple[float, float]:
    """Returns exact match and F1 of an answer, compared with those of `normalize_references`.

    No answer counts as the empty text. F1 is that of the words. With an empty text there is none in SQuAD 1.1, and in
    2.0 it is 1 if both are empty.
    """
    given = normalize_answer(answer or "")
    exact = float(given in references)
    words = given.split()
    best = 0.0
    for reference in references:
        expected = reference.split()
        if not words or not expected:
            best = max(best, float(may_be_unanswerable and words == expected))
            continue
        shared = sum((Counter(words) & Counter(expected)).values())
        best = max(best, 2 * shared / (len(words) + len(expected)))
    return exact, best


def average_scores(values: NDArray[np.floating], is_answered: NDArray[np.bool_]) -> dict[str, float]:
    """Returns the means of F1 and exact match of all questions and, if only some have an answer, of the two kinds.

    `has_answer_f1`, `no_answer_exact_match` and so on are `HasAns_f1`, `NoAns_exact` and so on of the official script
    of SQuAD 2.0. Of questions without an answer both are the share of those that get none.

    Args:
        values: exact match and F1 of each question, `[Q, 2]`.
        is_answered: whether a question has a correct answer, `[Q]`.
    """
    kinds = {"": np.ones_like(is_answered)}
    if is_answered.any() and not is_answered.all():
        kinds |= {"has_answer_": is_answered, "no_answer_": ~is_answered}
    metrics: dict[str, float] = {}
    for prefix, chosen in kinds.items():
        exact, f1 = values[chosen].mean(axis=0)
        metrics |= {f"{prefix}f1": float(f1), f"{prefix}exact_match": float(exact)}
    return metrics


Integers = NDArray[np.integer]

NO_ANSWER = -1  # In place of a character, of the token that stands for no answer.
NO_CLASS = -2  # Of a token that no answer can start or end at: of the question, a separator, or padding.
_CHUNK = 2048  # Windows whose spans are in memory at once.


@dataclass(frozen=True)
class Window:
    """One row of the model: the question and a part of the context.

    Attributes:
        ids, type_ids, attention_mask: `[tokens]`.
        characters: `[2, tokens]`, the character at which an answer would start, and that at which it would end
            (exclusive), if its first or last token is this one; `NO_ANSWER` and `NO_CLASS` for the others.
    """

    ids: Integers
    type_ids: Integers
    characters: Integers

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def attention_mask(self) -> Integers:
        return np.ones_like(self.ids)


def cut_windows(encoding: Encoding, *, max_length: int, doc_stride: int) -> list[Window]:
    """Cuts a question and its whole context into windows.

    A window has at most `max_length` tokens, the whole question and special tokens among them, and neighbouring windows
    share `doc_stride` tokens of the context. A question that fits into one window with its whole context has that one.

    Raises:
        ValueError: with the reason in words, if the question is so long that a second window would show no new token of
            the context, the context has no tokens, or no special token comes first.
    """
    sequences = encoding.sequence_ids
    if sequences[0] is not None:
        raise ValueError("the tokenizer puts no special token such as [CLS] first, which stands for no answer")
    question, context = sequences.count(0), sequences.count(1)
    if not context:
        raise ValueError("the context has no tokens")
    special = len(sequences) - question - context
    longest = max_length - special - doc_stride - 1
    if len(sequences) > max_length and question > longest:
        raise TooLongError(
            f"the question has {question} tokens and its context {context}, which do not fit into one window of "
            f"{max_length} tokens; at most {longest} leave room for new tokens of the context in windows that share "
            f"{doc_stride}"
        )
    first = sequences.index(1)
    last, room = first + context, max_length - special - question
    starts = [first]
    while starts[-1] + room < last:
        starts.append(starts[-1] + room - doc_stride)
    ids, type_ids = np.array(encoding.ids), np.array(encoding.type_ids)
    offsets = np.array(encoding.offsets[first:last]).T
    windows = []
    for start in starts:
        end = min(start + room, last)
        chosen = np.r_[0:first, start:end, last : len(ids)]
        characters = np.full((2, len(chosen)), NO_CLASS)
        characters[:, 0] = NO_ANSWER
        characters[:, first : first + end - start] = offsets[:, start - first : end - first]
        windows.append(Window(ids[chosen], type_ids[chosen], characters))
    return windows


def mask_classes(logits: Floats, characters: Integers) -> Floats:
    """Returns float32 logits with `MASKED` at the tokens that no answer can start or end at."""
    return np.where(characters == NO_CLASS, MASKED, logits).astype(np.float32)


@dataclass(frozen=True)
class Answers:
    """The best span of each question, in ascending order of the questions.

    Attributes:
        question: `[Q]`, the number of each question.
        start, end: `[Q]`, first and last (exclusive) character of the best span.
        score: `[Q]`, the sum of its two logits.
        null_score: `[Q]`, the sum of the two logits of no answer, the smallest of the windows (as in BERT's code).
        mass: `[Q]`, the logarithm of the sum of `exp(score)` over the `n_best` spans.
    """

    question: Integers
    start: Integers
    end: Integers
    score: Floats
    null_score: Floats
    mass: Floats

    @property
    def null_difference(self) -> Floats:
        """By how much no answer scores above the best span, `[Q]`."""
        return self.null_score - self.score

    def is_null(self, threshold: Floats | float | None) -> NDArray[np.bool_]:
        """Returns which questions get no answer, `[Q]`, by one threshold or one each: none where it is None."""
        limit: Floats | float = np.inf if threshold is None else threshold
        return np.asarray(self.null_difference > limit)

    def probability(self, threshold: Floats | float | None) -> Floats:
        """Returns the probability of each prediction, `[Q]`, by one threshold or one each.

        It is shared between the `n_best` spans and, with a threshold, no answer, whose score is then less by the
        threshold, so that the prediction is the most probable of them.
        """
        if threshold is None:
            return np.asarray(np.exp(self.score - self.mass))
        null_score = self.null_score - threshold
        return np.asarray(np.exp(np.maximum(self.score, null_score) - np.logaddexp(self.mass, null_score)))


@dataclass(frozen=True)
class Candidates:
    """The `n_best` spans of each question, in ascending order of the questions and the best of each first.

    Attributes:
        question: `[Q]`, the number of each question.
        null_score: `[Q]`, as in `Answers`.
        of: `[S]`, the position of the question of each span.
        start, end, score: `[S]`, as in `Answers`.
    """

    question: Integers
    null_score: Floats
    of: Integers
    start: Integers
    end: Integers
    score: Floats

    def best(self) -> Answers:
        """Returns the best span of each question."""
        first = np.searchsorted(self.of, np.arange(len(self.question)))
        largest = self.score[first]
        total = np.zeros(len(self.question))
        np.add.at(total, self.of, np.exp(self.score - largest[self.of]))
        mass = largest + np.log(total)
        return Answers(self.question, self.start[first], self.end[first], largest, self.null_score, mass)

    def probabilities(self, threshold: float | None) -> Floats:
        """Returns the probability of each span, `[S]`, as in `Answers.probability`.

        Those of a question sum to 1, or with a threshold to 1 less the probability of no answer.
        """
        mass = self.best().mass
        total = mass if threshold is None else np.logaddexp(mass, self.null_score - threshold)
        return np.asarray(np.exp(self.score - total[self.of]))


def find_candidates(
    logits: Floats, characters: Integers, question: Integers, *, n_best: int, max_answer_length: int
) -> Candidates:
    """Returns the best spans of each question.

    A span scores the sum of the logit of its start and the logit of its end. Those of the `n_best` best starts of a
    window are compared, over all windows of a question. A span that two windows show counts once, with its better
    score.

    Args:
        logits: `[2 * windows, C]`, of the starts and of the ends of each window in turn.
        characters: `[2 * windows, C]`, as in `Window`.
        question: `[windows]`, the question of each window.
        n_best: spans that a probability is shared between.
        max_answer_length: tokens of an answer at most.
    """
    # A logit that is no number is the least likely, so that a damaged model has poor answers and not none.
    known = np.where(np.isfinite(logits), logits, MASKED).astype(np.float64)
    starts, ends = known[::2], known[1::2]
    chunks = [
        _find_spans(starts[rows], ends[rows], characters[::2][rows] >= 0, n_best, max_answer_length)
        for rows in (slice(first, first + _CHUNK) for first in range(0, len(starts), _CHUNK))
    ]
    window = np.concatenate([chunk[0] + number * _CHUNK for number, chunk in enumerate(chunks)])
    first, last, score = (np.concatenate([chunk[part] for chunk in chunks]) for part in (1, 2, 3))
    start, end = characters[2 * window, first], characters[2 * window + 1, last]
    numbers, group = np.unique(question, return_inverse=True)
    null_score = np.full(len(numbers), np.inf)
    np.minimum.at(null_score, group, starts[:, 0] + ends[:, 0])
    order, of = _rank(group[window], start, end, score, n_best)
    return Candidates(numbers, null_score, of, start[order], end[order], score[order])


def _find_spans(
    starts: Floats, ends: Floats, in_context: NDArray[np.bool_], n_best: int, longest: int
) -> tuple[Integers, Integers, Integers, Floats]:
    """Returns window, first token, last token and score of up to `n_best` spans of each window `[W, C]`."""
    windows = len(starts)
    starts = np.where(in_context, starts, -np.inf)
    # A start at the edge finds the ends beyond it masked.
    ends = np.pad(np.where(in_context, ends, -np.inf), ((0, 0), (0, longest)), constant_values=-np.inf)
    best = np.argsort(-starts, axis=1, kind="stable")[:, :n_best]
    rows = np.arange(windows)[:, None]
    last = best[:, :, None] + np.arange(longest)
    scores = (starts[rows, best][:, :, None] + ends[rows[:, :, None], last]).reshape(windows, -1)
    kept = min(n_best, scores.shape[1])
    chosen = np.argpartition(-scores, kept - 1, axis=1)[:, :kept]
    first_token, length = best[rows, chosen // longest], chosen % longest
    score = scores[rows, chosen]
    window, column = np.nonzero(np.isfinite(score))
    first = first_token[window, column]
    return window, first, first + length[window, column], score[window, column]


def _rank(group: Integers, start: Integers, end: Integers, score: Floats, n_best: int) -> tuple[Integers, Integers]:
    """Returns the `n_best` different spans of each question, the best first: their positions and their questions."""
    order = np.lexsort((-score, end, start, group))
    spans = np.stack([group, start, end])[:, order]
    order = order[np.concatenate([[True], (np.diff(spans) != 0).any(axis=0)])]
    order = order[np.lexsort((end[order], start[order], -score[order], group[order]))]
    of = group[order]
    rank = np.arange(len(of)) - np.searchsorted(of, of)
    chosen = rank < n_best
    return order[chosen], of[chosen]


def fit_threshold(null_difference: Floats, span_metrics: Floats, null_metrics: Floats) -> float:
    """Returns the threshold of `null_difference [Q]` with the largest mean metric.

    A question whose difference is above it gets no answer. The threshold is between two differences, so that rounding
    changes nothing. Of several best ones it is the one closest to 0.

    Args:
        span_metrics, null_metrics: `[Q]`, the metric of each question with its best span, and without an answer.
    """
    order = np.argsort(null_difference, kind="stable")
    ordered = null_difference[order]
    gains = np.concatenate([[0.0], np.cumsum((span_metrics - null_metrics)[order])])
    cuts = np.concatenate([[ordered[0] - 1], (ordered[1:] + ordered[:-1]) / 2, [ordered[-1] + 1]])
    apart = np.concatenate([[True], np.diff(ordered) > 0, [True]])
    best = np.flatnonzero(apart & (gains >= gains[apart].max() - 1e-9))
    return float(min(cuts[best], key=abs))
