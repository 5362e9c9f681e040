"""Tests of layer maps and of the terms that compare hidden states of matched layers."""

import math

import pytest
import torch
from torch import Tensor, nn

from distill.core.contracts import Items, Outputs
from distill.core.errors import OptionError, UserError
from distill.losses import HiddenStateMSE, Objective, PatientKD, Term
from distill.losses.hidden_states import match_layers
from distill.losses.term import EncoderSize


def select(mask: Tensor) -> Items:
    """Returns one item for each example of a batch with this mask."""
    row, labels = torch.arange(len(mask)), torch.zeros(len(mask), dtype=torch.long)
    return Items(batch={"attention_mask": mask}, row=row, labels=labels, labelled=labels == 0)


def states(*layers: object) -> Outputs:
    return Outputs(hidden_states=tuple(torch.as_tensor(layer, dtype=torch.float32) for layer in layers))


# Layer maps


@pytest.mark.parametrize(
    ("layers", "depths", "expected"),
    [
        ("uniform", (4, 12), ((1, 3), (2, 6), (3, 9), (4, 12))),
        ("uniform", (4, 6), ((1, 1), (2, 3), (3, 4), (4, 6))),  # 1.5 and 4.5, rounded down.
        ("uniform", (6, 6), tuple((layer, layer) for layer in range(1, 7))),
        ("last", (4, 12), ((1, 9), (2, 10), (3, 11), (4, 12))),
        ([5, 1], (2, 6), ((1, 5), (2, 1))),
    ],
)
def test_a_map_names_the_teachers_layer_of_each_student_layer(
    layers: str | list[int], depths: tuple[int, int], expected: tuple[tuple[int, int], ...]
) -> None:
    assert match_layers(layers, *depths) == expected


def test_without_the_last_layer_the_maps_are_those_of_patient_distillation() -> None:
    # Sun et al., section 3.2: six layers learn from {2, 4, 6, 8, 10} (PKD-Skip) or {7, 8, 9, 10, 11} (PKD-Last).
    teacher_layers = [[n for _, n in match_layers(map_, 6, 12, last_layer=False)] for map_ in ("uniform", "last")]
    assert teacher_layers == [[2, 4, 6, 8, 10], [7, 8, 9, 10, 11]]
    assert match_layers([3, 9], 3, 12, last_layer=False) == ((1, 3), (2, 9))


