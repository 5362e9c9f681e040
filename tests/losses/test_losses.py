"""Tests of the losses: values by hand, gradients by formula, padding, and batches where nothing counts."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from distill.core.contracts import IGNORED, Items, Outputs
from distill.core.errors import OptionError
from distill.losses import (
    Cosine,
    DecoupledKD,
    GeneralizedKD,
    HardLabels,
    LogitMarginMSE,
    LogitMSE,
    MaskedLanguageModelling,
    Objective,
    PooledStates,
    PseudoLabels,
    SoftTargets,
    Term,
)
from distill.losses.term import EncoderSize

LN2, LN3, LN4 = math.log(2), math.log(3), math.log(4)
TERMS = {
    "soft": SoftTargets(temperature=3.0),
    "hard": HardLabels(),
    "mlm": MaskedLanguageModelling(),
    "pseudo": PseudoLabels(),
    "mse": LogitMSE(),
    "margins": LogitMarginMSE(),
    "cosine": Cosine(),
    "dkd": DecoupledKD(),
    "gkd": GeneralizedKD(divergence="jsd"),
}
every_term = pytest.mark.parametrize("term", TERMS.values(), ids=TERMS.keys())


def outputs(logits: object, states: object = None) -> SimpleNamespace:
    """Returns a model's output with `logits [..., C]`; all hidden states but the last are NaN."""
    last = None if states is None else torch.as_tensor(states, dtype=torch.float32)
    return SimpleNamespace(
        logits=torch.as_tensor(logits, dtype=torch.float32),
        hidden_states=None if last is None else (torch.full_like(last, torch.nan), last),
    )


def items(*shape: int) -> dict[str, Tensor]:
    """Returns a batch where everything counts and has class 0."""
    return {"items": torch.ones(shape, dtype=torch.bool), "labels": torch.zeros(shape, dtype=torch.long)}


def numbers(*values: float) -> dict[str, Tensor]:
    """Returns a regression's batch, one number per item."""
    return {"items": torch.ones(len(values), dtype=torch.bool), "labels": torch.tensor(values)}


def mask_of(batch: dict[str, Tensor]) -> Tensor:
    """Returns the mask of the items; without `items` everything is an item."""
    return batch["items"] if "items" in batch else torch.ones_like(next(iter(batch.values())), dtype=torch.bool)


def select(batch: dict[str, Tensor]) -> Items:
    """Returns the items of a batch as a task selects them; a mask of two axes is over a vocabulary."""
    mask = mask_of(batch)
    labels = batch.get("labels", torch.zeros_like(mask, dtype=torch.long))[mask]
    is_number = labels.is_floating_point()
    return Items(
        batch=batch,
        row=mask.nonzero()[:, 0],
        labels=labels,
        labelled=torch.ones_like(labels, dtype=torch.bool) if is_number else labels != IGNORED,
        likelihood="gaussian" if is_number else "softmax",
        index=mask.flatten().nonzero().squeeze(-1) if mask.dim() > 1 else None,
        classes_are_tokens=mask.dim() > 1,
    )


def read(output: SimpleNamespace | None, batch: dict[str, Tensor]) -> Outputs:
    """Returns a model's output with its logits at the items `[n, C]`; empty without a model."""
    if output is None:
        return Outputs()
    if "labels" not in batch:  # For the terms that read no logits.
        return Outputs(hidden_states=output.hidden_states)
    return Outputs(logits=output.logits[mask_of(batch)], hidden_states=output.hidden_states)


def call(
    loss: Term | Objective,
    student: SimpleNamespace,
    teacher: SimpleNamespace | None,
    batch: dict[str, Tensor],
    counts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns the term's sum and count, or the objective's loss and sums."""
    result: tuple[Tensor, Tensor] = loss(
        read(student, batch), read(teacher, batch), select(batch), *([] if counts is None else [counts])
    )
    return result


def mean(term: Term, student: SimpleNamespace, teacher: SimpleNamespace | None, batch: dict[str, Tensor]) -> Tensor:
    total, count = call(term, student, teacher, batch)
    return total / count


def token_case(seed: int = 0, length: int = 4) -> tuple[SimpleNamespace, SimpleNamespace, dict[str, Tensor]]:
    """Returns two sequences, the second padded from its third token on: `logits [2, L, 5]`, states `[2, L, 6]`."""
    random = torch.Generator().manual_seed(seed)
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, 2:] = 0
    labels = torch.randint(5, (2, length), generator=random).where(mask.bool(), torch.tensor(IGNORED))
    labels[0, 1] = IGNORED
    student, teacher = (
        outputs(torch.randn(2, length, 5, generator=random) * 3, torch.randn(2, length, 6, generator=random))
        for _ in range(2)
    )
    return student, teacher, {"items": mask.bool(), "attention_mask": mask, "labels": labels}


def student_gradients(
    term: Term, student: SimpleNamespace, teacher: SimpleNamespace, batch: dict[str, Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Returns the mean loss and its gradients for the student's logits and last hidden states, zero if it has none."""
    leaves = [student.logits.clone().requires_grad_(), student.hidden_states[-1].clone().requires_grad_()]
    loss, _ = call(Objective(name="one", terms={"term": term}), outputs(*leaves), teacher, batch)
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    return loss, [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, gradients, strict=True)]


