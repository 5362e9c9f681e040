"""The contract of a loss term, and the sums that several terms share."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from distill.contracts import IGNORED, Items, Likelihood, Outputs


class Term(nn.Module):
    """A loss `sum / count`, where `forward(student, teacher, items)` returns the sum `[]` and the count `[]`.

    `student.logits` and `teacher.logits` are `[n, C]`, one row for each item. `hidden_states` exist if they are in
    `needs`. The count depends only on the items, because a step divides by the count of all its micro-batches.

    Attributes:
        needs: outputs that the term reads besides logits: a subset of `hidden_states`, `attentions`.
        needs_teacher: whether the term reads the teacher's outputs.
        reads_logits: whether the term reads logits of the items.
        reads_every_token: whether the term reads logits of all tokens of a task over a vocabulary.
        accepts_top_k: whether the top k of the teacher's logits over a vocabulary are enough.
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

    def teacher_layers(self, student_depth: int, teacher_depth: int) -> tuple[int, ...]:
        """Returns the indices of the teacher's hidden states that the term reads; 0 is the output of the embeddings."""
        return ()

    def suits(self, *, likelihood: Likelihood, over_vocabulary: bool) -> bool:
        """Returns whether the term can learn a task of this kind."""
        return likelihood in self.likelihoods and (over_vocabulary or not self.over_vocabulary_only)

    def count(self, items: Items) -> Tensor:
        """Returns the number of items that the term averages over, `[]`."""
        return count_items(items) if items.chosen is None else items.chosen.sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        """Returns the sum of the loss over the items and their count."""
        raise TypeError(f"{type(self).__name__} has no forward(student, teacher, items)")


def count_items(items: Items) -> Tensor:
    """Returns the number of all items, `[]`."""
    return torch.tensor(len(items), device=items.labels.device)


def get_logits(outputs: Outputs) -> Tensor:
    """Returns the logits `[n, C]` of the items.

    Raises:
        ValueError: if the outputs have no logits.
    """
    if outputs.logits is None:
        raise ValueError("got outputs without logits, expected [n, C] at the items")
    return outputs.logits


def select_chosen(values: Tensor, items: Items) -> Tensor:
    """Returns the rows `[n, ...]` of the items that the task scores."""
    return values if items.chosen is None else values[items.chosen]


def cross_entropy_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Returns the sum of the cross-entropies at labels `[n]` other than -100, with a gradient even for none of them."""
    labelled = labels != IGNORED
    return F.cross_entropy(logits[labelled].float(), labels[labelled], reduction="sum")


def squared_error_sum(values: Tensor, targets: Tensor) -> Tensor:
    """Returns the sum of the squared differences of `[n, 1]`."""
    return (values.float() - targets.float()).square().sum()


def mask_logits(logits: Tensor, valid: Tensor | None) -> Tensor:
    """Returns the logits `[n, C]` with the smallest finite number at classes that an item cannot have."""
    return logits if valid is None else logits.masked_fill(~valid, torch.finfo(logits.dtype).min)
