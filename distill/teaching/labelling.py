"""The probabilities of a teacher that is not trained on the task: the terms that read them, and their calibration."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from distill.contracts import Examples, Task
from distill.data.batching import scoring_steps
from distill.errors import UserError
from distill.losses import Objective
from distill.losses.term import get_logits
from distill.models.attention import NAME as ATTENTION_VECTORS
from distill.models.forward import to_device
from distill.models.labelled_encoder import LabelledEncoder

CALIBRATED = 1_000  # Labelled rows of train that the temperature is fitted to, at most.
LEAST = 20  # Labelled rows without which there is no temperature to fit.
TEMPERATURES = torch.logspace(np.log10(0.05), np.log10(20), 121)


def check_given_terms(objective: Objective, teacher: str) -> None:
    """Raises UserError for a term that reads what neither the probabilities nor the encoder beside them give."""
    terms = objective.needing(ATTENTION_VECTORS)
    if terms:
        raise UserError(
            f"objective {objective.name}: the term {', '.join(terms)} reads attention vectors, and the teacher "
            f"{teacher} gives class probabilities, with the hidden states of its encoder: set its weight to 0, or take "
            "objective=hinton"
        )


class Calibrated(nn.Module):
    """Logits that are divided by a temperature (Guo et al., arXiv 1706.04599, equation 9)."""

    def __init__(self, labels: nn.Module, temperature: float) -> None:
        super().__init__()
        self.labels, self.temperature = labels, temperature

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Returns the logits `[B, C]`."""
        logits: Tensor = self.labels(input_ids, attention_mask)
        return logits / self.temperature


@torch.inference_mode()
def fit_temperature(teacher: LabelledEncoder, task: Task, examples: Examples) -> float | None:
    """Returns the temperature with the least cross-entropy on labelled rows, None if there are too few of them.

    Args:
        examples: of train, of which those without a label are not read.
    """
    chosen = np.linspace(0, len(examples) - 1, min(CALIBRATED, len(examples))).astype(int)
    logits, labels = [], []
    for rows in scoring_steps(examples.lengths[chosen]):
        batch = to_device(examples[chosen[rows].tolist()], teacher.device)
        items = task.select(batch)
        if not items.labelled.any():
            continue
        outputs = task.run(teacher, batch, items, frozenset())
        logits.append(get_logits(outputs.at(items))[items.labelled].float().cpu())
        labels.append(items.labels[items.labelled].cpu())
    if sum(map(len, labels)) < LEAST:
        return None
    return best_temperature(torch.cat(logits), torch.cat(labels))


def best_temperature(logits: Tensor, labels: Tensor) -> float:
    """Returns the one of `TEMPERATURES` with the least cross-entropy.

    Args:
        logits: `[N, C]`.
        labels: classes `[N]`, or of labels with a probability each 0 and 1 `[N, C]`.
    """
    measure = F.cross_entropy if labels.dim() == 1 else F.binary_cross_entropy_with_logits
    targets = labels if labels.dim() == 1 else labels.float()
    losses = torch.stack([measure(logits / temperature, targets) for temperature in TEMPERATURES])
    return float(TEMPERATURES[losses.argmin()])
