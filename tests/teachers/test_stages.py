"""Tests of what is chosen for a teacher before it teaches: its precision, and the scale of its numbers."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distill.builtin.teachers.loaded import Loaded
from transformers import BertForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from distill.core.contracts import Examples
from distill.core.errors import UserError
from distill.kinds import Classification, Regression
from distill.models.loading import Start, rescale_head
from distill.teachers import stages
from distill.teachers.prepared import PreparedTeacher
from distill.teachers.source import TeacherSource
from distill.teachers.stages import choose_precision, fit_scale, measure_error
from distill.training.hyperparameters import TrainerSettings
from tests.conftest import SETTINGS, sentences, toy_bert
from tests.jobs.conftest import Command, command
from tests.teachers.conftest import CPU, WORDS, SaveInference, teacher_options
from tests.teachers.conftest import prepare as prepare_teacher

assert command


@pytest.fixture
def dev(task: Classification, splits: Any, tokenizer: PreTrainedTokenizerBase) -> Examples:
    examples = task.encode(splits, tokenizer, None)["dev"]
    assert isinstance(examples, Examples)
    return examples


def run_in(dtype: torch.dtype, teacher: PreTrainedModel, dev: Examples) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the logits `[n, C]` and the last hidden states `[tokens, H]` of a split."""
    batch = dev[list(range(len(dev)))]
    model, mask = copy.deepcopy(teacher).to(dtype), batch["attention_mask"]
    with torch.inference_mode():
        outputs = model(input_ids=batch["input_ids"], attention_mask=mask, output_hidden_states=True)
    return outputs.logits.double(), outputs.hidden_states[-1][mask.bool()].double()


def test_the_error_is_the_larger_one_of_logits_and_hidden_states(
    teacher: PreTrainedModel, task: Classification, dev: Examples
) -> None:
    pairs = zip(run_in(torch.float32, teacher, dev), run_in(torch.bfloat16, teacher, dev), strict=True)
    errors = [float((low - exact).square().mean().sqrt() / exact.std(correction=0)) for exact, low in pairs]
    assert measure_error(teacher, task, dev, CPU) == pytest.approx(max(errors), rel=0.1)  # Other batches round anew.
    assert 1e-4 < max(errors) < 0.1
    assert {parameter.dtype for parameter in teacher.parameters()} == {torch.float32}


def test_bfloat16_is_chosen_where_hardware_computes_it_and_outputs_hardly_differ(
    teacher: PreTrainedModel, task: Classification, dev: Examples, monkeypatch: pytest.MonkeyPatch
) -> None:
    for has_bf16, error, expected, reason in (
        (False, 0.0, "float32", "this cpu does not compute bfloat16 in hardware"),
        (True, 0.0123, "bfloat16", "its outputs differ by 1.23% from float32, at most 2% may"),
        (True, 0.0201, "float32", "in bfloat16 its outputs differ by 2.01% from float32, at most 2% may"),
        (True, float("nan"), "float32", "in bfloat16 its outputs differ by nan% from float32, at most 2% may"),
    ):
        monkeypatch.setattr(stages, "has_bf16", lambda device, has_bf16=has_bf16: has_bf16)
        monkeypatch.setattr(stages, "measure_error", lambda *arguments, error=error: error)
        assert choose_precision(teacher, task, dev, CPU) == (expected, reason)


def test_the_choice_is_in_the_plan_in_the_record_and_in_the_key_of_the_outputs(
    command: Command, save_inference: SaveInference, films: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = ("+teacher=pretrained", f"teacher.path={save_inference(WORDS)}", "teacher.finetune=false")
    given = [*teacher_options(tmp_path, *teacher), f"task.data_dir={films}", "baseline=false"]

    def distill(chosen: str) -> tuple[str, str]:
        code, text, error = command(*given, f"teacher.precision={chosen}")
        assert code == 0, error
        newest = max((tmp_path / "runs").rglob("run.json"), key=lambda path: path.stat().st_mtime_ns)
        return " ".join(text.split()), json.loads(newest.read_text())["teacher"]["precision"]

    line = "teacher.precision "
    monkeypatch.setattr(stages, "has_bf16", lambda device: True)
    monkeypatch.setattr(stages, "measure_error", lambda *arguments: 0.0123)
    text, chosen = distill("auto")
    assert (chosen, text.count(f"{line}bfloat16: its outputs differ by 1.23%")) == ("bfloat16", 1)
    text, chosen = distill("bfloat16")
    assert (chosen, "computes the outputs" in text, line in text) == ("bfloat16", False, False)


HEADLESS = ", because auto compares the logits of a teacher with a head of its own"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["+teacher=zero_shot", "teacher.labels=[bad,good]"], HEADLESS),
        (["+teacher=pretrained", "teacher.features=last"], HEADLESS),
        (["+teacher=pretrained", "student.init=general", "student.general.corpus=texts.txt"],
         " with student.init=general"),
    ],
)  # fmt: skip
def test_auto_is_refused_where_no_head_can_be_probed(
    options: list[str], message: str, command: Command, encoder_dir: Path, data_dir: Path, tmp_path: Path
) -> None:
    Path("texts.txt").write_text("a film\n" * 64)
    code, _, error = command(
        *options, "+student=distilbert", f"teacher.path={encoder_dir}", "task=sst2", f"task.data_dir={data_dir}",
        "teacher.precision=auto", f"cache_dir={tmp_path / 'cache'}", f"output_dir={tmp_path / 'runs'}",
    )  # fmt: skip
    assert code == 2
    assert f"got teacher.precision=auto, expected float32 or bfloat16{message}" in error


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


def labelled(labels: np.ndarray) -> Regression:
    rows = (TEXTS, labels.astype(np.float32).tolist())
    return Regression(name="toy", text="text", max_length=64, train=rows, dev=rows)


Prepare = Callable[..., PreparedTeacher]


@pytest.fixture
def prepare(regressor: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> Prepare:
    """Prepares the regressor for labels, by default without a fine-tuning."""

    def run(labels: np.ndarray, *, finetune: TrainerSettings | None = None) -> Any:
        source = TeacherSource(weights=Loaded(regressor, tokenizer), finetune=finetune)
        return prepare_teacher(source, labelled(labels), tmp_path)

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


def test_a_teacher_whose_numbers_do_not_explain_the_labels_is_refused_or_fine_tuned(
    prepare: Prepare, numbers: np.ndarray
) -> None:
    message = r"does not fit task toy: it gives numbers from .*, a squared error of .* mean h"
    unrelated = 5 * np.random.default_rng(1).standard_normal(len(numbers)) + 3
    for labels in (unrelated, 3 - 5 * numbers):
        with pytest.raises(UserError, match=message):
            prepare(labels)
    settings = replace(SETTINGS, max_epochs=None, max_steps=1)
    assert prepare(unrelated, finetune=settings).origin == "fine-tuned"


def test_a_head_that_the_numbers_do_not_come_from_is_restored(
    regressor: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, numbers: np.ndarray, tmp_path: Path
) -> None:
    model = copy.deepcopy(regressor)
    model.register_forward_hook(lambda module, inputs, output: replace(output, logits=output.logits.exp()))
    task = labelled(100 * np.exp(numbers))
    data = task.read(tmp_path)
    train = task.encode(data, tokenizer, None)["train"]
    start = Start(model, tokenizer, fits=True)
    start, rescaling = fit_scale(start, task, data.scoring, train, CPU)
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
