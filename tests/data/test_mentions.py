"""Tests of copies of tagged sentences whose mentions are replaced by others of their type."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from distill.core.contracts import IGNORED
from distill.core.errors import UserError
from distill.data.augmentation import MentionAugmentation, augment, cached_copies, make_copies
from distill.data.batches import MixedExamples
from distill.data.splits import LabelledData
from distill.kinds import Classification, TokenClassification

SENTENCES = ["Ada went to New York with Alan Turing .", "Rome is old", "no mention", "Acme"]
WORDS = [sentence.split() for sentence in SENTENCES]
OF_FIRST = "B-person O O B-city I-city O B-person I-person O"
TAGS = [OF_FIRST.split(), ["B-city", "O", "O"], ["O", "O"], ["B-firm"]]
DEV = ([["Ada", "left"]], [["B-person", "O"]])
PEOPLE, CITIES = ["Ada", "Alan Turing"], ["New York", "Rome"]


def data(**options: Any) -> LabelledData:
    return TokenClassification(train=(WORDS, TAGS), dev=DEV, **options).read(Path("unused"))


def copies(**options: Any) -> list[list[str]]:
    """Returns the copies of each sentence."""
    method = MentionAugmentation(**options)
    [texts] = make_copies(data(), method, None, "cpu")
    return [texts[start : start + method.copies] for start in range(0, len(texts), method.copies)]


def test_every_mention_is_replaced_by_another_one_of_its_type() -> None:
    made = copies(copies=20)
    assert set(made[0]) == {"Alan Turing went to Rome with Ada ."}
    assert set(made[1]) == {"New York is old"}
    assert set(made[2]) == {"no mention"}
    assert set(made[3]) == {"Acme"}  # The only one of its type.


def test_mentions_are_replaced_with_their_probability() -> None:
    made = copies(copies=2000, p_replace=0.25)[0]
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
    [first] = cached_copies(data(), method, None, cache_dir=tmp_path, device="cpu")
    tags = [["B-city", *TAGS[0][1:]], *TAGS[1:]]
    other = TokenClassification(train=(WORDS, tags), dev=DEV).read(Path("unused"))
    assert other.splits["train"].texts == data().splits["train"].texts
    [second] = cached_copies(other, method, None, cache_dir=tmp_path, device="cpu")
    assert first[0] == "Alan Turing went to Rome with Ada ."
    assert second[0].split()[0] in ("New", "Rome")
    assert cached_copies(data(), method, None, cache_dir=tmp_path, device="cpu") == [first]


def test_the_teacher_tags_every_word_of_a_copy(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    task = TokenClassification(train=(WORDS, TAGS), dev=DEV, unlabelled_share=0.5)
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
    MentionAugmentation().check_task(TokenClassification(train=(WORDS, TAGS), dev=DEV).info)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"copies": 0}, "got copies=0, expected a whole number of at least 1"),
        ({"p_replace": 1.5}, "got p_replace=1.5, expected a probability from 0 to 1"),
        ({"seed": -1}, "got seed=-1, expected a whole number of at least 0"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        MentionAugmentation(**options)
    assert message in str(caught.value)
