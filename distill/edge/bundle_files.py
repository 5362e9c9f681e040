"""The files of a bundle: bundle.json, models, their sessions, and the processors that run them.

The files that an ONNX model reads its weights from, found without the package onnx, which few devices have. The names
are those of `external_data` in the tensors of the file, a message of Protocol Buffers. Only the fields on the way to a
tensor are read, so that it takes milliseconds for a file of any size.
"""

import functools
import hashlib
import json
import mmap
import os
import platform
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from distill.core.errors import UserError, find_surrogate, first_line
from distill.core.files import CHECKSUMS, read_checksums
from distill.edge.values import IsValid, Rule, is_count, is_share, null_or

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TOPOLOGY = Path("/sys/devices/system/cpu")
GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


def usable_processors() -> frozenset[int]:
    """Returns the numbers of the logical processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):  # Not on macOS and Windows.
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def count_cores() -> int:
    """Returns the number of cores that this process may use, at least 1.

    Two logical processors of one core count once, because a matrix product gains nothing from the second one. A quota
    of 1.5 cores counts as one, because with two threads it would be used up before a period ends.
    """
    processors = usable_processors()
    cores = len({_read(TOPOLOGY / f"cpu{number}/topology/thread_siblings_list") or number for number in processors})
    return max(1, min([cores, *map(int, _quotas())]))


def _quotas() -> Iterator[float]:
    """Yields the quotas, in cores, of the process's control groups and of those that they are in.

    A container may see its own group as the root of the tree, while the name of the group is that of the host.
    """
    for line in (_read(OWN_GROUPS) or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number != "0" and "cpu" not in controllers.split(","):
            continue
        for tree in (GROUPS, GROUPS / "unified") if number == "0" else (GROUPS / controllers, GROUPS / "cpu"):
            inner = tree / group.lstrip("/")
            for directory in (inner, *inner.parents):
                if not directory.is_relative_to(tree):
                    break
                quota = _read_quota(directory)
                if quota is not None:
                    yield quota


def _read_quota(directory: Path) -> float | None:
    """Returns the quota of a control group in cores; None if it has none."""
    quota, _, period = (_read(directory / "cpu.max") or "").partition(" ")
    if not period:  # Version 1 of control groups.
        quota, period = (_read(directory / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period"))
    try:
        cores = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # `max`, or no file.
        return None
    return cores if cores > 0 else None  # Version 1 has -1 for no quota.


def _read(path: Path) -> str | None:
    """Returns the text of a file without white space around it; None for one that cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


# With dot products of int8, `vnni` and `arm64`, a processor adds four products without overflow. Without, `avx2`, sums
# of two products saturate at 16 bits, so that weights must stay within 7 bits. What is right there is right everywhere.
Target = Literal["vnni", "avx2", "arm64"]
TARGETS: tuple[Target, ...] = get_args(Target)
ANY = "avx2"
_DOT_PRODUCTS = {"vnni", "arm64"}
_VNNI = {"avx512_vnni", "avx512vnni", "avx_vnni", "avx512_clx", "avx512_icl"}


@functools.cache
def this_target() -> str:
    """Returns the target of this machine; `avx2` for a processor whose features are unknown."""
    if platform.machine().lower() in ("aarch64", "arm64"):
        return "arm64"
    return "vnni" if _VNNI & _features() else ANY


def runs(target: str, device: str) -> bool:
    """Returns whether a file written for `target` gives right answers on a device of the target `device`."""
    return target == ANY or device in _DOT_PRODUCTS


def weight_bits(target: str) -> int:
    """Returns how many bits of an int8 weight may be used."""
    return 8 if target in _DOT_PRODUCTS else 7


