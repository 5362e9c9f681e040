"""The right answers that a student loses: item by item, and by groups of items."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distill.contracts import Data, Scores
from distill.inspection.groups import LostGroup, find_lost_groups, text_groups
from distill.inspection.subjects import Subject

MOST_CLASSES = 30  # That are groups.


@dataclass(frozen=True)
class Difference:
    """An example on which two models differ.

    Attributes:
        row: of the split.
        text: of the example.
        label: the right answer.
        first: the answer of the first model.
        second: that of the second.
        size: the largest difference of a probability, of tokens the mean difference of that of the right token; where
            there are no classes, that of the scores of their answers.
    """

    row: int
    text: str
    label: object
    first: object
    second: object
    size: float


def item_scores(data: Data, scores: Scores) -> tuple[np.ndarray, np.ndarray]:
    """Returns the score of each item `[n]`, and the row of the split that it belongs to.

    It is 1 for a right answer and 0 for a wrong one, of a number minus its error. Where the metric is a mean over
    examples, each of them is an item.
    """
    scoring = data.scoring
    rows, by_example = scoring.rows(scores), scoring.example_metric(scores)
    if by_example is not None and scoring.selects == "max":
        return np.asarray(by_example, dtype=float), np.unique(rows)
    predictions = scoring.predictions(scores)
    if np.issubdtype(predictions.dtype, np.floating):
        return np.asarray(-np.abs(predictions - scores.labels)), rows
    right = predictions == scores.labels
    return np.asarray(right.reshape(len(right), -1).all(axis=1), dtype=float), rows


def lost_groups(data: Data, teacher: Scores, student: Scores, texts: Sequence[str]) -> list[LostGroup]:
    """Returns the groups of a split on which the student loses most more than elsewhere.

    Groups of items are by length, negation and unknown words of their text, and by class. Groups of right answers are
    by their type, such as that of an entity, with what was found of each.

    Args:
        texts: of the examples of the split.
    """
    scoring = data.scoring
    teacher, student = scoring.condense(teacher), scoring.condense(student)
    (first, rows), (second, _) = (item_scores(data, of) for of in (teacher, student))
    members = {key: of[rows] for key, of in text_groups(texts, list(data.labelled_texts())).items()}
    hits, others = scoring.hits(teacher), scoring.hits(student)
    if not hits and 2 <= len(data.labels) <= MOST_CLASSES and teacher.labels.shape == first.shape:
        members |= {("class", name): teacher.labels == number for number, name in enumerate(data.labels)}
    number = len(members) + len(hits)
    found = find_lost_groups(first, second, members, texts=rows, comparisons=number)
    if hits:
        kinds = np.repeat(list(hits), [len(of) for of in hits.values()])
        before, after = (np.concatenate([of[name] for name in hits]).astype(float) for of in (hits, others))
        types = {("type", str(name)): kinds == name for name in hits}
        of_text = np.concatenate(list(scoring.hit_rows(teacher).values()))
        found += find_lost_groups(before, after, types, texts=of_text, comparisons=number)
    return sorted(found, key=lambda group: -group.excess)


def differences(subject: Subject, first: Scores, second: Scores, texts: Sequence[str], most: int) -> list[Difference]:
    """Returns the examples on which two models differ most: by a probability, or by their scores without classes.

    Args:
        subject: one of the models.
    """
    data, scoring = subject.data, subject.data.scoring
    predicts_tokens, by_row = subject.task.info.classes_are_tokens, np.zeros(len(texts))
    if scoring.calibration_error(first) is not None:  # The answers have probabilities.
        sizes, rows = scoring.probability_diffs(first, second), scoring.rows(first)
    else:
        (teacher, rows), (student, _) = (item_scores(data, scoring.condense(of)) for of in (first, second))
        sizes = np.abs(teacher - student)
    np.maximum.at(by_row, rows, sizes)
    if predicts_tokens:
        by_row = np.bincount(rows, sizes, len(texts)) / np.bincount(rows, minlength=len(texts)).clip(1)
    tables = [scoring.tabulate(of, data, examples=len(texts)) for of in (first, second)]
    order = [int(row) for row in np.argsort(-by_row, kind="stable")[:most] if by_row[row] > 0]
    found = []
    for row in order:
        answers = [tables[0]["label"][row], *(of["prediction"][row] for of in tables)]
        label, one, other = (
            _differing_words(texts[row], *answers) if subject.labels_words else map(subject.answer, answers)
        )
        found.append(Difference(row, texts[row], label, one, other, float(by_row[row])))
    return found


def _differing_words(text: str, label: list[str], first: list[str], second: list[str]) -> list[str]:
    """Returns the words whose answers differ with the label and both answers, all words if none does."""
    words = text.split()
    places = [place for place, (one, other) in enumerate(zip(first, second, strict=True)) if one != other]
    return [
        ", ".join(f"{words[place]}: {of[place]}" for place in places or range(len(words)))
        for of in (label, first, second)
    ]