# Values by hand


def test_soft_targets_sum_over_the_vocabulary_and_average_over_positions():
    # T = 2: at position 1 the teacher has softmax([0, 2 ln 3] / 2) = [1/4, 3/4], the student [3/4, 1/4]:
    # 2^2 * (1/4 ln((1/4) / (3/4)) + 3/4 ln((3/4) / (1/4))) = 4 (3/4 - 1/4) ln 3 = 2 ln 3.
    # At position 2 the teacher has [1/2, 1/2], the student [1/4, 3/4]: 4 (1/2 ln 2 + 1/2 ln 2/3) = 2 (2 ln 2 - ln 3).
    # A softmax over positions, or a mean over classes too, gives another number.
    student = outputs([[[2 * LN3, 0.0], [7.0, 7.0 + 2 * LN3]]])
    teacher = outputs([[[0.0, 2 * LN3], [-1.0, -1.0]]])
    loss = mean(SoftTargets(temperature=2), student, teacher, items(1, 2))
    assert float(loss) == pytest.approx((2 * LN3 + 4 * LN2 - 2 * LN3) / 2, rel=1e-6)


def test_hard_labels_match_the_value_by_hand():
    # softmax([0, ln 3]) = [1/4, 3/4]: -ln 3/4 for class 1, -ln 1/4 for class 0; the third has no label.
    batch = {"labels": torch.tensor([1, 0, IGNORED])}
    loss = mean(HardLabels(), outputs([[0.0, LN3]] * 3), None, batch)
    assert float(loss) == pytest.approx((LN4 - LN3 + LN4) / 2, rel=1e-6)


def test_masked_language_modelling_matches_the_value_by_hand():
    # One chosen position a row: softmax([0, 0, ln 2]) = [1/4, 1/4, 1/2]: ln 2 for token 2, ln 4 for token 0.
    logits = [[[0.0, 0.0, LN2], [9.0, 0.0, 0.0]], [[9.0, 0.0, 0.0], [0.0, 0.0, LN2]]]
    batch = {"labels": torch.tensor([[2, IGNORED], [IGNORED, 0]])}
    loss = mean(MaskedLanguageModelling(), outputs(logits), None, batch)
    assert float(loss) == pytest.approx((LN2 + LN4) / 2, rel=1e-6)


def test_masked_language_modelling_refuses_logits_without_a_vocabulary():
    with pytest.raises(ValueError, match=r"mlm got logits of shape \[2, 3\], expected those of a vocabulary: use it"):
        call(MaskedLanguageModelling(), outputs(torch.zeros(2, 3)), None, items(2))


def test_pseudo_labels_match_the_value_by_hand():
    # The teacher chooses 1, then 0; the student's probabilities for them are 3/4 and 1/4. T does not matter.
    loss = mean(PseudoLabels(), outputs([[0.0, LN3]] * 2), outputs([[1.0, 1.5], [0.2, -0.2]]), items(2))
    assert float(loss) == pytest.approx((LN4 - LN3 + LN4) / 2, rel=1e-6)


def test_logit_mse_matches_the_value_by_hand():
    # (1^2 + (-2)^2) / 2 = 2.5 and (1 + 1) / 2 = 1
    loss = mean(LogitMSE(), outputs([[1.0, 2.0], [0.0, 0.0]]), outputs([[0.0, 4.0], [1.0, -1.0]]), items(2))
    assert float(loss) == pytest.approx(1.75)


def test_margins_match_the_value_by_hand():
    # Margins of class 0: 1 and 3 against 2 and 1, so that (1 + 4) / 2, and those of the teacher.
    student, teacher = [[3.0, 2.0, 0.0], [11.0, 12.0, 13.0]], [[1.0, -1.0, 0.0], [1.0, 2.0, 3.0]]
    loss = mean(LogitMarginMSE(), outputs(student), outputs(teacher), items(2))
    assert float(loss) == pytest.approx(2.5 / 2)


