"""Tests of the weights of classes: their values by hand and by scikit-learn, the loss by torch, and bad input."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight

from distill.core.contracts import IGNORED, Outputs, Task
from distill.core.errors import OptionError
from distill.data.splits import LabelledData
from distill.kinds import Classification, TokenClassification
from distill.kinds.labelled_rows import resolve_class_weights, weight_column
from distill.losses import HardLabels, Objective, SoftTargets
from distill.text.vocabulary import train_word_pieces

NOWHERE = Path("nowhere")
TERM = HardLabels()


def classification(**options: Any) -> Classification:
    """Returns a task with three examples of class a, two of b and one of c."""
    tables = {"train": (list("uvwxyz"), list("aaabbc")), "dev": (["s", "t"], ["a", "c"])}
    return Classification(**({"text": "text"} | tables | options))


def batch(data: LabelledData, *labels: int) -> dict[str, torch.Tensor]:
    """Returns a batch of examples with these labels, as the task encodes it."""
    weights = weight_column(data.scoring.weights, np.array(labels))
    columns = {name: torch.from_numpy(column) for name, column in weights.items()}
    return {"labels": torch.tensor(labels), "example_id": torch.arange(len(labels)), **columns}


def logits(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))


def test_balanced_weights_are_the_examples_over_classes_times_count() -> None:
    labels = np.array([0, 0, 0, 1, 1, 2, IGNORED])
    weights = resolve_class_weights("balanced", ("a", "b", "c"), labels)
    assert weights == pytest.approx((6 / 9, 1.0, 2.0))
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels[labels != IGNORED])
    assert weights == pytest.approx(tuple(expected))


def test_the_loss_is_that_of_torch_with_weights() -> None:
    task = classification(class_weights=[0.5, 2, 0.1])
    data = task.read(NOWHERE)
    items = task.select(batch(data, 0, 1, 2, IGNORED, 1))
    assert items.weights is not None
    assert items.weights.tolist() == pytest.approx([0.5, 2.0, 0.1, 0.0, 2.0])
    student = logits(5)
    total, count = TERM(Outputs(logits=student), Outputs(), items)
    assert count.item() == pytest.approx(4.6)
    expected = F.cross_entropy(student, items.labels, weight=torch.tensor([0.5, 2, 0.1]), ignore_index=IGNORED)
    torch.testing.assert_close(total / count, expected)
    assert Objective(hard=TERM)(Outputs(logits=student), Outputs(), items)[0].item() == pytest.approx(expected.item())


def test_a_sum_of_weights_below_one_divides_too() -> None:
    task = classification(class_weights=[0.1, 0.2, 0])
    data = task.read(NOWHERE)
    items, student = task.select(batch(data, 0, 1, 2)), logits(3)
    loss, _ = Objective(hard=TERM)(Outputs(logits=student), Outputs(), items)
    one, two = (F.cross_entropy(student[row], torch.tensor(row)) for row in (0, 1))
    assert loss.item() == pytest.approx((0.1 * one + 0.2 * two).item() / 0.3)
    nothing, _ = Objective(hard=TERM)(Outputs(logits=student[:1]), Outputs(), task.select(batch(data, 2)))
    assert nothing.item() == 0


def test_micro_batches_of_unequal_weight_add_up_to_one_batch() -> None:
    task = classification(class_weights="balanced")
    data = task.read(NOWHERE)
    objective = Objective(hard=HardLabels(weight=2), soft=SoftTargets())
    student, teacher, labels = logits(5), logits(5, seed=1), (0, 0, 1, 2, 2)
    whole, _ = objective(Outputs(logits=student), Outputs(logits=teacher), task.select(batch(data, *labels)))
    cuts = [slice(0, 4), slice(4, 5)]
    items = [task.select(batch(data, *labels[cut])) for cut in cuts]
    counts = torch.stack([objective.counts(part) for part in items]).sum(dim=0)
    assert counts.tolist() == pytest.approx([2 * 6 / 9 + 1 + 2 * 2, 5])
    losses = [
        objective(Outputs(logits=student[cut]), Outputs(logits=teacher[cut]), part, counts)[0]
        for cut, part in zip(cuts, items, strict=True)
    ]
    torch.testing.assert_close(sum(losses), whole)


def test_without_the_option_nothing_is_weighted_and_the_digest_is_that_of_the_data() -> None:
    plain, weighted, other, equal = (
        classification(class_weights=weights) for weights in (None, "balanced", [1, 2, 3], [6 / 9, 1, 2])
    )
    every = [task.read(NOWHERE) for task in (plain, weighted, other, equal)]
    digests = [data.sha256 for data in every]
    assert plain.select(batch(every[0], 0, 1)).weights is None
    assert digests[0] == classification().rows.read(NOWHERE).sha256
    assert len(set(digests[:3])) == 3
    assert digests[3] == digests[1]  # A fine-tuned teacher in the cache is the same.
    assert "class weights a 0.667, b 1, c 2" in every[1].scoring.summary(every[1])
    assert "class weights" not in every[0].scoring.summary(every[0])


def test_tags_are_weighted_by_the_words_of_train(tmp_path: Path) -> None:
    (tmp_path / "train.conll").write_text("to O\nnew B-x\nyork I-x\nnow O\n\nup O\n")
    (tmp_path / "dev.conll").write_text("to O\nnew B-x\n")
    task = TokenClassification(data=tmp_path, class_weights="balanced")
    splits = task.read(tmp_path)
    assert splits.scoring.describe(splits)["class_weights"] == pytest.approx([5 / 9, 5 / 3, 5 / 3])  # O, B-x, I-x.
    plain = TokenClassification(data=tmp_path)
    assert splits.sha256 != plain.read(tmp_path).sha256
    tokenizer = train_word_pieces(["to new york now up"] * 4, 60)
    examples = task.encode(splits, tokenizer, None)["train"]
    items = task.select(examples[[0, 1]])
    assert items.weights is not None
    assert items.weights.tolist() == pytest.approx([[5 / 9, 5 / 3, 5 / 3][label] for label in items.labels])
    assert items.labels.tolist() == [0, 1, 2, 0, 0]
    unweighted = plain.encode(plain.read(tmp_path), tokenizer, None)["train"]
    assert plain.select(unweighted[[0, 1]]).weights is None
    (tmp_path / "dev.conll").write_text("to O\nnew S-x\n")
    with pytest.raises(OptionError, match="which has none of S-x: give a list of weights"):
        task.read(tmp_path)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([1.0, 2.0], r"got task.class_weights=\[1.0, 2.0\], expected 3 numbers, one for each of a, b, c"),
        ([0.0, 0.0, 0.0], r"got task.class_weights=\[0.0, 0.0, 0.0\], expected at least one weight above 0"),
        ([1, -1, 1], r"got class_weights=\[1, -1, 1\], expected balanced, or a list of numbers of at least 0 in"),
        ([1, float("nan"), 1], "expected balanced, or a list of numbers of at least 0 in the order of the classes"),
        ("balance", "got class_weights=balance, expected balanced, or a list of numbers"),
        (2.0, "got class_weights=2.0, expected balanced, or a list of numbers"),
    ],
)
def test_invalid_weights_are_refused(weights: object, expected: str) -> None:
    with pytest.raises(OptionError, match=expected):
        classification(class_weights=weights).read(NOWHERE)


def test_a_class_without_an_example_cannot_be_balanced() -> None:
    tables: dict[str, Any] = {"train": (["u", "v"], [0, 1]), "dev": (["s"], [2])}
    task: Task = Classification(text="text", labels=["a", "b", "c"], class_weights="balanced", **tables)
    with pytest.raises(OptionError, match="expected an example of every class in train, which has none of c: give a"):
        task.read(NOWHERE)
