"""Recipes of quantization, the formats of a bundle, and the settings of an export.

The formats of a bundle: all but float32 and int8 are written from the float32 file, without a choice of recipes.
OpenVINO runs on x86 and ARM processors, and computes in bf16 where the processor can.
"""

import contextlib
import functools
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass as checked_dataclass

from distill.core.console import logging_only_errors
from distill.core.errors import OptionError, UserError, install_command
from distill.core.files import detecting_full_disk
from distill.core.options import STRICT, Dimensions, raise_option_errors, show_value
from distill.edge.bundle_files import (
    Target,
    encoder_file,
    import_openvino,
    list_model_files,
    this_target,
    without_telemetry,
)
from distill.edge.patterns import Pattern
from distill.edge.text_decoders import open_model
from distill.export import graph

Feed = dict[str, np.ndarray]
QUANTILE = 0.95  # Of the channels of an activation: no channel is larger after the smoothing.
ROOT = None  # Logger of the quantizers' advice to preprocess the graph, which changes nothing here.
BLOCK = 128  # Weights that share a scale, where activations stay in float.


@dataclass(frozen=True)
class RecipeInput:
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
        if not names:  # As in an LSTM alone; a run of no outputs would return all of them.
            return {}
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


def write_dynamic(material: RecipeInput, path: Path, *, keep: Sequence[str] = (), smoothed: bool = False) -> None:
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


def write_static(material: RecipeInput, path: Path) -> None:
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


