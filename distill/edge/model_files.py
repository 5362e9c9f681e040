"""The files of a model, and the sessions that run them."""

import os
from pathlib import Path

import onnxruntime

from distill.edge.strings import find_surrogate
from distill.errors import UserError, first_line

DATA_FOLDER = "session.model_external_initializers_file_folder_path"  # Option of onnxruntime.


def data_file(path: Path) -> Path:
    """Returns the second file of an ONNX model, which has the weights of a large one."""
    return path.with_name(f"{path.name}.data")


def shared_file(path: Path) -> Path:
    """Returns the file above a bundle with weights that several models share: `DIR/NAME.data` of `DIR/TASK/NAME`."""
    return data_file(path.parent.with_name(path.name))


def list_model_files(path: Path) -> list[Path]:
    """Returns the files of an ONNX model: `path`, and `data_file(path)` or else `shared_file(path)` if it exists."""
    return [path, *[data for data in (data_file(path), shared_file(path)) if data.is_file()][:1]]


def count_bytes(path: Path) -> int:
    """Returns the size of an ONNX model with all of its files."""
    return sum(file.stat().st_size for file in list_model_files(path))


def session(path: Path, threads: int | None = None) -> onnxruntime.InferenceSession:
    """Returns an onnxruntime session on the CPU.

    Raises:
        UserError: if onnxruntime cannot load the model.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads = int(threads)
        options.inter_op_num_threads = 1
    try:
        shared = [data for data in list_model_files(path) if data.parent != path.parent]
        if shared:
            options.add_session_config_entry(DATA_FOLDER, _to_utf8(shared[0].parent.absolute()))
        return onnxruntime.InferenceSession(_to_utf8(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # The errors of onnxruntime have no class in common.
        raise UserError(
            f"{path} cannot be loaded by onnxruntime {onnxruntime.__version__}: {first_line(error)}"
        ) from error


def _to_utf8(path: Path) -> str:
    """Returns the name of a path as onnxruntime reads it. Under a C locale Python cannot decode it."""
    return str(path) if find_surrogate(str(path)) is None else os.fsencode(path).decode("utf-8")
