"""Exact match and F1 of extracted answers, as SQuAD 1.1 (arXiv 1606.05250) and 2.0 (arXiv 1806.03822) define them.

Answers are compared without case, punctuation, articles, and differences in white space. An answer has the better score
of all correct ones. In SQuAD 2.0 a question without a correct answer is right if it gets none, and the questions with
an answer and those without one have metrics of their own too.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
