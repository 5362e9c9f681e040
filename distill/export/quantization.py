"""Recipes of quantization: each turns a float32 ONNX file into a smaller one."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from distill.edge.model_files import encoder_file, list_model_files
from distill.edge.whole_texts import open_model
from distill.export import graph
from distill.storage.files import detecting_full_disk

Feed = dict[str, np.ndarray]
QUANTILE = 0.95  # Of the channels of an activation: no channel is larger after the smoothing.
BLOCK = 128  # Weights that share a scale, where activations stay in float.


@dataclass(frozen=True)
class Material:
    """The file that is quantized, and what recipes need besides.

    Args:
        fp32: the float32 file.
        bits: of an int8 weight that are used: 8, or 7 for a processor that would saturate on more.
        feeds: returns batches of calibration text, for recipes that measure activations.
        ties: whether a table of embeddings that is the head's matrix too is stored once. A look-up then takes longer,
            which a model that reads one token at a time does not notice.
    """

    fp32: Path
    bits: int
    feeds: Callable[[], Iterable[Feed]] = lambda: ()
    ties: bool = False

    def graph(self) -> onnx.ModelProto:
        """Returns a new copy of the graph, which a recipe may change."""
        return graph.load(self.fp32)

    @cached_property
    def products(self) -> list[str]:
        """The names of the products with a constant matrix."""
        return [product.name for product in graph.find_products(self.graph())]

    @cached_property
    def largest(self) -> Mapping[str, np.ndarray]:
        """The largest absolute value of each channel of the inputs of the products, on the calibration text."""
        model = self.graph()
        names = sorted({product.source for product in graph.find_products(model)})
        model.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
        path = self.fp32.with_suffix(".activations")
        graph.save(model, path)
        largest: dict[str, np.ndarray] = {}
        try:
            run = open_model(path, torch.get_num_threads(), encoder=encoder_file(self.fp32))
            inputs = {value.name for value in run.get_inputs()}
            for feed in self.feeds():
                feed = {name: values for name, values in feed.items() if name in inputs}
                for name, values in zip(names, run.run(names, feed), strict=True):
                    channels = np.abs(values).reshape(-1, values.shape[-1]).max(axis=0)
                    largest[name] = np.maximum(largest.get(name, channels), channels)
        finally:
            graph.remove_model(path)
        return largest


def write_dynamic(material: Material, path: Path, *, keep: Sequence[str] = (), smoothed: bool = False) -> None:
    """Writes int8 weights with a scale for each output channel; activations are quantized while the model runs.

    Args:
        keep: names of the products whose matrices stay in float32.
        smoothed: whether outliers of the activations are moved into the weights first (`graph.smooth`).
    """
    model = material.graph()
    tied = graph.find_tied_tables(model) if material.ties else {}
    if smoothed:
        graph.smooth(model, material.largest, QUANTILE, leave=tied.values())
    graph.quantize_tables(model, leave=tied)
    with _quantizer(model, path) as files:
        quantize_dynamic(
            **files, weight_type=QuantType.QInt8, per_channel=True, reduce_range=material.bits == 7,
            op_types_to_quantize=["MatMul", "LSTM"], nodes_to_exclude=list(keep),
        )  # fmt: skip
    if tied:
        quantized = onnx.load(str(path))
        graph.tie_tables(quantized, tied)
        graph.save(quantized, path)


def write_static(material: Material, path: Path) -> None:
    """Writes int8 weights, and activations whose range was measured on the calibration text.

    An answer does not depend on the other texts of its batch. Products of two activations stay in float32.
    """
    model = material.graph()
    graph.smooth(model, material.largest, QUANTILE)
    graph.quantize_tables(model)
    known = {product.name for product in graph.find_products(model)}
    others = [node.name for node in model.graph.node if node.op_type == "MatMul" and node.name not in known]
    with _quantizer(model, path) as files:
        quantize_static(
            **files, calibration_data_reader=_Reader(material.feeds()), quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["MatMul"], per_channel=True, reduce_range=material.bits == 7,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, nodes_to_exclude=others,
            calibrate_method=CalibrationMethod.MinMax,
        )  # fmt: skip


def write_weight_only(material: Material, path: Path) -> None:
    """Writes int8 weights with a scale for each block; every activation vector has scales of its own."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    model = material.graph()
    graph.quantize_tables(model)
    with graph.quiet_quantizer():
        quantizer = MatMulNBitsQuantizer(model, bits=8, block_size=BLOCK, is_symmetric=True, accuracy_level=4)
        quantizer.process()
    graph.save(quantizer.model.model, path)