def _features() -> set[str]:
    """Returns the instruction sets of an x86 processor, in lower case."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        flags = (line for line in cpuinfo.read_text(encoding="utf-8").splitlines() if line.startswith("flags"))
        return set(next(flags, "").partition(":")[2].split())
    return {name.lower() for name in _numpy_features()}


def _numpy_features() -> Sequence[str]:
    """Returns the instruction sets that numpy found, where Linux does not list them."""
    import numpy as np

    simd = np.show_config(mode="dicts").get("SIMD Extensions", {})  # type: ignore[union-attr]
    return [*simd.get("baseline", ()), *simd.get("found", ())]


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


# Matrix products are computed in bf16 where the processor has it, else in float32. Threads may change their core,
# because another process may keep the one that they would be pinned to busy.
OPTIONS: Mapping[str, Any] = {
    "INFERENCE_PRECISION_HINT": "bf16", "PERFORMANCE_HINT": "LATENCY", "ENABLE_CPU_PINNING": False,
}  # fmt: skip
TELEMETRY = "openvino_telemetry"


@dataclass(frozen=True)
class Value:
    """An input or an output of a model; an axis of any size is None in `shape`."""

    name: str
    shape: list[int | None]


class OpenVinoSession:
    """A model that OpenVINO runs on the CPU, with the methods of `onnxruntime.InferenceSession` that a bundle calls.

    Args:
        path: of the `.xml` file, beside which is the `.bin` file with the weights.
        threads: at most; the attribute `threads` has those that openvino computes with.

    Raises:
        UserError: if openvino is not installed.
        RuntimeError: if openvino cannot load the model.
    """

    def __init__(self, path: Path, threads: int) -> None:
        core = import_openvino(path).Core()
        options = {**OPTIONS, "INFERENCE_NUM_THREADS": threads}
        with _shorten_errors():
            model = core.compile_model(core.read_model(str(path)), "CPU", options)
            self._request = model.create_infer_request()
            self.threads = int(model.get_property("INFERENCE_NUM_THREADS"))
        self._lock = threading.Lock()  # A request is for one thread at a time.

    def get_inputs(self) -> list[Value]:
        """Returns the inputs."""
        return _list_values(self._request.model_inputs)

    def get_outputs(self) -> list[Value]:
        """Returns the outputs."""
        return _list_values(self._request.model_outputs)

    def run(self, names: Sequence[str], inputs: "Mapping[str, NDArray[np.int64]]") -> "list[NDArray[np.floating]]":
        """Returns the outputs of these names; raises RuntimeError if openvino cannot compute them."""
        import numpy as np

        with self._lock, _shorten_errors():
            self._request.infer(dict(inputs))
            return [np.array(self._request.get_tensor(name).data) for name in names]


def import_openvino(path: Path) -> Any:
    """Returns the package openvino.

    Args:
        path: of a file that needs it.

    Raises:
        UserError: if it is not installed.
    """
    try:
        with without_telemetry():
            import openvino
    except ImportError as error:
        raise UserError(
            f"{path} needs openvino, which is not installed: pip install openvino, or choose a model in ONNX such as "
            "fp32"
        ) from error
    return openvino


@contextmanager
def without_telemetry() -> Iterator[None]:
    """Hides the telemetry of OpenVINO's packages, which send a message when they are imported unless it is missing."""
    known = sys.modules.get(TELEMETRY)
    sys.modules[TELEMETRY] = None  # type: ignore[assignment]  # So that an import of it fails.
    try:
        yield
    finally:
        del sys.modules[TELEMETRY]
        if known is not None:
            sys.modules[TELEMETRY] = known