@pytest.mark.parametrize(
    ("layers", "depths", "message"),
    [
        ([2], (2, 6), r"got layers=\[2\], expected a list of 2 of the teacher's layers 1 to 6"),
        ([2, 7], (2, 6), r"got layers=\[2, 7\], expected a list of 2 of the teacher's layers 1 to 6"),
        ("last", (3, 2), "got layers=last for a student of 3 layers and a teacher of 2, expected at most as many"),
        ("uniform", (3, 2), "set layers to a list of 3 of the teacher's layers 1 to 2"),
    ],
)
def test_a_map_that_does_not_fit_is_refused(layers: str | list[int], depths: tuple[int, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        match_layers(layers, *depths)


@pytest.mark.parametrize("term", [HiddenStateMSE, PatientKD])
def test_options_of_a_wrong_kind_are_refused(term: type[Term]) -> None:
    for layers in ("first", [0], 3):
        with pytest.raises(OptionError, match="expected uniform, last or a list of items, each a whole number of at"):
            term(layers=layers)  # type: ignore[call-arg]


# Hidden states


def test_the_squared_error_of_hidden_states_matches_the_value_by_hand() -> None:
    # Embeddings: token 1 (1 + 0) / 2, token 2 (0 + 4) / 2. The student's layer 1 and the teacher's layer 2: token 1
    # (9 + 1) / 2, token 2 0. The teacher's layer 1 is not read, and the third token is padding. (0.5 + 2 + 5) / 2
    student = states([[[1, 0], [1, 1], [50, 9]]], [[[3, 1], [2, 2], [50, 9]]])
    teacher = states([[[0, 0], [1, 3], [7, 7]]], torch.full((1, 3, 2), torch.nan), [[[0, 0], [2, 2], [7, 7]]])
    items = select(torch.tensor([[1, 1, 0]]))
    total, count = HiddenStateMSE()(student, teacher, items)
    assert (float(total), int(count)) == (7.5, 2)
    total, _ = HiddenStateMSE(embeddings=False)(student, teacher, items)
    assert float(total) == 5.0


def test_one_projection_serves_the_embeddings_and_every_layer() -> None:
    term = HiddenStateMSE(layers=[1, 2])
    term.connect(EncoderSize(1, 2), EncoderSize(2, 2))
    assert [tuple(parameter.shape) for parameter in term.parameters()] == [(2, 1)]
    with torch.no_grad():
        term.projection.weight.copy_(torch.tensor([[1.0], [2.0]]))  # x becomes [x, 2x].
    student = states([[[1]]], [[[2]]], [[[3]]])
    teacher = states([[[1, 2]]], [[[2, 6]]], [[[3, 6]]])  # Only the first layer differs: (0 + 2^2) / 2
    total, _ = term(student, teacher, select(torch.ones(1, 1)))
    assert float(total) == 2.0


def test_equal_widths_need_no_projection_and_draw_no_random_numbers() -> None:
    before = torch.get_rng_state()
    for term in (HiddenStateMSE(), PatientKD()):
        term.connect(EncoderSize(4, 2), EncoderSize(4, 4))
        assert isinstance(term.projection, nn.Identity)
    assert torch.equal(torch.get_rng_state(), before)


def test_patient_distillation_matches_the_value_by_hand() -> None:
    # Layer 1 learns from layer 2 of 4; the last one is left out. Example 1: [3, 4] and [0, 2] become [.6, .8] and
    # [0, 1]: .36 + .04 = .4. Example 2 is padded on the left, its first token is the second: [1, 0] and [-5, 0]: 4.
    junk = torch.full((2, 2, 2), torch.nan)
    student = states(junk, [[[3, 4], [9, 9]], [[9, 9], [1, 0]]], junk)
    teacher = states(junk, junk, [[[0, 2], [9, 9]], [[8, 8], [-5, 0]]], junk, junk)
    total, count = PatientKD()(student, teacher, select(torch.tensor([[1, 1], [0, 1]])))
    assert float(total) == pytest.approx(4.4)
    assert int(count) == 2


def test_patient_distillation_can_include_the_last_layer() -> None:
    student = states([[[1, 0]]], [[[1, 0]]], [[[0, 1]]])
    teacher = states([[[1, 0]]], [[[0, 1]]], [[[1, 1]]])
    # Layer 1: [1, 0] and [0, 1]: 2. Layer 2: [0, 1] and [1, 1] / sqrt 2: 2 - 2 / sqrt 2.
    total, _ = PatientKD(layers=[1, 2], last_layer=True)(student, teacher, select(torch.ones(1, 1)))
    assert float(total) == pytest.approx(4 - math.sqrt(2))


def test_patient_distillation_is_not_for_raw_text() -> None:
    objective = Objective(pkd=PatientKD(), hidden=HiddenStateMSE())
    assert objective.unsuited(likelihood="softmax", classes_are_tokens=True) == ["pkd"]
    assert objective.unsuited(likelihood="gaussian", classes_are_tokens=False) == []


@pytest.mark.parametrize("term", [HiddenStateMSE(), PatientKD()], ids=["hidden", "pkd"])
def test_padding_and_teacher_get_no_gradient_and_more_padding_changes_nothing(term: Term) -> None:
    torch.manual_seed(0)
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    student_layers = [torch.randn(2, 4, 6, requires_grad=True) for _ in range(3)]
    teacher_layers = [torch.randn(2, 4, 6, requires_grad=True) for _ in range(5)]
    with torch.no_grad():
        teacher = Outputs(hidden_states=teacher_layers)
        longer = [Outputs(hidden_states=[nn.functional.pad(s, (0, 0, 0, 2), value=7.0) for s in layers]) for layers in
                  (student_layers, teacher_layers)]  # fmt: skip
        padded, _ = term(*longer, select(nn.functional.pad(mask, (0, 2))))
    total, count = term(Outputs(hidden_states=student_layers), teacher, select(mask))
    torch.testing.assert_close(total, padded)
    gradients = torch.autograd.grad(total, student_layers, allow_unused=True)
    assert any(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients)
    for gradient in gradients:
        assert gradient is None or not gradient[mask == 0].any()
    nothing, count = term(Outputs(hidden_states=student_layers), teacher, select(torch.zeros_like(mask)))
    assert (float(nothing), int(count)) == (0.0, 0)
    nothing.backward()


def test_the_teachers_layers_are_those_that_the_terms_read() -> None:
    assert HiddenStateMSE().teacher_layers(3, 6) == (0, 2, 4, 6)
    assert HiddenStateMSE(embeddings=False, layers="last").teacher_layers(3, 6) == (4, 5, 6)
    objective = Objective(hidden=HiddenStateMSE(layers=[6, 2, 2]), pkd=PatientKD())
    assert objective.teacher_layers(3, 6) == (0, 2, 4, 6)


def test_layers_are_indexed_by_number_where_only_those_that_are_read_exist() -> None:
    """Cached hidden states are None at the layers that no term reads."""
    student = states(*torch.randn(4, 1, 2, 3))
    layers: list[Tensor | None] = list(torch.randn(7, 1, 2, 3))
    term, items = HiddenStateMSE(), select(torch.ones(1, 2))
    expected, _ = term(student, Outputs(hidden_states=layers), items)  # type: ignore[arg-type]
    for index in {*range(7)} - {*term.teacher_layers(3, 6)}:
        layers[index] = None
    total, _ = term(student, Outputs(hidden_states=layers), items)  # type: ignore[arg-type]
    assert total == expected