def test_margins_are_those_of_the_labelled_items():
    batch = {"items": torch.ones(2, dtype=torch.bool), "labels": torch.tensor([1, IGNORED])}
    total, count = call(LogitMarginMSE(), outputs([[0.0, 2.0], [7.0, 1.0]]), outputs([[0.0, 5.0], [0.0, 0.0]]), batch)
    assert (float(total), int(count)) == (9.0, 1)


def test_cosine_matches_the_value_by_hand():
    # cos([1, 0], [3, 3]) = 1 / sqrt 2, cos([2, 0], [-1, 0]) = -1; the third token is padding.
    student = outputs([[0.0]], [[[1.0, 0.0], [2.0, 0.0], [5.0, 5.0]]])
    teacher = outputs([[0.0]], [[[3.0, 3.0], [-1.0, 0.0], [-5.0, 5.0]]])
    loss = mean(Cosine(), student, teacher, {"attention_mask": torch.tensor([[1, 1, 0]])})
    assert float(loss) == pytest.approx((1 - 1 / math.sqrt(2) + 2) / 2, rel=1e-6)


# Every loss


@every_term
def test_extra_padding_changes_neither_loss_nor_gradient(term: Term):
    student, teacher, batch = token_case()
    loss, gradients = student_gradients(term, student, teacher, batch)

    def pad(tensor: Tensor, value: float) -> Tensor:
        widths = (0, 0, 0, 3) if tensor.dim() == 3 else (0, 3)
        return F.pad(tensor, widths, value=value)

    longer = [outputs(pad(o.logits, junk), pad(o.hidden_states[-1], junk)) for o, junk in ((student, 50), (teacher, 9))]
    values = {"items": 0, "attention_mask": 0, "labels": IGNORED}
    longer_loss, longer_gradients = student_gradients(
        term, *longer, {name: pad(tensor, values[name]) for name, tensor in batch.items()}
    )
    assert loss.item() > 0
    torch.testing.assert_close(longer_loss, loss)
    for short, long in zip(gradients, longer_gradients, strict=True):
        torch.testing.assert_close(long[:, :4], short)
        assert not long[:, 4:].any()
        assert not long[1, 2:].any()


@every_term
def test_a_batch_where_nothing_counts_has_zero_loss_and_gradient(term: Term):
    student, teacher, batch = token_case()
    nothing = {name: torch.full_like(tensor, IGNORED if name == "labels" else 0) for name, tensor in batch.items()}
    loss, gradients = student_gradients(term, student, teacher, nothing)
    assert loss.item() == 0
    assert loss.requires_grad
    assert all((gradient == 0).all() for gradient in gradients)


@pytest.mark.parametrize("name", ["soft", "hard", "mlm", "pseudo", "mse", "margins", "cosine"])
def test_the_gradient_of_the_student_matches_the_formula(name: str):
    student, teacher, batch = token_case(seed=1)
    z, v, labels, h = student.logits, teacher.logits, batch["labels"], student.hidden_states[-1]
    counted, labelled = batch["items"][..., None], (batch["labels"] != IGNORED)[..., None]
    true_class = F.one_hot(labels.clamp(min=0), 5)
    unit_h, unit_teacher = (states / states.norm(dim=-1, keepdim=True) for states in (h, teacher.hidden_states[-1]))
    cosines = (unit_h * unit_teacher).sum(-1, keepdim=True)
    supervised = labelled * (z.softmax(-1) - true_class) / labelled.sum()
    margins = ((z - v) * true_class).sum(-1, keepdim=True) - (z - v)  # 0 at the true class
    of_margins = 2 / 4 * (true_class * margins.sum(-1, keepdim=True) - margins)
    no_logits, no_states = torch.zeros_like(z), torch.zeros_like(h)
    expected = {
        "soft": (counted * 3 * ((z / 3).softmax(-1) - (v / 3).softmax(-1)) / counted.sum(), no_states),
        "hard": (supervised, no_states),
        "mlm": (supervised, no_states),
        "pseudo": (counted * (z.softmax(-1) - F.one_hot(v.argmax(-1), 5)) / counted.sum(), no_states),
        "mse": (counted * 2 * (z - v) / 5 / counted.sum(), no_states),
        "margins": (labelled * of_margins / labelled.sum(), no_states),
        "cosine": (
            no_logits,
            counted * (cosines * unit_h - unit_teacher) / h.norm(dim=-1, keepdim=True) / counted.sum(),
        ),
    }
    gradients = student_gradients(TERMS[name], student, teacher, batch)[1]
    for gradient, formula in zip(gradients, expected[name], strict=True):
        torch.testing.assert_close(gradient, formula)


