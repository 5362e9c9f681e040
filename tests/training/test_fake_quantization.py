"""Tests that a student is trained with the rounding errors of int8, and keeps its own weights."""

import pytest
import torch
from torch import nn

from distill.training.lightning_callbacks import RoundedWeight, fake_quantized, round_activations


def test_weights_are_rounded_row_by_row() -> None:
    weight = torch.tensor([[127.0, 1.4, -0.6], [12.7, 0.14, -0.06]])
    torch.testing.assert_close(RoundedWeight()(weight), torch.tensor([[127.0, 1.0, -1.0], [12.7, 0.1, -0.1]]))
    torch.testing.assert_close(RoundedWeight(63)(torch.tensor([[63.0, 1.4]])), torch.tensor([[63.0, 1.0]]))


def test_activations_are_rounded_to_256_values_between_their_ends() -> None:
    x = torch.tensor([-0.49, 0.0, 0.7, 255.0 - 0.49])
    rounded = round_activations(x)
    assert rounded[1] == 0
    torch.testing.assert_close(rounded, torch.tensor([0.0, 0.0, 1.0, 255.0]), atol=0.51, rtol=0)
    many = round_activations(torch.linspace(-1, 3, 10_000))
    assert len(many.unique()) == 256
    # Zero is always among the values, because padding and ReLU give it.
    assert round_activations(torch.tensor([5.0, 10.0, 0.0]))[2] == 0


def test_gradients_pass_as_if_nothing_was_rounded() -> None:
    x = torch.randn(4, 5, requires_grad=True)
    round_activations(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.ones(4, 5))
    weight = torch.randn(3, 5, requires_grad=True)
    RoundedWeight()(weight).sum().backward()
    torch.testing.assert_close(weight.grad, torch.ones(3, 5))


@pytest.mark.parametrize("bits", [7, 8])
def test_a_model_is_rounded_while_the_context_is_open_and_keeps_its_weights(bits: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    weights = {name: values.clone() for name, values in model.state_dict().items()}
    x = torch.randn(16, 8)
    expected = model(x)
    with fake_quantized(model, bits=bits):
        rounded = model(x)
        assert 0 < (rounded - expected).abs().max() < 0.1
        rounded.sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
    assert model.state_dict().keys() == weights.keys()
    for name, values in model.state_dict().items():
        torch.testing.assert_close(values, weights[name], rtol=0, atol=0)
    torch.testing.assert_close(model(x), expected)


def test_weights_trained_in_the_context_are_kept() -> None:
    model = nn.Linear(4, 4)
    before = model.weight.detach().clone()
    with fake_quantized(model, bits=8):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    assert not torch.equal(model.weight, before)
    assert len(model.weight.unique()) == 16  # Not rounded.
