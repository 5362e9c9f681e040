"""Tests of decoupled and of generalized distillation, with values worked out by hand."""

import math

import pytest
import torch
from torch import Tensor

from distill.core.contracts import Items, Outputs
from distill.core.errors import OptionError
from distill.losses import DecoupledKD, GeneralizedKD, Objective, SoftTargets

LN2, LN3 = math.log(2), math.log(3)


def select(*labels: int, valid: Tensor | None = None) -> Items:
    given = torch.tensor(labels)
    return Items(batch={}, row=torch.arange(len(given)), labels=given, labelled=given >= 0, valid=valid)


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


# Generalized distillation


def mean(term: GeneralizedKD | SoftTargets, student: Tensor, teacher: Tensor) -> float:
    total, count = term(Outputs(logits=student), Outputs(logits=teacher), select(*[0] * len(student)))
    return float(total / count)


# Teacher: 3/4 and 1/4. Student: 1/2 and 1/2.
TEACHER, STUDENT = torch.tensor([[LN3, 0.0]]), torch.tensor([[0.0, 0.0]])
FORWARD = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
REVERSE = 0.5 * math.log(2 / 3) + 0.5 * math.log(2)


@pytest.mark.parametrize(("divergence", "expected"), [("forward", FORWARD), ("reverse", REVERSE)])
def test_divergences_by_hand(divergence: str, expected: float) -> None:
    term = GeneralizedKD(divergence=divergence)  # type: ignore[arg-type]
    assert mean(term, STUDENT, TEACHER) == pytest.approx(expected, rel=1e-5)


def test_jensen_shannon_by_hand() -> None:
    # m = 0.25 p + 0.75 q = 9/16 and 7/16.
    first = 0.75 * math.log(0.75 * 16 / 9) + 0.25 * math.log(0.25 * 16 / 7)
    second = 0.5 * math.log(0.5 * 16 / 9) + 0.5 * math.log(0.5 * 16 / 7)
    term = GeneralizedKD(divergence="jsd", beta=0.25)
    assert mean(term, STUDENT, TEACHER) == pytest.approx(0.25 * first + 0.75 * second, rel=1e-5)


def test_forward_is_soft_targets_without_the_factor() -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(4, 6), torch.randn(4, 6)
    expected = mean(SoftTargets(temperature=2.0), student, teacher) / 4
    assert mean(GeneralizedKD(temperature=2.0), student, teacher) == pytest.approx(expected, rel=1e-5)


def test_the_objective_knows_whether_the_student_writes() -> None:
    assert Objective(gkd=GeneralizedKD()).writing is None
    term = GeneralizedKD(student_share=0.5)
    assert Objective(soft=SoftTargets(), gkd=term).writing is term


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"student_share": 1.5}, "got student_share=1.5, expected a share from 0 to 1"),
        ({"sampling_temperature": 0.0}, "got sampling_temperature=0.0, expected a number above 0"),
        ({"temperature": 0.0}, "got temperature=0.0, expected a number above 0"),
        ({"beta": 1.0}, "got beta=1.0, expected a number between 0 and 1"),
        ({"divergence": "both"}, "got divergence=both, expected one of forward, reverse, jsd"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        GeneralizedKD(**options)  # type: ignore[arg-type]