@every_term
def test_bfloat16_outputs_are_summed_in_float32(term: Term):
    student, teacher, batch = token_case()
    half = [
        SimpleNamespace(logits=o.logits.bfloat16(), hidden_states=(o.hidden_states[-1].bfloat16(),))
        for o in (student, teacher)
    ]
    whole = [SimpleNamespace(logits=o.logits.float(), hidden_states=(o.hidden_states[-1].float(),)) for o in half]
    torch.testing.assert_close(call(term, *half, batch)[0], call(term, *whole, batch)[0])


# Soft targets


def test_the_divergence_of_labels_has_exactly_the_gradient_of_their_cross_entropies():
    student, teacher, _ = token_case()
    z, v = student.logits[0].clone().requires_grad_(), teacher.logits[0]
    several = replace(select(items(4)), likelihood="sigmoid")
    p = (v / 2).sigmoid()
    cross_entropy = 4 * F.binary_cross_entropy_with_logits(z / 2, p, reduction="none").mean(-1).sum()
    loss, _ = SoftTargets(temperature=2)(Outputs(logits=z), Outputs(logits=v), several)
    entropy = 4 * (torch.special.entr(p) + torch.special.entr(1 - p)).mean(-1).sum()
    torch.testing.assert_close(cross_entropy - loss, entropy)
    assert torch.equal(*(torch.autograd.grad(value, z)[0] for value in (loss, cross_entropy)))
    own, _ = SoftTargets(temperature=2)(Outputs(logits=v), Outputs(logits=v), several)
    assert own.item() == 0


def test_a_student_with_the_teachers_distribution_has_no_loss():
    _, teacher, _ = token_case()
    v = teacher.logits[0]
    assert abs(call(SoftTargets(temperature=2), outputs(v), outputs(v), items(4))[0].item()) < 1e-6
    # A small rest is not lost behind the entropy of many classes.
    v = torch.zeros(64, 30_000)
    z = v.clone()
    z[:, 0] = 3.0
    expected = 64 * (math.log((29_999 + math.exp(3)) / 30_000) - 3 / 30_000)  # log sum exp z - log C - sum p z
    loss, _ = call(SoftTargets(temperature=1), outputs(z), outputs(v), items(64))
    assert loss.item() == pytest.approx(expected, rel=0.05)


def soft(temperature: float, z: Tensor, v: Tensor) -> Tensor:
    """Returns the sum over the items, `[]`."""
    return call(SoftTargets(temperature=temperature), outputs(z), outputs(v), items(*z.shape[:-1]))[0]


@pytest.mark.parametrize("temperature", [0, -1, math.nan])
def test_a_temperature_that_is_not_above_zero_is_refused(temperature: float):
    with pytest.raises(ValueError, match=f"got temperature {temperature}, expected a number above 0"):
        SoftTargets(temperature=temperature)


@pytest.mark.parametrize("weight", [-0.5, math.nan])
def test_a_weight_below_zero_is_refused(weight: float):
    with pytest.raises(ValueError, match=f"got weight {weight} for LogitMSE, expected 0 or more"):
        LogitMSE(weight=weight)


# The objective


def distilbert_terms(**weights: float) -> dict[str, Term]:
    chosen_weights = {"soft": 5.0, "hard": 2.0, "cosine": 1.0} | weights
    return {
        "soft": SoftTargets(temperature=2, weight=chosen_weights["soft"]),
        "hard": HardLabels(weight=chosen_weights["hard"]),
        "cosine": Cosine(weight=chosen_weights["cosine"]),
    }


def test_the_objective_is_the_weighted_sum_of_the_terms_means():
    case = token_case()
    terms = distilbert_terms()
    loss, sums = call(Objective(name="distilbert", terms=terms), *case)
    expected = sum(term.weight * mean(term, *case) for term in terms.values())
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(sums, torch.stack([call(term, *case)[0] for term in terms.values()]))


