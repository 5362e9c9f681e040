"""Tests of the term that predicts spans from their boundaries: values by hand, gradients, padding, and the model."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from distill.builtin.students.distilbert import from_teacher
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM

from distill.core.contracts import IGNORED, Items, Outputs
from distill.core.errors import OptionError
from distill.kinds import MaskedLM
from distill.losses import MaskedLanguageModelling, Objective, SoftTargets, SpanBoundary
from distill.losses.logits import find_boundaries
from distill.losses.term import EncoderSize
from distill.models import compatibility
from distill.training.module import DistillationModule
from tests.conftest import live

TASK = MaskedLM(data_dir="unused", max_length=16)
WIDTH, VOCABULARY = 4, 7
SIZE = EncoderSize(width=WIDTH, layers=1)
X = IGNORED
# Two spans, of which one is a single token, and none; two spans side by side are one, up to the last ordinary token.
LABELS = [[X, 1, 2, X, X, 3, X, X], [X, X, X, 4, 5, 6, X, X], [X, X, X, X, X, X, X, X]]


def make_batch(labels: list[list[int]] = LABELS, *, left: int = 0, right: int = 0) -> dict[str, Tensor]:
    """Returns a batch of the labels, whose second and third text are one token shorter, with further padding."""
    values = F.pad(torch.tensor(labels), (left, right), value=IGNORED)
    mask = F.pad(torch.ones(len(labels), len(labels[0]), dtype=torch.long), (left, right))
    mask[1:, left + len(labels[0]) - 1] = 0
    return {"labels": values, "attention_mask": mask, "example_id": torch.arange(len(labels))}


def make_outputs(batch: dict[str, Tensor], *, left: int = 0, right: int = 0) -> tuple[Outputs, Tensor, nn.Linear]:
    """Returns float64 outputs, the states `[B, L, H]` in them, and the layer that decodes."""
    random = torch.Generator().manual_seed(0)
    rows, length = batch["labels"].shape
    states = torch.randn(rows, length - left - right, WIDTH, generator=random, dtype=torch.float64)
    states = F.pad(states, (0, 0, left, right), value=9.0)
    decoder = nn.Linear(WIDTH, VOCABULARY, dtype=torch.float64)
    for parameter in decoder.parameters():
        parameter.data = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
    return Outputs(last_hidden_state=states, decode=decoder), states, decoder


def connected(term: SpanBoundary) -> SpanBoundary:
    torch.manual_seed(0)
    term.connect(SIZE, SIZE)
    for parameter in term.parameters():
        parameter.data = torch.randn_like(parameter)
    return term.double()


def loss_by_hand(
    term: SpanBoundary, states: Tensor, decoder: nn.Linear, token: tuple[int, int, int, int, int]
) -> float:
    """Returns the cross-entropy of one token from its row, its boundary, its position in the span, and its label."""
    row, before, behind, offset, label = token
    assert term.predictor is not None
    p = term.predictor.state_dict()
    hidden = torch.cat([states[row, before], states[row, behind], p["positions.weight"][offset]])
    for linear, scale in (("layers.0", "layers.2"), ("layers.3", "layers.5")):
        hidden = F.gelu(F.linear(hidden, p[f"{linear}.weight"], p[f"{linear}.bias"]))
        hidden = F.layer_norm(hidden, hidden.shape, p[f"{scale}.weight"], p[f"{scale}.bias"])
    return F.cross_entropy(decoder(hidden), torch.tensor(label)).item()


def test_boundaries_follow_from_the_labels_alone() -> None:
    batch = make_batch()
    left, right, bounded = find_boundaries(batch["labels"], batch["attention_mask"])
    assert bounded.equal(batch["labels"] != IGNORED)
    assert left[bounded].tolist() == [0, 0, 4, 2, 2, 2]
    assert right[bounded].tolist() == [3, 3, 6, 6, 6, 6]


def test_a_span_at_the_end_of_a_sequence_has_no_boundary() -> None:
    labels = torch.tensor([[1, X, 2, X, X], [X, 1, X, 2, 3]])
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])  # Padding is no boundary.
    assert find_boundaries(labels, mask)[2].tolist() == [[False] * 5, [False, True, False, False, False]]
    batch = {"labels": labels, "attention_mask": mask, "example_id": torch.arange(2)}
    outputs, states, decoder = make_outputs(batch)
    term = connected(SpanBoundary(position_width=3, positions=2))
    total, count = term(outputs, Outputs(), TASK.select(batch))
    assert (total.item(), int(count)) == (pytest.approx(loss_by_hand(term, states, decoder, (1, 0, 2, 0, 1))), 1)


def test_the_loss_matches_the_formula_by_hand() -> None:
    batch = make_batch()
    outputs, states, decoder = make_outputs(batch)
    term = connected(SpanBoundary(position_width=3, positions=2))
    total, count = term(outputs, Outputs(), TASK.select(batch))
    # Row, boundary, position in the span (of two vectors, the last one for all further tokens), and label.
    tokens = [(0, 0, 3, 0, 1), (0, 0, 3, 1, 2), (0, 4, 6, 0, 3), (1, 2, 6, 0, 4), (1, 2, 6, 1, 5), (1, 2, 6, 1, 6)]
    expected = sum(loss_by_hand(term, states, decoder, token) for token in tokens)
    assert (total.item(), int(count)) == (pytest.approx(expected, rel=1e-12), 6)


def test_gradients_match_finite_differences() -> None:
    batch = make_batch()
    _, states, decoder = make_outputs(batch)
    term = connected(SpanBoundary(position_width=3, positions=2))
    items = TASK.select(batch)

    def loss(values: Tensor, *parameters: Tensor) -> Tensor:
        total: Tensor = term(Outputs(last_hidden_state=values, decode=decoder), Outputs(), items)[0]
        return total

    parameters = [*term.parameters(), *decoder.parameters()]
    assert torch.autograd.gradcheck(loss, (states.requires_grad_(), *parameters))


@pytest.mark.parametrize(("left", "right"), [(0, 3), (2, 0)])
def test_padding_changes_nothing(left: int, right: int) -> None:
    term = connected(SpanBoundary(position_width=3, positions=2))
    plain, padded = make_batch(), make_batch(left=left, right=right)
    expected = term(make_outputs(plain)[0], Outputs(), TASK.select(plain))
    result = term(make_outputs(padded, left=left, right=right)[0], Outputs(), TASK.select(padded))
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=0)


def test_a_batch_without_chosen_tokens_has_no_loss_and_a_zero_gradient() -> None:
    batch = make_batch([[X] * 8] * 2)
    outputs, states, _ = make_outputs(batch)
    states.requires_grad_()
    term = connected(SpanBoundary(position_width=3))
    total, count = term(outputs, Outputs(), TASK.select(batch))
    total.backward()
    assert (total.item(), int(count)) == (0.0, 0)
    # Every process of a training has a gradient for every parameter.
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in term.parameters())
    assert states.grad is not None
    assert not states.grad.any()


def test_other_outputs_are_refused() -> None:
    batch = make_batch()
    outputs, _, _ = make_outputs(batch)
    items = TASK.select(batch)
    with pytest.raises(ValueError, match=r"boundary got outputs without decode, expected those of a task whose classe"):
        connected(SpanBoundary())(Outputs(), Outputs(), items)
    with pytest.raises(ValueError, match=r"boundary has no layers yet: call connect\(\) with the size of the encoder"):
        SpanBoundary()(outputs, Outputs(), items)
    with pytest.raises(OptionError, match="got positions=0, expected a whole number of at least 1"):
        SpanBoundary(positions=0)


# The model

SMALL: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 20, "initializer_range": 0.3,
}  # fmt: skip


def module_of(objective: Objective) -> DistillationModule:
    torch.manual_seed(0)
    teacher = BertForMaskedLM(BertConfig(**SMALL)).eval()
    student = from_teacher(teacher)
    objective.connect(compatibility.encoder_size(student), compatibility.encoder_size(teacher))
    signal = {"signal": live(teacher, objective, TASK)} if objective.needs_teacher else {}
    module = DistillationModule(student=student, objective=objective, task=TASK, **signal)
    module.eval()
    return module


def test_the_head_of_the_model_decodes_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = make_batch()
    batch["input_ids"] = torch.arange(batch["labels"].numel()).view_as(batch["labels"]) % 40
    module = module_of(Objective(mlm=MaskedLanguageModelling(), boundary=SpanBoundary(position_width=3)))
    loss, sums = module.losses(batch)
    model, term = module.student, module.objective.terms["boundary"]
    states = model.base_model(batch["input_ids"], batch["attention_mask"]).last_hidden_state
    pairs = [(0, 3, 0), (0, 3, 1), (4, 6, 0), (2, 6, 0), (2, 6, 1), (2, 6, 2)]
    left, right, offsets = (torch.tensor(column) for column in zip(*pairs, strict=True))
    row = torch.tensor([0, 0, 0, 1, 1, 1])
    hidden = term.predictor(states[row, left], states[row, right], offsets)
    hidden = model.vocab_layer_norm(model.activation(model.vocab_transform(hidden)))
    expected = F.cross_entropy(model.vocab_projector(hidden), torch.tensor([1, 2, 3, 4, 5, 6]), reduction="sum")
    torch.testing.assert_close(sums[1], expected)
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    monkeypatch.setattr("distill.models.decoding.CHUNK_LOGITS", 2 * 40)  # Two tokens in a chunk.
    chunked_loss, chunked_sums = module.losses(batch)
    torch.testing.assert_close((chunked_loss, chunked_sums), (loss, sums))
    chunked = torch.autograd.grad(chunked_loss, list(module.parameters()))
    for gradient, wanted in zip(chunked, gradients, strict=True):
        torch.testing.assert_close(gradient, wanted, atol=1e-5, rtol=1e-4)


def test_a_student_learns_boundaries_beside_soft_targets_at_all_tokens() -> None:
    batch = make_batch()
    batch["input_ids"] = torch.arange(batch["labels"].numel()).view_as(batch["labels"]) % 40
    alone = module_of(Objective(boundary=SpanBoundary(position_width=3)))
    both = module_of(Objective(soft=SoftTargets(positions="all"), boundary=SpanBoundary(position_width=3)))
    both.objective.terms["boundary"].load_state_dict(alone.objective.terms["boundary"].state_dict())
    assert both.objective.counts(both._items(batch)).tolist() == [22.0, 6.0]  # All tokens, and those of spans.
    torch.testing.assert_close(both.losses(batch)[1][1], alone.losses(batch)[1][0])
    loss, _ = both.losses(batch)
    loss.backward()
    assert all(parameter.grad is not None for parameter in both.objective.parameters())


def test_items_of_a_task_without_hidden_tokens_are_not_counted() -> None:
    batch = {"input_ids": torch.ones(1, 3, dtype=torch.long), "attention_mask": torch.ones(1, 3, dtype=torch.long)}
    labels = torch.zeros(2, dtype=torch.long)
    items = Items(batch=batch, row=labels, labels=labels, labelled=labels == 0, index=torch.arange(2))
    assert SpanBoundary().count(items) == 0
