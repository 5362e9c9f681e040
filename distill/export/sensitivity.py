"""Batch sensitivity: how far the prediction for a text depends on the other texts of its batch.

Dynamic quantization measures one range of an activation for a whole batch. A large value in one text then takes
precision from the others.
"""

from collections.abc import Sequence
from typing import TypedDict

from distill.contracts import Scores
from distill.edge.bundle import BATCH_SIZE
from distill.tasks.scoring import Scoring

SAMPLED = 512  # Examples of dev, from its beginning.
BATCH = BATCH_SIZE  # The largest batch that a bundle runs unless it is told another one.


class BatchSensitivity(TypedDict):
    """An entry `batch_sensitivity` of an exported file in run.json and bundle.json.

    Attributes:
        max_probability_diff: largest difference of a probability between an example alone and in a batch; of numbers,
            as a share of their range.
        changed: share of the items whose prediction in a batch is another one than alone.
        examples: number of examples that were compared, the first ones of dev.
        batch: number of examples of a batch, at most.
    """

    max_probability_diff: float
    changed: float
    examples: int
    batch: int


def measure_sensitivity(
    scoring: Scoring, groupings: Sequence[Scores], alone: Scores, *, examples: int
) -> BatchSensitivity:
    """Compares the scores of examples in batches, grouped in several ways, with those of the same examples alone.

    The values are those of the grouping with the largest difference.
    """
    return {
        "max_probability_diff": max(scoring.probability_diff(together, alone) for together in groupings),
        "changed": max(1 - scoring.agreement(together, alone) for together in groupings),
        "examples": examples,
        "batch": min(BATCH, examples),
    }


def recommend_batch_size(sensitivity: BatchSensitivity, limit: float) -> int | None:
    """Returns 1 for a file whose predictions depend on the batch by more than `limit`, else None for any size."""
    return 1 if sensitivity["max_probability_diff"] > limit else None


def describe_sensitivity(file: str, sensitivity: BatchSensitivity, batch_size: int | None) -> str:
    """Returns one sentence about a file."""
    difference, changed = sensitivity["max_probability_diff"], sensitivity["changed"]
    if batch_size is None:
        return (
            f"{file} gave a text in a batch of up to {sensitivity['batch']} the same probabilities as alone, within "
            f"{difference:.2g} ({sensitivity['examples']:,} examples of dev)"
        )
    return (
        f"{file} gives a text other probabilities in a batch than alone, by up to {difference:.2g}, and another "
        f"prediction in {changed:.1%} of cases: the bundle recommends batch_size={batch_size}; export.recipes=[static] "
        "has no such difference"
    )
