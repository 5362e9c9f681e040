"""The matrix-product peak of the processor, and the operations of a model, which give its share of the peak."""

import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

SIZES = ((256, 1024, 1024), (1024, 1024, 1024), (1024, 768, 3072))  # Rows, inner, columns of a product.
RUNS = 8
GATES = {"LSTM": 4, "GRU": 3}


def measure_peak(threads: int) -> dict[str, float]:
    """Returns the operations per second of ONNX Runtime's fastest product, in `fp32` and in `int8`."""
    return {
        kind: max(2 * float(np.prod(size)) / _time_product(kind, size, threads) for size in SIZES)
        for kind in ("fp32", "int8")
    }


def _time_product(kind: str, size: tuple[int, int, int], threads: int) -> float:
    """Returns the seconds of the fastest run of a product with a constant matrix, as in a model."""
    rows, inner, columns = size
    random = np.random.default_rng(0)
    if kind == "fp32":
        matrix, input_type, output_type = random.normal(size=(inner, columns)).astype(np.float32), 1, 1
        node, left = helper.make_node("MatMul", ["x", "w"], ["y"]), random.normal(size=(rows, inner)).astype(np.float32)
    else:
        matrix = random.integers(-64, 64, (inner, columns)).astype(np.int8)
        input_type, output_type = TensorProto.UINT8, TensorProto.INT32
        node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
        left = random.integers(0, 255, (rows, inner)).astype(np.uint8)
    graph = helper.make_graph(
        [node], "product", [helper.make_tensor_value_info("x", input_type, [rows, inner])],
        [helper.make_tensor_value_info("y", output_type, [rows, columns])], [onnx.numpy_helper.from_array(matrix, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    seconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        session.run(None, {"x": left})
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def count_operations(path: Path, feed: Mapping[str, np.ndarray]) -> int:
    """Returns the operations of all matrix products of a float32 file, recurrent layers too, for one batch.

    A multiplication and an addition are two. The shapes are those that ONNX Runtime records in a run, so that those of
    attention are counted as well.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as directory:
        options.profile_file_prefix = str(Path(directory) / "profile")
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        session.run(["logits"], dict(feed))
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    shapes = [event["args"] for event in events if event.get("cat") == "Node" and "input_type_shape" in event["args"]]
    return sum(_operations_of(node) for node in shapes)


def _operations_of(node: Mapping[str, Any]) -> int:
    """Returns the operations of a node from the shapes of its inputs and outputs."""
    inputs, outputs = ([next(iter(of.values())) for of in node[f"{end}_type_shape"]] for end in ("input", "output"))
    if node["op_name"] in ("MatMul", "Gemm"):
        return 2 * int(np.prod(outputs[0])) * int(inputs[0][-1])
    if node["op_name"] in GATES:  # [L, B, I] -> [L, directions, B, H]; weights are not recorded.
        (length, batch, width), (_, directions, _, hidden) = inputs[0], outputs[0]
        return int(2 * length * batch * directions * GATES[node["op_name"]] * hidden * (width + hidden))
    return 0


def share_of_peak(operations: int, seconds: float, peak: Mapping[str, float], format: str) -> float:
    """Returns the share of the processor's peak that a file with `operations` in `seconds` reaches."""
    kind = "int8" if "int8" in format else "fp32"
    return operations / seconds / peak[kind]
