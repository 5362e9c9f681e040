"""Tests of teachers of numbers whose scale is not that of the labels."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from distill.builtin.teachers.loaded import Loaded
from transformers import BertForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from distill.core.errors import UserError
from distill.kinds import Regression
from distill.models.loading import Start, rescale_head
from distill.teachers import preparation as teaching
from distill.teachers.prepared import PreparedTeacher
from distill.teachers.source import TeacherSource
from distill.teachers.stages import fit_scale
from distill.training.hyperparameters import TrainerSettings
from tests.conftest import SETTINGS, sentences, toy_bert

TEXTS = [text for text, _ in sentences(64)]


@pytest.fixture(scope="module")
def regressor(tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    config = toy_bert(len(tokenizer)).config
    config.num_labels, config.problem_type = 1, "regression"
    torch.manual_seed(0)
    return BertForSequenceClassification(config).eval()


@pytest.fixture(scope="module")
def numbers(regressor: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """The regressor's numbers for all texts, `[64]`."""
    with torch.no_grad():
        logits = regressor(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits
    return np.asarray(logits[:, 0].numpy().astype(np.float64))


Prepare = Callable[..., PreparedTeacher]


@pytest.fixture
def prepare(regressor: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> Prepare:
    """Prepares the regressor for labels, by default without a fine-tuning."""

    def run(labels: np.ndarray, *, finetune: TrainerSettings | None = None) -> PreparedTeacher:
        rows = (TEXTS, labels.astype(np.float32).tolist())
        task = Regression(name="toy", text="text", max_length=64, train=rows, dev=rows)
        source = TeacherSource(weights=Loaded(regressor, tokenizer), finetune=finetune)
        preparation = teaching.Preparation(
            task=task, splits=task.read(tmp_path), cache_dir=tmp_path, run_directory=tmp_path / "run",
            device=torch.device("cpu"),
        )  # fmt: skip
        return teaching.prepare(source, preparation, requested="toy", substituted=False)

    return run


def compute_numbers(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(model(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits[:, 0])


def test_a_teacher_on_another_scale_is_rescaled_with_a_notice(
    prepare: Prepare, numbers: np.ndarray, tokenizer: PreTrainedTokenizerBase, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = 7 * numbers + 30
    teacher = prepare(labels)
    assert teacher.origin == "rescaled"
    np.testing.assert_allclose(compute_numbers(teacher.model, tokenizer), labels, rtol=1e-4)
    teacher.release()
    np.testing.assert_allclose(compute_numbers(teacher.model, tokenizer), labels, rtol=1e-4)
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.count("Notice: the teacher") == 1
    assert f"the teacher gives numbers from {numbers.min():.3g} to {numbers.max():.3g} for 64 examples" in printed
    assert f"labels from {labels.min():.3g} to {labels.max():.3g}: its last layer is rescaled, to 7 times" in printed
    assert "its numbers + 30" in printed


def test_a_teacher_on_the_scale_of_the_labels_is_not_changed(
    prepare: Prepare, numbers: np.ndarray, tokenizer: PreTrainedTokenizerBase, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = 0.3 * numbers.std() * np.random.default_rng(0).standard_normal(len(numbers))
    teacher = prepare(numbers.mean() + 1.2 * (numbers - numbers.mean()) + noise)
    assert teacher.origin == "as it is"
    np.testing.assert_allclose(compute_numbers(teacher.model, tokenizer), numbers, rtol=1e-4, atol=1e-5)
    assert "Notice: the teacher" not in capsys.readouterr().out


def test_the_fingerprint_of_a_rescaled_teacher_depends_on_the_labels(prepare: Prepare, numbers: np.ndarray) -> None:
    fingerprints = {prepare(labels).fingerprint for labels in (numbers, 7 * numbers, 7 * numbers + 30)}
    assert len(fingerprints) == 3


@pytest.mark.parametrize("sign", [0, -1], ids=["unrelated", "opposite"])
def test_a_teacher_whose_numbers_do_not_explain_the_labels_is_refused_or_fine_tuned(
    sign: int, prepare: Prepare, numbers: np.ndarray
) -> None:
    labels = 5 * (sign * numbers if sign else np.random.default_rng(1).standard_normal(len(numbers))) + 3
    with pytest.raises(
        UserError, match=r"does not fit task toy: it gives numbers from .*, a squared error of .* mean h"
    ):
        prepare(labels)
    settings = replace(SETTINGS, max_epochs=None, max_steps=1)
    assert prepare(labels, finetune=settings).origin == "fine-tuned"


def test_a_head_that_the_numbers_do_not_come_from_is_restored(
    regressor: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, numbers: np.ndarray, tmp_path: Path
) -> None:
    model = copy.deepcopy(regressor)
    model.register_forward_hook(lambda module, inputs, output: replace(output, logits=output.logits.exp()))
    rows = (TEXTS, (100 * np.exp(numbers)).astype(np.float32).tolist())
    task = Regression(name="toy", text="text", max_length=64, train=rows, dev=rows)
    data = task.read(tmp_path)
    train = task.encode(data, tokenizer, None)["train"]
    start = Start(model, tokenizer, fits=True)
    start, rescaling = fit_scale(start, task, data.scoring, train, torch.device("cpu"))
    assert rescaling is None
    assert not start.fits
    assert "and has no last linear layer to rescale" in start.reason
    torch.testing.assert_close(start.model.classifier.weight, regressor.classifier.weight)


def test_a_head_without_a_bias_cannot_be_shifted(regressor: PreTrainedModel) -> None:
    model = BertForSequenceClassification(regressor.config)
    model.classifier.bias = None
    before = model.classifier.weight.clone()
    assert not rescale_head(model, 2.0, 1.0)
    assert torch.equal(model.classifier.weight, before)
