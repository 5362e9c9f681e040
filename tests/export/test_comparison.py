"""Tests of the comparison of teacher and student."""

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.export import latency
from distill.export.latency import BenchmarkSettings


@pytest.mark.parametrize("is_noisy", [False, True])
def test_timings_of_a_busy_machine_come_with_a_notice(
    is_noisy: bool,
    teacher: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [{"p50_ms": 1.0, "disturbed": False}, {"p50_ms": 1.0, "disturbed": is_noisy}]
    monkeypatch.setattr(latency, "measure_latency", lambda *arguments, **options: rows)
    settings = BenchmarkSettings(batches=[1], lengths=[8])
    assert latency.compare_models({"teacher": (teacher, {})}, tokenizer=tokenizer, settings=settings) == rows
    assert ("the machine was busy during 1 of 2 timings" in capsys.readouterr().out) == is_noisy
