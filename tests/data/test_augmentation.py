"""Tests of changed copies of the training texts: how they are changed, cached and added to the pool."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from distill.core.contracts import IGNORED
from distill.core.errors import UserError, install_command
from distill.data import augmentation as module
from distill.data.augmentation import MentionAugmentation, TangAugmentation, augment, cached_copies, make_copies
from distill.data.batches import MixedExamples
from distill.data.splits import LabelledData, text_split
from distill.kinds import Classification, TokenClassification
from tests.data.conftest import Printed

WORDS = [f"w{number}" for number in range(10)]
TEXT = " ".join(WORDS)
KEEPING: dict[str, Any] = {"p_mask": 0.0, "p_pos": 0.0, "p_ngram": 0.0}


def rows(texts: list[str], pairs: list[str] | None = None) -> LabelledData:
    return LabelledData((), {"train": text_split(texts, pairs)}, sha256="")


def copies(texts: list[str], *, mask_token: str | None = "[MASK]", **options: Any) -> list[list[str]]:
    tang = TangAugmentation(**{**KEEPING, **options})
    return [text.split() for text in make_copies(rows(texts), tang, mask_token, "cpu")[0]]


@pytest.fixture
def tagger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tagger whose tag is the first letter of a word."""

    def tag(text: str, tokenize: object) -> list[tuple[str, str]]:
        return [(word, word[0]) for word in text.split(" ")]

    monkeypatch.setattr(module, "_import_tagger", lambda: tag)


def test_words_are_masked_with_their_probability() -> None:
    made = copies([TEXT], copies=2000, p_mask=0.3)
    assert all(word in ("[MASK]", WORDS[place]) for words in made for place, word in enumerate(words))
    shares = np.mean([[word == "[MASK]" for word in words] for words in made], axis=0)
    assert shares == pytest.approx(np.full(10, 0.3), abs=0.05)


def test_without_a_mask_token_masked_words_are_left_out(printed: Printed) -> None:
    made = copies([TEXT], copies=1000, p_mask=0.3, mask_token=None)
    assert np.mean([len(words) for words in made]) == pytest.approx(7, abs=0.3)
    assert "leaves out the words that it would mask" in printed()


@pytest.mark.usefixtures("tagger")
def test_words_are_replaced_by_words_of_their_part_of_speech_as_often_as_these_occur() -> None:
    texts = ["a1 b1 a1", "a1 a2 b2 b2", "", "c1"]
    made = copies(texts, copies=2000, p_pos=1.0)
    tags = [[word[0] for word in words] for words in made]
    assert all(tags[2000 * row + number] == [w[0] for w in texts[row].split()] for row in range(4) for number in (0, 9))
    drawn = [word for words in made for word in words]
    for word, share in (("a1", 3 / 4), ("a2", 1 / 4), ("b1", 1 / 3), ("b2", 2 / 3), ("c1", 1.0)):
        of_tag = [other for other in drawn if other[0] == word[0]]
        assert of_tag.count(word) / len(of_tag) == pytest.approx(share, abs=0.03)
    # A word is either masked or replaced.
    drawn = [word for words in copies(["x y", "x2 y2"], copies=500, p_mask=0.5, p_pos=0.5) for word in words]
    assert drawn.count("[MASK]") / len(drawn) == pytest.approx(0.5, abs=0.05)


def test_an_ngram_is_kept_with_its_probability() -> None:
    made = copies([TEXT], copies=2000, p_ngram=0.25)
    short = [words for words in made if words != WORDS]
    assert len(short) / 2000 == pytest.approx(0.25, abs=0.03)
    assert {len(words) for words in short} == {1, 2, 3, 4, 5}
    starts = [WORDS.index(words[0]) for words in short]
    assert all(words == WORDS[first : first + len(words)] for words, first in zip(short, starts, strict=True))
    assert set(starts) == set(range(10))


def test_of_pairs_one_the_other_or_both_are_changed_in_turns() -> None:
    tang = TangAugmentation(**{**KEEPING, "p_mask": 1.0}, copies=4)
    first, second = make_copies(rows(["a b"], ["c"]), tang, "#", "cpu")
    assert list(zip(first, second, strict=True)) == [("# #", "c"), ("a b", "#"), ("# #", "#"), ("# #", "c")]


def test_copies_follow_from_the_seed_and_the_row() -> None:
    texts = [f"{TEXT} {row}" for row in range(6)]
    first = copies(texts, copies=5, p_mask=0.5, seed=1)
    assert copies(texts[:3], copies=5, p_mask=0.5, seed=1) == first[:15]
    assert copies(texts, copies=5, p_mask=0.5, seed=2) != first
    assert len({tuple(words) for words in first}) > 20


