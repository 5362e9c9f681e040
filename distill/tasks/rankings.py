"""Metrics of rankings: nDCG@k, recall@k and MRR@k of the documents that are found for queries."""

from collections.abc import Mapping, Sequence

import numpy as np

DEPTH = 100  # Documents of a ranking that are scored.
METRICS = ("ndcg@10", "recall@10", "recall@100", "mrr@10")
NO_DOCUMENT = -1  # In place of a document, where a ranking has fewer than others.


def score_rankings(rankings: np.ndarray, gains: Sequence[Mapping[int, int]]) -> dict[str, np.ndarray]:
    """Returns the metrics of each query by name, `[Q]` each from 0 to 1.

    nDCG is that of trec_eval: the gain of a document is its score, and the discount of rank r is `log2(r + 1)`. The
    ideal ranking has all relevant documents of the query, found or not (Jarvelin and Kekalainen 2002, section 2.2).

    Args:
        rankings: `[Q, k]`, the numbers of the documents found for each query, the best ones first; `k` is at least
            `DEPTH`, or the size of the corpus.
        gains: of each query's relevant documents, all above 0, by their number.
    """
    found = np.zeros(rankings.shape)
    for row, of_query in enumerate(gains):
        found[row] = [of_query.get(document, 0) for document in rankings[row].tolist()]
    ideal = np.zeros((len(gains), 10))
    for row, of_query in enumerate(gains):
        best = sorted(of_query.values(), reverse=True)[:10]
        ideal[row, : len(best)] = best
    relevant = np.array([len(of_query) for of_query in gains])
    hits = found > 0
    ranks = np.arange(1, hits[:, :10].shape[1] + 1)
    return {
        "ndcg@10": _discount(found[:, :10]) / _discount(ideal),
        "recall@10": hits[:, :10].sum(axis=1) / relevant,
        "recall@100": hits[:, :100].sum(axis=1) / relevant,
        "mrr@10": (hits[:, :10] / ranks).max(axis=1, initial=0),
    }


def drop_own(rankings: np.ndarray, queries: np.ndarray, own: Mapping[int, int]) -> np.ndarray:
    """Returns rankings `[Q, k]` of documents without those that the queries are themselves, as BEIR evaluates them.

    The later documents move up, and `NO_DOCUMENT` is behind the last one.

    Args:
        queries: the numbers of the queries, `[Q]`.
        own: the document that a query is itself, by their numbers.
    """
    of_query = np.array([own.get(int(query), NO_DOCUMENT - 1) for query in queries])
    is_own = rankings == of_query[:, None]
    order = np.argsort(is_own, axis=1, kind="stable")
    return np.take_along_axis(np.where(is_own, NO_DOCUMENT, rankings), order, axis=1)


def _discount(gains: np.ndarray) -> np.ndarray:
    """Returns the discounted cumulative gain of rankings `[Q, k]`, `[Q]`."""
    discounted: np.ndarray = (gains / np.log2(np.arange(2, gains.shape[1] + 2))).sum(axis=1)
    return discounted
