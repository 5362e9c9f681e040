"""Tests of teacher.precision=auto: the probe, its choice, the key of the outputs, and what it is refused for."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.core.contracts import Examples
from distill.kinds import Classification
from distill.teachers import stages
from distill.teachers.stages import choose_precision, measure_error
from tests.jobs.conftest import Command, command
from tests.jobs.test_run import TEACHER

assert command
CPU = torch.device("cpu")


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


@pytest.mark.parametrize(
    ("has_bf16", "error", "expected", "reason"),
    [
        (False, None, "float32", "this cpu does not compute bfloat16 in hardware"),
        (True, 0.0123, "bfloat16", "its outputs differ by 1.23% from float32, at most 2% may"),
        (True, 0.0201, "float32", "in bfloat16 its outputs differ by 2.01% from float32, at most 2% may"),
        (True, float("nan"), "float32", "in bfloat16 its outputs differ by nan% from float32, at most 2% may"),
    ],
)
def test_bfloat16_is_chosen_where_hardware_computes_it_and_outputs_hardly_differ(
    has_bf16: bool, error: float | None, expected: str, reason: str, teacher: PreTrainedModel, task: Classification,
    dev: Examples, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(stages, "has_bf16", lambda device: has_bf16)
    if error is not None:
        monkeypatch.setattr(stages, "measure_error", lambda *arguments: error)
    assert choose_precision(teacher, task, dev, CPU) == (expected, reason)


def test_the_choice_is_in_the_plan_in_the_record_and_in_the_key_of_the_outputs(
    command: Command, encoder_dir: Path, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def distill(chosen: str) -> tuple[str, str]:
        code, text, error = command(
            "+teacher=pretrained", f"teacher.path={encoder_dir}", "+student=distilbert", "task=sst2",
            f"task.data_dir={data_dir}", "task.max_length=32", *TEACHER, "teacher.accept_weak=true",
            f"teacher.precision={chosen}", "trainer.max_steps=1", "export.enabled=false", "benchmark.enabled=false",
            "baseline=false", f"cache_dir={tmp_path / 'cache'}", f"output_dir={tmp_path / 'runs'}",
        )  # fmt: skip
        assert code == 0, error
        newest = max((tmp_path / "runs").rglob("run.json"), key=lambda path: path.stat().st_mtime_ns)
        return " ".join(text.split()), json.loads(newest.read_text())["teacher"]["precision"]

    line = "teacher.precision "
    monkeypatch.setattr(stages, "has_bf16", lambda device: True)
    text, chosen = distill("auto")
    assert (chosen, text.count(f"{line}bfloat16: its outputs differ by ")) == ("bfloat16", 1)
    text, chosen = distill("bfloat16")
    assert (chosen, "computes the outputs" in text, line in text) == ("bfloat16", False, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("+teacher=zero_shot", "teacher.labels=[bad,good]", "+student=distilbert"),
            "got teacher.precision=auto, expected float32 or bfloat16, because auto compares the logits of a teacher "
            "with a head of its own",
        ),
        (
            ("+teacher=pretrained", "+student=distilbert", "teacher.features=last"),
            "got teacher.precision=auto, expected float32 or bfloat16, because auto compares the logits of a teacher "
            "with a head of its own",
        ),
        (
            ("+teacher=pretrained", "+student=distilbert", "student.init=general", "student.general.corpus=texts.txt"),
            "got teacher.precision=auto, expected float32 or bfloat16 with student.init=general",
        ),
    ],
)
def test_auto_is_refused_where_no_head_can_be_probed(
    options: tuple[str, ...], message: str, command: Command, encoder_dir: Path, data_dir: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("a film\n" * 64)
    code, _, error = command(
        *options, f"teacher.path={encoder_dir}", "task=sst2", f"task.data_dir={data_dir}", "teacher.precision=auto",
        f"cache_dir={tmp_path / 'cache'}", f"output_dir={tmp_path / 'runs'}",
    )  # fmt: skip
    assert (code, message in error) == (2, True), error
