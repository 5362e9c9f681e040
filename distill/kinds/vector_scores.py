"""Metrics of vectors: correlations of cosines with scores of pairs, rankings of documents, and translations."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from distill.core.console import print_notice
from distill.core.contracts import Constant, Scores
from distill.core.errors import UserError
from distill.data.labelled_text import read_text_column
from distill.data.retrieval import GroupColumns, Judgements, read_retrieval, replace_train
from distill.data.sources import TableSource, check_columns
from distill.data.splits import LabelledData, Split
from distill.edge.index import RESCORED, Index, VectorForm, find_nearest, match_pairs, similarity
from distill.edge.metrics import DEPTH, NUMBER_METRICS, compute_metrics, score_rankings
from distill.kinds.scoring import MeanScoring, NumberScoring
from distill.rows.columns import Table

METRICS = ("ndcg@10", "recall@10", "recall@100", "mrr@10")
NO_DOCUMENT = -1  # In place of a document, where a ranking has fewer than others.


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


COSINE = "cosine"  # The column of condensed scores of pairs.
DIGITS = 6  # Of a score, which float32 holds.
SHOWN = 10  # Documents of a ranking in predictions.parquet.
LEAST_OTHER = 2.0  # A score that is on another scale than those up to 1.
NARROW = 0.5  # Share of the scale that the scores of train usually cover.
CORRELATIONS = ("spearman", "pearson")
ACCURACY = "accuracy"


@dataclass(frozen=True)
class VectorScores(NumberScoring):
    """The vectors of texts, of which a kind of data compares the cosines with its labels.

    Args:
        names: the metrics.
        pooling: of the hidden states of a text.
        normalize: whether vectors have length 1.
        prompts: of queries and documents, with which their texts begin already.
    """

    scores_pairs: ClassVar[bool] = False  # Whether the data has pairs with scores, whose range is that of similarities.

    names: tuple[str, ...]
    pooling: str = "auto"
    normalize: bool = True
    prompts: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_roles(self) -> bool:
        """Whether a text is a query or a document."""
        return False

    def read(self, columns: GroupColumns, source: TableSource, cache_dir: Path) -> LabelledData:
        """Reads every split; returns the data with the scoring for it."""
        raise TypeError(f"{type(self).__name__} has no read(columns, source, cache_dir)")

    def values(self, scores: Scores) -> np.ndarray:
        """The cosines of the pairs."""
        return _pairs(scores)[0]

    def scale(self, labels: np.ndarray, splits: LabelledData, split: str) -> np.ndarray:
        """The labels `[N]` of the batches of a split, which are numbers of queries or languages as they are."""
        return labels

    def summarize_dev(self, splits: LabelledData) -> str:
        """The contents of dev in words."""
        raise TypeError(f"{type(self).__name__} has no summarize_dev(splits)")

    def narrow(
        self, scores: Scores, dimensions: Sequence[int], teacher: Scores | None = None
    ) -> Sequence[tuple[VectorForm, Scores]]:
        """The scores of these first dimensions."""
        vectors = scores.columns["logits"]
        return [(VectorForm(size), self.condense(scores.with_columns(logits=vectors[:, :size]))) for size in dimensions]

    def constants(self, scores: Scores) -> Sequence[Constant]:
        """The same vector for every text: rankings are then in the order of the corpus, and nothing correlates."""

        def predict(scores: Scores) -> Scores:
            return replace(scores, columns={"logits": np.ones((len(scores.labels), 1), dtype=np.float32)})

        return [Constant("always the same vector", predict)]

    def describe(self, splits: LabelledData) -> dict[str, Any]:
        return {
            "labels": [],
            "answer": "vector",
            "pooling": self.pooling,
            "normalize": self.normalize,
            **({"prompts": dict(self.prompts)} if self.prompts else {}),
            "pipeline_tag": "sentence-similarity",
            "prediction": "Encodes a text as a vector: texts of similar meaning have vectors with a large cosine.",
            "example": r"$'a sentence\tanother one'",
        }

    def summary(self, splits: LabelledData) -> str:
        length = " of length 1" if self.normalize else ""
        pooling = "" if self.pooling == "auto" else f" by {self.pooling} pooling"
        return f"a vector{length}{pooling}; {self.summarize_dev(splits)}"


class PairScores(VectorScores):
    """The correlations of the cosines of pairs with their scores."""

    scores_pairs = True
    is_correlation = True

    def read(self, columns: GroupColumns, source: TableSource, cache_dir: Path) -> LabelledData:
        """Reads every split.

        Raises:
            UserError: for data that cannot be read, and if all scores of dev are equal.
        """
        data = columns.read(source, cache_dir)
        scores = data.splits["dev"].labels
        if len(np.unique(scores)) < 2:
            raise UserError(
                f"dev has {len(scores)} pairs with the score {scores[0]:g} and no other, with which nothing "
                "correlates: give pairs with different scores"
            )
        _report_scales(data)
        return replace(data, scoring=self)

    def metrics(self, scores: Scores) -> dict[str, float]:
        """The correlations; one with a constant is 0."""
        return compute_metrics(NUMBER_METRICS, self.names, *_pairs(scores))

    def condense(self, scores: Scores) -> Scores:
        """The scores with the cosine of each text with the first text of its example in place of the vectors."""
        return replace(scores, columns={COSINE: _cosines(scores)})

    def spoil_all(self, scores: Scores) -> Scores:
        """Condensed scores whose cosines fall as the scores rise, in the range of the cosines."""
        cosines, labels = _pairs(scores)
        slope = float(cosines.std()) / max(float(labels.std()), 1e-12)
        # Labels stand at both texts of a pair. Cosines are read at the second one alone.
        spoiled = cosines.mean() - slope * (scores.labels.astype(np.float64) - labels.mean())
        return scores.with_columns(**{COSINE: spoiled})

    def tabulate(self, scores: Scores, splits: LabelledData, *, examples: int) -> dict[str, list[Any]]:
        """The scores of the pairs, and their cosines as the predictions."""
        cosines, labels = _pairs(scores)
        low, high = score_range(splits)
        labels = np.round(labels.astype(np.float64) * (high - low) + low, DIGITS)
        return {"label": labels.tolist(), "prediction": cosines.tolist(), "probability": [None] * examples}

    def scale(self, labels: np.ndarray, splits: LabelledData, split: str) -> np.ndarray:
        """The scores from 0 to 1."""
        low, high = score_range(splits, split)
        return np.asarray((labels - low) / (high - low), dtype=np.float32)

    def summarize_dev(self, splits: LabelledData) -> str:
        labels = splits.splits["dev"].labels
        return f"dev has pairs with scores {labels.min():g} to {labels.max():g}"


@dataclass(frozen=True)
class RankingScores(MeanScoring, VectorScores):
    """The rankings of a corpus by cosine for each query, compared with the relevant documents.

    Args:
        negatives: as for `read_retrieval`.
        data: the judgements of a retrieval set, None before it is read.
    """

    negatives: int = 0
    data: Judgements | None = None

    @property
    def has_roles(self) -> bool:
        return True

    def read(self, columns: GroupColumns, source: TableSource, cache_dir: Path) -> LabelledData:
        """Reads a retrieval set, whose columns have names of their own."""
        data, judgements = read_retrieval(source, negatives=self.negatives)
        return replace(data, scoring=replace(self, data=judgements))

    def condense(self, scores: Scores) -> Scores:
        """The metrics of each query, one row a query."""
        if self.names[0] in scores.columns:
            return scores
        return self._score(scores, self._rank(scores, DEPTH))

    def narrow(
        self, scores: Scores, dimensions: Sequence[int], teacher: Scores | None = None
    ) -> Sequence[tuple[VectorForm, Scores]]:
        """Further the scores of searches in an index of whole vectors, of each precision, and in that of a teacher."""
        width = scores.columns["logits"].shape[-1]
        cuts = [size for size in dimensions if size != width]
        forms = [VectorForm(width, "float32"), VectorForm(width, "int8"), VectorForm(width, "binary"),
                 VectorForm(width, "binary", RESCORED)]  # fmt: skip
        found = [*super().narrow(scores, cuts), *self._search(scores, scores, forms)]
        if teacher is None or teacher.columns["logits"].shape[-1] != width:
            return found
        among = [form._replace(documents="teacher") for form in (*map(VectorForm, cuts), *forms)]
        return [*found, *self._search(scores, teacher, among)]

    def _search(
        self, scores: Scores, corpus: Scores, forms: Sequence[VectorForm]
    ) -> Iterator[tuple[VectorForm, Scores]]:
        """Yields the scores of the queries of a model in each form of the index of another one, of the same texts."""
        queries = scores.columns["logits"][_queries(scores)]
        vectors, documents = corpus.columns["logits"][_documents(corpus)], _documents(scores)
        for form in forms:
            index = Index(vectors, precision=form.precision, dimensions=form.dimensions)
            _, nearest = index.search(queries, DEPTH + bool(self._data().own), rescore=form.rescore)
            yield form, self._score(scores, self._numbers(scores, documents[nearest]))

    def values(self, scores: Scores) -> np.ndarray:
        """The cosines of all queries and documents, which are held at once."""
        queries, documents = _queries(scores), _documents(scores)
        vectors = scores.columns["logits"]
        return similarity(vectors[queries], vectors[documents]).ravel()

    def tabulate(self, scores: Scores, splits: LabelledData, *, examples: int) -> dict[str, list[Any]]:
        """The ids of the relevant and of the best documents of each query; None for the documents."""
        data, queries = self._data(), _queries(scores)
        labels: list[list[str] | None] = [None] * examples
        predictions: list[list[str] | None] = [None] * examples
        for item, ranking in zip(queries.tolist(), self._rank(scores, SHOWN).tolist(), strict=True):
            labels[item] = [data.documents[number] for number in data.gains[int(scores.labels[item])]]
            predictions[item] = [data.documents[number] for number in ranking if number != NO_DOCUMENT]
        return {"label": labels, "prediction": predictions, "probability": [None] * examples}

    def summarize_dev(self, splits: LabelledData) -> str:
        dev: Split = splits.splits["dev"]
        queries = int((dev.labels >= 0).sum())
        return f"dev has {queries:,} queries and {len(dev) - queries:,} documents"

    def _data(self) -> Judgements:
        if self.data is None:
            raise ValueError("the judgements of the queries are not read yet")
        return self.data

    def _rank(self, scores: Scores, depth: int) -> np.ndarray:
        """Returns the numbers of the documents nearest to each query, `[Q, depth]`, of which none is the query itself.

        Of equal cosines the document that is earlier in the corpus comes first.
        """
        documents, vectors = _documents(scores), scores.columns["logits"]
        _, nearest = find_nearest(vectors[_queries(scores)], vectors[documents], depth + bool(self._data().own))
        return self._numbers(scores, documents[nearest])[:, :depth]

    def _numbers(self, scores: Scores, items: np.ndarray) -> np.ndarray:
        """Returns the numbers of the documents that are these items, `[Q, k]`, without the query itself."""
        numbers = np.asarray(-1 - scores.labels[items].astype(int))
        return drop_own(numbers, scores.labels[_queries(scores)], self._data().own)

    def _score(self, scores: Scores, ranking: np.ndarray) -> Scores:
        queries, gains = _queries(scores), self._data().gains
        labels = scores.labels[queries]
        columns = score_rankings(ranking, [gains[int(number)] for number in labels])
        return replace(scores, columns=columns, labels=labels, example_id=scores.example_id[queries])


@dataclass(frozen=True)
class TranslationScores(MeanScoring, VectorScores):
    """The accuracy with which translations find each other: the share of the texts whose nearest one is their own.

    A text is compared with all texts of the other side in the rows of the same language. The two directions are
    averaged (arXiv 2004.09813, section 4.2).

    Args:
        language: the column with the language of the second text of a row; None for a single language.
        languages: of the data. The labels are their numbers.
    """

    language: str | None = None
    languages: tuple[str, ...] = ()

    def read(self, columns: GroupColumns, source: TableSource, cache_dir: Path) -> LabelledData:
        languages: list[str] = []
        data = columns.read(source, cache_dir, partial(self._number_languages, languages))
        return replace(data, scoring=replace(self, languages=tuple(languages)))

    def _number_languages(self, languages: list[str], table: Table) -> np.ndarray:
        """Returns the number of each row's language, `[N]`; adds those of the table to `languages`."""
        if self.language is None:
            return np.zeros(len(table), dtype=np.float32)
        check_columns(table, [(self.language,)], "name yours with task.language=...")
        names = read_text_column(table, self.language, may_be_empty=False)
        languages += sorted(set(names) - set(languages))
        return np.array([languages.index(name) for name in names], dtype=np.float32)

    def condense(self, scores: Scores) -> Scores:
        """The accuracy of each pair, one row a pair: 0, 0.5 or 1."""
        if ACCURACY in scores.columns:
            return scores
        nearest, example_id, labels = self._find(scores)
        correct = (nearest == np.arange(len(example_id))).mean(axis=0)
        return replace(scores, columns={ACCURACY: correct}, labels=labels, example_id=example_id)

    def breakdown(self, scores: Scores) -> dict[str, dict[str, float]]:
        """The accuracy of each language, and the `number` of its pairs."""
        condensed, kinds = self.condense(scores), {}
        for number, name in enumerate(self.languages):
            correct = condensed.columns[ACCURACY][condensed.labels == number]
            kinds[name] = {ACCURACY: float(correct.mean()) if len(correct) else 0.0, "number": float(len(correct))}
        return kinds

    def tabulate(self, scores: Scores, splits: LabelledData, *, examples: int) -> dict[str, list[Any]]:
        """The example of each first text, and the one whose second text is nearest to it."""
        nearest, example_id, _ = self._find(scores)
        return {
            "label": example_id.tolist(),
            "prediction": example_id[nearest[0]].tolist(),
            "probability": [None] * examples,
        }

    def summarize_dev(self, splits: LabelledData) -> str:
        languages = f" in {len(self.languages)} languages" if self.languages else ""
        return f"dev has {len(splits.splits['dev']):,} translations{languages}"

    def _find(self, scores: Scores) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the row of the nearest second text of each first one and the other way, `[2, N]`.

        Further returns the examples and the labels of the rows, `[N]` each.
        """
        order = scores.example_id.argsort(kind="stable")
        example_id, first = np.unique(scores.example_id[order], return_index=True)
        vectors, labels = scores.columns["logits"], scores.labels[order[first]]
        return match_pairs(vectors[order[first]], vectors[order[first + 1]], labels), example_id, labels


def mine_negatives(
    data: LabelledData, encode: Callable[[list[str]], np.ndarray], prompts: Mapping[str, str] | None = None
) -> LabelledData:
    """Returns the data of a retrieval set with negatives of train by vectors `[N, D]`, which `encode` computes.

    Args:
        prompts: of queries and documents.
    """
    judgements: Judgements = data.scoring.data
    texts = judgements.texts
    assert texts is not None
    return replace_train(data, texts.create_train(texts.compare_vectors(encode, prompts)))


def score_range(splits: LabelledData, split: str = "dev") -> tuple[float, float]:
    """Returns the scores of a split that mean the least and the greatest similarity.

    They are the smallest and the largest score of train and dev together, because all scores of train may be the same.
    If one of them has scores up to 1 and the other ones of 2 and more, each has a scale of its own.
    """
    train, dev = _train_scores(splits), splits.splits["dev"].labels
    scores = np.concatenate([dev, train])
    if len(train) and _is_unit(train) != _is_unit(dev) and scores.max() >= LEAST_OTHER:
        scores = train if split == "train" else dev
        if _is_unit(scores):
            return (0.0 if scores.min() >= 0 else -1.0), 1.0
    low, high = float(scores.min()), float(scores.max())
    return low if high > low else high - 1, high


def _train_scores(splits: LabelledData) -> np.ndarray:
    """Returns the scores of train, none if it has classes or no labels."""
    labels = np.asarray(splits.splits["train"].labels)
    return labels[:0] if splits.classes else labels[~np.isnan(labels)]


def _is_unit(scores: np.ndarray) -> bool:
    return bool(np.all(np.abs(scores) <= 1))


def _report_scales(splits: LabelledData) -> None:
    """Prints how scores of train are read that have another range than those of dev."""
    train, dev = _train_scores(splits), splits.splits["dev"].labels
    if not len(train):
        return
    ranges = {name: score_range(splits, name) for name in ("train", "dev")}
    found = f"train has scores {train.min():g} to {train.max():g} and dev {dev.min():g} to {dev.max():g}"
    if ranges["train"] != ranges["dev"]:
        scales = " and ".join(f"those of {name} from {low:g} to {high:g}" for name, (low, high) in ranges.items())
        print_notice(f"{found}, which are read as two scales: {scales}")
    elif np.ptp(train) < NARROW * (ranges["dev"][1] - ranges["dev"][0]):
        low, high = ranges["dev"]
        print_notice(f"{found}, which are read as one scale, from {low:g} to {high:g}")


def _queries(scores: Scores) -> np.ndarray:
    """Returns the items that are queries, by their number."""
    items = np.flatnonzero(scores.labels >= 0)
    return items[scores.labels[items].argsort(kind="stable")]


def _documents(scores: Scores) -> np.ndarray:
    """Returns the items that are documents, in the order of the corpus."""
    items = np.flatnonzero(scores.labels < 0)
    return items[(-scores.labels[items]).argsort(kind="stable")]


def _cosines(scores: Scores) -> np.ndarray:
    """Returns the cosine of each text with the first text of its example, `[n]`."""
    if COSINE in scores.columns:
        return scores.columns[COSINE]
    vectors = scores.columns["logits"].astype(np.float64)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    _, first, example = np.unique(scores.example_id, return_index=True, return_inverse=True)
    return np.asarray((vectors * vectors[first[example]]).sum(axis=-1))


def _pairs(scores: Scores) -> tuple[np.ndarray, np.ndarray]:
    """Returns the cosines and the labels of all pairs, in the order of the examples, `[N]` each."""
    cosines, order = _cosines(scores), scores.example_id.argsort(kind="stable")
    _, first = np.unique(scores.example_id[order], return_index=True)
    second = order[first + 1]
    return cosines[second], scores.labels[second]
