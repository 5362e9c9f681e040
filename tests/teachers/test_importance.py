"""Tests of the importance of heads and inner neurons: derivatives by gates, by finite differences."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import distill as d
from distill.core.contracts import Examples, Outputs
from distill.core.errors import UserError
from distill.models.forward import run_model
from distill.models.surgery.layers import list_parts
from distill.teachers.computation import labelled_loader, measure_importance
from distill.training.module import freeze
from tests.conftest import sentences, toy_bert
from tests.students.test_albert import toy

TEXTS, CLASSES = (list(column) for column in zip(*sentences(6), strict=True))
TASK = d.tasks.Classification(text="text", train=(TEXTS, CLASSES), dev=(TEXTS, CLASSES), max_length=16)
OBJECTIVE = d.Objective(hard=d.HardLabels())


@pytest.fixture(scope="module")
def examples(tokenizer: PreTrainedTokenizerBase, tmp_path_factory: Any) -> Examples:
    directory = tmp_path_factory.mktemp("cache")
    train = TASK.encode(TASK.read(directory), tokenizer, directory)["train"]
    assert isinstance(train, Examples)
    return train


def toy_model(tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    torch.manual_seed(0)
    model = toy_bert(len(tokenizer), layers=2, width=16).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def measure(model: PreTrainedModel, examples: Examples, **options: Any) -> Any:
    return measure_importance(model, TASK, OBJECTIVE, labelled_loader(examples, batch_size=5), **options)


@torch.no_grad()
def by_differences(model: PreTrainedModel, examples: Examples, module: torch.nn.Module, unit: slice) -> float:
    """Returns the mean size of the derivative of an example's loss by a factor of some inputs of a module."""
    step, sizes = 1e-3, []

    def scale(factor: float) -> Any:
        def hook(_: object, arguments: tuple[Tensor]) -> tuple[Tensor]:
            changed = arguments[0].clone()
            changed[..., unit] *= factor
            return (changed,)

        return module.register_forward_pre_hook(hook)

    for index in range(len(examples)):
        batch, losses = examples[[index]], []
        for factor in (1 + step, 1 - step):
            handle = scale(factor)
            items = TASK.select(batch)
            losses.append(OBJECTIVE(Outputs(logits=run_model(model, batch).logits), Outputs(), items)[0])
            handle.remove()
        sizes.append(abs(float(losses[0] - losses[1])) / (2 * step))
    return sum(sizes) / len(sizes)


def test_importance_is_the_mean_size_of_the_derivative_by_a_gate(
    examples: Examples, tokenizer: PreTrainedTokenizerBase
) -> None:
    model = toy_model(tokenizer).double()
    found = measure(model, examples)
    size = model.config.hidden_size // model.config.num_attention_heads
    for layer, part in enumerate(list_parts(model)):
        heads = [
            by_differences(model, examples, part["attention.dense"], slice(head * size, head * size + size))
            for head in range(model.config.num_attention_heads)
        ]
        neurons = [
            by_differences(model, examples, part["ffn_output"], slice(unit, unit + 1))
            for unit in range(model.config.intermediate_size)
        ]
        for own, expected in ((found.heads[layer], heads), (found.neurons[layer], neurons)):
            wanted = torch.tensor(expected)
            torch.testing.assert_close(own, wanted / wanted.norm(), rtol=2e-2, atol=1e-3)


def test_it_is_the_same_for_a_frozen_model_and_one_in_training_which_stay_as_they_were(
    examples: Examples, tokenizer: PreTrainedTokenizerBase
) -> None:
    expected = measure(toy_model(tokenizer), examples)
    frozen, training = freeze(toy_model(tokenizer)), toy_model(tokenizer).train()
    assert training.config.hidden_dropout_prob > 0
    for model in (frozen, training):
        found = measure(model, examples)
        for own, other in zip([*found.heads, *found.neurons], [*expected.heads, *expected.neurons], strict=True):
            torch.testing.assert_close(own, other)
    assert all(not parameter.requires_grad and parameter.grad is None for parameter in frozen.parameters())
    assert all(part.training for part in training.modules())


def test_a_head_that_nothing_reads_has_no_importance(examples: Examples, tokenizer: PreTrainedTokenizerBase) -> None:
    model, calls = toy_model(tokenizer), list[int]()
    with torch.no_grad():
        part = list_parts(model)[1]
        part["attention.dense"].weight[:, : model.config.hidden_size // model.config.num_attention_heads] = 0
        part["ffn_output"].weight[:, 3] = 0
    found = measure(model, examples)
    assert (found.heads[1][0], found.neurons[1][3]) == (0, 0)
    assert (found.heads[1][1:] > 0).all()
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    measure(model, examples, batches=1)
    assert len(calls) == 1


def test_a_model_of_another_layout_is_refused(examples: Examples) -> None:
    with pytest.raises(UserError, match="and this is a DebertaForSequenceClassification: leave them out"):
        measure(toy("Deberta"), examples)
