"""Tests of the losses of replaced-token detection: values by hand, gradients by finite differences, and counts."""

import math

import pytest
import torch
from torch import Tensor

from distill.core.contracts import IGNORED, Items, Outputs
from distill.losses import GeneratorLoss, HardLabels, Objective, ReplacedTokens, SegmentOrder

LN2, LN4 = math.log(2), math.log(4)


def items_of(labels: list[int]) -> Items:
    """Returns the tokens of one sequence with these labels."""
    values = torch.tensor(labels, dtype=torch.long)
    return Items(
        batch={}, row=torch.zeros(len(labels), dtype=torch.long), labels=values,
        labelled=values != IGNORED, index=torch.arange(len(labels)),
    )  # fmt: skip


def outputs(detection: Tensor, replaced: list[bool], generator: Tensor, *, chunk_size: int | None = None) -> Outputs:
    """Returns the logits of the discriminator, and those of the generator at the labelled items alone."""
    of_generator = Outputs(logits=generator)
    if chunk_size is not None:
        of_generator = Outputs(head=lambda span: generator[span], chunk_size=chunk_size)
    return Outputs(logits=detection, replaced=torch.tensor(replaced), generator=of_generator)


LABELS = [IGNORED, 2, IGNORED, 0]


def test_the_losses_have_values_worked_out_by_hand() -> None:
    # Of being replaced the discriminator gives 1/2, 3/4, 1/4 and 1/4; the second and the fourth token are replaced.
    detection = torch.tensor([[0.5, 0.5], [0.25, 0.75], [0.75, 0.25], [0.75, 0.25]]).log()
    # Of the right tokens 2 and 0 the generator gives 1/2 and 1/8.
    generator = torch.tensor([[0.25, 0.25, 0.5], [0.125, 0.5, 0.375]]).log()
    student, items = outputs(detection, [False, True, False, True], generator), items_of(LABELS)
    total, count = ReplacedTokens()(student, Outputs(), items)
    assert float(total) == pytest.approx(LN2 - math.log(0.75) - math.log(0.75) + LN4)
    assert int(count) == 4
    total, count = GeneratorLoss()(student, Outputs(), items)
    assert float(total) == pytest.approx(LN2 + 3 * LN2)
    assert int(count) == 2
    loss, _ = Objective(mlm=GeneratorLoss(), replaced=ReplacedTokens())(student, Outputs(), items)
    assert float(loss) == pytest.approx(2 * LN2 + 50 * (3 * LN2 - 2 * math.log(0.75)) / 4, rel=1e-6)


def test_no_token_gives_a_loss_of_zero_with_a_gradient() -> None:
    detection, generator = (torch.zeros(0, classes, requires_grad=True) for classes in (2, 3))
    for term in (ReplacedTokens(), GeneratorLoss()):
        total, count = term(outputs(detection, [], generator), Outputs(), items_of([]))
        assert (total.item(), int(count)) == (0.0, 0)
        total.backward()


def test_terms_suit_replaced_tokens_alone_and_no_other_term_suits_them() -> None:
    electra = Objective(mlm=GeneratorLoss(), replaced=ReplacedTokens())
    assert electra.unsuited(likelihood="softmax", classes_are_tokens=False, replaces_tokens=True) == []
    for classes_are_tokens in (True, False):
        unsuited = electra.unsuited(likelihood="softmax", classes_are_tokens=classes_are_tokens)
        assert unsuited == ["mlm", "replaced"]
    others = Objective(hard=HardLabels(), order=SegmentOrder())
    assert others.unsuited(likelihood="softmax", classes_are_tokens=False, replaces_tokens=True) == ["hard", "order"]


def test_outputs_of_another_task_are_refused() -> None:
    for term, expected in ((ReplacedTokens(), "without replaced tokens"), (GeneratorLoss(), "of a generator")):
        with pytest.raises(ValueError, match=f"{expected}.*use it with task=rtd"):
            term(Outputs(logits=torch.zeros(4, 2)), Outputs(), items_of(LABELS))
