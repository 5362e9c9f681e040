"""Tests of a bundle that ranks documents: orders and scores, lines, the metrics of files, and records it refuses."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distill.core.errors import UserError
from distill.edge.__main__ import main
from distill.edge.bundle import Bundle
from tests.edge.conftest import Output, Write

QUERY = "film"
DOCUMENTS = ["dull", "a dull and moving film", "film", "a dull film", "film"]  # The longest one has the highest score.


@pytest.fixture
def bundle(write: Write) -> Bundle:
    return Bundle(write("ranking"))


def test_documents_are_ranked_by_their_scores_and_equal_ones_keep_their_order(bundle: Bundle) -> None:
    lengths = [len(bundle.tokenizer.encode(QUERY, document).ids) for document in DOCUMENTS]
    assert lengths[0] >= lengths[2] == lengths[4]
    ranking = bundle.rank(QUERY, DOCUMENTS)
    assert ranking == {"order": sorted(range(5), key=lambda number: -lengths[number]), "scores": lengths}
    assert bundle.rank(QUERY, iter(DOCUMENTS), batch_size=2) == ranking
    assert bundle.rank(QUERY, np.array(DOCUMENTS)) == ranking
    assert bundle.predict({"query": QUERY, "documents": DOCUMENTS}) == ranking
    several = [{"query": QUERY, "documents": documents} for documents in (DOCUMENTS, DOCUMENTS[:1])]
    assert bundle.predict(several) == [ranking, {"order": [0], "scores": lengths[:1]}]


def test_the_logits_of_an_item_are_the_scores_of_its_documents(bundle: Bundle) -> None:
    records = [{"query": QUERY, "documents": documents} for documents in (DOCUMENTS, DOCUMENTS[:2])]
    logits = bundle.item_logits(records)
    assert [of.shape for of in logits] == [(1, 5), (1, 2)]
    assert logits[0][0].tolist() == bundle.rank(QUERY, DOCUMENTS)["scores"]
    ranking = bundle.rank(QUERY, ["film", "a dull and moving film " * 8])
    assert (ranking["order"], ranking["scores"][1], ranking["truncated"]) == ([1, 0], 24.0, True)


def test_what_cannot_be_ranked_is_refused(bundle: Bundle, write: Write) -> None:
    refused: list[tuple[Any, Any, str]] = [
        (QUERY, [], r"got the documents \[\], expected a list of at least one text"),
        (QUERY, "film", "got documents='film', expected a list of records"),
        (" ", ["film"], "got the query ' ', expected text"),
        (3, ["film"], "got the query 3, expected text"),
        (QUERY, ["film", " "], "document 1 is ' ', expected text"),
        (QUERY, [None], "document 0 is None, expected text"),
    ]
    for query, documents, expected in refused:
        with pytest.raises(UserError, match=expected):
            bundle.rank(query, documents)
    for record in ("film", ["film", "a film"], {"query": QUERY}):
        with pytest.raises(UserError, match=r'expected \{"query": ..., "documents": \[...\]\}'):
            bundle.predict([record])
    with pytest.raises(UserError, match=r"is of a classification and ranks no documents: call predict instead"):
        Bundle(write(name="other")).rank(QUERY, DOCUMENTS)


def test_lines_and_records_are_ranked(bundle: Bundle, capsys: Output) -> None:
    assert main([str(bundle.directory), "\t".join([QUERY, *DOCUMENTS[:2]])]) == 0
    first, second = bundle.rank(QUERY, DOCUMENTS[:2])["scores"]
    line = "\t".join([QUERY, *DOCUMENTS[:2]])
    assert capsys.readouterr().out == f"1: {second:.4f}; 0: {first:.4f}\t{line}\n"
    record = json.dumps({"query": QUERY, "documents": DOCUMENTS})
    assert main([str(bundle.directory), "--jsonl", record]) == 0
    assert json.loads(capsys.readouterr().out) == bundle.rank(QUERY, DOCUMENTS)
    assert main([str(bundle.directory), QUERY]) == 2
    assert "expected a query and its documents with tabs between them" in capsys.readouterr().err


def write_rows(directory: Path, rows: Sequence[dict[str, Any]]) -> str:
    (directory / "dev.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return str(directory / "dev.jsonl")


def test_a_file_of_judged_documents_is_scored(tmp_path: Path, bundle: Bundle, capsys: Output) -> None:
    """The relevant documents are found in the second and the third place; in another row the only one is the first."""
    gains = [0] * 5
    order = bundle.rank(QUERY, DOCUMENTS)["order"]
    gains[order[1]], gains[order[2]] = 1, 3
    rows = [
        {"query": QUERY, "documents": DOCUMENTS, "gains": gains},
        {"query": QUERY, "documents": DOCUMENTS[:2], "gains": [0, 1]},
    ]
    assert main([str(bundle.directory), "--evaluate", write_rows(tmp_path, rows)]) == 0
    ndcg = (1 / np.log2(3) + 3 / 2) / (3 + 1 / np.log2(3))
    assert capsys.readouterr().out == (
        f"ndcg@10\t{(ndcg + 1) / 2:.4f}\nmrr@10\t0.7500\nrecall@10\t1.0000\nrows\t2\ntruncated\t0\n"
    )


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"gains": [0, 0]}, "got the gains [0, 0], expected one above 0: no order of the documents is better"),
        ({"gains": [1]}, "got [1], expected two lists, documents with a gain for each document"),
        ({"gains": [1, -1]}, "got the gains [1, -1], expected whole numbers of at least 0"),
        ({"documents": [], "gains": []}, "got the gains [], expected one above 0"),
        ({"documents": ["film", ""], "gains": [1, 0]}, "document 1 is '', expected text"),
    ],
)
def test_rows_that_cannot_be_scored_are_named(
    tmp_path: Path, bundle: Bundle, capsys: Output, change: dict[str, Any], expected: str
) -> None:
    row = {"query": QUERY, "documents": ["film", "a film"], "gains": [1, 0]}
    assert main([str(bundle.directory), "--evaluate", write_rows(tmp_path, [row, {**row, **change}])]) == 2
    assert f"dev.jsonl, line 2: {expected}" in capsys.readouterr().err