def test_unequal_micro_batches_add_up_to_the_large_batch():
    student, teacher, batch = token_case(length=6)
    batch["labels"][1] = IGNORED  # The second row has no label at all, and fewer tokens.
    objective = Objective(name="distilbert", terms=distilbert_terms())
    large, large_sums = call(objective, student, teacher, batch)

    def row(index: int) -> tuple[SimpleNamespace, SimpleNamespace, dict[str, Tensor]]:
        one = slice(index, index + 1)
        models = [outputs(o.logits[one], o.hidden_states[-1][one]) for o in (student, teacher)]
        return models[0], models[1], {name: tensor[one] for name, tensor in batch.items()}

    counts = objective.counts(select(row(0)[2])) + objective.counts(select(row(1)[2]))
    torch.testing.assert_close(counts, objective.counts(select(batch)))
    losses, sums = zip(*(call(objective, *row(index), counts) for index in (0, 1)), strict=True)
    torch.testing.assert_close(sum(losses), large)
    torch.testing.assert_close(sum(sums), large_sums)
    naive = sum(call(objective, *row(index))[0] for index in (0, 1)) / 2
    assert abs(naive - large) > 0.01


def test_a_term_of_weight_zero_is_left_out_with_what_it_needs():
    whole = Objective(name="whole", terms=distilbert_terms())
    assert (whole.names, whole.needs, whole.needs_teacher) == (("soft", "hard", "cosine"), {"hidden_states"}, True)
    logits_only = Objective(name="logits", terms=distilbert_terms(cosine=0))
    assert (logits_only.names, logits_only.needs) == (("soft", "hard"), frozenset())
    supervised = Objective(name="supervised", terms=distilbert_terms(soft=0, cosine=0))
    assert (supervised.names, supervised.needs_teacher) == (("hard",), False)
    student, _, batch = token_case()
    call(supervised, outputs(student.logits), None, batch)


@pytest.mark.parametrize(
    ("terms", "given"), [(distilbert_terms(soft=0, hard=0, cosine=0), "soft, hard, cosine"), ({}, "no term")]
)
def test_an_objective_without_a_positive_weight_is_refused(terms: dict[str, Term], given: str):
    with pytest.raises(ValueError, match=rf"objective empty has nothing to learn from \({given}\): give one term"):
        Objective(name="empty", terms=terms)


def test_a_value_that_is_no_term_is_named_in_one_line():
    terms: dict = {"hard": HardLabels(), "cosine": Cosine(), "x": {"weight": 1}}
    message = r"^got terms\.x=\{weight: 1\}, expected a Term \(there are hard, cosine\)$"
    with pytest.raises(OptionError, match=message):
        Objective(name="custom", terms=terms)


def test_connect_adds_a_projection_for_different_widths():
    objective = Objective(name="distilbert", terms=distilbert_terms())
    objective.connect(EncoderSize(6, 2), EncoderSize(9, 2))
    assert {name: p.shape for name, p in objective.named_parameters()} == {"terms.cosine.projection.weight": (9, 6)}
    assert list(objective.state_dict()) == ["terms.cosine.projection.weight"]
    student, teacher, batch = token_case()
    teacher.hidden_states = (torch.randn(2, 4, 9),)
    call(objective, student, teacher, batch)[0].backward()
    gradient = objective.terms["cosine"].projection.weight.grad
    assert gradient is not None
    assert gradient.any()


def test_the_projection_maps_student_states_to_the_width_of_the_teacher():
    # The student's [1, 2] becomes [1, 2, 1 + 2], which is the teacher's direction: cos = 1.
    cosine = Cosine()
    cosine.connect(EncoderSize(2, 1), EncoderSize(3, 1))
    with torch.no_grad():
        cosine.projection.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
    student, teacher = outputs([[0.0]], [[[1.0, 2.0]]]), outputs([[0.0]], [[[2.0, 4.0, 6.0]]])
    loss, _ = call(cosine, student, teacher, {"attention_mask": torch.ones(1, 1)})
    assert loss.item() == pytest.approx(0, abs=1e-6)


def test_different_widths_without_connect_are_refused():
    student, teacher = outputs([[0.0]], torch.ones(1, 1, 2)), outputs([[0.0]], torch.ones(1, 1, 3))
    with pytest.raises(ValueError, match=r"2 wide from the student and 3 from the teacher: call connect\(\)"):
        call(Cosine(), student, teacher, {"attention_mask": torch.ones(1, 1)})


# Items that only some terms read, and classes that an item cannot have


