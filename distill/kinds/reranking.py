"""Reranking: the documents that a first search finds for a query in a better order; one item a query.

>>> from distill.kinds import Reranking
>>> Reranking(data_dir="path/to/set", top=50).info.pair
True
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Unpack

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import ModelOutput
from typing_extensions import TypedDict  # pydantic reads that of `typing` from Python 3.12 on.

from distill.core.console import print_line, print_notice
from distill.core.contracts import ENCODER_FEATURES, Batch, Constant, Items, Outputs, Scores
from distill.core.errors import UserError
from distill.core.files import write_json
from distill.core.options import check_arguments
from distill.core.storage import entry_key, has_entry, new_entry
from distill.data.batches import TokenizedExamples, scored_tokens, scoring_steps
from distill.data.retrieval import JudgedTexts, Judgements, read_judged
from distill.data.sources import TableSource
from distill.data.splits import LabelledData, Split
from distill.edge.bundle import Bundle
from distill.edge.decoder import MASKED
from distill.edge.metrics import score_rankings
from distill.kinds import labelled_rows
from distill.kinds.kind import Encoder, Kind
from distill.kinds.known import SCORE, Found, Key, KnownTable, normalize
from distill.kinds.scoring import MeanScoring, NumberScoring
from distill.kinds.vector_scores import NO_DOCUMENT
from distill.losses import HardLabels
from distill.losses.term import scatter_logits
from distill.models.forward import input_names, run_model

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


BM25_NAME = "bm25"
FILE = "candidates.json"
FORMAT = 1


def find_candidates(
    first_stage: str, queries: Sequence[str], documents: Sequence[str], k: int, cache_dir: Path | None
) -> list[list[int]]:
    """Returns the numbers of the `k` best documents of each query, the best first, without documents that are empty.

    Args:
        first_stage: `bm25`, or the directory of a bundle with vectors, whose candidates are cached.

    Raises:
        UserError: for a directory that is no bundle with vectors, and documents without a word.
    """
    numbers = [number for number, text in enumerate(documents) if text.strip()]
    texts = [documents[number] for number in numbers]
    if first_stage == BM25_NAME:
        found = BM25(texts).search(queries, k)
    else:
        found = _search_bundle(Path(first_stage).expanduser(), queries, texts, k, cache_dir)
    return [[numbers[row] for row in rows] for rows in found]


def _search_bundle(
    directory: Path, queries: Sequence[str], documents: Sequence[str], k: int, cache_dir: Path | None
) -> list[list[int]]:
    try:
        bundle = Bundle(directory)
    except UserError as error:
        raise UserError(f"task.candidates={directory}: {error}; expected {BM25_NAME} or a bundle of vectors") from error
    if not bundle.decoder.encodes:
        kind = bundle.manifest["kind"]
        raise UserError(
            f"task.candidates={directory} is a bundle of a {kind}, expected {BM25_NAME} or a bundle of vectors"
        )
    if cache_dir is None:
        return _search(bundle, queries, documents, k)
    key = entry_key("candidates", FORMAT, bundle.manifest["files"], bundle.model, list(queries), list(documents), k)
    entry = cache_dir / "candidates" / key[:20]
    if not has_entry(entry):
        print_line(f"Candidates: {directory} encodes {len(documents):,} documents once, for {entry}")
        found = _search(bundle, queries, documents, k)
        with new_entry(entry) as temporary:
            write_json(temporary / FILE, {"candidates": found})
    cached: list[list[int]] = json.loads((entry / FILE).read_text(encoding="utf-8"))["candidates"]
    return cached


def _search(bundle: Bundle, queries: Sequence[str], documents: Sequence[str], k: int) -> list[list[int]]:
    return [[number for number, _ in row] for row in bundle.search(queries, documents, k=k)]


@dataclass(frozen=True)
class Lists:
    """The candidates of the queries of all scored splits.

    Args:
        judgements: of the queries by their number.
        candidates: the numbers of the documents of each query, those that the first stage ranks best first.
    """

    judgements: Judgements
    candidates: tuple[tuple[int, ...], ...]


def list_split(queries: list[str], documents: list[list[str]], labels: np.ndarray) -> Split:
    """Returns queries with the documents of each, and a label `[N]` for each query."""
    text = [" ".join([query, *of_query]) for query, of_query in zip(queries, documents, strict=True)]
    columns: dict[str, list[Any]] = {"query": queries, "documents": documents}
    return Split({**columns, "text": text, "labels": labels}, tuple(columns), _create_record, whole="text")


def _create_record(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"query": row["query"], "documents": row["documents"]}


@dataclass(frozen=True)
class ListReader:
    """Reads queries and documents, and finds the candidates of all queries.

    A row of train is a query with a relevant document, which is the first one and has the label 0, and documents that
    are drawn from its candidates and not relevant. A row of another split is a query with its candidates, and its label
    is the number of the query. The relevant documents that are no candidates count in the metrics: nothing finds them.
    A document that the query is itself is no candidate, and one with its text no negative.

    Args:
        first_stage: as for `find_candidates`.
        top: candidates of a query.
        negatives: documents of a row of train that are not relevant, fewer if the query has fewer candidates.
    """

    source: TableSource
    first_stage: str
    top: int
    negatives: int

    def read(self, cache_dir: Path | None) -> tuple[LabelledData, Lists]:
        """Reads `train`, `dev` and, if it is there, `test`; returns them and the candidates of all but train.

        Raises:
            UserError: as `read_judged` and `find_candidates` do, for a query of a scored split without candidates, for
                a scored split in which no candidate is relevant, and if train has no row.
        """
        found = read_judged(self.source)
        numbers = sorted({query for of_split in found.judged.values() for query in of_split})
        queries, documents = found.queries.texts, found.corpus.texts
        depth = self.top + bool(found.own)  # Of which one may be the query itself.
        texts = [queries[number] for number in numbers]
        rankings = find_candidates(self.first_stage, texts, documents, depth, cache_dir)
        candidates = {
            number: [document for document in ranking if document != found.own.get(number)][: self.top]
            for number, ranking in zip(numbers, rankings, strict=True)
        }
        train = self._create_train(found, candidates)
        splits, listed = {"train": train}, list[tuple[int, ...]]()
        for name, judged in found.scored().items():
            self._check_candidates(name, candidates, found)
            found.report_shared(name, set(train["query"]))
            lists = [[documents[number] for number in candidates[query]] for query in judged]
            labels = np.arange(len(listed), len(listed) + len(judged))
            splits[name] = list_split([queries[query] for query in judged], lists, labels)
            listed += [tuple(candidates[query]) for query in judged]
        content = ([name, of.records(), of.labels.tolist()] for name, of in splits.items())
        data, judgements = found.collect(splits, content, labels=(SCORE,))
        return data, Lists(judgements, tuple(listed))

    def _create_train(self, found: JudgedTexts, candidates: Mapping[int, Sequence[int]]) -> Split:
        """Returns a row for each pair of a query and a relevant document, the same in every run."""
        random, documents = np.random.default_rng(0), found.corpus.texts
        queries, lists, alone = list[str](), list[list[str]](), 0
        for query, gains in found.judged["train"].items():
            excluded = {*gains, *found.find_equal(query)}
            others = [number for number in candidates[query] if number not in excluded]
            alone += not others
            for positive in gains if others else ():
                if documents[positive]:
                    drawn = random.permutation(others)[: self.negatives].tolist()
                    queries.append(found.queries.texts[query])
                    lists.append([documents[number] for number in (positive, *drawn)])
        if alone:
            print_notice(
                f"train: queries that are left out, because they have no candidate that is not relevant: {alone:,}"
            )
        if not queries:
            raise UserError(
                f"{self.source.data_dir} has no query of train with a relevant document and a candidate that is not "
                "relevant: raise task.top, or give more documents"
            )
        split = list_split(queries, lists, np.zeros(len(queries), dtype=np.int64))
        return self.source.sample({"train": split})["train"]

    def _check_candidates(self, name: str, candidates: Mapping[int, Sequence[int]], found: JudgedTexts) -> None:
        """Raises UserError for a query without candidates, and if no candidate of any query is relevant."""
        ids, judged = list(found.queries.numbers), found.judged[name]
        if without := [query for query in judged if not candidates[query]]:
            raise UserError(
                f"{name}: {self.first_stage} finds no document for {len(without):,} of {len(judged):,} queries (the "
                f"first one is {ids[without[0]]}: {found.queries.texts[without[0]][:60]!r}), and without candidates "
                "there is nothing to rank: take these queries out of qrels, or set task.candidates to a bundle of "
                "vectors"
            )
        if not any(document in gains for query, gains in judged.items() for document in candidates[query]):
            raise UserError(
                f"{name}: none of the first {self.top} documents by {self.first_stage} is relevant to its query, so "
                "that every order is as good: raise task.top, or set task.candidates to a bundle of vectors"
            )


SHOWN = 10  # Documents of a ranking in predictions.parquet.
Metrics = Annotated[
    Sequence[Literal["ndcg@10", "mrr@10", "recall@10"]],
    Field(min_length=1, description="a list of some of ndcg@10, mrr@10, recall@10"),
]


class JudgedOptions(TypedDict, total=False):
    """The options of the queries and the documents of a retrieval set.

    Attributes:
        data_dir: a directory with `corpus.jsonl`, `queries.jsonl` and `qrels`, as in `distill.data.retrieval`.
        dev_fraction: share of train's queries that are dev, if `qrels` has no file of dev.
        splits: names of the files in `qrels` of each split.
        train_examples: number of rows of train that are used; None for all.
        dev_examples: number of queries of dev that are used; None for all.
    """

    data_dir: str | Path | None
    dev_fraction: labelled_rows.Share
    splits: Mapping[str, Sequence[str]] | None
    train_examples: labelled_rows.Amount | None
    dev_examples: labelled_rows.Amount | None


@dataclass(frozen=True)
class CandidateScores(MeanScoring, NumberScoring):
    """The scores of candidates, and the metrics of the rankings that follow from them.

    Of equal scores the candidate that the first stage ranks higher comes first.

    Args:
        names: the metrics.
        first_stage: the search that found the candidates, in words.
        data: the candidates and the judgements of all scored splits; None before the data is read.
    """

    weak_may_teach = True

    names: tuple[str, ...]
    first_stage: str = BM25_NAME
    data: Lists | None = None

    def condense(self, scores: Scores) -> Scores:
        """The metrics of each query."""
        if self.names[0] in scores.columns:
            return scores
        gains = self._data().judgements.gains
        columns = score_rankings(self._rank(scores), [gains[number] for number in scores.labels.tolist()])
        return replace(scores, columns=columns)

    def values(self, scores: Scores) -> np.ndarray:
        """The scores of all candidates of all queries, one after another."""
        logits = scores.columns["logits"]
        return np.asarray(logits[logits > MASKED])

    def constants(self, scores: Scores) -> Sequence[Constant]:
        """The order in which the first stage has found the candidates."""

        def predict(scores: Scores) -> Scores:
            is_there = self._candidates(scores) != NO_DOCUMENT
            falling = -np.arange(is_there.shape[1], dtype=np.float32)
            logits = np.where(is_there, falling, np.float32(MASKED))
            return scores.with_columns(logits=logits)

        return [Constant(f"the order of {self.first_stage}", predict)]

    def tabulate(self, scores: Scores, splits: LabelledData, *, examples: int) -> dict[str, list[Any]]:
        """The ids of the relevant documents and of the best candidates of each query."""
        judgements = self._data().judgements
        return {
            "label": [[judgements.documents[d] for d in judgements.gains[query]] for query in scores.labels.tolist()],
            "prediction": [
                [judgements.documents[document] for document in row if document != NO_DOCUMENT]
                for row in self._rank(scores)[:, :SHOWN].tolist()
            ],
            "probability": [None] * examples,
        }

    def describe(self, splits: LabelledData) -> dict[str, Any]:
        return {
            "labels": list(splits.labels),
            "answer": "ranking",
            "first_stage": self.first_stage,
            "pipeline_tag": "text-ranking",
            "prediction": "Gives each document of a query a score, the higher the more relevant, and the order of all.",
            "example": r"$'a query\tone document\tanother document'",
        }

    def summary(self, splits: LabelledData) -> str:
        dev: Split = splits.splits["dev"]
        most = max(map(len, dev["documents"]))
        scores = Scores({}, dev.labels, np.arange(len(dev)))
        [constant] = self.constants(scores)
        value = self.metrics(constant.predict(scores))[self.metric]
        return (
            f"a score for each document; dev has {len(dev):,} queries with up to {most} candidates, of which the order "
            f"of {self.first_stage} has {self.metric} {value:.4f}"
        )

    def _data(self) -> Lists:
        if self.data is None:
            raise ValueError("the candidates of the queries are not read yet")
        return self.data

    def _candidates(self, scores: Scores) -> np.ndarray:
        """Returns the numbers of the candidates of each query, `[Q, K]`, with `NO_DOCUMENT` behind the last one."""
        every = self._data().candidates
        listed = [every[number] for number in scores.labels.tolist()]
        candidates = np.full((len(listed), max(map(len, every))), NO_DOCUMENT)
        for row, numbers in enumerate(listed):
            candidates[row, : len(numbers)] = numbers
        return candidates

    def _rank(self, scores: Scores) -> np.ndarray:
        """Returns the numbers of the candidates of each query in the order of the scores, `[Q, K]`."""
        candidates = self._candidates(scores)
        logits = scores.columns["logits"][:, : candidates.shape[1]]
        order = np.argsort(-np.where(candidates == NO_DOCUMENT, -np.inf, logits), axis=1, kind="stable")
        return np.take_along_axis(candidates, order, axis=1)


class Reranking(Kind):
    """Queries with candidates, the first documents of a search, which a model of pairs puts in a better order.

    A model reads the query and a document as two texts, and gives the pair one logit, the score. Models are of
    `AutoModelForSequenceClassification`. A row of train is a query with a relevant document and with negative ones,
    drawn from the candidates of the query, of which labels and teachers give a distribution. Dev and test have all
    candidates of a query.

    Args:
        candidates: the search: `bm25`, or the directory of a bundle of vectors.
        top: candidates of a query, at least 2.
        negatives: documents of a row of train that are not relevant.
        metrics: ndcg@10, mrr@10 and recall@10 of the order of the candidates. Relevant documents that are no candidates
            count as missed. The first one selects checkpoints.
        max_length: tokens that a query with a document is cut to, the longer text first.
        name: names the task in records and directories.
        options: those of `JudgedOptions`.

    Raises:
        OptionError: for an option that got a value it cannot take.
    """

    kinds = ("reranking",)
    auto_class = "AutoModelForSequenceClassification"
    decoder = "ranking"
    pair = True
    model_settings = MappingProxyType({"problem_type": "regression"})

    @check_arguments
    def __init__(
        self,
        *,
        candidates: str | Path = BM25_NAME,
        top: Annotated[int, Field(ge=2)] = 100,
        negatives: Annotated[int, Field(ge=1)] = 7,
        metrics: Metrics = ("ndcg@10", "mrr@10"),
        max_length: labelled_rows.MaxLength = 256,
        name: str = "reranking",
        **options: Unpack[JudgedOptions],
    ) -> None:
        super().__init__(name, max_length)
        self.candidates, self.top, self.negatives = str(candidates), top, negatives
        self.sequences = (1 + negatives, top)
        self.source = labelled_rows.table_source(
            name=name, text=("query", "documents"), label=("score",), options=options
        )  # fmt: skip
        first_stage = "BM25" if self.candidates == BM25_NAME else "vector search"
        self._scoring = CandidateScores(tuple(metrics), first_stage)

    def read(self, cache_dir: Path) -> LabelledData:
        """Reads every split, and finds the candidates of all queries.

        Raises:
            UserError: for a directory, file, text or judgement that is missing or unusable, and for queries without
                candidates.
        """
        data, lists = ListReader(self.source, self.candidates, self.top, self.negatives).read(cache_dir)
        return replace(data, scoring=replace(self._scoring, data=lists), terms={"hard": HardLabels()})

    known_columns = ("query", "document")

    def read_known(self, known: KnownTable, data: LabelledData) -> Found:
        """Yields the score of each query with a document."""
        for row, texts in enumerate(known.texts(self.known_columns)):
            yield row, texts, np.array([[known.number(row, SCORE, known.value(row, SCORE), "a score")]])

    def known_keys(self, split: Split) -> list[list[Key]]:
        rows = zip(split["query"], split["documents"], strict=True)
        return [[normalize((query, document)) for document in documents] for query, documents in rows]

    def join_known(self, found: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(found).T

    def encode_split(self, encoder: Encoder, data: LabelledData, name: str, split: Split) -> TokenizedExamples:
        """Tokenizes every document with its query. The logits of all splits are as wide as the longest list."""
        most = max(len(documents) for of_split in data.splits.values() for documents in of_split["documents"])
        first = [query for query, documents in zip(split["query"], split["documents"], strict=True) for _ in documents]
        second, counts = list(itertools.chain(*split["documents"])), list(map(len, split["documents"]))
        return encoder.encode_lists(
            first, second, counts, most, classes_per_item=float(np.mean(counts)), labels=split.labels
        )  # fmt: skip

    def run(self, model: PreTrainedModel, batch: Batch, items: Items, needs: frozenset[str]) -> Outputs:
        """Runs the model on the sequences `[S, L]` of all documents.

        Without gradients they are run in parts, because a query of dev has many of them and of different lengths.
        """
        if not needs and not torch.is_grad_enabled():
            return Outputs(logits=scatter_logits(_score_in_parts(model, batch), batch["valid"]))  # [B, K]
        return super().run(model, batch, items, needs)

    def select_logits(self, output: ModelOutput, batch: Batch, items: Items) -> Tensor:
        return scatter_logits(output.logits, batch["valid"])  # [B, K]


def _score_in_parts(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Returns the logits `[S, 1]` of sequences, of which those of similar lengths are run together, without padding."""
    mask = batch["attention_mask"]
    names = [name for name in (*input_names(model), ENCODER_FEATURES) if name in batch]
    steps = scoring_steps(mask.sum(dim=1).cpu().numpy(), scored_tokens(mask.device))
    parts = []
    for chosen in steps:
        columns = mask[chosen].any(dim=0)
        part = {name: batch[name][chosen][:, columns] for name in names}
        parts.append(run_model(model, part).logits)
    order = np.concatenate(steps).argsort()
    return torch.cat(parts)[torch.from_numpy(order).to(mask.device)]
