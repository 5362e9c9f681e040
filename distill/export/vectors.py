"""The gate of smaller vectors: of fewer dimensions, and those of an index in 8 bits or one."""

import math
from collections.abc import Mapping

from transformers import PreTrainedModel

from distill.contracts import Scores
from distill.errors import OptionError
from distill.export.gate import (
    FAILED,
    PASSED,
    ROUNDING,
    SLACK,
    UNDECIDED,
    SmallerVectors,
    Verdict,
    describe_noise,
    describe_reach,
    measure_drop,
)
from distill.export.settings import ExportSettings
from distill.options import show_value
from distill.tasks.scoring import Scoring
from distill.training.evaluate import split_metrics


def measure_vectors(
    scores: Mapping[str, Scores], reference: Mapping[str, Scores], *, scoring: Scoring, settings: ExportSettings
) -> list[SmallerVectors]:
    """Scores every smaller form of the vectors of a file; empty for a task without vectors.

    Args:
        scores: of the file, by split.
        reference: those of the torch model.
    """
    forms = {split: scoring.narrow(of, settings.dimensions) for split, of in scores.items()}
    whole, entries = scoring.selecting_metric(reference["dev"]), list[SmallerVectors]()
    for number, (form, narrow) in enumerate(forms["dev"]):
        metrics = split_metrics(scoring, {split: of[number][1] for split, of in forms.items()})
        drop, interval, _ = measure_drop(scoring, reference["dev"], narrow)
        verdict = judge_vectors(drop, interval, settings.max_vector_drop)
        entries.append({
            "dimensions": form.dimensions, "precision": form.precision, "rescore": form.rescore, "metrics": metrics,
            "kept": metrics[scoring.metric] / whole if whole > 0 else None, "drop": drop, "interval": interval,
            "gate": verdict.gate, "reason": verdict.reason,
        })  # fmt: skip
    return entries


def judge_vectors(drop: float, interval: list[float], limit: float) -> Verdict:
    """Returns whether smaller vectors pass.

    They fail if the metric drops by more than the limit, and by more than noise: the interval lies above 0. Dev cannot
    tell if the metric drops by more, or the interval ends above twice the limit.
    """
    if not drop <= limit + ROUNDING:  # A comparison with NaN is false.
        if interval[0] <= 0 and not math.isnan(drop):
            return Verdict(UNDECIDED, describe_noise(drop, interval[0], limit))
        return Verdict(FAILED, f"drop {drop:.4f}, the limit is {limit:g}")
    if not interval[1] <= SLACK * limit + ROUNDING:
        return Verdict(UNDECIDED, describe_reach(interval[1], SLACK * limit))
    return Verdict(PASSED)


def check_dimensions(settings: ExportSettings, model: PreTrainedModel) -> None:
    """Raises OptionError for dimensions that the vectors of a model have not."""
    width = int(model.config.hidden_size)
    if settings.dimensions and settings.dimensions[-1] > width:
        raise OptionError(
            "export.dimensions", show_value(list(settings.dimensions)),
            f"at most {width}, the width of the student's vectors",
        )  # fmt: skip
