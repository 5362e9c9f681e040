"""Reads a retrieval set as lists: a query with its candidates, the first documents of a ranking, to be ranked again."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distill.console import print_notice
from distill.data.candidates import find_candidates
from distill.data.own_documents import Gains, find_equal, list_own
from distill.data.retrieval import JudgedTexts, Judgements, read_judged, report_shared_queries
from distill.data.sources import TableSource
from distill.data.tables import LabelledData, Split, compute_digest
from distill.errors import UserError

SCORE = "score"  # The name of the one output of a model.


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


def read_lists(
    source: TableSource, *, first_stage: str, top: int, negatives: int, cache_dir: Path | None
) -> tuple[LabelledData, Lists]:
    """Reads `train`, `dev` and, if it is there, `test`; returns them and the candidates of all but train.

    A row of train is a query with a relevant document, which is the first one and has the label 0, and documents that
    are drawn from its candidates and not relevant. A row of another split is a query with its candidates, and its label
    is the number of the query. The relevant documents that are no candidates count in the metrics: nothing finds them.
    A document that the query is itself is no candidate, and one with its text no negative.

    Args:
        first_stage: as for `find_candidates`.
        top: candidates of a query.
        negatives: documents of a row of train that are not relevant, fewer if the query has fewer candidates.

    Raises:
        UserError: as `read_judged` and `find_candidates` do, for a query of a scored split without candidates, for a
            scored split in which no candidate is relevant, and if train has no row.
    """
    found = read_judged(source)
    numbers = sorted({query for of_split in found.judged.values() for query in of_split})
    queries, documents = found.queries.texts, found.corpus.texts
    depth = top + bool(found.own)  # Of which one may be the query itself.
    rankings = find_candidates(first_stage, [queries[number] for number in numbers], documents, depth, cache_dir)
    candidates = {
        number: [document for document in ranking if document != found.own.get(number)][:top]
        for number, ranking in zip(numbers, rankings, strict=True)
    }
    train = _create_train(found, candidates, negatives, source)
    splits, gains, listed, scored_queries = {"train": train}, list[Gains](), list[tuple[int, ...]](), list[int]()
    scored = {name: of for name, of in found.judged.items() if name != "train"}
    for name, judged in sorted(scored.items(), key=lambda pair: pair[0] != "dev"):
        _check_candidates(name, judged, candidates, found, first_stage=first_stage, top=top)
        report_shared_queries(name, judged, queries, list(found.queries.numbers), set(train["query"]))
        texts = [[documents[number] for number in candidates[query]] for query in judged]
        labels = np.arange(len(gains), len(gains) + len(judged))
        splits[name] = list_split([queries[query] for query in judged], texts, labels)
        gains += judged.values()
        scored_queries += judged
        listed += [tuple(candidates[query]) for query in judged]
    content = ([name, of.records(), of.labels.tolist()] for name, of in splits.items())
    own = found.own_of(scored_queries)
    digest = compute_digest([[list(of.items()) for of in gains], *content, *list_own(own)])
    judgements = Judgements(tuple(gains), documents=tuple(found.corpus.numbers), own=own)
    return LabelledData(labels=(SCORE,), splits=splits, sha256=digest), Lists(judgements, tuple(listed))


def _create_train(
    found: JudgedTexts, candidates: Mapping[int, Sequence[int]], negatives: int, source: TableSource
) -> Split:
    """Returns a row for each pair of a query and a relevant document, the same in every run."""
    random, documents = np.random.default_rng(0), found.corpus.texts
    queries, lists, alone = list[str](), list[list[str]](), 0
    find_itself = find_equal(found.queries.texts, documents, found.own)
    for query, gains in found.judged["train"].items():
        excluded = {*gains, *find_itself(query)}
        others = [number for number in candidates[query] if number not in excluded]
        alone += not others
        for positive in gains if others else ():
            if documents[positive]:
                drawn = random.permutation(others)[:negatives].tolist()
                queries.append(found.queries.texts[query])
                lists.append([documents[number] for number in (positive, *drawn)])
    if alone:
        print_notice(
            f"train: queries that are left out, because they have no candidate that is not relevant: {alone:,}"
        )
    if not queries:
        raise UserError(
            f"{source.data_dir} has no query of train with a relevant document and a candidate that is not relevant: "
            "raise task.top, or give more documents"
        )
    split = list_split(queries, lists, np.zeros(len(queries), dtype=np.int64))
    return source.sample({"train": split})["train"]


def _check_candidates(
    name: str,
    judged: Mapping[int, Collection[int]],
    candidates: Mapping[int, Sequence[int]],
    found: JudgedTexts,
    *,
    first_stage: str,
    top: int,
) -> None:
    """Raises UserError for a query without candidates, and if no candidate of any query is relevant."""
    ids = list(found.queries.numbers)
    if without := [query for query in judged if not candidates[query]]:
        raise UserError(
            f"{name}: {first_stage} finds no document for {len(without):,} of {len(judged):,} queries (the first one "
            f"is {ids[without[0]]}: {found.queries.texts[without[0]][:60]!r}), and without candidates there is nothing "
            "to rank: take these queries out of qrels, or set task.candidates to a bundle of vectors"
        )
    if not any(document in gains for query, gains in judged.items() for document in candidates[query]):
        raise UserError(
            f"{name}: none of the first {top} documents by {first_stage} is relevant to its query, so that every order "
            f"is as good: raise task.top, or set task.candidates to a bundle of vectors"
        )
