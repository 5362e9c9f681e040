"""nDCG@10 of BM25 on a retrieval set, the baseline of vectors. BEIR (arXiv 2104.08663) reports 0.665 on SciFact.

    python benchmarks/bm25.py path/to/scifact --split test
    python benchmarks/bm25.py path/to/cranfield --split test --dev-fraction 0.5

Where the only judgements are those of the split, its queries are the share of them that is dev in a run. It needs
`pip install bm25s PyStemmer`: English stems without stop words, and Lucene's BM25 with k1 = 0.9 and b = 0.4.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from rich.console import Console

from distill.data.retrieval import Gains, read_retrieval
from distill.edge.metrics import DEPTH, score_rankings
from distill.kinds import Embedding
from distill.kinds.vector_scores import METRICS, drop_own


@dataclass(frozen=True)
class Split:
    """Queries of a retrieval set, and all its documents.

    Attributes:
        queries: their texts.
        texts: those of the documents.
        documents: the number of each document; one without a text is missing.
        gains: the judgements of each query.
        own: the document that a query is itself, by the place of the query.
    """

    queries: np.ndarray
    texts: np.ndarray
    documents: np.ndarray
    gains: list[Gains]
    own: Mapping[int, int]

    def score(self, found: np.ndarray) -> dict[str, np.ndarray]:
        """Returns each metric of each query, from positions `[queries, k]` of documents, best first.

        A query may find itself, and so one document more is needed than the metrics count.
        """
        rankings = drop_own(self.documents[found], np.arange(len(found)), self.own)
        return score_rankings(rankings, self.gains)


def read_split(directory: Path, name: str, dev_fraction: float) -> Split:
    """Returns a split of a retrieval set in the layout of BEIR."""
    has_train = (directory / "qrels" / "train.tsv").is_file()
    splits = None if has_train else {"train": [name]}
    task = Embedding(data_dir=directory, metrics=cast(Any, list(METRICS)), splits=splits, dev_fraction=dev_fraction)
    data, judgements = read_retrieval(task.source)
    split = data.splits[name if name in data.splits else "dev"]
    is_query = split.labels >= 0
    numbers = split.labels[is_query].astype(int).tolist()
    texts = np.array([group[0] for group in split["texts"]], dtype=object)
    return Split(
        queries=texts[is_query],
        texts=texts[~is_query],
        documents=-1 - split.labels[~is_query].astype(int),
        gains=[judgements.gains[number] for number in numbers],
        own={place: judgements.own[number] for place, number in enumerate(numbers) if number in judgements.own},
    )


def main() -> None:
    import bm25s
    import Stemmer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="a retrieval set in the layout of BEIR")
    parser.add_argument("--split", default="test")
    parser.add_argument("--dev-fraction", type=float, default=0.1)
    options = parser.parse_args()
    split = read_split(options.directory, options.split, options.dev_fraction)

    def tokenize(part: np.ndarray) -> list[list[str]]:
        tokens = bm25s.tokenize(
            part.tolist(), stopwords="en", stemmer=Stemmer.Stemmer("english"), return_ids=False, show_progress=False
        )
        return [list(row) for row in tokens]

    model = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
    model.index(tokenize(split.texts), show_progress=False)
    found, _ = model.retrieve(tokenize(split.queries), k=DEPTH + 1, show_progress=False)
    values = split.score(np.asarray(found))
    for name, of_queries in values.items():
        Console().print(f"{name} {of_queries.mean():.4f} ({len(of_queries)} queries)")


if __name__ == "__main__":
    main()
