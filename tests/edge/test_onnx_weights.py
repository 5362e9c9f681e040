"""Tests of the files that a model reads its weights from, and of those that bundle.json does not list."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from distill.core.errors import UserError
from distill.core.files import hash_file, write_json
from distill.edge import Bundle
from distill.edge import bundle_files as module
from tests.edge.conftest import Write


def external(name: str, location: str) -> TensorProto:
    """Returns a float32 tensor `[1]` whose value is in a file."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="offset", value="0")
    tensor.external_data.add(key="location", value=location)
    return tensor


def test_every_place_of_a_tensor_is_found(tmp_path: Path) -> None:
    inner = helper.make_graph([], "inner", [], [], [external("i", "inner")])
    sparse = onnx.SparseTensorProto(values=external("v", "values"), indices=external("x", "indices"), dims=[1])
    node = helper.make_node("If", ["c"], ["y"], then_branch=inner)
    node.attribute.append(helper.make_attribute("t", external("t", "attribute")))
    node.attribute.append(helper.make_attribute("ts", [external("ts", "attributes")]))
    node.attribute.append(helper.make_attribute("gs", [inner]))
    node.attribute.append(helper.make_attribute("s", sparse))
    own = helper.make_tensor("own", TensorProto.STRING, [1], [b"\n\x08location\x12\x04fake"])
    graph = helper.make_graph([node], "toy", [], [], [external("w", "../w"), own])
    graph.sparse_initializer.append(sparse)
    model = helper.make_model(graph)
    model.functions.append(
        helper.make_function("d", "f", [], [], [helper.make_node("C", [], [], t=external("f", "function"))], [])
    )
    model.training_info.add().algorithm.initializer.append(external("n", "training"))
    model.metadata_props.add(key="location", value="none")
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    assert module.find_weight_files(tmp_path / "model.onnx") == {
        "inner", "values", "indices", "attribute", "attributes", "../w", "function", "training"
    }  # fmt: skip


def test_unusual_encodings_hide_no_file(tmp_path: Path) -> None:
    entry = b"\x12\x04evil" + b"\x0a\x88\x00location"  # The value first, and a longer number than needed.
    tensor = b"\x6a" + bytes([len(entry)]) + entry
    graph = b"\x2a" + bytes([len(tensor)]) + tensor
    for tag in (b"\x3a", b"\xba\x00", b"\xba\x80\x80\x80\x10"):  # The last one is cut to 32 bits.
        (tmp_path / "model.onnx").write_bytes(tag + bytes([len(graph)]) + graph)
        assert module.find_weight_files(tmp_path / "model.onnx") == {"evil"}


@pytest.mark.parametrize("content", [b"", b"\x3a\x7f", b"\x3a", b"\x0b", b"\xff" * 11, b"\x09\x00", b"<xml>not onnx"])
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(ValueError, match="it is "):
        module.find_weight_files(tmp_path / "model.onnx")


@pytest.fixture
def bundle(write: Write) -> Path:
    """A bundle whose model adds a number, which is in model.onnx.data, to both logits."""
    directory = write(name="task")
    set_location(directory, "model.onnx.data")
    return directory


def list_file(directory: Path, name: str) -> None:
    """Writes the SHA-256 of a file into bundle.json."""
    manifest = json.loads((directory / "bundle.json").read_text())
    manifest["files"][name] = hash_file(directory / name)
    write_json(directory / "bundle.json", manifest)


def set_location(directory: Path, location: str) -> None:
    """Lets the model of a bundle read a number from this file, and lists the model as it is then."""
    model = onnx.load(directory / "model.onnx", load_external_data=False)
    if len(model.graph.initializer) and model.graph.initializer[-1].name == "added":
        del model.graph.initializer[-1]
    else:
        [node] = [node for node in model.graph.node if "logits" in node.output]
        node.output[0] = "before"
        model.graph.node.append(helper.make_node("Add", ["before", "added"], ["logits"]))
    model.graph.initializer.append(external("added", location))
    (directory / "model.onnx").write_bytes(model.SerializeToString())
    list_file(directory, "model.onnx")


def write_weights(bundle: Path, name: str = "model.onnx.data", *, is_listed: bool = False) -> None:
    (bundle / name).write_bytes(np.float32([3]).tobytes())
    if is_listed:
        list_file(bundle, name)


def test_listed_weights_are_loaded_from_the_directory_and_from_the_one_above(bundle: Path) -> None:
    write_weights(bundle, "../model.onnx.data", is_listed=True)
    assert Bundle(bundle).predict(["a film"])[0]["label"] in ("long", "short")
    write_weights(bundle)  # It would be taken before the listed one above.
    with pytest.raises(UserError, match=r"reads weights from model.onnx.data, which bundle.json does not list"):
        Bundle(bundle)
    (bundle / "model.onnx.data").unlink()
    (bundle.parent / "model.onnx.data").unlink()
    with pytest.raises(UserError, match=r"is incomplete: ../model.onnx.data is missing"):
        Bundle(bundle)
    write_weights(bundle, is_listed=True)
    write_weights(bundle.parent)
    assert Bundle(bundle).predict(["a film"])[0]["label"] in ("long", "short")


def test_weights_of_a_file_that_is_not_listed_are_refused(bundle: Path) -> None:
    write_weights(bundle)
    with pytest.raises(UserError, match=r"reads weights from model.onnx.data, which bundle.json does not list"):
        Bundle(bundle)
    write_weights(bundle, is_listed=True)
    for location in ("other.bin", "../model.onnx.data", "/etc/hostname", "sub/model.onnx.data", ""):
        set_location(bundle, location)
        for name in ("other.bin", "../model.onnx.data"):
            write_weights(bundle, name)
        with pytest.raises(UserError, match=rf"reads weights from {location!r}, expected model.onnx.data"):
            Bundle(bundle)
