"""Tests of terms that compare relations, with values worked out by hand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from distill.core.contracts import Items, Outputs
from distill.losses import (
    CKA,
    DIST,
    Contrastive,
    GeneralizedKD,
    PooledStates,
    RelationalKD,
    Term,
    VariationalInformation,
)
from distill.losses.term import EncoderSize


def select(number: int, mask: Tensor | None = None, valid: Tensor | None = None) -> Items:
    batch = {"attention_mask": torch.ones(number, 1, dtype=torch.long) if mask is None else mask}
    labels = torch.zeros(number, dtype=torch.long)
    return Items(batch=batch, row=torch.arange(number), labels=labels, labelled=labels >= 0, valid=valid)


def mean(term: Term, student: Outputs, teacher: Outputs, items: Items) -> float:
    total, count = term(student, teacher, items)
    return float(total.detach() / count)


def pooled(*rows: list[float]) -> Outputs:
    return Outputs(pooled=torch.tensor(rows))


def as_logits(*rows: list[float]) -> Outputs:
    """Returns logits of these probabilities."""
    return Outputs(logits=torch.tensor(rows).log())


# Distances and angles

LINE = pooled([0.0, 0.0], [1.0, 0.0], [2.0, 0.0])
CORNER = pooled([0.0], [1.0], [1.0])  # Of another width.


def test_distances_are_relative_to_their_mean() -> None:
    # Of the line 1, 2 and 1 over 4/3, of the corner 1, 1 and 0 over 2/3: 3/4, 3/2, 3/4 and 3/2, 3/2, 0.
    expected = (0.75**2 / 2 + 0 + 0.75**2 / 2) / 3
    assert mean(RelationalKD(angle=0), LINE, CORNER, select(3)) == pytest.approx(expected, rel=1e-5)


def test_angles_of_triplets() -> None:
    # Angles of the line at its three points: 0, 180 and 0 degrees; of a right angle at the first point: 90, 45 and 45.
    right = pooled([0.0, 0.0], [1.0, 0.0], [0.0, 1.0])
    root = math.sqrt(0.5)
    of_first, of_second, of_third = 1 / 2, 1 + root - 0.5, (1 - root) ** 2 / 2  # The second is above delta.
    expected = (of_first + of_second + of_third) / 3
    assert mean(RelationalKD(distance=0, angle=1), LINE, right, select(3)) == pytest.approx(expected, rel=1e-5)


def test_a_moved_turned_and_scaled_space_has_no_loss() -> None:
    states = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    turned = states @ torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(1)))[0] * 3 + 5
    assert mean(RelationalKD(), Outputs(pooled=turned), Outputs(pooled=states), select(6)) < 1e-8


@pytest.mark.parametrize("number", [1, 2])
def test_few_or_equal_texts_have_a_finite_loss_and_gradient(number: int) -> None:
    student = torch.ones(number, 3, requires_grad=True)
    total, _ = RelationalKD()(Outputs(pooled=student), Outputs(pooled=torch.randn(number, 3)), select(number))
    assert torch.isfinite(total)
    assert torch.isfinite(torch.autograd.grad(total, student)[0]).all()


# Correlations


def test_correlations_by_hand() -> None:
    # Columns of two rows have r 1 or -1: of the first and the third class they go the same way in both models.
    student = as_logits([0.5, 0.3, 0.2], [0.3, 0.4, 0.3])
    teacher = as_logits([0.6, 0.3, 0.1], [0.2, 0.2, 0.6])

    def r(first: list[float], second: list[float]) -> float:
        return float(torch.corrcoef(torch.tensor([first, second]))[0, 1])

    between = 1 - (r([0.5, 0.3, 0.2], [0.6, 0.3, 0.1]) + r([0.3, 0.4, 0.3], [0.2, 0.2, 0.6])) / 2
    within = (0 + 2 + 0) / 3
    for weights, expected in (((1, 0), between), ((0, 1), within), ((2, 3), 2 * between + 3 * within)):
        term = DIST(between=weights[0], within=weights[1])
        assert mean(term, student, teacher, select(2)) == pytest.approx(expected, abs=1e-5)


def test_flatter_probabilities_in_the_same_proportions_have_no_loss() -> None:
    teacher = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.3, 0.6], [0.2, 0.7, 0.1]])
    student = 0.5 * teacher + 0.5 / 3
    assert mean(DIST(), Outputs(logits=student.log()), Outputs(logits=teacher.log()), select(3)) < 1e-5


def test_the_temperature_is_squared_and_impossible_classes_have_no_gradient() -> None:
    logits = torch.tensor([[1.0, 0.0, 9.0], [0.0, 1.0, 9.0]], requires_grad=True)
    valid = torch.tensor([[True, True, False]] * 2)
    teacher = Outputs(logits=torch.tensor([[2.0, 0.0, 0.0], [2.0, 0.0, 0.0]]))
    total, count = DIST(temperature=2.0)(Outputs(logits=logits), teacher, select(2, valid=valid))
    halved, _ = DIST()(Outputs(logits=logits / 2), Outputs(logits=teacher.logits / 2), select(2, valid=valid))  # type: ignore[operator]
    assert (float(total.detach()), int(count)) == (pytest.approx(4 * float(halved.detach()), rel=1e-5), 2)
    assert not torch.autograd.grad(total, logits)[0][:, 2].any()


def test_no_item_has_no_loss_and_a_finite_gradient() -> None:
    logits = torch.zeros(0, 3, requires_grad=True)
    total, count = DIST()(Outputs(logits=logits), Outputs(logits=torch.zeros(0, 3)), select(0))
    assert (float(total.detach()), int(count)) == (0, 0)
    assert torch.autograd.grad(total, logits)[0].shape == (0, 3)


# Alignment


def states(*layers: Tensor) -> Outputs:
    return Outputs(hidden_states=tuple(layers))


def test_alignment_by_hand_without_padding() -> None:
    # Centred columns (1, -1, 0) and (1, 1, -2): products 2 and 6, between them 0. X has the first alone, Y both.
    one, two, junk = [1.0, -1.0, 0.0], [1.0, 1.0, -2.0], [7.0]
    first = torch.tensor([one + junk]).T.unsqueeze(0)  # [1, 4, 1]
    second = torch.tensor([one + junk, two + junk]).T.unsqueeze(0)
    items = select(1, mask=torch.tensor([[1, 1, 1, 0]]))
    nothing = torch.full((1, 4, 1), torch.nan)
    found = mean(CKA(), states(nothing, first + 3), states(nothing, second - 5), items)
    assert found == pytest.approx(1 - 2**2 / (2 * math.sqrt(2**2 + 6**2)), rel=1e-5)


def test_layers_are_matched_and_averaged() -> None:
    random = torch.Generator().manual_seed(0)
    layers = [torch.randn(2, 5, 4, generator=random) for _ in range(5)]
    items = select(2, mask=torch.ones(2, 5, dtype=torch.long))
    teacher = states(*layers)
    assert mean(CKA(), states(layers[0], layers[2], layers[4]), teacher, items) == pytest.approx(0, abs=1e-5)
    assert mean(CKA(layers=[1, 4]), states(layers[0], layers[1], layers[4]), teacher, items) == pytest.approx(
        0, abs=1e-5
    )
    assert mean(CKA(), states(layers[0], layers[2], layers[3]), teacher, items) > 0.1


def test_states_without_variance_have_a_finite_gradient() -> None:
    student = torch.ones(1, 3, 2, requires_grad=True)
    items = select(1, mask=torch.ones(1, 3, dtype=torch.long))
    total, _ = CKA()(states(student, student), states(torch.randn(1, 3, 2), torch.randn(1, 3, 2)), items)
    assert torch.isfinite(torch.autograd.grad(total, student)[0]).all()


# Learned maps

ONE, TWO = EncoderSize(width=1, layers=1), EncoderSize(width=2, layers=2)


def fill(module: torch.nn.Module, weights: list[list[float]], bias: list[float]) -> None:
    module.load_state_dict({"weight": torch.tensor(weights), "bias": torch.tensor(bias)})


def test_a_text_is_told_from_the_others_by_hand() -> None:
    # Means without padding: of the student 1 and -1, of the teacher (1, 0) and (0, 1). Its maps turn both into plane
    # vectors, of the student's (1, 0) and (-1, 0): cosines 1, 0 in the first row, -1, 0 in the second.
    term = Contrastive(dimensions=2, temperature=0.5)
    term.connect(ONE, TWO)
    fill(term.maps[0], [[3.0], [0.0]], [0.0, 0.0])
    fill(term.maps[1], [[2.0, 0.0], [0.0, 2.0]], [0.0, 0.0])
    mask = torch.tensor([[1, 1], [1, 0]])
    student = states(torch.zeros(2, 2, 1), torch.tensor([[[0.0], [2.0]], [[-1.0], [9.0]]]))
    last = torch.tensor([[[1.0, -1.0], [1.0, 1.0]], [[0.0, 1.0], [9.0, 9.0]]])
    teacher = states(torch.zeros_like(last), torch.zeros_like(last), last)
    expected = (math.log(1 + math.exp(-2)) + math.log(1 + math.exp(-2))) / 2
    assert mean(term, student, teacher, select(2, mask=mask)) == pytest.approx(expected, rel=1e-5)


def test_the_likelihood_of_states_by_hand() -> None:
    term = VariationalInformation(layers=[1])
    term.connect(ONE, TWO)
    fill(term.means[0], [[1.0], [-1.0]], [0.0, 1.0])
    with torch.no_grad():
        term.scales[0].copy_(torch.tensor([math.log(math.e - 1), math.log(math.exp(4) - 1)]))  # Variances 1 and 4.
    student = states(torch.zeros(1, 2, 1), torch.tensor([[[2.0], [99.0]]]))
    first = torch.tensor([[[5.0, 1.0], [0.0, 0.0]]])
    items = select(1, mask=torch.tensor([[1, 0]]))
    # The means are (2, -1): errors 3 and 2.
    expected = ((0 + 9 / 1) + (math.log(4) + 4 / 4)) / 2 / 2
    assert mean(term, student, states(first, first, first), items) == pytest.approx(expected, rel=1e-4)


def test_projectors_are_averaged_behind_their_relu() -> None:
    term = PooledStates(projectors=2)
    term.connect(ONE, TWO)
    fill(term.projection, [[3.0], [-1.0], [1.0], [2.0]], [0.0] * 4)  # relu (3, -1) and (1, 2): mean (2, 1).
    found = mean(term, pooled([1.0]), pooled([1.0, 0.0]), select(1))
    assert found == pytest.approx(1 - 2 / math.sqrt(5), rel=1e-5)


@pytest.mark.parametrize("term", [Contrastive(), VariationalInformation(), PooledStates(projectors=3)])
def test_maps_learn_and_a_batch_without_tokens_has_finite_gradients(term: Term) -> None:
    term.connect(EncoderSize(width=3, layers=1), EncoderSize(width=4, layers=2))
    for mask in (torch.tensor([[1, 1], [1, 0]]), torch.zeros(2, 2, dtype=torch.long)):
        layers = [torch.randn(2, 2, 3, requires_grad=True) for _ in range(2)]
        teacher = [torch.randn(2, 2, 4) for _ in range(3)]
        student = Outputs(hidden_states=tuple(layers), pooled=layers[1].mean(dim=1))
        total, _ = term(student, Outputs(hidden_states=tuple(teacher), pooled=teacher[2].mean(dim=1)), select(2, mask))
        gradients = torch.autograd.grad(total, [layers[1], *term.parameters()], allow_unused=True)
        assert all(of is not None and torch.isfinite(of).all() for of in gradients)
        assert mask.sum() == 0 or all(of is not None and of.any() for of in gradients)


# Divergences of generalized distillation

P, Q = [0.6, 0.3, 0.1], [0.2, 0.3, 0.5]


def divergence(first: list[float], second: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(first, second, strict=True))


def mixed(share: float) -> list[float]:
    return [share * p + (1 - share) * q for p, q in zip(P, Q, strict=True)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"divergence": "skewed_forward", "beta": 0.1}, divergence(P, mixed(0.1))),
        ({"divergence": "skewed_reverse", "beta": 0.1}, divergence(Q, mixed(0.9))),
        ({"divergence": "total_variation"}, 0.4),
        # The first class alone is the head: gaps 0.4, and 0 + 0.4.
        ({"divergence": "adaptive"}, (divergence(P, Q) + divergence(Q, P)) / 2),
    ],
)
def test_divergences_by_hand(options: dict[str, Any], expected: float) -> None:
    student, teacher = as_logits(Q), as_logits(P)
    assert mean(GeneralizedKD(**options), student, teacher, select(1)) == pytest.approx(expected, rel=1e-5)
    logits = torch.zeros(0, 3, requires_grad=True)
    total, count = GeneralizedKD(**options)(Outputs(logits=logits), Outputs(logits=torch.zeros(0, 3)), select(0))
    assert (float(total.detach()), int(count)) == (0, 0)
    impossible = torch.tensor([[True, True, False]])
    logits = torch.tensor([[1.0, 0.0, 5.0]], requires_grad=True)
    total, _ = GeneralizedKD(**options)(Outputs(logits=logits), teacher, select(1, valid=impossible))
    assert torch.isfinite(torch.autograd.grad(total, logits)[0]).all()
