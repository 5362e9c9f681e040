"""The files of a model, and the sessions that run them, whose runtimes are imported when they are needed."""

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from distill.edge import cores
from distill.edge.strings import find_surrogate
from distill.errors import UserError, first_line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DATA_FOLDER = "session.model_external_initializers_file_folder_path"  # Option of onnxruntime.


class Session(Protocol):
    """A model that is ready to run. The values of its inputs and outputs have a `name` and a `shape`."""

    def run(self, names: Sequence[str], inputs: "Mapping[str, NDArray[np.int64]]") -> "list[NDArray[np.floating]]":
        """Returns the outputs of these names."""
        ...

    def get_inputs(self) -> Sequence[Any]:
        """Returns the inputs."""
        ...

    def get_outputs(self) -> Sequence[Any]:
        """Returns the outputs."""
        ...


def input_names(session: Session) -> set[str]:
    """Returns the names of a model's inputs, and of those that may be left out."""
    import onnxruntime

    optional = session.get_overridable_initializers() if isinstance(session, onnxruntime.InferenceSession) else ()
    return {value.name for value in (*session.get_inputs(), *optional)}


def needs_openvino(file: str | Path) -> bool:
    """Returns whether a file is a model of OpenVINO, and not of ONNX."""
    return Path(file).suffix == ".xml"


def can_load(file: str | Path) -> bool:
    """Returns whether the package that runs a file is installed."""
    return not needs_openvino(file) or find_spec("openvino") is not None


def timed_name(format: str, file: str | Path) -> str:
    """Returns the name that a file has among timed models, beside `torch`: `onnx-fp32`, or as in `openvino`."""
    return format if needs_openvino(file) else f"onnx-{format}"


def data_file(path: Path) -> Path:
    """Returns the second file of a model: the weights of OpenVINO, or those of a large model in ONNX."""
    return path.with_suffix(".bin") if needs_openvino(path) else path.with_name(f"{path.name}.data")


def shared_file(path: Path) -> Path:
    """Returns the file above a bundle with weights that several models share: `DIR/NAME.data` of `DIR/TASK/NAME`."""
    return data_file(path.parent.resolve().parent / path.name)  # Also of the bundle `.`, whose path names no folder.


def encoder_file(path: Path) -> Path:
    """Returns the file of the encoder that is beside a decoder: `model.fp32.encoder.onnx` of `model.fp32.onnx`."""
    return path.with_name(f"{path.stem}.encoder{path.suffix}")


def list_model_files(path: Path) -> list[Path]:
    """Returns the files of a model: `path`, and `data_file(path)` or else `shared_file(path)` if it exists."""
    return [path, *[data for data in (data_file(path), shared_file(path)) if data.is_file()][:1]]


def list_with_encoder(path: Path) -> list[Path]:
    """Returns the files of a model, and those of the encoder if there is one beside it."""
    encoder = encoder_file(path)
    return [*list_model_files(path), *(list_model_files(encoder) if encoder.is_file() else ())]


def count_bytes(path: Path) -> int:
    """Returns the size of a model with all of its files."""
    return sum(file.stat().st_size for file in list_with_encoder(path))


def session(path: Path, threads: int | None = None) -> Session:
    """Returns a session on the CPU, of onnxruntime or, for a file of OpenVINO, of openvino.

    Args:
        threads: None for as many as the process may use cores. The default of the runtimes is the cores of the machine.

    Raises:
        UserError: if the model cannot be loaded, or openvino is not installed.
    """
    threads = cores.count_cores() if threads is None else int(threads)
    if not needs_openvino(path):
        return _onnx_session(path, threads)
    from distill.edge.openvino_session import OpenVinoSession

    try:
        return OpenVinoSession(Path(_to_utf8(path)), threads)
    except RuntimeError as error:
        raise UserError(f"{path} cannot be loaded by openvino: {first_line(error)}") from error


def _onnx_session(path: Path, threads: int) -> Session:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    try:
        shared = [data for data in list_model_files(path) if data.parent != path.parent]
        if shared:
            options.add_session_config_entry(DATA_FOLDER, _to_utf8(shared[0].parent.absolute()))
        loaded: Session = onnxruntime.InferenceSession(_to_utf8(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # The errors of onnxruntime have no class in common.
        raise UserError(
            f"{path} cannot be loaded by onnxruntime {onnxruntime.__version__}: {first_line(error)}"
        ) from error
    return loaded


def _to_utf8(path: Path) -> str:
    """Returns the name of a path as onnxruntime reads it. Under a C locale Python cannot decode it."""
    return str(path) if find_surrogate(str(path)) is None else os.fsencode(path).decode("utf-8")
