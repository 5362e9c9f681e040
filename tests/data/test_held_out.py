"""Tests that rows which belong together are on one side of a split, and that all others stay where they were."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import train_test_split

from distill.core.errors import UserError
from distill.data.sources import draw_share, keep_together, number_units, text_keys
from distill.kinds import Classification, Embedding, MultipleChoice, QuestionAnswering, Seq2Seq, TokenClassification
from tests.data.conftest import Printed
from tests.kinds.test_retrieval import write_judgements


def sides(dev: np.ndarray, keys: list[Any]) -> set[Any]:
    """Returns the keys of rows on both sides."""
    of_dev = {keys[row] for row in dev}
    return of_dev & {key for row, key in enumerate(keys) if row not in set(dev.tolist())}


def test_keys_of_any_kind_join_rows() -> None:
    titles = ["a", None, "b", "b", None, "c"]
    contexts = ["1", "1", "2", "3", "4", "3"]
    assert number_units([titles, contexts], 6).tolist() == [0, 0, 2, 2, 4, 2]
    assert text_keys(["One  two", "x"], ["X", " one TWO"])[0] == text_keys(["x"], ["one two"])[0]


@pytest.mark.parametrize(("fraction", "copies", "share"), [(0.1, 2, 0.2), (0.1, 12, 1.0), (0.7, 3, 1.0)])
def test_the_share_and_the_classes_of_dev_stay(fraction: float, copies: int, share: float) -> None:
    """Part of the rows or all of them are there several times, in three classes, of which one is rare."""
    random = np.random.default_rng(0)
    keys = np.concatenate([np.repeat(np.arange(int(share * 900) // copies), copies), np.arange(5000, 5100)])
    keys = random.permutation(keys)
    classes = np.where(keys % 50 < 3, "rare", np.where(keys % 2, "odd", "even"))
    _, drawn = train_test_split(np.arange(len(keys)), test_size=fraction, random_state=0, stratify=classes)
    units = number_units([keys.tolist()], len(keys))
    dev = keep_together(drawn, units, classes=classes.tolist())
    assert sides(drawn, keys.tolist())
    assert not sides(dev, keys.tolist())
    assert abs(len(dev) - len(drawn)) <= 3 * copies / 2
    for name in ("rare", "odd", "even"):
        assert abs((classes[dev] == name).sum() - (classes[drawn] == name).sum()) <= copies
    np.testing.assert_array_equal(keep_together(drawn, units, classes=classes.tolist()), dev)


def test_rows_without_a_copy_stay_where_they_were_drawn() -> None:
    keys = [*range(80), *range(10), *range(10)]
    drawn = np.random.default_rng(1).permutation(100)[:20]
    dev = keep_together(drawn, number_units([keys], 100))
    assert {row for row in dev if 10 <= row < 80} == {row for row in drawn.tolist() if 10 <= row < 80}


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_both_sides_keep_their_classes(data: st.DataObject) -> None:
    """Of any rows: no key is on both sides, a class of two texts is on both, and a row of train that is fixed stays."""
    keys = data.draw(st.lists(st.integers(0, 12), min_size=6, max_size=30))
    classes = [f"{key % 3}" for key in keys]  # Equal texts have equal labels.
    dev = np.flatnonzero(data.draw(st.lists(st.booleans(), min_size=len(keys), max_size=len(keys))))
    fixed = [row for row in range(0, len(keys), 7) if row not in dev]
    found = keep_together(dev, number_units([keys], len(keys)), classes=classes, fixed=fixed)
    assert not sides(found, keys)
    assert not set(fixed) & set(found.tolist())
    if not sides(dev, keys):
        assert found.tolist() == dev.tolist()
    of_train = {classes[row] for row in range(len(keys)) if row not in dev}
    assert of_train <= {classes[row] for row in range(len(keys)) if row not in found}


@pytest.mark.parametrize("share", [0.07, 0.2, 0.5])
@pytest.mark.parametrize("names", [None, "ab", "aaaaaaab", "abcdefg"])
def test_dev_is_drawn_as_scikit_learn_draws_it(names: str | None, share: float) -> None:
    for count in (97, 200, 347):
        classes = None if names is None else [names[row * row % 11 % len(names)] for row in range(count)]
        _, expected = train_test_split(np.arange(count), test_size=share, random_state=0, stratify=classes)
        np.testing.assert_array_equal(np.sort(draw_share(count, share, classes)), np.sort(expected))


@pytest.mark.parametrize(
    ("count", "share", "classes", "expected"),
    [
        (1, 0.5, None, "1 of 1"),
        (10, 0.1, ["a", "b"] * 5, "1 of 10 of 2 classes, the smallest of which has 5"),
        (6, 0.5, list("aaaaab"), "3 of 6 of 2 classes, the smallest of which has 1"),
    ],
)
def test_a_share_that_leaves_a_side_without_rows_or_a_class_is_refused(
    count: int, share: float, classes: list[str] | None, expected: str
) -> None:
    with pytest.raises(ValueError, match=f"^{expected}$"):
        draw_share(count, share, classes)


# Every kind of task


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def make_row(number: int, copy: int = 0) -> dict[str, Any]:
    """Returns the columns of every kind; a copy has the text in upper case, or two in the other order, or a context."""
    first, second = [f"one {number}", f"other {number}"][:: -1 if copy else 1]
    return {
        **{"sentence": f"TEXT {number}" if copy else f"text {number}", "label": "yes" if number % 2 else "no"},
        **{"sentence1": first, "sentence2": second, "score": number % 5},
        **{"tokens": ["word", f"{number}"], "tags": ["O", "B-X"]},
        **{"source": f"text {number}", "target": f"target {copy}"},
        **{"question": f"What {number} {copy}?", "context": f"Context {number} {copy}.", "title": f"Article {number}"},
        "answers": {"text": ["Context"], "answer_start": [0]},
        **{"passage": f"Passage {number}", "choices": ["a", "b"], "answer": copy % 2},
    }


PAIR = ["sentence1", "sentence2"]
CHOICES = {"question": "question", "context": "passage", "choices": ["choices"]}
# Tasks, and the text by which their records belong together.
KINDS: dict[str, tuple[Any, dict[str, Any], Callable[[Any], Any]]] = {
    "classes": (Classification, {"text": ["sentence"]}, str.lower),
    "pairs": (Classification, {"text": PAIR}, lambda record: str(sorted(record))),
    "vectors of pairs": (Embedding, {"text": PAIR, "label": "score"}, lambda record: str(sorted(record))),
    "tags": (TokenClassification, {}, str),
    "targets": (Seq2Seq, {}, lambda record: record["source"]),
    "articles": (QuestionAnswering, {}, lambda record: record["context"].split()[1]),
    "choices": (MultipleChoice, CHOICES, lambda record: record["context"]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_equal_texts_are_on_one_side(kind: str, tmp_path: Path, printed: Printed) -> None:
    """Of 120 texts 100 are there twice; before, a fifth of these were on both sides."""
    make_task, options, key = KINDS[kind]
    rows = [make_row(number) for number in range(120)] + [make_row(number, 1) for number in range(100)]
    data = make_task(data_dir=write(tmp_path / "rows.jsonl", rows), **options).read(tmp_path / "cache")
    of = {name: Counter(map(key, split.records())) for name, split in data.splits.items()}
    assert not of["train"].keys() & of["dev"].keys()
    assert 20 <= sum(of["dev"].values()) <= 24
    assert set(of["dev"].values()) <= {1, 2, 4}
    assert "may be too high" not in printed()


def test_few_articles_are_divided_by_context(tmp_path: Path) -> None:
    rows = [{**make_row(number), "title": f"Article {number % 2}"} for number in range(60)]
    data = QuestionAnswering(data_dir=write(tmp_path / "rows.jsonl", rows)).read(tmp_path)
    assert len(data.splits["dev"]) == 6


def test_rows_of_one_text_cannot_be_split(tmp_path: Path) -> None:
    rows = [make_row(number % 2) for number in range(60)]
    task = Classification(text=["sentence"], data_dir=write(tmp_path / "rows.jsonl", rows))
    with pytest.raises(UserError, match="so that equal texts are on one side, because too few of its 60"):
        task.read(tmp_path)


def test_equal_queries_are_on_one_side(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    write(tmp_path / "corpus.jsonl", [{"_id": f"d{number}", "text": f"document {number}"} for number in range(30)])
    queries = [{"_id": f"q{number}", "text": f"query {number % 30}"} for number in range(60)]
    write(tmp_path / "queries.jsonl", queries)
    write_judgements(tmp_path, "train", *(f"q{number}\td{number % 30}\t1" for number in range(60)))
    data = Embedding(metrics=["ndcg@10"], data_dir=tmp_path, dev_fraction=0.2).read(tmp_path)
    dev = {text for [text] in data.splits["dev"]["texts"] if text.startswith("query")}
    assert not dev & {query for query, _ in data.splits["train"]["texts"]}
    assert len(dev) == 6
