"""Tests of the terms that compare attention: values by hand, padding, gradients and heads."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from distill.core.contracts import AttentionVectors, Items, Outputs
from distill.losses import AttentionScoreMSE, MiniLM, MiniLMv2, Term
from distill.losses.term import EncoderSize

LN2, LN3 = math.log(2), math.log(3)
TERMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "scores": (AttentionScoreMSE, {}),
    "minilm": (MiniLM, {}),
    "minilmv2": (MiniLMv2, {"relation_heads": 2}),
}
every_term = pytest.mark.parametrize("name", TERMS)


def select(mask: Tensor) -> Items:
    row, labels = torch.arange(len(mask)), torch.zeros(len(mask), dtype=torch.long)
    return Items(batch={"attention_mask": mask}, row=row, labels=labels, labelled=labels == 0)


def connect(term: Term, depths: tuple[int, int] = (1, 1)) -> Term:
    term.connect(EncoderSize(4, depths[0], 1, 4), EncoderSize(4, depths[1], 1, 4))
    return term


def make(name: str) -> Term:
    term, options = TERMS[name]
    return connect(term(**options))


def outputs(queries: object, keys: object = None, values: object = None) -> Outputs:
    """Returns the vectors `[B, A, L, D]` of a model with one layer; keys and values left out are 0."""
    given = torch.as_tensor(queries, dtype=torch.float32)
    others = [torch.zeros_like(given) if v is None else torch.as_tensor(v, dtype=torch.float32) for v in (keys, values)]
    return Outputs(attention_vectors={1: AttentionVectors(given, *others)})


def random_case(width: int = 4, heads: int = 2) -> tuple[Outputs, Tensor]:
    """Returns random vectors of two examples of up to four tokens, and their mask."""
    vectors = torch.randn(3, 2, heads, 4, width, requires_grad=True)
    return Outputs(attention_vectors={1: AttentionVectors(*vectors)}), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])


# Values by hand


def test_the_squared_error_of_scores_matches_the_value_by_hand() -> None:
    # D = 4, so products are halved. The student's scores of two tokens are [[2, 4], [0, 0]] / 2, the teacher's 0.
    # (1 + 4 + 0 + 0) / 4 pairs; the third token is padding with scores of any size.
    student = outputs([[[[1, 0, 0, 0], [0, 0, 0, 0], [99, 9, 9, 9]]]], [[[[2, 0, 0, 0], [4, 0, 0, 0], [99, 9, 9, 9]]]])
    teacher = outputs(torch.zeros(1, 1, 3, 4))
    total, count = make("scores")(student, teacher, select(torch.tensor([[1, 1, 0]])))
    assert (float(total), int(count)) == (5.0, 4)


def test_scores_are_averaged_over_heads_and_added_over_layers() -> None:
    # One token: scores 2 and 4 of two heads in layer 1, and 1 and 1 in layer 2, the teacher's 0: (4 + 16) / 2 + 1
    ones, zeros = torch.ones(1, 2, 1, 1), torch.zeros(1, 2, 1, 1)
    first = AttentionVectors(torch.tensor([2.0, 4.0]).view(1, 2, 1, 1), ones, zeros)
    student = Outputs(attention_vectors={1: first, 2: AttentionVectors(ones, ones, zeros)})
    teacher = Outputs(attention_vectors={layer: AttentionVectors(zeros, zeros, zeros) for layer in (3, 6)})
    total, _ = connect(AttentionScoreMSE(), (2, 6))(student, teacher, select(torch.ones(1, 1)))
    assert float(total) == 11.0


def test_minilm_matches_the_value_by_hand() -> None:
    # One head of width 1, two tokens. The teacher's queries are [1, 0] and its keys [ln 3, 0]: rows of attention
    # [3/4, 1/4] and [1/2, 1/2]. The student's are uniform. KL of row 1: 3/4 ln(3/2) + 1/4 ln(1/2); of row 2: 0.
    # Values [sqrt(ln 2), 0]: relations [2/3, 1/3] and [1/2, 1/2]. KL of row 1: 2/3 ln(4/3) + 1/3 ln(2/3).
    teacher = outputs([[[[1], [0]]]], [[[[LN3], [0]]]], [[[[math.sqrt(LN2)], [0]]]])
    student = outputs(torch.zeros(1, 1, 2, 1))
    total, count = make("minilm")(student, teacher, select(torch.ones(1, 2)))
    attention = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    relation = 2 / 3 * math.log(4 / 3) + 1 / 3 * math.log(2 / 3)
    assert float(total) == pytest.approx(attention + relation, rel=1e-5)
    assert int(count) == 2


def test_relation_heads_split_the_joined_vectors() -> None:
    """Two heads of width 3 as three relation heads of width 2, computed by slices of the joined vectors."""
    torch.manual_seed(0)
    student, mask = random_case(width=3)
    teacher, _ = random_case(width=6, heads=4)
    term = connect(MiniLMv2(relation_heads=3))
    expected = 0.0
    for kind in range(3):
        log_probs = []
        for output in (student, teacher):
            vectors = output.attention_vectors[1][kind]  # type: ignore[index]
            joined = torch.cat(list(vectors.unbind(1)), dim=-1)  # [B, L, A * D]
            width = joined.shape[-1] // 3
            heads = [joined[..., width * head : width * head + width] for head in range(3)]
            log_probs.append([(h @ h.mT / width**0.5) for h in heads])
        for one, other in zip(*log_probs, strict=True):
            for row, length in enumerate(mask.sum(dim=1).tolist()):
                p, q = other[row, :length, :length].softmax(-1), one[row, :length, :length].softmax(-1)
                expected += float((p * (p / q).log()).sum().detach()) / 3
    total, count = term(student, teacher, select(mask))
    assert float(total.detach()) == pytest.approx(expected, rel=1e-4)
    assert int(count) == 6


# Every term


@every_term
def test_extra_padding_changes_neither_loss_nor_gradient(name: str) -> None:
    torch.manual_seed(0)
    term = make(name)
    (student, mask), (teacher, _) = random_case(), random_case()

    def pad(output: Outputs, junk: float) -> Outputs:
        vectors = output.attention_vectors[1]  # type: ignore[index]
        return Outputs(attention_vectors={1: AttentionVectors(*(F.pad(v, (0, 0, 0, 3), value=junk) for v in vectors))})

    leaves = list(student.attention_vectors[1])  # type: ignore[index]
    total, count = term(student, teacher, select(mask))
    longer, longer_count = term(pad(student, 50.0), pad(teacher, -9.0), select(F.pad(mask, (0, 3))))
    assert float(total) > 0
    torch.testing.assert_close((longer, longer_count), (total, count))
    gradients, longer_gradients = (torch.autograd.grad(t, leaves, allow_unused=True) for t in (total, longer))
    for short, long in zip(gradients, longer_gradients, strict=True):
        assert (short is None) == (long is None)
        if short is not None:
            torch.testing.assert_close(short, long)
            assert not short[1, :, 2:].any()  # Padding.


@every_term
def test_a_batch_without_tokens_has_zero_loss_and_gradient(name: str) -> None:
    student, mask = random_case()
    leaves = list(student.attention_vectors[1])  # type: ignore[index]
    total, count = make(name)(student, random_case()[0], select(torch.zeros_like(mask)))
    assert (float(total.detach()), int(count)) == (0.0, 0)
    gradients = torch.autograd.grad(total, leaves, allow_unused=True)
    assert all(gradient is None or not gradient.any() for gradient in gradients)


@every_term
def test_the_loss_is_computed_in_float32_under_autocast(name: str) -> None:
    torch.manual_seed(0)
    term, (student, mask), (teacher, _) = make(name), random_case(), random_case()
    expected, _ = term(student, teacher, select(mask))
    with torch.autocast("cpu", torch.bfloat16):
        total, _ = term(student, teacher, select(mask))
    assert total.dtype == torch.float32
    torch.testing.assert_close(total, expected)


@every_term
def test_a_term_that_is_not_connected_and_missing_vectors_are_refused(name: str) -> None:
    term, options = TERMS[name]
    student, mask = random_case()
    with pytest.raises(ValueError, match=r"got a term that knows no layers: call connect\(\)"):
        term(**options)(student, student, select(mask))
    with pytest.raises(ValueError, match="got outputs without attention vectors"):
        make(name)(student, Outputs(), select(mask))
