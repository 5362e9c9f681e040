"""Linear models on the TF-IDF of words by scikit-learn: their fitting, and what they reach on the rows of a table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from distill.core.errors import UserError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix
    from sklearn.feature_extraction.text import TfidfVectorizer

PENALTIES = (0.3, 1.0, 3.0, 10.0, 30.0)  # `C` of scikit-learn, the inverse of the regularisation.
RARITIES = (1, 2)  # Texts of train that a word is in at least, `min_df`.
TUNED = 30_000  # Rows of train on which models are compared, at most.
ESTIMATED, CHARACTERS, FOLDED = 10_000, 1_000_000, 2_000_000  # Rows of an estimate; characters, and times the classes.
NEVER = -30.0  # The logit of a class that train has no row of.

# Returns weights `[V, C]` and a bias `[C]` for features `[N, V]`, labels and a penalty.
Fit = Callable[["csr_matrix", np.ndarray, float], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class WordModel:
    """The pipeline of `TfidfVectorizer` and a linear estimator: `weights [V, C]` and `bias [C]`."""

    vectorizer: "TfidfVectorizer"
    weights: np.ndarray
    bias: np.ndarray
    penalty: float


def fit_classes(
    features: "csr_matrix", labels: np.ndarray, penalty: float, *, classes: int, weights: Sequence[float] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Fits a logistic regression; each of two classes has half of its weights. `weights` are those of the classes."""
    from sklearn.linear_model import LogisticRegression

    known = np.unique(labels)
    coefficients, bias = np.zeros((features.shape[1], classes)), np.full(classes, NEVER)
    bias[known] = 0
    if len(known) > 1:
        of_classes = None if weights is None else {label: weights[label] for label in known}
        model = LogisticRegression(C=penalty, class_weight=of_classes, max_iter=1000).fit(features, labels)
        halves = np.array([[-0.5], [0.5]]) if len(known) == 2 else np.eye(len(known))
        coefficients[:, known], bias[known] = (halves @ model.coef_).T, halves @ model.intercept_
    return coefficients, bias


def fit_labels(features: "csr_matrix", labels: np.ndarray, penalty: float) -> tuple[np.ndarray, np.ndarray]:
    """Fits a logistic regression for each label `[N, C]`, NaN where it is not known."""
    fitted = []
    for label in labels.T:
        rows = ~np.isnan(label)
        fitted.append(fit_classes(features[rows], label[rows].astype(int), penalty, classes=2))
    weights, bias = (np.stack(values, axis=-1) for values in zip(*fitted, strict=True))  # [V, 2, C], [2, C]
    return weights[:, 1] - weights[:, 0], bias[1] - bias[0]


def fit_numbers(features: "csr_matrix", labels: np.ndarray, penalty: float) -> tuple[np.ndarray, np.ndarray]:
    """Fits a ridge regression."""
    from sklearn.linear_model import Ridge

    model = Ridge(alpha=1 / penalty).fit(features, labels)
    return model.coef_[:, None], np.array([model.intercept_])


def read_words(texts: np.ndarray, min_df: int) -> "tuple[TfidfVectorizer, csr_matrix] | None":
    """Returns the words that stand in so many texts `[N]`, and the features `[N, V]`; None without any word."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(sublinear_tf=True, min_df=min_df)
    try:
        return vectorizer, vectorizer.fit_transform(texts)
    except ValueError:
        return None


def tune(
    texts: np.ndarray, labels: np.ndarray, fit: Fit, *, dev: np.ndarray, score: Callable[[np.ndarray], float]
) -> WordModel:
    """Returns the model of `PENALTIES` and `RARITIES` that is best on the texts `dev`, fitted to all rows.

    Args:
        score: of logits for dev `[M, C]`; more is better.

    Raises:
        UserError: for texts without words.
    """
    part = np.random.default_rng(0).permutation(len(texts))[:TUNED]
    best, value = None, -np.inf
    for min_df in RARITIES:
        if (read := read_words(texts[part], min_df)) is None:
            continue
        of_dev = read[0].transform(dev)
        for penalty in PENALTIES:
            model = WordModel(read[0], *fit(read[1], labels[part], penalty), penalty)
            if (reached := score(of_dev @ model.weights + model.bias)) > value:
                best, value = model, reached
    if best is None or (read := read_words(texts, best.vectorizer.min_df)) is None:
        raise UserError("no text of train has a word of two letters or digits: take another student")
    return WordModel(read[0], *fit(read[1], labels, best.penalty), best.penalty)


def estimate(texts: Sequence[str], labels: Sequence[str]) -> dict[str, Any]:
    """Returns the accuracy of the most frequent class and of TF-IDF with logistic regression, within ten seconds.

    A row is predicted by a model of the rows of other texts, four fifths of all. Of a large table a part is read.

    Returns:
        The number of `rows`, the `majority` and the `accuracy`, and the 95% `interval` of the latter.
    """
    from scipy.stats import binomtest

    names, numbers = np.unique(labels, return_inverse=True)
    order = np.random.default_rng(0).permutation(len(texts))[:ESTIMATED]
    sizes = np.cumsum([len(texts[row]) for row in order])
    order = order[sizes <= max(sizes[0], min(CHARACTERS, 20 * FOLDED // len(names)))]
    rows, numbers = np.array(texts, dtype=object)[order], numbers[order]
    unique, groups = np.unique(rows, return_inverse=True)
    folds = np.random.default_rng(1).permutation(len(unique))[groups] % 5
    counts, predicted = np.bincount(numbers), np.full(len(rows), np.bincount(numbers).argmax())
    is_read = folds < (5 if sizes[len(order) - 1] * len(names) <= FOLDED else 1)
    for fold in np.unique(folds[is_read]):
        held = folds == fold
        if (read := read_words(rows[~held], 1)) is not None:
            weights, bias = fit_classes(read[1], numbers[~held], 3.0, classes=len(names))
            predicted[held] = (read[0].transform(rows[held]) @ weights + bias).argmax(axis=1)
    share = binomtest(int((predicted == numbers)[is_read].sum()), int(is_read.sum()))
    return {
        "rows": share.n, "majority": float(counts.max() / counts.sum()), "accuracy": float(share.statistic),
        "interval": tuple(map(float, share.proportion_ci(method="wilson"))),
    }  # fmt: skip
