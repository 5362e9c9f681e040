"""The scale of a teacher of numbers: compared with the labels of train, and put right in its last layer."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from transformers import PreTrainedModel

from distill.contracts import Examples, Scores, Task
from distill.data.batching import scoring_steps
from distill.models.loading import Start, rescale_head
from distill.tasks.scoring import Scoring
from distill.training.evaluate import evaluate

SAMPLE = 512  # Examples of train at most.
CORRELATION = 0.5  # A linear fit with less explains under a quarter of the labels' variance.
# Of the labels' variance. More is lost by a shift of half a standard deviation, or by a factor of 2.
LOST_VARIANCE = 0.25


@dataclass(frozen=True)
class Rescaling:
    """The linear map from a teacher's numbers to the labels."""

    slope: float
    intercept: float

    def apply(self, model: PreTrainedModel) -> PreTrainedModel:
        """Changes the model's last linear layer, if there is one, and returns the model."""
        rescale_head(model, self.slope, self.intercept)
        return model


def fit_scale(
    start: Start, task: Task, scoring: Scoring, examples: Examples, device: torch.device
) -> tuple[Start, Rescaling | None]:
    """Compares the numbers of a teacher with the labels of a sample of train, and rescales its head if necessary.

    The teacher is on another scale if its squared error is above that of the labels' mean, or the line of least
    squares through labels and numbers would lower it by more than `LOST_VARIANCE` of the labels' variance. Numbers that
    correlate with the labels are then rescaled, with a notice. Others do not fit, and the reason says so.
    """
    scores = _score_sample(start.model, task, scoring, examples, device)
    numbers, labels = (values.astype(np.float64) for values in (scores.columns["logits"][:, 0], scores.labels))
    error, variance = float(np.square(numbers - labels).mean()), float(labels.var())
    spread = float(numbers.std() * labels.std())
    covariance = float(((numbers - numbers.mean()) * (labels - labels.mean())).mean())
    correlation = covariance / spread if spread > 0 else 0.0
    fitted_error = variance * (1 - correlation**2)
    if not (error > variance or error - fitted_error > LOST_VARIANCE * variance):
        return start, None
    ranges = (
        f"numbers from {numbers.min():.3g} to {numbers.max():.3g} for {len(labels)} examples of train with labels from "
        f"{labels.min():.3g} to {labels.max():.3g}"
    )
    if correlation < CORRELATION:
        reason = f"it gives {ranges}, a squared error of {error:.3g} where their mean has {variance:.3g}"
        return replace(start, fits=False, reason=reason), None
    slope = covariance / float(numbers.var())
    rescaling = Rescaling(slope, float(labels.mean()) - slope * float(numbers.mean()))
    if not _rescale(
        start.model, rescaling, task, scoring, examples, device, expected=slope * numbers + rescaling.intercept
    ):
        reason = f"it gives {ranges}, and has no last linear layer to rescale"
        return replace(start, fits=False, reason=reason), None
    notice = (
        f"the teacher gives {ranges}: its last layer is rescaled, to {slope:.4g} times its numbers "
        f"{'+' if rescaling.intercept >= 0 else '-'} {abs(rescaling.intercept):.4g}"
    )
    return replace(start, notices=[*start.notices, notice]), rescaling


def _rescale(
    model: PreTrainedModel,
    rescaling: Rescaling,
    task: Task,
    scoring: Scoring,
    examples: Examples,
    device: torch.device,
    *,
    expected: np.ndarray,
) -> bool:
    """Rescales the model's head, and returns whether its numbers are the expected ones; else the head is unchanged."""
    rescaling.apply(model)
    numbers = _score_sample(model, task, scoring, examples, device).columns["logits"][:, 0]
    if np.allclose(numbers, expected, atol=1e-3 * float(expected.std())):
        return True
    Rescaling(1 / rescaling.slope, -rescaling.intercept / rescaling.slope).apply(model)
    return False


def _score_sample(
    model: PreTrainedModel, task: Task, scoring: Scoring, examples: Examples, device: torch.device
) -> Scores:
    """Scores the same examples in every run, in their order."""
    order = np.random.default_rng(0).permutation(len(examples))
    chosen = np.sort(order[:SAMPLE])
    steps = scoring_steps(np.asarray(examples.lengths)[chosen])
    scores = evaluate(model.to(device), task, scoring, ([examples[chosen[step].tolist()]] for step in steps))
    model.cpu()
    return scores.by_example()
