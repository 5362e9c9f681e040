"""Tests that the signals of several teachers act as one, and that a live one is computed, timed and pickled."""

import pickle

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.core.contracts import TASK_ID, Batch, Items, Outputs, Signal
from distill.kinds import Classification
from distill.losses import HardLabels, HiddenStateMSE, Objective, SoftTargets
from distill.teachers.signal import Live, Mean, SignalByTask
from distill.training.module import NOTHING
from distill.training.processes import dumps

TASK = Classification(name="toy", text=["sentence"])


class Fixed(Signal):
    """A cached signal with the same logits for every batch."""

    bytes, seconds = 0, 0.0

    def __init__(self, name: str, size: int, seconds: float, logits: list[list[float]]) -> None:
        self.name, self.bytes, self.seconds, self.logits = name, size, seconds, torch.tensor(logits)

    def describe(self) -> str:
        return self.name

    def __call__(self, batch: Batch, items: Items) -> Outputs:
        return Outputs(logits=self.logits)


FIRST, SECOND = Fixed("a", 3, 0.5, [[0.0, 0.0], [2.0, 0.0]]), Fixed("b", 4, 0.25, [[4.0, 0.0], [0.0, 2.0]])
BATCH = {"example_id": torch.arange(2), "labels": torch.tensor([0, 1]), TASK_ID: torch.tensor([1, 1])}


def items_of(batch: Batch) -> Items:
    labels = batch["labels"]
    return Items(batch, row=torch.arange(len(labels)), labels=labels, labelled=labels >= 0)


@pytest.mark.parametrize("signal", [SignalByTask([FIRST, SECOND]), Mean([FIRST, SECOND], (0.5, 0.5), "gaussian")])
def test_several_signals_have_the_sums_of_sizes_and_durations(signal: SignalByTask | Mean) -> None:
    assert (signal.reason, signal.bytes, signal.seconds, signal.describe()) == (None, 7, 0.75, "a; b")


def test_a_batch_is_taught_by_the_teacher_of_its_task() -> None:
    items = items_of(BATCH)
    assert torch.equal(SignalByTask([FIRST, SECOND])(BATCH, items).at(items).logits, SECOND.logits)


def test_the_mean_of_some_items_is_that_of_their_logits() -> None:
    items = items_of(BATCH)
    outputs = Mean([FIRST, SECOND], (0.75, 0.25), "gaussian")(BATCH, items)
    assert outputs.whole().logits is None
    assert outputs.at(items).logits.tolist() == [[1.0, 0.0], [1.5, 0.5]]
    last = outputs.at(items.part(1, 2))
    assert last.logits_at(2.0).tolist() == [[1.5, 0.5]]


def test_nothing_has_no_outputs() -> None:
    items = items_of(BATCH)
    outputs = NOTHING(BATCH, items)
    assert (outputs.whole(), outputs.at(items).logits, outputs.chunk_size) == (Outputs(), None, None)


def test_a_live_teacher_computes_what_the_objective_reads(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    batch = {**tokenizer(["a film", "the plot"], return_tensors="pt", padding=True), "labels": torch.tensor([0, 1])}
    batch["example_id"] = torch.arange(2)
    items = TASK.select(batch)
    for terms, depth in (({"hidden": HiddenStateMSE()}, 5), ({"soft": SoftTargets(), "hard": HardLabels()}, None)):
        live = Live(teacher, TASK, Objective(terms=terms), reason="a test")
        outputs = live(batch, items)
        hidden_states = outputs.whole().hidden_states
        assert (None if hidden_states is None else len(hidden_states)) == depth
        assert not outputs.at(items).logits.requires_grad
        assert live.seconds > 0
        assert (live.reason, live.bytes, live.describe()) == ("a test", 0, "")
    again = pickle.loads(dumps(live))
    assert torch.equal(again(batch, items).at(items).logits, outputs.at(items).logits)
