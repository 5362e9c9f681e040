"""Loss terms that compare the student's logits with the teacher's."""

import torch.nn.functional as F
from torch import Tensor

from distill.contracts import Items, Likelihood, Outputs
from distill.losses.term import Term, at_chosen, cross_entropy_sum, logits_of, masked, number_of, squared_error_sum


class SoftTargets(Term):
    """Cross-entropy to the teacher's softened distribution, times T^2 (Hinton et al., arXiv 1503.02531, section 2).

    `-T^2 * sum_j softmax(v/T)_j * log softmax(z/T)_j` for each item: summed over classes, averaged over items.
    The factor makes the size of the gradient independent of T. For a regression it is the squared error to the
    teacher's number, because there is no distribution to soften.

    Args:
        positions: tokens of a task over a vocabulary: those chosen for prediction (`masked`), or `all` except padding.
            Other tasks ignore it.
    """

    def __init__(self, *, temperature: float = 2.0, weight: float = 1.0, positions: str = "masked") -> None:
        super().__init__(weight=weight)
        if not temperature > 0:
            raise ValueError(f"got temperature {temperature}, expected a number above 0")
        if positions not in ("masked", "all"):
            raise ValueError(f"got positions={positions}, expected masked or all")
        self.temperature, self.positions = float(temperature), positions
        self.reads_every_token = positions == "all"
        self.accepts_top_k = positions == "masked"

    def count(self, items: Items) -> Tensor:
        return number_of(items) if self.reads_every_token else super().count(items)

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        if items.likelihood == "gaussian":
            return squared_error_sum(logits_of(student), logits_of(teacher)), self.count(items)
        student_logits, teacher_logits = logits_of(student), teacher.logits_at(self.temperature)
        if teacher_logits is None:
            raise ValueError("got no logits from the teacher, expected [n, C] at the items")
        valid = items.valid
        if not self.reads_every_token:
            student_logits, teacher_logits = at_chosen(student_logits, items), at_chosen(teacher_logits, items)
            valid = None if valid is None else at_chosen(valid, items)
        # Masked after the division, because the smallest number would become infinite below temperature 1.
        student_log_probs = F.log_softmax(masked(student_logits.float() / self.temperature, valid), dim=-1)
        teacher_probs = F.softmax(masked(teacher_logits.float() / self.temperature, valid), dim=-1)
        total = -(self.temperature**2) * (teacher_probs * student_log_probs).sum()
        return total, self.count(items)


class PseudoLabels(Term):
    """Cross-entropy to the teacher's arg-max, the hard distillation of arXiv 2012.12877, equation 3."""

    accepts_top_k = True
    likelihoods: frozenset[Likelihood] = frozenset({"softmax"})

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        student_logits, teacher_logits = (
            masked(logits_of(student), items.valid),
            masked(logits_of(teacher), items.valid),
        )
        teacher_labels = at_chosen(teacher_logits, items).argmax(dim=-1)
        return cross_entropy_sum(at_chosen(student_logits, items), teacher_labels), self.count(items)


class LogitMSE(Term):
    """Mean over classes of `(z - v)^2` for each item (Tang et al., arXiv 1903.12136, equation 4)."""

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        difference = at_chosen(logits_of(student), items).float() - at_chosen(logits_of(teacher), items).float()
        if items.valid is None:
            return difference.square().mean(dim=-1).sum(), self.count(items)
        valid = at_chosen(items.valid, items)
        per_item = difference.masked_fill(~valid, 0.0).square().sum(dim=-1) / valid.sum(dim=-1).clamp(min=1)
        return per_item.sum(), self.count(items)
