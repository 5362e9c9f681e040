"""Tests of texts without labels: their sources, and the texts that are left out."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pytest

from distill.core.contracts import IGNORED
from distill.core.errors import UserError
from distill.data.pool import clean
from distill.data.splits import LabelledData, text_split
from distill.kinds import Classification, Regression
from tests.data.conftest import Printed

ROWS: dict[str, Any] = {
    "train": (["a good film", "a bad film", "fine", "poor"], [1, 0, 1, 0]),
    "dev": (["so so", "what a film"], [0, 1]),
    "test": (["a test", "another test"], [0, 1]),
}
PAIRS: dict[str, Any] = {
    "train": ([("a", "b"), ("c", "d"), ("a", "d"), ("c", "b")], [1, 0, 1, 0]),
    "dev": ([("e", "f"), ("g", "h")], [0, 1]),
}
# 1 is empty, one each is in dev, test and train up to case and white space, and one is doubled.
TEXTS = ["new one", "", "So  SO", "a test ", "FINE", "new two", "New\tone"]
REMOVED = {"empty": 1, "dev": 1, "test": 1, "train": 1, "doubled": 1}


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(unlabelled: Any, **options: Any) -> Any:
    return Classification(**{"text": "review", **ROWS, **options}, unlabelled=unlabelled).read(Path("unused"))


def to_files(root: Path) -> Path:
    (root / "texts").mkdir()
    (root / "texts" / ".hidden.txt").write_text("hidden")
    (root / "texts" / "notes.md").write_text("another kind")
    (root / "texts" / "1.txt").write_text("\n".join(TEXTS[:3]))
    pandas.DataFrame({"review": TEXTS[3:]}).to_parquet(root / "texts" / "2.parquet")
    return root / "texts"


ROWS_OF_JSON = [json.dumps({"id": 1, "review": text or None, "label": "secret"}) for text in TEXTS]
SOURCES: dict[str, Callable[[Path], Any]] = {
    "txt": lambda root: write(root / "a.txt", "\n".join(TEXTS) + "\n"),
    "gzip": lambda root: write(root / "a.txt.gz", gzip.compress("\n".join(TEXTS).encode())),
    "jsonl": lambda root: str(write(root / "a.jsonl", "\n".join(ROWS_OF_JSON))),
    "directory": to_files,
    "list": lambda root: TEXTS,
    "array": lambda root: np.array(TEXTS),
    "frame": lambda root: pandas.DataFrame({"review": TEXTS, "label": 7}),
    "dataset": lambda root: datasets.Dataset.from_dict({"review": TEXTS}),
    "columns": lambda root: {"review": TEXTS},
}


@pytest.mark.parametrize("source", SOURCES)
def test_new_texts_are_read_from_every_source(source: str, tmp_path: Path, printed: Printed) -> None:
    data = read(SOURCES[source](tmp_path))
    assert data.pool.rows.texts == ["new one", "new two"]
    assert data.pool.rows.pairs is None
    assert data.pool.removed == REMOVED
    out = printed()
    assert "2 texts for the teacher to label; removed: 1 empty, 1 in dev, 1 in test, 1 in train, 1 doubled" in out
    assert ("the column label is ignored, because the teacher labels" in out) == (source in ("jsonl", "frame"))


def test_pairs_are_compared_as_pairs() -> None:
    given = [("E", " f"), ("e", "h"), ("f", "e"), ("", "x"), ("", " ")]
    data = read(given, text=["one", "two"], **{"test": None}, **PAIRS)
    assert (data.pool.rows.texts, data.pool.rows.pairs) == (["e", ""], ["h", "x"])
    assert data.pool.removed == {"empty": 1, "dev": 2, "train": 0, "doubled": 0}  # One of them is exchanged.


@pytest.mark.parametrize(("by_sentence", "kept"), [(False, ["Third one.", "a", "new"]), (True, ["a", "new"])])
def test_no_single_text_of_a_scored_pair_is_kept(by_sentence: bool, kept: list[str]) -> None:
    """And of a bank, which has single sentences, none of a text of several."""
    train, dev = text_split(["a b"], ["c"]), text_split(["First One"], ["Second text. Third one."])
    data = LabelledData(("x",), {"train": train, "dev": dev}, "")
    rows = text_split(["first  one", "Second text. Third one.", "Third one.", "a", "new"])
    found, removed = clean(rows, data, by_sentence=by_sentence)
    assert found.texts == kept
    assert removed["dev"] == 5 - len(kept)


def test_a_table_of_one_text_may_call_its_column_text(printed: Printed) -> None:
    assert read({"text": ["new"], "other": ["x"]}).pool.rows.texts == ["new"]
    assert "has no column review: its column text is read" in printed()


def test_the_order_of_the_pool_is_random_and_the_same_in_every_run() -> None:
    assert (read(["new"]).sha256, len(read(None).pool)) == (read(None).sha256, 0)
    texts = [f"text {number}" for number in range(200)]
    pool = read(texts).pool.shuffled()
    assert pool.texts != texts
    assert sorted(pool.texts) == sorted(texts)
    assert pool.texts == read(texts).pool.shuffled().texts


@pytest.mark.parametrize(("kind", "labels"), [(Classification, [0, 1]), (Regression, [1.0, 2.5])])
def test_labels_of_unlabelled_texts_are_missing(tokenizer: Any, kind: Any, labels: list[float]) -> None:
    task = kind(text="text", train=(["a", "b"], labels), dev=(["c", "d"], labels), unlabelled=["e", "f"])
    train = task.encode(task.read(Path("unused")), tokenizer, None)["train"]
    items = task.select(train[[3, 0, 2, 1]])
    assert items.labelled.tolist() == [False, True, False, True]
    assert items.labels[items.labelled].tolist() == labels
    if kind is Classification:
        assert items.labels.tolist() == [IGNORED, 0, IGNORED, 1]


PAIR: dict[str, Any] = {"text": ["one", "two"], "test": None, **PAIRS}
# The content of a file by its name, or a source; options; and the message.
BAD: list[tuple[Any, dict[str, Any], str]] = [
    ({"a.txt": ""}, {}, "a.txt is empty, expected texts without labels (task.unlabelled)"),
    ({"a.txt": "a text\rb text\r"}, {}, "a.txt, line 1 has a carriage return (\\r) without a line feed"),
    ({"a.txt": "\n \n"}, {}, "all 2 texts are removed (2 empty)"),
    ([], {}, "unlabelled leaves nothing to learn from: it has no text"),
    ({"a.txt": "so so\nWhat a film"}, {}, "all 2 texts are removed (2 in dev); give texts that are in no split"),
    ({"a.csv": "label,body\n1,x\n"}, {}, "a.csv has no column review: it has label, body; texts without labels need"),
    ({"a.csv": "one\nx\n"}, PAIR, "has no column two: it has one; texts without labels need the task's text columns, "),
    ({"a.txt": "x\n"}, PAIR, "a.txt has one text a line, and the task has pairs of texts: give a table with the col"),
    ({"a.xml": "<a/>"}, {}, "a.xml is of no known kind, expected one of .txt, .txt.gz, .tsv"),
    ("nowhere.txt", {}, "task.unlabelled=nowhere.txt is no file and no directory, expected one of them or a data set"),
    ("nobody/nothing", {}, "is no file and no directory, and as a data set of the Hub it is not in the"),
    ({}, {}, "has no text (found no file), expected files in .txt, .txt.gz"),
    ([1, 2], {}, "example 1: column review is 1, expected text"),
    (3, {}, "got unlabelled of type int, expected a list or an array"),
    (["x"], PAIR, "got the text 'x', expected 2 texts"),
    (["new"], {"unlabelled_share": 1.0}, "unlabelled_share=1.0, expected a share between 0 and 1"),
]


@pytest.mark.parametrize(("source", "options", "message"), BAD)
def test_a_source_without_new_texts_is_refused_in_one_line(
    source: Any, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    if isinstance(source, dict):
        source = next((write(tmp_path / name, content) for name, content in source.items()), tmp_path)
    with pytest.raises(UserError) as caught:
        read(source, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
