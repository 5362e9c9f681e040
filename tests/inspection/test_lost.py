"""Tests of what a student loses, on scores of models that are made by hand."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from distill.core.contracts import Scores
from distill.inspection.subjects import differences, find_lost_groups, item_scores, lost_groups, text_groups
from distill.kinds.classification import LabelSets, OneClass
from distill.kinds.regression import NumberScores
from distill.kinds.token_classification import TagScores

TAGS = ("B-a", "B-b", "O")


@dataclass
class Made:
    """The part of `Data` that losses are found by."""

    scoring: Any
    labels: list[str] = field(default_factory=list)

    def labelled_texts(self) -> list[str]:
        return ["word"]


def scores_of(logits: Any, labels: Any, examples: Any) -> Scores:
    return Scores({"logits": np.asarray(logits, dtype=float)}, np.asarray(labels), np.asarray(examples))


def of_tags(tags: np.ndarray, labels: np.ndarray, texts: np.ndarray) -> Scores:
    return scores_of(np.eye(len(TAGS))[tags] * 9, labels, texts)


@pytest.fixture
def tagged() -> tuple[Made, Scores, Scores, np.ndarray]:
    """60 sentences of 8 words. The student loses whole sentences, whatever is in them."""
    random, texts = np.random.default_rng(1), np.repeat(np.arange(60), 8)
    labels = np.tile([0, 2, 1, 2, 2, 0, 2, 1], 60)
    lost = (random.random(60) < 0.15)[texts]
    student = np.where(lost, (labels + 1) % 3, labels)
    return Made(TagScores(TAGS), list(TAGS)), of_tags(labels, labels, texts), of_tags(student, labels, texts), lost


def test_the_score_of_a_number_falls_with_its_error() -> None:
    scores = scores_of([[1.0], [2.0], [5.0]], [1.0, 3.0, 1.0], [0, 1, 2])
    found, rows = item_scores(Made(NumberScores(("pearson",))), scores)
    assert found.tolist() == [0.0, -1.0, -4.0]
    assert rows.tolist() == [0, 1, 2]


def test_groups_of_words_and_entities_are_resampled_by_text(tagged: tuple[Made, Scores, Scores, np.ndarray]) -> None:
    data, teacher, student, lost = tagged
    texts = [f"word {'more ' * (row % 9)}" for row in range(60)]
    found = {(of.kind, of.name): of for of in lost_groups(data, teacher, student, texts)}
    assert not any(of.loses_more for of in found.values())
    entities = found["type", "a"]
    assert (entities.number, entities.texts) == (120, 60)
    assert entities.lost == pytest.approx(lost.mean())
    # All groups together are corrected for, those of words and those of entities: 7 and 2.
    hits = data.scoring.hits(student)
    before, after = np.ones(len(hits["a"]) + len(hits["b"])), np.concatenate([hits["a"], hits["b"]]).astype(float)
    rows = np.concatenate(list(data.scoring.hit_rows(student).values()))
    kinds = {("type", name): np.repeat(["a", "b"], [len(of) for of in hits.values()]) == name for name in hits}
    [corrected, _] = find_lost_groups(before, after, kinds, texts=rows, comparisons=9)
    assert found[corrected.kind, corrected.name].interval == corrected.interval
    (first, of_text), (second, _) = item_scores(data, teacher), item_scores(data, student)
    members = {key: of[of_text] for key, of in text_groups(texts, ["word"]).items()}
    for of_words in find_lost_groups(first, second, members, texts=of_text, comparisons=9):
        assert found[of_words.kind, of_words.name] == of_words


def test_a_type_that_is_lost_is_named() -> None:
    texts, labels = np.repeat(np.arange(80), 4), np.tile([0, 2, 1, 2], 80)
    student = np.where((labels == 1) & (texts % 2 == 0), 2, labels)
    data = Made(TagScores(TAGS), list(TAGS))
    found = lost_groups(data, of_tags(labels, labels, texts), of_tags(student, labels, texts), ["word"] * 80)
    [named] = [of for of in found if of.loses_more and of.kind == "type"]
    assert (named.name, named.lost, named.excess) == ("b", 0.5, 0.5)
    assert found == sorted(found, key=lambda of: -of.excess)
    # The other way round nothing is lost.
    assert not any(
        of.loses_more
        for of in lost_groups(data, of_tags(student, labels, texts), of_tags(labels, labels, texts), ["word"] * 80)
    )


def test_the_rows_of_hits_are_those_of_their_examples() -> None:
    labels = np.array([[1, 0], [1, 1], [0, 1]])
    scoring = LabelSets(("micro_f1",), labels=("x", "y"), separator=",")
    scores = scores_of(np.where(labels, 3.0, -3.0), labels, [4, 7, 9])
    assert {name: rows.tolist() for name, rows in scoring.hit_rows(scores).items()} == {"x": [4, 7], "y": [7, 9]}
    half = scores_of([[3, -3], [3, -3], [-3, -3]], labels, [4, 7, 9])  # Of the second one label of two.
    assert item_scores(Made(scoring), half)[0].tolist() == [1.0, 0.0, 0.0]
    one = OneClass(("accuracy",), classes=("x", "y"))
    of_one = scores_of([[1, 0], [0, 1], [1, 0]], [0, 1, 1], [4, 7, 9])
    assert {name: rows.tolist() for name, rows in one.hit_rows(of_one).items()} == {"x": [4], "y": [7, 9]}
    tags = of_tags(np.array([0, 2, 1, 0]), np.array([0, 2, 1, 0]), np.array([3, 3, 5, 6]))
    assert {name: rows.tolist() for name, rows in TagScores(TAGS).hit_rows(tags).items()} == {"a": [3, 6], "b": [5]}


def test_the_largest_difference_of_a_text_ranks_it() -> None:
    """Of several words the one that differs most, and the answers of the first model before those of the second."""
    labels, texts = np.array([0, 2, 2, 0]), np.array([0, 0, 1, 1])
    teacher = scores_of([[9, 0, 0], [0, 0, 9], [0, 0, 1], [1, 0, 0]], labels, texts)
    student = scores_of([[0, 9, 0], [0, 0, 9], [0, 0, 2], [1, 0, 0]], labels, texts)
    subject: Any = SimpleNamespace(
        data=Made(TagScores(TAGS), list(TAGS)), task=SimpleNamespace(info=SimpleNamespace(classes_are_tokens=False)),
        labels_words=True, answer=lambda value: value,
    )  # fmt: skip
    first, second = differences(subject, teacher, student, ["one two", "three four"], 5)
    assert (first.row, second.row) == (0, 1)
    assert (first.label, first.first, first.second) == ("one: B-a", "one: B-a", "one: B-b")
    assert first.size > 0.9 > second.size > 0
    assert [of.row for of in differences(subject, teacher, student, ["one two", "three four"], 1)] == [0]
