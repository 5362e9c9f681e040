"""The right answers that a student loses: item by item, and by groups of items."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distill.contracts import Data, Scores
from distill.inspection.groups import LostGroup, find_lost_groups, text_groups

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
        size: the largest difference of a probability; where there are no classes, that of the scores of their answers.
    """

    row: int
    text: str
    label: object
    first: object
    second: object
    size: float


def item_scores(data: Data, scores: Scores) -> np.ndarray:
    """Returns the score of each item `[n]`: 1 for a right answer and 0 for a wrong one, of a number minus its error."""
    scoring = data.scoring
    by_example = scoring.example_metric(scores)
    if by_example is not None and scoring.selects == "max":
        return np.asarray(by_example, dtype=float)
    predictions = scoring.predictions(scores)
    if np.issubdtype(predictions.dtype, np.floating):
        return np.asarray(-np.abs(predictions - scores.labels))
    right = predictions == scores.labels
    return np.asarray(right.reshape(len(right), -1).all(axis=1), dtype=float)


def row_texts(data: Data, split: str) -> list[str]:
    """Returns the text of each example of a split, with the texts of one joined by a bar."""
    columns = data.scored()[split].text_columns().values()
    return [" | ".join(_join(value) for value in row) for row in zip(*columns, strict=True)]


def _join(value: object) -> str:
    return value if isinstance(value, str) else " ".join(map(str, value)) if isinstance(value, Sequence) else str(value)


def lost_groups(data: Data, teacher: Scores, student: Scores, texts: Sequence[str]) -> list[LostGroup]:
    """Returns the groups of a split on which the student loses most more than elsewhere.

    Groups of items are by length, negation and unknown words of their text, and by class. Groups of right answers are
    by their type, such as that of an entity, with what was found of each.

    Args:
        texts: of the examples of the split.
    """
    scoring = data.scoring
    teacher, student = scoring.condense(teacher), scoring.condense(student)
    rows, first, second = scoring.rows(teacher), item_scores(data, teacher), item_scores(data, student)
    members = {key: of[rows] for key, of in text_groups(texts, list(data.labelled_texts())).items()}
    hits, others = scoring.hits(teacher), scoring.hits(student)
    if not hits and 2 <= len(data.labels) <= MOST_CLASSES and teacher.labels.shape == first.shape:
        members |= {("class", name): teacher.labels == number for number, name in enumerate(data.labels)}
    number = len(members) + len(hits)
    found = find_lost_groups(first, second, members, comparisons=number)
    if hits:
        kinds = np.repeat(list(hits), [len(of) for of in hits.values()])
        before, after = (np.concatenate([of[name] for name in hits]).astype(float) for of in (hits, others))
        types = {("type", str(name)): kinds == name for name in hits}
        found += find_lost_groups(before, after, types, comparisons=number)
    return sorted(found, key=lambda group: -group.excess)


def differences(data: Data, first: Scores, second: Scores, texts: Sequence[str], most: int) -> list[Difference]:
    """Returns the examples on which two models differ most: by a probability, or by their scores without classes."""
    scoring = data.scoring
    if data.labels:
        sizes, rows = np.abs(scoring.probabilities(first) - scoring.probabilities(second)), first.example_id
    else:
        condensed = [scoring.condense(of) for of in (first, second)]
        sizes, rows = np.abs(np.subtract(*(item_scores(data, of) for of in condensed))), scoring.rows(condensed[0])
    by_row = np.zeros(len(texts))
    np.maximum.at(by_row, rows, sizes.reshape(len(sizes), -1).max(axis=1))
    tables = [scoring.tabulate(of, data, examples=len(texts)) for of in (first, second)]
    order = [int(row) for row in np.argsort(-by_row, kind="stable")[:most] if by_row[row] > 0]
    return [
        Difference(
            row, texts[row], tables[0]["label"][row], tables[0]["prediction"][row], tables[1]["prediction"][row],
            float(by_row[row]),
        )
        for row in order
    ]  # fmt: skip
