"""Generalized knowledge distillation: divergences of distributions over tokens, on texts that the student wrote."""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from distill.contracts import Items, Likelihood, Outputs
from distill.losses.term import Term, get_logits, mask_logits, select_chosen
from distill.options import check_arguments

Divergence = Literal["forward", "reverse", "jsd"]
Beta = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False, description="a number between 0 and 1")]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False, description="a share from 0 to 1")]
Temperature = Annotated[float, Field(gt=0, allow_inf_nan=False, description="a number above 0")]


class GeneralizedKD(Term):
    """Divergence from the teacher on a share of texts by the student (Agarwal et al., arXiv 2306.13649).

    With the teacher's p and the student's q for each item, `forward` is `KL(p || q)`, `reverse` is `KL(q || p)`, and
    `jsd` is equation 1, `beta KL(p || m) + (1 - beta) KL(q || m)` with `m = beta p + (1 - beta) q`. No gradient goes
    through the sampling of the texts (algorithm 1).

    Args:
        divergence: `forward`, `reverse` or `jsd`.
        beta: of `jsd`, between 0 and 1: near 0 it behaves like forward KL, near 1 like reverse KL.
        temperature: T above 0, by which both models' logits are divided; as in the paper without a factor T^2.
        student_share: lambda of algorithm 1, the share of micro-batches whose targets the student writes, from 0 to 1.
            In these the labels teach nothing.
        sampling_temperature: of the student's writing.

    Raises:
        OptionError: for an option that got a value it cannot take.
    """

    likelihoods: frozenset[Likelihood] = frozenset({"softmax"})

    @check_arguments
    def __init__(
        self,
        *,
        weight: float = 1.0,
        divergence: Divergence = "forward",
        beta: Beta = 0.5,
        temperature: Temperature = 1.0,
        student_share: Share = 0.0,
        sampling_temperature: Temperature = 1.0,
    ) -> None:
        super().__init__(weight=weight)
        self.divergence, self.beta, self.temperature = divergence, float(beta), float(temperature)
        self.student_share, self.sampling_temperature = float(student_share), float(sampling_temperature)

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        valid = None if items.valid is None else select_chosen(items.valid, items)
        logits = (select_chosen(get_logits(outputs), items).float() for outputs in (student, teacher))
        student_log, teacher_log = (F.log_softmax(mask_logits(of / self.temperature, valid), dim=-1) for of in logits)
        return self._divergence(student_log, teacher_log), self.count(items)

    def _divergence(self, student_log: Tensor, teacher_log: Tensor) -> Tensor:
        """Returns the sum over items of the divergence of log-probabilities `[n, C]`."""
        if self.divergence == "forward":
            return _divergence_sum(teacher_log, student_log)
        if self.divergence == "reverse":
            return _divergence_sum(student_log, teacher_log)
        shares = student_log.new_tensor([self.beta, 1 - self.beta]).log()
        mixed = torch.logaddexp(teacher_log + shares[0], student_log + shares[1])
        return self.beta * _divergence_sum(teacher_log, mixed) + (1 - self.beta) * _divergence_sum(student_log, mixed)


def _divergence_sum(of: Tensor, to: Tensor) -> Tensor:
    """Returns the sum of `KL(of || to)` of log-probabilities `[n, C]`."""
    return (of.exp() * (of - to)).sum()