def write_weight_only(material: RecipeInput, path: Path) -> None:
    """Writes int8 weights with a scale for each block; every activation vector has scales of its own."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    model = material.graph()
    graph.quantize_tables(model)
    with logging_only_errors(ROOT):
        quantizer = MatMulNBitsQuantizer(model, bits=8, block_size=BLOCK, is_symmetric=True, accuracy_level=4)
        quantizer.process()
    graph.save(quantizer.model.model, path)


def write_rows(material: RecipeInput, path: Path) -> None:
    """Writes int8 tables of embeddings with a scale for each row; matrices stay in float32.

    A prediction does not depend on the other texts of its batch.
    """
    model = material.graph()
    graph.quantize_tables(model)
    graph.save(model, path)


def write_float16(material: RecipeInput, path: Path) -> None:
    """Writes weights in float16; everything is computed in float32."""
    model = onnx.load(str(material.fp32))  # With a table that embeddings and head share, if they do.
    graph.halve_weights(model)
    graph.save(model, path)


def write_with_encoder(write: Callable[..., None], material: RecipeInput, path: Path, **options: Any) -> None:
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
        with logging_only_errors(ROOT), detecting_full_disk(path.parent):
            yield {"model_input": source, "model_output": path, "use_external_data_format": is_large}
        if is_large:
            quantized = onnx.load(str(path))
            graph.remove_model(path)
            graph.save(quantized, path)
    finally:
        graph.remove_model(source)


def write_openvino(material: RecipeInput, path: Path) -> None:
    """Writes the model for OpenVINO, with weights in float16: `path` and its second file with the weights."""
    openvino = import_openvino(path)
    openvino.save_model(openvino.Core().read_model(str(material.fp32)), str(path), compress_to_fp16=True)


def write_openvino_int8(material: RecipeInput, path: Path) -> None:
    """Writes the model for OpenVINO, with matrices in int8 and a scale for each output channel.

    A processor with dot products of int8 rounds activations as well, those of each token in groups of their own, so
    that a prediction does not depend on the other texts of a batch.
    """
    openvino = import_openvino(path)
    with _quiet_nncf() as nncf:
        compressed = nncf.compress_weights(openvino.Core().read_model(str(material.fp32)))
    openvino.save_model(compressed, str(path), compress_to_fp16=True)


def write_openvino_full(material: RecipeInput, path: Path) -> None:
    """Writes the model for OpenVINO, with the products of matrices and of activations in int8.

    Each activation has one range, which is measured on the calibration text after outliers are moved into the weights
    (arXiv 2211.10438, eq. 4). A prediction does not depend on the other texts of its batch.
    """
    openvino = import_openvino(path)
    model = openvino.Core().read_model(str(material.fp32))
    inputs = {name for value in model.inputs for name in value.names}
    feeds = [{name: values for name, values in feed.items() if name in inputs} for feed in material.feeds()]
    with _quiet_nncf() as nncf:
        overflow = nncf.OverflowFix.ENABLE if material.bits == 7 else nncf.OverflowFix.DISABLE
        quantized = nncf.quantize(
            model, nncf.Dataset(feeds), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(feeds),
            advanced_parameters=nncf.AdvancedQuantizationParameters(overflow_fix=overflow),
        )  # fmt: skip
    openvino.save_model(quantized, str(path), compress_to_fp16=True)


@dataclass(frozen=True)
class Format:
    """A format.

    Attributes:
        file: name in the bundle.
        recipe: number format of the weights, in words; empty for `int8`, whose recipes are `RECIPES`.
        write: writes the file, and a second one if the format has two; None for the float32 file and for `int8`.
        packages: that `write` needs besides those of the extra `train`.
        has_target: whether the file is right on the processors that int8 is written for alone.
    """

    file: str
    recipe: str = ""
    write: Callable[[RecipeInput, Path], None] | None = None
    packages: tuple[str, ...] = ()
    has_target: bool = False


FLOAT32, INT8 = "fp32", "int8"
FORMATS: dict[str, Format] = {
    FLOAT32: Format("model.onnx", "float32"),
    INT8: Format("model.int8.onnx"),
    # The recipe of the same words writes it too, if no int8 file passes.
    "fp16": Format("model.fp16.onnx", RECIPES["float16"].words, write_float16),
    "openvino": Format("model.openvino.xml", "OpenVINO in bf16, weights in float16", write_openvino, ("openvino",)),
    "openvino-int8": Format(
        "model.openvino-int8.xml", "OpenVINO in bf16, weights in int8", write_openvino_int8, ("openvino", "nncf")
    ),
    "openvino-full": Format(
        "model.openvino-full.xml", "OpenVINO in static int8, weights and activations", write_openvino_full,
        ("openvino", "nncf"), has_target=True,
    ),
}  # fmt: skip


def check_formats(formats: Iterable[str]) -> None:
    """Raises UserError for a format whose packages are not installed."""
    for name in formats:
        needed = FORMATS[name].packages
        missing = [package for package in needed if find_spec(package) is None]
        if missing:
            raise UserError(
                f"export.formats has {name}, which needs {' and '.join(missing)}: {install_command('openvino')}, or "
                f"leave out {name}"
            )


@contextlib.contextmanager
def _quiet_nncf() -> Iterator[Any]:
    """Yields nncf without its telemetry, and silences its tables, its progress bar and its log."""
    with without_telemetry():
        import nncf
    with logging_only_errors("nncf"), contextlib.redirect_stdout(io.StringIO()):
        yield nncf


Share = Annotated[float, Field(ge=0, le=1)]
DEFAULT_RECIPES = tuple(name for name, recipe in RECIPES.items() if recipe.by_default)
if TYPE_CHECKING:
    RecipeName = str
    FormatName = str
else:
    RecipeName = Literal[*RECIPES]
    FormatName = Literal[*FORMATS]


@raise_option_errors
@checked_dataclass(frozen=True, config=STRICT)
class ExportSettings:
    """Settings of an export, the keys of `conf/export`.

    Args:
        enabled: whether the trained model is exported; `auto` for a student, and not for a language model without a
            teacher.
        max_drop: largest drop of the task's metric on dev with which an exported file passes; a share of the metric
            where less of it is better.
        min_agreement: smallest share of the items on which an int8 file and the torch model predict alike.
        max_probability_diff: largest difference of a probability of an int8 file; of numbers, a share of their range.
        max_ece_rise: largest increase of the expected calibration error of an int8 file.
        min_type_recall: smallest recall of each type of entity on dev as a share of the teacher's, or of the torch
            model's where that has less than this share itself; None for no limit.
        formats: files of the bundle. `fp32` is one of them, because the others are made from it.
        recipes: recipes of quantization for `int8`, in the order in which they are tried until one passes.
        search_evaluations: evaluations of the student with which `mixed` looks for the matrices that stay in float.
        calibration: training texts on which ranges of activations are measured; None for as many as 256.
        qat_epochs: epochs of quantization-aware distillation in the recipe `qat`; 0 leaves it out.
        target: processors that int8 files are written for; `auto` for the one of this machine. The first one counts.
        vocabulary: `full`, or `task` to drop the rows of the embedding that the task's texts do not need; `trained`
            drops them before the training, so that teacher and student read the pieces of the file.
        vocabulary_texts: files or directories with texts, such as those of other languages, whose pieces stay too.
        max_batch_diff: largest difference of a probability between a text alone and in a batch with others; above it
            the bundle recommends to run texts one by one.
        model2vec: whether a static student's vectors are also written as a directory of model2vec.
        layout: `bundle`, or `hub` for a directory of the student of vectors with `onnx/model.onnx` and
            `onnx/model_quantized.onnx` too, where sentence-transformers, Optimum and transformers.js look for them.
        dimensions: numbers of first dimensions, increasing, with which the vectors of texts are scored and gated too.
        max_vector_drop: largest drop of the task's metric on dev with which fewer dimensions, and the int8 and binary
            vectors of an index, pass.
        abstain: share of dev with the lowest confidence on which an exported file gives no label; None for none.
        patterns: types of entities that regular expressions find beside a tagger, as `Pattern.create` reads each.
    """

    enabled: Literal["auto"] | bool = "auto"
    max_drop: NonNegativeFloat = 0.01
    min_agreement: Share = 0.97
    max_probability_diff: Share = 0.3
    max_ece_rise: Share = 0.02
    min_type_recall: Share | None = 0.95
    formats: Annotated[tuple[FormatName, ...], Field(strict=False)] = ("fp32", "int8")
    recipes: Annotated[tuple[RecipeName, ...], Field(strict=False, min_length=1)] = DEFAULT_RECIPES
    search_evaluations: PositiveInt = 40
    calibration: PositiveInt | None = None
    qat_epochs: NonNegativeInt = 1
    target: Literal["auto"] | Target | Annotated[tuple[Target, ...], Field(strict=False, min_length=1)] = "auto"
    vocabulary: Literal["full", "task", "trained"] = "full"
    vocabulary_texts: Annotated[tuple[str, ...], Field(strict=False)] = ()
    max_batch_diff: Share = 0.1
    model2vec: bool = False
    layout: Literal["bundle", "hub"] = "bundle"
    dimensions: Dimensions = ()
    max_vector_drop: NonNegativeFloat = 0.03
    abstain: Annotated[float, Field(gt=0, lt=1)] | None = None
    patterns: Annotated[Mapping[str, Any] | None, Field(description="a mapping of types to patterns, or null")] = None

    def __post_init__(self) -> None:
        if FLOAT32 not in self.formats:
            complete = f"[{','.join((FLOAT32, *self.formats))}]"
            raise OptionError(
                "formats", f"[{','.join(self.formats)}]", f"{FLOAT32} too, from which others are made: {complete}"
            )
        if self.vocabulary_texts and self.vocabulary == "full":
            raise OptionError(
                "vocabulary_texts", show_value(self.vocabulary_texts), "[], because vocabulary=full keeps every piece"
            )

        self.describe_patterns()

    def describe_patterns(self) -> dict[str, list[dict[str, str | None]]]:
        """Returns the `patterns` of a decoding, if there are any; raises UserError for one that cannot be."""
        patterns = []
        for name, value in (self.patterns or {}).items():
            try:
                patterns.append(Pattern.create(name, value).describe())
            except UserError as error:
                raise UserError(f"got export.patterns.{name}={show_value(value)}: {error}") from error
        return {"patterns": patterns} if patterns else {}

    def cut_at_export(self) -> "ExportSettings":
        """Returns the settings of an export that cuts the vocabulary, for a student that has not been trained."""
        return replace(self, vocabulary="task") if self.vocabulary == "trained" else self

    def targets(self) -> tuple[str, ...]:
        """Returns the processors that int8 files are written for, each once."""
        if isinstance(self.target, str):
            return (this_target() if self.target == "auto" else self.target,)
        return tuple(dict.fromkeys(self.target))
