"""Scores a bundle of vectors by mteb on a retrieval set in the layout of BEIR: `... BUNDLE DIR [--split test]`.

It needs `mteb`, which downloads nothing here, and no torch of ours: the bundle is run by `distill.edge`.
"""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import mteb
import numpy as np
from datasets import Dataset
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models.model_meta import ModelMeta

from distill.edge import Bundle
from distill.rows.formats import read_fields, read_lines


class BundleEncoder:
    """A bundle as mteb calls an encoder: queries and documents begin with their prompts."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.mteb_model_meta = ModelMeta.create_empty({"name": f"distill/{bundle.directory.parent.name}"})

    def encode(self, inputs: Iterable[Mapping[str, Sequence[str]]], *, prompt_type: Any = None, **_: Any) -> np.ndarray:
        """Returns the vectors `[N, D]` of batches of texts."""
        role = "query" if getattr(prompt_type, "value", prompt_type) == "query" else "document"
        texts = [text for batch in inputs for text in batch["text"]]
        return self.bundle.encode(texts, prompt_name=role if role in self.bundle.prompts else None)

    def similarity(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Returns the cosines `[n, m]` of vectors of length 1."""
        return np.asarray(first @ second.T)

    def similarity_pairwise(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Returns the cosines `[n]` of pairs of vectors of length 1."""
        return np.asarray((first * second).sum(axis=-1))


class LocalRetrieval(AbsTaskRetrieval):
    """A retrieval set of a directory."""

    metadata = TaskMetadata(
        name="LocalRetrieval", description="A retrieval set of a directory.", reference=None, type="Retrieval",
        category="t2t", modalities=["text"], eval_splits=["test"], eval_langs=["eng-Latn"], main_score="ndcg_at_10",
        dataset={"path": "local", "revision": "1"}, date=None, domains=None, task_subtypes=None, license=None,
        annotations_creators=None, dialect=None, sample_creation=None, bibtex_citation=None,
    )  # fmt: skip
    directory: Path
    split: str

    def load_data(self, *arguments: Any, **options: Any) -> None:
        """Reads the corpus, the queries and the judgements."""
        if getattr(self, "data_loaded", False):
            return
        judged: dict[str, dict[str, int]] = {}
        with closing(read_fields(self.directory / "qrels" / f"{self.split}.tsv")) as rows:
            next(rows)
            for _, (query, document, score) in rows:
                judged.setdefault(query, {})[document] = int(score)
        corpus, queries = (
            [
                {"id": str(row["_id"]), "title": row.get("title", ""), "text": row["text"]}
                for row in map(json.loads, read_lines(next(self.directory.glob(f"{stem}.jsonl*"))))
            ]
            for stem in ("corpus", "queries")
        )
        asked = [{"id": row["id"], "text": row["text"]} for row in queries if row["id"] in judged]
        self.dataset = {"default": {"test": {
            "corpus": Dataset.from_list(corpus), "queries": Dataset.from_list(asked), "relevant_docs": judged,
            "top_ranked": None,
        }}}  # fmt: skip
        self.data_loaded = True


def main() -> None:
    """Prints the metrics of mteb for a bundle."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--split", default="test")
    options = parser.parse_args()
    task = LocalRetrieval()
    task.directory, task.split = options.directory, options.split
    found = mteb.evaluate(BundleEncoder(Bundle(options.bundle)), [task], cache=None, prediction_folder=None)
    scores = found.task_results[0].scores["test"][0]
    print({name: round(scores[name], 4) for name in ("ndcg_at_10", "recall_at_100", "mrr_at_10")})


if __name__ == "__main__":
    main()
