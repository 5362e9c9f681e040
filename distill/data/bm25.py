"""BM25, which ranks documents by the words that they share with a query."""

from collections.abc import Sequence

import numpy as np

from distill.errors import UserError

K1, B = 0.9, 0.4  # Those of Anserini and of the results of BEIR (arXiv 2104.08663).
CHUNK = 256  # Queries whose scores of all documents are in memory at once.


class BM25:
    """The BM25 of Lucene (Robertson and Zaragoza 2009, equation 3.15), of lower-case words without English stop words.

    A word t of a query adds `idf(t) * f / (f + k1 * (1 - b + b * n / mean n))` to a document of n words that has it f
    times, with `idf(t) = ln(1 + (N - N_t + 0.5) / (N_t + 0.5))` for the `N_t` of N documents that have it. Words have
    at least two letters or digits, and are not stemmed.

    Args:
        documents: the texts to rank.
        k1, b: the parameters of the formula.

    Raises:
        UserError: for documents without a word.
    """

    def __init__(self, documents: Sequence[str], *, k1: float = K1, b: float = B) -> None:
        from sklearn.feature_extraction.text import CountVectorizer

        self._vectorizer = CountVectorizer(stop_words="english")
        try:
            weights = self._vectorizer.fit_transform(documents).astype(np.float64)  # [D, V], counts
        except ValueError as error:
            raise UserError(
                f"the {len(documents):,} documents have no words to rank them by with BM25: set task.candidates to a "
                "bundle of vectors"
            ) from error
        found = np.bincount(weights.indices, minlength=weights.shape[1])
        idf = np.log1p((len(documents) - found + 0.5) / (found + 0.5))
        lengths = np.asarray(weights.sum(axis=1))[:, 0]
        norms = k1 * (1 - b + b * lengths / lengths.mean())
        of_entry = np.repeat(norms, np.diff(weights.indptr))
        weights.data *= idf[weights.indices] / (weights.data + of_entry)
        self._weights = weights

    def search(self, queries: Sequence[str], k: int) -> list[list[int]]:
        """Returns the numbers of the `k` best documents of each query, the best first; of equal ones the earlier first.

        A query has fewer of them if fewer documents share a word with it.
        """
        found: list[list[int]] = []
        for first in range(0, len(queries), CHUNK):
            counts = self._vectorizer.transform(queries[first : first + CHUNK])
            for scores in (counts @ self._weights.T).toarray():  # [D] of each query
                best = np.argsort(-scores, kind="stable")[:k]
                found.append(best[scores[best] > 0].tolist())
        return found
