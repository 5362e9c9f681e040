"""Reranking: the documents that a first search finds for a query in a better order; one item a query.

>>> from distill.tasks import Reranking
>>> Reranking(data_dir="path/to/set", top=50).info.pair
True
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

import numpy as np
import torch
from pydantic import Field
from typing_extensions import TypedDict  # pydantic reads that of `typing` from Python 3.12 on.

from distill.contracts import ENCODER_FEATURES, Batch, Constant, Examples, Items, Outputs, Scores, TaskInfo
from distill.data.candidates import BM25_NAME
from distill.data.reranking import Lists, read_lists
from distill.data.tables import LabelledData, Split, text_split
from distill.edge.classes import MASKED
from distill.losses import HardLabels
from distill.losses.term import mask_logits, scatter_logits
from distill.options import check_arguments
from distill.tasks import rankings, rows
from distill.tasks.overview import ShownTask
from distill.tasks.rankings import NO_DOCUMENT
from distill.tasks.scoring import Scoring, largest_difference, share_within_range

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from distill.data.batching import TokenizedExamples

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
    dev_fraction: rows.Share
    splits: Mapping[str, Sequence[str]] | None
    train_examples: rows.Amount | None
    dev_examples: rows.Amount | None


@dataclass(frozen=True)
class CandidateScores(Scoring):
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

    def score(self, outputs: Outputs, items: Items) -> "dict[str, Tensor]":
        """The logits `[n, K]`, `MASKED` for a candidate that a query does not have."""
        return {"logits": mask_logits(super().score(outputs, items)["logits"], items.valid)}

    def metrics(self, scores: Scores) -> dict[str, float]:
        """The means over the queries."""
        columns = self.condense(scores).columns
        return {name: float(columns[name].mean()) for name in self.names}

    def condense(self, scores: Scores) -> Scores:
        """The metrics of each query."""
        if self.names[0] in scores.columns:
            return scores
        gains = self._data().judgements.gains
        columns = rankings.score_rankings(self._rank(scores), [gains[number] for number in scores.labels.tolist()])
        return replace(scores, columns=columns)

    def example_metric(self, scores: Scores) -> np.ndarray:
        """The task's metric of each query."""
        return np.asarray(self.condense(scores).columns[self.names[0]])

    def agreement(self, scores: Scores, reference: Scores) -> float:
        """Share of the candidates whose scores differ by less than 5% of the reference's range."""
        return share_within_range(self._values(scores), self._values(reference))

    def probability_diff(self, scores: Scores, reference: Scores) -> float:
        """The largest difference of a score as a share of the reference's range."""
        return largest_difference(self._values(scores), self._values(reference))

    def calibration_error(self, scores: Scores) -> float | None:
        """None, because a score has no probability."""
        return None

    def constants(self, scores: Scores) -> Sequence[Constant]:
        """The order in which the first stage has found the candidates."""

        def predict(scores: Scores) -> Scores:
            is_there = self._candidates(scores) != NO_DOCUMENT
            falling = -np.arange(is_there.shape[1], dtype=np.float32)
            logits = np.where(is_there, falling, np.float32(MASKED))
            return replace(scores, columns={**scores.columns, "logits": logits})

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

    def _values(self, scores: Scores) -> np.ndarray:
        """Returns the scores of all candidates of all queries, one after another."""
        logits = scores.columns["logits"]
        return np.asarray(logits[logits > MASKED])


class Reranking(ShownTask):
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

    @check_arguments
    def __init__(
        self,
        *,
        candidates: str | Path = BM25_NAME,
        top: Annotated[int, Field(ge=2)] = 100,
        negatives: Annotated[int, Field(ge=1)] = 7,
        metrics: Metrics = ("ndcg@10", "mrr@10"),
        max_length: rows.MaxLength = 256,
        name: str = "reranking",
        **options: Unpack[JudgedOptions],
    ) -> None:
        self.candidates, self.top, self.negatives = str(candidates), top, negatives
        self.source = rows.table_source(name=name, text=("query", "documents"), label=("score",), **options)
        first_stage = "BM25" if self.candidates == BM25_NAME else "vector search"
        self._scoring = CandidateScores(tuple(metrics), first_stage)
        self.info = TaskInfo(
            name=name, kind=self.kinds[0], auto_class=self.auto_class, likelihood="softmax", decoder="ranking",
            max_length=max_length, pair=True, model_settings={"problem_type": "regression"},
            sequences=(1 + negatives, top),
        )  # fmt: skip

    def read(self, cache_dir: Path) -> LabelledData:
        """Reads every split, and finds the candidates of all queries.

        Raises:
            UserError: for a directory, file, text or judgement that is missing or unusable, and for queries without
                candidates.
        """
        data, lists = read_lists(
            self.source, first_stage=self.candidates, top=self.top, negatives=self.negatives, cache_dir=cache_dir
        )
        return replace(data, scoring=replace(self._scoring, data=lists), terms={"hard": HardLabels()})

    def encode(
        self, data: LabelledData, tokenizer: "PreTrainedTokenizerBase", cache_dir: Path | None
    ) -> dict[str, Examples]:
        """Tokenizes every document with its query. The logits of all splits are as wide as the longest list."""
        most = max(len(documents) for split in data.splits.values() for documents in split["documents"])

        def encode(name: str, split: Split) -> "TokenizedExamples":
            return _encode(split, most, tokenizer, self.info.max_length, cache_dir)

        return rows.encode_splits(data, encode, lambda pool: pool)

    def select(self, batch: Batch) -> Items:
        """The queries, whose valid classes are their documents. The label of train's rows is the relevant one."""
        return rows.select_examples(batch, self.info.likelihood, valid=batch["valid"])

    def run(self, model: "PreTrainedModel", batch: Batch, items: Items, needs: frozenset[str]) -> Outputs:
        """Runs the model on the sequences `[S, L]` of all documents.

        Without gradients they are run in parts, because a query of dev has many of them and of different lengths.
        """
        from distill.models.forward import collect_outputs, run_model

        if not needs and not torch.is_grad_enabled():
            return Outputs(logits=scatter_logits(_score_in_parts(model, batch), batch["valid"]))  # [B, K]
        output = run_model(model, batch, needs)
        return collect_outputs(output, scatter_logits(output.logits, batch["valid"]))


def _score_in_parts(model: "PreTrainedModel", batch: Batch) -> "Tensor":
    """Returns the logits `[S, 1]` of sequences, of which those of similar lengths are run together, without padding."""
    from distill.data.batching import scored_tokens, scoring_steps
    from distill.models.forward import input_names, run_model

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


def _encode(
    split: Split, most: int, tokenizer: "PreTrainedTokenizerBase", max_length: int, cache_dir: Path | None
) -> "TokenizedExamples":
    """Tokenizes the documents of a split with their queries; a query has at most `most` of them."""
    from distill.data import token_cache
    from distill.data.batching import TokenizedExamples

    counts = np.array([len(documents) for documents in split["documents"]])
    first = [query for query, count in zip(split["query"], counts.tolist(), strict=True) for _ in range(count)]
    second = [document for documents in split["documents"] for document in documents]
    tokens = token_cache.tokenize_split(text_split(first, second), tokenizer, max_length, cache_dir)
    return TokenizedExamples(
        tokens, tokenizer, per_example={"labels": split.labels}, valid=np.arange(most) < counts[:, None],
        classes_per_item=float(counts.mean()),
    )  # fmt: skip
