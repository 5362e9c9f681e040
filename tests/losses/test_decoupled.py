"""Tests of decoupled distillation: values by hand, the classes that count, and items without a label."""

import math

import pytest
import torch
from torch import Tensor

from distill.core.contracts import IGNORED, Items, Outputs
from distill.core.errors import OptionError
from distill.losses import DecoupledKD, Objective, SoftTargets

LN2, LN3, LN4 = math.log(2), math.log(3), math.log(4)


def select(*labels: int, valid: Tensor | None = None) -> Items:
    given = torch.tensor(labels)
    return Items(batch={}, row=torch.arange(len(given)), labels=given, labelled=given != IGNORED, valid=valid)


def outputs(logits: object) -> Outputs:
    return Outputs(logits=torch.as_tensor(logits, dtype=torch.float32))


def test_the_parts_match_the_values_by_hand() -> None:
    # Class 0 of three is true. The teacher has [1/2, 1/4, 1/4], the student [1/4, 1/4, 1/2].
    # Target: [1/2, 1/2] against [1/4, 3/4]: 1/2 ln 2 + 1/2 ln(2/3). Others: [1/2, 1/2] against [1/3, 2/3]:
    # 1/2 ln(3/2) + 1/2 ln(3/4).
    student, teacher = outputs([[0.0, 0.0, LN2]]), outputs([[LN2, 0.0, 0.0]])
    target, others = (LN2 + math.log(2 / 3)) / 2, (math.log(1.5) + math.log(0.75)) / 2
    for alpha, beta in ((1.0, 0.0), (0.0, 1.0), (2.0, 3.0)):
        total, count = DecoupledKD(alpha=alpha, beta=beta, temperature=1.0)(student, teacher, select(0))
        assert float(total) == pytest.approx(alpha * target + beta * others, rel=1e-5)
        assert int(count) == 1


def test_with_the_teachers_own_weight_it_is_the_divergence_of_soft_targets() -> None:
    """Equation 6: KL = TCKD + (1 - p_t) NCKD, so that beta = 1 - p_t gives soft targets."""
    student = torch.randn(1, 4, generator=torch.Generator().manual_seed(1), requires_grad=True)
    teacher = torch.tensor([[1.0, 0.0, 2.0, -1.0]])
    beta = 1 - float((teacher / 2).softmax(-1)[0, 2])
    totals = [
        term(Outputs(logits=student), outputs(teacher), select(2))[0]
        for term in (DecoupledKD(beta=beta, temperature=2.0), SoftTargets(temperature=2.0))
    ]
    torch.testing.assert_close(*totals)
    torch.testing.assert_close(*(torch.autograd.grad(total, student)[0] for total in totals))


def test_items_without_a_label_are_skipped() -> None:
    generator = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(2, 3, 5, generator=generator)
    student.requires_grad_()
    total, count = DecoupledKD()(Outputs(logits=student), outputs(teacher), select(4, IGNORED, 0))
    alone, _ = DecoupledKD()(Outputs(logits=student[[0, 2]]), outputs(teacher[[0, 2]]), select(4, 0))
    torch.testing.assert_close(total, alone)
    assert int(count) == 2
    assert not torch.autograd.grad(total, student)[0][1].any()
    nothing, count = DecoupledKD()(Outputs(logits=student), outputs(teacher), select(*[IGNORED] * 3))
    assert (float(nothing.detach()), int(count)) == (0.0, 0)
    assert not torch.autograd.grad(nothing, student)[0].any()


def test_an_item_with_one_valid_class_has_no_loss_and_a_finite_gradient() -> None:
    student = torch.randn(1, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    items = select(1, valid=torch.tensor([[False, True, False]]))
    total, _ = DecoupledKD()(Outputs(logits=student), outputs([[5.0, 0.0, 1.0]]), items)
    assert float(total.detach()) == 0
    assert not torch.autograd.grad(total, student)[0].any()


def test_it_needs_classes_and_valid_options() -> None:
    assert Objective(dkd=DecoupledKD()).unsuited(likelihood="gaussian", classes_are_tokens=False) == ["dkd"]
    with pytest.raises(OptionError, match="got beta=-1, expected a number of at least 0"):
        DecoupledKD(beta=-1)
    with pytest.raises(OptionError, match="got temperature=0, expected a number above 0"):
        DecoupledKD(temperature=0)