@contextmanager
def _shorten_errors() -> Iterator[None]:
    """Raises the errors of openvino with the last line of their text, because those before it name its sources."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(str(error).strip().splitlines()[-1]) from error


def _list_values(ports: Sequence[Any]) -> list[Value]:
    """Returns each input or output under all of its names."""
    return [
        Value(name, [axis.get_length() if axis.is_static else None for axis in port.partial_shape])
        for port in ports
        for name in sorted(port.names)
    ]


DATA_FOLDER = "session.model_external_initializers_file_folder_path"  # Option of onnxruntime.


class Session(Protocol):
    """A model that is ready to run. The values of its inputs and outputs have a `name` and a `shape`."""

    def run(self, names: Sequence[str], inputs: "Mapping[str, NDArray[np.int64]]") -> "list[NDArray[np.floating]]":
        """Returns the outputs of these names."""

    def get_inputs(self) -> Sequence[Any]:
        """Returns the inputs."""

    def get_outputs(self) -> Sequence[Any]:
        """Returns the outputs."""


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
    threads = count_cores() if threads is None else int(threads)
    if not needs_openvino(path):
        return _onnx_session(path, threads)

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


NAME = "bundle.json"
FORMAT = 1
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
SIDES = ("left", "right")
LARGEST = 2**31 - 1  # Of a length and a token id.
ABOVE = "../"  # Before the name of a file that several bundles share.
SHOWN = 60  # Characters of a value in a message.


def read_manifest(directory: Path) -> dict[str, Any]:
    """Returns the content of bundle.json.

    Raises:
        UserError: if it is missing, damaged, of another format, or not the file of SHA256SUMS, where that exists.
    """
    path = directory / NAME
    try:
        manifest = json.loads(_read_checked(path).decode("utf-8"))
        json.dumps(manifest, ensure_ascii=False).encode("utf-8")  # JSON can escape half of a character.
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {error}") from error
    if not isinstance(manifest, dict):
        raise UserError(f"{path} is damaged: expected a JSON object")
    number = manifest.get("format")
    if not _is_count(number) or number != FORMAT:
        raise UserError(
            f"{path} is of format {_show(number)}, this version of distill reads format {FORMAT}: export it again, or "
            "read it with the version that wrote it"
        )
    _check_fields(manifest, path)
    return manifest


def fingerprint(manifest: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of the content of bundle.json, which has that of every file a prediction depends on."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _read_checked(path: Path) -> bytes:
    """Returns the content of bundle.json, compared with SHA256SUMS where that exists."""
    try:
        if not path.is_file():
            raise UserError(f"{path.parent} is no bundle: it has no {NAME}{_hint(path.parent)}")
        content, checksums = path.read_bytes(), read_checksums(path.parent)
    except OSError as error:
        raise UserError(f"{path.parent} cannot be read: {error.strerror}") from error
    if checksums is None:
        return content
    if path.name not in checksums:
        raise UserError(f"{path.with_name(CHECKSUMS)} is damaged: it has no line for {path.name}")
    if hashlib.sha256(content).hexdigest() != checksums[path.name]:
        raise UserError(
            f"{path} is damaged: its SHA-256 is not the one in {CHECKSUMS}; if you edited it, delete {CHECKSUMS}"
        )
    return content


def _hint(directory: Path) -> str:
    """Returns the end of a message for a directory with a bundle for each of several tasks."""
    names = sorted(bundle.parent.name for bundle in directory.glob(f"*/{NAME}"))
    return f"; it has one for each of {', '.join(names)}: open {directory / names[0]}" if names else ""


def _check_fields(manifest: Mapping[str, Any], path: Path) -> None:
    """Raises UserError for the first key that is missing or has a value it cannot have."""
    for name, (is_valid, expected) in FIELDS.items():
        if name not in manifest:
            raise UserError(f"{path} is damaged: {name} is missing, expected {expected}")
        if not is_valid(manifest[name]):
            raise UserError(f"{path} is damaged: {name} is {_show(manifest[name])}, expected {expected}")
    if not _each(_are_forms)(manifest.get("vectors", {})):  # Only bundles of vectors have it.
        raise UserError(
            f"{path} is damaged: vectors is {_show(manifest['vectors'])}, expected the smaller forms of each model's "
            "vectors"
        )
    if not _each(_are_shares)(manifest.get("escalate", {})):  # Only bundles with a teacher's accuracy have it.
        raise UserError(
            f"{path} is damaged: escalate is {_show(manifest['escalate'])}, expected shares and thresholds that rise, "
            "for each model"
        )
    without_padding = [name for name in manifest["inputs"] if name not in manifest["padding"]]
    if without_padding:
        raise UserError(f"{path} is damaged: padding has no {without_padding[0]}, expected a value for each input")
    models: Mapping[str, str] = manifest["models"]
    if manifest["recommended"] not in (None, *models):
        raise UserError(
            f"{path} is damaged: recommended is {_show(manifest['recommended'])}, expected null or one of "
            f"{', '.join(models)}"
        )
    for key in ("thresholds", "escalate", "targets", "batch_sizes", "gates"):
        if unknown := [name for name in manifest.get(key, {}) if name not in models]:
            raise UserError(f"{path} is damaged: {key} has {unknown[0]}, expected some of {', '.join(models)}")
    weights = [data_file(Path(file)).name for file in models.values() if needs_openvino(file)]
    for file in (*models.values(), *weights, "tokenizer.json"):
        if file not in manifest["files"]:
            raise UserError(f"{path} is damaged: files has no SHA-256 of {file}")


def _is_count(value: Any) -> bool:
    return is_count(value) and value <= LARGEST


def _is_size(value: object) -> bool:
    return _is_count(value) and value != 0


def _is_one_line(value: object) -> bool:
    return isinstance(value, str) and value.splitlines() == [value]


def _are_names(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(name, str) for name in value)


def _is_file_name(value: object) -> bool:
    """Returns whether the value is the name of a file in the bundle itself."""
    return _is_one_line(value) and value not in (".", "..") and not set(str(value)) & set("/\\:\0")


def _each(is_valid: IsValid) -> IsValid:
    """Returns a function that says whether a value is an object whose values are all valid."""
    return lambda value: isinstance(value, dict) and all(map(is_valid, value.values()))


def _are_files(value: Any) -> bool:
    return bool(value) and _each(_is_file_name)(value) and all(map(_is_one_line, value))


def _is_checksum(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


def _are_forms(value: object) -> bool:
    """Returns whether the value has the smaller forms of a model's vectors."""
    return isinstance(value, list) and all(
        isinstance(form, dict) and _is_count(form.get("dimensions"))
        and all(isinstance(form.get(name), str) for name in ("precision", "gate"))
        for form in value
    )  # fmt: skip


