"""The contract of a loss term, and the sums that several terms share."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from distill.contracts import IGNORED, Items, Likelihood, Outputs


class Term(nn.Module):
    """One loss: `forward(student, teacher, items) -> (sum [], count [])`, its mean being `sum / count`.

    `student.logits` and `teacher.logits` are `[n, C]`, one row for each of the items; `hidden_states` are there if
    `needs` names them. The count follows from the items alone, because a step of several micro-batches divides by the
    count of all of them.

    Attributes:
        needs: outputs that the term reads besides logits: a subset of `hidden_states`, `attentions`.
        needs_teacher: whether the term reads the teacher's outputs.
        reads_logits: whether the term reads logits of the items.
        reads_every_token: whether the term reads logits of all tokens of a task over a vocabulary.
        accepts_top_k: whether the largest of a teacher's logits over a vocabulary are enough.
        likelihoods: the meanings of logits that the term can learn from.
        over_vocabulary_only: whether the term is only for tasks over a vocabulary.
    """

    needs: frozenset[str] = frozenset()
    needs_teacher = True
    reads_logits = True
    reads_every_token = False
    accepts_top_k = False
    likelihoods: frozenset[Likelihood] = frozenset({"softmax", "gaussian"})
    over_vocabulary_only = False

    def __init__(self, *, weight: float = 1.0) -> None:
        super().__init__()
        if not weight >= 0:
            raise ValueError(f"got weight {weight} for {type(self).__name__}, expected 0 or more")
        self.weight = float(weight)

    def connect(self, student_width: int, teacher_width: int) -> None:
        """Prepares for hidden states of these widths. Terms that do not compare hidden states ignore it."""

    def suits(self, *, likelihood: Likelihood, over_vocabulary: bool) -> bool:
        """Whether a task of this kind can be learned with the term."""
        return likelihood in self.likelihoods and (over_vocabulary or not self.over_vocabulary_only)

    def count(self, items: Items) -> Tensor:
        """Number of the items that the term averages over, `[]`."""
        return number_of(items) if items.chosen is None else items.chosen.sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        """Returns the sum of the loss over the items and their count."""
        raise TypeError(f"{type(self).__name__} has no forward(student, teacher, items)")


def number_of(items: Items) -> Tensor:
    """The number of all items, `[]`."""
    return torch.tensor(len(items), device=items.labels.device)


def logits_of(outputs: Outputs) -> Tensor:
    """The logits `[n, C]` of the items.

    Raises:
        ValueError: for outputs without logits.
    """
    if outputs.logits is None:
        raise ValueError("got outputs without logits, expected [n, C] at the items")
    return outputs.logits


def at_chosen(values: Tensor, items: Items) -> Tensor:
    """The rows `[n, ...]` of the items that the task scores."""
    return values if items.chosen is None else values[items.chosen]


def cross_entropy_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum of the cross-entropies at the labels `[n]` that are not -100; 0 with a gradient where there is none."""
    labelled = labels != IGNORED
    return F.cross_entropy(logits[labelled].float(), labels[labelled], reduction="sum")


def squared_error_sum(values: Tensor, targets: Tensor) -> Tensor:
    """Sum of the squared differences of `[n, 1]`."""
    return (values.float() - targets.float()).square().sum()


def masked(logits: Tensor, valid: Tensor | None) -> Tensor:
    """Logits `[n, C]` with the smallest finite number at classes that an item cannot have, so that nothing is NaN."""
    return logits if valid is None else logits.masked_fill(~valid, torch.finfo(logits.dtype).min)
