"""Tests of the comparison of teacher and student."""

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.benchmark import comparison, latency
from distill.benchmark.settings import BenchmarkSettings


@pytest.mark.parametrize(("p90_ms", "is_noisy"), [(1.9, False), (3.0, True)])
def test_timings_of_a_busy_machine_come_with_a_notice(
    p90_ms: float,
    is_noisy: bool,
    teacher: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [{"p50_ms": 1.0, "p90_ms": 1.0}, {"p50_ms": 1.0, "p90_ms": p90_ms}]
    monkeypatch.setattr(latency, "measure_latency", lambda *arguments, **options: rows)
    settings = BenchmarkSettings(batches=[1], lengths=[8])
    assert comparison.compare_models({"teacher": (teacher, {})}, tokenizer=tokenizer, settings=settings) == rows
    assert ("the machine was busy" in capsys.readouterr().out) == is_noisy
