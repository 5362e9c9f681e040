"""Loss terms that compare the student's logits with the teacher's."""

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from distill.contracts import Items, Likelihood, Outputs
from distill.losses.term import (
    Term,
    binary_divergence_sum,
    count_items,
    cross_entropy_sum,
    get_logits,
    mask_logits,
    select_chosen,
    squared_error_sum,
)
from distill.options import check_arguments


class SoftTargets(Term):
    """KL divergence from the teacher's softened distribution, times T^2 (Hinton et al., arXiv 1503.02531, section 2).

    `T^2 * sum_j p_j * (log p_j - log softmax(z/T)_j)` with `p = softmax(v/T)` for each item: summed over classes,
    averaged over items. It is the paper's cross-entropy without the entropy of the teacher, which no student can
    change: it has the same gradient, and is 0 for a student with the teacher's distribution. The factor makes the size
    of the gradient independent of T.

    For a regression it is the squared error to the teacher's number, because there is no distribution to soften. Where
    an item has any number of labels it is the mean over the C labels of the divergence of two distributions, those of
    having the label or not. With the sigmoid s and `p_c = s(v_c/T)` it is
    `T^2/C sum_c (p_c log(p_c / s(z_c/T)) + (1 - p_c) log((1 - p_c) / (1 - s(z_c/T))))`.

    Args:
        temperature: T above 0; a higher one softens both distributions.
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

    @property
    def drawn_at(self) -> float | None:
        return self.temperature if self.accepts_top_k else None

    def count(self, items: Items) -> Tensor:
        return count_items(items) if self.reads_every_token else super().count(items)

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        if items.likelihood == "gaussian":
            return squared_error_sum(get_logits(student), get_logits(teacher)), self.count(items)
        student_logits, teacher_logits = get_logits(student), _softened_logits(teacher, self.temperature)
        if items.likelihood == "sigmoid":
            total = binary_divergence_sum(
                student_logits.float() / self.temperature, teacher_logits.float() / self.temperature
            )
            return self.temperature**2 * total, self.count(items)
        valid = items.valid
        if not self.reads_every_token:
            student_logits, teacher_logits = select_chosen(student_logits, items), select_chosen(teacher_logits, items)
            valid = None if valid is None else select_chosen(valid, items)
        # Masked after the division, because the smallest number would become infinite below temperature 1.
        student_log_probs = F.log_softmax(mask_logits(student_logits.float() / self.temperature, valid), dim=-1)
        softened = mask_logits(teacher_logits.float() / self.temperature, valid)
        # The logarithms are subtracted item by item, because the sums of both entropies would round a small rest.
        differences = F.log_softmax(softened, dim=-1) - student_log_probs
        return self.temperature**2 * (F.softmax(softened, dim=-1) * differences).sum(), self.count(items)


class PseudoLabels(Term):
    """Cross-entropy to the teacher's arg-max, the hard distillation of arXiv 2012.12877, equation 3."""

    accepts_top_k = True
    likelihoods: frozenset[Likelihood] = frozenset({"softmax"})

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        student_logits, teacher_logits = (
            mask_logits(get_logits(student), items.valid),
            mask_logits(get_logits(teacher), items.valid),
        )
        teacher_labels = select_chosen(teacher_logits, items).argmax(dim=-1)
        return cross_entropy_sum(select_chosen(student_logits, items), teacher_labels), self.count(items)


class LogitMSE(Term):
    """Mean over classes of `(z - v)^2` for each item (Tang et al., arXiv 1903.12136, equation 4)."""

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        student_logits, teacher_logits = (
            select_chosen(get_logits(outputs), items).float() for outputs in (student, teacher)
        )
        difference = student_logits - teacher_logits
        if items.valid is None:
            return difference.square().mean(dim=-1).sum(), self.count(items)
        valid = select_chosen(items.valid, items)
        per_item = difference.masked_fill(~valid, 0.0).square().sum(dim=-1) / valid.sum(dim=-1).clamp(min=1)
        return per_item.sum(), self.count(items)


