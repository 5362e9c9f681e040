"""Weights that the ONNX files of several heads have in common, in one file beside their bundles."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, numpy_helper

from distill.edge.manifest import ABOVE, NAME, read_manifest
from distill.edge.model_files import count_bytes, data_file, list_model_files, needs_openvino
from distill.storage.files import hash_file, write_json

SMALLEST = 1024  # Bytes of a tensor; a smaller one stays in every file.
ALIGNMENT = 4096  # Bytes; at such positions onnxruntime maps a tensor into memory without a copy.


def share_weights(directory: Path, names: Sequence[str]) -> dict[str, Any]:
    """Moves the tensors that the models of all bundles have in common into one file for each format.

    The model `directory/NAME/model.onnx` of each bundle then reads them from `directory/model.onnx.data`, which
    `bundle.json` lists with its SHA-256 as `../model.onnx.data`. Tensors are equal if their bytes are, whatever led to
    them. A format that a bundle lacks, whose files have no large tensor in common, or that is for
    OpenVINO, is left as it is.

    Returns:
        The `shared` of run.json: `bytes` of all models, `separate`, what they would have without sharing, and `files`,
        the size of each shared file.
    """
    bundles = [directory / name for name in names]
    models = [{name: bundle / file for name, file in read_manifest(bundle)["models"].items()} for bundle in bundles]
    every = [path for paths in models for path in paths.values()]
    separate, files = sum(map(count_bytes, every)), dict[str, int]()
    for name, first in models[0].items():
        data = directory / data_file(first).name
        is_in_all = all(name in paths for paths in models)
        if is_in_all and not needs_openvino(first) and _share([paths[name] for paths in models], data):
            files[data.name] = data.stat().st_size
    for bundle in bundles:
        _list_files(bundle)
    own = sum(file.stat().st_size for path in every for file in list_model_files(path) if file.parent != directory)
    return {"bytes": own + sum(files.values()), "separate": separate, "files": files}


def _share(paths: Sequence[Path], data: Path) -> bool:
    """Moves the tensors that all models have into `data`; returns whether there is one."""
    models = [onnx.load(str(path)) for path in paths]
    digests = [{_digest(tensor): tensor for tensor in model.graph.initializer if _is_large(tensor)} for model in models]
    common = [key for key in digests[0] if all(key in others for others in digests[1:])]
    if not common:
        return False
    places: dict[str, tuple[int, int]] = {}
    with open(data, "wb") as file:
        for key in common:
            content = _content(digests[0][key])
            file.write(b"\0" * (-file.tell() % ALIGNMENT))
            places[key] = file.tell(), len(content)
            file.write(content)
    for model, path in zip(models, paths, strict=True):
        for tensor in model.graph.initializer:
            if _is_large(tensor) and (key := _digest(tensor)) in places:
                _refer(tensor, data.name, *places[key])
        data_file(path).unlink(missing_ok=True)
        path.write_bytes(model.SerializeToString())
    return True


def _is_large(tensor: TensorProto) -> bool:
    return bool(len(_content(tensor)) >= SMALLEST)


def _content(tensor: TensorProto) -> bytes:
    """Returns the numbers of a tensor as external data has them."""
    return bytes(tensor.raw_data) if tensor.HasField("raw_data") else numpy_helper.to_array(tensor).tobytes()


def _digest(tensor: TensorProto) -> str:
    shape = f"{tensor.data_type} {list(tensor.dims)} ".encode()
    return hashlib.sha256(shape + _content(tensor)).hexdigest()


def _refer(tensor: TensorProto, file: str, offset: int, length: int) -> None:
    """Replaces the numbers of a tensor by their place in a file."""
    name, kind, shape = tensor.name, tensor.data_type, list(tensor.dims)
    tensor.Clear()
    tensor.name, tensor.data_type, tensor.data_location = name, kind, TensorProto.EXTERNAL
    tensor.dims.extend(shape)
    for key, value in (("location", file), ("offset", offset), ("length", length)):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(value)


def _list_files(bundle: Path) -> None:
    """Writes bundle.json with the SHA-256 of every file that the bundle reads, in its own directory or above."""
    manifest = read_manifest(bundle)
    for file in manifest["models"].values():
        manifest["files"].pop(data_file(bundle / file).name, None)
        for path in list_model_files(bundle / file):
            own = path.parent == bundle
            manifest["files"][path.name if own else f"{ABOVE}{path.name}"] = hash_file(path)
    write_json(bundle / NAME, manifest)
