"""Tests of the shares of texts that are left to the teacher: thresholds and accuracies by hand, and their interval."""

from collections.abc import Sequence

import numpy as np
import pytest

from distill.core.contracts import IGNORED, Scores
from distill.data.splits import TEACHER_CLASS
from distill.export.escalation import SHARES, measure_escalation, predict_share
from distill.kinds.classification import LabelSets, OneClass

SCORING = OneClass(("f1",))  # Whatever selects checkpoints.
CONFIDENCES = [0.52, 0.56, 0.60, 0.64, 0.68, 0.72, 0.76, 0.80, 0.84, 0.88]


def scores_of(confidences: Sequence[float] | np.ndarray, right: str | np.ndarray) -> Scores:
    """Returns scores of rows with the labels 0 and 1 in turn, which are predicted where `right` is `+` or true."""
    labels, probabilities = np.arange(len(right)) % 2, np.asarray(confidences)
    is_right = np.array(list(right)) == "+" if isinstance(right, str) else right
    predicted = np.where(is_right, labels, 1 - labels)[:, None] == [0, 1]
    logits = np.log(np.where(predicted, probabilities[:, None], 1 - probabilities[:, None]))
    return Scores({"logits": logits}, labels, np.arange(len(labels)))


def test_the_teacher_predicts_what_is_below_the_threshold_of_dev() -> None:
    order = np.array([7, 0, 3, 9, 1, 2, 8, 4, 6, 5])
    dev = scores_of(CONFIDENCES, "--+-++++++")
    shuffled = Scores({"logits": dev.columns["logits"][order]}, dev.labels[order], order)
    file = {"dev": shuffled, "test": scores_of([0.57, 0.7], "--")}
    teacher = {"dev": scores_of([0.9] * 10, "++-+-+++++"), "test": scores_of([0.9] * 2, "++")}
    rows = {row["share"]: row for row in measure_escalation(file, teacher, scoring=SCORING)}
    assert tuple(rows) == SHARES
    expected = {  # Threshold, left of dev and of test, and the accuracy of both.
        0.0: (0.52, 0.0, 0.0, 0.7, 0.0), 0.05: (0.52, 0.0, 0.0, 0.7, 0.0), 0.1: (0.54, 0.1, 0.0, 0.8, 0.0),
        0.15: (0.54, 0.1, 0.0, 0.8, 0.0), 0.2: (0.58, 0.2, 0.5, 0.9, 0.5), 0.3: (0.62, 0.3, 0.5, 0.8, 0.5),
    }  # fmt: skip
    for share, values in expected.items():
        row = rows[share]
        found = (row["threshold"], *row["left"].values(), *row["accuracy"].values())
        assert found == pytest.approx(values)
        assert row["interval"] == predict_share(round(10 * values[3]), 10)


def test_equal_confidences_stay_with_the_file() -> None:
    file = {"dev": scores_of([0.6, 0.6, 0.6, 0.7, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8], "-" * 10)}
    rows = measure_escalation(file, {"dev": scores_of([0.9] * 10, "+" * 10)}, scoring=SCORING)
    assert [row["accuracy"]["dev"] for row in rows] == pytest.approx([0.0] * 7 + [0.3])
    assert [row["threshold"] for row in rows] == pytest.approx([0.6] * 7 + [0.65])


def test_rows_that_the_data_does_not_label_have_no_part_in_an_accuracy() -> None:
    file, teacher = scores_of(CONFIDENCES, "-" * 10), {"dev": scores_of([0.9] * 10, "+" * 10)}
    classes = np.where(np.arange(10) % 5 == 0, 1, IGNORED)  # Of the rows 0 and 5 the data has a label.
    rows = measure_escalation({"dev": file.with_columns(**{TEACHER_CLASS: classes})}, teacher, scoring=SCORING)
    assert [row["accuracy"]["dev"] for row in rows] == [0.0] * 4 + [0.5] * 4
    without = file.with_columns(**{TEACHER_CLASS: np.full(10, IGNORED)})
    unknown = measure_escalation({"dev": without}, teacher, scoring=SCORING)
    assert [row["threshold"] for row in unknown] == [row["threshold"] for row in rows]
    assert all(row["accuracy"] == {} and row["interval"] is None for row in unknown)


def test_nothing_is_left_without_a_confidence_or_a_teacher() -> None:
    file = {"dev": scores_of(CONFIDENCES, "+" * 10)}
    assert measure_escalation(file, {}, scoring=SCORING) == []
    assert measure_escalation(file, file, scoring=LabelSets(("micro_f1",), separator="|")) == []


def test_the_interval_is_that_of_a_fresh_sample() -> None:
    """After 5 wrong rows, 3, 4 and 5 of 5 are right in (670.3 + 180.5 + 29.5) / 30,240 = 2.9% of cases."""
    assert predict_share(0, 5) == [0.0, 0.6]
    assert predict_share(5, 5) == [0.4, 1.0]


def test_a_promised_accuracy_holds_in_fresh_samples() -> None:
    random, rows, samples = np.random.default_rng(0), 200, 300

    def draw() -> tuple[dict[str, Scores], dict[str, Scores]]:
        """Draws rows at which both models are right as often as they are sure."""
        confidences, ease = 0.5 + 0.499 * random.beta(2, 1, rows), random.random((2, rows))
        file = scores_of(confidences, ease[0] < confidences)
        return {"dev": file}, {"dev": scores_of(np.full(rows, 0.9), ease[1] < 0.8 + 0.15 * confidences)}

    held = {0.05: 0, 0.1: 0, 0.2: 0}
    for _ in range(samples):
        promised = {row["share"]: row for row in measure_escalation(*draw(), scoring=SCORING)}
        fresh, teacher = (of["dev"] for of in draw())
        confidences, right = SCORING.confidences(fresh), SCORING.predictions(fresh) == fresh.labels
        for share in held:
            low, high = promised[share]["interval"] or (1.0, 0.0)
            by_teacher = SCORING.predictions(teacher) == teacher.labels
            accuracy = np.where(confidences < promised[share]["threshold"], by_teacher, right).mean()
            held[share] += low <= accuracy <= high
    for inside in held.values():  # Three standard errors below 95%, and an interval that is not too wide.
        assert 0.912 <= inside / samples <= 0.99
