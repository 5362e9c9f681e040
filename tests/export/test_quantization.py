"""Tests of the recipes of quantization on graphs whose answers are known."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from distill.core import files
from distill.edge.bundle_files import session
from distill.export import graph, quantization
from distill.export.quantization import Feed, RecipeInput, write_dynamic, write_float16, write_static, write_weight_only
from tests.edge.conftest import Patch, save_graph

WIDTH = 32
OUTLIER = 3  # The channel whose activations are a hundred times as large as the others.


@pytest.fixture
def fp32(tmp_path: Path) -> Path:
    """A table of 2,000 rows, a Gemm with a transposed matrix, and a product with another one."""
    random = np.random.default_rng(0)
    table = random.normal(size=(2000, WIDTH)).astype(np.float32) * np.linspace(0.01, 1, 2000, dtype=np.float32)[:, None]
    table[:, OUTLIER] *= 100
    constants = {
        name: random.normal(size=size).astype(np.float32)
        for name, size in (("first", (WIDTH, WIDTH)), ("bias", WIDTH), ("second", (WIDTH, 2)))
    } | {"table": table}
    graph = """toy (int64[batch, length] input_ids) => (float[batch, 2] logits) <int64[1] axis = {1}> {
        [lookup] rows = Gather(table, input_ids)
        mean = ReduceMean<keepdims = 0>(rows, axis)
        [gemm] hidden = Gemm<transB = 1, alpha = 1.0, beta = 1.0>(mean, first, bias)
        [product] logits = MatMul(hidden, second)
    }"""
    save_graph(tmp_path / "model.onnx", graph, constants)
    return tmp_path / "model.onnx"


def ids(batch: int = 8) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 2000, (batch, 5))


def feeds() -> Iterator[Feed]:
    yield {"input_ids": ids(64)}


def logits_of(path: Path, batch: int = 8) -> np.ndarray:
    return np.asarray(session(path).run(["logits"], {"input_ids": ids(batch)})[0])


def test_a_loaded_graph_has_one_form_of_products_and_the_same_answers(fp32: Path, tmp_path: Path) -> None:
    model = graph.load(fp32)
    assert [product.name for product in graph.find_products(model)] == ["gemm", "product"]
    assert not [node for node in model.graph.node if node.op_type == "Gemm"]
    graph.save(model, tmp_path / "loaded.onnx")
    np.testing.assert_allclose(logits_of(tmp_path / "loaded.onnx"), logits_of(fp32), rtol=1e-5, atol=1e-5)


def test_rows_of_a_table_have_scales_of_their_own(fp32: Path) -> None:
    model = graph.load(fp32)
    table = numpy_helper.to_array(graph.constants(model)["table"]).copy()
    table[7] = 0
    graph.constants(model)["table"].CopyFrom(numpy_helper.from_array(table, "table"))
    graph.quantize_tables(model)
    known = graph.constants(model)
    assert "table" not in known
    assert not numpy_helper.to_array(known["table_int8"])[7].any()
    restored = numpy_helper.to_array(known["table_int8"]) * numpy_helper.to_array(known["table_scale"])
    largest = np.abs(table).max(axis=1, keepdims=True)
    assert (np.abs(restored - table) <= largest / 254 + 1e-6).all()


def test_a_small_table_and_one_that_other_nodes_read_stay_in_float(fp32: Path, monkeypatch: Patch) -> None:
    model = graph.load(fp32)
    model.graph.node.append(helper.make_node("Identity", ["table"], ["copy"]))
    graph.quantize_tables(model)
    assert "table" in graph.constants(model)
    monkeypatch.setattr(graph, "LARGE_TABLE", 10**6)
    model = graph.load(fp32)
    graph.quantize_tables(model)
    assert "table" in graph.constants(model)


def test_smoothing_changes_no_answer_and_no_channel_exceeds_the_quantile(fp32: Path, tmp_path: Path) -> None:
    table = numpy_helper.to_array(graph.constants(graph.load(fp32))["table"])
    halves = [{"input_ids": half} for half in np.split(ids(64), 2)]
    material = RecipeInput(fp32, 8, lambda: halves)
    largest = material.largest["mean"]  # Of all batches.
    np.testing.assert_allclose(largest, np.abs(table[ids(64)].mean(axis=1)).max(axis=0), rtol=1e-5)
    assert largest.argmax() == OUTLIER
    model = material.graph()
    graph.smooth(model, material.largest, 0.9)
    graph.save(model, tmp_path / "smooth.onnx")
    np.testing.assert_allclose(logits_of(tmp_path / "smooth.onnx"), logits_of(fp32), rtol=1e-4, atol=1e-4)
    smoothed = RecipeInput(tmp_path / "smooth.onnx", 8, feeds).largest["mean_smoothed"]
    assert smoothed.max() <= np.quantile(largest, 0.9) * 1.0001


def test_smoothing_leaves_a_matrix_that_several_inputs_share_one_matrix(fp32: Path, tmp_path: Path) -> None:
    model = onnx.load(str(fp32))
    square = np.random.default_rng(3).normal(size=(WIDTH, WIDTH)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(square, "square"))
    calls = [
        helper.make_node("MatMul", [source, "square"], [output], name=output)
        for source, output in (("mean", "once"), ("once", "twice"))
    ]
    model.graph.node[2].input[0] = "twice"
    for place, node in enumerate(calls, start=2):
        model.graph.node.insert(place, node)
    onnx.save(model, str(tmp_path / "shared.onnx"))
    material = RecipeInput(tmp_path / "shared.onnx", 8, feeds)
    smoothed = material.graph()
    graph.smooth(smoothed, material.largest, 0.9)
    graph.save(smoothed, tmp_path / "smooth.onnx")
    expected = logits_of(tmp_path / "shared.onnx")
    np.testing.assert_allclose(logits_of(tmp_path / "smooth.onnx"), expected, rtol=1e-4, atol=1e-4 * np.ptp(expected))
    known = graph.constants(smoothed)
    read = [node.input[1] for node in smoothed.graph.node if node.name in ("once", "twice")]
    assert read == ["square_smoothed"] * 2
    assert "square" not in known
    write_dynamic(material, tmp_path / "int8.onnx", smoothed=True)
    tensors = onnx.load(str(tmp_path / "int8.onnx")).graph.initializer
    assert sum(list(tensor.dims) == [WIDTH, WIDTH] for tensor in tensors) == 2  # This one, and that of `gemm`.


def test_a_kept_matrix_stays_in_float(fp32: Path, tmp_path: Path) -> None:
    def integer_products(keep: list[str]) -> int:
        write_dynamic(RecipeInput(fp32, 8, feeds), tmp_path / "int8.onnx", keep=keep)
        return sum(node.op_type == "MatMulInteger" for node in onnx.load(str(tmp_path / "int8.onnx")).graph.node)

    assert [integer_products(keep) for keep in ([], ["gemm"], ["gemm", "product"])] == [2, 1, 0]


@pytest.mark.parametrize("recipe", [write_dynamic, write_static, write_weight_only, write_float16])
def test_every_recipe_is_near_float_and_leaves_one_file(fp32: Path, tmp_path: Path, recipe: Any) -> None:
    recipe(RecipeInput(fp32, 8, feeds), tmp_path / "small.onnx")
    expected = logits_of(fp32)
    assert np.abs(logits_of(tmp_path / "small.onnx") - expected).max() < 0.05 * np.ptp(expected)
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx", "small.onnx"}
    assert (tmp_path / "small.onnx").stat().st_size < 0.6 * fp32.stat().st_size
    if recipe is write_static:  # Its answers do not depend on the batch.
        run = session(tmp_path / "small.onnx")
        together = run.run(["logits"], {"input_ids": ids()})[0]
        alone = np.concatenate([run.run(["logits"], {"input_ids": ids()[[row]]})[0] for row in range(8)])
        np.testing.assert_allclose(together, alone, atol=1e-6)
        types = {node.op_type for node in onnx.load(str(tmp_path / "small.onnx")).graph.node}
        assert {"QuantizeLinear", "DequantizeLinear"} <= types


def test_float16_leaves_what_it_cannot_hold(tmp_path: Path, fp32: Path) -> None:
    model = graph.load(fp32)
    large = np.full((WIDTH, 2), 1e5, dtype=np.float32)
    graph.constants(model)["second"].CopyFrom(numpy_helper.from_array(large, "second"))
    graph.halve_weights(model)
    known = graph.constants(model)
    assert known["second"].data_type == TensorProto.FLOAT
    assert known["table_half"].data_type == TensorProto.FLOAT16


def test_the_weights_of_an_lstm_are_quantized(tmp_path: Path) -> None:
    """The exporter leaves them behind other nodes, which are computed first."""
    random = np.random.default_rng(0)
    weights = {name: random.normal(size=(4 * WIDTH, WIDTH)).astype(np.float32) for name in ("w", "r")}
    graph = f"""toy (float[length, batch, {WIDTH}] x) => (float[length, 1, batch, {WIDTH}] y) <int64[1] zero = {{0}}> {{
        w3 = Unsqueeze(w, zero)
        r3 = Unsqueeze(r, zero)
        [lstm] y = LSTM<hidden_size = {WIDTH}>(x, w3, r3)
    }}"""
    path = tmp_path / "lstm.onnx"
    save_graph(path, graph, weights)
    write_dynamic(RecipeInput(path, 8), tmp_path / "int8.onnx")
    assert "DynamicQuantizeLSTM" in {node.op_type for node in onnx.load(str(tmp_path / "int8.onnx")).graph.node}
    feed = {"x": random.normal(size=(5, 2, WIDTH)).astype(np.float32)}
    expected, actual = (session(file).run(["y"], feed)[0] for file in (path, tmp_path / "int8.onnx"))
    assert 0 < np.abs(expected - actual).max() < 0.1


def test_a_quantizer_that_fails_on_a_full_disk_says_so(fp32: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    """The disk has room again when the files that the quantizer made are removed."""
    usage = shutil.disk_usage(tmp_path)

    def fail(**options: object) -> None:
        raise ValueError("Error parsing message with type 'onnx.ModelProto': Wire format was corrupt")

    monkeypatch.setattr(quantization, "quantize_static", fail)
    monkeypatch.setattr(
        files.shutil, "disk_usage", lambda path: usage._replace(free=0 if list(tmp_path.glob("*.source")) else 10**9)
    )
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_static(RecipeInput(fp32, 8, feeds), tmp_path / "int8.onnx")
    assert files.is_full_disk(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
