"""Tests of the amounts of text that `auto` takes, of its augmentation, and of the language of texts."""

import sys

import pytest
from omegaconf import OmegaConf

from distill.core.errors import UserError
from distill.data import augmentation as module
from distill.data import splits
from distill.data.augmentation import AutoAugmentation
from distill.data.prose import is_english
from distill.data.splits import Room, choose_amounts, measure_room, text_split
from distill.kinds import Classification, Embedding, Regression
from tests.data.conftest import Printed
from tests.jobs.test_config import CONF

ENGLISH = ["what is the weather in Boston", "play the song that my brother liked", "wasting"]
GERMAN = ["wie ist das Wetter in Bonn", "spiel das Lied, das mein Bruder mag", "was für ein Film"]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (ENGLISH, True),
        (["THE FILM AND THE ACTORS", "naïve but the best"], True),
        (GERMAN, False),
        (["c'est un film que je n'aime pas", "il ne va nulle part"], False),
        (["это хороший фильм the and", "плохой"], False),
        (["select 1", "x = y + 2"], False),
        ([], False),
    ],
)
def test_english_is_told_by_its_function_words_and_letters(texts: list[str], expected: bool) -> None:
    assert is_english(texts) is expected


def test_the_room_is_half_of_the_work_without_text() -> None:
    room = measure_room(rows=1_000, student=20_000, mixed=24_000, teacher=10_000, layers=0.5, share=0.5)
    # 1,000 outputs, a fine-tuning of 30,000 passes, and a training of as many.
    assert room == Room(passes=30_500, shown=12_000)


@pytest.mark.usefixtures("copies")
def test_all_that_fits_is_taken() -> None:
    amounts = choose_amounts(Room(1_000_000, 1_000_000), rows=500, copies=True, bank=50_000)
    assert (amounts.copies, amounts.sentences) == (splits.COPIES, 500 * splits.BANK_FACTOR)
    assert amounts.describe_left_out() is None
    many = choose_amounts(Room(1_000_000, 1_000_000), rows=9_000, copies=True, bank=50_000)
    assert many.sentences == splits.MOST_FROM_BANK
    small = choose_amounts(Room(1_000_000, 1_000_000), rows=500, copies=False, bank=70)
    assert (small.copies, small.sentences, small.describe_left_out()) == (0, 70, None)


@pytest.mark.usefixtures("copies")
def test_copies_come_first_and_a_bank_has_half_of_the_room() -> None:
    assert choose_amounts(Room(10_000, 4_500), rows=1_000, copies=True, bank=0).copies == 4
    amounts = choose_amounts(Room(10_000, 4_500), rows=1_000, copies=True, bank=50_000)
    # 1,666 sentences with 3 passes each are half of the passes. 2 copies of each row fit beside them.
    assert (amounts.copies, amounts.sentences) == (2, 2_500)
    assert amounts.describe_left_out() == "8 of 10 copies of each row and 5,500 of 8,000 sentences of the bank"
    assert choose_amounts(Room(90, 90), rows=100, copies=True, bank=0).copies == 0


def test_rows_of_the_pool_take_room() -> None:
    assert Room(1_000, 500).without(300) == Room(700, 200)
    assert Room(1_000, 200).without(300, passes=4) == Room(0, 0)


@pytest.mark.parametrize(("texts", "language"), [(ENGLISH, "en"), (GERMAN, "other")])
def test_words_are_replaced_in_english_alone(texts: list[str], language: str) -> None:
    pytest.importorskip("textblob")
    chosen = AutoAugmentation(seed=3).choose(text_split(texts), copies=4)
    assert (chosen.language, chosen.copies, chosen.seed) == (language, 4, 3)
    assert chosen.p_pos == (module.P_POS if language == "en" else 0.0)
    assert (chosen.p_mask, chosen.p_ngram) == (0.1, 0.25)


def test_without_the_tagger_a_notice_says_so(monkeypatch: pytest.MonkeyPatch, printed: Printed) -> None:
    monkeypatch.setitem(sys.modules, "textblob.en", None)
    AutoAugmentation().choose(text_split(GERMAN), copies=1)
    assert not printed()
    assert AutoAugmentation().choose(text_split(ENGLISH), copies=1).p_pos == 0.0
    expected = "augment=auto replaces no words by others of their part of speech, because textblob is not installed"
    assert expected in printed()


def test_the_share_of_every_yaml_is_that_of_the_module() -> None:
    """Those that have none of these keys have them from another file."""
    for path in sorted((CONF / "task").glob("*.yaml")):
        own = OmegaConf.load(path)
        assert own.get("unlabelled_share", splits.SHARE) == splits.SHARE
        if "bank" in own:
            assert own.unlabelled == "auto"
        if own.get("max_length", 0) > 512 and "unlabelled" in own:
            assert own.unlabelled is None  # A copy of a long text costs as much as the text.


ROWS = (["a", "b"], [0, 1])


@pytest.mark.parametrize("task", [Classification, Regression])
def test_texts_are_chosen_by_default(task: type[Classification]) -> None:
    by_default = task(train=ROWS, dev=ROWS).info
    assert (by_default.unlabelled, by_default.bank) == ("auto", None)
    assert task(train=ROWS, dev=ROWS, unlabelled=None).info.unlabelled == "none"
    assert task(train=ROWS, dev=ROWS, unlabelled="./auto").info.unlabelled == "given"
    assert task(train=ROWS, dev=ROWS, bank=["a text"]).info.bank is not None


def test_a_bank_needs_auto() -> None:
    with pytest.raises(UserError, match=r"got bank=somewhere, expected null, because sentences are chosen with task\."):
        Classification(train=ROWS, dev=ROWS, unlabelled=None, bank="somewhere")


def test_other_tasks_take_texts_alone() -> None:
    groups = {"text": ["a", "b"]}
    dev = {"sentence1": ["a"], "sentence2": ["b"], "score": [1.0]}
    with pytest.raises(UserError, match=r"got unlabelled=auto, expected null or texts, because auto is for classifi"):
        Embedding(train=groups, dev=dev, unlabelled="auto")
    with pytest.raises(UserError, match="got bank=x, expected null, because a bank is for classification and regress"):
        Embedding(train=groups, dev=dev, bank="x")