class LogitMarginMSE(Term):
    """Squared difference of the margins between the true class and each other one (arXiv 2010.02666, equation 4).

    For a labelled item with the label t it is the mean over the other classes j of `((z_t - z_j) - (v_t - v_j))^2`. In
    a list of documents t is the relevant one, and the paper has one j. A number that is added to all scores of a list
    changes nothing.
    """

    likelihoods: frozenset[Likelihood] = frozenset({"softmax"})

    def count(self, items: Items) -> Tensor:
        return items.labelled.sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        labels = items.labels[items.labelled].unsqueeze(-1)
        margins, expected = (
            logits.gather(1, labels) - logits
            for logits in (get_logits(outputs)[items.labelled].float() for outputs in (student, teacher))
        )
        others = torch.ones_like(margins, dtype=torch.bool) if items.valid is None else items.valid[items.labelled]
        others = others.scatter(1, labels, False)
        # Filled before the square, because logits of classes that an item cannot have are the smallest number.
        squares = (margins - expected).masked_fill(~others, 0.0).square()
        return (squares.sum(dim=-1) / others.sum(dim=-1).clamp(min=1)).sum(), self.count(items)


class DecoupledKD(Term):
    """Divergence from the teacher, its target-class and non-target-class parts weighted apart (arXiv 2203.08679).

    `T^2 * (alpha * KL(b_teacher || b_student) + beta * KL(q_teacher || q_student))` for each labelled item: equation 7
    of Zhao et al., with the factor T^2 of their code. With p the softmax of the logits divided by T and t the label,
    `b = [p_t, 1 - p_t]`, and q is the softmax over all classes except t. Ordinary soft targets have `alpha = 1` and
    `beta = 1 - p_t` of the teacher. Of two classes only one remains beside the target, so that the second part is 0.

    Args:
        alpha: weight of the target class's part.
        beta: weight of the other classes' part.
        temperature: T above 0; a higher one softens both distributions.
    """

    likelihoods: frozenset[Likelihood] = frozenset({"softmax"})

    @check_arguments
    def __init__(
        self,
        *,
        weight: float = 1.0,
        alpha: NonNegativeFloat = 1.0,
        beta: NonNegativeFloat = 2.0,
        temperature: PositiveFloat = 2.0,
    ) -> None:
        super().__init__(weight=weight)
        self.alpha, self.beta, self.temperature = float(alpha), float(beta), float(temperature)

    def count(self, items: Items) -> Tensor:
        return items.labelled.sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        labels, valid = items.labels[items.labelled], None if items.valid is None else items.valid[items.labelled]
        student_parts, teacher_parts = (
            self._log_probs(logits[items.labelled], labels, valid)
            for logits in (get_logits(student), _softened_logits(teacher, self.temperature))
        )
        target_part, other_part = (
            F.kl_div(student_part, teacher_part, reduction="sum", log_target=True)
            for student_part, teacher_part in zip(student_parts, teacher_parts, strict=True)
        )
        return self.temperature**2 * (self.alpha * target_part + self.beta * other_part), self.count(items)

    def _log_probs(self, logits: Tensor, labels: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns the logarithms of `b [n, 2]` and of `q [n, C]`."""
        is_target = torch.zeros_like(logits, dtype=torch.bool).scatter(1, labels.unsqueeze(-1), True)
        scaled = mask_logits(logits.float() / self.temperature, valid)
        log_probs = F.log_softmax(scaled, dim=-1)
        others = mask_logits(log_probs, ~is_target)
        target = torch.stack([log_probs[is_target], others.logsumexp(dim=-1)], dim=-1)
        return target, F.log_softmax(mask_logits(scaled, ~is_target), dim=-1)


def _softened_logits(teacher: Outputs, temperature: float) -> Tensor:
    """Returns the teacher's logits for a temperature; raises ValueError if it has none."""
    logits = teacher.logits_at(temperature)
    if logits is None:
        raise ValueError("got no logits from the teacher, expected [n, C] at the items")
    return logits
