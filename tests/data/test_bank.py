"""Tests of banks of sentences: how they are read, and which rows are near."""

from pathlib import Path

import numpy as np
import pandas
import pytest

from distill.core.errors import UserError
from distill.data import pool as module
from distill.data.pool import Bank, BankSource, balance, find_nearest, join_wrapped_lines, take_in_turns

PROSE = """It is a truth universally acknowledged, that a single man in
possession of a good fortune, must be in want of a wife. However
little known the feelings or views of such a man may be on

his first entering a neighbourhood, this truth is so well fixed in
the minds of the surrounding families. He is considered the rightful
property of some one or other of their daughters.
"""


def read(source: object) -> Bank:
    return BankSource(source, "review").read()  # type: ignore[arg-type]


def test_wrapped_prose_is_split_into_its_sentences(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(PROSE)
    sentences = read(tmp_path / "book.txt").sentences
    assert len(sentences) == 4
    assert sentences[0].startswith("It is a truth")
    assert sentences[0].endswith("in want of a wife.")
    assert sentences[-1] == "He is considered the rightful property of some one or other of their daughters."


def test_other_lines_are_texts_of_their_own() -> None:
    lines = ["play the song the fourth man", "", "what is the weather", "book a table for two"]
    assert join_wrapped_lines(lines) == [lines[0], *lines[2:]]
    long = ["one " * 60, "", "two " * 60]
    assert join_wrapped_lines(long) == [long[0], long[2]]


def test_a_directory_is_read_with_its_folders_and_each_sentence_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "films" / "old").mkdir(parents=True)
    (tmp_path / "films" / "old" / "a.txt").write_text(
        "A lovely film.\nShort.\nA dull and lifeless mess. Avoid it now!\n"
    )
    reviews = ["I loved it.<br /><br />A lovely film.", "= = = Accolades = = =", None, f"{'long ' * 100}."]
    pandas.DataFrame({"review": reviews, "label": 1}).to_parquet(tmp_path / "films" / "b.parquet")
    bank = read(tmp_path / "films")
    # The files of a directory come in the order of their paths. `Short.` and `I loved it.` are too short.
    assert bank.sentences == ["A lovely film.", "A dull and lifeless mess.", "Avoid it now!"]
    assert (bank.name, len(bank)) == ("films", 3)
    assert f"task.bank={tmp_path / 'films'}: 3 different sentences" in "".join(capsys.readouterr().out.splitlines())


def test_of_a_large_bank_evenly_spaced_sentences_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_IN_BANK", 3)
    texts = [f"sentence number {number}" for number in range(9)]
    assert read(texts).sentences == [texts[0], texts[4], texts[8]]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere.txt", "task.bank=nowhere.txt is no file and no directory, expected one of them or a data set"),
        (["x", ""], "bank has no sentence of 12 to 400 characters: give texts in the domain of the task"),
        ({"body": ["x"]}, "bank has no column review and no column text: rename that of its texts"),
    ],
)
def test_a_bank_that_cannot_be_read_is_refused(source: object, message: str) -> None:
    with pytest.raises(UserError) as caught:
        read(source)
    assert message in str(caught.value)


def unit(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


@pytest.mark.parametrize("block", [7, 64])
def test_the_nearest_are_those_of_all_cosines(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BANK_BLOCK", block)
    monkeypatch.setattr(module, "QUERY_BLOCK", 4)
    random = np.random.default_rng(0)
    bank, queries = unit(random.normal(size=(50, 8))), unit(random.normal(size=(9, 8)))
    expected = np.argsort(-(queries @ bank.T), axis=1)[:, :10]
    assert find_nearest(bank.astype(np.float32), queries, 10).tolist() == expected.tolist()
    assert find_nearest(bank, queries, 80).shape == (9, 50)


def test_every_query_contributes_before_one_contributes_twice() -> None:
    assert take_in_turns(np.array([[5, 1, 2], [5, 3, 1], [0, 5, 4]])).tolist() == [5, 0, 1, 3, 2, 4]


def test_classes_are_balanced_as_far_as_there_are_candidates() -> None:
    classes = np.array([0, 0, 0, 0, 1, 2, 2, 0])
    assert balance(classes, 3).tolist() == [0, 4, 5]
    assert balance(classes, 6).tolist() == [0, 1, 2, 4, 5, 6]
    assert balance(classes, 8).tolist() == list(range(8))
