"""Changes of a float32 ONNX graph before quantization, and weights that the files of several heads share."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from distill.core.files import hash_file, write_json
from distill.edge.bundle_files import (
    ABOVE,
    NAME,
    count_bytes,
    data_file,
    encoder_file,
    list_model_files,
    needs_openvino,
    read_manifest,
)
from distill.export.onnx import EXTERNAL_DATA_BYTES

LARGE_TABLE = 50_000  # Numbers; the rows of a smaller table have no scales of their own, and the table stays in float.
RECURRENT = ("LSTM", "GRU")
JOINING = ("Concat", "Pad", "Transpose")  # Those by which a model makes one matrix of several.


@dataclass(frozen=True)
class Product:
    """A matrix product with a constant matrix.

    Attributes:
        name: of the node.
        source: name of the product's input, `[..., I]`.
        weight: name of the constant, `[I, O]`.
    """

    name: str
    source: str
    weight: str


def load(path: Path) -> onnx.ModelProto:
    """Returns the graph of a float32 file, ready to be quantized.

    The shapes that the exporter noted for its example are dropped, because they contradict a quantized graph. Constants
    that a recurrent layer or a product reads through other nodes are folded, or its weights would stay in float. A
    `Gemm` becomes a product and a sum, so that all products with a constant matrix have one form and keep their names.
    A head that reads the table of the embeddings gets a transposed copy of it, because the two are quantized by columns
    and by rows.
    """
    model = onnx.load(str(path))
    if any(node.op_type in RECURRENT for node in model.graph.node) or _joins_matrices(model):
        model = _fold_constants(path)
    del model.graph.value_info[:]
    for node in [node for node in model.graph.node if node.op_type == "Gemm"]:
        _split_gemm(model, node)
    _fold_transposed(model)
    return model


def save(model: onnx.ModelProto, path: Path) -> None:
    """Writes a model as one file, or as two if its weights are large."""
    data_file(path).unlink(missing_ok=True)
    is_large = model.ByteSize() > EXTERNAL_DATA_BYTES
    onnx.save(model, str(path), save_as_external_data=is_large, location=data_file(path).name)


def move(source: Path, target: Path) -> None:
    """Renames a model; one with large weights is written anew, because it names its second file."""
    remove_model(target)
    if encoder_file(source).is_file():
        move(encoder_file(source), encoder_file(target))
    if len(list_model_files(source)) > 1:
        save(onnx.load(str(source)), target)
        remove_model(source)
    else:
        source.replace(target)


def constants(model: onnx.ModelProto) -> dict[str, TensorProto]:
    """Returns the constant tensors by name."""
    return {tensor.name: tensor for tensor in model.graph.initializer}


def find_products(model: onnx.ModelProto) -> list[Product]:
    """Returns the products with a constant matrix, in the order of the graph."""
    known = constants(model)
    return [
        Product(node.name, node.input[0], node.input[1])
        for node in model.graph.node
        if node.op_type == "MatMul" and node.input[1] in known and len(known[node.input[1]].dims) == 2
    ]


def find_tables(model: onnx.ModelProto) -> dict[str, int]:
    """Returns the names of the nodes that look up rows of a constant table, with the numbers in the table."""
    sizes = {name: int(np.prod(tensor.dims)) for name, tensor in constants(model).items() if len(tensor.dims) == 2}
    return {
        node.name: sizes[node.input[0]]
        for node in model.graph.node
        if node.op_type == "Gather" and node.input[0] in sizes
    }


def quantize_tables(model: onnx.ModelProto, *, leave: Iterable[str] = ()) -> None:
    """Turns each large embedding table `[V, H]` into int8 with a scale for every row.

    A look-up becomes two look-ups and a product. With one scale for the whole table, as the quantizer of onnxruntime
    has it, the error of MiniLM's table is six times as large.
    A table of one column stays, because its scales would be as large as itself.

    Args:
        leave: names of the nodes whose tables stay.
    """
    widths = {tensor.name: tensor.dims[-1] for tensor in model.graph.initializer if tensor.dims}
    tables = {name for name, size in find_tables(model).items() if size >= LARGE_TABLE and name not in leave}
    uses = Counter(name for node in model.graph.node for name in node.input)
    large = [node for node in model.graph.node if node.name in tables and widths[node.input[0]] > 1]
    for node in [node for node in large if uses[node.input[0]] == 1]:
        tensor = constants(model)[node.input[0]]
        table = numpy_helper.to_array(tensor).astype(np.float32)
        scale = np.abs(table).max(axis=1, keepdims=True) / 127
        scale[scale == 0] = 1
        names = [f"{node.input[0]}_{part}" for part in ("int8", "scale")]
        for name, values in zip(names, (np.round(table / scale).astype(np.int8), scale), strict=True):
            model.graph.initializer.append(numpy_helper.from_array(values, name))
        model.graph.initializer.remove(tensor)
        ids, output = node.input[1], node.output[0]
        rows, floats, scales = (f"{output}_{part}" for part in ("rows", "floats", "scales"))
        replacement = [
            helper.make_node("Gather", [names[0], ids], [rows], name=f"{node.name}_rows"),
            helper.make_node("Cast", [rows], [floats], name=f"{node.name}_floats", to=TensorProto.FLOAT),
            helper.make_node("Gather", [names[1], ids], [scales], name=f"{node.name}_scales"),
            helper.make_node("Mul", [floats, scales], [output], name=f"{node.name}_product"),
        ]
        _replace(model, node, replacement)


def find_tied_tables(model: onnx.ModelProto) -> dict[str, str]:
    """Returns the matrices `[H, V]` of heads that are a transposed table of embeddings, by the node of the look-up."""
    known, tables = constants(model), find_tables(model)
    heads = {product.weight: numpy_helper.to_array(known[product.weight]) for product in find_products(model)}
    tied = {}
    for node in model.graph.node:
        if tables.get(node.name, 0) >= LARGE_TABLE:
            table = numpy_helper.to_array(known[node.input[0]])
            same = [name for name, head in heads.items() if head.shape[::-1] == table.shape and (table == head.T).all()]
            if same:
                tied[node.name] = same[0]
    return tied


def tie_tables(model: onnx.ModelProto, tied: Mapping[str, str]) -> None:
    """Makes look-ups read the columns of the head's matrix `[H, V]`, quantized or not, so that it is stored once.

    The scale of a quantized column is that of the table's row.

    Args:
        tied: as `find_tied_tables` returns it, before the matrices were quantized.
    """
    for node in [node for node in model.graph.node if node.name in tied]:
        known, name, ids, output = constants(model), tied[node.name], node.input[1], node.output[0]
        columns, rows, scales = (f"{output}_{part}" for part in ("columns", "rows", "scales"))
        is_quantized = f"{name}_quantized" in known
        matrix = f"{name}_quantized" if is_quantized else name
        nodes = [  # From [H, B, S] to [B, S, H].
            helper.make_node("Gather", [matrix, ids], [columns], name=columns, axis=1),
            helper.make_node("Transpose", [columns], [rows if is_quantized else output], name=rows, perm=[1, 2, 0]),
        ]
        if is_quantized:
            floats, last = f"{output}_floats", f"{output}_last_axis"
            model.graph.initializer.append(numpy_helper.from_array(np.array([-1]), last))
            nodes += [
                helper.make_node("Cast", [rows], [floats], name=floats, to=TensorProto.FLOAT),
                helper.make_node("Gather", [f"{name}_scale", ids], [scales], name=scales),
                helper.make_node("Unsqueeze", [scales, last], [f"{scales}_wide"], name=f"{scales}_wide"),
                helper.make_node("Mul", [floats, f"{scales}_wide"], [output], name=f"{output}_product"),
            ]
        _replace(model, node, nodes)
    drop_unused(model)


def smooth(
    model: onnx.ModelProto, largest: Mapping[str, np.ndarray], quantile: float, *, leave: Iterable[str] = ()
) -> None:
    """Moves the outliers of the activations into the weights that they are multiplied with.

    One scale holds for all channels of an activation, so that a channel with values far above the others takes the
    precision of all of them. Such a channel is divided by its excess, and its row of the matrix multiplied (after
    SmoothQuant, arXiv 2211.10438, equation 3, which scales every channel). Inputs that are multiplied with one matrix
    have the same factors, by the largest values of all.

    Args:
        largest: the largest absolute value of each channel `[I]` of the input of each product.
        quantile: of the channels, whose value no channel exceeds afterwards.
        leave: names of the matrices that stay as they are.
    """
    left = set(leave)
    for products in _join_products([product for product in find_products(model) if product.weight not in left]):
        sources = list(dict.fromkeys(product.source for product in products))
        values = np.maximum.reduce([largest[source] for source in sources])
        limit = np.quantile(values, quantile)
        if limit <= 0:
            continue
        factors = np.maximum(1.0, values / limit).astype(np.float32)
        divisor = f"{sources[0]}_divisor"
        model.graph.initializer.append(numpy_helper.from_array(1 / factors, divisor))
        known = constants(model)
        for weight in dict.fromkeys(product.weight for product in products):
            scaled = numpy_helper.to_array(known[weight]) * factors[:, None]
            # Under another name, because other nodes may read the same matrix.
            model.graph.initializer.append(numpy_helper.from_array(scaled, f"{weight}_smoothed"))
        for source in sources:
            names = {product.name: product for product in products if product.source == source}
            nodes = [node for node in model.graph.node if node.name in names]
            smoothed = f"{source}_smoothed"
            for node in nodes:
                node.input[0], node.input[1] = smoothed, f"{names[node.name].weight}_smoothed"
            _insert(model, nodes[0], [helper.make_node("Mul", [source, divisor], [smoothed], name=f"{source}_smooth")])
    drop_unused(model)


def _join_products(products: Sequence[Product]) -> list[list[Product]]:
    """Returns the products in groups, which share their factors: those of one input, and those of one matrix.

    The layers of a model with shared weights multiply several inputs with one matrix, which thus stays one.
    """
    groups: list[list[Product]] = []
    for product in products:
        joined = [
            group
            for group in groups
            if any(other.source == product.source or other.weight == product.weight for other in group)
        ]
        groups = [group for group in groups if group not in joined]
        groups.append([*(other for group in joined for other in group), product])
    return groups


def halve_weights(model: onnx.ModelProto) -> None:
    """Stores the float32 constants as float16; each is cast back when the model is loaded."""
    for tensor in list(model.graph.initializer):
        if tensor.data_type != TensorProto.FLOAT or np.prod(tensor.dims) < 2:
            continue
        values = numpy_helper.to_array(tensor)
        if np.abs(values).max(initial=0) > np.finfo(np.float16).max:
            continue
        name = f"{tensor.name}_half"
        model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float16), name))
        cast = helper.make_node("Cast", [name], [tensor.name], name=f"{tensor.name}_cast", to=TensorProto.FLOAT)
        model.graph.initializer.remove(tensor)
        model.graph.node.insert(0, cast)


def drop_unused(model: onnx.ModelProto) -> None:
    """Removes the constants that no node reads."""
    read = {name for node in model.graph.node for name in node.input}
    for tensor in [tensor for tensor in model.graph.initializer if tensor.name not in read]:
        model.graph.initializer.remove(tensor)


def remove_model(path: Path) -> None:
    """Deletes the files of a model, with those of its encoder."""
    encoder = encoder_file(path)
    for file in (path, data_file(path), encoder, data_file(encoder)):
        file.unlink(missing_ok=True)


def _split_gemm(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    """Replaces `x W^T + b` by a product with the transposed constant and a sum, or without b by the product alone."""
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    weight = constants(model).get(node.input[1])
    plain = attributes.get("alpha", 1.0) == attributes.get("beta", 1.0) == 1.0 and not attributes.get("transA")
    if weight is None or not plain:
        return
    name = node.input[1]
    if attributes.get("transB"):
        name = f"{node.input[1]}_transposed"
        if name not in constants(model):
            values = np.ascontiguousarray(numpy_helper.to_array(weight).T)
            model.graph.initializer.append(numpy_helper.from_array(values, name))
    bias, [output] = node.input[2:], node.output
    product = f"{output}_product" if bias else output
    replacement = [helper.make_node("MatMul", [node.input[0], name], [product], name=node.name)]
    if bias:
        replacement.append(helper.make_node("Add", [product, bias[0]], [output], name=f"{node.name}_bias"))
    _replace(model, node, replacement)
    drop_unused(model)


def _fold_transposed(model: onnx.ModelProto) -> None:
    """Replaces the transposition of a constant matrix by a transposed constant."""
    for node in [node for node in model.graph.node if node.op_type == "Transpose"]:
        matrix = constants(model).get(node.input[0])
        if matrix is not None and len(matrix.dims) == 2:
            values = np.ascontiguousarray(numpy_helper.to_array(matrix).T)
            model.graph.initializer.append(numpy_helper.from_array(values, node.output[0]))
            model.graph.node.remove(node)
    drop_unused(model)


def _joins_matrices(model: onnx.ModelProto) -> bool:
    """Returns whether a product reads a matrix that nodes join of constants."""
    read = set(constants(model))
    joined: set[str] = set()
    for node in model.graph.node:
        if node.op_type in JOINING and read.union(joined).issuperset(node.input):
            joined.update(node.output)
    plain = {node.output[0] for node in model.graph.node if node.op_type == "Transpose" and node.input[0] in read}
    return any(node.op_type == "MatMul" and node.input[1] in joined - plain for node in model.graph.node)


def _insert(model: onnx.ModelProto, before: onnx.NodeProto, nodes: Sequence[onnx.NodeProto]) -> None:
    position = list(model.graph.node).index(before)
    for offset, node in enumerate(nodes):
        model.graph.node.insert(position + offset, node)


def _replace(model: onnx.ModelProto, old: onnx.NodeProto, nodes: Sequence[onnx.NodeProto]) -> None:
    _insert(model, old, nodes)
    model.graph.node.remove(old)


def _fold_constants(path: Path) -> onnx.ModelProto:
    """Returns the graph after onnxruntime has computed all that depends on constants alone."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    folded = path.with_suffix(".folded")
    options.optimized_model_filepath = str(folded)
    try:
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return onnx.load(str(folded))
    finally:
        remove_model(folded)


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
    shared = directory.resolve()  # As `list_model_files` names it.
    own = sum(file.stat().st_size for path in every for file in list_model_files(path) if file.parent != shared)
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
