"""Laws: what stands beside a text in its batch changes nothing, be it padding or other texts, in any order."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from distill.core.contracts import DECODER_INPUTS, IGNORED, TARGET_MASK, Batch
from distill.training.module import DistillationModule
from tests.laws.conftest import MakeCell
from tests.laws.toys import CELLS, Cell

CHOSEN = [5, 0, 3, 8]  # Of train, of different lengths.
every_cell = pytest.mark.parametrize(("kind", "name"), CELLS)
TOLERANCE: dict[str, Any] = {"atol": 2e-5, "rtol": 1e-4}


def pad(cell: Cell, batch: Batch, width: int) -> dict[str, Tensor]:
    """Returns the batch with so many more columns of padding on the tokenizer's side, and behind its targets."""
    fill = {"input_ids": cell.tokenizer.pad_token_id, "labels": IGNORED, DECODER_INPUTS: cell.tokenizer.pad_token_id}
    fill |= {"start_characters": IGNORED, "end_characters": IGNORED}
    targets = ("labels", TARGET_MASK, DECODER_INPUTS) if TARGET_MASK in batch else ()
    padded = dict(batch)
    for name, column in batch.items():
        if name in targets or (column.ndim > 1 and column.shape == batch["input_ids"].shape):
            before = width if cell.tokenizer.padding_side == "left" and name not in targets else 0
            padded[name] = F.pad(column, (before, width - before), value=fill.get(name, 0))
    return padded


@torch.no_grad()
def results(cell: Cell, batch: Batch, model: PreTrainedModel | None = None) -> dict[int, list[tuple[Any, Tensor]]]:
    """Returns the labels of the items of each example, and their logits for the classes that they can have."""
    items = cell.task.select(batch)
    logits = cell.task.run(model or cell.student, batch, items, frozenset()).at(items).logits
    of_examples: dict[int, list[tuple[Any, Tensor]]] = {}
    for number, (example, label) in enumerate(zip(items.example_id().tolist(), items.labels.tolist(), strict=True)):
        row = logits[number] if items.valid is None else logits[number][items.valid[number]]
        of_examples.setdefault(example, []).append((str(label), row))
    return of_examples


def assert_equal(left: dict[int, list[tuple[Any, Tensor]]], right: dict[int, list[tuple[Any, Tensor]]]) -> None:
    assert left.keys() == right.keys()
    for example, items in left.items():
        assert [label for label, _ in items] == [label for label, _ in right[example]]
        for (_, row), (_, other) in zip(items, right[example], strict=True):
            torch.testing.assert_close(row, other, **TOLERANCE)


def gradients(module: DistillationModule, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Returns the loss, the sums of its terms and the gradients of the parameters."""
    module.zero_grad()
    loss, sums = module.losses(batch)
    loss.backward()
    grown = {name: each.grad.clone() for name, each in module.named_parameters() if each.grad is not None}
    module.zero_grad()
    return loss.detach(), sums, grown


@every_cell
def test_padding_changes_neither_logits_nor_losses_nor_gradients(cell: MakeCell, kind: str, name: str) -> None:
    of = cell(kind, name)
    batch = of.examples["train"][CHOSEN]
    padded = pad(of, batch, 4)
    assert_equal(results(of, padded), results(of, batch))
    module = of.module(of.student)
    module.student.eval()
    expected, result = gradients(module, batch), gradients(module, padded)
    torch.testing.assert_close(result[:2], expected[:2], atol=1e-4, rtol=1e-4)
    for parameter, gradient in expected[2].items():
        torch.testing.assert_close(result[2][parameter], gradient, atol=1e-4, rtol=1e-3, msg=parameter)


@every_cell
def test_neither_the_size_nor_the_order_of_the_batch_changes_anything(cell: MakeCell, kind: str, name: str) -> None:
    of = cell(kind, name)
    train = of.examples["train"]
    whole = results(of, train[CHOSEN])
    assert len(whole) == len(CHOSEN)
    assert_equal(results(of, train[CHOSEN[::-1]]), whole)
    assert_equal({key: value for each in CHOSEN for key, value in results(of, train[[each]]).items()}, whole)
