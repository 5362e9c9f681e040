"""Tests of objectives whose terms learn from prefixes of vectors too (Matryoshka)."""

import math
from typing import Any

import pytest
import torch

import distill as d
from distill.chain.plan import check_terms
from distill.core.contracts import Outputs
from distill.core.errors import OptionError, UserError
from distill.kinds import Classification
from distill.losses.term import EncoderSize, take_prefix
from tests.conftest import sentences
from tests.kinds.test_embedding import items_of


def test_a_prefix_has_the_length_of_its_vector() -> None:
    vectors = torch.tensor([[3.0, 4.0, 12.0], [0.0, 0.0, 2.0]], requires_grad=True)
    prefixes = take_prefix(vectors, 2)
    torch.testing.assert_close(prefixes, torch.tensor([[3.0, 4.0], [0.0, 0.0]]) * 13 / 5)
    prefixes.sum().backward()
    assert vectors.grad is not None
    assert vectors.grad.isfinite().all()


def test_a_term_is_the_mean_over_prefixes_and_the_whole_vector_by_hand() -> None:
    """The cosine of the pair is 1 in one dimension, 0.6 in two and 0 in three; its score is 1."""
    vectors = torch.tensor([[1.0, 0.0, 1.0], [0.6, 0.8, -0.6]], requires_grad=True)
    items = items_of([1.0], [2])
    objective = d.Objective(scores=d.CosineRegression(weight=2.0), dimensions=[1, 2])
    objective.connect(EncoderSize(3, 1), EncoderSize(3, 1))
    loss, totals = objective(Outputs(vectors), Outputs(), items)
    assert float(totals[0]) == pytest.approx((0 + 0.4**2 + 1) / 3)
    assert float(loss.detach()) == pytest.approx(2 * (0.4**2 + 1) / 3)
    loss.backward()
    assert vectors.grad is not None
    assert vectors.grad.isfinite().all()
    assert vectors.grad.any()
    assert objective.record()["dimensions"] == [1, 2]
    whole = d.Objective(scores=d.CosineRegression(weight=2.0), dimensions=[3])  # The whole width is counted once.
    whole.connect(EncoderSize(3, 1), EncoderSize(3, 1))
    assert float(whole(Outputs(vectors), Outputs(), items)[0].detach()) == pytest.approx(2.0)


def test_terms_without_vectors_have_no_prefixes() -> None:
    objective = d.Objective(cosine=d.Cosine(), mse=d.EmbeddingMSE(), dimensions=[2])
    objective.connect(EncoderSize(3, 1), EncoderSize(3, 1))
    assert list(objective.prefixes) == ["mse"]


def test_each_prefix_has_learned_layers_of_its_own() -> None:
    objective = d.Objective(mse=d.EmbeddingMSE(), classes=d.PairClassification(classes=2), dimensions=[2])
    for _ in range(2):  # A further seed connects again.
        objective.connect(EncoderSize(4, 1), EncoderSize(4, 1))
    shapes = {name: tuple(value.shape) for name, value in objective.named_parameters()}
    assert shapes == {
        "terms.mse.map.weight": (4, 4), "terms.classes.layer.weight": (2, 12), "terms.classes.layer.bias": (2,),
        "prefixes.mse.0.map.weight": (4, 2),
        "prefixes.classes.0.layer.weight": (2, 6), "prefixes.classes.0.layer.bias": (2,),
    }  # fmt: skip
    torch.testing.assert_close(objective.state_dict()["terms.mse.map.weight"], torch.eye(4))
    torch.testing.assert_close(objective.state_dict()["prefixes.mse.0.map.weight"], torch.eye(4)[:, :2])


def test_principal_components_turn_the_vectors_of_the_teacher_so_that_a_prefix_holds_most() -> None:
    """The vectors vary by 4 along (0, 0.6, 0.8), by 1 along the first axis and not at all along the third one."""
    objective, items = d.Objective(mse=d.EmbeddingMSE(projection="pca"), dimensions=[1]), items_of([1.0], [1])
    objective.connect(EncoderSize(3, 1), EncoderSize(3, 1))
    assert objective.fits_teacher
    vectors = torch.tensor([[1.0, 6.0, 8.0], [3.0, 6.0, 8.0], [2.0, 8.4, 11.2], [2.0, 3.6, 4.8]])
    objective.fit([vectors])
    whole, prefix = objective.terms["mse"].components, objective.prefixes["mse"][0].components
    torch.testing.assert_close(prefix, torch.tensor([[0.0, 0.6, 0.8]]))
    torch.testing.assert_close(whole[:1], prefix)
    torch.testing.assert_close(whole @ whole.T, torch.eye(3))
    # The teacher's vector becomes (10, 1, 0) and its prefix 10, which a student of that length and direction has.
    student = torch.tensor([[math.sqrt(100), 1.0, 0.0]])
    assert float(objective(Outputs(student), Outputs(vectors[:1]), items)[1]) == pytest.approx(
        (0 + (math.sqrt(101) - 10) ** 2) / 2, abs=1e-4
    )


@pytest.mark.parametrize("dimensions", [[0], [64, 32], [64, 64], [1.5], "64"])
def test_dimensions_that_do_not_increase_are_named(dimensions: Any) -> None:
    for options in (d.ExportSettings, lambda dimensions: d.Objective(mse=d.EmbeddingMSE(), dimensions=dimensions)):
        with pytest.raises(OptionError, match="got dimensions=.*, expected a list of whole numbers of at least 1 that"):
            options(dimensions=dimensions)


def test_dimensions_that_a_student_has_not_are_named() -> None:
    objective = d.Objective(mse=d.EmbeddingMSE(), dimensions=[2, 9])
    with pytest.raises(UserError, match="objective.dimensions has 9, expected at most 4, the width of the student's"):
        objective.check_sizes(EncoderSize(4, 1), EncoderSize(4, 1))
    source = d.Objective(mse=d.EmbeddingMSE(targets="source_encoder"), dimensions=[2])
    with pytest.raises(UserError, match="the term mse learns whole vectors of task.source_encoder: leave out obj"):
        source.check_sizes(EncoderSize(4, 1), EncoderSize(4, 1))
    columns = dict(zip(("sentence", "label"), map(list, zip(*sentences(4), strict=True)), strict=True))
    task = Classification(text="sentence", train=columns, dev=columns)
    with pytest.raises(UserError, match=r"got objective.dimensions=\[2\], expected \[\], because task .* has no vecto"):
        check_terms(d.Objective(soft=d.SoftTargets(), dimensions=[2]), task.info, alternative="")