def test_the_tagger_gives_a_tag_to_every_word() -> None:
    pytest.importorskip("textblob")
    film = ["The", "film", ",", "isn't", "so", "bad", "."]
    tags = module._tag_words([film, [], ["[MASK]"], ["10,000", "a/b", "c_d", "<b>"]])
    assert [len(of_text) for of_text in tags] == [7, 0, 1, 4]
    assert tags[0][:3] == ["DT", "NN", ","]


def test_copies_are_made_once_and_a_damaged_file_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    tang = TangAugmentation(**{**KEEPING, "p_mask": 0.5}, copies=3)
    texts = rows(["a b c", "d e f"], ["g h", "i"])
    made = cached_copies(texts, tang, "#", cache_dir=tmp_path, device="cpu")
    assert made == make_copies(texts, tang, "#", "cpu")
    prepare: Callable[..., Any] = tang.prepare
    calls: list[object] = []
    monkeypatch.setattr(tang, "prepare", lambda *arguments: calls.append(1) or prepare(*arguments))
    monkeypatch.setattr(tang, "options", lambda: {"copies": 3})
    cached_copies(texts, tang, "#", cache_dir=tmp_path, device="cpu")
    calls.clear()
    assert cached_copies(texts, tang, "#", cache_dir=tmp_path, device="cpu") == made
    assert not calls
    cached_copies(texts, tang, "@", cache_dir=tmp_path, device="cpu")
    cached_copies(rows(["a b c"], ["g h"]), tang, "#", cache_dir=tmp_path, device="cpu")
    assert len(calls) == 2
    for path in (tmp_path / "augmented").glob("*/copies.arrow"):
        path.write_bytes(b"damaged")
    assert cached_copies(texts, tang, "#", cache_dir=tmp_path, device="cpu") == made
    assert len(calls) == 3
    assert "is damaged: the copies are made again" in printed()


def data(**options: Any) -> LabelledData:
    splits: dict[str, Any] = {"train": (["a b", "c d"], [0, 1]), "dev": (["# b", "new"], [0, 1])}
    return Classification(text="text", **splits, **options).read(Path("unused"))


def test_new_copies_join_the_pool_and_the_others_are_counted(tmp_path: Path) -> None:
    tang = TangAugmentation(**{**KEEPING, "p_mask": 0.5}, copies=40)
    augmented = augment(data(unlabelled=["a #", "own"]), tang, mask_token="#", cache_dir=tmp_path, device="cpu")
    pool = augmented.pool
    # `# b` is in dev and `a #` in the pool. `# #` is made of both rows.
    assert pool.rows.texts[:2] == ["a #", "own"]
    assert sorted(pool.rows.texts[2:]) == ["# #", "# d", "c #"]
    record = pool.record()
    assert record["examples"] == 5
    made = record["augmentation"]
    assert (made["method"], made["p_mask"], made["made"], made["examples"]) == ("tang", 0.5, 80, 3)
    assert sum(made["removed"].values()) == 77
    assert made["removed"]["dev"] > 0
    assert made["removed"]["train"] > 0
    assert augmented.sha256 == data().sha256


