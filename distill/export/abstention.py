"""Abstention: an exported file gives no label below a threshold of its confidence, which is chosen on dev."""

import math
from collections.abc import Mapping
from typing import TypedDict

import numpy as np

from distill.contracts import Scores, TaskInfo
from distill.errors import OptionError, UserError
from distill.tasks.scoring import Scoring
from distill.training.evaluate import split_metrics

ROUNDING = 1e-9  # 0.29 of 100 examples are 28.999999999999996 in floating point.


class Abstention(TypedDict):
    """An entry `abstain` of an exported file in run.json.

    Attributes:
        threshold: the file abstains where its largest probability is below.
        share: share of the examples of each split on which it abstains.
        metrics: metrics of the other examples, named as those of a file. A split of which none is left has no metrics.
    """

    threshold: float
    share: dict[str, float]
    metrics: dict[str, float]


def check_abstention(task: TaskInfo, share: float | None) -> None:
    """Raises OptionError for a task whose predictions have no confidence."""
    if share is not None and not task.can_abstain:
        expected = f"null, because task {task.name} ({task.kind}) has no classes of whole examples to be unsure of"
        raise OptionError("export.abstain", str(share), expected)


def check_dev(examples: int, share: float | None) -> None:
    """Raises UserError if the share of dev is less than one example."""
    if share is not None and _count(examples, share) < 1:
        raise UserError(
            f"got export.abstain={share}, which is less than one of the {examples:,} examples of dev: set it to at "
            f"least {math.ceil(1e4 / max(1, examples)) / 1e4:g}, or give more examples of dev"
        )


def choose_threshold(confidences: np.ndarray, share: float) -> float:
    """Returns the threshold below which at most `share` of the confidences `[N]` are.

    It is in the middle of the largest confidence below it and the smallest one that is not, so that rounding on another
    processor changes nothing. Equal confidences stay together, on the side that abstains less.
    """
    ordered = np.sort(confidences)
    count = _count(len(ordered), share)
    return float((ordered[count - 1] + ordered[count]) / 2)


def measure_abstention(scores: Mapping[str, Scores], *, scoring: Scoring, share: float) -> Abstention:
    """Returns the threshold that dev gives, and with it the share and the metrics of every split."""
    confidences = {split: scoring.confidences(split_scores) for split, split_scores in scores.items()}
    threshold = choose_threshold(confidences["dev"], share)
    answered = {split: values >= threshold for split, values in confidences.items()}
    left = {split: scores[split].select(chosen) for split, chosen in answered.items() if chosen.any()}
    return {
        "threshold": threshold,
        "share": {split: float((~chosen).mean()) for split, chosen in answered.items()},
        "metrics": split_metrics(scoring, left),
    }


def _count(examples: int, share: float) -> int:
    return int(examples * share + ROUNDING)
