"""The files that an ONNX model reads its weights from, found without the package onnx, which few devices have.

The names are those of `external_data` in the tensors of the file, a message of Protocol Buffers. Only the fields on the
way to a tensor are read, so that it takes milliseconds for a file of any size.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path

# Message -> number of a field -> message of the field, as in onnx.proto.
_FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
    "entry": {},
}
_KEY, _VALUE = 1, 2  # Fields of an entry.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # Wire types.
_DEEPEST = 60  # Graphs in graphs. ONNX Runtime reads 100 messages in each other.


def find_weight_files(path: Path) -> set[str]:
    """Returns the names of the files, relative to the folder of the model, that it reads its weights from.

    Raises:
        ValueError: if the file is no ONNX model.
        OSError: if it cannot be read.
    """
    with open(path, "rb") as file:
        if not path.stat().st_size:
            raise ValueError("it is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content, memoryview(content) as data:
            return set(_walk(data, 0, len(data), "model", 0))


def _walk(data: memoryview, start: int, end: int, kind: str, depth: int) -> Iterator[str]:
    """Yields the locations in a message between two positions."""
    if depth > _DEEPEST:
        raise ValueError("it has too many graphs in each other")
    values = dict[int, str]()
    for field, first, last in _fields(data, start, end):
        inner = _FIELDS[kind].get(field)
        if inner is not None:
            yield from _walk(data, first, last, inner, depth + 1)
        elif kind == "entry" and field in (_KEY, _VALUE):
            values[field] = bytes(data[first:last]).decode("utf-8", errors="replace")
    if values.get(_KEY) == "location":
        yield values.get(_VALUE, "")


def _fields(data: memoryview, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yields number, start and end of each field of a message that holds bytes."""
    while position < end:
        tag, position = _read_varint(data, position, end)
        tag &= 0xFFFFFFFF  # As Protocol Buffers reads it.
        kind = tag & 7
        if kind == _VARINT:
            _, position = _read_varint(data, position, end)
        elif kind in (_FIXED64, _FIXED32):
            position += 8 if kind == _FIXED64 else 4
        elif kind == _BYTES:
            length, position = _read_varint(data, position, end)
            if position + length > end:
                raise ValueError("it is cut off, or no ONNX model")
            yield tag >> 3, position, position + length
            position += length
        else:
            raise ValueError("it is no ONNX model")
    if position > end:
        raise ValueError("it is cut off, or no ONNX model")


def _read_varint(data: memoryview, position: int, end: int) -> tuple[int, int]:
    """Returns a number of at most 64 bits, and the position after it."""
    number = 0
    for shift in range(0, 70, 7):
        if position >= end:
            break
        byte = data[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, position
    raise ValueError("it is cut off, or no ONNX model")
