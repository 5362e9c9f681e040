"""Tests of generalized knowledge distillation, with values worked out by hand."""

import math

import pytest
import torch
from torch import Tensor

from distill.core.contracts import IGNORED, Items, Outputs
from distill.core.errors import OptionError
from distill.losses import GeneralizedKD, Objective, SoftTargets

LN3 = math.log(3)


def items(number: int) -> Items:
    labels = torch.zeros(number, dtype=torch.long)
    batch = {"input_ids": torch.ones((1, number), dtype=torch.long)}
    return Items(batch=batch, row=torch.zeros_like(labels), labels=labels, labelled=labels != IGNORED)


def mean(term: GeneralizedKD | SoftTargets, student: Tensor, teacher: Tensor) -> Tensor:
    total, count = term(Outputs(logits=student), Outputs(logits=teacher), items(len(student)))
    return total / count


# Teacher: 3/4 and 1/4. Student: 1/2 and 1/2.
TEACHER, STUDENT = torch.tensor([[LN3, 0.0]]), torch.tensor([[0.0, 0.0]])
FORWARD = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
REVERSE = 0.5 * math.log(2 / 3) + 0.5 * math.log(2)


@pytest.mark.parametrize(("divergence", "expected"), [("forward", FORWARD), ("reverse", REVERSE)])
def test_divergences_by_hand(divergence: str, expected: float) -> None:
    term = GeneralizedKD(divergence=divergence)  # type: ignore[arg-type]
    assert float(mean(term, STUDENT, TEACHER)) == pytest.approx(expected, rel=1e-5)


def test_jensen_shannon_by_hand() -> None:
    # m = 0.25 p + 0.75 q = 9/16 and 7/16.
    first = 0.75 * math.log(0.75 * 16 / 9) + 0.25 * math.log(0.25 * 16 / 7)
    second = 0.5 * math.log(0.5 * 16 / 9) + 0.5 * math.log(0.5 * 16 / 7)
    term = GeneralizedKD(divergence="jsd", beta=0.25)
    assert float(mean(term, STUDENT, TEACHER)) == pytest.approx(0.25 * first + 0.75 * second, rel=1e-5)


def test_forward_is_soft_targets_without_the_factor() -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(4, 6), torch.randn(4, 6)
    assert float(mean(GeneralizedKD(temperature=2.0), student, teacher)) == pytest.approx(
        float(mean(SoftTargets(temperature=2.0), student, teacher)) / 4, rel=1e-5
    )


@pytest.mark.parametrize("divergence", ["forward", "reverse", "jsd"])
def test_equal_models_have_no_loss_and_the_gradient_goes_to_the_student_alone(divergence: str) -> None:
    term = GeneralizedKD(divergence=divergence)  # type: ignore[arg-type]
    assert float(mean(term, TEACHER, TEACHER)) == pytest.approx(0, abs=1e-6)
    student, teacher = STUDENT.clone().requires_grad_(), TEACHER.clone()
    mean(term, student, teacher).backward()
    assert student.grad is not None
    assert student.grad.abs().sum() > 0
    assert teacher.grad is None


def test_no_items_have_the_loss_zero() -> None:
    total, count = GeneralizedKD(divergence="jsd")(
        Outputs(logits=torch.zeros((0, 3))), Outputs(logits=torch.zeros((0, 3))), items(0)
    )
    assert (float(total), int(count)) == (0, 0)


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