def _are_shares(value: object) -> bool:
    """Returns whether the value has shares of dev from 0 on with the confidences that they are below."""
    if not isinstance(value, list) or not value:
        return False
    if not all(isinstance(row, list) and len(row) == 2 and all(map(is_share, row)) for row in value):
        return False
    shares, thresholds = zip(*value, strict=True)
    return shares[0] == 0 and sorted({*shares}) == [*shares] and sorted(thresholds) == [*thresholds]


# Each key that a prediction depends on: whether a value is valid, and the valid ones in words.
FIELDS: Mapping[str, Rule] = {
    "decoder": (_is_one_line, "the name of a decoder"),
    # Empty for predictions without labels.
    "labels": (
        lambda value: value == [] or (_are_names(value) and len(set(value)) == len(value)),
        "a list of names, each once",
    ),
    "pair": (lambda value: isinstance(value, bool), "true or false"),
    "max_length": (_is_size, "a whole number of at least 1"),
    "doc_stride": null_or(_is_count, "null, or the tokens that neighbouring windows share"),
    "decoding": (lambda value: isinstance(value, dict), "the values that the decoder needs, by name"),
    "truncation_side": (lambda value: value in SIDES, "left or right"),
    "inputs": (
        lambda value: _are_names(value) and set(value) <= set(INPUTS) and len(set(value)) == len(value),
        f"a list of some of {', '.join(INPUTS)}",
    ),
    "padding": (_each(_is_count), "a whole number of at least 0 for each input"),
    "padding_side": (lambda value: value in SIDES, "left or right"),
    "models": (_are_files, "the name of a file of the bundle for each model"),
    "recommended": null_or(lambda value: isinstance(value, str), "null or the name of a model"),
    "metrics": (_each(lambda metrics: isinstance(metrics, dict)), "the metrics of each model, by name"),
    "thresholds": (_each(is_share), "a probability for each model that abstains"),
    "targets": (
        _each(lambda target: target in TARGETS),
        f"one of {', '.join(TARGETS)} for each model that is not right everywhere",
    ),
    "batch_sizes": (_each(_is_size), "a whole number of at least 1 for each model that prefers small batches"),
    "gates": (_each(_is_one_line), "one line for each model that did not pass its gate"),
    "files": (_each(_is_checksum), "the SHA-256 of each file"),
}


def _show(value: object) -> str:
    """Returns a value as JSON in one short line."""
    text = json.dumps(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
