"""nDCG@10 of a bundle's index in float32, int8 and bits, with and without rescoring, on a retrieval set.

    python benchmarks/narrow_index.py path/to/bundle path/to/scifact

The vectors of the documents are computed once, by the recommended file.
"""

import argparse
from pathlib import Path

from bm25 import read_split
from rich.console import Console

from distill.edge import Bundle, Index
from distill.edge.index import Precision

# Precision and `rescore`, the one to compare with first.
VARIANTS: tuple[tuple[Precision, int], ...] = (("float32", 0), ("int8", 0), ("binary", 0), ("binary", 1), ("binary", 4))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("directory", type=Path, help="a retrieval set in the layout of BEIR")
    parser.add_argument("--split", default="test")
    parser.add_argument("--dev-fraction", type=float, default=0.1)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    split = read_split(options.directory, options.split, options.dev_fraction)
    bundle = Bundle(options.bundle, threads=options.threads)
    documents, queries = bundle.encode(split.texts.tolist()), bundle.encode(split.queries.tolist())
    Console().print(f"{len(documents):,} documents, {len(queries):,} queries, {documents.shape[1]} dimensions")
    means: list[float] = []
    for precision, rescore in VARIANTS:
        _, positions = Index(documents, precision=precision).search(queries, 11, rescore=rescore)
        means.append(split.score(positions)["ndcg@10"].mean())
        kept = means[-1] / means[0]
        Console().print(f"{precision:8} rescore={rescore} nDCG@10 {means[-1]:.4f}, {kept:.1%} of float32")


if __name__ == "__main__":
    main()
