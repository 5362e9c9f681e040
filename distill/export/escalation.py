"""The accuracy of a file whose least sure predictions the teacher makes in its place, for several shares of dev."""

from collections.abc import Mapping

import numpy as np

from distill.core.contracts import IGNORED, Scores
from distill.data.splits import TEACHER_CLASS
from distill.export.gate import choose_threshold
from distill.kinds.scoring import Scoring
from distill.records.schema import Escalation
from distill.training.statistics import LEVEL

SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)


def measure_escalation(
    scores: Mapping[str, Scores], teacher: Mapping[str, Scores], *, scoring: Scoring
) -> list[Escalation]:
    """Returns for each of `SHARES` the threshold of dev, and the accuracy where the teacher predicts what is below it.

    It is empty for predictions without a confidence, and without scores of a teacher. Rows without a label of the data
    have a confidence, and no part in an accuracy.

    Args:
        scores: of a file by split.
        teacher: its scores of the same rows.
    """
    if not scoring.can_abstain or not teacher:
        return []
    scores = {split: of.by_example() for split, of in scores.items()}
    confidences = {split: scoring.confidences(of) for split, of in scores.items()}
    right = {split: _find_right(of, teacher[split], scoring) for split, of in scores.items()}
    rows: list[Escalation] = []
    for share in SHARES:
        threshold = choose_threshold(confidences["dev"], share)
        left = {split: values < threshold for split, values in confidences.items()}
        both = {
            split: np.where(left[split], by_teacher, by_file)[is_labelled]
            for split, (by_file, by_teacher, is_labelled) in right.items()
            if is_labelled.any()
        }
        dev = both.get("dev")
        rows.append({
            "share": share, "threshold": threshold,
            "left": {split: float(is_left.mean()) for split, is_left in left.items()},
            "accuracy": {split: float(values.mean()) for split, values in both.items()},
            "interval": None if dev is None else predict_share(int(dev.sum()), len(dev)),
        })  # fmt: skip
    return rows


def _find_right(scores: Scores, teacher: Scores, scoring: Scoring) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns whether the file and the teacher are right at each row, and which rows the data labels, each `[n]`."""
    # Elsewhere the label is the class of the teacher, which would then always be right.
    is_labelled = scores.columns.get(TEACHER_CLASS, scores.labels) != IGNORED
    by_file, by_teacher = (scoring.predictions(of) == scores.labels for of in (scores, teacher.by_example()))
    return by_file, by_teacher, is_labelled


def predict_share(right: int, number: int) -> list[float]:
    """Returns the 95% interval of the share that is right in a fresh sample of as many rows.

    With Jeffreys' prior, the right ones among `number` fresh rows have a beta-binomial distribution, which has the
    noise of both samples (Aitchison and Dunsmore, Statistical Prediction Analysis, 1975). The prior is that with which
    intervals of a share keep their level best (Brown, Cai and DasGupta, 2001, section 4.1.2).

    The rows have to be drawn alike. Those of dev chose the checkpoint, which makes their share a little too large: in a
    simulation the interval held 93% of fresh samples where dev had chosen the best of 5 equally good checkpoints that
    differ at 3 of 10 rows, and 90% of 20 such ones.

    >>> [round(end, 2) for end in predict_share(90, 100)]
    [0.8, 0.97]
    """
    from scipy.stats import betabinom

    chances = betabinom.pmf(np.arange(number + 1), number, right + 0.5, number - right + 0.5).cumsum()
    ends = np.searchsorted(chances, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return [float(end) / number for end in ends]