def write_rows(material: Material, path: Path) -> None:
    """Writes int8 tables of embeddings with a scale for each row; matrices stay in float32.

    A prediction does not depend on the other texts of its batch.
    """
    model = material.graph()
    graph.quantize_tables(model)
    graph.save(model, path)


def write_float16(material: Material, path: Path) -> None:
    """Writes weights in float16; everything is computed in float32."""
    model = onnx.load(str(material.fp32))  # With a table that embeddings and head share, if they do.
    graph.halve_weights(model)
    graph.save(model, path)


def write_with_encoder(write: Callable[..., None], material: Material, path: Path, **options: Any) -> None:
    """Writes the file of a model and, if it has one, that of its encoder, by the same recipe."""
    write(material, path, **options)
    if (encoder := encoder_file(material.fp32)).is_file():
        write(replace(material, fp32=encoder), encoder_file(path), **options)


@dataclass(frozen=True)
class Recipe:
    """A recipe of quantization.

    Attributes:
        words: the recipe in words.
        write: writes the file; that of a recipe with `keeps_matrices` takes `keep` too.
        format: of the bundle's file.
        keeps_matrices: whether matrices that stay in float32 are searched for.
        retrains: whether the float32 file is that of the student after quantization-aware distillation.
        by_default: whether it is tried unless the options name others.
    """

    words: str
    write: Callable[..., None]
    format: str = "int8"
    keeps_matrices: bool = False
    retrains: bool = False
    by_default: bool = True


_write_smoothed = functools.partial(write_dynamic, smoothed=True)
# In the order in which they are tried until one passes.
RECIPES: dict[str, Recipe] = {
    "smoothed": Recipe("dynamic int8 with smoothed activations", _write_smoothed),
    "dynamic": Recipe("dynamic int8", write_dynamic),
    "mixed": Recipe(
        "dynamic int8 with smoothed activations, {kept} of {products} matrices in float32", _write_smoothed,
        keeps_matrices=True,
    ),
    "static": Recipe("static int8 with smoothed activations", write_static),
    "weight_only": Recipe("weights in int8 blocks of 128", write_weight_only),
    "rows": Recipe("embeddings in int8 rows, matrices in float32", write_rows, by_default=False),
    "float16": Recipe("weights in float16", write_float16, format="fp16"),
    "qat": Recipe(
        "dynamic int8 with smoothed activations after quantization-aware distillation", _write_smoothed, retrains=True
    ),
}  # fmt: skip


class _Reader(CalibrationDataReader):
    """Gives the quantizer one batch at a time."""

    def __init__(self, feeds: Iterable[Feed]) -> None:
        self.feeds = iter(feeds)

    def get_next(self) -> Feed | None:
        return next(self.feeds, None)


@contextlib.contextmanager
def _quantizer(model: onnx.ModelProto, path: Path) -> Iterator[dict[str, Any]]:
    """Yields the arguments of onnxruntime's quantizers that name files, and saves what they wrote as `graph.save`."""
    source = path.with_suffix(".source")
    graph.save(model, source)
    is_large = len(list_model_files(source)) > 1
    try:
        with graph.quiet_quantizer(), detecting_full_disk(path.parent):
            yield {"model_input": source, "model_output": path, "use_external_data_format": is_large}
        if is_large:
            quantized = onnx.load(str(path))
            graph.remove_model(path)
            graph.save(quantized, path)
    finally:
        graph.remove_model(source)
