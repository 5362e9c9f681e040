"""Tests of the term that predicts which of three orders two segments have."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from distill.core.contracts import IGNORED, Items, Outputs
from distill.losses import ThreeWayOrder
from distill.losses.term import EncoderSize

SIZE = EncoderSize(width=2, layers=1)


def make_term() -> ThreeWayOrder:
    term = ThreeWayOrder()
    term.connect(SIZE, SIZE)
    assert isinstance(term.classifier, nn.Linear)
    term.classifier.weight.data = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    term.classifier.bias.data = torch.tensor([0.0, 0.0, -1.0])
    return term.double()


def make_items(order: list[int], *, left: int = 0, right: int = 0) -> Items:
    batch = {
        "attention_mask": F.pad(torch.ones(len(order), 2, dtype=torch.long), (left, right)),
        "order_labels": torch.tensor(order),
    }
    none = torch.zeros(0, dtype=torch.long)
    return Items(batch=batch, row=none, labels=none, labelled=none.bool(), index=none, classes_are_tokens=True)


def states_of(first: list[list[float]], *, left: int = 0, right: int = 0) -> Tensor:
    """Returns states `[B, L, 2]` whose tokens but the first are of no account."""
    states = torch.tensor(first, dtype=torch.float64).unsqueeze(1)
    states = torch.cat([states, torch.full_like(states, 7.0)], dim=1)
    return F.pad(states, (0, 0, left, right), value=-3.0)


def test_the_loss_matches_the_value_by_hand() -> None:
    # Logits of [ln 2, 0]: [ln 2, 0, ln 2 - 1]; of [0, 1]: [0, 1, 0]. A pair without a label is not counted.
    states = states_of([[math.log(2), 0.0], [0.0, 1.0], [5.0, 5.0]])
    total, count = make_term()(Outputs(last_hidden_state=states), Outputs(), make_items([0, 2, IGNORED]))
    expected = math.log(2 + 1 + 2 / math.e) - math.log(2) + math.log(1 + math.e + 1)
    assert (total.item(), int(count)) == (pytest.approx(expected, rel=1e-12), 2)


def test_gradients_match_finite_differences() -> None:
    term, items = make_term(), make_items([0, 1, 2])
    states = states_of([[0.3, -0.2], [0.5, 1.0], [-1.0, 0.1]]).requires_grad_()

    def loss(values: Tensor, *parameters: Tensor) -> Tensor:
        total: Tensor = term(Outputs(last_hidden_state=values), Outputs(), items)[0]
        return total

    assert torch.autograd.gradcheck(loss, (states, *term.parameters()))


@pytest.mark.parametrize(("left", "right"), [(0, 3), (2, 0)])
def test_padding_changes_nothing(left: int, right: int) -> None:
    term, first = make_term(), [[0.3, -0.2], [0.5, 1.0]]
    expected = term(Outputs(last_hidden_state=states_of(first)), Outputs(), make_items([0, 2]))
    padded = Outputs(last_hidden_state=states_of(first, left=left, right=right))
    torch.testing.assert_close(term(padded, Outputs(), make_items([0, 2], left=left, right=right)), expected)


def test_pairs_without_a_label_have_no_loss_and_a_zero_gradient() -> None:
    term = make_term()
    states = states_of([[0.3, -0.2]])
    total, count = term(Outputs(last_hidden_state=states), Outputs(), make_items([IGNORED]))
    total.backward()
    assert (total.item(), int(count)) == (0.0, 0)
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in term.parameters())


def test_other_outputs_are_refused() -> None:
    with pytest.raises(ValueError, match="got outputs without last_hidden_state, expected those of a task whose"):
        make_term()(Outputs(), Outputs(), make_items([0]))
    outputs = Outputs(last_hidden_state=states_of([[0.3, -0.2]]))
    with pytest.raises(ValueError, match=r"the order has no layer yet: call connect\(\) with the size"):
        ThreeWayOrder()(outputs, Outputs(), make_items([0]))
