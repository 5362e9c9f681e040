"""The closing table and the documents say what run.json holds, and no more."""

from typing import Any

import pytest

from distill.records import report


def record(**changes: Any) -> dict[str, Any]:
    def timed(model: str, format: str, p50: float, length: int, size: int) -> dict[str, Any]:
        times = {"p50_ms": p50, "p90_ms": 2 * p50, "p99_ms": 3 * p50}
        return {
            "model": model,
            "format": format,
            "batch": 1,
            "length": length,
            "threads": 2,
            "runs": 9,
            "bytes": size,
            **times,
        }

    def exported(file: str, size: int, accuracy: float, gate: str) -> dict[str, Any]:
        return {
            "file": file, "bytes": size, "max_abs_diff": 0.001, "agreement": 1.0, "metrics": {"accuracy": accuracy},
            "drop": 0.9 - accuracy, "gate": gate, "recipe": "a recipe",
        }  # fmt: skip

    content: dict[str, Any] = {
        "task": {
            "name": "toy", "answer": "classes", "pair": False, "metric": "accuracy",
            "examples": {"train": 64, "dev": 24},
        },
        "objective": {"name": "hinton", "terms": {"soft": {"weight": 0.5}, "hard": {"weight": 0.5}}},
        "teacher": {
            "requested": "big", "resolved": "big", "substituted": False, "parameters": 20_000_000,
            "metrics": {"accuracy": 0.9},
        },
        "student": {"name": "small", "parameters": 10_000_000, "metrics": {"accuracy": 0.9}},
        "baseline": None,
        "training": {"steps": 8, "seconds": 1.0, "precision": "32-true", "examples_per_second": 64.0, "padding": 0.1,
                     "teacher_seconds": 0.0, "teacher_cache": None},
        "export": {
            "fp32": exported("model.onnx", 40_000_000, 0.9, "passed"),
            "int8": exported("model.int8.onnx", 10_000_000, 0.81, "failed"),
        },
        "benchmark": [
            timed("teacher", "torch", 99.0, 128, 80_000_000),
            timed("teacher", "torch", 20.0, 32, 80_000_000),
            timed("teacher", "onnx-fp32", 16.0, 32, 80_100_000),
            timed("student", "onnx-fp32", 8.0, 32, 40_000_000),
            timed("student", "onnx-int8", 2.5, 32, 10_000_000),
        ],
        "environment": {
            "cpu": "a processor", "isa": ["AVX2"], "cores": 2, "torch": "2", "transformers": "5", "onnxruntime": "1",
            "python": "3",
        },
    }  # fmt: skip
    return content | changes


def test_the_closing_table_is_the_record() -> None:
    assert report.summary_rows(record()) == [
        ("teacher (torch)", "20.0 M", "0.9000", "100.0%", "80.1 MB", "20.00 ms", "1.0x"),
        ("student fp32", "10.0 M", "0.9000", "100.0%", "40.0 MB", "8.00 ms", "2.5x"),
        ("student int8 (gate failed)", "10.0 M", "0.8100", "90.0%", "10.0 MB", "2.50 ms", "8.0x"),
    ]


def test_a_baseline_has_a_row_of_its_own() -> None:
    rows = report.summary_rows(record(baseline={"metrics": {"accuracy": 0.45}}))
    assert rows[-1] == ("baseline, no teacher (torch)", "10.0 M", "0.4500", "50.0%", "-", "-", "-")


@pytest.mark.parametrize("metric", [0.0, -0.1])
def test_a_teacher_at_zero_or_below_gives_no_shares(metric: float) -> None:
    teacher = record()["teacher"] | {"metrics": {"accuracy": metric}}
    assert {row[3] for row in report.summary_rows(record(teacher=teacher))} == {"-"}


def test_without_a_benchmark_there_are_no_times() -> None:
    content = record(benchmark=[])
    assert {row[5:] for row in report.summary_rows(content)} == {("-", "-")}
    assert "No times were taken." in report.markdown(content)


def test_documents_name_the_teacher_that_really_taught() -> None:
    teacher = record()["teacher"] | {"requested": "bert_base", "resolved": "embedded", "substituted": True}
    content = record(teacher=teacher)
    for text in (report.markdown(content), report.model_card(content, ["no", "yes"])):
        assert "weights of bert_base could not be had" in text
        assert "embedded taught instead" in text
    assert "could not be had" not in report.markdown(record())


def test_the_metrics_of_other_splits_have_a_table_of_their_own() -> None:
    assert "## All metrics" not in report.markdown(record())
    several = record()
    for metrics in (several["teacher"]["metrics"], several["student"]["metrics"]):
        metrics["test/accuracy"] = 0.8
    for exported in several["export"].values():
        exported["metrics"]["test/accuracy"] = 0.7
    text = report.markdown(several)
    assert "|  | accuracy | test/accuracy |" in text
    assert "| teacher (torch) | 0.9000 | 0.8000 |" in text
    assert f"| student int8 | {several['export']['int8']['metrics']['accuracy']:.4f} | 0.7000 |" in text


def test_a_card_says_what_a_regression_predicts() -> None:
    number = record()
    number["task"]["answer"] = "number"
    assert "Predicts a number: score." in report.model_card(number, ["score"])


@pytest.mark.parametrize(
    ("seconds", "cache", "expected"),
    [
        (12.4, None, "The teacher was asked in every step: 12 s of it."),
        (0.0, None, "No teacher was asked."),
        (12.4, {"hit": False, "bytes": 64_000}, "The teacher was asked once, 12 s: its outputs are kept (0.1 MB)."),
        (0.0, {"hit": True, "bytes": 64_000}, "The teacher was not asked: its outputs are kept (0.1 MB)."),
    ],
)
def test_the_report_says_what_the_teacher_cost(seconds: float, cache: dict[str, Any] | None, expected: str) -> None:
    told = record()
    told["training"] |= {"teacher_seconds": seconds, "teacher_cache": cache}
    assert f"padding. {expected}" in report.markdown(told)