def test_an_augmentation_that_changes_nothing_is_refused(tmp_path: Path) -> None:
    expected = r"augment=tang makes no new text of 2 training examples \(40 in train\): raise"
    with pytest.raises(UserError, match=expected):
        augment(data(), TangAugmentation(**KEEPING), mask_token="#", cache_dir=tmp_path, device="cpu")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"copies": 0}, "got copies=0, expected a whole number of at least 1"),
        ({"p_replace": 1.0, "copies": 0}, "got copies=0, expected a whole number of at least 1"),
        ({"p_replace": 1.5}, "got p_replace=1.5, expected a probability from 0 to 1"),
        ({"p_replace": 1.0, "seed": -1}, "got seed=-1, expected a whole number of at least 0"),
        ({"p_mask": 1.5}, "got p_mask=1.5, expected a probability from 0 to 1"),
        ({"p_mask": 0.7, "p_pos": 0.6}, "got p_pos=0.6, expected at most 0.3, because a word is masked, replaced or"),
        ({"language": "de"}, "got language=de, expected en, because there is a tagger of parts of speech for English"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        (MentionAugmentation if "p_replace" in options else TangAugmentation)(**options)
    assert message in str(caught.value)


def test_a_missing_tagger_is_answered_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textblob.en", None)
    expected = f"textblob, which is not installed: {re.escape(install_command('train'))}, or set"
    with pytest.raises(UserError, match=expected):
        TangAugmentation().check()
    other = TangAugmentation(language="de", p_mask=1.0, p_pos=0.0, p_ngram=0.0)
    other.check()  # Without words that are replaced there are other languages.
    assert other.prepare(rows(["ein Film"]), "[MASK]", "cpu")(0, 0, np.random.default_rng(0)) == ("[MASK] [MASK]",)


# Mentions

SENTENCES = ["Ada went to New York with Alan Turing .", "Rome is old", "no mention", "Acme"]
SENTENCES_OF_WORDS = [sentence.split() for sentence in SENTENCES]
OF_FIRST = "B-person O O B-city I-city O B-person I-person O"
TAGS = [OF_FIRST.split(), ["B-city", "O", "O"], ["O", "O"], ["B-firm"]]
TAGGED_DEV = ([["Ada", "left"]], [["B-person", "O"]])
PEOPLE, CITIES = ["Ada", "Alan Turing"], ["New York", "Rome"]


def tagged_data(**options: Any) -> LabelledData:
    return TokenClassification(train=(SENTENCES_OF_WORDS, TAGS), dev=TAGGED_DEV, **options).read(Path("unused"))


def copies_of_mentions(**options: Any) -> list[list[str]]:
    """Returns the copies of each sentence."""
    method = MentionAugmentation(**options)
    [texts] = make_copies(tagged_data(), method, None, "cpu")
    return [texts[start : start + method.copies] for start in range(0, len(texts), method.copies)]


def test_every_mention_is_replaced_by_another_one_of_its_type() -> None:
    made = copies_of_mentions(copies=20)
    assert set(made[0]) == {"Alan Turing went to Rome with Ada ."}
    assert set(made[1]) == {"New York is old"}
    assert set(made[2]) == {"no mention"}
    assert set(made[3]) == {"Acme"}  # The only one of its type.


def test_mentions_are_replaced_with_their_probability() -> None:
    made = copies_of_mentions(copies=2000, p_replace=0.25)[0]
    expected = {f"{one} went to {city} with {two} ." for one in PEOPLE for city in CITIES for two in PEOPLE}
    assert set(made) == expected
    for own, shown in (("Ada", "Alan Turing went"), ("New York", "to Rome"), ("Alan Turing", "with Ada")):
        assert sum(shown in text for text in made) / 2000 == pytest.approx(0.25, abs=0.04), own


def test_the_other_mentions_of_a_type_are_equally_likely() -> None:
    words = [["Rome"], ["Paris"], ["Paris"], ["Oslo"], ["Oslo"], ["Oslo"]]
    rows = TokenClassification(train=(words, [["B-city"]] * 6), dev=([["Bern"]], [["B-city"]])).read(Path("unused"))
    [texts] = make_copies(rows, MentionAugmentation(copies=3000), None, "cpu")
    assert set(texts[:3000]) == {"Paris", "Oslo"}
    assert texts[:3000].count("Paris") / 3000 == pytest.approx(0.5, abs=0.03)


def test_copies_of_other_tags_are_made_again(tmp_path: Path) -> None:
    method = MentionAugmentation(copies=2)
    [first] = cached_copies(tagged_data(), method, None, cache_dir=tmp_path, device="cpu")
    tags = [["B-city", *TAGS[0][1:]], *TAGS[1:]]
    other = TokenClassification(train=(SENTENCES_OF_WORDS, tags), dev=TAGGED_DEV).read(Path("unused"))
    assert other.splits["train"].texts == tagged_data().splits["train"].texts
    [second] = cached_copies(other, method, None, cache_dir=tmp_path, device="cpu")
    assert first[0] == "Alan Turing went to Rome with Ada ."
    assert second[0].split()[0] in ("New", "Rome")
    assert cached_copies(tagged_data(), method, None, cache_dir=tmp_path, device="cpu") == [first]


def test_the_teacher_tags_every_word_of_a_copy(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    task = TokenClassification(train=(SENTENCES_OF_WORDS, TAGS), dev=TAGGED_DEV, unlabelled_share=0.5)
    method = MentionAugmentation(copies=4)
    augmented = augment(task.read(tmp_path), method, mask_token=None, cache_dir=tmp_path, device="cpu")
    pool = augmented.pool.rows.texts
    assert sorted(pool) == ["Alan Turing went to Rome with Ada .", "New York is old"]
    train = task.encode(augmented, tokenizer, None)["train"]
    assert isinstance(train, MixedExamples)
    items = task.select(train[[4, 5]])
    assert sorted(np.bincount(items.row.numpy()).tolist()) == sorted(len(text.split()) for text in pool)
    assert not items.labelled.any()
    assert set(items.labels.tolist()) == {IGNORED}
    record = augmented.pool.record()["augmentation"]
    assert (record["method"], record["copies"], record["p_replace"], record["examples"]) == ("mentions", 4, 1.0, 2)


def test_a_task_without_mentions_is_refused() -> None:
    rows = (["a", "b"], ["x", "y"])
    task = Classification(train=rows, dev=rows, text="text", name="films")
    expected = "^augment=mentions is for tasks with tagged spans of words, and task films is classification: "
    with pytest.raises(UserError, match=expected):
        MentionAugmentation().check_task(task.info)
    MentionAugmentation().check_task(TokenClassification(train=(SENTENCES_OF_WORDS, TAGS), dev=TAGGED_DEV).info)
