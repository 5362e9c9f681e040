"""Finds the candidates of queries, which a model then ranks again: by BM25, or by the vectors of a bundle."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from distill.console import print_line
from distill.data.bm25 import BM25
from distill.errors import UserError
from distill.storage.cache import entry_key, has_entry, new_entry
from distill.storage.files import write_json

if TYPE_CHECKING:
    from distill.edge.bundle import Bundle

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
    from distill.edge.bundle import Bundle

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


def _search(bundle: "Bundle", queries: Sequence[str], documents: Sequence[str], k: int) -> list[list[int]]:
    return [[number for number, _ in row] for row in bundle.search(queries, documents, k=k)]
