"""The examples that are labelled next: those of which a linear model of seconds is least sure, spread over clusters."""

from collections.abc import Mapping, Sequence

import numpy as np

WIDER = 5  # Times as many uncertain examples as are chosen, from which one of each cluster is taken.
MOST_WORDS = 50_000


class Selector:
    """Chooses examples by a logistic regression on the TF-IDF of their words.

    Uncertainty is the smallest difference of the two largest probabilities (Scheffer et al., 2001), and diversity one
    example of each of as many clusters as are chosen (Zhdanov, arXiv 1901.05954, section 3).

    Args:
        texts: of all examples.
        seed: of the choice.
    """

    def __init__(self, texts: Sequence[str], seed: int) -> None:
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.preprocessing import normalize

        # Words of one letter and marks too, so that every text has some.
        words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), max_features=MOST_WORDS, token_pattern=r"\w+|\S")
        self._words = words.fit_transform(texts)
        width = min(100, self._words.shape[1] - 1, len(texts) - 1)
        self._vectors = normalize(TruncatedSVD(max(1, width), random_state=seed).fit_transform(self._words))
        self._random, self._seed = np.random.default_rng(seed), seed

    def draw(self, rows: Sequence[int], number: int) -> list[int]:
        """Returns so many of these examples at random."""
        chosen: list[int] = self._random.permutation(rows)[:number].tolist()
        return chosen

    def choose(self, rows: Sequence[int], labels: Mapping[int, str], number: int) -> list[int]:
        """Returns so many of these examples, given the labels of others.

        Args:
            labels: by the number of the example.
        """
        from sklearn.cluster import KMeans
        from sklearn.linear_model import LogisticRegression

        if len(set(labels.values())) < 2:
            return self.draw(rows, number)
        model = LogisticRegression(C=10, max_iter=300).fit(self._words[list(labels)], list(labels.values()))
        ordered = np.sort(model.predict_proba(self._words[rows]), axis=1)
        margins = ordered[:, -1] - ordered[:, -2]
        uncertain = np.argsort(margins, kind="stable")[: WIDER * number]
        if len(uncertain) <= number:
            return [rows[place] for place in uncertain]
        vectors = self._vectors[[rows[place] for place in uncertain]]
        clusters = KMeans(number, n_init=1, max_iter=20, random_state=self._seed).fit(vectors).labels_
        first = {int(cluster): int(place) for place, cluster in reversed(list(zip(uncertain, clusters, strict=True)))}
        others = [int(place) for place in uncertain if int(place) not in first.values()]
        return [rows[place] for place in [*first.values(), *others][:number]]
