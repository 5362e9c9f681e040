"""Exports to ONNX that trace each structure of a model once a session, seconds each, for other weights of it too."""

import fcntl
import functools
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import pytest
import torch
from torch import nn
from torch.onnx._internal.exporter import _registration

# The weights of the traced model are even numbers of their own, so that 1 + a weight, which a Gemma computes, is none:
# float32 has every whole number from here up to twice of it.
FIRST = 2**23
_EXPORT = torch.onnx.export
# Of a configuration: what changes no graph.
_NAMES = ("_name_or_path", "id2label", "label2id", "transformers_version", "dtype", "architectures")


@contextmanager
def quick_exports(directory: Path) -> Iterator[None]:
    """Keeps the graphs in a directory that all workers of a session share."""

    def export(module: nn.Module, arguments: tuple[Any, ...], **options: Any) -> Any:
        parameters = list(module.parameters())
        size = sum(parameter.numel() for parameter in parameters)
        if size > FIRST // 2 or _is_changed(module):
            return _EXPORT(module, arguments, **options)
        folder = directory / _key(module, arguments, options)
        folder.mkdir(exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "order.npz").is_file():
                _trace(module, arguments, options, folder)
        if not (folder / "model.onnx").is_file():
            torch.ops.aten.lstm.input._dispatch_cache.clear()  # Of the trace, as `export_onnx` does.
            return _EXPORT(module, arguments, **options)
        return _fill(folder, parameters)

    make_registry = functools.cache(_registration.ONNXRegistry.from_torchlib)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.onnx, "export", export)
        patch.setattr(_registration.ONNXRegistry, "from_torchlib", staticmethod(make_registry))
        yield


def _is_changed(module: nn.Module) -> bool:
    """Returns whether a module has a `forward` or hooks of its own, which its class and repr do not show.

    Those by which transformers returns hidden states are left in a model, and do nothing here.
    """
    hooks = [
        hook for part in module.modules() for hook in (*part._forward_hooks.values(), *part._forward_pre_hooks.values())
    ]
    own = [hook for hook in hooks if hook.__module__ != "transformers.utils.output_capturing"]
    return bool(own) or any("forward" in vars(part) for part in module.modules())


def _key(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> str:
    model = module.model
    config = {name: value for name, value in model.config.to_dict().items() if name not in _NAMES}
    classes = [f"{type(part).__module__}.{type(part).__qualname__}" for part in module.modules()]
    tensors = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in module.state_dict().items()]
    buffers = [(name, tensor.tolist()) for name, tensor in module.named_buffers()]
    inputs = [argument.tolist() for argument in arguments]
    known = (repr(module), classes, tensors, buffers, inputs, json.dumps(config, default=str, sort_keys=True), options)
    return hashlib.sha256(repr(known).encode()).hexdigest()[:20]


def _trace(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any], folder: Path) -> None:
    """Exports the module with numbered weights, and writes the graph and the number of each weight in it.

    Writes no graph where it has numbers that are computed from weights: such a model is exported each time.
    """
    saved = [parameter.detach().clone() for parameter in module.parameters()]
    first = FIRST
    try:
        for parameter in module.parameters():
            numbers = torch.arange(first, first + 2 * parameter.numel(), 2).reshape(parameter.shape)
            parameter.data.copy_(numbers)
            first += 2 * parameter.numel()
        program = _EXPORT(module, arguments, **options)
        assert program is not None
        order = _find_weights(program.model, range(FIRST, first))
        if order is not None and not _has_all(order, module, program):
            order = None
        if order is not None:  # While the parameters have their numbers, because the graph refers to them.
            onnx_ir.save(program.model, folder / "model.onnx")
    finally:
        for parameter, values in zip(module.parameters(), saved, strict=True):
            parameter.data.copy_(values)
    np.savez(folder / "order.npz", **(order or {}))


def _find_weights(model: onnx_ir.Model, numbers: range) -> dict[str, np.ndarray] | None:
    """Returns the numbers of the weights in each tensor of a graph, or None if there are others computed from them."""
    order, others = dict[str, np.ndarray](), list[np.ndarray]()
    for name, value in model.graph.initializers.items():
        values = value.const_value.numpy()
        is_weight = (values >= numbers.start) & (values < numbers.stop) & (values % 2 == 0)
        if _is_float(values) and values.size and is_weight.all():
            order[name] = (values.astype(np.int64) - FIRST) // 2
        else:
            others.append(values)
    others += [
        attribute.as_tensor().numpy()
        for node in onnx_ir.traversal.RecursiveGraphIterator(model.graph)
        for attribute in node.attributes.values()
        if attribute.type == onnx_ir.AttributeType.TENSOR
    ]
    # Constants of a model are smaller, and those of a mask are larger.
    is_computed = any(
        ((np.abs(values) > 2**18) & (np.abs(values) < 1e30)).any() for values in others if _is_float(values)
    )
    return None if is_computed else order


def _has_all(order: dict[str, np.ndarray], module: nn.Module, program: torch.onnx.ONNXProgram) -> bool:
    """Returns whether a tensor of the graph has weights of each parameter that the module reads.

    Where none has, something small was computed from the parameter, such as the softmax of weights.
    """
    exported: Any = program.exported_program
    names = exported.graph_signature.inputs_to_parameters
    read = {names[node.name] for node in exported.graph.nodes if node.name in names and node.users}
    present, first = np.unique(np.concatenate([numbers.ravel() for numbers in order.values()])), 0
    for name, parameter in module.named_parameters():
        place = np.searchsorted(present, first)
        first += parameter.numel()
        if name in read and not (place < len(present) and present[place] < first):
            return False
    return True


def _is_float(values: np.ndarray) -> bool:
    return values.dtype == np.float32


def _fill(folder: Path, parameters: list[nn.Parameter]) -> torch.onnx.ONNXProgram:
    """Returns the graph with these weights."""
    model = onnx_ir.load(folder / "model.onnx")
    weights = np.concatenate([parameter.detach().numpy().ravel() for parameter in parameters])
    with np.load(folder / "order.npz") as orders:
        for name, order in orders.items():
            model.graph.initializers[name].const_value = onnx_ir.tensor(weights[order], name=name)
    return torch.onnx.ONNXProgram(model, None)
