"""Tests of the benchmark of bundles: operations by hand and the rows that there are."""

from pathlib import Path

import numpy as np
import pytest

from distill.core.errors import UserError
from distill.export import bundle_benchmark
from distill.export.bundle_benchmark import MeasuredBundle, list_formats, measure_bundles
from distill.export.latency import BenchmarkSettings
from tests.edge.conftest import Output, Patch, Write, save_graph

QUICK = BenchmarkSettings(batches=[1, 3], lengths=[4, 8, 64], seconds=0.001)


def write_products(path: Path) -> None:
    """Writes a product of 5 -> 6, and an LSTM of one direction, 5 -> 3."""
    random, shapes = np.random.default_rng(0), {"matrix": (5, 6), "w": (1, 12, 5), "r": (1, 12, 3)}
    graph = """products (float[length, batch, 5] x)
        => (float[length, batch, 6] logits, float[length, 1, batch, 3] states) {
        logits = MatMul(x, matrix)
        states = LSTM<hidden_size = 3>(x, w, r)
    }"""
    save_graph(path, graph, {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()})


def test_operations_are_those_of_products_and_recurrent_layers(tmp_path: Path) -> None:
    write_products(tmp_path / "model.onnx")
    feed = {"x": np.zeros((7, 2, 5), dtype=np.float32)}
    product, recurrent = 7 * 2 * 5 * 6, 7 * 2 * 4 * 3 * (5 + 3)
    assert bundle_benchmark.count_operations(tmp_path / "model.onnx", feed) == 2 * (product + recurrent)
    peaks = {"fp32": 1e9, "int8": 4e9}
    assert bundle_benchmark.share_of_peak(2_000_000, 0.01, peaks, "onnx-fp32") == pytest.approx(0.2)
    assert bundle_benchmark.share_of_peak(2_000_000, 0.01, peaks, "onnx-int8-avx2") == pytest.approx(0.05)


def test_the_peak_is_measured_in_both_formats(monkeypatch: Patch) -> None:
    monkeypatch.setattr(bundle_benchmark, "SIZES", ((8, 16, 24), (4, 4, 4)))
    assert set(bundle_benchmark.measure_peak(1)) == {"fp32", "int8"}
    monkeypatch.setattr(bundle_benchmark, "_time_product", lambda kind, size, threads: 0.5 if kind == "fp32" else 0.25)
    assert bundle_benchmark.measure_peak(1) == {"fp32": 2 * 8 * 16 * 24 / 0.5, "int8": 2 * 8 * 16 * 24 / 0.25}


def test_every_file_is_measured_at_every_size_and_on_texts(write: Write, monkeypatch: Patch, capsys: Output) -> None:
    monkeypatch.setattr(bundle_benchmark, "SIZES", ((8, 16, 24),))
    monkeypatch.setattr("distill.export.latency.PAUSE_SECONDS", 0.0)
    teacher = {"name": "large", "metrics": {"accuracy": 0.9}}
    directory = write(task="films", metrics={"fp32": {"accuracy": 0.5}}, teacher=teacher)
    bundle = MeasuredBundle("toy", directory, ["fp32"], ["film", "a dull film", "a film", "a moving film"])
    result = measure_bundles([bundle], QUICK, threads=[1, 2])
    assert [row["threads"] for row in result["peak"]] == [1, 2]
    keys = [(row["threads"], row["batch"], row["length"]) for row in result["timings"]]
    assert keys == [(threads, batch, length) for threads in (1, 2) for batch in (1, 3) for length in (4, 8)]
    assert all(row["share_of_peak"] == 0.0 for row in result["timings"])  # The toy has no product.
    output = " ".join(capsys.readouterr().out.split())
    assert "timed at length 4, 8 only: a bundle reads 8 tokens at most" in output
    assert [(row["threads"], row["batch"]) for row in result["texts"]] == [(1, 1), (1, 3), (2, 1), (2, 3)]
    for row in result["texts"]:
        assert min(row["tokenize_p50_ms"], row["model_p50_ms"]) > 0
        assert row["p50_ms"] <= row["p90_ms"] <= row["p99_ms"]
        assert row["mean_length"] == {1: 4.25, 3: 4.0}[row["batch"]]  # With both special tokens.
        assert row["runs"] >= 3
    for threads in (1, 2):
        assert output.count(f"Threads: {threads} for each of onnxruntime") == 1
    [described] = result["bundles"]
    file = described["models"]["fp32"]
    assert (described["task"], described["teacher"], file["metrics"]) == ("films", teacher, {"accuracy": 0.5})
    start = file["start"]
    assert start["total_s"] > start["import_s"] + start["load_s"] + start["first_answer_s"] > 0
    assert start["peak_bytes"] is None or 20e6 < start["peak_bytes"] < 400e6  # Without torch.


def test_bundles_that_cannot_be_measured_together_are_refused(write: Write, monkeypatch: Patch) -> None:
    monkeypatch.setattr(bundle_benchmark, "SIZES", ((8, 16, 24),))
    bundles = [MeasuredBundle(toy, write(toy, name=toy), ["fp32"]) for toy in ("classes", "choices")]
    with pytest.raises(UserError, match="classes and choices have inputs of different forms, with choices and without"):
        measure_bundles(bundles, QUICK, threads=[1])
    with pytest.raises(UserError, match="classes has fp32 for this processor, and none of int8, fp16"):
        list_formats(write(name="classes"), ["int8", "fp16"])
    assert list_formats(write(name="classes"), None) == ["fp32"]