@pytest.mark.parametrize("name", ["soft", "hard", "mlm", "pseudo", "mse"])
def test_unscored_tokens_count_only_with_positions_all(name: str) -> None:
    student, teacher, batch = token_case()
    whole = select(batch)
    chosen = whole.labelled
    every = [read(output, batch) for output in (student, teacher)]
    scored = [replace(output, logits=output.logits[chosen]) for output in every]  # type: ignore[index]
    alone = replace(whole, row=whole.row[chosen], labels=whole.labels[chosen], labelled=whole.labelled[chosen])
    assert 0 < len(alone) < len(whole)
    torch.testing.assert_close(TERMS[name](*every, replace(whole, chosen=chosen)), TERMS[name](*scored, alone))
    all_positions = SoftTargets(temperature=3, positions="all")
    torch.testing.assert_close(all_positions(*every, replace(whole, chosen=chosen)), TERMS["soft"](*every, whole))


@pytest.mark.parametrize("name", ["soft", "hard", "pseudo", "mse", "margins", "dkd"])
def test_an_invalid_class_changes_neither_loss_nor_gradient(name: str) -> None:
    """An item with three valid classes of four has the loss and the gradient of those three."""
    term = TERMS[name]
    torch.manual_seed(0)
    student, teacher = torch.randn(2, 1, 4)
    teacher[0, 2] = 9.0  # The largest, and not valid.
    valid = torch.tensor([[True, True, False, True]])
    some, narrow = student.clone().requires_grad_(), student[valid][None].requires_grad_()
    one = Items(batch={}, row=torch.tensor([0]), labels=torch.tensor([1]), labelled=torch.tensor([True]))
    loss, _ = term(Outputs(logits=some), Outputs(logits=teacher), replace(one, valid=valid))
    expected, _ = term(Outputs(logits=narrow), Outputs(logits=teacher[valid][None]), one)
    torch.testing.assert_close(loss, expected)
    gradient, of_narrow = torch.autograd.grad(loss, some)[0], torch.autograd.grad(expected, narrow)[0]
    torch.testing.assert_close(gradient[valid][None], of_narrow)
    assert gradient[0, 2] == 0


# Regression: the labels are numbers, and cross-entropies become squared errors.


def test_terms_of_a_regression_are_squared_errors_whatever_the_temperature() -> None:
    student, teacher, batch = outputs([[1.0], [2.0]]), outputs([[3.0], [2.5]]), numbers(0.0, -100.0)
    for temperature in (1.0, 4.0):
        assert mean(SoftTargets(temperature=temperature), student, teacher, batch) == pytest.approx((4 + 0.25) / 2)
    assert mean(HardLabels(), student, None, batch) == pytest.approx((1 + 102**2) / 2)


def test_items_that_do_not_count_are_left_out_of_a_regression() -> None:
    batch = numbers(0.0, 5.0) | {"items": torch.tensor([True, False])}
    for term in (SoftTargets(), HardLabels()):
        total, count = call(term, outputs([[1.0], [9.0]]), outputs([[0.0], [0.0]]), batch)
        assert (total.item(), count.item()) == (1.0, 1)


def test_an_objective_names_the_terms_that_cannot_learn_a_task() -> None:
    terms = {"soft": SoftTargets(), "pseudo": PseudoLabels(), "mlm": MaskedLanguageModelling()}
    objective = Objective(name="all", terms=terms)
    assert objective.unsuited(likelihood="gaussian", classes_are_tokens=False) == ["pseudo", "mlm"]
    assert objective.unsuited(likelihood="softmax", classes_are_tokens=False) == ["mlm"]
    assert objective.unsuited(likelihood="softmax", classes_are_tokens=True) == []
    assert Objective(name="x", terms={"a": HardLabels(), "b": Cosine()}).needing("hidden_states") == ["b"]


def test_pooled_states_are_compared_by_a_learned_projection() -> None:
    """The projection swaps the two numbers, so that the second text points away from the teacher's."""
    term = PooledStates()
    term.connect(EncoderSize(width=2, layers=1), EncoderSize(width=2, layers=1))
    with torch.no_grad():
        term.projection.weight.copy_(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
        term.projection.bias.zero_()
    student = Outputs(pooled=torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    teacher = Outputs(pooled=torch.tensor([[0.0, 3.0], [-1.0, 0.0]]))
    batch = {"attention_mask": torch.ones(2, 3)}
    items = Items(batch=batch, row=torch.arange(2), labels=torch.zeros(2), labelled=torch.ones(2, dtype=torch.bool))
    total, count = term(student, teacher, items)
    assert (total.item(), count.item()) == (pytest.approx(2.0), 2)
