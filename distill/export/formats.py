"""The formats of a bundle: all but float32 and int8 are written from the float32 file, without a choice of recipes.

OpenVINO runs on x86 and ARM processors, and computes in bf16 where the processor can.
"""

import contextlib
import io
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from distill.edge.openvino_session import import_openvino, without_telemetry
from distill.errors import UserError
from distill.export.quantization import RECIPES, Material, write_float16
from distill.installation import install_command


def write_openvino(material: Material, path: Path) -> None:
    """Writes the model for OpenVINO, with weights in float16: `path` and its second file with the weights."""
    openvino = import_openvino(path)
    openvino.save_model(openvino.Core().read_model(str(material.fp32)), str(path), compress_to_fp16=True)


def write_openvino_int8(material: Material, path: Path) -> None:
    """Writes the model for OpenVINO, with matrices in int8 and a scale for each output channel.

    A processor with dot products of int8 rounds activations as well, those of each token in groups of their own, so
    that a prediction does not depend on the other texts of a batch.
    """
    openvino = import_openvino(path)
    with without_telemetry():
        import nncf
    with _quiet_nncf():
        compressed = nncf.compress_weights(openvino.Core().read_model(str(material.fp32)))
    openvino.save_model(compressed, str(path), compress_to_fp16=True)


def write_openvino_full(material: Material, path: Path) -> None:
    """Writes the model for OpenVINO, with the products of matrices and of activations in int8.

    Each activation has one range, which is measured on the calibration text after outliers are moved into the weights
    (arXiv 2211.10438, eq. 4). A prediction does not depend on the other texts of its batch.
    """
    openvino = import_openvino(path)
    with without_telemetry():
        import nncf
    model = openvino.Core().read_model(str(material.fp32))
    inputs = {name for value in model.inputs for name in value.names}
    feeds = [{name: values for name, values in feed.items() if name in inputs} for feed in material.feeds()]
    overflow = nncf.OverflowFix.ENABLE if material.bits == 7 else nncf.OverflowFix.DISABLE
    with _quiet_nncf():
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
        recipe: number format of the weights, in words; empty for `int8`, whose recipes are `quantization.RECIPES`.
        write: writes the file, and a second one if the format has two; None for the float32 file and for `int8`.
        packages: that `write` needs besides those of the extra `train`.
        has_target: whether the file is right on the processors that int8 is written for alone.
    """

    file: str
    recipe: str = ""
    write: Callable[[Material, Path], None] | None = None
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
def _quiet_nncf() -> Iterator[None]:
    """Silences the tables, the progress bar and the log of nncf."""
    logger = logging.getLogger("nncf")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
